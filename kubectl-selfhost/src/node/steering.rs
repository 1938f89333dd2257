//! Which of several listeners on one port gets a new connection: classic BPF programs for a reuseport group.
//!
//! The kernel numbers the listeners of a group from the oldest (0) upwards and asks the program for a number at each new
//! connection (`SO_ATTACH_REUSEPORT_CBPF`, socket(7)). A number that no listener has falls back to a hash over those that
//! are there, so that a program made for two listeners is right for one. When the oldest closes, the last one takes its
//! number. A program stays with the group for as long as it has a listener.

use std::net::IpAddr;

/// Whom one of our own probes is to meet, where several share a port.
///
/// It says so by its type-of-service byte: DSCP 23 and 21, which no standard assigns. Whoever else sends them meets a listener
/// that is new, or about to close: harmless.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Listener {
    /// The one that has come last, always.
    Newest,
    /// The one that has been there longest, always.
    Oldest,
}

impl Listener {
    /// The byte.
    #[must_use]
    pub fn type_of_service(self) -> u8 {
        match self {
            Self::Newest => 23 << 2,
            Self::Oldest => 21 << 2,
        }
    }
}

/// One instruction: operation, offset when true, offset when false, operand (linux/filter.h).
pub type Instruction = (u16, u8, u8, u32);

/// What a group is told.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Steering {
    /// Everything to the oldest listener, but for our own probes, and for connections from the address by which a
    /// starting kube-apiserver calls itself: it must meet itself, as its loopback certificate is its own.
    Hold {
        /// That address; none for components that do not call themselves.
        own: Option<IpAddr>,
    },
    /// Everything to the newest listener, but for our own probes of the oldest: the newest is proven, and the oldest is about
    /// to close, or has not been healthy for long.
    Switch,
}

const LOAD_BYTE: u16 = 0x30;
const LOAD_HALF: u16 = 0x28;
const LOAD_WORD: u16 = 0x20;
const AND: u16 = 0x54;
const SHIFT_RIGHT: u16 = 0x74;
const JUMP_EQUAL: u16 = 0x15;
const RETURN: u16 = 0x06;
/// Offsets from here on are relative to the network header (`SKF_NET_OFF`).
const NETWORK: u32 = (-0x10_0000_i32).cast_unsigned();

const OLDEST: Instruction = (RETURN, 0, 0, 0);
const NEWEST: Instruction = (RETURN, 0, 0, 1);

impl Steering {
    /// The program.
    #[must_use]
    pub fn program(self) -> Vec<Instruction> {
        // to whom probes with the mark go, and to whom all others go
        let (asked, marked, others, own) = match self {
            Self::Switch => (Listener::Oldest, OLDEST, NEWEST, None),
            Self::Hold { own } => (Listener::Newest, NEWEST, OLDEST, own),
        };
        let mark = u32::from(asked.type_of_service());
        // IPv4: type of service, then the source address
        let mut v4 = vec![
            (LOAD_BYTE, 0, 0, NETWORK + 1),
            (AND, 0, 0, 0xfc),
            (JUMP_EQUAL, 0, 1, mark),
            marked,
        ];
        if let Some(IpAddr::V4(own)) = own {
            v4.extend([
                (LOAD_WORD, 0, 0, NETWORK + 12),
                (JUMP_EQUAL, 0, 1, u32::from(own)),
                NEWEST,
            ]);
        }
        v4.push(others);
        // IPv6: the traffic class stands in the middle of the first 16 bits
        let mut v6 = vec![
            (LOAD_HALF, 0, 0, NETWORK),
            (SHIFT_RIGHT, 0, 0, 4),
            (AND, 0, 0, 0xfc),
            (JUMP_EQUAL, 0, 1, mark),
            marked,
        ];
        if let Some(IpAddr::V6(own)) = own {
            for (n, chunk) in own.octets().chunks(4).enumerate() {
                let word = chunk.iter().fold(0, |word, byte| word << 8 | u32::from(*byte));
                let place = u8::try_from(n).unwrap_or(0);
                // a word that differs jumps over the rest and the "newest" at its end
                v6.extend([
                    (LOAD_WORD, 0, 0, NETWORK + 8 + 4 * u32::from(place)),
                    (JUMP_EQUAL, 0, 2 * (3 - place) + 1, word),
                ]);
            }
            v6.push(NEWEST);
        }
        v6.push(others);
        let over_v4 = u8::try_from(v4.len()).unwrap_or(u8::MAX);
        let mut program = vec![
            (LOAD_BYTE, 0, 0, NETWORK),
            (AND, 0, 0, 0xf0),
            (JUMP_EQUAL, 0, over_v4, 0x40),
        ];
        program.extend(v4);
        program.extend(v6);
        program
    }
}

