//! What both plugins are built on: errors with hints, one owner of the terminal, progress, prompts, waits with a
//! deadline, kubectl's flags and client, YAML as the kubelet reads it, and files that are written whole or not at all.
//!
//! Nothing here knows what a control plane or a hub is.
#![deny(missing_docs)]

pub mod atomic_file;
pub mod command_line;
pub mod error;
pub mod kube_client;
pub mod machine;
pub mod output;
pub mod printer;
pub mod progress;
pub mod prompt;
pub mod table;
pub mod wait;
pub mod yaml;

pub use error::{Context, Error, Result};
pub use printer::Printer;
