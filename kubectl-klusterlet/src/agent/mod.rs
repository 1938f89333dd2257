//! The agent: tasks that share [`state::State`] and run until the process is told to end.
//!
//! | task | does |
//! | --- | --- |
//! | [`lock`] | holds the Lease on the spoke that only one agent holds |
//! | [`credentials`] | bootstrap kubeconfig, certificate request, Secret and directory |
//! | [`cluster`] | watches the ManagedCluster, with whichever credentials may |
//! | [`lease`] | renews the cluster's lease on the hub |
//! | [`status`] | writes the ManagedCluster's status, managed namespaces, external addresses |
//! | [`spoke_watch`] | health, version, nodes and claims of the spoke |

pub mod cluster;
pub mod credentials;
pub mod lease;
pub mod lock;
pub mod spoke_watch;
pub mod state;
pub mod status;

use std::{
    future::Future,
    path::PathBuf,
    sync::Arc,
    time::{Duration, Instant},
};

use shared::{Error, Result, error::Cause};

use self::state::{State, Trouble, TroubleKind};
use crate::{
    connection::is_unauthorized,
    facts::ClaimRules,
    files,
    hub_kubeconfig::HubEndpoint,
    log::Log,
    options::{FailoverAgentOptions, NameSources, RandomNames},
    pending,
    registration::SpokeIdentity,
    spoke::Spoke,
    timing::is_notable,
};

/// Everything that the tasks need.
#[derive(Debug)]
pub struct Context {
    /// Completed and validated.
    pub options: FailoverAgentOptions,
    /// The spoke.
    pub spoke: Spoke,
    /// Where it tells what it does.
    pub log: Log,
    /// What the tasks share.
    pub state: State,
    /// What tells this spoke from others.
    pub identity: SpokeIdentity,
    /// Certificate authorities of the spoke for its external addresses, base64 of PEM.
    pub ca_bundle: Option<String>,
    /// Whether somebody asked for the registration just now: then a ManagedCluster that was deleted is made again, and a
    /// request that was denied is made anew.
    pub is_join: bool,
    /// Whether a name that seems to be another spoke's is taken over.
    pub force: bool,
    /// When it began.
    pub started: Instant,
}

impl Context {
    /// The file with the bootstrap kubeconfig.
    #[must_use]
    pub fn bootstrap_file(&self) -> PathBuf {
        self.options.bootstrap_kubeconfig.first().cloned().unwrap_or_default()
    }

    /// Which claims are sent.
    #[must_use]
    pub fn claim_rules(&self) -> ClaimRules {
        ClaimRules {
            most_custom: usize::try_from(self.options.max_custom_cluster_claims).unwrap_or(0),
            reserved_suffixes: self.options.reserved_cluster_claim_suffixes.clone(),
        }
    }

    /// Remembers what keeps the credentials from getting on, and logs it when it is new.
    pub fn trouble(&self, trouble: Option<Trouble>) {
        let text = trouble.as_ref().map(|trouble| trouble.text.clone());
        if self.state.update(|snapshot| snapshot.trouble = trouble) {
            match text {
                Some(text) => self.log.warning(&text, &[]),
                None => self.log.info("the credentials are in order again", &[]),
            }
        }
    }

    /// Remembers how far the hub's clock is ahead, and tells when that begins or ends to matter.
    pub fn clock(&self, skew: jiff::SignedDuration) {
        let before = self.state.skew();
        self.state.set_skew(skew);
        if is_notable(skew) != is_notable(before) {
            let text = if is_notable(skew) {
                "the clocks of this machine and of the hub differ; set one of them right"
            } else {
                "the clocks agree again"
            };
            self.log.warning(text, &[("hub is ahead by", &format!("{skew:#}"))]);
        }
    }

    /// The same for the ManagedCluster.
    pub fn cluster_trouble(&self, trouble: Option<Trouble>) {
        let text = trouble.as_ref().map(|trouble| trouble.text.clone());
        if self.state.update(|snapshot| snapshot.cluster_trouble = trouble) {
            match text {
                Some(text) => self.log.warning(&text, &[]),
                None => self.log.info("the ManagedCluster is in order again", &[]),
            }
        }
    }
}

/// What sort of trouble an error of the hub is.
#[must_use]
pub fn trouble_of(error: &Error) -> Trouble {
    let kind = match error.cause() {
        _ if is_unauthorized(error) => TroubleKind::Unauthorized,
        Cause::Unreachable | Cause::TimedOut | Cause::Unavailable | Cause::Certificate => TroubleKind::HubUnreachable,
        Cause::Forbidden => TroubleKind::Forbidden,
        _ => TroubleKind::Other,
    };
    let hints: String = error.hints().iter().map(|hint| format!("; hint: {hint}")).collect();
    Trouble {
        kind,
        text: format!("{error}{hints}"),
    }
}

