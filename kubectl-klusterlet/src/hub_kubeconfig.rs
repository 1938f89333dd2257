//! The kubeconfig for the hub: made from the bootstrap kubeconfig, and judged against it.

use std::{
    collections::BTreeMap,
    path::{Path, PathBuf},
};

use base64::{Engine as _, prelude::BASE64_STANDARD};
use jiff::Timestamp;
use kube::config::Kubeconfig;
use serde::Deserialize as _;
use serde_json::{Value, json};
use shared::{Context as _, Error, Result, yaml};

use crate::{certificate::Chain, csr::agent_subject, names::key};

/// Where a hub is and how it is trusted.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct HubEndpoint {
    /// Name of the cluster's entry in the kubeconfig. A rebuilt hub behind the same address is told apart by it.
    pub cluster: String,
    /// Address of the API server.
    pub server: String,
    /// Proxy on the way.
    pub proxy_url: Option<String>,
    /// File with certificate authorities; an absolute path.
    pub certificate_authority: Option<String>,
    /// Certificate authorities, base64.
    pub certificate_authority_data: Option<String>,
    /// Name that the server's certificate has to carry.
    pub tls_server_name: Option<String>,
}

impl HubEndpoint {
    /// Reads the current context of a bootstrap kubeconfig.
    ///
    /// # Errors
    /// The file cannot be read, or its current context names no server, or it does not verify the server.
    pub fn read(path: &Path) -> Result<Self> {
        let shown = path.display();
        let kubeconfig = Kubeconfig::read_from(path).map_err(|error| {
            Error::from_std(&error)
                .with_kind(shared::error::Kind::Usage)
                .context(format!("bootstrap kubeconfig {shown} cannot be used"))
                .hint("give --bootstrap-kubeconfig a kubeconfig that the hub's administrator made for registration")
        })?;
        Self::of(&kubeconfig).map_err(|error| error.context(format!("bootstrap kubeconfig {shown} cannot be used")))
    }

    /// The endpoint of the current context.
    ///
    /// # Errors
    /// There is none, or it does not verify the server.
    pub fn of(kubeconfig: &Kubeconfig) -> Result<Self> {
        let context = kubeconfig.current_context.as_deref().unwrap_or_default();
        let cluster = kubeconfig
            .contexts
            .iter()
            .find(|entry| entry.name == context)
            .and_then(|entry| entry.context.as_ref())
            .map(|context| context.cluster.clone())
            .ok_or_else(|| Error::usage(format!("current-context {context:?} names no context of the file")))?;
        let entry = kubeconfig
            .clusters
            .iter()
            .find(|entry| entry.name == cluster)
            .and_then(|entry| entry.cluster.as_ref())
            .ok_or_else(|| Error::usage(format!("context {context:?} names no cluster of the file")))?;
        if entry.insecure_skip_tls_verify == Some(true) {
            return Err(
                Error::usage(format!("cluster {cluster:?} has insecure-skip-tls-verify"))
                    .because("an agent has to know that it speaks to its hub")
                    .hint("put the hub's CA into certificate-authority-data instead"),
            );
        }
        let some = |text: &Option<String>| text.clone().filter(|text| !text.is_empty());
        Ok(Self {
            cluster,
            server: some(&entry.server)
                .ok_or_else(|| Error::usage(format!("cluster {context:?} names no server")))?
                .trim_end_matches('/')
                .to_owned(),
            proxy_url: some(&entry.proxy_url),
            certificate_authority: some(&entry.certificate_authority),
            certificate_authority_data: some(&entry.certificate_authority_data),
            tls_server_name: some(&entry.tls_server_name),
        })
    }

    /// Which certificate authorities the server is verified with, and where they stand, for messages.
    #[must_use]
    pub fn trusted(&self) -> String {
        let (place, pem) = match (&self.certificate_authority_data, &self.certificate_authority) {
            (Some(data), _) => ("certificate-authority-data", BASE64_STANDARD.decode(data.trim()).ok()),
            (None, Some(path)) => (path.as_str(), std::fs::read(path).ok()),
            (None, None) => return "the authorities of this machine".to_owned(),
        };
        let chain = pem.and_then(|pem| Chain::parse(&pem).ok());
        let all = chain.map_or_else(|| "nothing that can be read".to_owned(), |chain| chain.describe());
        format!("{all} ({place})")
    }

