//! What lies between an agent and its hub: a proxy that tunnels, and one that makes the hub's clock look wrong.

use std::{
    fs,
    io::{BufRead, BufReader, Read, Write},
    net::{Ipv4Addr, Shutdown, SocketAddr, TcpListener, TcpStream},
    path::Path,
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicI64, Ordering},
    },
    thread,
    time::Duration,
};

use jiff::{SignedDuration, Timestamp};
use rustls::{
    ClientConfig, ClientConnection, RootCertStore, ServerConfig, ServerConnection, StreamOwned,
    pki_types::{CertificateDer, PrivateKeyDer, ServerName, pem::PemObject},
    server::WebPkiClientVerifier,
};

use super::Api;
use crate::error::{Context, Result};

/// How long a connection may say nothing; longer than a watch does.
const SILENCE: Duration = Duration::from_secs(320);

fn listen() -> Result<(TcpListener, SocketAddr)> {
    let what = || "listen on the loopback address".to_owned();
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).what(what)?;
    let address = listener.local_addr().what(what)?;
    Ok((listener, address))
}

/// A proxy as `proxy-url` of a kubeconfig names one: it tunnels what `CONNECT` asks for to one server, whatever name it is
/// called. It lives as long as the process.
#[derive(Clone, Debug)]
pub struct Tunnel {
    address: SocketAddr,
    asked: Arc<Mutex<Vec<String>>>,
}

impl Tunnel {
    /// Starts one that leads to `server` (`ADDRESS:PORT`).
    ///
    /// # Errors
    /// No port is free.
    pub fn start(server: &str) -> Result<Self> {
        let (listener, address) = listen()?;
        let tunnel = Self {
            address,
            asked: Arc::default(),
        };
        let (asked, server) = (Arc::clone(&tunnel.asked), server.to_owned());
        thread::spawn(move || {
            for client in listener.incoming().flatten() {
                let (asked, server) = (Arc::clone(&asked), server.clone());
                thread::spawn(move || tunnel_one(client, &server, &asked));
            }
        });
        Ok(tunnel)
    }

    /// Its URL.
    #[must_use]
    pub fn url(&self) -> String {
        format!("http://{}", self.address)
    }

    /// What was asked for, in order.
    #[must_use]
    pub fn asked(&self) -> Vec<String> {
        self.asked.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

fn tunnel_one(client: TcpStream, server: &str, asked: &Mutex<Vec<String>>) -> Option<()> {
    let mut reader = BufReader::new(client.try_clone().ok()?);
    let mut first = String::new();
    reader.read_line(&mut first).ok()?;
    let target = first.strip_prefix("CONNECT ")?.split_whitespace().next()?.to_owned();
    loop {
        let mut line = String::new();
        if reader.read_line(&mut line).ok()? == 0 {
            return None;
        }
        if line.trim().is_empty() {
            break;
        }
    }
    asked.lock().unwrap_or_else(PoisonError::into_inner).push(target);
    let upstream = TcpStream::connect(server).ok()?;
    let mut client = client;
    client.write_all(b"HTTP/1.1 200 Connection established\r\n\r\n").ok()?;
    let (mut to, mut from) = (upstream.try_clone().ok()?, upstream);
    thread::spawn(move || {
        let _ = std::io::copy(&mut reader, &mut to);
        let _ = to.shutdown(Shutdown::Write);
    });
    let _ = std::io::copy(&mut from, &mut client);
    let _ = client.shutdown(Shutdown::Both);
    Some(())
}

/// A front proxy of a hub that changes the `Date` header of its answers, since the hub's own clock is that of this machine.
/// It ends TLS; who showed it a certificate is handed on as Kubernetes' aggregation layer does. It lives as long as the
/// process.
#[derive(Clone, Debug)]
pub struct WrongClock {
    address: SocketAddr,
    ahead_seconds: Arc<AtomicI64>,
}

/// Who an agent is, for a front proxy.
#[derive(Clone, Debug)]
struct Identity {
    user: String,
    groups: [String; 2],
}

impl WrongClock {
    /// Starts one before this hub, for this agent.
    ///
    /// # Errors
    /// No port is free, or a certificate cannot be made.
    pub fn start(hub: &Api, cluster: &str, agent: &str) -> Result<Self> {
        let (listener, address) = listen()?;
        let directory = hub.directory().join("wrong-clock");
        fs::create_dir_all(&directory).what(|| format!("make {}", directory.display()))?;
        hub.serving.server(&directory, &[address.ip()], &["localhost"])?;
        let server = Arc::new(server_config(hub.directory(), &directory)?);
        let client = Arc::new(client_config(hub.directory())?);
        let prefix = "system:open-cluster-management:";
        let identity = Identity {
            user: format!("{prefix}{cluster}:{agent}"),
            groups: [format!("{prefix}{cluster}"), format!("{prefix}managed-clusters")],
        };
        let clock = Self {
            address,
            ahead_seconds: Arc::default(),
        };
        let ahead = Arc::clone(&clock.ahead_seconds);
        let hub = SocketAddr::new(hub.address, 6443);
        thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                let (server, client) = (Arc::clone(&server), Arc::clone(&client));
                let (identity, ahead) = (identity.clone(), Arc::clone(&ahead));
                thread::spawn(move || forward_one(stream, server, hub, client, &identity, &ahead));
            }
        });
        Ok(clock)
    }

    /// Its URL.
    #[must_use]
    pub fn url(&self) -> String {
        format!("https://{}", self.address)
    }

    /// Sets how many seconds the hub's clock seems to be ahead.
    pub fn set_ahead(&self, seconds: i64) {
        self.ahead_seconds.store(seconds, Ordering::Relaxed);
    }
}

