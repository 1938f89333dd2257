//! The command tree: what can be typed, and what it means.

use std::{net::SocketAddr, path::PathBuf, time::Duration};

use clap::{Args, CommandFactory, Parser, Subcommand, ValueEnum};
use shared::{
    Error, Printer, Result,
    command_line::CompletionArgs,
    kube_client::{KubeFlags, parse_timeout},
    output::{DryRun, DryRunFlags, OutputFlags, OutputFormat},
    printer::ConsoleFlags,
    prompt::YesFlags,
};

use crate::{
    accept::{AcceptOptions, accept},
    connection::connect_spoke,
    deploy::{self, DeployOptions},
    join::{JoinOptions, join},
    leave::{LeaveOptions, leave},
    log::{Log, LogFormat},
    names,
    options::FailoverAgentOptions,
    outcome::Failure,
    registration::Stage,
    run::RunOptions,
    status::status,
    validate::validate,
};

/// Join this cluster to an Open Cluster Management hub and keep it joined
///
/// The cluster of the current kubeconfig context (the spoke) is registered with a hub. Its identity and its lease are
/// kept alive.
///
/// Exit codes: 0 done, 1 failed or refused, 2 wrong command line or file, 3 denied by the hub's administrator, 4 timed
/// out, 5 hub or spoke unreachable, 6 not authorised, 7 the name is another cluster's, 130 interrupted.
#[derive(Debug, Parser)]
#[command(
    name = "kubectl-klusterlet",
    bin_name = "kubectl klusterlet",
    display_name = "kubectl klusterlet",
    version,
    after_help = "Examples:\n  \
        kubectl klusterlet join --bootstrap-kubeconfig hub.kubeconfig --cluster-name edge-7\n  \
        kubectl klusterlet --context hub accept edge-7\n  \
        kubectl klusterlet status"
)]
pub struct Cli {
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
    /// Shows spoke and hub, checks permissions, creates the ManagedCluster and the certificate request, says who has to
    /// approve it and how, stores the credentials for the hub, then stays as the agent. Run again, it goes on where it was.
    #[command(after_help = "Examples:\n  \
        kubectl klusterlet join --bootstrap-kubeconfig hub.kubeconfig --cluster-name edge-7\n  \
        kubectl klusterlet join --bootstrap-kubeconfig hub.kubeconfig --cluster-name edge-7 --wait=joined --detach --yes\n  \
        kubectl klusterlet join --bootstrap-kubeconfig hub.kubeconfig --cluster-name edge-7 --dry-run")]
    Join(JoinArguments),
    /// Run the agent alone, for a Pod or a service unit
    ///
    /// Asks nothing, logs JSON lines on stderr, serves /healthz, /readyz and /metrics.
    #[command(after_help = "Example:\n  \
        kubectl klusterlet run --bootstrap-kubeconfig /bootstrap/kubeconfig --cluster-name edge-7 --listen 0.0.0.0:8080")]
    Run(RunArguments),
    /// Check options, files, both APIs and permissions, and write nothing
    #[command(after_help = "Example:\n  \
        kubectl klusterlet validate --bootstrap-kubeconfig hub.kubeconfig --cluster-name edge-7")]
    Validate(ValidateArguments),
    /// Show identity, certificate, lease, conditions, and the hub
    #[command(after_help = "Examples:\n  \
        kubectl klusterlet status\n  \
        kubectl klusterlet status -o json")]
    Status(StatusArguments),
    /// Move to another hub as planned (not implemented yet)
    #[command(after_help = "Example:\n  kubectl klusterlet switch --to hub-b")]
    Switch(SwitchArguments),
    /// Approve a cluster's certificate request and accept it, with a context of the hub
    #[command(after_help = "Example:\n  kubectl klusterlet --context hub accept edge-7 --wait=joined")]
    Accept(AcceptArguments),
    /// Take the spoke out of its hub and clean up
    #[command(after_help = "Example:\n  \
        kubectl klusterlet leave")]
    Leave(LeaveArguments),
    /// Print what runs the agent as a Pod of the spoke, with the least rights
    #[command(
        after_help = "Example:\n  kubectl klusterlet deploy --image REGISTRY/klusterlet:TAG --cluster-name edge-7 | kubectl apply -f -"
    )]
    Deploy(DeployArguments),
    /// Print a script that completes this command line
    #[command(after_help = COMPLETION_EXAMPLES)]
    Completion(CompletionArgs),
}

const COMPLETION_EXAMPLES: &str = "Examples:
  # for `kubectl klusterlet <TAB>`, beside kubectl's own completion:
  kubectl klusterlet completion kubectl > /usr/local/bin/kubectl_complete-klusterlet
  chmod +x /usr/local/bin/kubectl_complete-klusterlet
  # for `kubectl-klusterlet <TAB>`:
  source <(kubectl klusterlet completion bash)";

