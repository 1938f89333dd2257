//! The hand-over of a port: make a live listener share it, steer its group, see whether it can be bound.

use super::net_table::{Listener, NetTable};
use super::process::Processes;
use super::steering::Steering;
use nix::libc;
use nix::sys::socket::{setsockopt, sockopt};
use rustix::process::{Pid, PidfdFlags, PidfdGetfdFlags, pidfd_getfd, pidfd_open};
use socket2::{Domain, Protocol, SockFilter, Socket, Type};
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::os::fd::OwnedFd;
use std::path::Path;

/// Why a port could not be shared or steered.
#[derive(Debug, thiserror::Error)]
pub enum PortError {
    /// Nothing listens there.
    #[error("no process listens on port {0}")]
    NoListener(u16),
    /// The process has no listening socket on the port.
    #[error("process {pid} does not listen on port {port}")]
    NotItsPort {
        /// The process.
        pid: u32,
        /// The port.
        port: u16,
    },
    /// The kernel, or what guards it (capabilities, seccomp, Yama, another security module), refused a call.
    #[error("{call} was refused")]
    Refused {
        /// The system call and its argument.
        call: &'static str,
        /// Its error.
        #[source]
        source: io::Error,
    },
    /// A file under `/proc` could not be read.
    #[error("cannot read {what}")]
    Unreadable {
        /// What could not be read.
        what: String,
        /// Its error.
        #[source]
        source: io::Error,
    },
}

fn refused(call: &'static str) -> impl FnOnce(io::Error) -> PortError {
    move |source| PortError::Refused { call, source }
}

/// Reads the sockets of this network namespace.
///
/// # Errors
/// When `/proc` cannot be read.
pub fn read_net_table() -> Result<NetTable, PortError> {
    NetTable::read(Path::new("/proc")).map_err(|source| PortError::Unreadable {
        what: "/proc/self/net/tcp".into(),
        source,
    })
}

/// Makes the listening sockets of a running process share their port (`SO_REUSEPORT`), without its help.
///
/// A duplicate of its descriptor is the same socket, so that an option set on the duplicate counts for both. Needs the
/// right to trace the process (`CAP_SYS_PTRACE`, or the same user with Yama off) and Linux 5.6. Returns how many sockets
/// were changed.
///
/// # Errors
/// When the process does not listen there, or a call is refused.
pub fn share(pid: u32, port: u16) -> Result<usize, PortError> {
    let sockets = listening_sockets(pid, port)?;
    for socket in &sockets {
        rustix::net::sockopt::set_socket_reuseport(socket, true)
            .map_err(|e| refused("setsockopt(SO_REUSEPORT)")(e.into()))?;
    }
    Ok(sockets.len())
}

/// Whether the listening sockets of a process share their port already.
///
/// # Errors
/// As [`share`].
pub fn is_shared(pid: u32, port: u16) -> Result<bool, PortError> {
    for socket in listening_sockets(pid, port)? {
        if !rustix::net::sockopt::socket_reuseport(&socket)
            .map_err(|e| refused("getsockopt(SO_REUSEPORT)")(e.into()))?
        {
            return Ok(false);
        }
    }
    Ok(true)
}

/// Duplicates of the sockets by which a process listens on a port; there is at least one.
fn listening_sockets(pid: u32, port: u16) -> Result<Vec<OwnedFd>, PortError> {
    let table = read_net_table()?;
    let inodes: Vec<u64> = table.on_port(port).map(|listener| listener.inode).collect();
    let descriptors = Processes::new(Path::new("/proc"))
        .sockets(pid)
        .map_err(|source| PortError::Unreadable {
            what: format!("/proc/{pid}/fd"),
            source,
        })?;
    let process = i32::try_from(pid)
        .ok()
        .and_then(Pid::from_raw)
        .ok_or(PortError::NotItsPort { pid, port })?;
    let process = pidfd_open(process, PidfdFlags::empty()).map_err(|e| refused("pidfd_open")(e.into()))?;
    let mut sockets = Vec::new();
    for (descriptor, inode) in descriptors {
        if inodes.contains(&inode) {
            let socket = pidfd_getfd(&process, descriptor, PidfdGetfdFlags::empty());
            sockets.push(socket.map_err(|e| refused("pidfd_getfd")(e.into()))?);
        }
    }
    if sockets.is_empty() {
        Err(PortError::NotItsPort { pid, port })
    } else {
        Ok(sockets)
    }
}

