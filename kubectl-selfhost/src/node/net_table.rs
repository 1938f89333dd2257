//! The kernel's table of TCP sockets, as `/proc/net/tcp` and `/proc/net/tcp6` show it.
//!
//! Format: Linux `Documentation/networking/proc_net_tcp.rst`; addresses are hexadecimal 32-bit words in host byte order.

use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::path::Path;

/// A socket that listens.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Listener {
    /// The address it is bound to.
    pub address: SocketAddr,
    /// The user that owns it: only sockets of the same user may join its port.
    pub uid: u32,
    /// Inode of the socket, as in `/proc/PID/fd` (`socket:[inode]`).
    pub inode: u64,
}

/// A connection, seen from the side that accepted it.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Connection {
    /// Our side.
    pub local: SocketAddr,
    /// The other side.
    pub remote: SocketAddr,
    /// Inode of the socket; 0 while no process has accepted it.
    pub inode: u64,
}

/// All sockets of one network namespace that matter here.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct NetTable {
    /// Sockets in state LISTEN.
    pub listeners: Vec<Listener>,
    /// Sockets in state ESTABLISHED, CLOSE_WAIT or a state of closing that still has an owner.
    pub connections: Vec<Connection>,
}

const LISTEN: u8 = 0x0A;

impl NetTable {
    /// Reads the table of the network namespace of the calling process; `proc` is normally `/proc`.
    ///
    /// # Errors
    /// When neither table can be read. A missing `tcp6` means that IPv6 is off, and is fine.
    pub fn read(proc: &Path) -> io::Result<Self> {
        let mut table = Self::default();
        table.add(&std::fs::read_to_string(proc.join("self/net/tcp"))?);
        match std::fs::read_to_string(proc.join("self/net/tcp6")) {
            Ok(text) => table.add(&text),
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            Err(error) => return Err(error),
        }
        Ok(table)
    }

    /// Adds what one of the two files says. Lines that are not of the known form are skipped: the first one is a heading.
    pub fn add(&mut self, text: &str) {
        for line in text.lines() {
            let mut fields = line.split_whitespace();
            let (Some(_), Some(local), Some(remote), Some(state)) =
                (fields.next(), fields.next(), fields.next(), fields.next())
            else {
                continue;
            };
            // after the state: queues, timers, retransmits; then uid, time-out, inode
            let rest: Vec<&str> = fields.collect();
            let (Some(local), Some(remote), Ok(state)) = (socket(local), socket(remote), u8::from_str_radix(state, 16))
            else {
                continue;
            };
            let (Some(uid), Some(inode)) = (
                rest.get(3).and_then(|t| t.parse().ok()),
                rest.get(5).and_then(|t| t.parse().ok()),
            ) else {
                continue;
            };
            if state == LISTEN {
                self.listeners.push(Listener {
                    address: local,
                    uid,
                    inode,
                });
            } else {
                self.connections.push(Connection { local, remote, inode });
            }
        }
    }

    /// The sockets that listen on a port, whatever their address.
    pub fn on_port(&self, port: u16) -> impl Iterator<Item = &Listener> {
        self.listeners
            .iter()
            .filter(move |listener| listener.address.port() == port)
    }

    /// The accepted side of a connection whose client side has the given address.
    ///
    /// IPv4 connections of a dual-stack listener stand in the table as IPv4-mapped IPv6 addresses: both forms are equal here.
    #[must_use]
    pub fn accepted(&self, server: SocketAddr, client: SocketAddr) -> Option<&Connection> {
        let (server, client) = (canonical(server), canonical(client));
        self.connections
            .iter()
            .find(|c| canonical(c.local) == server && canonical(c.remote) == client)
    }
}

fn canonical(address: SocketAddr) -> SocketAddr {
    SocketAddr::new(address.ip().to_canonical(), address.port())
}

fn socket(text: &str) -> Option<SocketAddr> {
    let (address, port) = text.split_once(':')?;
    let port = u16::from_str_radix(port, 16).ok()?;
    let word = |at: usize| {
        u32::from_str_radix(address.get(at..at + 8)?, 16)
            .ok()
            .map(u32::to_ne_bytes)
    };
    let ip = match address.len() {
        8 => IpAddr::V4(Ipv4Addr::from(word(0)?)),
        32 => {
            let mut bytes = [0; 16];
            for (n, chunk) in bytes.chunks_mut(4).enumerate() {
                chunk.copy_from_slice(&word(n * 8)?);
            }
            IpAddr::V6(Ipv6Addr::from(bytes))
        }
        _ => return None,
    };
    Some(SocketAddr::new(ip, port))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::{TcpListener, TcpStream};

    const TCP6: &str = "  sl  local_address                         remote_address                        st tx_queue rx_queue tr tm->when retrnsmt   uid  timeout inode
   0: 00000000000000000000000000000000:192B 00000000000000000000000000000000:0000 0A 00000000:00000000 00:00000000 00000000     0        0 48213 1 0000000000000000 100 0 0 10 0
   1: 0000000000000000FFFF00000B014D0A:192B 0000000000000000FFFF00000B014D0A:9C4E 01 00000000:00000000 02:000003E8 00000000 65534        0 48999 2 0000000000000000 20 4 30 10 -1
";

    #[test]
    fn a_table_of_ipv6_sockets_is_read() {
        let mut table = NetTable::default();
        table.add(TCP6);
        assert_eq!(
            table.listeners,
            [Listener {
                address: "[::]:6443".parse().unwrap(),
                uid: 0,
                inode: 48213
            }]
        );
        let accepted = table.accepted("10.77.1.11:6443".parse().unwrap(), "10.77.1.11:40014".parse().unwrap());
        assert_eq!(accepted.map(|c| c.inode), Some(48999));
        assert_eq!(
            table.accepted("10.77.1.11:6443".parse().unwrap(), "10.77.1.11:40015".parse().unwrap()),
            None
        );
    }

    #[test]
    fn lines_of_another_form_are_skipped() {
        let mut table = NetTable::default();
        table.add("rubbish\n 0: 0100007F:ZZZZ 00000000:0000 0A\n 1: 0100007F:0050 00000000:0000 0A 0 0\n\n");
        assert_eq!(table, NetTable::default());
    }

    #[test]
    fn real_sockets_are_found() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let client = TcpStream::connect(address).unwrap();
        let (_accepted, _) = listener.accept().unwrap();
        let table = NetTable::read(Path::new("/proc")).unwrap();
        assert_eq!(table.on_port(address.port()).count(), 1);
        let connection = table.accepted(address, client.local_addr().unwrap()).unwrap();
        assert_ne!(connection.inode, 0);
    }
}
