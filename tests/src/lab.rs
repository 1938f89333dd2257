//! The harness: a cluster, what can be done with it, and the guard that always takes it down.

use std::{
    env, fs,
    fs::File,
    path::{Path, PathBuf},
    process::Command,
    sync::OnceLock,
    thread,
    time::Duration,
};

use serde::{Deserialize, Serialize};

use crate::{
    cache::{self, Built, say},
    command::{self, Output, tail},
    error::{Context, Error, Result},
    interrupt,
    kubeadm::Secrets,
    lanes::{self, Lane},
    meters::{EndpointsReport, LeadersReport, LoadReport, Meter, ProbeReport},
    network,
    node::Node,
    packages,
    settings::{Purpose, Settings},
};

/// How a cluster differs from kubeadm's defaults.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Options {
    /// Port of the apiservers.
    pub port: u16,
    /// More fields of kubeadm's `ClusterConfiguration` (v1beta4), as YAML at its top level: `apiServer: {extraArgs: ...}`.
    pub cluster_configuration: String,
    /// Files (path inside the node, content) that all nodes have before kubeadm runs, such as an audit policy.
    pub files: Vec<(String, String)>,
    /// Nodes, Pods and Services have IPv6 addresses, and no others.
    #[serde(default)]
    pub ipv6: bool,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            port: 6443,
            cluster_configuration: String::new(),
            files: Vec::new(),
            ipv6: false,
        }
    }
}

/// What is kept about a cluster beside its nodes' files.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct State {
    pub(crate) nodes: u8,
    pub(crate) options: Options,
}

/// A cluster that runs. Dropped, it goes down with all that belongs to it, unless it was only opened or is to be kept.
#[derive(Debug)]
pub struct Lab {
    pub(crate) settings: Settings,
    pub(crate) built: Built,
    pub(crate) nodes: u8,
    pub(crate) options: Options,
    /// Known to the one who made the cluster: others can join it with them.
    pub(crate) secrets: OnceLock<Secrets>,
    guard: Option<Guard>,
}

/// Says that this process owns the lab.
#[derive(Debug)]
struct Guard {
    _file: File,
    _lane: Lane,
}

/// Source of file systems that a test mounts in the place of a node's directories, by which [`down`] knows them.
pub const OWN_FILE_SYSTEM: &str = "selfhost-lab";

/// Most nodes: their addresses follow each other, and memory ends before.
const MOST_NODES: u8 = 9;

impl Lab {
    /// A fresh cluster of `nodes` control-plane nodes for tests, in a lane of its own, or, of several nodes, alone: see
    /// [`lanes`]. A thread that has one already would wait for itself.
    ///
    /// # Errors
    /// Not root, something is missing on the machine, or the cluster does not come up.
    pub fn up(nodes: u8, options: &Options) -> Result<Self> {
        if nodes > 1 {
            return Self::up_alone(nodes, options);
        }
        let lane = lanes::take();
        Self::in_lane(
            Settings::from_env(Purpose::Tests)?.beside(lane.number()),
            nodes,
            options,
            lane,
        )
    }

    /// As [`Lab::up`], and nothing else runs on the machine meanwhile.
    ///
    /// # Errors
    /// As [`Lab::up`].
    pub fn up_alone(nodes: u8, options: &Options) -> Result<Self> {
        Self::guarded(Settings::from_env(Purpose::Tests)?, nodes, options)
    }

    /// As [`Lab::up_alone`], with settings of one's own, such as those of a demo. Other processes wait for their end.
    ///
    /// # Errors
    /// As [`Lab::up`].
    pub fn guarded(settings: Settings, nodes: u8, options: &Options) -> Result<Self> {
        Self::in_lane(settings, nodes, options, lanes::take_all())
    }