/// Steers every group of listeners on a port. Nothing to do, and no error, where nothing listens.
///
/// An MPTCP listener, which Go makes by default, refuses to carry a program (`EOPNOTSUPP`), and descriptors of others need
/// rights that a component's own Pod does not have. So a plain socket joins the group for the blink of an eye, attaches
/// the program and leaves, which needs nothing but the user of the listeners, or `CAP_CHOWN`.
///
/// While it is in a group that is not steered yet, the kernel may hand it a new connection (some 20 microseconds). Two
/// things keep that connection: its queue is full from the start, so that the kernel answers with a cookie that any
/// listener of the group can redeem (tcp(7), `tcp_syncookies`), and where we may, a filter drops what it gets, so that
/// the client's kernel tries again a second later. Since Linux 6.18 at the latest the filter needs `CAP_NET_ADMIN` on a TCP
/// socket: the guard, which steers a group first, has it; a component's Pod does without.
///
/// Returns how many groups were steered.
///
/// # Errors
/// When a call is refused: another user owns the listener and owners may not be changed, or it does not share its port.
pub fn steer(port: u16, steering: impl Fn(&Listener) -> Steering) -> Result<usize, PortError> {
    let table = read_net_table()?;
    let mut groups: Vec<&Listener> = Vec::new();
    for listener in table.on_port(port) {
        if !groups.iter().any(|known| known.address == listener.address) {
            groups.push(listener);
        }
    }
    for listener in &groups {
        join_and_attach(listener, steering(listener))?;
    }
    Ok(groups.len())
}

fn join_and_attach(listener: &Listener, steering: Steering) -> Result<(), PortError> {
    let address = listener.address;
    let socket = unbound(address.ip()).map_err(refused("socket"))?;
    if listener.uid != rustix::process::geteuid().as_raw() {
        // Only sockets of one user share a port, and a socket's user is the owner of its inode: the guard, which may change
        // owners, so joins the group of a component that does not run as root.
        rustix::fs::fchown(&socket, Some(rustix::fs::Uid::from_raw(listener.uid)), None)
            .map_err(|error| refused("fchown of a socket")(error.into()))?;
    }
    socket
        .set_reuse_port(true)
        .map_err(refused("setsockopt(SO_REUSEPORT)"))?;
    let drop_all = [SockFilter::new(0x06, 0, 0, 0)];
    match socket.attach_filter(&drop_all) {
        Err(error) if error.kind() != io::ErrorKind::PermissionDenied => {
            return Err(refused("setsockopt(SO_ATTACH_FILTER)")(error));
        }
        _ => {}
    }
    socket.bind(&address.into()).map_err(refused("bind"))?;
    let mut program: Vec<libc::sock_filter> = steering
        .program()
        .into_iter()
        .map(|(code, jt, jf, k)| libc::sock_filter { code, jt, jf, k })
        .collect();
    let len = u16::try_from(program.len())
        .map_err(|_| refused("a steering program that long")(io::ErrorKind::Other.into()))?;
    let program = libc::sock_fprog {
        len,
        filter: program.as_mut_ptr(),
    };
    socket.listen(0).map_err(refused("listen"))?;
    setsockopt(&socket, sockopt::AttachReusePortCbpf, &program)
        .map_err(|error| refused("setsockopt(SO_ATTACH_REUSEPORT_CBPF)")(error.into()))
}

fn unbound(ip: IpAddr) -> io::Result<Socket> {
    let domain = if ip.is_ipv4() { Domain::IPV4 } else { Domain::IPV6 };
    let socket = Socket::new(domain, Type::STREAM, Some(Protocol::TCP))?;
    if ip == IpAddr::V6(Ipv6Addr::UNSPECIFIED) {
        socket.set_only_v6(false)?; // as Go's wildcard listener: both families
    }
    socket.set_reuse_address(true)?;
    Ok(socket)
}

/// The address that a component binds for the given `--bind-address` (none is `0.0.0.0`).
///
/// Go binds the dual-stack wildcard for either wildcard where the kernel has IPv6 (net.Listen, package net).
#[must_use]
pub fn listen_address(bind_address: Option<IpAddr>, port: u16, kernel_has_ipv6: bool) -> SocketAddr {
    let ip = match bind_address.unwrap_or(IpAddr::V4(Ipv4Addr::UNSPECIFIED)) {
        ip if ip.is_unspecified() && kernel_has_ipv6 => IpAddr::V6(Ipv6Addr::UNSPECIFIED),
        ip if ip.is_unspecified() => IpAddr::V4(Ipv4Addr::UNSPECIFIED),
        ip => ip,
    };
    SocketAddr::new(ip, port)
}

/// Whether this network namespace has IPv6.
#[must_use]
pub fn kernel_has_ipv6() -> bool {
    Path::new("/proc/self/net/if_inet6").exists()
        && Socket::new(Domain::IPV6, Type::STREAM, Some(Protocol::TCP)).is_ok()
}

/// Tries whether a component could bind an address now; nothing is left bound and nobody's connection is touched.
///
/// With `sharing` it succeeds beside listeners that share the port and belong to the same user.
///
/// # Errors
/// The error of the call that failed; `AddrInUse` is the ordinary one.
pub fn try_bind(address: SocketAddr, sharing: bool) -> io::Result<()> {
    let socket = unbound(address.ip())?;
    socket.set_reuse_port(sharing)?;
    socket.bind(&address.into())
    // not listening: a socket that is only bound gets no connection
}

/// Listens on an address, sharing its port.
///
/// # Errors
/// The error of the call that failed.
pub fn listen_shared(address: SocketAddr) -> io::Result<Socket> {
    let socket = unbound(address.ip())?;
    socket.set_reuse_port(true)?;
    socket.bind(&address.into())?;
    socket.listen(128)?;
    Ok(socket)
}

