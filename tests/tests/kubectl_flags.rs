//! kubectl's flags, kubeconfigs, credential plugins and proxies: the plugin beside the real kubectl, on the same inputs.
//! Servers on loopback write down who comes, with which credentials. No cluster is needed.

use std::{
    fs,
    io::{BufRead, BufReader, Read, Write},
    net::TcpListener,
    path::{Path, PathBuf},
    process::Command,
    sync::{Arc, Mutex},
    thread,
    time::Duration,
};

use rcgen::{CertificateParams, CertifiedIssuer, DnType, IsCa, KeyPair, SanType};
use rustls::{
    ServerConfig, ServerConnection, StreamOwned,
    pki_types::{PrivateKeyDer, PrivatePkcs8KeyDer},
};
use tests::{
    cache,
    command::{self, Output},
    settings::{Purpose, Settings},
};

use crate::support::binary;

/// What a server, or the proxy, saw of a request.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Seen {
    /// Name of the server, or `proxy` and what was asked of it.
    server: String,
    /// What stands in front of the API's own paths.
    prefix: String,
    /// Headers that say who asks: `authorization` and `impersonate-*`, sorted.
    who: Vec<String>,
}

type Log = Arc<Mutex<Vec<Seen>>>;

/// Servers `a` and `b` with certificates of one authority, `c` with one of another, `plain` without TLS, and a proxy.
struct World {
    root: PathBuf,
    log: Log,
    ports: [u16; 5],
}

const NAMES: [&str; 5] = ["a", "b", "c", "plain", "proxy"];

impl Drop for World {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.root);
    }
}

impl World {
    fn new() -> Self {
        let root = std::env::temp_dir().join(format!("selfhost-flags-{}", std::process::id()));
        fs::create_dir_all(root.join("home")).unwrap();
        let log = Log::default();
        let (authority, stranger) = (authority("known"), authority("stranger"));
        fs::write(root.join("ca.crt"), authority.pem()).unwrap();
        fs::write(root.join("other-ca.crt"), stranger.pem()).unwrap();
        let ports = NAMES.map(|name| {
            let tls = match name {
                "a" | "b" => Some(server_config(&authority)),
                "c" => Some(server_config(&stranger)),
                _ => None,
            };
            listen(name, tls, Arc::clone(&log))
        });
        Self { root, log, ports }
    }

    /// A text with the words in braces replaced: `{a}` is the server's `host:port`, `{root}` the directory.
    fn fill(&self, text: &str) -> String {
        let mut text = text.replace("{root}", &self.root.display().to_string());
        for (name, port) in NAMES.iter().zip(self.ports) {
            text = text.replace(&format!("{{{name}}}"), &format!("127.0.0.1:{port}"));
        }
        text
    }

    /// Runs a program with the flags and variables of a case, and says what was seen first, or that it failed before
    /// anybody was asked.
    fn run(&self, program: &Path, first: &[&str], case: &Case) -> (Option<Seen>, Output) {
        self.log.lock().unwrap().clear();
        let mut command = Command::new(program);
        command
            .args(first)
            .args(case.flags.split_whitespace().map(|flag| self.fill(flag)));
        command
            .env_clear()
            .env("PATH", "/usr/bin:/bin")
            .env("HOME", self.root.join("home"))
            .current_dir(&self.root);
        for (name, value) in case.variables {
            command.env(name, self.fill(value));
        }
        let output = command::run(&mut command, case.name, Duration::from_secs(60)).unwrap();
        // a TLS handshake that was broken off leaves no entry
        (self.log.lock().unwrap().first().cloned(), output)
    }
}

fn authority(name: &str) -> CertifiedIssuer<'static, KeyPair> {
    let mut parameters = CertificateParams::default();
    parameters.distinguished_name.push(DnType::CommonName, name);
    parameters.is_ca = IsCa::Ca(rcgen::BasicConstraints::Unconstrained);
    CertifiedIssuer::self_signed(parameters, KeyPair::generate().unwrap()).unwrap()
}