    fn in_lane(settings: Settings, nodes: u8, options: &Options, lane: Lane) -> Result<Self> {
        packages::require_root("start a lab")?;
        let lock = settings.state.with_extension("lock");
        let what = || format!("lock {}", lock.display());
        fs::create_dir_all(lock.parent().unwrap_or(&lock)).what(what)?;
        let file = File::create(&lock).what(what)?;
        if file.try_lock().is_err() {
            say(&format!(
                "waiting until another process is done with the lab {}",
                settings.name
            ));
            file.lock().what(what)?;
        }
        interrupt::protect(&settings);
        // What a killed process left.
        down(&settings)?;
        let mut lab = Self::create(settings, nodes, options)?;
        lab.guard = Some(Guard {
            _file: file,
            _lane: lane,
        });
        Ok(lab)
    }

    /// A fresh cluster that stays up when this process ends.
    ///
    /// # Errors
    /// It is up already, or as [`Lab::up`]. What was made so far is taken down again.
    pub fn create(settings: Settings, nodes: u8, options: &Options) -> Result<Self> {
        packages::require_root("start a lab")?;
        if nodes == 0 || nodes > MOST_NODES {
            return Err(Error::new(
                format!("start a lab of {nodes} nodes"),
                format!("from 1 to {MOST_NODES} are possible"),
            ));
        }
        if !Node::all(&settings).is_empty() {
            return Err(Error::new(format!("start the lab {}", settings.name), format!("it is up, or left over, in {}", settings.state.display()))
                .hint("take it down first: cargo lab down; or have a second one beside it with SELFHOST_LAB_NAME and SELFHOST_LAB_SUBNET"));
        }
        let settings = Settings {
            ipv6: options.ipv6,
            ..settings
        };
        let built = cache::ensure(&settings)?;
        interrupt::protect(&settings);
        let mut lab = Self {
            settings,
            built,
            nodes,
            options: options.clone(),
            secrets: OnceLock::new(),
            guard: None,
        };
        if let Err(error) = lab.build_cluster() {
            lab.describe();
            let clean = down(&lab.settings);
            interrupt::release(&lab.settings);
            return Err(match clean {
                Ok(()) => error,
                Err(e) => Error::new(error.what, format!("{}\nand the clean-up failed: {e}", error.why)),
            });
        }
        lab.nodes = nodes;
        Ok(lab)
    }

    /// Leaves the cluster up when this value is dropped.
    pub fn keep(mut self) {
        interrupt::release(&self.settings);
        self.guard = None;
    }

    /// The cluster that is up. Dropping the value leaves it up.
    ///
    /// # Errors
    /// None is up, or not root.
    pub fn open(settings: Settings) -> Result<Self> {
        packages::require_root("use a lab")?;
        let file = settings.state.join("lab.json");
        let text = fs::read_to_string(&file).map_err(|e| {
            Error::new(
                format!("use the lab {}", settings.name),
                format!("no cluster is up: {}: {e}", file.display()),
            )
            .hint("make one: cargo lab up")
        })?;
        let State { nodes, options } = serde_json::from_str(&text).what(|| format!("read {}", file.display()))?;
        let settings = Settings {
            ipv6: options.ipv6,
            ..settings
        };
        let built = cache::ensure(&settings)?;
        Ok(Self {
            settings,
            built,
            nodes,
            options,
            secrets: OnceLock::new(),
            guard: None,
        })
    }

    /// Where the lab lives.
    #[must_use]
    pub fn settings(&self) -> &Settings {
        &self.settings
    }

    /// What it is made of.
    #[must_use]
    pub fn built(&self) -> &Built {
        &self.built
    }

    /// How many nodes it has.
    #[must_use]
    pub fn nodes(&self) -> u8 {
        self.nodes
    }

    /// `https://ADDRESS:PORT` of every apiserver.
    #[must_use]
    pub fn servers(&self) -> Vec<String> {
        (1..=self.nodes)
            .map(|n| format!("https://{}:{}", self.settings.host(n), self.options.port))
            .collect()
    }

