//! The agent for a service or a Pod, and what `join` shares with it.

use std::{
    net::SocketAddr,
    path::Path,
    sync::Arc,
    time::{Duration, Instant},
};

use base64::{Engine as _, prelude::BASE64_STANDARD};
use shared::{
    Context as _, Error, Result,
    kube_client::{Cluster, KubeFlags},
};

use crate::{
    agent::{self, Context, state::State},
    connection::{SpokeConnection, connect_spoke},
    log::Log,
    names::SERVICE_ACCOUNT_NAMESPACE_FILE,
    options::FailoverAgentOptions,
    registration::SpokeIdentity,
    serve,
    spoke::Spoke,
};

/// How the agent runs.
#[derive(Clone, Debug)]
pub struct RunOptions {
    /// Address of `/healthz`, `/readyz` and `/metrics`; `None` serves none.
    pub listen: Option<SocketAddr>,
}

/// The namespace that a Pod finds in a file; `None` outside of one.
#[must_use]
pub fn pod_namespace() -> Option<String> {
    std::fs::read_to_string(SERVICE_ACCOUNT_NAMESPACE_FILE).ok()
}

/// Resolves when the process is told to end.
///
/// # Errors
/// Signals cannot be received.
#[cfg(unix)]
pub fn stopped() -> Result<impl Future<Output = ()>> {
    use tokio::signal::unix::{SignalKind, signal};
    let mut terminate = signal(SignalKind::terminate()).context("cannot wait for signals")?;
    let mut interrupt = signal(SignalKind::interrupt()).context("cannot wait for signals")?;
    Ok(async move {
        tokio::select! { _ = terminate.recv() => {} _ = interrupt.recv() => {} }
    })
}

/// Resolves when the process is told to end.
///
/// # Errors
/// Signals cannot be received.
#[cfg(not(unix))]
pub fn stopped() -> Result<impl Future<Output = ()>> {
    Ok(async {
        let _ = tokio::signal::ctrl_c().await;
    })
}

/// The certificate authorities of the spoke for its external addresses, base64 of PEM; none where there are no addresses.
///
/// # Errors
/// There are addresses, and the spoke's kubeconfig has no certificate authority.
pub fn ca_bundle(urls: &[String], authorities: Option<&[Vec<u8>]>) -> Result<Option<String>> {
    if urls.is_empty() {
        return Ok(None);
    }
    let authorities = authorities.filter(|all| !all.is_empty()).ok_or_else(|| {
        Error::usage("the spoke's kubeconfig has no certificate authority for --spoke-external-server-urls")
            .hint("set certificate-authority-data there: the hub's users verify these addresses with it")
    })?;
    let mut pem = String::new();
    for der in authorities {
        pem.push_str("-----BEGIN CERTIFICATE-----\n");
        let text = BASE64_STANDARD.encode(der);
        for line in text.as_bytes().chunks(64) {
            pem.push_str(&String::from_utf8_lossy(line));
            pem.push('\n');
        }
        pem.push_str("-----END CERTIFICATE-----\n");
    }
    Ok(Some(BASE64_STANDARD.encode(pem)))
}

/// Everything but the run: what `complete` and the spoke say.
///
/// # Errors
/// The spoke does not answer, or the options are wrong.
pub async fn prepare(
    mut options: FailoverAgentOptions,
    connection: &SpokeConnection,
    log: Log,
    writes: bool,
) -> Result<Context> {
    let namespace = options.namespace(pod_namespace().as_deref());
    let spoke = Spoke {
        cluster: connection.cluster.clone(),
        namespace,
    };
    let (warnings, has_credentials) = agent::complete(&mut options, &spoke, pod_namespace(), writes).await?;
    for warning in warnings {
        log.warning(&warning, &[]);
    }
    options.validate()?;
    let bundle = ca_bundle(&options.spoke_external_server_urls, connection.authorities.as_deref())?;
    let (uid, id_claim) = tokio::join!(spoke.uid(), spoke.id_claim());
    let identity = SpokeIdentity {
        uid: uid?,
        // A spoke without the kind, or that keeps it to itself, has no such claim.
        id_claim: id_claim.unwrap_or(None),
        urls: options.spoke_external_server_urls.clone(),
        has_credentials,
    };
    Ok(Context {
        options,
        spoke,
        log,
        state: State::default(),
        identity,
        ca_bundle: bundle,
        is_join: false,
        force: false,
        started: Instant::now(),
    })
}

