//! One node: its files, its namespaces, power on and off.

use std::{
    fs,
    path::{Path, PathBuf},
    process::{Command, Stdio},
    thread,
    time::Duration,
};

use rustix::process::{Pid, Signal, kill_process};

use crate::{
    cache::Built,
    command::{self, Output, must, tail, wait_for},
    error::{Context, Error, Result},
    interrupt, kubeadm,
    lab::mounts_below,
    network,
    packages::SYSTEM_PATH,
    settings::Settings,
};

/// One node of a lab, up or down.
#[derive(Clone, Debug)]
pub struct Node<'a> {
    settings: &'a Settings,
    number: u8,
}

impl<'a> Node<'a> {
    /// Node `number`, which counts from 1.
    #[must_use]
    pub fn new(settings: &'a Settings, number: u8) -> Self {
        Self { settings, number }
    }

    /// Numbers of the nodes that have files in the lab's state.
    #[must_use]
    pub fn all(settings: &Settings) -> Vec<u8> {
        let entries = fs::read_dir(&settings.state).into_iter().flatten().flatten();
        let mut numbers: Vec<u8> = entries
            .filter_map(|e| e.file_name().to_str()?.strip_prefix("node")?.parse().ok())
            .collect();
        numbers.sort_unstable();
        numbers
    }

    /// Directory of everything about the node.
    #[must_use]
    pub fn directory(&self) -> PathBuf {
        self.settings.state.join(kubeadm::node_name(self.number))
    }

    /// Where a file of the node's private directories lies on the machine.
    ///
    /// # Errors
    /// The path is in none of the private directories: the node shares it with the machine.
    pub fn file(&self, path: impl AsRef<Path>) -> Result<PathBuf> {
        let path = path.as_ref();
        let private = kubeadm::PRIVATE.iter().chain(&kubeadm::PRIVATE_FILES);
        if private.into_iter().any(|p| path.starts_with(p)) {
            return Ok(self
                .directory()
                .join("files")
                .join(path.strip_prefix("/").unwrap_or(path)));
        }
        Err(Error::new(
            format!("find {} of node {}", path.display(), self.number),
            "nodes share it with the machine",
        )
        .hint(format!(
            "the directories of which a node has its own: {}",
            kubeadm::PRIVATE.join(" ")
        )))
    }

    /// PID of the node's first process, where it runs. A PID that was given out again does not count.
    #[must_use]
    pub fn pid(&self) -> Option<i32> {
        let recorded = fs::read_to_string(self.directory().join("pid")).ok()?;
        let (pid, start) = recorded.trim().split_once(' ')?;
        (start_time(pid)? == start).then(|| pid.parse().ok())?
    }

    /// Switches the node on: namespaces, containerd, images, and the kubelet once it is configured.
    ///
    /// # Errors
    /// It runs already, or something cannot be made.
    pub fn start(&self, built: &Built) -> Result<()> {
        interrupt::stop_here_when_interrupted();
        if self.pid().is_some() {
            return Err(Error::new(format!("start node {}", self.number), "it runs already"));
        }
        let what = || format!("start node {}", self.number);
        let directory = self.directory();
        fs::create_dir_all(&directory).what(what)?;
        network::ensure(self.settings, self.number)?;
        for path in kubeadm::PRIVATE {
            fs::create_dir_all(path).what(what)?;
            fs::create_dir_all(self.file(path)?).what(what)?;
        }
        self.keep_etcd_in_memory()?;
        for path in kubeadm::PRIVATE_FILES {
            let own = self.file(path)?;
            if !own.exists() {
                fs::create_dir_all(own.parent().unwrap_or(&own)).what(what)?;
                fs::copy(path, &own).what(what)?;
            }
        }
        self.configure(built).what(what)?;
        let log = fs::File::create(directory.join("init.log")).what(what)?;
        let namespace = format!("/run/netns/{}", network::namespace(self.settings, self.number));
        // `--fork` of setsid: the node outlives this process, its terminal, and its process group.
        let status = Command::new("setsid")
            .args([
                "--fork",
                "nsenter",
                &format!("--net={namespace}"),
                "unshare",
                "--mount",
                "--uts",
                "--pid",
                "--fork",
            ])
            .arg(&built.labtool)
            .arg("init")
            .arg(directory.join("node.json"))
            .current_dir("/")
            .env_clear()
            .envs(environment(built))
            .stdin(Stdio::null())
            .stdout(log.try_clone().what(what)?)
            .stderr(log)
            .status()
            .what(what)?;
        if !status.success() {
            return Err(Error::new(what(), format!("setsid failed: {status}")));
        }
        let said = || tail(&fs::read_to_string(directory.join("init.log")).unwrap_or_default(), 5);
        wait_for(
            &format!("the first process of node {}", self.number),
            Duration::from_secs(10),
            Duration::from_millis(20),
            || Ok(self.pid().ok_or_else(said)),
        )?;
        self.load_images(built)
    }

