//! `kubectl selfhost node`: hidden, as people do not run it; Pods do.

use super::reach::component;
use crate::certs_in_secrets;
use crate::install::{self, NodeBinary};
use crate::local_node::{self, LocalNode};
use crate::names::Component;
use crate::node::await_port::{self, AwaitPort, describe, hold};
use crate::node::guard::{self, GuardOptions};
use crate::node::phase::{self, Ready};
use crate::node::ports::{self, kernel_has_ipv6, listen_address};
use crate::node::probe::{self, Probe};
use crate::node::process::Processes;
use crate::node::steering::Listener;
use crate::node::steering::Steering;
use crate::node::trial;
use crate::survey::{self, Installation};
use clap::{Args, Subcommand, ValueEnum};
use shared::kube_client::parse_duration;
use shared::{Context, Error, Printer, Result};
use std::io::{self, Write};
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// Run what nodes run.
#[derive(Debug, Subcommand)]
pub enum NodeCommand {
    /// Guard this node: hand over, fall back, report
    Guard(GuardArgs),
    /// Wait until the component of this Pod may start, then steer its port
    AwaitPort(AwaitPortArgs),
    /// Ask the component of this container for its health, and prove that it is itself that answers
    Probe(ProbeArgs),
    /// Wait, before this container is told to stop, for its successor's next reconciliation
    PreStop(PreStopArgs),
    /// Show what a conversion needs to know of this node, as JSON
    Survey,
    /// Show what lies at these paths of the node, files with their content, as JSON
    ReadFiles(ReadFilesArgs),
    /// Install executable, state directory and guard on this node
    Install(InstallArgs),
    /// Take the guard's manifest out
    RemoveGuard,
    /// Remove everything that was installed, once the guard is gone; prints whether it was
    RemoveFiles,
    /// Make the listening socket of a running process share its port
    Share(ShareArgs),
    /// Steer new connections among the listeners of a port
    Steer(SteerArgs),
    /// Try whether ports can be shared and steered here
    Trial,
    /// The listener of the trial
    #[command(hide = true)]
    TrialListener,
    /// A process that does what a broken component does, for tests
    #[command(hide = true)]
    Misbehave(MisbehaveArgs),
}

/// See [`NodeCommand::Guard`].
#[derive(Debug, Args)]
pub struct GuardArgs {
    /// Name of this Node
    #[arg(long)]
    node_name: String,
    /// The kubelet's manifest directory
    #[arg(long, default_value = "/etc/kubernetes/manifests")]
    manifest_directory: PathBuf,
    /// The kubelet's kubeconfig
    #[arg(long, default_value = "/etc/kubernetes/kubelet.conf")]
    kubeconfig: PathBuf,
    /// Where originals, fallbacks and verdicts lie
    #[arg(long, default_value = crate::names::STATE_DIR)]
    state_directory: PathBuf,
    /// Build of this executable
    #[arg(long, default_value = "")]
    build: String,
    /// How long a template runs well before the fallback is made of it
    #[arg(long, value_name = "DURATION", value_parser = parse_duration)]
    last_known_good_after: Option<Duration>,
}

/// See [`NodeCommand::AwaitPort`].
#[derive(Debug, Args)]
pub struct AwaitPortArgs {
    /// Component of this Pod
    #[arg(long, value_parser = component)]
    component: Component,
    /// Its secure port
    #[arg(long)]
    port: u16,
    /// Its --bind-address
    #[arg(long)]
    bind_address: Option<IpAddr>,
    /// File with the guard's word
    #[arg(long)]
    verdict: PathBuf,
    /// Wait for a free port instead of a shared one
    #[arg(long)]
    no_steer: bool,
}

/// See [`NodeCommand::Probe`].
#[derive(Debug, Args)]
pub struct ProbeArgs {
    /// Component of this container
    #[arg(long, value_parser = component)]
    component: Component,
    /// Its secure port
    #[arg(long)]
    port: u16,
    /// Path of the request
    #[arg(long, default_value = "/readyz")]
    path: String,
    /// Address to ask
    #[arg(long, default_value_t = IpAddr::V4(Ipv4Addr::LOCALHOST))]
    address: IpAddr,
    /// Process that must have answered (default: process 1, and the component's by name)
    #[arg(long)]
    pid: Vec<u32>,
    /// Leave the port's steering alone
    #[arg(long)]
    no_steer: bool,
    /// Directory in which the component's Pods on this node leave notes for each other
    #[arg(long)]
    notes: Option<PathBuf>,
    /// Longest time in seconds; it is asked again and again until then
    #[arg(long, default_value_t = 10)]
    timeout: u64,
}

/// See [`NodeCommand::PreStop`].
#[derive(Debug, Args)]
pub struct PreStopArgs {
    /// Directory in which the component's Pods on this node leave notes for each other
    #[arg(long)]
    notes: PathBuf,
}