#[cfg(test)]
mod tests {
    use super::super::steering::Listener;
    use super::*;
    use std::io::{Read, Write};
    use std::net::{TcpListener, TcpStream};

    fn listener(address: SocketAddr) -> TcpListener {
        listen_shared(address).unwrap().into()
    }

    fn serve(listener: TcpListener, name: u8) {
        std::thread::spawn(move || {
            for mut stream in listener.incoming().flatten() {
                let _ = stream.write_all(&[name]);
            }
        });
    }

    fn ask(to: SocketAddr, tos: u8) -> u8 {
        let socket = Socket::new(Domain::for_address(to), Type::STREAM, Some(Protocol::TCP)).unwrap();
        match to {
            SocketAddr::V4(_) => socket.set_tos_v4(u32::from(tos)).unwrap(),
            SocketAddr::V6(_) => socket.set_tclass_v6(u32::from(tos)).unwrap(),
        }
        socket.connect(&to.into()).unwrap();
        let mut answer = [0];
        TcpStream::from(socket).read_exact(&mut answer).unwrap();
        answer[0]
    }

    #[test]
    fn a_group_is_steered_as_the_program_says() {
        for (bound, local, own) in [("127.0.0.1:0", "127.0.0.1", "127.0.0.1"), ("[::]:0", "::1", "::1")] {
            let oldest = listener(bound.parse().unwrap());
            let port = oldest.local_addr().unwrap().port();
            let newest = listener(SocketAddr::new(bound.parse::<SocketAddr>().unwrap().ip(), port));
            serve(oldest, b'o');
            serve(newest, b'n');
            let local = SocketAddr::new(local.parse().unwrap(), port);

            assert_eq!(steer(port, |_| Steering::Hold { own: None }).unwrap(), 1);
            for _ in 0..50 {
                assert_eq!(ask(local, 0), b'o');
                assert_eq!(ask(local, Listener::Newest.type_of_service()), b'n');
            }
            steer(port, |_| Steering::Hold {
                own: Some(own.parse().unwrap()),
            })
            .unwrap();
            for _ in 0..50 {
                assert_eq!(ask(local, 0), b'n');
            }
            if local.is_ipv6() {
                // a client of 127.0.0.1 is not the starting process: it stays with the oldest
                assert_eq!(ask(SocketAddr::new("127.0.0.1".parse().unwrap(), port), 0), b'o');
            }
            steer(port, |_| Steering::Switch).unwrap();
            for _ in 0..50 {
                assert_eq!(ask(local, 0), b'n');
            }
        }
    }

    #[test]
    fn while_a_group_is_steered_again_and_again_no_connection_is_lost() {
        let only = listener("127.0.0.1:0".parse().unwrap());
        let address = only.local_addr().unwrap();
        serve(only, b'o');
        let done = std::sync::Arc::new(std::sync::atomic::AtomicBool::new(false));
        let stop = done.clone();
        let steering = std::thread::spawn(move || {
            while !stop.load(std::sync::atomic::Ordering::Relaxed) {
                steer(address.port(), |_| Steering::Hold { own: None }).unwrap();
                std::thread::sleep(std::time::Duration::from_millis(2));
            }
        });
        for _ in 0..300 {
            assert_eq!(ask(address, 0), b'o');
        }
        done.store(true, std::sync::atomic::Ordering::Relaxed);
        steering.join().unwrap();
    }

    #[test]
    fn a_listener_that_does_not_share_is_made_to_share_by_its_owner() {
        let alone = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = alone.local_addr().unwrap();
        assert_eq!(try_bind(address, true).unwrap_err().kind(), io::ErrorKind::AddrInUse);
        let me = std::process::id();
        assert!(!is_shared(me, address.port()).unwrap());
        assert_eq!(share(me, address.port()).unwrap(), 1);
        assert!(is_shared(me, address.port()).unwrap());
        try_bind(address, true).unwrap();
        assert_eq!(try_bind(address, false).unwrap_err().kind(), io::ErrorKind::AddrInUse);
    }

    #[test]
    fn a_port_without_listener_or_of_another_process_is_named() {
        let free = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
        assert_eq!(steer(free, |_| Steering::Switch).unwrap(), 0);
        let error = share(std::process::id(), free).unwrap_err();
        assert!(matches!(error, PortError::NotItsPort { .. }), "{error}");
    }

    #[test]
    fn go_binds_the_dual_stack_wildcard_where_it_can() {
        for (given, ipv6, expected) in [
            (None, true, "[::]:6443"),
            (Some("0.0.0.0"), true, "[::]:6443"),
            (Some("0.0.0.0"), false, "0.0.0.0:6443"),
            (Some("::"), true, "[::]:6443"),
            (Some("127.0.0.1"), true, "127.0.0.1:6443"),
            (Some("192.0.2.1"), true, "192.0.2.1:6443"),
        ] {
            let given = given.map(|ip: &str| ip.parse().unwrap());
            assert_eq!(listen_address(given, 6443, ipv6), expected.parse().unwrap());
        }
    }
}
