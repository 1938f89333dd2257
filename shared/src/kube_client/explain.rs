//! What an error of the client means. kube's own text repeats itself and prints debug output, so it is never shown.

use std::{error::Error as StdError, io};

use kube::core::Status;
use rustls::CertificateError;

use crate::{Error, error::Cause};

/// The error in words, with its cause and what to do.
#[must_use]
pub fn explain(error: &kube::Error) -> Error {
    use kube::Error as Kube;
    match error {
        Kube::Api(status) => explain_status(status),
        Kube::Service(inner) => explain_transport(inner.as_ref()),
        Kube::HyperError(inner) => explain_transport(inner),
        Kube::Auth(inner) => Error::from_std(inner)
            .context("the credentials of the kubeconfig cannot be used")
            .hint("run the credential plugin by hand, or log in again")
            .with_cause(Cause::Unauthorized),
        Kube::InferKubeconfig(inner) => Error::from_std(inner).context("the kubeconfig cannot be used"),
        Kube::RustlsTls(inner) => Error::from_std(inner)
            .context("the certificates or keys of the kubeconfig cannot be used")
            .hint("check certificate-authority, client-certificate and client-key of the kubeconfig")
            .with_cause(Cause::Certificate),
        Kube::SerdeError(inner) => Error::new("the API server's answer has an unexpected form")
            .because(inner)
            .hint("is there really an API server behind this address?"),
        Kube::ProxyProtocolUnsupported { proxy_url } | Kube::ProxyProtocolDisabled { proxy_url, .. } => {
            Error::usage(format!("proxies of the kind {proxy_url} are not supported"))
                .hint("use a proxy at http://HOST:PORT or socks5://HOST:PORT")
        }
        other => Error::from_std(innermost(other)),
    }
}

/// What lies behind the error.
#[must_use]
pub fn cause(error: &kube::Error) -> Cause {
    explain(error).cause()
}

/// Whether the same request may succeed a moment later: nobody answered, no answer in time, 429 or 5xx.
#[must_use]
pub fn is_retryable(error: &kube::Error) -> bool {
    cause(error).is_retryable()
}

/// Whether the object or kind does not exist.
#[must_use]
pub fn is_not_found(error: &kube::Error) -> bool {
    cause(error) == Cause::NotFound
}

/// Whether somebody else changed or owns the object.
#[must_use]
pub fn is_conflict(error: &kube::Error) -> bool {
    cause(error) == Cause::Conflict
}

/// Whether the object is there already.
#[must_use]
pub fn is_already_exists(error: &kube::Error) -> bool {
    cause(error) == Cause::AlreadyExists
}

fn explain_status(status: &Status) -> Error {
    let message = if status.message.is_empty() {
        format!("the API server answered {} {}", status.code, status.reason)
            .trim_end()
            .to_owned()
    } else {
        status.message.clone()
    };
    let mut error = Error::new(message);
    let cause = match status.code {
        _ if status.is_already_exists() => Cause::AlreadyExists,
        _ if status.is_conflict() => Cause::Conflict,
        _ if status.is_not_found() => Cause::NotFound,
        _ if status.is_forbidden() => Cause::Forbidden,
        _ if status.is_invalid() => Cause::Invalid,
        // Proxies answer without a reason that Kubernetes knows.
        400 | 413 | 422 => Cause::Invalid,
        401 => Cause::Unauthorized,
        403 => Cause::Forbidden,
        404 => Cause::NotFound,
        408 => Cause::TimedOut,
        409 => Cause::Conflict,
        429 | 500.. => Cause::Unavailable,
        _ => Cause::Other,
    };
    let repeated = |text: &str| status.message.contains(text);
    for inner in status.details.iter().flat_map(|details| &details.causes) {
        if !inner.message.is_empty() && !repeated(&inner.message) {
            let field = if inner.field.is_empty() {
                String::new()
            } else {
                format!("{}: ", inner.field)
            };
            error = error.because(format!("{field}{}", inner.message));
        }
    }
    let hint = match cause {
        Cause::Unauthorized => {
            Some("the credentials are missing, expired or not for this cluster: log in again, or choose --context")
        }
        Cause::Forbidden => {
            Some("ask the cluster's administrator for this permission; kubectl auth can-i --list shows what you have")
        }
        Cause::Conflict => Some(
            "somebody else changed or owns it: look at it with kubectl get -o yaml --show-managed-fields, then run this again",
        ),
        Cause::AlreadyExists => Some("look at what is there with kubectl get -o yaml before it is removed or renamed"),
        Cause::Unavailable if status.code == 429 => Some("the API server is overloaded: try again in a moment"),
        Cause::Unavailable => Some("the API server, etcd or a webhook has trouble: look at their logs, then try again"),
        Cause::NotFound
            if status.reason.is_empty() || status.message.contains("could not find the requested resource") =>
        {
            Some("the API server does not know this kind: is it the right cluster and version?")
        }
        _ => None,
    };
    if let Some(hint) = hint {
        error = error.hint(hint);
    }
    error.with_cause(cause)
}