/// How far to wait.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum WaitFor {
    /// The hub's administrator has accepted the cluster
    Accepted,
    /// The agent has its own credentials and has joined
    Joined,
    /// The hub sees the cluster as available
    Available,
}

impl From<WaitFor> for Stage {
    fn from(wait: WaitFor) -> Self {
        match wait {
            WaitFor::Accepted => Self::Accepted,
            WaitFor::Joined => Self::Joined,
            WaitFor::Available => Self::Available,
        }
    }
}

#[derive(Debug, Args)]
struct JoinArguments {
    #[command(flatten)]
    agent: FailoverAgentOptions,
    /// How far to wait
    #[arg(long, value_enum, value_name = "STATE", default_value = "available")]
    wait: WaitFor,
    /// Stop after that, instead of staying as the agent
    #[arg(long)]
    detach: bool,
    /// How long to wait; 0 is no limit
    #[arg(long, value_name = "DURATION", default_value = "10m", value_parser = parse_timeout)]
    timeout: Duration,
    /// Take the name although it seems to be another cluster's
    #[arg(long)]
    force: bool,
    /// Register a hub with itself
    #[arg(long)]
    allow_same_cluster: bool,
    #[command(flatten)]
    dry_run: DryRunFlags,
    #[command(flatten)]
    yes: YesFlags,
}

#[derive(Debug, Args)]
struct RunArguments {
    #[command(flatten)]
    agent: FailoverAgentOptions,
    /// Address of /healthz, /readyz and /metrics; "none" serves none
    #[arg(long, value_name = "ADDRESS:PORT", default_value = "127.0.0.1:8080")]
    listen: String,
    /// Form of the log lines
    #[arg(long, value_enum, value_name = "FORMAT", default_value = "json")]
    log_format: LogForm,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum LogForm {
    /// One object a line
    Json,
    /// For people
    Text,
}

#[derive(Debug, Args)]
struct ValidateArguments {
    #[command(flatten)]
    agent: FailoverAgentOptions,
}

/// Where the agent keeps its things.
#[derive(Debug, Args)]
struct PlaceFlags {
    /// Namespace of the agent and of its Secrets on the spoke
    #[arg(long, value_name = "NAME", default_value = "", hide_default_value = true)]
    component_namespace: String,
    /// Secret that holds the credentials for the hub
    #[arg(long, value_name = "NAME", default_value = names::HUB_KUBECONFIG_SECRET)]
    hub_kubeconfig_secret: String,
    /// Directory that the credentials for the hub are copied to
    #[arg(long, value_name = "DIRECTORY", default_value = names::HUB_KUBECONFIG_DIR)]
    hub_kubeconfig_dir: PathBuf,
}

impl PlaceFlags {
    fn options(&self) -> FailoverAgentOptions {
        FailoverAgentOptions {
            component_namespace: self.component_namespace.clone(),
            hub_kubeconfig_secret: self.hub_kubeconfig_secret.clone(),
            hub_kubeconfig_dir: self.hub_kubeconfig_dir.clone(),
            ..FailoverAgentOptions::new()
        }
    }
}

#[derive(Debug, Args)]
struct StatusArguments {
    #[command(flatten)]
    place: PlaceFlags,
    #[command(flatten)]
    output: OutputFlags,
}

#[derive(Debug, Args)]
struct SwitchArguments {
    /// Name of the hub to move to
    #[arg(long, value_name = "HUB")]
    to: String,
    #[command(flatten)]
    yes: YesFlags,
}

#[derive(Debug, Args)]
struct AcceptArguments {
    /// Name of the cluster on the hub
    #[arg(value_name = "CLUSTER")]
    managed_cluster: String,
    /// User whose requests may be approved, beside those of registration accounts (can be repeated)
    #[arg(long, value_name = "USER")]
    requester: Vec<String>,
    /// Wait until the cluster is so far
    #[arg(long, value_enum, value_name = "STATE", num_args = 0..=1, require_equals = true, default_missing_value = "available")]
    wait: Option<WaitFor>,
    /// How long to wait; 0 is no limit
    #[arg(long, value_name = "DURATION", default_value = "5m", value_parser = parse_timeout)]
    timeout: Duration,
    #[command(flatten)]
    dry_run: DryRunFlags,
    #[command(flatten)]
    yes: YesFlags,
}

#[derive(Debug, Args)]
struct LeaveArguments {
    #[command(flatten)]
    place: PlaceFlags,
    /// Leave although work of the hub is still on the spoke, and keep it there
    #[arg(long)]
    keep_works: bool,
    #[command(flatten)]
    yes: YesFlags,
}

#[derive(Debug, Args)]
struct DeployArguments {
    #[command(flatten)]
    agent: FailoverAgentOptions,
    /// Image that has the static executable at /kubectl-klusterlet
    #[arg(long, value_name = "IMAGE")]
    image: String,
    /// Secret, with the key kubeconfig, that holds the bootstrap kubeconfig
    #[arg(long, value_name = "NAME", default_value = "bootstrap-hub-kubeconfig")]
    bootstrap_secret: String,
    /// Output format; only yaml is there
    #[arg(short = 'o', long, value_enum, value_name = "FORMAT", default_value = "yaml")]
    output: DeployFormat,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum DeployFormat {
    /// YAML
    Yaml,
}

/// `--dry-run=server` would write requests that a signer might see.
fn only_client(dry_run: DryRun) -> Result<bool> {
    match dry_run {
        DryRun::None => Ok(false),
        DryRun::Client => Ok(true),
        DryRun::Server => Err(Error::usage("--dry-run=server is not supported here")
            .hint("use --dry-run=client: it reads both APIs and writes nothing")),
    }
}

impl Cli {
    /// The printer that the flags ask for.
    #[must_use]
    pub fn printer(&self) -> Printer {
        Printer::new(self.console.color)
    }