    pub(crate) fn node(&self, number: u8) -> Result<Node<'_>> {
        if number == 0 || number > self.nodes {
            return Err(Error::new(
                format!("use node {number}"),
                format!("the lab has the nodes 1 to {}", self.nodes),
            ));
        }
        Ok(Node::new(&self.settings, number))
    }

    /// Where a file of a node's private directories lies on the machine.
    ///
    /// # Errors
    /// No such node, or the path is in none of its private directories.
    pub fn file(&self, number: u8, path: impl AsRef<Path>) -> Result<PathBuf> {
        self.node(number)?.file(path)
    }

    /// A command that runs inside a node as root, for callers that want its input and output for themselves.
    ///
    /// # Errors
    /// No such node, or it is switched off.
    pub fn command(&self, number: u8, args: &[&str]) -> Result<Command> {
        self.node(number)?.command(&self.built, args)
    }

    /// Runs a command inside a node as root to its end, for at most 10 minutes. A command that fails is no error.
    ///
    /// # Errors
    /// No such node, it is switched off, or the command does not end in time.
    pub fn sh(&self, number: u8, args: &[&str]) -> Result<Output> {
        self.node(number)?.run(&self.built, args, Duration::from_secs(600))
    }

    /// `kubectl` as administrator, not started yet.
    #[must_use]
    pub fn kubectl_command(&self, args: &[&str]) -> Command {
        let mut command = Command::new(self.built.kubernetes.join("kubectl"));
        command
            .arg("--kubeconfig")
            .arg(self.settings.admin_kubeconfig())
            .args(args);
        command
    }

    /// Runs `kubectl` as administrator to its end, for at most 5 minutes. A command that fails is no error.
    ///
    /// # Errors
    /// It cannot be started or does not end in time.
    pub fn kubectl(&self, args: &[&str]) -> Result<Output> {
        command::run(
            &mut self.kubectl_command(args),
            &format!("kubectl {}", args.join(" ")),
            Duration::from_secs(300),
        )
    }

    /// Runs the plugin inside a node as root, as an administrator does who has logged in there.
    ///
    /// # Errors
    /// The binary cannot be copied, or as [`Lab::sh`]. A plugin that fails is no error.
    pub fn selfhost(&self, number: u8, binary: &Path, args: &[&str]) -> Result<Output> {
        let path = self.install_selfhost(number, binary)?;
        self.sh(number, &[&[path.as_str()], args].concat())
    }

    /// Puts the plugin onto a node, where it differs from what is there, and returns its path inside the node.
    ///
    /// # Errors
    /// No such node, or the binary cannot be copied.
    pub fn install_selfhost(&self, number: u8, binary: &Path) -> Result<String> {
        let path = "/opt/selfhost/cli/kubectl-selfhost";
        let to = self.file(number, path)?;
        let what = || format!("copy {} to {}", binary.display(), to.display());
        let new = fs::read(binary).what(what)?;
        if fs::read(&to).ok().as_ref() != Some(&new) {
            // Beside it and renamed: the old one may be running, and cannot be written then.
            let beside = to.with_extension("new");
            fs::create_dir_all(to.parent().unwrap_or(&to)).what(what)?;
            fs::copy(binary, &beside).what(what)?;
            fs::rename(&beside, &to).what(what)?;
        }
        Ok(path.to_owned())
    }

    /// PIDs, on the machine, of the processes of a node whose program has this name, such as `kube-apiserver`. Not those in
    /// Pods with a network of their own.
    ///
    /// # Errors
    /// No such node.
    pub fn pids(&self, number: u8, program: &str) -> Result<Vec<i32>> {
        self.node(number)?;
        let all = network::inode(&self.settings, number)
            .map(network::processes)
            .unwrap_or_default();
        let runs = |pid: &i32| {
            let line = fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
            let first = line.split(|b| *b == 0).next().unwrap_or_default();
            Path::new(&*String::from_utf8_lossy(first))
                .file_name()
                .is_some_and(|name| name == program)
        };
        Ok(all.into_iter().filter(runs).collect())
    }

    /// Kills the processes of a node whose program has this name, by SIGKILL.
    ///
    /// # Errors
    /// No such node, or no such process.
    pub fn kill(&self, number: u8, program: &str) -> Result<()> {
        let what = || format!("kill {program} on node {number}");
        let pids = self.pids(number, program)?;
        if pids.is_empty() {
            return Err(Error::new(what(), "it does not run"));
        }
        for pid in pids.into_iter().filter_map(rustix::process::Pid::from_raw) {
            rustix::process::kill_process(pid, rustix::process::Signal::KILL).what(what)?;
        }
        Ok(())
    }

    /// Power off.
    ///
    /// # Errors
    /// No such node, or its processes do not end.
    pub fn halt(&self, number: u8) -> Result<()> {
        self.node(number)?.halt()
    }

    /// Power on.
    ///
    /// # Errors
    /// No such node, it runs, or cannot be started.
    pub fn start(&self, number: u8) -> Result<()> {
        self.node(number)?.start(&self.built)
    }

    /// Power off and on at once.
    ///
    /// # Errors
    /// As [`Lab::halt`] and [`Lab::start`].
    pub fn reboot(&self, number: u8) -> Result<()> {
        self.halt(number)?;
        self.start(number)
    }

    /// `labtool` with a meter, as the ordinary user, not started yet.
    #[must_use]
    pub fn meter_command(&self, name: &str, args: &[&str]) -> Command {
        let mut command = Command::new(&self.built.labtool);
        command
            .arg(name)
            .arg("--kubeconfig")
            .arg(self.settings.user_kubeconfig())
            .args(args);
        command
    }

    /// Starts to send a request every 20 ms over new connections, to all apiservers in turn.
    ///
    /// # Errors
    /// It cannot be started.
    pub fn probe(&self) -> Result<Meter<ProbeReport>> {
        let servers = self.servers();
        let args: Vec<_> = servers.iter().flat_map(|s| ["--server", s]).collect();
        Meter::start("probe", self.meter_command("probe", &args))
    }

    /// As [`Lab::probe`], as a client that knows all addresses: what one apiserver does not answer as it should, the next one
    /// is asked.
    ///
    /// # Errors
    /// It cannot be started.
    pub fn probe_with_failover(&self) -> Result<Meter<ProbeReport>> {
        let servers = self.servers();
        let mut args: Vec<_> = servers.iter().flat_map(|s| ["--server", s]).collect();
        args.push("--failover");
        Meter::start("probe", self.meter_command("probe", &args))
    }

    /// Starts clients that keep their connections, half of them over HTTP/2 and half over HTTP/1.1, and watches.
    ///
    /// # Errors
    /// It cannot be started.
    pub fn load(&self, clients: u8) -> Result<Meter<LoadReport>> {
        Meter::start("load", self.meter_command("load", &["--clients", &clients.to_string()]))
    }

    /// As [`Lab::load`], at the apiserver of one node.
    ///
    /// # Errors
    /// It cannot be started.
    pub fn load_at(&self, number: u8, clients: u8) -> Result<Meter<LoadReport>> {
        let own = self.settings.user_kubeconfig();
        let what = || format!("read {}", own.display());
        let text = fs::read_to_string(&own).what(what)?;
        let servers = self.servers();
        let server = servers.get(usize::from(number) - 1).cloned().unwrap_or_default();
        let path = own.with_file_name(format!("user-{number}.conf"));
        let first = servers.first().cloned().unwrap_or_default();
        fs::write(&path, text.replace(&first, &server)).what(|| format!("write {}", path.display()))?;
        let mut command = Command::new(&self.built.labtool);
        command
            .args(["load", "--clients", &clients.to_string(), "--kubeconfig"])
            .arg(path);
        Meter::start("load", command)
    }

    /// Runs the plugin on this machine, which is none of the nodes, as an administrator does at a workstation.
    ///
    /// # Errors
    /// It cannot be started or does not end within 10 minutes. A plugin that fails is no error.
    pub fn selfhost_from_here(&self, binary: &Path, args: &[&str]) -> Result<Output> {
        command::run(
            &mut self.selfhost_from_here_command(binary, args),
            &format!("kubectl selfhost {}", args.join(" ")),
            Duration::from_secs(600),
        )
    }

    /// As [`Lab::selfhost_from_here`], not started yet.
    #[must_use]
    pub fn selfhost_from_here_command(&self, binary: &Path, args: &[&str]) -> Command {
        let mut command = Command::new(binary);
        command.env("KUBECONFIG", self.settings.admin_kubeconfig()).args(args);
        command
    }

    /// Starts to watch the addresses of `default/kubernetes`.
    ///
    /// # Errors
    /// It cannot be started.
    pub fn watch_endpoints(&self) -> Result<Meter<EndpointsReport>> {
        Meter::start("watch-endpoints", self.meter_command("watch-endpoints", &[]))
    }

    /// Starts to watch the Leases of kube-scheduler and kube-controller-manager.
    ///
    /// # Errors
    /// It cannot be started.
    pub fn watch_leaders(&self) -> Result<Meter<LeadersReport>> {
        Meter::start("leader-gaps", self.meter_command("leader-gaps", &[]))
    }

    /// Writes what helps to understand a failure to standard error.
    pub fn describe(&self) {
        if self.settings.admin_kubeconfig().exists()
            && let Ok(o) = self.kubectl(&["get", "pods", "-A", "-o", "wide", "--request-timeout=3s"])
        {
            say(&format!("Pods:\n{}{}", o.stdout, o.stderr));
        }
        for number in Node::all(&self.settings) {
            for log in ["init.log", "kubeadm.log", "containerd.log", "kubelet.log"] {
                let path = Node::new(&self.settings, number).directory().join(log);
                if let Ok(text) = fs::read_to_string(&path) {
                    say(&format!("end of {}:\n{}", path.display(), tail(&text, 15)));
                }
            }
        }
    }
}