    /// etcd waits for the disk at each write, and a machine that builds and tests at the same time makes it wait for seconds:
    /// that would be counted as failed requests. What is in memory outlives a power cut of the node.
    fn keep_etcd_in_memory(&self) -> Result<()> {
        let directory = self.file(ETCD)?;
        let path = directory.display().to_string();
        if mounts_below(&directory).is_empty() {
            must("mount", &["-t", "tmpfs", "-o", "size=2g,mode=0700", "etcd", &path])?;
        }
        Ok(())
    }

    /// Takes away what [`Node::start`] has mounted on this machine.
    ///
    /// # Errors
    /// It cannot be unmounted.
    pub fn forget_etcd(&self) -> Result<()> {
        let directory = self.file(ETCD)?;
        for mount in mounts_below(&directory) {
            must("umount", &[&mount])?;
        }
        Ok(())
    }

    fn configure(&self, built: &Built) -> Result<()> {
        let write = |path: PathBuf, text: &str| {
            fs::create_dir_all(path.parent().unwrap_or(&path))
                .and_then(|()| fs::write(&path, text))
                .what(|| format!("write {}", path.display()))
        };
        write(
            self.directory().join("node.json"),
            &kubeadm::node_description(self.settings, built, self.number).to_string(),
        )?;
        write(
            self.file("/etc/containerd/config.toml")?,
            &kubeadm::containerd_configuration(),
        )?;
        write(
            self.file("/etc/cni/net.d/10-bridge.conflist")?,
            &kubeadm::cni_configuration(self.number, self.settings.ipv6).to_string(),
        )?;
        let plugins = self.file("/opt/cni/bin")?;
        fs::create_dir_all(&plugins).what(|| format!("make {}", plugins.display()))?;
        for plugin in ["bridge", "loopback", "host-local"] {
            let to = plugins.join(plugin);
            if !to.exists() {
                fs::copy(built.runtime.join(plugin), &to).what(|| format!("write {}", to.display()))?;
            }
        }
        Ok(())
    }

    fn load_images(&self, built: &Built) -> Result<()> {
        let ctr = built.runtime.join("ctr").display().to_string();
        wait_for(
            &format!("containerd of node {}", self.number),
            Duration::from_secs(30),
            Duration::from_millis(100),
            || {
                let o = self.run(built, &[&ctr, "version"], Duration::from_secs(10))?;
                Ok(if o.success() { Ok(()) } else { Err(o.stderr) })
            },
        )?;
        let loaded = self.directory().join("images-loaded");
        if loaded.exists() {
            return Ok(());
        }
        let entries = fs::read_dir(&built.images).what(|| format!("read {}", built.images.display()))?;
        for archive in entries.flatten() {
            let path = archive.path().display().to_string();
            let what = format!("load {path} into node {}", self.number);
            self.run(
                built,
                &[&ctr, "--namespace", "k8s.io", "images", "import", &path],
                Duration::from_secs(120),
            )?
            .checked(&what)?;
        }
        fs::write(&loaded, "").what(|| format!("write {}", loaded.display()))
    }

    /// A command that runs inside the node as its root. Its environment is the node's, not that of this process.
    ///
    /// # Errors
    /// The node is switched off.
    pub fn command(&self, built: &Built, args: &[&str]) -> Result<Command> {
        let pid = self.pid().ok_or_else(|| {
            Error::new(
                format!("run {} on node {}", args.first().unwrap_or(&""), self.number),
                "the node is not running",
            )
            .hint(format!(
                "switch it on: cargo lab start {0}; or make a cluster: cargo lab up",
                self.number
            ))
        })?;
        let mut command = Command::new("nsenter");
        command
            .args(["--target", &pid.to_string(), "--mount", "--pid", "--net", "--uts", "--"])
            .args(args)
            .current_dir("/")
            .env_clear()
            .envs(environment(built));
        Ok(command)
    }

    /// Runs a command inside the node to its end.
    ///
    /// # Errors
    /// The node is switched off, or the command does not end in time. A command that fails is no error.
    pub fn run(&self, built: &Built, args: &[&str], deadline: Duration) -> Result<Output> {
        let what = format!("run {} on node {}", args.join(" "), self.number);
        command::run(&mut self.command(built, args)?, &what, deadline)
    }

