//! What runs on nodes: the guard, and what the component's Pods run before and beside the component.

pub mod await_port;
pub mod guard;
pub mod net_table;
pub mod phase;
pub mod ports;
pub mod probe;
pub mod process;
pub mod state;
pub mod steering;
pub mod trial;
pub mod variants;