/// Connection refused, bad certificates and unknown hosts all arrive as the same variant: what they are lies at the
/// bottom of the chain.
fn explain_transport(error: &(dyn StdError + 'static)) -> Error {
    let mut link = Some(error);
    let mut last = error;
    let mut name_not_found = false;
    // What the kind of an io::Error around something else says, where nothing deeper says more.
    let mut outer = None;
    while let Some(current) = link {
        if let Some(tls) = current.downcast_ref::<rustls::Error>() {
            return explain_tls(tls);
        }
        if let Some(io_error) = current.downcast_ref::<io::Error>() {
            // An io::Error hides what it wraps from `source`, and connectors wrap one in the other.
            if let Some(wrapped) = io_error.get_ref() {
                outer = outer.or_else(|| explain_io(io_error));
                last = current;
                link = Some(wrapped);
                continue;
            }
            if let Some(explained) = explain_io(io_error) {
                return explained;
            }
        }
        if let Some(kube_error) = current.downcast_ref::<kube::Error>() {
            return explain(kube_error);
        }
        name_not_found |= current.to_string().contains("dns error") || current.to_string().contains("lookup address");
        last = current;
        link = current.source();
    }
    if name_not_found {
        return Error::new("the host name of the server is not known")
            .because(last)
            .hint("check the server's address in the kubeconfig, and the name resolution of this machine")
            .with_cause(Cause::Unreachable);
    }
    if let Some(explained) = outer {
        return explained;
    }
    Error::new("the connection broke")
        .because(last)
        .hint("see whether the API server is restarting, and whether a proxy or firewall lies between")
        .with_cause(Cause::Unreachable)
}

fn explain_io(error: &io::Error) -> Option<Error> {
    use io::ErrorKind as Io;
    let (what, hint, cause) = match error.kind() {
        Io::ConnectionRefused => (
            "connection refused",
            "see whether the API server runs and whether address and port are right",
            Cause::Unreachable,
        ),
        Io::ConnectionReset | Io::ConnectionAborted | Io::BrokenPipe | Io::UnexpectedEof => (
            "the connection was closed by the other side",
            "see whether the API server is restarting, and whether a proxy or firewall lies between",
            Cause::Unreachable,
        ),
        Io::HostUnreachable | Io::NetworkUnreachable | Io::NetworkDown | Io::AddrNotAvailable => (
            "the host cannot be reached",
            "check the network and the routes to the API server",
            Cause::Unreachable,
        ),
        Io::TimedOut => (
            "no answer in time",
            "see whether the API server runs and whether a firewall drops packets",
            Cause::TimedOut,
        ),
        _ => return None,
    };
    let explained = Error::new(what).hint(hint).with_cause(cause);
    let text = error.to_string();
    Some(if text.to_lowercase().contains(what) {
        explained
    } else {
        explained.because(text)
    })
}

fn explain_tls(error: &rustls::Error) -> Error {
    use CertificateError as Certificate;
    let (what, hint) = match error {
        rustls::Error::InvalidCertificate(certificate) => match certificate {
            Certificate::UnknownIssuer | Certificate::BadSignature => (
                "the server's certificate is signed by an unknown authority",
                "the kubeconfig is for another cluster, or its certificate-authority-data is old",
            ),
            Certificate::NotValidForName | Certificate::NotValidForNameContext { .. } => (
                "the server's certificate is for other names",
                "use one of its names as the server, give --tls-server-name, or add the name to the certificate (kubeadm: certSANs)",
            ),
            Certificate::Expired | Certificate::ExpiredContext { .. } => (
                "the server's certificate has expired",
                "renew it (kubeadm certs renew apiserver), or check the clock of this machine",
            ),
            Certificate::NotValidYet | Certificate::NotValidYetContext { .. } => (
                "the server's certificate is not valid yet",
                "check the clocks of this machine and of the server",
            ),
            _ => (
                "the server's certificate is not accepted",
                "look at it with openssl s_client -connect HOST:PORT",
            ),
        },
        rustls::Error::AlertReceived(_) => (
            "the server refused the TLS connection",
            "the client certificate may have expired or be for another cluster",
        ),
        rustls::Error::InvalidMessage(_) => (
            "the server does not speak TLS",
            "check scheme and port of the server's address: is it http:// rather than https://?",
        ),
        _ => (
            "the TLS connection failed",
            "look at it with openssl s_client -connect HOST:PORT",
        ),
    };
    Error::new(what)
        .because(error)
        .hint(hint)
        .with_cause(Cause::Certificate)
}

fn innermost<'a>(error: &'a (dyn StdError + 'static)) -> &'a (dyn StdError + 'static) {
    let mut current = error;
    while let Some(source) = current.source() {
        current = source;
    }
    current
}

#[cfg(test)]
#[path = "explain_tests.rs"]
mod tests;
