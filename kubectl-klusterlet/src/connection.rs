//! Connections to spoke and hub.

use std::{path::Path, time::Duration};

use base64::{Engine as _, prelude::BASE64_STANDARD};
use http::{Request, StatusCode};
use jiff::{SignedDuration, Timestamp};
use kube::{client::Body, config::Kubeconfig};
use serde::{Deserialize as _, de::DeserializeOwned};
use serde_json::{Value, json};
use shared::{
    Context as _, Error, Result,
    error::Cause,
    kube_client::{Cluster, Defaults, Environment, KubeFlags, Settings, resolve},
};

use crate::{csr::fingerprint, hub_kubeconfig::HubEndpoint, names::SERVICE_ACCOUNT_NAMESPACE_FILE, timing::skew};

/// What one request of the agent may take. A hub that accepts connections and never answers is noticed by it.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(10);

/// The User-Agent header.
#[must_use]
pub fn defaults() -> Defaults {
    Defaults {
        fallback_kubeconfig: None,
        user_agent: format!("kubectl-klusterlet/{}", env!("CARGO_PKG_VERSION")),
    }
}

/// With which credentials a hub is spoken to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Credentials {
    /// Those of the bootstrap kubeconfig.
    Bootstrap,
    /// The certificate that the hub signed for this agent; its fingerprint.
    Certificate([u8; 32]),
}

/// A hub and the credentials for it.
#[derive(Clone, Debug)]
pub struct HubAccess {
    /// The connection.
    pub cluster: Cluster,
    /// Who we are there.
    pub credentials: Credentials,
    /// Where it is.
    pub endpoint: HubEndpoint,
    /// What the file with its certificate authorities held, where they are in a file.
    authorities: Option<[u8; 32]>,
}

/// The spoke, and the certificate authorities (DER) that it is trusted by.
#[derive(Clone, Debug)]
pub struct SpokeConnection {
    /// The connection.
    pub cluster: Cluster,
    /// `None` where the machine's own are used.
    pub authorities: Option<Vec<Vec<u8>>>,
}

/// The spoke: what the flags say, or, within a Pod where they say nothing, its own cluster.
///
/// # Errors
/// There is no usable configuration.
pub fn connect_spoke(flags: &KubeFlags) -> Result<SpokeConnection> {
    let environment = Environment::of_process();
    let home = environment.home.as_ref().map(|home| home.join(".kube/config"));
    let configured = flags.kubeconfig.is_some()
        || flags.server.is_some()
        || environment.kubeconfig.is_some()
        || home.is_some_and(|path| path.exists());
    let settings = if !configured && Path::new(SERVICE_ACCOUNT_NAMESPACE_FILE).exists() {
        Settings::in_cluster(&defaults(), REQUEST_TIMEOUT)?
    } else {
        resolve(flags, &defaults(), &environment)?
    };
    let authorities = settings.config.root_cert.clone();
    Ok(SpokeConnection {
        cluster: Cluster::new(settings)?,
        authorities,
    })
}

impl HubAccess {
    /// With the current context of a bootstrap kubeconfig.
    ///
    /// # Errors
    /// The file, or something that it names, cannot be used.
    pub fn bootstrap(path: &Path) -> Result<Self> {
        let endpoint = HubEndpoint::read(path)?;
        let flags = KubeFlags {
            kubeconfig: Some(path.to_owned()),
            request_timeout: Some(REQUEST_TIMEOUT),
            ..KubeFlags::default()
        };
        Ok(Self {
            cluster: Cluster::new(resolve(&flags, &defaults(), &Environment::of_process())?)?,
            credentials: Credentials::Bootstrap,
            authorities: authorities(&endpoint),
            endpoint,
        })
    }