/// The address by which a kube-apiserver that listens on `bound` calls itself while it starts.
///
/// A wildcard listener calls the loopback address of the wildcard's own family, and Go's wildcard listener is an IPv6 one
/// wherever the kernel has IPv6, so this is `::1` almost everywhere: clients of 127.0.0.1 stay with the oldest.
/// Another listener calls its own address. Source: `LoopbackHostPort`, k8s.io/apiserver `pkg/server/secure_serving.go`.
#[must_use]
pub fn own_client_address(bound: IpAddr) -> IpAddr {
    match bound {
        IpAddr::V4(address) if address.is_unspecified() => IpAddr::V4(std::net::Ipv4Addr::LOCALHOST),
        IpAddr::V6(address) if address.is_unspecified() => IpAddr::V6(std::net::Ipv6Addr::LOCALHOST),
        other => other,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Runs a program over the network header of a packet; only what the programs here use.
    fn run(program: &[Instruction], header: &[u8]) -> u32 {
        let (mut accumulator, mut at) = (0_u32, 0_usize);
        loop {
            let (operation, yes, no, operand) = program[at];
            at += 1;
            let offset = operand.wrapping_sub(NETWORK) as usize;
            match operation {
                LOAD_BYTE => accumulator = u32::from(header[offset]),
                LOAD_HALF => accumulator = u32::from(u16::from_be_bytes([header[offset], header[offset + 1]])),
                LOAD_WORD => accumulator = u32::from_be_bytes(header[offset..offset + 4].try_into().unwrap()),
                AND => accumulator &= operand,
                SHIFT_RIGHT => accumulator >>= operand,
                JUMP_EQUAL => at += usize::from(if accumulator == operand { yes } else { no }),
                RETURN => return operand,
                other => panic!("operation {other:#x}"),
            }
        }
    }

    fn packet(source: &str, tos: u8) -> Vec<u8> {
        match source.parse().unwrap() {
            IpAddr::V4(address) => {
                let mut header = vec![0; 20];
                (header[0], header[1]) = (0x45, tos);
                header[12..16].copy_from_slice(&address.octets());
                header
            }
            IpAddr::V6(address) => {
                let mut header = vec![0; 40];
                (header[0], header[1]) = (0x60 | tos >> 4, tos << 4);
                header[8..24].copy_from_slice(&address.octets());
                header
            }
        }
    }

    const PROBE_TOS: u8 = 23 << 2;

    #[test]
    fn hold_sends_to_the_oldest_all_but_probes_and_the_own_client() {
        for (own, source, tos, expected) in [
            (Some("::1"), "10.0.0.7", 0, 0),
            (Some("::1"), "127.0.0.1", 0, 0),
            (Some("::1"), "::1", 0, 1),
            (Some("::1"), "::2", 0, 0),
            (Some("::1"), "1::1", 0, 0),
            (Some("::1"), "0:0:1::1", 0, 0),
            (Some("::1"), "fd00::5", 0, 0),
            (Some("::1"), "fd00::5", PROBE_TOS, 1),
            (Some("::1"), "127.0.0.1", PROBE_TOS, 1),
            (Some("::1"), "127.0.0.1", PROBE_TOS | 1, 1), // congestion bits are the network's
            (Some("::1"), "127.0.0.1", PROBE_TOS - 4, 0),
            (Some("127.0.0.1"), "127.0.0.1", 0, 1),
            (Some("127.0.0.1"), "127.0.0.2", 0, 0),
            (Some("127.0.0.1"), "::1", 0, 0),
            (Some("192.0.2.11"), "192.0.2.11", 0, 1),
            (Some("192.0.2.11"), "192.0.2.12", 0, 0),
            (Some("fd00::11"), "fd00::11", 0, 1),
            (Some("fd00::11"), "fd00::12", 0, 0),
            (None, "127.0.0.1", 0, 0),
            (None, "::1", 0, 0),
            (None, "127.0.0.1", PROBE_TOS, 1),
            (None, "::1", PROBE_TOS, 1),
            (None, "::1", 21 << 2, 0),
            (Some("::1"), "10.0.0.7", 21 << 2, 0),
        ] {
            let own = own.map(|own: &str| own.parse().unwrap());
            let program = Steering::Hold { own }.program();
            assert_eq!(
                run(&program, &packet(source, tos)),
                expected,
                "own {own:?}, from {source}, tos {tos:#x}"
            );
        }
    }

    #[test]
    fn switch_sends_to_the_newest_all_but_probes_of_the_oldest() {
        for source in ["10.0.0.7", "127.0.0.1", "::1", "fd00::5"] {
            for (tos, expected) in [(0, 1), (PROBE_TOS, 1), (21 << 2, 0), (21 << 2 | 1, 0), (22 << 2, 1)] {
                assert_eq!(
                    run(&Steering::Switch.program(), &packet(source, tos)),
                    expected,
                    "from {source}, tos {tos:#x}"
                );
            }
        }
    }

    #[test]
    fn a_wildcard_listener_calls_the_loopback_address_of_its_family() {
        for (bound, own) in [
            ("::", "::1"),
            ("0.0.0.0", "127.0.0.1"),
            ("192.0.2.1", "192.0.2.1"),
            ("::1", "::1"),
        ] {
            assert_eq!(
                own_client_address(bound.parse().unwrap()),
                own.parse::<IpAddr>().unwrap()
            );
        }
    }
}