    /// Runs the command.
    ///
    /// # Errors
    /// With an exit code.
    pub async fn run(self, printer: &Printer) -> Result<(), Failure> {
        let kube = self.kube;
        match self.command {
            Command::Join(arguments) => {
                let how = JoinOptions {
                    wait: arguments.wait.into(),
                    detach: arguments.detach,
                    timeout: arguments.timeout,
                    dry_run: only_client(arguments.dry_run.dry_run)?,
                    yes: arguments.yes.yes,
                    force: arguments.force,
                    allow_same_cluster: arguments.allow_same_cluster,
                };
                join(arguments.agent, &kube, &how, printer).await
            }
            Command::Run(arguments) => {
                let how = RunOptions {
                    listen: listen(&arguments.listen)?,
                };
                let format = match arguments.log_format {
                    LogForm::Json => LogFormat::Json,
                    LogForm::Text => LogFormat::Text,
                };
                Ok(arguments
                    .agent
                    .run(&kube, &how, Log::new(printer.clone(), format))
                    .await?)
            }
            Command::Validate(arguments) => validate(arguments.agent, &kube, printer).await,
            Command::Status(arguments) => {
                let format = arguments.output.output;
                let format = if format == OutputFormat::Wide {
                    OutputFormat::Table
                } else {
                    format
                };
                status(
                    &arguments.place.options(),
                    connect_spoke(&kube)?.cluster,
                    format,
                    printer,
                )
                .await
            }
            Command::Switch(arguments) => {
                let _ = arguments.yes;
                let error = Error::new("kubectl klusterlet switch is not implemented yet").because(format!(
                    "this version joins one hub; nothing was read or changed, and hub {} not looked at",
                    arguments.to
                ));
                Err(error.into())
            }
            Command::Accept(arguments) => {
                let how = AcceptOptions {
                    cluster: arguments.managed_cluster,
                    requesters: arguments.requester,
                    wait: arguments.wait.map(Into::into),
                    timeout: arguments.timeout,
                    yes: arguments.yes.yes,
                    dry_run: only_client(arguments.dry_run.dry_run)?,
                };
                accept(&connect_spoke(&kube)?.cluster, &how, printer).await
            }
            Command::Leave(arguments) => {
                let how = LeaveOptions {
                    yes: arguments.yes.yes,
                    keep_works: arguments.keep_works,
                };
                leave(&arguments.place.options(), connect_spoke(&kube)?.cluster, &how, printer).await
            }
            Command::Completion(arguments) => Ok(printer.data(&arguments.script(Self::command())?)?),
            Command::Deploy(arguments) => {
                let DeployFormat::Yaml = arguments.output;
                let how = DeployOptions {
                    image: arguments.image,
                    bootstrap_secret: arguments.bootstrap_secret,
                };
                Ok(printer.data(&deploy::manifest(&arguments.agent, &how)?)?)
            }
        }
    }
}

fn listen(text: &str) -> Result<Option<SocketAddr>> {
    if text == "none" {
        return Ok(None);
    }
    text.parse().map(Some).map_err(|error| {
        Error::usage(format!("--listen {text:?} is no address"))
            .because(error)
            .hint("write it as 127.0.0.1:8080, or none")
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_command_tree_is_consistent() {
        Cli::command().debug_assert();
    }

    #[test]
    fn the_address_may_be_none() {
        assert_eq!(listen("none").unwrap(), None);
        assert!(listen("127.0.0.1:0").unwrap().is_some());
        assert!(listen("8080").is_err());
    }
}