/// `prepare`, again and again while the spoke does not answer: a Pod may start before its API server does.
async fn prepare_patiently(options: &FailoverAgentOptions, connection: &SpokeConnection, log: &Log) -> Result<Context> {
    let mut told = false;
    loop {
        match prepare(options.clone(), connection, log.clone(), true).await {
            Err(error) if error.is_retryable() => {
                if !told {
                    log.error("the spoke does not answer; trying again", &error);
                    told = true;
                }
                tokio::time::sleep(Duration::from_secs(2)).await;
            }
            other => return other,
        }
    }
}

impl FailoverAgentOptions {
    /// Runs the agent until the process is told to end: completes and validates the options once the spoke answers, then
    /// follows whichever of the four scenarios holds (bootstrap and hub kubeconfig valid or not), without a restart when
    /// another begins.
    ///
    /// # Errors
    /// The options are wrong, or the address cannot be taken.
    pub async fn run(self, kube: &KubeFlags, how: &RunOptions, log: Log) -> Result<()> {
        run(self, kube, how, log).await
    }
}

async fn run(options: FailoverAgentOptions, kube: &KubeFlags, how: &RunOptions, log: Log) -> Result<()> {
    let stop = stopped()?;
    let connection = connect_spoke(kube)?;
    // Before anything is waited for: a process that waits for its spoke lives.
    let slot = serve::Slot::default();
    if let Some(address) = how.listen {
        tokio::spawn(serve::serve(serve::bind(address).await?, Arc::clone(&slot)));
    }
    tokio::pin!(stop);
    let context = tokio::select! {
        context = prepare_patiently(&options, &connection, &log) => Arc::new(context?),
        () = &mut stop => return Ok(()),
    };
    announce(&context, &connection.cluster);
    let _ = slot.set(Arc::clone(&context));
    agent::run(Arc::clone(&context), stop).await?;
    context.log.info("ended as told", &[]);
    Ok(())
}

fn announce(context: &Context, spoke: &Cluster) {
    let options = &context.options;
    context.log.info(
        "the agent starts",
        &[
            ("version", &env!("CARGO_PKG_VERSION")),
            ("cluster", &options.cluster_name),
            ("agent", &options.agent_name),
            ("spoke", &spoke.server),
            ("namespace", &context.spoke.namespace),
            ("bootstrap kubeconfig", &Path::new(&context.bootstrap_file()).display()),
        ],
    );
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_ca_bundle_is_that_of_the_spoke_and_is_needed_for_addresses_only() {
        let url = ["https://127.0.0.1:6443".to_owned()];
        assert_eq!(ca_bundle(&[], None).unwrap(), None);
        assert_eq!(ca_bundle(&[], Some(&[vec![1]])).unwrap(), None);
        assert!(ca_bundle(&url, None).is_err());
        assert!(ca_bundle(&url, Some(&[])).is_err());
        let (pem, _) = crate::test_support::certificate("ca", "x", -60, 60);
        let der = x509_parser::pem::Pem::iter_from_buffer(&pem)
            .next()
            .unwrap()
            .unwrap()
            .contents;
        let bundle = BASE64_STANDARD
            .decode(ca_bundle(&url, Some(&[der])).unwrap().unwrap())
            .unwrap();
        assert_eq!(
            String::from_utf8(bundle).unwrap().replace('\r', ""),
            String::from_utf8(pem).unwrap().replace('\r', "")
        );
    }
}
