//! What the agent is told, and how names that nobody gave are found.

use std::{path::PathBuf, time::Duration};

use clap::Args;
use http::Uri;
use shared::{Error, Result, kube_client::parse_duration};

use crate::{certificate::Chain, names};

/// Options of the agent: those that its ancestor documents, with its defaults, plus flags for the two it had none for.
#[derive(Args, Clone, Debug, PartialEq, Eq)]
#[command(next_help_heading = "Agent options")]
pub struct FailoverAgentOptions {
    /// Namespace of the agent and of its Secrets on the spoke; else that of the Pod's ServiceAccount, else
    /// open-cluster-management
    #[arg(long, value_name = "NAME", default_value = "", hide_default_value = true)]
    pub component_namespace: String,
    /// Name of the cluster on the hub, instead of the one in the stored credentials or a random one
    #[arg(long, value_name = "NAME", default_value = "", hide_default_value = true)]
    pub cluster_name: String,
    /// Name of this agent, instead of the one in the stored credentials or a random one
    #[arg(long, value_name = "NAME", default_value = "", hide_default_value = true)]
    pub agent_name: String,
    /// Kubeconfig that may register with the hub
    #[arg(long, value_name = "FILE")]
    pub bootstrap_kubeconfig: Vec<PathBuf>,
    /// Secret, in the namespace of the agent, that holds the credentials for the hub
    #[arg(long, value_name = "NAME", default_value = names::HUB_KUBECONFIG_SECRET)]
    pub hub_kubeconfig_secret: String,
    /// Directory that the credentials for the hub are copied to
    #[arg(long, value_name = "DIRECTORY", default_value = names::HUB_KUBECONFIG_DIR)]
    pub hub_kubeconfig_dir: PathBuf,
    /// Address (https) at which the hub's users reach the spoke's API server (can be repeated; commas do not separate)
    #[arg(long = "spoke-external-server-urls", value_name = "URL")]
    pub spoke_external_server_urls: Vec<String>,
    /// Time between two checks of the spoke's health, such as 30s or 1m30s
    #[arg(long = "cluster-healthcheck-period", value_name = "DURATION", default_value = "1m", value_parser = parse_duration)]
    pub cluster_health_check_period: Duration,
    /// How many of the spoke's own claims are sent at most; reserved claims do not count
    #[arg(long, value_name = "COUNT", default_value_t = 20, allow_negative_numbers = true)]
    pub max_custom_cluster_claims: i64,
    /// Claims whose names end like this are reserved too: sent first and never cut (can be repeated)
    #[arg(long, value_name = "SUFFIX")]
    pub reserved_cluster_claim_suffixes: Vec<String>,
    /// Life to ask of the certificate, such as 24h; at least 10m, and the hub may give less. Without it the hub decides
    #[arg(long, value_name = "DURATION", value_parser = parse_duration)]
    pub client_cert_expiration: Option<Duration>,
}

impl Default for FailoverAgentOptions {
    fn default() -> Self {
        Self::new()
    }
}

/// What is there to find names in: the service account of the Pod, and the directory with the hub's credentials.
#[derive(Clone, Debug, Default)]
pub struct NameSources {
    /// Content of the Pod's file with the namespace of its ServiceAccount.
    pub service_account_namespace: Option<String>,
    /// Content of `tls.crt`.
    pub certificate: Option<Vec<u8>>,
    /// Content of the file `cluster-name`.
    pub cluster_name: Option<String>,
    /// Content of the file `agent-name`.
    pub agent_name: Option<String>,
}

/// Random texts, drawn outside, so that [`FailoverAgentOptions::complete`] decides by its arguments alone.
#[derive(Clone, Debug)]
pub struct RandomNames {
    /// A UUID, version 4.
    pub cluster: String,
    /// Five characters that Kubernetes uses for generated names.
    pub agent: String,
}

