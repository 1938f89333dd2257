//! Tests on real clusters. They need root, and the time of some cluster starts; see the crate's documentation.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "a test fails by a panic"
)]

mod bad_input;
mod bad_manifests;
mod certs_in_secrets;
mod convert;
mod demo;
mod fault_tools;
mod faults;
mod faults_at_random;
mod image;
mod interrupted;
mod kinds_of_clusters;
mod klusterlet;
mod klusterlet_deploy;
mod krew;
mod kubectl_flags;
mod lab;
mod last_known_good;
mod random;
mod recover;
mod rolls;
mod running;
mod several_nodes;
mod support;
mod watch;
