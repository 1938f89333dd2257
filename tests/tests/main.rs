//! Tests on real clusters. They need root, and the time of some cluster starts; see the crate's documentation.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "a test fails by a panic"
)]

mod bad_input;
mod bad_manifests;
mod convert;
mod demo;
mod image;
mod interrupted;
mod klusterlet;
mod klusterlet_deploy;
mod lab;
mod rolls;
mod running;
mod support;