/// For 127.0.0.1 and the name `named.test`.
fn server_config(authority: &CertifiedIssuer<'static, KeyPair>) -> Arc<ServerConfig> {
    let mut parameters = CertificateParams::default();
    parameters.subject_alt_names = vec![
        SanType::IpAddress([127, 0, 0, 1].into()),
        SanType::DnsName("named.test".try_into().unwrap()),
    ];
    let key = KeyPair::generate().unwrap();
    let certificate = parameters.signed_by(&key, authority).unwrap();
    let key = PrivateKeyDer::Pkcs8(PrivatePkcs8KeyDer::from(key.serialize_der()));
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let config = ServerConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_no_client_auth()
        .with_single_cert(vec![certificate.der().clone()], key)
        .unwrap();
    Arc::new(config)
}

fn listen(name: &'static str, tls: Option<Arc<ServerConfig>>, log: Log) -> u16 {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    thread::spawn(move || {
        for stream in listener.incoming().flatten() {
            let (tls, log) = (tls.clone(), Arc::clone(&log));
            thread::spawn(move || {
                let _ = stream.set_read_timeout(Some(Duration::from_secs(20)));
                let _ = match tls {
                    None => answer(name, stream, &log),
                    Some(config) => ServerConnection::new(config)
                        .map_err(std::io::Error::other)
                        .and_then(|connection| answer(name, StreamOwned::new(connection, stream), &log)),
                };
            });
        }
    });
    port
}

/// Writes the first request down and refuses it: what matters has been seen.
fn answer(name: &str, stream: impl Read + Write, log: &Log) -> std::io::Result<()> {
    let mut reader = BufReader::new(stream);
    let mut request = String::new();
    reader.read_line(&mut request)?;
    let mut words = request.split_whitespace();
    let (method, target) = (words.next().unwrap_or_default(), words.next().unwrap_or_default());
    let mut who = Vec::new();
    loop {
        let mut line = String::new();
        if reader.read_line(&mut line)? < 3 {
            break;
        }
        let (header, value) = line.trim().split_once(':').unwrap_or_default();
        let header = header.to_lowercase();
        if header == "authorization" || header.starts_with("impersonate-") {
            who.push(format!("{header}: {}", value.trim()));
        }
    }
    who.sort();
    let end = target
        .find("/api")
        .or_else(|| target.find("/version"))
        .unwrap_or_default();
    log.lock().unwrap().push(Seen {
        server: match method {
            "CONNECT" => format!("{name} to {target}"),
            _ => name.to_owned(),
        },
        prefix: target[..end].to_owned(),
        who,
    });
    let mut stream = reader.into_inner();
    let body = r#"{"kind":"Status","apiVersion":"v1","status":"Failure","reason":"Forbidden","code":403}"#;
    write!(
        stream,
        "HTTP/1.1 403 Forbidden\r\nContent-Type: application/json\r\nContent-Length: {}\r\nConnection: close\r\n\r\n{body}",
        body.len()
    )?;
    stream.flush()
}

/// One row: what is typed and set, and what kubectl does, so that a row that tests nothing is seen.
struct Case {
    name: &'static str,
    flags: &'static str,
    variables: &'static [(&'static str, &'static str)],
    /// The server that is asked; empty where none is.
    server: &'static str,
}

const MAIN: &[(&str, &str)] = &[("KUBECONFIG", "{root}/main")];

const fn case(
    name: &'static str,
    flags: &'static str,
    variables: &'static [(&'static str, &'static str)],
    server: &'static str,
) -> Case {
    Case {
        name,
        flags,
        variables,
        server,
    }
}