    /// The kubeconfig for the hub, with the pair in two files beside it.
    ///
    /// # Errors
    /// It cannot be written as YAML; never seen.
    pub fn hub_kubeconfig(&self) -> Result<String> {
        let mut cluster = json!({"server": self.server});
        for (name, value) in [
            ("proxy-url", &self.proxy_url),
            ("certificate-authority", &self.certificate_authority),
            ("certificate-authority-data", &self.certificate_authority_data),
            ("tls-server-name", &self.tls_server_name),
        ] {
            if let (Some(value), Some(cluster)) = (value, cluster.as_object_mut()) {
                cluster.insert(name.to_owned(), json!(value));
            }
        }
        yaml::to_string(&json!({
            "apiVersion": "v1",
            "kind": "Config",
            "clusters": [{"name": self.cluster, "cluster": cluster}],
            "users": [{"name": "default-auth", "user": {"client-certificate": key::CERTIFICATE, "client-key": key::KEY}}],
            "contexts": [{"name": "default-context", "context": {"cluster": self.cluster, "user": "default-auth", "namespace": "configuration"}}],
            "current-context": "default-context",
        }))
    }

    /// The fields that differ from another endpoint in a way that may mean another hub.
    fn differences(&self, other: &Self) -> Vec<&'static str> {
        let Self {
            cluster,
            server,
            proxy_url,
            certificate_authority,
            certificate_authority_data,
            // Does not tell hubs apart, and Open Cluster Management's own agent does not keep it.
            tls_server_name: _,
        } = other;
        [
            ("cluster name", self.cluster == *cluster),
            ("server", self.server == *server),
            ("proxy-url", self.proxy_url == *proxy_url),
            (
                "certificate-authority",
                self.certificate_authority == *certificate_authority,
            ),
            (
                "certificate-authority-data",
                self.certificate_authority_data == *certificate_authority_data,
            ),
        ]
        .into_iter()
        .filter(|(_, equal)| !equal)
        .map(|(name, _)| name)
        .collect()
    }
}

/// The kubeconfig and the files that it names: what it says changes with each of them.
#[must_use]
pub fn files_of(path: &Path) -> Vec<PathBuf> {
    let mut files = vec![path.to_owned()];
    if let Ok(kubeconfig) = Kubeconfig::read_from(path) {
        let clusters = kubeconfig.clusters.into_iter().filter_map(|entry| entry.cluster);
        files.extend(
            clusters
                .filter_map(|cluster| cluster.certificate_authority)
                .map(PathBuf::from),
        );
        for user in kubeconfig.auth_infos.into_iter().filter_map(|entry| entry.auth_info) {
            let named = [user.client_certificate, user.client_key, user.token_file];
            files.extend(named.into_iter().flatten().map(PathBuf::from));
        }
    }
    files
}

/// The endpoint in the text of a hub kubeconfig.
///
/// # Errors
/// It is no kubeconfig, or as [`HubEndpoint::of`].
pub fn endpoint_of_text(text: &[u8]) -> Result<HubEndpoint> {
    let value: Value = yaml::first_document(&String::from_utf8_lossy(text)).context("it is no YAML")?;
    HubEndpoint::of(&Kubeconfig::deserialize(value).context("it is no kubeconfig")?)
}

/// Why stored credentials cannot be used as they are.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Problem {
    /// Nothing is stored, or not this key of it.
    Missing(&'static str),
    /// The kubeconfig or a PEM text cannot be read.
    Unreadable(String),
    /// The bootstrap kubeconfig speaks of something else; the fields that differ. The pair itself may still be good.
    EndpointDiffers(Vec<&'static str>),
    /// The certificate is for another cluster or agent.
    OtherIdentity(String),
    /// The certificate has expired.
    Expired(Timestamp),
    /// The key is not that of the certificate.
    KeyMismatch,
    /// The hub said 401 to the pair.
    Rejected,
}

impl std::fmt::Display for Problem {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Missing(key::KUBECONFIG) => write!(formatter, "there are no credentials for the hub yet"),
            Self::Missing(name) => write!(formatter, "the stored credentials have no {name}"),
            Self::Unreadable(why) => write!(formatter, "the stored credentials cannot be read: {why}"),
            Self::EndpointDiffers(fields) => {
                write!(
                    formatter,
                    "the bootstrap kubeconfig has another {} than the stored credentials",
                    fields.join(", ")
                )
            }
            Self::OtherIdentity(name) => write!(formatter, "the stored certificate is for {name:?}"),
            Self::Expired(at) => write!(formatter, "the stored certificate expired at {at}"),
            Self::KeyMismatch => write!(formatter, "the stored key does not belong to the stored certificate"),
            Self::Rejected => write!(formatter, "the hub does not accept the stored certificate (401)"),
        }
    }
}

