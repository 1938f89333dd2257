//! A probe that proves its own process.
//!
//! On a shared port an HTTP probe may be answered by a neighbour, so that a process that never binds looks healthy and the
//! good Pod is deleted for it. Here an answer counts only when the connection was accepted by one of the processes meant:
//! its inode in the kernel's table is among their descriptors.

use super::net_table::NetTable;
use super::ports::{self, PortError};
use super::process::Processes;
use super::steering::Listener;
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::pki_types::{CertificateDer, ServerName, UnixTime};
use rustls::{ClientConfig, ClientConnection, DigitallySignedStruct, SignatureScheme, StreamOwned};
use socket2::{Domain, Protocol, Socket, Type};
use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// What to ask, and whom.
#[derive(Clone, Debug)]
pub struct Probe {
    /// Where to connect.
    pub address: SocketAddr,
    /// Path of the request, such as `/readyz`.
    pub path: String,
    /// The processes of which one must have accepted the connection.
    pub pids: Vec<u32>,
    /// Which of several listeners on the port is to answer.
    pub listener: Listener,
    /// The longest that all of it may take.
    pub timeout: Duration,
}

/// Why a probe failed.
#[derive(Debug, thiserror::Error)]
pub enum ProbeError {
    /// None of the processes meant listens on the port; what answers there is somebody else.
    #[error("no process of this container listens on port {0} yet")]
    NotListening(u16),
    /// No connection, or it broke.
    #[error("no answer from https://{address}{path}")]
    Unanswered {
        /// Where.
        address: SocketAddr,
        /// What was asked.
        path: String,
        /// Why.
        #[source]
        source: io::Error,
    },
    /// It answered, but not with 200.
    #[error("https://{address}{path} answered {status}")]
    Unhealthy {
        /// Where.
        address: SocketAddr,
        /// What was asked.
        path: String,
        /// The status line, or its beginning.
        status: String,
    },
    /// The answer came from another process that shares the port.
    #[error("port {0} was answered by another process that shares it")]
    Neighbour(u16),
    /// The sockets could not be read.
    #[error(transparent)]
    Port(#[from] PortError),
}

/// Runs the probe: `Ok` means that one of the processes itself answered 200.
///
/// # Errors
/// See [`ProbeError`].
pub fn run(probe: &Probe) -> Result<(), ProbeError> {
    let deadline = Instant::now() + probe.timeout;
    let port = probe.address.port();
    let table = ports::read_net_table()?;
    if !owns(probe, |inode| {
        table.on_port(port).any(|listener| listener.inode == inode)
    }) {
        return Err(ProbeError::NotListening(port));
    }
    let unanswered = |source| ProbeError::Unanswered {
        address: probe.address,
        path: probe.path.clone(),
        source,
    };
    let stream = connect(probe.address, probe.listener, left(deadline).map_err(unanswered)?).map_err(unanswered)?;
    let client = stream.local_addr().map_err(unanswered)?;
    let mut tls = secure(stream, probe.address).map_err(unanswered)?;
    let status = get(&mut tls, &probe.path, deadline).map_err(unanswered)?;
    if status != "200" {
        return Err(ProbeError::Unhealthy {
            address: probe.address,
            path: probe.path.clone(),
            status,
        });
    }
    // the connection is still open: it must be in the table, and it was accepted, for it was answered
    let table = ports::read_net_table()?;
    let inode = accepted_by(&table, probe.address, client);
    if inode.is_some_and(|inode| owns(probe, |own| own == inode)) {
        Ok(())
    } else {
        Err(ProbeError::Neighbour(port))
    }
}

fn accepted_by(table: &NetTable, server: SocketAddr, client: SocketAddr) -> Option<u64> {
    table.accepted(server, client).map(|connection| connection.inode)
}

fn owns(probe: &Probe, matches: impl Fn(u64) -> bool) -> bool {
    let processes = Processes::new(Path::new("/proc"));
    probe.pids.iter().any(|pid| {
        processes
            .sockets(*pid)
            .is_ok_and(|sockets| sockets.into_iter().any(|(_, inode)| matches(inode)))
    })
}

fn left(deadline: Instant) -> io::Result<Duration> {
    let left = deadline.saturating_duration_since(Instant::now());
    if left.is_zero() {
        Err(io::ErrorKind::TimedOut.into())
    } else {
        Ok(left)
    }
}

fn connect(address: SocketAddr, listener: Listener, timeout: Duration) -> io::Result<TcpStream> {
    let socket = Socket::new(Domain::for_address(address), Type::STREAM, Some(Protocol::TCP))?;
    match address {
        SocketAddr::V4(_) => socket.set_tos_v4(u32::from(listener.type_of_service()))?,
        SocketAddr::V6(_) => socket.set_tclass_v6(u32::from(listener.type_of_service()))?,
    }
    socket.connect_timeout(&address.into(), timeout)?;
    Ok(socket.into())
}

fn secure(stream: TcpStream, address: SocketAddr) -> io::Result<StreamOwned<ClientConnection, TcpStream>> {
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let config = ClientConfig::builder_with_provider(provider.clone())
        .with_safe_default_protocol_versions()
        .map_err(io::Error::other)?
        .dangerous()
        .with_custom_certificate_verifier(Arc::new(AnyCertificate(provider)))
        .with_no_client_auth();
    let connection =
        ClientConnection::new(Arc::new(config), ServerName::from(address.ip())).map_err(io::Error::other)?;
    Ok(StreamOwned::new(connection, stream))
}

/// Asks for a path and returns the status code of the answer.
fn get(tls: &mut StreamOwned<ClientConnection, TcpStream>, path: &str, deadline: Instant) -> io::Result<String> {
    tls.sock.set_read_timeout(Some(left(deadline)?))?;
    tls.sock.set_write_timeout(Some(left(deadline)?))?;
    // no "Connection: close": the connection is looked up in the kernel's table after the answer
    write!(
        tls,
        "GET {path} HTTP/1.1\r\nHost: localhost\r\nUser-Agent: kubectl-selfhost-probe\r\n\r\n"
    )?;
    tls.flush()?;
    let mut answer = Vec::new();
    let mut buffer = [0; 256];
    while !answer.contains(&b'\n') && answer.len() < 1024 {
        tls.sock.set_read_timeout(Some(left(deadline)?))?;
        match tls.read(&mut buffer)? {
            0 => return Err(io::ErrorKind::UnexpectedEof.into()),
            n => answer.extend_from_slice(&buffer[..n]),
        }
    }
    let text = String::from_utf8_lossy(&answer);
    let line = text.lines().next().unwrap_or_default();
    Ok(line.split(' ').nth(1).unwrap_or(line).chars().take(60).collect())
}

/// Whom we talk to is proven by the kernel, not by a certificate: as with the kubelet's own probes, any will do.
#[derive(Debug)]
struct AnyCertificate(Arc<rustls::crypto::CryptoProvider>);

impl ServerCertVerifier for AnyCertificate {
    fn verify_server_cert(
        &self,
        _end_entity: &CertificateDer<'_>,
        _intermediates: &[CertificateDer<'_>],
        _server_name: &ServerName<'_>,
        _ocsp_response: &[u8],
        _now: UnixTime,
    ) -> Result<ServerCertVerified, rustls::Error> {
        Ok(ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        rustls::crypto::verify_tls12_signature(
            message,
            certificate,
            signature,
            &self.0.signature_verification_algorithms,
        )
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        rustls::crypto::verify_tls13_signature(
            message,
            certificate,
            signature,
            &self.0.signature_verification_algorithms,
        )
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.0.signature_verification_algorithms.supported_schemes()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::TcpListener;

    fn probe(address: SocketAddr, pids: Vec<u32>) -> Probe {
        Probe {
            address,
            path: "/readyz".into(),
            pids,
            listener: Listener::Newest,
            timeout: Duration::from_millis(500),
        }
    }

    #[test]
    fn a_process_that_does_not_listen_fails_without_a_connection() {
        let address = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
        let error = run(&probe(address, vec![std::process::id()])).unwrap_err();
        assert!(matches!(error, ProbeError::NotListening(_)), "{error}");
    }

    #[test]
    fn the_listener_of_another_process_does_not_count() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        // process 1 is not this one, and has no such socket
        let error = run(&probe(listener.local_addr().unwrap(), vec![1])).unwrap_err();
        assert!(matches!(error, ProbeError::NotListening(_)), "{error}");
    }

    #[test]
    fn a_process_that_listens_and_never_answers_fails_in_time() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let began = Instant::now();
        let error = run(&probe(listener.local_addr().unwrap(), vec![std::process::id()])).unwrap_err();
        assert!(matches!(error, ProbeError::Unanswered { .. }), "{error}");
        assert!(began.elapsed() < Duration::from_secs(2));
    }
}