/// One thing is left out, as it differs on purpose: where a context names a user that is not there, kubectl asks for a name
/// and a password on the terminal; we go on as nobody, and the server says what that is worth.
const CASES: &[Case] = &[
    case("the current context", "", MAIN, "a"),
    case("~/.kube/config", "", &[], "b"),
    case(
        "--kubeconfig beats the variable",
        "--kubeconfig {root}/second",
        MAIN,
        "b",
    ),
    case(
        "--kubeconfig that is not there",
        "--kubeconfig {root}/nothing",
        MAIN,
        "",
    ),
    case("--context", "--context b", MAIN, "b"),
    case("--context that is not there", "--context nothing", MAIN, ""),
    case("--cluster keeps the user", "--cluster b", MAIN, "b"),
    case("--cluster that is not there", "--cluster nothing", MAIN, ""),
    case("--user", "--user basic", MAIN, "a"),
    case("--user that is not there", "--user nothing", MAIN, ""),
    case(
        "--server keeps certificate authority and user",
        "--server https://{b}",
        MAIN,
        "b",
    ),
    case("--server without scheme speaks no TLS", "--server {b}", MAIN, ""),
    case("--server without scheme", "--server {plain}", MAIN, "plain"),
    case(
        "--server without scheme, insecure",
        "--server {b} --insecure-skip-tls-verify",
        MAIN,
        "",
    ),
    case("--server with a path", "--server https://{a}/some/where", MAIN, "a"),
    case("--server of another authority", "--server https://{c}", MAIN, ""),
    case(
        "--certificate-authority",
        "--server https://{c} --certificate-authority {root}/other-ca.crt",
        MAIN,
        "c",
    ),
    case(
        "--certificate-authority that is not there",
        "--certificate-authority {root}/nothing.crt",
        MAIN,
        "",
    ),
    case(
        "--insecure-skip-tls-verify beats the authority",
        "--server https://{c} --insecure-skip-tls-verify",
        MAIN,
        "c",
    ),
    case(
        "--insecure-skip-tls-verify=false",
        "--server https://{c} --insecure-skip-tls-verify=false",
        MAIN,
        "",
    ),
    case("--tls-server-name that fits", "--tls-server-name named.test", MAIN, "a"),
    case(
        "--tls-server-name that does not",
        "--tls-server-name other.test",
        MAIN,
        "",
    ),
    case("tls-server-name of the kubeconfig", "--context named", MAIN, "a"),
    case("--token beats the context's", "--token from-flag", MAIN, "a"),
    case("--token and a password", "--user basic --token from-flag", MAIN, ""),
    case("--token beats a plugin", "--user plugin --token from-flag", MAIN, "a"),
    case("a token's file", "--user file", MAIN, "a"),
    case("a token and its file", "--user both", MAIN, "a"),
    case("a password", "--context basic", MAIN, "a"),
    case("a plugin", "--user plugin", MAIN, "a"),
    case("a plugin that wants to know the cluster", "--user curious", MAIN, "a"),
    case("a plugin that fails", "--user broken", MAIN, ""),
    case("a plugin that is not there", "--user missing", MAIN, ""),
    case("no credentials without TLS", "--server http://{plain}", MAIN, "plain"),
    case(
        "nor those of a flag",
        "--server http://{plain} --token from-flag",
        MAIN,
        "plain",
    ),
    case("--as", "--as somebody", MAIN, "a"),
    case(
        "--as-group and --as-uid",
        "--as x --as-uid 7 --as-group g --as-group h",
        MAIN,
        "a",
    ),
    case("--as-group without --as", "--as-group g", MAIN, ""),
    case("impersonation of the kubeconfig", "--user impersonator", MAIN, "a"),
    case(
        "--as beats that of the kubeconfig",
        "--user impersonator --as other",
        MAIN,
        "a",
    ),
    case("--request-timeout", "--request-timeout 5", MAIN, "a"),
    case("--request-timeout that is none", "--request-timeout soon", MAIN, ""),
    case(
        "paths are relative to their file",
        "--kubeconfig {root}/deep/down/config",
        &[],
        "a",
    ),
    case(
        "files are merged, the first one to set a name wins",
        "",
        &[("KUBECONFIG", "{root}/first:{root}/nothing:{root}/second")],
        "a",
    ),
    case(
        "the other file's context is there too",
        "--context second",
        &[("KUBECONFIG", "{root}/first:{root}/second")],
        "b",
    ),
    case(
        "the first file to set a current context counts",
        "",
        &[("KUBECONFIG", "{root}/no-context:{root}/second")],
        "b",
    ),
    case("a file that is no YAML", "", &[("KUBECONFIG", "{root}/broken")], ""),
    case("proxy-url", "--context proxied", MAIN, "proxy to far.test:6443"),
    case(
        "proxy-url ignores NO_PROXY",
        "--context proxied",
        &[("KUBECONFIG", "{root}/main"), ("NO_PROXY", "far.test")],
        "proxy to far.test:6443",
    ),
    case(
        "HTTPS_PROXY",
        "--context far",
        &[("KUBECONFIG", "{root}/main"), ("HTTPS_PROXY", "http://{proxy}")],
        "proxy to far.test:6443",
    ),
    case(
        "https_proxy",
        "--context far",
        &[("KUBECONFIG", "{root}/main"), ("https_proxy", "http://{proxy}")],
        "proxy to far.test:6443",
    ),
    case(
        "HTTPS_PROXY without scheme",
        "--context far",
        &[("KUBECONFIG", "{root}/main"), ("HTTPS_PROXY", "{proxy}")],
        "proxy to far.test:6443",
    ),
    case(
        "NO_PROXY names the server",
        "--context far",
        &[
            ("KUBECONFIG", "{root}/main"),
            ("HTTPS_PROXY", "http://{proxy}"),
            ("NO_PROXY", "other.test,.far.test,far.test"),
        ],
        "",
    ),
    case(
        "NO_PROXY names the proxy",
        "--context far",
        &[
            ("KUBECONFIG", "{root}/main"),
            ("HTTPS_PROXY", "http://{proxy}"),
            ("NO_PROXY", "127.0.0.1"),
        ],
        "proxy to far.test:6443",
    ),
    case(
        "loopback is never proxied",
        "",
        &[("KUBECONFIG", "{root}/main"), ("HTTPS_PROXY", "http://{proxy}")],
        "a",
    ),
];

