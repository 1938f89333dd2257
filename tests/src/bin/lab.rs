//! `cargo lab`: real Kubernetes clusters on this machine, by hand.

use std::{
    fs,
    io::Write,
    path::PathBuf,
    process::{Command, ExitCode},
};

use clap::{Args, Parser, Subcommand};
use tests::{
    Error, Lab, Options, Result, cache,
    error::Context,
    interrupt, lab, packages,
    settings::{Purpose, Settings},
};

/// Real kubeadm clusters on this machine, as root, without systemd, Docker or a registry.
///
/// Nodes are namespaces with a containerd and a kubelet of their own. All is built from pinned Go modules the first time
/// (10 minutes on two cores) and kept in SELFHOST_LAB_CACHE (default ~/.cache/kubectl-selfhost-lab).
#[derive(Debug, Parser)]
#[command(
    name = "cargo lab",
    after_help = "Environment:
  SELFHOST_LAB_NAME    name of the bridge and prefix of all names (shlab0)
  SELFHOST_LAB_SUBNET  first three numbers of the nodes' network (10.78.0)
  SELFHOST_LAB_DIR     files of the running lab (/var/lib/kubectl-selfhost-lab/NAME)
  SELFHOST_LAB_CACHE   what was built
Two labs with different name and subnet can be up side by side."
)]
struct Cli {
    #[command(subcommand)]
    command: Cmd,
}

#[derive(Debug, Subcommand)]
enum Cmd {
    /// Build what the lab is made of
    Build,
    /// Make a fresh cluster of N control-plane nodes
    Up(Up),
    /// Take the cluster down with all that belongs to it; also what a failed `up` left
    Down,
    /// Switch a node off and on
    Reboot { node: u8 },
    /// Switch a node off
    Halt { node: u8 },
    /// Switch a node on
    Start { node: u8 },
    /// Run a command inside a node as root
    Sh {
        node: u8,
        #[arg(trailing_var_arg = true, allow_hyphen_values = true, required = true)]
        command: Vec<String>,
    },
    /// kubectl as administrator
    Kubectl {
        #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
        args: Vec<String>,
    },
    /// Print the path of the administrator's kubeconfig
    Kubeconfig {
        /// The ordinary user's, who has only the rights that the meters need
        #[arg(long)]
        user: bool,
    },
    /// A request every 20 ms, each over a new connection; prints requests, failures and gaps as JSON
    Probe { seconds: f64 },
    /// Clients that keep their connections, half over HTTP/2, half over HTTP/1.1; prints requests and failures as JSON
    Load {
        seconds: f64,
        #[arg(default_value_t = 8)]
        clients: u8,
    },
    /// For how long default/kubernetes has no address, as JSON
    WatchEndpoints { seconds: f64 },
    /// For how long kube-scheduler and kube-controller-manager have no leader, as JSON
    LeaderGaps { seconds: f64 },
}

#[derive(Debug, Args)]
struct Up {
    /// Control-plane nodes
    #[arg(default_value_t = 1)]
    nodes: u8,
    /// Port of the apiservers
    #[arg(long, default_value_t = 6443)]
    port: u16,
    /// YAML file with more fields of kubeadm's ClusterConfiguration, at its top level
    #[arg(long, value_name = "FILE")]
    cluster_configuration: Option<PathBuf>,
    /// A file that all nodes have before kubeadm runs, such as ./policy.yaml=/etc/kubernetes/policy.yaml
    #[arg(long, value_name = "FILE=PATH")]
    file: Vec<String>,
    /// Nodes, Pods and Services have IPv6 addresses, and no others
    #[arg(long)]
    ipv6: bool,
}

fn main() -> ExitCode {
    match run(Cli::parse().command) {
        Ok(code) => code,
        Err(error) => {
            let _ = writeln!(std::io::stderr(), "error: {error}");
            ExitCode::FAILURE
        }
    }
}

fn run(command: Cmd) -> Result<ExitCode> {
    let settings = Settings::from_env(Purpose::Prompt)?;
    let open = || Lab::open(settings.clone());
    match command {
        Cmd::Build => {
            packages::require_root("build the lab")?;
            let built = cache::ensure(&settings)?;
            cache::say(&format!(
                "Kubernetes {} and all else is in {}",
                built.version,
                settings.cache.display()
            ));
        }
        Cmd::Up(up) => {
            let lab = Lab::create(settings.clone(), up.nodes, &options(&up)?)?;
            interrupt::release(&settings);
            cache::say(&format!(
                "up: {} node(s), Kubernetes {}; kubeconfig {}",
                lab.nodes(),
                lab.built().version,
                settings.admin_kubeconfig().display()
            ));
        }
        Cmd::Down => lab::down(&settings)?,
        Cmd::Reboot { node } => open()?.reboot(node)?,
        Cmd::Halt { node } => open()?.halt(node)?,
        Cmd::Start { node } => open()?.start(node)?,
        Cmd::Sh { node, command } => {
            let args: Vec<_> = command.iter().map(String::as_str).collect();
            return become_it(open()?.command(node, &args)?);
        }
        Cmd::Kubectl { args } => {
            let args: Vec<_> = args.iter().map(String::as_str).collect();
            return become_it(open()?.kubectl_command(&args));
        }
        Cmd::Kubeconfig { user } => {
            let lab = open()?;
            let path = if user {
                lab.settings().user_kubeconfig()
            } else {
                lab.settings().admin_kubeconfig()
            };
            writeln!(std::io::stdout(), "{}", path.display()).what(|| "print the path".to_owned())?;
        }
        Cmd::Probe { seconds } => {
            let lab = open()?;
            let servers = lab.servers();
            let mut command = lab.meter_command("probe", &["--seconds", &seconds.to_string()]);
            command.args(servers.iter().flat_map(|s| ["--server", s]));
            return become_it(command);
        }
        Cmd::Load { seconds, clients } => {
            return become_it(open()?.meter_command(
                "load",
                &["--seconds", &seconds.to_string(), "--clients", &clients.to_string()],
            ));
        }
        Cmd::WatchEndpoints { seconds } => {
            return become_it(open()?.meter_command("watch-endpoints", &["--seconds", &seconds.to_string()]));
        }
        Cmd::LeaderGaps { seconds } => {
            return become_it(open()?.meter_command("leader-gaps", &["--seconds", &seconds.to_string()]));
        }
    }
    Ok(ExitCode::SUCCESS)
}

/// Goes on as the other program, so that signals, terminal and exit code are its own.
fn become_it(mut command: Command) -> Result<ExitCode> {
    let error = std::os::unix::process::CommandExt::exec(&mut command);
    Err(Error::new(format!("run {}", command.get_program().display()), error))
}

fn options(up: &Up) -> Result<Options> {
    let read = |path: &PathBuf| fs::read_to_string(path).what(|| format!("read {}", path.display()));
    let mut options = Options {
        port: up.port,
        ipv6: up.ipv6,
        ..Options::default()
    };
    if let Some(path) = &up.cluster_configuration {
        options.cluster_configuration = read(path)?;
    }
    for pair in &up.file {
        let (from, to) = pair.split_once('=').ok_or_else(|| {
            Error::new(format!("--file {pair}"), "this is not FILE=PATH")
                .hint("for example --file policy.yaml=/etc/kubernetes/policy.yaml")
        })?;
        options.files.push((to.to_owned(), read(&PathBuf::from(from))?));
    }
    Ok(options)
}