/// The characters that Kubernetes draws generated names from: no vowels, none that look alike.
const SAFE: &[u8; 27] = b"bcdfghjklmnpqrstvwxz2456789";

impl RandomNames {
    /// Names from random bytes: the first 16 for the cluster, the others for the agent.
    #[must_use]
    pub fn from_bytes(bytes: [u8; 21]) -> Self {
        let mut hex = String::with_capacity(36);
        for (index, byte) in bytes.iter().take(16).enumerate() {
            if matches!(index, 4 | 6 | 8 | 10) {
                hex.push('-');
            }
            let byte = match index {
                6 => (byte & 0x0f) | 0x40,
                8 => (byte & 0x3f) | 0x80,
                _ => *byte,
            };
            hex.push_str(&format!("{byte:02x}"));
        }
        let agent = bytes
            .iter()
            .skip(16)
            .map(|byte| char::from(SAFE[usize::from(*byte) % SAFE.len()]));
        Self {
            cluster: hex,
            agent: agent.collect(),
        }
    }
}

impl FailoverAgentOptions {
    /// The defaults: everything else is empty.
    #[must_use]
    pub fn new() -> Self {
        Self {
            component_namespace: String::new(),
            cluster_name: String::new(),
            agent_name: String::new(),
            bootstrap_kubeconfig: Vec::new(),
            hub_kubeconfig_secret: names::HUB_KUBECONFIG_SECRET.into(),
            hub_kubeconfig_dir: names::HUB_KUBECONFIG_DIR.into(),
            spoke_external_server_urls: Vec::new(),
            cluster_health_check_period: Duration::from_secs(60),
            max_custom_cluster_claims: 20,
            reserved_cluster_claim_suffixes: Vec::new(),
            client_cert_expiration: None,
        }
    }

    /// The namespace: the flag, that of the ServiceAccount, the default.
    #[must_use]
    pub fn namespace(&self, service_account: Option<&str>) -> String {
        [
            self.component_namespace.as_str(),
            service_account.unwrap_or_default().trim(),
            names::DEFAULT_NAMESPACE,
        ]
        .into_iter()
        .find(|name| !name.is_empty())
        .unwrap_or_default()
        .to_owned()
    }

    /// Fills in what is missing. A given name wins; then the certificate; then the file; then a random name. Returns what
    /// is worth a warning.
    pub fn complete(&mut self, found: &NameSources, random: &RandomNames) -> Vec<String> {
        let mut warnings = Vec::new();
        self.component_namespace = self.namespace(found.service_account_namespace.as_deref());
        let mut certified = None;
        if let Some(pem) = &found.certificate {
            match Chain::parse(pem) {
                Ok(chain) => {
                    certified = chain
                        .names()
                        .map(|(cluster, agent)| (cluster.to_owned(), agent.to_owned()));
                }
                Err(error) => warnings.push(format!("the stored certificate is ignored: {error}")),
            }
        }
        let (certified_cluster, certified_agent) = certified.unzip();
        let mut pick = |what: &str, flag: &str, certified: Option<String>, file: Option<&String>, random: &str| {
            let file = file.map(|text| text.trim()).filter(|text| !text.is_empty());
            if let (Some(of_certificate), Some(of_file)) = (&certified, file)
                && of_certificate != of_file
            {
                warnings.push(format!(
                    "the stored certificate is for {what} {of_certificate:?}, the file {what}-name says {of_file:?}: the certificate counts"
                ));
            }
            let flag = Some(flag).filter(|text| !text.is_empty()).map(str::to_owned);
            flag.or(certified)
                .or_else(|| file.map(str::to_owned))
                .unwrap_or_else(|| random.to_owned())
        };
        let cluster = pick(
            "cluster",
            &self.cluster_name,
            certified_cluster,
            found.cluster_name.as_ref(),
            &random.cluster,
        );
        let agent = pick(
            "agent",
            &self.agent_name,
            certified_agent,
            found.agent_name.as_ref(),
            &random.agent,
        );
        self.cluster_name = cluster;
        self.agent_name = agent;
        warnings
    }

