//! The command tree. In this version it parses and explains; none of the commands does its work yet, and each says so.

use std::{path::PathBuf, time::Duration};

use clap::{Parser, Subcommand, ValueEnum};
use shared::{
    Error, Printer, Result,
    kube_client::{KubeFlags, parse_timeout},
    output::{DryRunFlags, OutputFlags},
    printer::ConsoleFlags,
    prompt::YesFlags,
};

/// Join this cluster to Open Cluster Management hubs, and fail over between them
///
/// The cluster of the current kubeconfig context (the spoke) is registered with one or several hubs. Its identity and its
/// lease are kept alive, and when the active hub is lost the next one takes over.
///
/// No command does its work in this version yet: each one says so and changes nothing.
#[derive(Debug, Parser)]
#[command(
    name = "kubectl-klusterlet",
    bin_name = "kubectl klusterlet",
    display_name = "kubectl klusterlet",
    version
)]
pub(crate) struct Cli {
    #[command(flatten)]
    console: ConsoleFlags,
    #[command(flatten)]
    kube: KubeFlags,
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Join the current context's cluster to a hub, and stay as its agent
    ///
    /// Shows spoke and hub, creates the ManagedCluster and the certificate request, waits for the approval and says who
    /// has to give it, stores the credentials for the hub, then stays as the agent.
    #[command(after_help = "Examples:\n  \
        kubectl klusterlet join --bootstrap-kubeconfig hub.kubeconfig --cluster-name edge-7\n  \
        kubectl klusterlet join --bootstrap-kubeconfig hub-a --bootstrap-kubeconfig hub-b --wait=available --detach\n  \
        kubectl klusterlet join --bootstrap-kubeconfig hub.kubeconfig --dry-run")]
    Join(JoinArguments),
    /// Run the agent alone, for a Pod or a service unit
    ///
    /// Asks nothing, logs as JSON, serves /healthz and /metrics.
    Run(AgentFlags),
    /// Check options, files, both APIs and permissions, and write nothing
    Validate(AgentFlags),
    /// Show identity, certificate, lease, conditions, and which hub is active
    Status(StatusArguments),
    /// Move to another hub as planned: it accepts first, the old lease is kept until then
    #[command(after_help = "Example:\n  kubectl klusterlet switch --to hub-b")]
    Switch(SwitchArguments),
    /// Approve a cluster's certificate request and accept it, with a context of the hub
    #[command(after_help = "Example:\n  kubectl klusterlet --context hub accept edge-7")]
    Accept(AcceptArguments),
    /// Take the spoke out of its hub and clean up
    Leave(LeaveArguments),
}

/// What the agent is told, the same for all commands that run or check it.
#[derive(Debug, clap::Args)]
struct AgentFlags {
    /// Name of the cluster on the hub, instead of a random one
    #[arg(long, value_name = "NAME")]
    cluster_name: Option<String>,
    /// Name of this agent, instead of a random one
    #[arg(long, value_name = "NAME")]
    agent_name: Option<String>,
    /// Kubeconfig that may register with a hub; in the order of preference (can be repeated)
    #[arg(long, value_name = "FILE")]
    bootstrap_kubeconfig: Vec<PathBuf>,
    /// Secret that holds the credentials for the hub
    #[arg(long, value_name = "NAME", default_value = "hub-kubeconfig-secret")]
    hub_kubeconfig_secret: String,
    /// Directory that the credentials for the hub are copied to
    #[arg(long, value_name = "DIRECTORY", default_value = "/spoke/hub-kubeconfig")]
    hub_kubeconfig_dir: PathBuf,
    /// Namespace of the agent and of its Secrets on the spoke
    #[arg(long, value_name = "NAME", default_value = "open-cluster-management-agent")]
    component_namespace: String,
    /// Address at which the hub's users reach the spoke's API server (can be repeated)
    #[arg(long, value_name = "URL")]
    spoke_external_server_urls: Vec<String>,
    /// Time between two checks of the spoke's health
    #[arg(long, value_name = "DURATION", default_value = "1m", value_parser = parse_timeout)]
    cluster_healthcheck_period: Duration,
    /// How many of the spoke's own claims are sent at most
    #[arg(long, value_name = "COUNT", default_value_t = 20)]
    max_custom_cluster_claims: u32,
    /// File with a FailoverConfig (failover.open-cluster-management.io/v1alpha1) that lists further hubs
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,
}

/// How far `join` waits.
#[derive(Clone, Copy, Debug, ValueEnum)]
enum WaitFor {
    /// The hub's administrator has accepted the cluster
    Accepted,
    /// The agent has its own credentials and has joined
    Joined,
    /// The hub sees the cluster as available
    Available,
}

#[derive(Debug, clap::Args)]
struct JoinArguments {
    #[command(flatten)]
    agent: AgentFlags,
    /// How far to wait
    #[arg(long, value_enum, value_name = "STATE", default_value = "available")]
    wait: WaitFor,
    /// Stop after that, instead of staying as the agent
    #[arg(long)]
    detach: bool,
    #[command(flatten)]
    dry_run: DryRunFlags,
    #[command(flatten)]
    yes: YesFlags,
}

#[derive(Debug, clap::Args)]
struct StatusArguments {
    /// Namespace of the agent and of its Secrets on the spoke
    #[arg(long, value_name = "NAME", default_value = "open-cluster-management-agent")]
    component_namespace: String,
    #[command(flatten)]
    output: OutputFlags,
}

#[derive(Debug, clap::Args)]
struct SwitchArguments {
    /// Name of the hub to move to
    #[arg(long, value_name = "HUB")]
    to: String,
    #[command(flatten)]
    yes: YesFlags,
}

#[derive(Debug, clap::Args)]
struct AcceptArguments {
    /// Name of the cluster on the hub
    cluster: String,
    #[command(flatten)]
    yes: YesFlags,
}

#[derive(Debug, clap::Args)]
struct LeaveArguments {
    /// Namespace of the agent and of its Secrets on the spoke
    #[arg(long, value_name = "NAME", default_value = "open-cluster-management-agent")]
    component_namespace: String,
    #[command(flatten)]
    yes: YesFlags,
}

impl Cli {
    /// The printer that the flags ask for.
    pub(crate) fn printer(&self) -> Printer {
        Printer::new(self.console.color)
    }

    /// Runs the command.
    ///
    /// # Errors
    /// Always, in this version.
    pub(crate) fn run(&self) -> Result<()> {
        let (command, will) = match self.command {
            Command::Join(_) => ("join", "register this cluster with a hub and stay as its agent"),
            Command::Run(_) => ("run", "run the agent without a terminal"),
            Command::Validate(_) => ("validate", "check options, files, both APIs and permissions"),
            Command::Status(_) => ("status", "show identity, certificate, lease, conditions and hubs"),
            Command::Switch(_) => ("switch", "move to another hub, and back if it does not accept"),
            Command::Accept(_) => ("accept", "approve a cluster's certificate request and accept it"),
            Command::Leave(_) => ("leave", "take this cluster out of its hub and clean up"),
        };
        Err(
            Error::new(format!("kubectl klusterlet {command} is not implemented yet"))
                .because(format!("a later version will {will}; nothing was read or changed")),
        )
    }
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    use super::*;

    #[test]
    fn the_command_tree_is_consistent() {
        Cli::command().debug_assert();
    }
}
