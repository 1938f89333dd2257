//! `kubectl selfhost`: turns the static-Pod control plane of a kubeadm cluster into self-hosted DaemonSets, and back.
//!
//! `cli` reads what was typed; a module of the command's name does the work; `manifest`, `mutators`, `daemon_set`, `plan`
//! and `node::guard::machine` decide, without touching the world; the rest of `node` is what runs on nodes.

pub mod checks;
pub mod cli;
pub mod component_spec;
pub mod daemon_set;
pub mod diff;
pub mod fallback;
pub mod fields;
pub mod inventory;
pub mod manifest;
pub mod mutators;
pub mod names;
pub mod node;
pub mod plan;
pub mod refusal;
pub mod render;
