//! Tests of the pure core: from a manifest directory to a plan and DaemonSets, without any cluster.
#![allow(
    clippy::unwrap_used,
    clippy::panic,
    reason = "a test fails by panicking, in its helpers too"
)]
#![allow(
    clippy::semicolon_if_nothing_returned,
    reason = "an edit of a Pod reads better as one expression"
)]

mod ancestor;
mod bad_input;
mod certs_in_secrets;
mod directory;
mod fixtures;
mod properties;
mod side_cars;
mod support;