/// The same for a hub; where its server's certificate is not accepted, with what is trusted.
#[must_use]
pub fn trouble_at(error: &Error, endpoint: &HubEndpoint) -> Trouble {
    let mut trouble = trouble_of(error);
    if error.cause() == Cause::Certificate {
        trouble.text.push_str("; trusted: ");
        trouble.text.push_str(&endpoint.trusted());
    }
    trouble
}

/// Random bytes of the system.
///
/// # Errors
/// It has none.
pub fn random<const N: usize>() -> Result<[u8; N]> {
    let mut bytes = [0; N];
    getrandom::fill(&mut bytes).map_err(|error| Error::new("this machine has no randomness").because(error))?;
    Ok(bytes)
}

/// One random byte for spreading; without randomness nothing spreads, and all else is right.
#[must_use]
pub fn random_byte() -> u8 {
    random::<1>().map_or(0, |[byte]| byte)
}

/// Fills in the options from what the spoke and the directory hold: copies the Secret into the directory first. Returns
/// warnings, and whether credentials or a request are kept for these names.
///
/// # Errors
/// The spoke does not answer, or the directory cannot be written.
pub async fn complete(
    options: &mut FailoverAgentOptions,
    spoke: &Spoke,
    pod_namespace: Option<String>,
    writes: bool,
) -> Result<(Vec<String>, bool)> {
    let secret = spoke.secret(&options.hub_kubeconfig_secret).await?;
    let open = spoke
        .secret(&crate::names::pending_secret(&options.hub_kubeconfig_secret))
        .await?;
    let mut warnings = Vec::new();
    let found = match &secret {
        Some(secret) if writes => {
            let (_, refused) = files::dump(&options.hub_kubeconfig_dir, &secret.data)?;
            if !refused.is_empty() {
                warnings.push(format!(
                    "keys of Secret {} that cannot be files are left out: {}",
                    options.hub_kubeconfig_secret,
                    refused.join(", ")
                ));
            }
            files::read(&options.hub_kubeconfig_dir)
        }
        Some(secret) => secret.data.clone(),
        None => files::read(&options.hub_kubeconfig_dir),
    };
    let text = |name: &str| found.get(name).map(|bytes| String::from_utf8_lossy(bytes).into_owned());
    let open_names = open.as_ref().and_then(|open| pending::names(&open.data));
    let (open_cluster, open_agent) = open_names.unzip();
    let sources = NameSources {
        service_account_namespace: pod_namespace,
        certificate: found.get(crate::names::key::CERTIFICATE).cloned(),
        cluster_name: text(crate::names::key::CLUSTER_NAME).or(open_cluster),
        agent_name: text(crate::names::key::AGENT_NAME).or(open_agent),
    };
    let kept = sources.certificate.is_some() || sources.cluster_name.is_some();
    let kept_name = sources.cluster_name.clone();
    warnings.extend(options.complete(&sources, &RandomNames::from_bytes(random()?)));
    let same = kept_name.is_none_or(|name| name == options.cluster_name);
    Ok((warnings, kept && same))
}

/// Runs until `stop` resolves; then gives the spoke's lease back.
///
/// # Errors
/// None so far: what does not work is told and tried again.
pub async fn run(context: Arc<Context>, stop: impl Future<Output = ()>) -> Result<()> {
    let name = format!("{}/{}", context.spoke.namespace, crate::names::AGENT_LEASE);
    let work = async {
        let mut leads = context.state.is_leader.subscribe();
        loop {
            let _ = leads.wait_for(|leads| *leads).await;
            let tasks = async {
                tokio::join!(
                    credentials::run(&context),
                    cluster::run(&context),
                    lease::run(&context),
                    status::run(&context),
                    spoke_watch::health(&context),
                    spoke_watch::nodes(&context),
                    spoke_watch::claims(&context),
                    credentials::watch_bootstrap_file(&context),
                    credentials::watch_secret(&context),
                )
            };
            tokio::select! {
                _ = tasks => {}
                _ = leads.wait_for(|leads| !*leads) => {
                    context.log.warning("another agent took the spoke over, so this one rests", &[("lease", &name)]);
                    context.state.hub.send_if_modified(|hub| hub.take().is_some());
                }
            }
        }
    };
    tokio::select! {
        () = work => {}
        () = lock::hold(&context) => {}
        () = stop => {}
    }
    if *context.state.is_leader.borrow() {
        // What cannot be given back runs out by itself.
        let _ = tokio::time::timeout(Duration::from_secs(3), lock::release(&context)).await;
    }
    Ok(())
}