/// The files that the cases speak of.
fn write_files(world: &World) {
    let write = |name: &str, text: &str| {
        let path = world.root.join(name);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, world.fill(text)).unwrap();
    };
    write(
        "main",
        r"
apiVersion: v1
kind: Config
current-context: a
contexts:
- {name: a, context: {cluster: a, user: token}}
- {name: b, context: {cluster: b, user: token}}
- {name: basic, context: {cluster: a, user: basic}}
- {name: named, context: {cluster: named, user: token}}
- {name: far, context: {cluster: far, user: token}}
- {name: proxied, context: {cluster: proxied, user: token}}
clusters:
- {name: a, cluster: {server: 'https://{a}', certificate-authority: '{root}/ca.crt'}}
- {name: b, cluster: {server: 'https://{b}', certificate-authority: '{root}/ca.crt'}}
- {name: named, cluster: {server: 'https://{a}', certificate-authority: '{root}/ca.crt', tls-server-name: named.test}}
- {name: far, cluster: {server: 'https://far.test:6443', certificate-authority: '{root}/ca.crt'}}
- {name: proxied, cluster: {server: 'https://far.test:6443', proxy-url: 'http://{proxy}', certificate-authority: '{root}/ca.crt'}}
users:
- {name: token, user: {token: from-context}}
- {name: basic, user: {username: me, password: secret}}
- {name: file, user: {tokenFile: '{root}/token'}}
- {name: both, user: {token: inline, tokenFile: '{root}/token'}}
- {name: impersonator, user: {token: from-context, as: boss, as-groups: [g1, g2], as-uid: '9', as-user-extra: {reason: [test]}}}
- name: plugin
  user:
    exec: {apiVersion: client.authentication.k8s.io/v1, command: ./plugin, interactiveMode: Never, args: [from-plugin], env: [{name: MORE, value: x}]}
- name: curious
  user:
    exec: {apiVersion: client.authentication.k8s.io/v1, command: ./curious, interactiveMode: Never, provideClusterInfo: true}
- name: broken
  user:
    exec: {apiVersion: client.authentication.k8s.io/v1, command: /bin/false, interactiveMode: Never}
- name: missing
  user:
    exec: {apiVersion: client.authentication.k8s.io/v1, command: no-such-program, interactiveMode: Never}
",
    );
    let one = |name: &str| {
        format!(
            "current-context: {name}
contexts:
- {{name: {name}, context: {{cluster: x, user: x}}}}
- {{name: shared, context: {{cluster: x, user: x}}}}
clusters:
- {{name: x, cluster: {{server: 'https://{{a}}', certificate-authority: '{{root}}/ca.crt'}}}}
users:
- {{name: x, user: {{token: of-{name}}}}}
"
        )
    };
    write("first", &one("first"));
    let second = one("second")
        .replace("cluster: x", "cluster: z")
        .replace("name: x, cluster", "name: z, cluster")
        .replace("{a}", "{b}");
    write("second", &second);
    write("home/.kube/config", &second);
    write("no-context", &one("first").replace("current-context: first\n", ""));
    write("broken", "contexts: [\n");
    write(
        "deep/down/config",
        "current-context: a
contexts: [{name: a, context: {cluster: a, user: a}}]
clusters: [{name: a, cluster: {server: 'https://{a}', certificate-authority: ../../ca.crt}}]
users: [{name: a, user: {tokenFile: ../../token}}]
",
    );
    write("token", "from-file\n");
    let credential =
        "{\"apiVersion\":\"client.authentication.k8s.io/v1\",\"kind\":\"ExecCredential\",\"status\":{\"token\":";
    let script = |token: &str| format!("#!/bin/sh\necho '{credential}\"'{token}'\"}}}}'\n");
    write("plugin", &script("\"$1-$MORE\""));
    // the server's port is in what it is told
    write(
        "curious",
        &script("\"$(echo \"$KUBERNETES_EXEC_INFO\" | grep -o 'https://127.0.0.1:[0-9]*' | tr -c 'a-z0-9\\n' -)\""),
    );
    for name in ["plugin", "curious"] {
        use std::os::unix::fs::PermissionsExt;
        fs::set_permissions(world.root.join(name), fs::Permissions::from_mode(0o755)).unwrap();
    }
}

