use std::{
    io::{Read, Write},
    net::{SocketAddr, TcpListener, TcpStream},
    sync::mpsc,
    thread,
};

use k8s_openapi::api::core::v1::Pod;
use kube::Api;
use rcgen::{CertificateParams, Issuer, KeyPair};
use rustls::pki_types::{PrivateKeyDer, PrivatePkcs8KeyDer};

use super::*;
use crate::error::Kind;

/// Serves one connection after another with `answer`, and sends what it was asked to the returned receiver.
fn serve(answer: impl Fn(&str) -> String + Send + 'static) -> (SocketAddr, mpsc::Receiver<String>) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    let (sender, receiver) = mpsc::channel();
    thread::spawn(move || {
        for stream in listener.incoming() {
            let mut stream = stream.unwrap();
            let request = read_head(&mut stream);
            let _ = sender.send(request.clone());
            let _ = stream.write_all(answer(&request).as_bytes());
        }
    });
    (address, receiver)
}

/// Up to the empty line, or what came first where it is not HTTP.
fn read_head(stream: &mut TcpStream) -> String {
    let mut head = Vec::new();
    let mut byte = [0];
    while !head.ends_with(b"\r\n\r\n")
        && stream.read(&mut byte).unwrap_or(0) == 1
        && byte[0].is_ascii_graphic() | byte[0].is_ascii_whitespace()
    {
        head.push(byte[0]);
    }
    String::from_utf8(head).unwrap()
}

fn http(code: u16, body: &str) -> String {
    format!(
        "HTTP/1.1 {code} X\r\ncontent-type: application/json\r\ncontent-length: {}\r\nconnection: close\r\n\r\n{body}",
        body.len()
    )
}

fn flags(server: &str) -> KubeFlags {
    KubeFlags {
        server: Some(server.to_owned()),
        request_timeout: Some(Duration::from_secs(5)),
        ..KubeFlags::default()
    }
}

fn cluster(flags: &KubeFlags) -> Cluster {
    let defaults = Defaults {
        fallback_kubeconfig: None,
        user_agent: "kubectl-test/1".into(),
    };
    Cluster::new(resolve(flags, &defaults, &Environment::default()).unwrap()).unwrap()
}

async fn get(cluster: &Cluster) -> Result<Pod> {
    let pods: Api<Pod> = Api::namespaced(cluster.client.clone(), &cluster.namespace);
    cluster.call("get Pod ns/a", pods.get("a")).await
}

