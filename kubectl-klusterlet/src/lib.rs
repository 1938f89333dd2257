//! `kubectl klusterlet`: registers the current cluster with a hub of Open Cluster Management and stays as its agent.
//!
//! `cli` reads what was typed; a module of the command's name does the work. `options`, `csr`, `certificate`,
//! `hub_kubeconfig`, `registration`, `facts`, `quantity`, `conditions` and `timing` decide, without touching the world;
//! `spoke` and `hub` are all calls to the two APIs; `agent` is what runs.

pub mod accept;
pub mod agent;
pub mod certificate;
pub mod cli;

pub mod conditions;
pub mod connection;
pub mod csr;
pub mod deploy;
pub mod facts;
pub mod files;
pub mod follow;
pub mod hub;
pub mod hub_kubeconfig;
pub mod join;
pub mod leave;
pub mod log;
pub mod names;
pub mod options;
pub mod outcome;
pub mod pending;
pub mod preflight;
pub mod quantity;
pub mod registration;
pub mod resources;
pub mod run;
pub mod serve;
pub mod spoke;
pub mod status;
#[cfg(test)]
mod test_support;
pub mod timing;
pub mod validate;
