//! Which proxy a connection to the API server goes through, by client-go's rules: `proxy-url` of the kubeconfig wins and
//! knows no exceptions; else those of Go's `http.ProxyFromEnvironment`, with the exceptions matched against the *server*.
//! (Package `golang.org/x/net/http/httpproxy`.)

use std::net::IpAddr;

use http::Uri;

use crate::{Error, Result};

/// The proxy variables of the environment, empty ones as if not set.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ProxyVariables {
    /// `HTTP_PROXY` or `http_proxy`, for servers at `http://`.
    pub http: Option<String>,
    /// `HTTPS_PROXY` or `https_proxy`, for servers at `https://`.
    pub https: Option<String>,
    /// `NO_PROXY` or `no_proxy`.
    pub exceptions: Option<String>,
}

impl ProxyVariables {
    /// Reads them with `variable`, which is [`std::env::var`] in a process. The upper-case name comes first, as in Go.
    #[must_use]
    pub fn read(variable: impl Fn(&str) -> Option<String>) -> Self {
        let first = |names: [&str; 2]| names.into_iter().filter_map(&variable).find(|value| !value.is_empty());
        Self {
            http: first(["HTTP_PROXY", "http_proxy"]),
            https: first(["HTTPS_PROXY", "https_proxy"]),
            exceptions: first(["NO_PROXY", "no_proxy"]),
        }
    }
}

/// The proxy for `server`, `None` for a direct connection.
///
/// # Errors
/// When the address of the proxy that would be used is not one.
pub fn proxy_for(server: &Uri, proxy_url: Option<&str>, variables: &ProxyVariables) -> Result<Option<Uri>> {
    if let Some(proxy) = proxy_url.filter(|url| !url.is_empty()) {
        let uri = parse(proxy).map_err(|error| error.context("proxy-url of the cluster in the kubeconfig"))?;
        return Ok(Some(uri));
    }
    let https = server.scheme_str() == Some("https");
    let (name, proxy) = if https {
        ("HTTPS_PROXY", &variables.https)
    } else {
        ("HTTP_PROXY", &variables.http)
    };
    let Some(proxy) = proxy else { return Ok(None) };
    let port = server.port_u16().unwrap_or(if https { 443 } else { 80 });
    let exceptions = variables.exceptions.as_deref().unwrap_or_default();
    if !goes_through_proxy(server.host().unwrap_or_default(), port, exceptions) {
        return Ok(None);
    }
    parse(proxy)
        .map(Some)
        .map_err(|error| error.context(format!("environment variable {name}")))
}

fn parse(proxy: &str) -> Result<Uri> {
    // `host:port` means `http://host:port`.
    let with_scheme = if proxy.contains("://") {
        proxy.to_owned()
    } else {
        format!("http://{proxy}")
    };
    let uri: Uri = with_scheme.parse().map_err(|error| {
        Error::usage(format!("{proxy:?} is not the address of a proxy"))
            .because(error)
            .hint("write it as http://HOST:PORT or socks5://HOST:PORT")
    })?;
    match uri.scheme_str() {
        Some("http" | "socks5") => Ok(uri),
        scheme => Err(Error::usage(format!(
            "{proxy:?}: proxies of the kind {:?} are not supported",
            scheme.unwrap_or_default()
        ))
        .hint("use a proxy at http://HOST:PORT or socks5://HOST:PORT")),
    }
}

/// `host` without brackets or with them, any case.
fn goes_through_proxy(host: &str, port: u16, exceptions: &str) -> bool {
    let host = host.trim_start_matches('[').trim_end_matches(']').to_ascii_lowercase();
    let address: Option<IpAddr> = host.parse().ok();
    if host == "localhost" || address.is_some_and(|address| address.is_loopback()) {
        return false;
    }
    !exceptions
        .split(',')
        .any(|entry| excepted(&entry.trim().to_ascii_lowercase(), &host, address, port))
}