    /// With a certificate.
    ///
    /// # Errors
    /// One of the texts cannot be used.
    pub fn certificate(endpoint: &HubEndpoint, certificate: &[u8], key: &[u8]) -> Result<Self> {
        let mut value: Value = shared::yaml::first_document(&endpoint.hub_kubeconfig()?).context("never")?;
        value["users"][0]["user"] = json!({
            "client-certificate-data": BASE64_STANDARD.encode(certificate),
            "client-key-data": BASE64_STANDARD.encode(key),
        });
        let kubeconfig = Kubeconfig::deserialize(value).context("cannot use the stored credentials")?;
        let flags = KubeFlags {
            request_timeout: Some(REQUEST_TIMEOUT),
            ..KubeFlags::default()
        };
        let settings = Settings::of_kubeconfig(
            "the stored credentials",
            &kubeconfig,
            &flags,
            &defaults(),
            &Environment::of_process(),
        )?;
        Ok(Self {
            cluster: Cluster::new(settings)?,
            credentials: Credentials::Certificate(fingerprint(certificate)),
            authorities: authorities(endpoint),
            endpoint: endpoint.clone(),
        })
    }

    /// Whether it is the same as another.
    #[must_use]
    pub fn is_same(&self, other: &Self) -> bool {
        self.credentials == other.credentials
            && self.endpoint == other.endpoint
            && self.authorities == other.authorities
    }

    /// How far the hub's clock is ahead; any answer tells, a refusal too. `None` where there is none.
    pub async fn skew(&self) -> Option<SignedDuration> {
        let request = Request::get("/version").body(Vec::new()).ok()?;
        send_raw(&self.cluster, "ask for the time of the hub", request)
            .await
            .ok()?
            .2
    }
}

fn authorities(endpoint: &HubEndpoint) -> Option<[u8; 32]> {
    let content = std::fs::read(endpoint.certificate_authority.as_ref()?).ok()?;
    Some(fingerprint(&content))
}

/// An answer, and how far the server's clock is ahead.
#[derive(Clone, Debug)]
pub struct Answer<T> {
    /// The body.
    pub body: T,
    /// From the `Date` header.
    pub skew: Option<SignedDuration>,
}

/// Sends a request whose answer's headers matter.
///
/// # Errors
/// As the API says.
pub async fn send<T: DeserializeOwned>(cluster: &Cluster, what: &str, request: Request<Vec<u8>>) -> Result<Answer<T>> {
    let (status, bytes, skew) = send_raw(cluster, what, request).await?;
    if !status.is_success() {
        let failure = serde_json::from_slice::<kube::core::Status>(&bytes).unwrap_or_else(|_| {
            kube::core::Status::failure(
                &String::from_utf8_lossy(&bytes),
                status.canonical_reason().unwrap_or_default(),
            )
            .with_code(status.as_u16())
        });
        return Err(Error::from(kube::Error::Api(failure.boxed())).context(format!("cannot {what}")));
    }
    let body = serde_json::from_slice(&bytes).map_err(|error| {
        Error::new(format!("cannot {what}"))
            .because("the answer has an unexpected form")
            .because(error)
    })?;
    Ok(Answer { body, skew })
}

/// Gets a path that is no resource, such as `/livez`: status code and body. An answer that is no success is no error.
///
/// # Errors
/// There is no answer.
pub async fn get_path(cluster: &Cluster, path: &str) -> Result<(u16, String)> {
    let request = Request::get(path).body(Vec::new()).context("cannot make a request")?;
    let (status, bytes, _) = send_raw(cluster, &format!("get {path}"), request).await?;
    Ok((status.as_u16(), String::from_utf8_lossy(&bytes).into_owned()))
}

async fn send_raw(
    cluster: &Cluster,
    what: &str,
    request: Request<Vec<u8>>,
) -> Result<(StatusCode, Vec<u8>, Option<SignedDuration>)> {
    let sent = Timestamp::now();
    let answer = async {
        let response = cluster.client.send(request.map(Body::from)).await?;
        let status = response.status();
        let received = Timestamp::now();
        let date = response
            .headers()
            .get(http::header::DATE)
            .and_then(|value| value.to_str().ok());
        let skew = date.and_then(|date| skew(date, sent, received));
        let bytes = response.into_body().collect_bytes().await?;
        Ok((status, bytes.to_vec(), skew))
    };
    cluster.call(what, answer).await
}

/// Whether the server does not know us: 401, or 403 to the anonymous user, who is what is left of bad credentials.
#[must_use]
pub fn is_unauthorized(error: &Error) -> bool {
    error.cause() == Cause::Unauthorized
        || (error.cause() == Cause::Forbidden && error.to_string().contains("\"system:anonymous\""))
}
