//! Flags about nodes, common to all commands, and what is told at the end.

use crate::fleet::Reach;
use crate::helper_pod::DEFAULT_IMAGE;
use crate::names::Component;
use clap::Args;
use shared::Printer;
use shared::kube_client::Cluster;
use std::path::PathBuf;

/// Which nodes, and how they are reached.
#[derive(Clone, Debug, Args)]
pub struct ReachArgs {
    /// Control-plane nodes (can be repeated; default: all)
    #[arg(long, value_delimiter = ',', value_name = "NODE")]
    nodes: Vec<String>,
    /// Image of the short-lived Pod through which other nodes are reached; it needs sh, head, chroot and sha256sum
    #[arg(long, value_name = "IMAGE", default_value = DEFAULT_IMAGE)]
    helper_image: String,
    /// Executable for the nodes, where this one does not fit them
    #[arg(long, value_name = "FILE")]
    node_binary: Option<PathBuf>,
}

impl ReachArgs {
    /// What they mean.
    #[must_use]
    pub fn reach(&self) -> Reach {
        Reach {
            nodes: self.nodes.clone(),
            helper_image: self.helper_image.clone(),
            node_binary: self.node_binary.clone(),
        }
    }
}

/// A component by its name.
///
/// # Errors
/// Names the three that there are.
pub fn component(text: &str) -> std::result::Result<Component, String> {
    Component::from_name(text).ok_or_else(|| {
        let known: Vec<&str> = Component::ALL.iter().map(|component| component.name()).collect();
        format!("not a component; choose one of {}", known.join(", "))
    })
}

/// Tells how many requests went to the API server, where more is to be told.
pub fn tell_calls(cluster: &Cluster, verbosity: u8, printer: &Printer) {
    if verbosity >= 1 {
        printer.note(format!("{} requests to the API server", cluster.calls()));
    }
}
