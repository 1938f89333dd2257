//! What can be typed after `kubectl selfhost`.

pub mod node;

use clap::{Parser, Subcommand};
use shared::printer::ConsoleFlags;
use shared::{Printer, Result};

/// Turn the static-Pod control plane of a kubeadm cluster into self-hosted DaemonSets, and back
#[derive(Debug, Parser)]
#[command(name = "kubectl-selfhost", bin_name = "kubectl selfhost", display_name = "kubectl selfhost", version)]
pub struct Cli {
    #[command(flatten)]
    console: ConsoleFlags,
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Run what nodes run
    #[command(subcommand, hide = true)]
    Node(node::NodeCommand),
}

impl Cli {
    /// The terminal that this command line asks for.
    #[must_use]
    pub fn printer(&self) -> Printer {
        Printer::new(self.console.color)
    }

    /// Does it.
    ///
    /// # Errors
    /// What went wrong, with hints, for people.
    pub async fn run(self, printer: &Printer) -> Result<()> {
        match self.command {
            Command::Node(command) => node::run(command, printer).await,
        }
    }
}