fn excepted(entry: &str, host: &str, address: Option<IpAddr>, port: u16) -> bool {
    if entry.is_empty() {
        return false;
    }
    if entry == "*" {
        return true;
    }
    if let Some((network, bits)) = network(entry) {
        return address.is_some_and(|address| contains(network, bits, address));
    }
    let (name, wanted_port) = split_port(entry);
    if !wanted_port.is_empty() && wanted_port != port.to_string() {
        return false;
    }
    if let Ok(wanted) = name.parse::<IpAddr>() {
        return address.is_some_and(|address| address.to_canonical() == wanted.to_canonical());
    }
    let name = name
        .strip_prefix('*')
        .filter(|rest| rest.starts_with('.'))
        .unwrap_or(name);
    if name.is_empty() {
        return false;
    }
    match name.strip_prefix('.') {
        // A leading dot takes the names below it only.
        Some(_) => host.ends_with(name),
        None => host == name || host.strip_suffix(name).is_some_and(|head| head.ends_with('.')),
    }
}

/// `HOST:PORT` or `[HOST]:PORT`; the port is empty where there is none.
fn split_port(entry: &str) -> (&str, &str) {
    if let Some(rest) = entry.strip_prefix('[') {
        return match rest.split_once(']') {
            Some((host, port)) => (host, port.strip_prefix(':').unwrap_or_default()),
            None => (entry, ""),
        };
    }
    match entry.split_once(':') {
        // More than one colon: an IPv6 address without a port.
        Some((host, port)) if !port.contains(':') => (host, port),
        _ => (entry, ""),
    }
}

fn network(entry: &str) -> Option<(IpAddr, u32)> {
    let (address, bits) = entry.split_once('/')?;
    let address: IpAddr = address.parse().ok()?;
    let bits: u32 = bits.parse().ok()?;
    let width = if address.is_ipv4() { 32 } else { 128 };
    (bits <= width).then_some((address, bits))
}