/// Judges stored credentials: the content of the Secret, or of the directory. Without an endpoint (the bootstrap
/// kubeconfig cannot be read) they are judged by themselves. Returns the certificate chain.
///
/// # Errors
/// The first problem.
pub fn assess(
    files: &BTreeMap<String, Vec<u8>>,
    bootstrap: Option<&HubEndpoint>,
    cluster: &str,
    agent: &str,
    now: Timestamp,
) -> Result<Chain, Problem> {
    let get = |name: &'static str| {
        files
            .get(name)
            .filter(|bytes| !bytes.is_empty())
            .ok_or(Problem::Missing(name))
    };
    let unreadable = |error: Error| Problem::Unreadable(error.to_string());
    let endpoint = endpoint_of_text(get(key::KUBECONFIG)?).map_err(unreadable)?;
    let differences = bootstrap
        .map(|bootstrap| bootstrap.differences(&endpoint))
        .unwrap_or_default();
    let private = get(key::KEY)?;
    let chain = Chain::parse(get(key::CERTIFICATE)?).map_err(unreadable)?;
    if !chain.is_for(&agent_subject(cluster, agent)) {
        return Err(Problem::OtherIdentity(chain.common_name().to_owned()));
    }
    let end = chain.validity().not_after;
    if now >= end {
        return Err(Problem::Expired(end));
    }
    if !chain.has_key(private).map_err(unreadable)? {
        return Err(Problem::KeyMismatch);
    }
    // Last: where it is the only problem, the pair is good and may be tried at the other address.
    if !differences.is_empty() {
        return Err(Problem::EndpointDiffers(differences));
    }
    Ok(chain)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{names::agent_user, test_support::certificate};

    fn endpoint() -> HubEndpoint {
        HubEndpoint {
            cluster: "c1".into(),
            server: "https://127.0.0.1:6001".into(),
            ..HubEndpoint::default()
        }
    }

    fn stored(endpoint: &HubEndpoint, certificate: &[u8], private: &str) -> BTreeMap<String, Vec<u8>> {
        BTreeMap::from([
            (
                key::KUBECONFIG.to_owned(),
                endpoint.hub_kubeconfig().unwrap().into_bytes(),
            ),
            (key::CERTIFICATE.to_owned(), certificate.to_vec()),
            (key::KEY.to_owned(), private.as_bytes().to_vec()),
        ])
    }

    #[test]
    fn stored_credentials_are_judged_by_the_documented_rules() {
        let now = Timestamp::now();
        let (pem, private) = certificate(&agent_user("cluster1", "agent1"), "cluster1", -60, 120);
        let good = stored(&endpoint(), &pem, &private);
        let judge = |files: &BTreeMap<String, Vec<u8>>, bootstrap: Option<&HubEndpoint>, cluster: &str| {
            assess(files, bootstrap, cluster, "agent1", now).map(|_| ())
        };
        assert_eq!(judge(&good, Some(&endpoint()), "cluster1"), Ok(()));
        assert_eq!(
            judge(&good, None, "cluster1"),
            Ok(()),
            "a bootstrap file that cannot be read does not matter"
        );
        for name in [key::KUBECONFIG, key::KEY, key::CERTIFICATE] {
            let mut files = good.clone();
            files.remove(name);
            assert_eq!(
                judge(&files, Some(&endpoint()), "cluster1"),
                Err(Problem::Missing(name))
            );
            files.insert(name.to_owned(), Vec::new());
            assert_eq!(
                judge(&files, Some(&endpoint()), "cluster1"),
                Err(Problem::Missing(name))
            );
        }
        assert!(matches!(
            judge(&good, Some(&endpoint()), "cluster2"),
            Err(Problem::OtherIdentity(_))
        ));
        for (changed, field) in [
            (
                HubEndpoint {
                    cluster: "c2".into(),
                    ..endpoint()
                },
                "cluster name",
            ),
            (
                HubEndpoint {
                    server: "https://127.0.0.2:6001".into(),
                    ..endpoint()
                },
                "server",
            ),
            (
                HubEndpoint {
                    proxy_url: Some("http://p".into()),
                    ..endpoint()
                },
                "proxy-url",
            ),
            (
                HubEndpoint {
                    certificate_authority: Some("/ca".into()),
                    ..endpoint()
                },
                "certificate-authority",
            ),
            (
                HubEndpoint {
                    certificate_authority_data: Some("YQ==".into()),
                    ..endpoint()
                },
                "certificate-authority-data",
            ),
        ] {
            assert_eq!(
                judge(&good, Some(&changed), "cluster1"),
                Err(Problem::EndpointDiffers(vec![field]))
            );
        }
        let (other, _) = certificate("test", "cluster1", -60, 120);
        assert!(matches!(
            judge(&stored(&endpoint(), &other, &private), None, "cluster1"),
            Err(Problem::OtherIdentity(_))
        ));
        let (_, other_key) = certificate(&agent_user("cluster1", "agent1"), "cluster1", -60, 120);
        assert_eq!(
            judge(&stored(&endpoint(), &pem, &other_key), None, "cluster1"),
            Err(Problem::KeyMismatch)
        );
        let (old, old_key) = certificate(&agent_user("cluster1", "agent1"), "cluster1", -120, 60);
        assert!(matches!(
            judge(&stored(&endpoint(), &old, &old_key), None, "cluster1"),
            Err(Problem::Expired(_))
        ));
        let (early, early_key) = certificate(&agent_user("cluster1", "agent1"), "cluster1", 300, 600);
        assert_eq!(
            judge(&stored(&endpoint(), &early, &early_key), None, "cluster1"),
            Ok(()),
            "clocks differ"
        );
        let mut garbage = good;
        garbage.insert(key::KUBECONFIG.to_owned(), b"{{{".to_vec());
        assert!(matches!(judge(&garbage, None, "cluster1"), Err(Problem::Unreadable(_))));
    }

    #[test]
    fn messages_say_which_authorities_are_trusted() {
        let directory = tempfile::tempdir().unwrap();
        let file = directory.path().join("ca.crt");
        let (pem, _) = certificate("the hub's CA", "x", -60, 60);
        std::fs::write(&file, &pem).unwrap();
        let with_data = HubEndpoint {
            certificate_authority_data: Some(BASE64_STANDARD.encode(&pem)),
            ..endpoint()
        };
        assert!(
            with_data.trusted().starts_with("\"the hub's CA\" until "),
            "{}",
            with_data.trusted()
        );
        let with_file = HubEndpoint {
            certificate_authority: Some(file.display().to_string()),
            ..endpoint()
        };
        assert!(with_file.trusted().contains("the hub's CA") && with_file.trusted().ends_with("/ca.crt)"));
        std::fs::remove_file(&file).unwrap();
        assert!(with_file.trusted().starts_with("nothing that can be read"));
        assert_eq!(endpoint().trusted(), "the authorities of this machine");
    }

    #[test]
    fn everything_that_leads_to_the_hub_is_kept_and_insecure_is_refused() {
        let full = HubEndpoint {
            cluster: "hub".into(),
            server: "https://hub:6443".into(),
            proxy_url: Some("http://proxy:3128".into()),
            certificate_authority: None,
            certificate_authority_data: Some("YQ==".into()),
            tls_server_name: Some("hub.test".into()),
        };
        let text = full.hub_kubeconfig().unwrap();
        assert_eq!(endpoint_of_text(text.as_bytes()).unwrap(), full);
        assert!(!text.contains("insecure"), "{text}");
        let insecure = text.replace("server:", "insecure-skip-tls-verify: true\n    server:");
        let error = endpoint_of_text(insecure.as_bytes()).unwrap_err();
        assert!(error.to_string().contains("insecure-skip-tls-verify"), "{error}");
    }

    #[test]
    fn a_relative_ca_path_is_that_of_the_bootstrap_file() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("bootstrap.conf");
        std::fs::write(&path, r#"{current-context: a, contexts: [{name: a, context: {cluster: b, user: c}}], clusters: [{name: b, cluster: {server: "https://h/", certificate-authority: ca.crt}}]}"#).unwrap();
        let read = HubEndpoint::read(&path).unwrap();
        assert_eq!(read.server, "https://h");
        let ca = directory.path().join("ca.crt").display().to_string();
        assert_eq!(read.certificate_authority, Some(ca.clone()));
        assert_eq!(files_of(&path), [path.clone(), ca.into()]);
        let missing = directory.path().join("no");
        assert_eq!(files_of(&missing), [missing]);
        let missing = HubEndpoint::read(&directory.path().join("no")).unwrap_err();
        assert!(missing.to_string().contains("/no"), "{missing}");
    }
}