/// See [`NodeCommand::Install`].
#[derive(Debug, Args)]
pub struct InstallArgs {
    /// Name of this Node
    #[arg(long)]
    node_name: String,
    /// Image of the guard, which must be on this node
    #[arg(long)]
    image: String,
    /// How long a template runs well before the fallback is made of it
    #[arg(long, value_name = "DURATION", value_parser = parse_duration)]
    last_known_good_after: Option<Duration>,
}

/// See [`NodeCommand::ReadFiles`].
#[derive(Debug, Args)]
pub struct ReadFilesArgs {
    /// Absolute paths
    #[arg(required = true)]
    paths: Vec<String>,
}

/// See [`NodeCommand::Share`].
#[derive(Debug, Args)]
pub struct ShareArgs {
    /// Process that listens
    #[arg(long)]
    pid: u32,
    /// Port
    #[arg(long)]
    port: u16,
}

/// See [`NodeCommand::Steer`].
#[derive(Debug, Args)]
pub struct SteerArgs {
    /// Component that listens there
    #[arg(long, value_parser = component)]
    component: Component,
    /// Port
    #[arg(long)]
    port: u16,
    /// To whom new connections go
    #[arg(long, value_enum)]
    to: SteerTo,
}

/// Whom new connections meet.
#[derive(Clone, Copy, Debug, ValueEnum)]
pub enum SteerTo {
    /// The oldest listener, but for probes and the starting process itself
    Oldest,
    /// The newest listener
    Newest,
}

/// See [`NodeCommand::Misbehave`].
#[derive(Debug, Args)]
pub struct MisbehaveArgs {
    /// Port to listen on without ever answering; without it, nothing is bound
    #[arg(long)]
    port: Option<u16>,
    /// Address to listen on
    #[arg(long)]
    bind_address: Option<IpAddr>,
}

/// Runs a node command.
///
/// # Errors
/// What could not be done on this node.
pub async fn run(command: NodeCommand, printer: &Printer) -> Result<()> {
    match command {
        NodeCommand::Guard(args) => run_guard(args).await,
        NodeCommand::AwaitPort(args) => run_await_port(&args).await,
        NodeCommand::Probe(args) => run_probe(&args),
        NodeCommand::PreStop(args) => {
            let own = Processes::new(Path::new("/proc")).started(1).unwrap_or(u64::MAX);
            std::thread::sleep(phase::pause(
                phase::read(&phase::note_path(&args.notes)),
                own,
                phase::now_ms(),
            ));
            Ok(())
        }
        NodeCommand::ReadFiles(args) => {
            let found = |path: &String| (path.clone(), certs_in_secrets::read_local(path));
            print_json(
                &args.paths.iter().map(found).collect::<certs_in_secrets::NodeFiles>(),
                printer,
            )
        }
        NodeCommand::Survey => print_json(&survey::survey(&this_node()?)?, printer),
        NodeCommand::Install(args) => {
            let installation = Installation {
                node_name: args.node_name,
                image: args.image,
                last_known_good_after: args.last_known_good_after,
            };
            let binary = NodeBinary::of_this_process()?;
            print_json(&survey::install(&this_node()?, &binary, &installation)?, printer)
        }
        NodeCommand::RemoveGuard => install::remove_guard(&this_node()?),
        NodeCommand::RemoveFiles => {
            let gone = !survey::guard_runs();
            if gone {
                install::remove_files()?;
            }
            print_json(&gone, printer)
        }
        NodeCommand::Share(args) => {
            let sockets = ports::share(args.pid, args.port).map_err(|error| {
                Error::new(format!("port {} cannot be shared", args.port)).because(describe(&error))
            })?;
            printer.data(&format!(
                "{sockets} listening socket(s) of process {} share port {} now\n",
                args.pid, args.port
            ))
        }
        NodeCommand::Steer(args) => {
            let groups = ports::steer(args.port, |listener| match args.to {
                SteerTo::Oldest => hold(args.component, listener.address),
                SteerTo::Newest => Steering::Switch,
            })
            .map_err(|error| Error::new(format!("port {} cannot be steered", args.port)).because(describe(&error)))?;
            printer.data(&format!(
                "{groups} group(s) of listeners on port {} are steered now\n",
                args.port
            ))
        }
        NodeCommand::Trial => {
            trial::run().map_err(|why| {
                Error::new("ports cannot be shared and steered here")
                    .because(why)
                    .hint("`convert --mode gap` hands over with one short gap instead")
            })?;
            printer.data("ports can be shared and steered here\n")
        }
        NodeCommand::TrialListener => {
            trial::listener(&mut io::stdin().lock(), &mut io::stdout().lock()).context("the trial's listener failed")
        }
        NodeCommand::Misbehave(args) => misbehave(&args),
    }
}

fn this_node() -> Result<LocalNode> {
    local_node::find()?.ok_or_else(|| {
        Error::refused("no kubelet was found on this machine")
            .because("none runs in this process's PID namespace, or this process is not root")
            .hint("run it as root on a node, while its kubelet runs")
    })
}

fn print_json(value: &impl serde::Serialize, printer: &Printer) -> Result<()> {
    let text = serde_json::to_string(value).context("the result cannot be written as JSON")?;
    printer.data(&format!("{text}\n"))
}