fn contains(network: IpAddr, bits: u32, address: IpAddr) -> bool {
    match (network, address.to_canonical()) {
        (IpAddr::V4(network), IpAddr::V4(address)) => {
            let mask = u32::MAX.checked_shl(32 - bits).unwrap_or(0);
            network.to_bits() & mask == address.to_bits() & mask
        }
        (IpAddr::V6(network), IpAddr::V6(address)) => {
            let mask = u128::MAX.checked_shl(128 - bits).unwrap_or(0);
            network.to_bits() & mask == address.to_bits() & mask
        }
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn through(server: &str, exceptions: &str) -> bool {
        let variables = ProxyVariables {
            http: Some("http://proxy:3128".into()),
            https: Some("http://proxy:3128".into()),
            exceptions: Some(exceptions.into()),
        };
        proxy_for(&server.parse().unwrap(), None, &variables).unwrap().is_some()
    }

    #[test]
    fn exceptions_are_matched_against_the_server() {
        let cases = [
            ("https://10.0.0.1:6443", "", true),
            ("https://10.0.0.1:6443", "10.0.0.1", false),
            ("https://10.0.0.1:6443", "10.0.0.1:6443", false),
            ("https://10.0.0.1:6443", "10.0.0.1:443", true),
            ("https://10.0.0.1:6443", "10.0.0.0/8", false),
            ("https://11.0.0.1:6443", "10.0.0.0/8", true),
            ("https://11.0.0.1:6443", "0.0.0.0/0", false),
            ("https://10.0.0.1:6443", " 192.168.0.1 , 10.0.0.1, ", false),
            ("https://10.0.0.1:6443", ",", true),
            ("https://10.0.0.1:6443", "10.0.0.0/99", true),
            ("https://[fd00::1]:6443", "fd00::/8", false),
            ("https://[fd00::1]:6443", "fd00::1", false),
            ("https://[fd00::1]:6443", "[fd00::1]:6443", false),
            ("https://[fd00::1]:6443", "[fd00::1]:443", true),
            ("https://[fd00::1]:6443", "10.0.0.0/8", true),
            ("https://api.example.com", "example.com", false),
            ("https://example.com", "example.com", false),
            ("https://example.com", ".example.com", true),
            ("https://api.example.com", ".example.com", false),
            ("https://api.example.com", "*.example.com", false),
            ("https://notexample.com", "example.com", true),
            ("https://API.Example.com", "example.COM", false),
            ("https://api.example.com", "example.com:443", false),
            ("https://api.example.com:6443", "example.com:443", true),
            ("https://api.example.com", "*", false),
            ("https://api.example.com", ":443", true),
            ("https://localhost:6443", "", false),
            ("https://127.0.0.1:6443", "", false),
            ("https://127.8.9.1:6443", "", false),
            ("https://[::1]:6443", "", false),
        ];
        for (server, exceptions, expected) in cases {
            assert_eq!(
                through(server, exceptions),
                expected,
                "{server} with NO_PROXY={exceptions}"
            );
        }
    }

    #[test]
    fn the_kubeconfig_wins_and_knows_no_exceptions() {
        let server = "https://10.0.0.1:6443".parse().unwrap();
        let variables = ProxyVariables {
            https: Some("http://other:1".into()),
            exceptions: Some("10.0.0.0/8,*".into()),
            ..Default::default()
        };
        let proxy = proxy_for(&server, Some("http://10.9.8.7:3128"), &variables).unwrap();
        assert_eq!(proxy.unwrap().to_string(), "http://10.9.8.7:3128/");
        assert_eq!(proxy_for(&server, Some(""), &variables).unwrap(), None);
    }

    #[test]
    fn the_scheme_of_the_server_chooses_the_variable() {
        let variables = ProxyVariables {
            http: Some("a:1".into()),
            https: Some("socks5://b:2".into()),
            exceptions: None,
        };
        let proxy = |server: &str| {
            proxy_for(&server.parse().unwrap(), None, &variables)
                .unwrap()
                .unwrap()
                .to_string()
        };
        assert_eq!(proxy("http://10.0.0.1:8080"), "http://a:1/");
        assert_eq!(proxy("https://10.0.0.1:6443"), "socks5://b:2/");
        let none = ProxyVariables {
            https: None,
            ..variables
        };
        assert_eq!(
            proxy_for(&"https://10.0.0.1".parse().unwrap(), None, &none).unwrap(),
            None
        );
    }

    #[test]
    fn variables_are_read_upper_case_first_and_empty_means_not_set() {
        let environment = [
            ("HTTPS_PROXY", ""),
            ("https_proxy", "lower:1"),
            ("HTTP_PROXY", "upper:1"),
            ("http_proxy", "no"),
        ];
        let variables = ProxyVariables::read(|name| {
            environment
                .iter()
                .find(|(key, _)| *key == name)
                .map(|(_, value)| (*value).to_owned())
        });
        assert_eq!(variables.https.as_deref(), Some("lower:1"));
        assert_eq!(variables.http.as_deref(), Some("upper:1"));
        assert_eq!(variables.exceptions, None);
    }

    #[test]
    fn a_proxy_that_cannot_be_used_is_named_with_where_it_comes_from() {
        let server: Uri = "https://10.0.0.1".parse().unwrap();
        let error = proxy_for(&server, Some("http://a b"), &ProxyVariables::default()).unwrap_err();
        assert!(error.what().contains("kubeconfig"), "{error}");
        let variables = ProxyVariables {
            https: Some("https://p:1".into()),
            ..Default::default()
        };
        let error = proxy_for(&server, None, &variables).unwrap_err();
        assert!(
            error.what().contains("HTTPS_PROXY") && error.to_string().contains("https"),
            "{error}"
        );
        assert!(!error.hints().is_empty());
    }
}
