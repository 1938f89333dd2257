//! `node::probe` on systems that are no nodes.

use super::ports::PortError;
use super::steering::Listener;
use std::net::SocketAddr;
use std::time::Duration;

/// See the module of the same name for Linux.
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

/// See the module of the same name for Linux.
///
/// # Errors
/// Always.
pub fn run(_: &Probe) -> Result<(), PortError> {
    Err(PortError::NoNode)
}