async fn run_guard(args: GuardArgs) -> Result<()> {
    let options = GuardOptions {
        node_name: args.node_name,
        manifest_directory: args.manifest_directory,
        kubeconfig: args.kubeconfig,
        state_directory: args.state_directory,
        build: args.build,
        last_known_good_after: args.last_known_good_after.unwrap_or(guard::soak::USUAL),
    };
    guard::run(options, terminated())
        .await
        .context("the guard cannot go on")
}

/// Until this process is told to stop. In a container it is process 1, which a signal without a handler does not end.
async fn terminated() {
    use tokio::signal::unix::{SignalKind, signal};
    let next = async |kind| match signal(kind) {
        Ok(mut signals) => {
            signals.recv().await;
        }
        Err(_) => std::future::pending().await,
    };
    tokio::select! {
        () = next(SignalKind::terminate()) => {}
        () = next(SignalKind::interrupt()) => {}
    }
}

async fn run_await_port(args: &AwaitPortArgs) -> Result<()> {
    let what = AwaitPort {
        component: args.component,
        address: listen_address(args.bind_address, args.port, kernel_has_ipv6()),
        verdict: args.verdict.clone(),
        steer: !args.no_steer,
    };
    let mut out = io::stdout();
    tokio::select! {
        biased;
        // an error, so that the component does not start after all
        () = terminated() => Err(Error::interrupted(format!("told to stop before {} might start", what.component))),
        result = await_port::run(&what, &mut out) => {
            result.with_context(|| format!("{} cannot be started on {}", what.component, what.address))
        }
    }
}

/// How often a process that is not healthy yet is asked again within one run.
const PROBE_INTERVAL: Duration = Duration::from_millis(50);

fn run_probe(args: &ProbeArgs) -> Result<()> {
    let deadline = Instant::now() + Duration::from_secs(args.timeout);
    let unhealthy = |why: String| Error::new(format!("{} is not healthy", args.component)).because(why);
    let mut held = args.no_steer;
    loop {
        let left = deadline.saturating_duration_since(Instant::now());
        let outcome = probe_once(args, left.min(Duration::from_secs(3)))?;
        let at_ms = phase::now_ms();
        match outcome {
            Ok(()) => {
                if !args.no_steer {
                    // everything goes to the proven one, so that the old one can go without losing what it has accepted
                    ports::steer(args.port, |_| Steering::Switch).map_err(|error| unhealthy(describe(&error)))?;
                }
                note_ready(args, at_ms);
                return Ok(());
            }
            // A container that starts again, in a Pod whose init container ran long ago, must not be met before it has
            // proved itself. Only before it listens: later the oldest listener, to which everything would go, may be this
            // very process, when the good one has started again since. A port that cannot be steered is told when it
            // matters: at the switch.
            Err(probe::ProbeError::NotListening(_)) if !held => {
                held = ports::steer(args.port, |listener| hold(args.component, listener.address)).is_ok();
            }
            Err(error) if left <= PROBE_INTERVAL => return Err(unhealthy(describe(&error))),
            Err(_) => {}
        }
        std::thread::sleep(PROBE_INTERVAL);
    }
}

fn probe_once(args: &ProbeArgs, timeout: Duration) -> Result<std::result::Result<(), probe::ProbeError>> {
    let mut pids = args.pid.clone();
    if pids.is_empty() {
        pids.push(1);
        let processes = Processes::new(Path::new("/proc"));
        let ids = processes.ids().context("/proc cannot be listed")?;
        pids.extend(
            ids.into_iter()
                .filter(|pid| processes.component(*pid) == Some(args.component)),
        );
    }
    let address = SocketAddr::new(args.address, args.port);
    Ok(probe::run(&Probe {
        address,
        path: args.path.clone(),
        pids,
        listener: Listener::Newest,
        timeout: timeout.max(PROBE_INTERVAL),
    }))
}

/// Leaves a note for the one that will be replaced. Without it the old one does not wait, and the Service
/// default/kubernetes is without address for a few seconds: no reason to fail.
fn note_ready(args: &ProbeArgs, at_ms: u64) {
    let Some(notes) = &args.notes else { return };
    let Some(started) = Processes::new(Path::new("/proc")).started(1) else {
        return;
    };
    if let Ok(bytes) = serde_json::to_vec(&Ready { started, at_ms }) {
        let _ = guard::files::write(&phase::note_path(notes), &bytes, guard::files::Attributes::mode(0o644));
    }
}

fn misbehave(args: &MisbehaveArgs) -> Result<()> {
    let _listener = match args.port {
        None => None,
        Some(port) => Some(
            ports::listen_shared(listen_address(args.bind_address, port, kernel_has_ipv6()))
                .with_context(|| format!("port {port} cannot be listened on"))?,
        ),
    };
    writeln!(io::stdout(), "misbehaving on purpose").context("standard output is closed")?;
    loop {
        std::thread::sleep(Duration::from_secs(3600));
    }
}
