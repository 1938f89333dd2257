//! What can be typed after `kubectl selfhost`.

pub mod convert;
#[cfg(target_os = "linux")]
pub mod node;
pub mod reach;
#[cfg(target_os = "linux")]
pub mod recover;
pub mod revert;

use clap::{CommandFactory, Parser, Subcommand};
use shared::command_line::CompletionArgs;
use shared::printer::ConsoleFlags;
use shared::{Printer, Result};

/// Turn the static-Pod control plane of a kubeadm cluster into self-hosted DaemonSets, and back
///
/// A flag of the apiserver is then changed by `kubectl -n kube-system edit daemonset self-hosted-kube-apiserver`: the new
/// process starts beside the old one, proves itself, and takes over, also where there is one node only.
///
/// Exit codes: 0 done or nothing to do, 1 failed, refused or declined, 2 wrong command line, 3 and 4 see `plan
/// --exit-code`, 130 interrupted.
#[derive(Debug, Parser)]
#[command(
    name = "kubectl-selfhost",
    bin_name = "kubectl selfhost",
    display_name = "kubectl selfhost",
    version,
    after_help = "Examples:\n  \
        kubectl selfhost plan            # what would be done, and what forbids it; changes nothing\n  \
        kubectl selfhost convert         # asks, then converts node by node; run again, it goes on\n  \
        kubectl selfhost status --watch\n  \
        kubectl selfhost revert"
)]
pub struct Cli {
    #[command(flatten)]
    console: ConsoleFlags,
    #[command(subcommand)]
    command: Command,
}

const COMPLETION_EXAMPLES: &str = "Examples:
  # for `kubectl selfhost <TAB>`, beside kubectl's own completion:
  kubectl selfhost completion kubectl > /usr/local/bin/kubectl_complete-selfhost
  chmod +x /usr/local/bin/kubectl_complete-selfhost
  # for `kubectl-selfhost <TAB>`:
  source <(kubectl selfhost completion bash)";

#[derive(Debug, Subcommand)]
enum Command {
    /// Show what convert would do, and what forbids it
    #[command(after_help = "Examples:\n  \
        kubectl selfhost plan\n  \
        kubectl selfhost plan --manifests /etc/kubernetes/manifests   # a directory, no cluster\n  \
        kubectl selfhost plan --exit-code -o json")]
    Plan(Box<convert::PlanArgs>),
    /// Convert control planes into DaemonSets, node by node
    #[command(after_help = "Examples:\n  \
        kubectl selfhost convert\n  \
        kubectl selfhost convert --nodes cp-1 --components kube-scheduler,kube-controller-manager\n  \
        kubectl selfhost convert --manifests ./manifests --dry-run -o yaml   # the DaemonSets, no cluster\n  \
        kubectl selfhost convert --feature-gates StoreCertsInSecrets=true --yes")]
    Convert(Box<convert::ConvertArgs>),
    /// Show what serves each component on each node
    #[command(after_help = "Examples:\n  \
        kubectl selfhost status\n  \
        kubectl selfhost status -o wide --watch\n  \
        kubectl selfhost status -o json")]
    Status(Box<revert::StatusArgs>),
    /// Put the original static Pods back, and remove everything of ours
    #[command(after_help = "Examples:\n  \
        kubectl selfhost revert\n  \
        kubectl selfhost revert --nodes cp-1 --keep-sharing --yes")]
    Revert(Box<revert::RevertArgs>),
    /// Bring back, from the node's own files, a control plane that is gone; as root on that node, without any API
    #[cfg(target_os = "linux")]
    #[command(after_help = "Examples:\n  \
        kubectl selfhost recover --dry-run\n  \
        kubectl selfhost recover --yes\n  \
        kubectl selfhost recover --original --components kube-apiserver")]
    Recover(recover::RecoverArgs),
    /// Print a policy that keeps others than administrators from our marks on Nodes, for `kubectl apply -f -`
    #[command(after_help = "Examples:\n  \
        kubectl selfhost policy | kubectl apply -f -")]
    Policy,
    /// Print a script that completes this command line
    #[command(after_help = COMPLETION_EXAMPLES)]
    Completion(CompletionArgs),
    /// Run what nodes run
    #[cfg(target_os = "linux")]
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
            #[cfg(target_os = "linux")]
            Command::Recover(args) => recover::run_recover(args, printer).await,
            Command::Policy => printer.data(&crate::policy::yaml()?),
            Command::Completion(args) => printer.data(&args.script(Self::command())?),
            #[cfg(target_os = "linux")]
            Command::Node(command) => node::run(command, printer).await,
        }?;
        Ok(0)
    }
}
