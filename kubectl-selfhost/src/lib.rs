//! `kubectl selfhost`: turns the static-Pod control plane of a kubeadm cluster into self-hosted DaemonSets, and back.
//!
//! `cli` reads what was typed; a module of the command's name does the work; `manifest`, `mutators`, `daemon_set`, `plan`
//! and `node::guard::machine` decide, without touching the world; the rest of `node` is what runs on nodes.

pub mod base64;
pub mod certs_in_secrets;
pub mod checks;
pub mod cli;
pub mod cluster;
pub mod cluster_plan;
pub mod component_spec;
pub mod component_state;
pub mod convert;
pub mod daemon_set;
pub mod diff;
pub mod fallback;
pub mod feature_gates;
pub mod fields;
pub mod fleet;
pub mod guard_manifest;
pub mod hand_over;
pub mod helper_pod;
pub mod install;
pub mod inventory;
pub mod last_known_good;
pub mod leadership;
pub mod local_node;
pub mod manifest;
pub mod mutators;
pub mod names;
pub mod node;
pub mod observe;
pub mod own_endpoints;
pub mod patience;
pub mod plan;
pub mod planning;
pub mod policy;
pub mod preflight;
#[cfg(target_os = "linux")]
pub mod recover;
pub mod refusal;
pub mod render;
pub mod revert;
pub mod run_lock;
pub mod settling;
pub mod status;
pub mod survey;
pub mod target;
pub mod webhooks;
