//! What runs on nodes: the guard, and what the component's Pods run before and beside the component.

pub mod await_port;
pub mod guard;
pub mod net_table;
pub mod phase;
#[cfg(target_os = "linux")]
pub mod ports;
#[cfg(not(target_os = "linux"))]
#[path = "elsewhere/ports.rs"]
pub mod ports;
#[cfg(target_os = "linux")]
pub mod probe;
#[cfg(not(target_os = "linux"))]
#[path = "elsewhere/probe.rs"]
pub mod probe;
pub mod process;
pub mod state;
pub mod steering;
#[cfg(target_os = "linux")]
pub mod trial;
#[cfg(not(target_os = "linux"))]
#[path = "elsewhere/trial.rs"]
pub mod trial;
pub mod variants;
