//! Tests of the pure core: from a manifest directory to a plan and DaemonSets, without any cluster.

mod ancestor;
mod bad_input;
mod directory;
mod fixtures;
mod properties;
mod support;
