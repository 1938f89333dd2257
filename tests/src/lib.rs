//! The lab: real kubeadm clusters on one Linux machine, as root, without systemd, Docker or a registry; and the harness
//! with which the end-to-end tests, the demo and the benchmark drive them.
//!
//! Each node is a set of namespaces (mount, PID, network, UTS) with a containerd and a kubelet of its own, started again
//! by the node's first process as systemd would do it. The control plane runs as kubeadm's own static Pods. Everything
//! comes from Go modules pinned in `lab/`, is built once, and is kept outside the checkout.
//!
//! * [`settings`] says where a lab lives: two with different settings can be up side by side.
//! * [`lab`] is the harness: `Lab::up`, commands inside nodes, power off and on, and the guard that always cleans up.
//! * [`meters`] measure what clients of the API notice.
//! * [`operate`] does to a cluster what an operator does, and [`operate::beside`] measures meanwhile.
//! * [`demo`] and [`bench`] are `cargo demo` and `cargo bench-lab`.
//! * [`hub`] is a hub of Open Cluster Management, or its spoke, as plain processes.
//! * [`package`] makes the archives of a release and the krew manifests.
//! * [`static_binary`] builds the plugin the way it lies on nodes.

pub mod bench;
pub mod cache;
pub mod command;
mod creation;
pub mod demo;
pub mod error;
pub mod hub;
pub mod interrupt;
pub mod kubeadm;
pub mod lab;
pub mod lanes;
pub mod meters;
pub mod network;
pub mod node;
pub mod operate;
pub mod package;
pub mod packages;
pub mod settings;
pub mod static_binary;

pub use error::{Error, Result};
pub use lab::{Lab, Options};
