//! The connection to a cluster: kubectl's flags, its rules of precedence, a time-out for each call, and errors that
//! explain themselves.

mod complete;
mod config;
mod explain;
mod flags;
mod proxy;

use std::{
    fmt,
    future::Future,
    path::PathBuf,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

pub use config::{Environment, Settings, resolve};
pub use explain::{cause, explain, is_already_exists, is_conflict, is_not_found, is_retryable};
pub use flags::{KubeFlags, parse_duration, parse_timeout};
pub use proxy::{ProxyVariables, proxy_for};

use crate::{Error, Result, error::Cause, wait::short};

/// What the plugin brings along where the user said nothing.
#[derive(Clone, Debug, Default)]
pub struct Defaults {
    /// The kubeconfig to use when there is neither `--kubeconfig` nor `$KUBECONFIG` nor `~/.kube/config` nor `--server`.
    pub fallback_kubeconfig: Option<PathBuf>,
    /// Name and version for the User-Agent header and the API server's audit log, for example `kubectl-selfhost/0.1.0`.
    pub user_agent: String,
}

/// A cluster that can be spoken to. Cheap to clone; clones count requests together.
#[derive(Clone)]
pub struct Cluster {
    /// The client. Requests through it directly have no time-out of their own and are not counted: see [`Cluster::call`].
    pub client: kube::Client,
    /// Address of the API server, as it is used.
    pub server: String,
    /// The context of the kubeconfig, `None` where the flags alone say where to connect.
    pub context: Option<String>,
    /// The namespace of the flag or the context, else `default`.
    pub namespace: String,
    /// What one call may take; [`Duration::MAX`] where the user wants no limit.
    pub request_timeout: Duration,
    calls: Arc<AtomicU64>,
}

impl fmt::Debug for Cluster {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter
            .debug_struct("Cluster")
            .field("server", &self.server)
            .field("context", &self.context)
            .field("namespace", &self.namespace)
            .finish_non_exhaustive()
    }
}

impl Cluster {
    /// A cluster behind a client that exists already, for tests and for clients made in another way.
    #[must_use]
    pub fn from_client(client: kube::Client, server: impl Into<String>, request_timeout: Duration) -> Self {
        let namespace = client.default_namespace().to_owned();
        Self {
            client,
            server: server.into(),
            context: None,
            namespace,
            request_timeout,
            calls: Arc::default(),
        }
    }

    /// Connects nothing yet: prepares the client that the settings describe. A credential plugin (`exec`) runs now, and
    /// may ask on the terminal, so call it before bars are shown.
    ///
    /// # Errors
    /// When certificates, keys or credentials cannot be read or used.
    pub fn new(settings: Settings) -> Result<Self> {
        let Settings {
            config,
            context,
            request_timeout,
        } = settings;
        let server = config.cluster_url.to_string().trim_end_matches('/').to_owned();
        let namespace = config.default_namespace.clone();
        let client = kube::Client::try_from(config)
            .map_err(|error| explain(&error).context(format!("cannot prepare the connection to {server}")))?;
        Ok(Self {
            client,
            server,
            context,
            namespace,
            request_timeout,
            calls: Arc::default(),
        })
    }

    /// Awaits one request with the time-out, counts it, and explains its error.
    ///
    /// `what` is what is done, as it reads after "cannot", for example `get Pod kube-system/etcd-a`. Kind, cause and
    /// hints of the error are those of [`explain`]. After a time-out it is unknown whether the request took effect.
    ///
    /// # Errors
    /// The request's error, or [`Cause::TimedOut`].
    pub async fn call<T>(&self, what: &str, request: impl Future<Output = kube::Result<T>>) -> Result<T> {
        self.calls.fetch_add(1, Ordering::Relaxed);
        match tokio::time::timeout(self.request_timeout, request).await {
            Ok(Ok(value)) => Ok(value),
            Ok(Err(error)) => {
                let mut error = explain(&error);
                if matches!(error.cause(), Cause::Unreachable | Cause::TimedOut | Cause::Certificate) {
                    error = error.context(format!("the API server at {} cannot be reached", self.server));
                }
                Err(error.context(format!("cannot {what}")))
            }
            Err(_) => Err(Error::new(format!("cannot {what}"))
                .because(format!(
                    "no answer from {} within {}",
                    self.server,
                    short(self.request_timeout)
                ))
                .hint("see whether the API server is overloaded or restarting; --request-timeout allows more time")
                .with_cause(Cause::TimedOut)),
        }
    }

    /// How many requests went through [`Cluster::call`].
    #[must_use]
    pub fn calls(&self) -> u64 {
        self.calls.load(Ordering::Relaxed)
    }
}

#[cfg(test)]
mod tests;