#[test]
fn flags_kubeconfigs_plugins_and_proxies_lead_where_kubectl_goes() {
    let settings = Settings::from_env(Purpose::Tests).unwrap();
    let kubectl = cache::ensure(&settings).unwrap().kubernetes.join("kubectl");
    let world = World::new();
    write_files(&world);
    let mut wrong = Vec::new();
    for case in CASES {
        let (theirs, their_output) = world.run(&kubectl, &["get", "--raw", "/version"], case);
        let (ours, our_output) = world.run(binary(), &["status"], case);
        let expected = theirs.as_ref().map(|seen| seen.server.as_str()).unwrap_or_default();
        if expected != case.server {
            wrong.push(format!(
                "{}: kubectl itself went to {theirs:?}: {}",
                case.name, their_output.stderr
            ));
        }
        // both fail: the servers refuse, or nobody was asked
        if ours != theirs || our_output.success() {
            wrong.push(format!(
                "{}: kubectl {theirs:?}, we {ours:?}\n  kubectl: {}\n  we: {}",
                case.name,
                their_output.stderr.trim(),
                our_output.stderr.trim()
            ));
        }
        // an error names what is wrong, and how to mend it
        if ours.is_none() && !our_output.stderr.starts_with("error: ") {
            wrong.push(format!("{}: {}", case.name, our_output.stderr));
        }
    }
    cache::say(&format!("{} command lines beside kubectl", CASES.len()));
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}