fn certificates(path: &Path) -> Result<Vec<CertificateDer<'static>>> {
    let what = || format!("read {}", path.display());
    CertificateDer::pem_file_iter(path)
        .and_then(Iterator::collect)
        .what(what)
}

fn roots(path: &Path) -> Result<Arc<RootCertStore>> {
    let mut roots = RootCertStore::empty();
    roots.add_parsable_certificates(certificates(path)?);
    Ok(Arc::new(roots))
}

fn key(path: &Path) -> Result<PrivateKeyDer<'static>> {
    PrivateKeyDer::from_pem_file(path).what(|| format!("read {}", path.display()))
}

fn server_config(hub: &Path, directory: &Path) -> Result<ServerConfig> {
    let what = || "set up the TLS server".to_owned();
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let verifier =
        WebPkiClientVerifier::builder_with_provider(roots(&hub.join("client-ca.crt"))?, Arc::clone(&provider))
            .allow_unauthenticated()
            .build()
            .what(what)?;
    let mut config = ServerConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .what(what)?
        .with_client_cert_verifier(verifier)
        .with_single_cert(
            certificates(&directory.join("apiserver.crt"))?,
            key(&directory.join("apiserver.key"))?,
        )
        .what(what)?;
    config.alpn_protocols = vec![b"http/1.1".to_vec()];
    Ok(config)
}

fn client_config(hub: &Path) -> Result<ClientConfig> {
    let what = || "set up the TLS client".to_owned();
    let mut config = ClientConfig::builder_with_provider(Arc::new(rustls::crypto::ring::default_provider()))
        .with_safe_default_protocol_versions()
        .what(what)?
        .with_root_certificates(roots(&hub.join("serving-ca.crt"))?)
        .with_client_auth_cert(
            certificates(&hub.join("front-proxy-client.crt"))?,
            key(&hub.join("front-proxy-client.key"))?,
        )
        .what(what)?;
    config.alpn_protocols = vec![b"http/1.1".to_vec()];
    Ok(config)
}

/// Lines up to the empty one, without it.
fn head(reader: &mut impl BufRead) -> Option<Vec<String>> {
    let mut lines = Vec::new();
    loop {
        let mut line = String::new();
        if reader.read_line(&mut line).ok()? == 0 {
            return None;
        }
        let line = line.trim_end().to_owned();
        if line.is_empty() {
            return Some(lines);
        }
        lines.push(line);
    }
}

fn value<'a>(lines: &'a [String], name: &str) -> Option<&'a str> {
    lines.iter().find_map(|line| {
        let (found, value) = line.split_once(':')?;
        found.eq_ignore_ascii_case(name).then(|| value.trim())
    })
}

fn without(lines: &mut Vec<String>, name: &str) {
    lines.retain(|line| {
        !line
            .split_once(':')
            .is_some_and(|(found, _)| found.eq_ignore_ascii_case(name))
    });
}

fn text(lines: &[String]) -> String {
    lines.iter().map(|line| format!("{line}\r\n")).collect::<String>() + "\r\n"
}

/// One request and its answer; then the connection ends.
fn forward_one(
    stream: TcpStream,
    server: Arc<ServerConfig>,
    hub: SocketAddr,
    client: Arc<ClientConfig>,
    identity: &Identity,
    ahead: &AtomicI64,
) -> Option<()> {
    stream.set_read_timeout(Some(SILENCE)).ok()?;
    let mut from = BufReader::new(StreamOwned::new(ServerConnection::new(server).ok()?, stream));
    let mut request = head(&mut from)?;
    let length = value(&request, "content-length").map_or(0, |text| text.parse::<usize>().unwrap_or(0));
    let mut body = vec![0; length];
    from.read_exact(&mut body).ok()?;
    without(&mut request, "connection");
    request.push("Connection: close".to_owned());
    if from.get_ref().conn.peer_certificates().is_some() {
        request.push(format!("X-Remote-User: {}", identity.user));
        request.extend(identity.groups.iter().map(|group| format!("X-Remote-Group: {group}")));
    }
    let upstream = TcpStream::connect(hub).ok()?;
    upstream.set_read_timeout(Some(SILENCE)).ok()?;
    let name = ServerName::from(hub.ip());
    let mut to = BufReader::new(StreamOwned::new(ClientConnection::new(client, name).ok()?, upstream));
    to.get_mut().write_all(text(&request).as_bytes()).ok()?;
    to.get_mut().write_all(&body).ok()?;
    to.get_mut().flush().ok()?;
    let mut answer = head(&mut to)?;
    let now = Timestamp::now()
        .checked_add(SignedDuration::from_secs(ahead.load(Ordering::Relaxed)))
        .ok()?;
    for name in ["date", "connection"] {
        without(&mut answer, name);
    }
    let printer = jiff::fmt::rfc2822::DateTimePrinter::new();
    answer.push(format!("Date: {}", printer.timestamp_to_rfc9110_string(&now).ok()?));
    answer.push("Connection: close".to_owned());
    let mut buffer = [0; 16 * 1024];
    from.get_mut().write_all(text(&answer).as_bytes()).ok()?;
    loop {
        from.get_mut().flush().ok()?;
        match to.read(&mut buffer) {
            Ok(read) if read > 0 => from.get_mut().write_all(buffer.get(..read)?).ok()?,
            _ => break,
        }
    }
    from.get_mut().conn.send_close_notify();
    from.get_mut().flush().ok()?;
    let _ = from.get_mut().sock.shutdown(Shutdown::Both);
    Some(())
}
