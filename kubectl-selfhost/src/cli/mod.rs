//! What can be typed after `kubectl selfhost`.

pub mod convert;
pub mod node;
pub mod reach;
pub mod recover;
pub mod revert;

use clap::{Parser, Subcommand};
use shared::printer::ConsoleFlags;
use shared::{Printer, Result};

/// Turn the static-Pod control plane of a kubeadm cluster into self-hosted DaemonSets, and back
#[derive(Debug, Parser)]
#[command(
    name = "kubectl-selfhost",
    bin_name = "kubectl selfhost",
    display_name = "kubectl selfhost",
    version
)]
pub struct Cli {
    #[command(flatten)]
    console: ConsoleFlags,
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Show what convert would do, and what forbids it
    Plan(Box<convert::PlanArgs>),
    /// Convert control planes into DaemonSets, node by node
    Convert(Box<convert::ConvertArgs>),
    /// Show what serves each component on each node
    Status(Box<revert::StatusArgs>),
    /// Put the original static Pods back, and remove everything of ours
    Revert(Box<revert::RevertArgs>),
    /// Bring back, from the node's own files, a control plane that is gone; as root on that node, without any API
    Recover(recover::RecoverArgs),
    /// Print a policy that keeps others than administrators from our marks on Nodes, for `kubectl apply -f -`
    Policy,
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

    /// Does it, and returns the exit code.
    ///
    /// # Errors
    /// What went wrong, with hints, for people.
    pub async fn run(self, printer: &Printer) -> Result<u8> {
        let verbosity = self.console.verbosity;
        match self.command {
            Command::Plan(args) => return convert::run_plan(*args, printer).await,
            Command::Convert(args) => convert::run_convert(*args, verbosity, printer).await,
            Command::Status(args) => revert::run_status(*args, verbosity, printer).await,
            Command::Revert(args) => revert::run_revert(*args, verbosity, printer).await,
            Command::Recover(args) => recover::run_recover(args, printer).await,
            Command::Policy => printer.data(&crate::policy::yaml()?),
            Command::Node(command) => node::run(command, printer).await,
        }?;
        Ok(0)
    }
}