    /// Power off: the kernel kills all processes of the node at once. Its files stay, but for those in memory.
    ///
    /// # Errors
    /// Its processes do not end.
    pub fn halt(&self) -> Result<()> {
        let tasks = self.file("/run/containerd/io.containerd.runtime.v2.task/k8s.io")?;
        let tasks = fs::read_dir(tasks).into_iter().flatten().flatten();
        let containers: Vec<_> = tasks.map(|e| e.file_name().to_string_lossy().into_owned()).collect();
        if let Some(pid) = self.pid() {
            let what = || format!("halt node {}", self.number);
            // The kernel ends the namespaces of the node's Pods with it: this one kill ends all.
            kill_process(
                Pid::from_raw(pid).ok_or_else(|| Error::new(what(), "bad PID"))?,
                Signal::KILL,
            )
            .what(what)?;
            wait_until(
                &format!("the processes of node {} to end", self.number),
                Duration::from_secs(30),
                || self.pid().is_none(),
            )?;
        }
        let _ = fs::remove_file(self.directory().join("pid"));
        for path in kubeadm::VOLATILE {
            let path = self.file(path)?;
            if path.exists() {
                fs::remove_dir_all(&path)
                    .and_then(|()| fs::create_dir_all(&path))
                    .what(|| format!("empty {}", path.display()))?;
            }
        }
        // Nobody is left who would remove the cgroups of the containers that ran.
        wait_until(
            &format!("the cgroups of node {} to go", self.number),
            Duration::from_secs(10),
            || {
                let found = cgroups(&containers);
                found.iter().for_each(|c| remove_cgroup(c));
                found.is_empty()
            },
        )
    }
}

/// Where etcd keeps its data.
const ETCD: &str = "/var/lib/etcd";

/// As [`wait_for`], but also in the clean-up after a signal.
fn wait_until(what: &str, deadline: Duration, mut done: impl FnMut() -> bool) -> Result<()> {
    let begin = std::time::Instant::now();
    while !done() {
        if begin.elapsed() > deadline {
            return Err(Error::new(
                format!("wait for {what}"),
                format!("not after {} s", deadline.as_secs()),
            ));
        }
        thread::sleep(Duration::from_millis(20));
    }
    Ok(())
}

fn environment(built: &Built) -> [(&'static str, String); 4] {
    let path = format!(
        "{}:{}:{SYSTEM_PATH}",
        built.kubernetes.display(),
        built.runtime.display()
    );
    [
        ("PATH", path),
        ("HOME", kubeadm::HOME.to_owned()),
        ("LANG", "C.UTF-8".to_owned()),
        ("TERM", std::env::var("TERM").unwrap_or_else(|_| "dumb".to_owned())),
    ]
}

/// Start time of a process in clock ticks since boot: field 22 of `/proc/PID/stat`, see proc(5).
fn start_time(pid: &str) -> Option<String> {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    let mut fields = stat.rsplit_once(')')?.1.split_whitespace();
    // A zombie has ended, even if nobody has asked for its exit code yet.
    (fields.next()? != "Z").then(|| fields.nth(18).map(str::to_owned))?
}

/// The cgroups of these containers in every hierarchy: version 1 has several below the mount point, version 2 is one.
#[must_use]
pub fn cgroups(containers: &[String]) -> Vec<PathBuf> {
    let root = Path::new("/sys/fs/cgroup");
    let entries = fs::read_dir(root).into_iter().flatten().flatten().map(|e| e.path());
    let hierarchies: Vec<_> = entries
        .filter(|p| p.is_dir() && !p.is_symlink())
        .chain([root.to_owned()])
        .collect();
    let all = hierarchies
        .iter()
        .flat_map(|h| containers.iter().map(move |c| h.join("k8s.io").join(c)));
    all.filter(|path| path.is_dir()).collect()
}

/// Only directories can be removed in a cgroup file system, from the leaves up.
fn remove_cgroup(path: &Path) {
    for entry in fs::read_dir(path).into_iter().flatten().flatten() {
        if entry.path().is_dir() {
            remove_cgroup(&entry.path());
        }
    }
    let _ = fs::remove_dir(path);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pid_given_out_again_is_not_the_node() {
        let state = std::env::temp_dir().join(format!("selfhost-lab-node-{}", std::process::id()));
        let settings = Settings {
            name: "x".into(),
            subnet: "10.1.2".into(),
            ipv6: false,
            state: state.clone(),
            cache: state.clone(),
        };
        let node = Node::new(&settings, 1);
        fs::create_dir_all(node.directory()).unwrap();
        let own = std::process::id().to_string();
        let write = |text: &str| fs::write(node.directory().join("pid"), text).unwrap();
        write(&format!("{own} {}", start_time(&own).unwrap()));
        assert_eq!(node.pid(), Some(i32::try_from(std::process::id()).unwrap()));
        write(&format!("{own} 1"));
        assert_eq!(node.pid(), None);
        write("nonsense");
        assert_eq!(node.pid(), None);
        assert_eq!(Node::all(&settings), [1]);
        fs::remove_dir_all(&state).unwrap();
    }

    #[test]
    fn only_private_files_have_a_place_on_the_machine() {
        let settings = Settings {
            name: "x".into(),
            subnet: "10.1.2".into(),
            ipv6: false,
            state: "/s/t".into(),
            cache: "/c/d".into(),
        };
        let node = Node::new(&settings, 2);
        assert_eq!(
            node.file("/etc/kubernetes/a.yaml").unwrap(),
            Path::new("/s/t/node2/files/etc/kubernetes/a.yaml")
        );
        assert!(node.file("/etc/passwd").is_ok());
        assert!(node.file("/etc/shadow").is_err());
        assert!(node.file("/etc/kubernetes-other").is_err());
    }
}
