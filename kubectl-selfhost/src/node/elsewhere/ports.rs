//! `node::ports` on systems that are no nodes: the plugin runs there, and nothing of this is called.

use crate::node::net_table::{Listener, NetTable};
use crate::node::steering::Steering;
use std::io;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};

/// Why a port could not be shared or steered.
#[derive(Debug, thiserror::Error)]
pub enum PortError {
    /// This is no node.
    #[error("ports of a control plane can be shared and steered on Linux nodes only")]
    NoNode,
    /// Nothing listens there. Never made here: those who ask for it compile everywhere.
    #[error("no process listens on port {0}")]
    NoListener(u16),
}

/// See the module of the same name for Linux.
///
/// # Errors
/// Always.
pub fn read_net_table() -> Result<NetTable, PortError> {
    Err(PortError::NoNode)
}

/// See the module of the same name for Linux.
///
/// # Errors
/// Always.
pub fn share(_: u32, _: u16) -> Result<usize, PortError> {
    Err(PortError::NoNode)
}

/// See the module of the same name for Linux.
///
/// # Errors
/// Always.
pub fn is_shared(_: u32, _: u16) -> Result<bool, PortError> {
    Err(PortError::NoNode)
}

/// See the module of the same name for Linux.
///
/// # Errors
/// Always.
pub fn steer(_: u16, _: impl Fn(&Listener) -> Steering) -> Result<usize, PortError> {
    Err(PortError::NoNode)
}

/// See the module of the same name for Linux.
#[must_use]
pub fn listen_address(bind_address: Option<IpAddr>, port: u16, _: bool) -> SocketAddr {
    SocketAddr::new(bind_address.unwrap_or(IpAddr::V4(Ipv4Addr::UNSPECIFIED)), port)
}

/// See the module of the same name for Linux.
#[must_use]
pub fn kernel_has_ipv6() -> bool {
    false
}

/// See the module of the same name for Linux.
///
/// # Errors
/// Always.
pub fn try_bind(_: SocketAddr, _: bool) -> io::Result<()> {
    Err(io::Error::other(PortError::NoNode))
}