    /// Whether all of it can be used. The first error is returned, in the order of the ancestor; what it forgot to look
    /// at comes after.
    ///
    /// # Errors
    /// A usage error that names the flag.
    pub fn validate(&self) -> Result<()> {
        let first = self.bootstrap_kubeconfig.first();
        if first.is_none_or(|path| path.as_os_str().is_empty()) {
            return Err(Error::usage("bootstrap-kubeconfig is required").hint(
                "give --bootstrap-kubeconfig FILE, a kubeconfig that the hub's administrator made for registration",
            ));
        }
        if self.cluster_name.is_empty() {
            return Err(Error::usage("cluster name is empty").hint("give --cluster-name NAME"));
        }
        if self.agent_name.is_empty() {
            return Err(Error::usage("agent name is empty").hint("give --agent-name NAME"));
        }
        for url in &self.spoke_external_server_urls {
            check_https(url)?;
        }
        if self.cluster_health_check_period.is_zero() {
            return Err(Error::usage("cluster healthcheck period must greater than zero")
                .hint("give --cluster-healthcheck-period a duration such as 1m"));
        }
        if self.max_custom_cluster_claims < 0 {
            return Err(Error::usage(format!(
                "--max-custom-cluster-claims is {}, and must not be negative",
                self.max_custom_cluster_claims
            ))
            .hint("0 sends reserved claims only"));
        }
        if !names::is_dns_label(&self.cluster_name) {
            return Err(
                Error::usage(format!("cluster name {:?} cannot be used", self.cluster_name))
                    .because("the hub makes a namespace of this name")
                    .hint("use at most 63 small letters, digits and -, with a letter or digit at both ends"),
            );
        }
        let good = |character: char| character.is_ascii_alphanumeric() || "-._".contains(character);
        if !self.agent_name.chars().all(good) || self.agent_name.len() > 63 {
            return Err(Error::usage(format!("agent name {:?} cannot be used", self.agent_name))
                .hint("use at most 63 letters, digits, - . and _"));
        }
        if self
            .client_cert_expiration
            .is_some_and(|life| life < Duration::from_secs(600))
        {
            return Err(Error::usage("--client-cert-expiration is less than 10m")
                .because("Kubernetes signs no shorter certificate"));
        }
        if self.bootstrap_kubeconfig.len() > 1 {
            return Err(Error::refused("several --bootstrap-kubeconfig are not implemented yet")
                .because("this version joins one hub; failover to a second one will come")
                .hint("give --bootstrap-kubeconfig once"));
        }
        Ok(())
    }
}

/// Whether it is an https URL with a host. The ancestor only looked at the scheme, so that `https:` passed.
///
/// # Errors
/// A usage error that names the URL.
pub fn check_https(url: &str) -> Result<()> {
    let usable = url
        .parse::<Uri>()
        .is_ok_and(|uri| uri.scheme_str() == Some("https") && uri.host().is_some_and(|host| !host.is_empty()));
    if usable {
        return Ok(());
    }
    Err(Error::usage(format!("{url:?} is invalid"))
        .because("--spoke-external-server-urls takes https URLs with a host")
        .hint("write it as https://HOST:PORT"))
}

/// Refuses an external address of the spoke that is the hub's own.
///
/// # Errors
/// A usage error that names the address.
pub fn not_the_hub(urls: &[String], hub: &str) -> Result<()> {
    match urls.iter().find(|url| url.trim_end_matches('/') == hub) {
        None => Ok(()),
        Some(url) => Err(
            Error::usage(format!("--spoke-external-server-urls {url} is the address of the hub"))
                .because("the hub's users would take the hub for the spoke")
                .hint("give the address at which they reach the spoke's API server"),
        ),
    }
}

#[cfg(test)]
#[path = "options_tests.rs"]
mod tests;