#[tokio::test]
async fn a_call_sends_user_agent_and_impersonation_and_is_counted() {
    let (address, requests) = serve(|_| http(200, r#"{"kind":"Pod","apiVersion":"v1","metadata":{"name":"a"}}"#));
    let mut flags = flags(&format!("http://{address}"));
    flags.namespace = Some("ns".into());
    flags.token = Some("t0k3n".into());
    flags.impersonate = Some("jane".into());
    flags.impersonate_uid = Some("7".into());
    flags.impersonate_groups = vec!["g1".into(), "g2".into()];
    let cluster = cluster(&flags);
    assert_eq!(
        (cluster.server.as_str(), cluster.calls()),
        (format!("http://{address}").as_str(), 0)
    );
    assert_eq!(get(&cluster).await.unwrap().metadata.name.as_deref(), Some("a"));
    assert_eq!(cluster.clone().calls(), 1);
    let request = requests.recv().unwrap().to_lowercase();
    assert!(request.starts_with("get /api/v1/namespaces/ns/pods/a"), "{request}");
    for header in [
        "user-agent: kubectl-test/1",
        "impersonate-user: jane",
        "impersonate-uid: 7",
        "impersonate-group: g1",
        "impersonate-group: g2",
    ] {
        assert!(request.contains(header), "{header} is missing in {request}");
    }
    assert!(
        !request.contains("t0k3n"),
        "nothing secret is sent without TLS: {request}"
    );
}

#[tokio::test]
async fn a_server_that_never_answers_ends_at_the_time_out() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let mut flags = flags(&format!("http://{}", listener.local_addr().unwrap()));
    flags.request_timeout = Some(Duration::from_millis(200));
    let error = get(&cluster(&flags)).await.unwrap_err();
    assert_eq!(error.cause(), Cause::TimedOut);
    assert!(
        error
            .to_string()
            .starts_with("cannot get Pod ns/a: no answer from http://127.0.0.1:"),
        "{error}"
    );
    assert!(error.to_string().ends_with("within 200ms"), "{error}");
}

#[tokio::test]
async fn one_status_of_an_overloaded_server_is_told_at_once() {
    let (address, requests) = serve(|_| {
        http(
            503,
            r#"{"kind":"Status","code":503,"message":"etcd is away","reason":"ServiceUnavailable"}"#,
        )
    });
    let error = get(&cluster(&flags(&format!("http://{address}")))).await.unwrap_err();
    assert!(error.is_retryable());
    assert_eq!(error.to_string(), "cannot get Pod ns/a: etcd is away");
    assert_eq!(requests.try_iter().count(), 1, "the client did not retry by itself");
}

#[tokio::test]
async fn nobody_at_the_port_is_connection_refused() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    drop(listener);
    let error = get(&cluster(&flags(&format!("http://{address}")))).await.unwrap_err();
    assert_eq!(error.cause(), Cause::Unreachable);
    assert_eq!(
        error.to_string(),
        format!("cannot get Pod ns/a: the API server at http://{address} cannot be reached: connection refused")
    );
    assert!(!error.hints().is_empty());
}

#[tokio::test]
async fn a_connection_that_breaks_is_retryable() {
    let (address, _requests) = serve(|_| String::new());
    let error = get(&cluster(&flags(&format!("http://{address}")))).await.unwrap_err();
    assert_eq!(error.cause(), Cause::Unreachable, "{error}");
    assert!(error.is_retryable() && !error.to_string().contains("Error("), "{error}");
}

#[tokio::test]
async fn an_unknown_host_is_named() {
    // Top-level domain `invalid` never resolves (RFC 6761).
    let error = get(&cluster(&flags("http://nowhere.invalid:6443"))).await.unwrap_err();
    assert_eq!(error.cause(), Cause::Unreachable);
    assert!(
        error.to_string().contains("the host name of the server is not known"),
        "{error}"
    );
    assert!(error.to_string().contains("nowhere.invalid"), "{error}");
}

#[tokio::test]
async fn an_answer_that_is_no_api_server_is_explained() {
    let (address, _requests) = serve(|_| http(200, "<html>"));
    let error = get(&cluster(&flags(&format!("http://{address}")))).await.unwrap_err();
    assert!(error.to_string().contains("unexpected form"), "{error}");
    let (address, _requests) = serve(|_| http(502, "<html>bad gateway</html>"));
    let error = get(&cluster(&flags(&format!("http://{address}")))).await.unwrap_err();
    assert!(error.is_retryable(), "{error}");
}