impl Drop for Lab {
    fn drop(&mut self) {
        if self.guard.is_none() {
            return;
        }
        if thread::panicking() {
            self.describe();
        }
        if env::var_os("SELFHOST_TEST_LAB_KEEP").is_some_and(|v| !v.is_empty()) {
            say(&format!(
                "kept for a look: export SELFHOST_LAB_NAME={} SELFHOST_LAB_SUBNET={} SELFHOST_LAB_DIR={}; cargo lab kubectl get pods -A; cargo lab down",
                self.settings.name,
                self.settings.subnet,
                self.settings.state.display()
            ));
        } else if let Err(error) = down(&self.settings) {
            say(&format!("error: {error}"));
        }
        interrupt::release(&self.settings);
    }
}

/// Takes down whatever there is of a lab: processes, mounts, network, cgroups, files. Nothing is fine too.
///
/// # Errors
/// Not root, or something cannot be removed.
pub fn down(settings: &Settings) -> Result<()> {
    packages::require_root("take a lab down")?;
    for number in Node::all(settings) {
        Node::new(settings, number).halt()?;
    }
    for number in Node::all(settings) {
        Node::new(settings, number).forget_etcd()?;
    }
    network::remove(settings)?;
    for mount in mounts(&settings.state, Some(OWN_FILE_SYSTEM)) {
        command::must("umount", &[&mount])?;
    }
    if let Some(mount) = mounts_below(&settings.state).first() {
        return Err(Error::new(
            format!("remove {}", settings.state.display()),
            format!("{mount} is still mounted"),
        )
        .hint("find out who mounted it, and unmount it (umount), then try again"));
    }
    match fs::remove_dir_all(&settings.state) {
        Err(e) if e.kind() != std::io::ErrorKind::NotFound => {
            Err(e).what(|| format!("remove {}", settings.state.display()))
        }
        _ => Ok(()),
    }
}

/// Mount points below a directory, in this process's view.
#[must_use]
pub fn mounts_below(directory: &Path) -> Vec<String> {
    mounts(directory, None)
}

/// As [`mounts_below`], of that source alone where one is given: see mountinfo in proc(5).
fn mounts(directory: &Path, source: Option<&str>) -> Vec<String> {
    let table = fs::read_to_string("/proc/self/mountinfo").unwrap_or_default();
    let found = table.lines().filter_map(|line| {
        let (point, behind) = (line.split(' ').nth(4)?, line.split_once(" - ")?.1);
        let is_it = source.is_none_or(|source| behind.split(' ').nth(1) == Some(source));
        (is_it && Path::new(point).starts_with(directory)).then(|| point.to_owned())
    });
    found.collect()
}