/// A TLS server with a certificate of its own authority for `name`, valid in `years`; returns the authority as PEM.
fn serve_tls(name: &str, years: std::ops::Range<i32>) -> (SocketAddr, String) {
    let authority_key = KeyPair::generate().unwrap();
    let mut authority = CertificateParams::new(Vec::new()).unwrap();
    authority.is_ca = rcgen::IsCa::Ca(rcgen::BasicConstraints::Unconstrained);
    let authority_certificate = authority.self_signed(&authority_key).unwrap();
    let key = KeyPair::generate().unwrap();
    let mut server = CertificateParams::new(vec![name.to_owned()]).unwrap();
    server.not_before = rcgen::date_time_ymd(years.start, 1, 1);
    server.not_after = rcgen::date_time_ymd(years.end, 1, 1);
    let certificate = server.signed_by(&key, &Issuer::new(authority, authority_key)).unwrap();

    let config = rustls::ServerConfig::builder()
        .with_no_client_auth()
        .with_single_cert(
            vec![certificate.der().clone()],
            PrivateKeyDer::Pkcs8(PrivatePkcs8KeyDer::from(key.serialize_der())),
        )
        .unwrap();
    let config = Arc::new(config);
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    thread::spawn(move || {
        for stream in listener.incoming() {
            let connection = rustls::ServerConnection::new(Arc::clone(&config)).unwrap();
            let mut stream = rustls::StreamOwned::new(connection, stream.unwrap());
            let mut head = [0; 4096];
            if stream.read(&mut head).is_ok() {
                let _ = stream.write_all(http(200, r#"{"kind":"Pod","apiVersion":"v1","metadata":{}}"#).as_bytes());
                stream.conn.send_close_notify();
                let _ = stream.flush();
            }
        }
    });
    (address, authority_certificate.pem())
}

#[tokio::test]
async fn each_trouble_with_the_servers_certificate_has_its_own_words() {
    let directory = tempfile::tempdir().unwrap();
    let trusting = |name: &str, address: SocketAddr, pem: &str| {
        let path = directory.path().join(name);
        std::fs::write(&path, pem).unwrap();
        let mut flags = flags(&format!("https://{address}"));
        flags.certificate_authority = Some(path);
        flags
    };
    let (good, authority) = serve_tls("127.0.0.1", 2020..4000);
    assert!(get(&cluster(&trusting("good", good, &authority))).await.is_ok());

    let (other, other_authority) = serve_tls("api.example.com", 2020..4000);
    let (old, old_authority) = serve_tls("127.0.0.1", 2020..2021);
    let (early, early_authority) = serve_tls("127.0.0.1", 3999..4000);
    let cases = [
        (trusting("a", good, &other_authority), "signed by an unknown authority"),
        (trusting("b", other, &other_authority), "is for other names"),
        (trusting("c", old, &old_authority), "has expired"),
        (trusting("d", early, &early_authority), "is not valid yet"),
    ];
    for (flags, words) in cases {
        let error = get(&cluster(&flags)).await.unwrap_err();
        assert_eq!(error.cause(), Cause::Certificate, "{error}");
        assert!(error.to_string().contains(words), "{words}: {error}");
        assert!(!error.is_retryable() && !error.hints().is_empty());
    }
    // The name can be given, and the check can be left away.
    let mut named = trusting("e", other, &other_authority);
    named.tls_server_name = Some("api.example.com".into());
    assert!(get(&cluster(&named)).await.is_ok());
    let mut insecure = flags(&format!("https://{old}"));
    insecure.insecure_skip_tls_verify = true;
    assert!(get(&cluster(&insecure)).await.is_ok());
    // Plain HTTP behind https://.
    let (plain, _requests) = serve(|_| http(400, "Client sent an HTTP request"));
    let mut wrong = flags(&format!("https://{plain}"));
    wrong.insecure_skip_tls_verify = true;
    wrong.request_timeout = Some(Duration::from_secs(1));
    let error = get(&cluster(&wrong)).await.unwrap_err();
    assert!(error.to_string().contains("the server does not speak TLS"), "{error}");
    assert!(!error.to_string().contains("Error("), "{error}");
}

#[test]
fn credentials_that_cannot_be_read_are_named() {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .unwrap();
    let _guard = runtime.enter();
    let mut flags = flags("https://127.0.0.1:1");
    flags.client_certificate = Some("/gone.crt".into());
    flags.client_key = Some("/gone.key".into());
    let settings = resolve(&flags, &Defaults::default(), &Environment::default()).unwrap();
    let error = Cluster::new(settings).unwrap_err();
    assert!(error.to_string().contains("/gone.crt"), "{error}");
    assert_eq!(error.kind(), Kind::Failure);
}
