//! Processes of the control plane, as `/proc` shows them.

use crate::names::{Component, ROLE_ENV, Role};
use std::collections::{BTreeMap, HashSet};
use std::io;
use std::path::{Path, PathBuf};

/// A process of one of the components.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ComponentProcess {
    /// Process id in the namespace of the reader.
    pub pid: u32,
    /// Which component.
    pub component: Component,
    /// What it is there for.
    pub role: Role,
    /// When it started, in clock ticks since boot: tells processes apart that got the same id one after the other.
    pub started: u64,
}

/// What one look at `/proc` found.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Found {
    /// Processes of the components that share the reader's network namespace.
    pub components: Vec<ComponentProcess>,
    /// Components for which an `await-port` waits.
    pub waiting: HashSet<Component>,
}

/// A reader of `/proc`, or of a directory that looks like it.
#[derive(Clone, Debug)]
pub struct Processes {
    proc: PathBuf,
}

impl Processes {
    /// A reader of that directory.
    #[must_use]
    pub fn new(proc: &Path) -> Self {
        Self { proc: proc.to_owned() }
    }

    /// Whether a process lives in the PID namespace of this one: a kubelet inside a container of this machine (as kind runs
    /// it) is not this machine's.
    #[must_use]
    pub fn shares_pid_namespace(&self, pid: u32) -> bool {
        let namespace = |who: &str| std::fs::read_link(self.proc.join(who).join("ns/pid")).ok();
        let own = namespace("self");
        own.is_some() && own == namespace(&pid.to_string())
    }

    /// The ids of all processes.
    ///
    /// # Errors
    /// When the directory cannot be listed.
    pub fn ids(&self) -> io::Result<Vec<u32>> {
        let mut ids: Vec<u32> = std::fs::read_dir(&self.proc)?
            .filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok())
            .collect();
        ids.sort_unstable();
        Ok(ids)
    }

    /// The arguments of a process; empty for kernel threads and processes that have just ended.
    #[must_use]
    pub fn arguments(&self, pid: u32) -> Vec<String> {
        let bytes = std::fs::read(self.proc.join(format!("{pid}/cmdline"))).unwrap_or_default();
        strings(&bytes)
    }

    /// The component that runs as this process, told by the file name of its first argument.
    #[must_use]
    pub fn component(&self, pid: u32) -> Option<Component> {
        component_of(&self.arguments(pid))
    }

    /// Looks at all processes. Those in another network namespace are not this node's control plane: a nested cluster,
    /// say. A process that ends while it is looked at is left out.
    ///
    /// # Errors
    /// When `/proc` cannot be listed.
    pub fn find(&self) -> io::Result<Found> {
        let own_network = self.network("self");
        let mut found = Found::default();
        for pid in self.ids()? {
            let arguments = self.arguments(pid);
            if let Some(component) = awaits(&arguments) {
                found.waiting.insert(component);
            }
            let Some(component) = component_of(&arguments) else {
                continue;
            };
            if self.network(&pid.to_string()) != own_network {
                continue;
            }
            if let Some(started) = self.started(pid) {
                let role = self.role(pid);
                found.components.push(ComponentProcess {
                    pid,
                    component,
                    role,
                    started,
                });
            }
        }
        Ok(found)
    }

    fn network(&self, pid: &str) -> Option<PathBuf> {
        std::fs::read_link(self.proc.join(pid).join("ns/net")).ok()
    }

    fn role(&self, pid: u32) -> Role {
        let environment = std::fs::read(self.proc.join(format!("{pid}/environ"))).unwrap_or_default();
        role_of(&strings(&environment))
    }

    /// When a process started, in clock ticks since boot.
    #[must_use]
    pub fn started(&self, pid: u32) -> Option<u64> {
        started_of(&std::fs::read_to_string(self.proc.join(format!("{pid}/stat"))).ok()?)
    }

    /// Descriptors of a process that are sockets, as (descriptor, inode).
    ///
    /// # Errors
    /// When they may not be listed (that needs the same user or `CAP_SYS_PTRACE`), or the process is gone.
    pub fn sockets(&self, pid: u32) -> io::Result<Vec<(i32, u64)>> {
        let mut sockets = Vec::new();
        for entry in std::fs::read_dir(self.proc.join(format!("{pid}/fd")))? {
            let entry = entry?;
            let descriptor = entry.file_name().to_str().and_then(|name| name.parse().ok());
            let target = std::fs::read_link(entry.path()).ok();
            if let (Some(descriptor), Some(inode)) = (descriptor, target.as_deref().and_then(socket_inode)) {
                sockets.push((descriptor, inode));
            }
        }
        Ok(sockets)
    }
}

/// As whom a process runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct Owner {
    /// User ID.
    pub user: u32,
    /// Group ID.
    pub group: u32,
}

/// A container that runs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PodContainer {
    /// A path to its root directory.
    pub root: PathBuf,
    /// As whom it runs.
    pub owner: Owner,
}

/// The containers of a Pod that run, by name.
pub type PodContainers = BTreeMap<String, PodContainer>;

impl Processes {
    /// UID of the Pod that a process belongs to, and the name of its container.
    ///
    /// The kubelet mounts a file of the Pod's directory into every container, `.../pods/UID/containers/NAME/ID` as
    /// `/dev/termination-log` or wherever the container wants it (k8s.io/kubernetes `pkg/kubelet/kubelet_pods.go`); names of
    /// control groups differ with the kubelet's configuration.
    #[must_use]
    pub fn pod_of(&self, pid: u32) -> Option<(String, String)> {
        let mounts = std::fs::read_to_string(self.proc.join(format!("{pid}/mountinfo"))).ok()?;
        mounts.lines().find_map(pod_of_mount)
    }

    /// The running containers of a Pod. Of several processes of one container, the one that was started first counts.
    ///
    /// # Errors
    /// When `/proc` cannot be listed.
    pub fn containers_of(&self, pod: &str) -> io::Result<PodContainers> {
        let mut found: BTreeMap<String, (u64, PodContainer)> = BTreeMap::new();
        for pid in self.ids()? {
            let Some((_, name)) = self.pod_of(pid).filter(|(uid, _)| uid == pod) else {
                continue;
            };
            let status = std::fs::read_to_string(self.proc.join(format!("{pid}/status"))).unwrap_or_default();
            let (Some(owner), Some(started)) = (owner_of(&status), self.started(pid)) else {
                continue;
            };
            let container = PodContainer {
                root: self.proc.join(format!("{pid}/root")),
                owner,
            };
            match found.get(&name) {
                Some((earlier, _)) if *earlier <= started => {}
                _ => {
                    found.insert(name, (started, container));
                }
            }
        }
        Ok(found
            .into_iter()
            .map(|(name, (_, container))| (name, container))
            .collect())
    }
}

/// Field 4 of `/proc/PID/mountinfo` is the path of what is mounted inside its file system.
fn pod_of_mount(line: &str) -> Option<(String, String)> {
    let root = line.split(' ').nth(3)?;
    let mut parts = root.split('/').rev();
    let (_id, name, containers, uid, pods) = (
        parts.next()?,
        parts.next()?,
        parts.next()?,
        parts.next()?,
        parts.next()?,
    );
    (containers == "containers" && pods == "pods" && !uid.is_empty()).then(|| (uid.to_owned(), name.to_owned()))
}

/// Effective user and group of `/proc/PID/status`.
fn owner_of(status: &str) -> Option<Owner> {
    let effective = |name: &str| {
        let line = status.lines().find_map(|line| line.strip_prefix(name))?;
        line.split_whitespace().nth(1)?.parse().ok()
    };
    Some(Owner {
        user: effective("Uid:")?,
        group: effective("Gid:")?,
    })
}

fn strings(bytes: &[u8]) -> Vec<String> {
    let text = String::from_utf8_lossy(bytes);
    text.split_terminator('\0').map(str::to_owned).collect()
}

fn file_name(path: &str) -> &str {
    path.rsplit('/').next().unwrap_or(path)
}

fn component_of(arguments: &[String]) -> Option<Component> {
    Component::from_name(file_name(arguments.first()?))
}

fn awaits(arguments: &[String]) -> Option<Component> {
    let at = arguments.iter().take(4).position(|argument| argument == "await-port")?;
    if at == 0 || file_name(arguments.first()?) != crate::names::BIN_NAME {
        return None;
    }
    let component = arguments.iter().position(|argument| argument == "--component")?;
    Component::from_name(arguments.get(component + 1)?)
}

fn role_of(environment: &[String]) -> Role {
    let value = environment
        .iter()
        .find_map(|entry| entry.strip_prefix(ROLE_ENV)?.strip_prefix('='));
    [Role::SelfHosted, Role::Fallback]
        .into_iter()
        .find(|role| value == Some(role.env_value()))
        .unwrap_or(Role::Static)
}

/// Field 22 of `/proc/PID/stat`. The second field, the name, may hold blanks and parentheses.
fn started_of(stat: &str) -> Option<u64> {
    stat.rsplit_once(')')?.1.split_whitespace().nth(19)?.parse().ok()
}

fn socket_inode(target: &Path) -> Option<u64> {
    target
        .to_str()?
        .strip_prefix("socket:[")?
        .strip_suffix(']')?
        .parse()
        .ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn words(text: &str) -> Vec<String> {
        text.split(' ').map(str::to_owned).collect()
    }

    #[test]
    fn components_are_told_by_their_executable() {
        for (arguments, expected) in [
            ("kube-apiserver --secure-port=6443", Some(Component::KubeApiserver)),
            ("/usr/local/bin/kube-scheduler", Some(Component::KubeScheduler)),
            ("kube-controller-manager", Some(Component::KubeControllerManager)),
            ("grep kube-apiserver", None),
            ("kube-apiserver-proxy", None),
            ("", None),
        ] {
            assert_eq!(component_of(&words(arguments)), expected, "{arguments}");
        }
        assert_eq!(component_of(&[]), None);
    }

    #[test]
    fn a_waiting_pod_is_told_by_its_arguments() {
        let ours = "/selfhost/bin/kubectl-selfhost node await-port --component kube-scheduler --port 10259";
        assert_eq!(awaits(&words(ours)), Some(Component::KubeScheduler));
        assert_eq!(
            awaits(&words("kubectl-selfhost node await-port --component etcd")),
            None
        );
        assert_eq!(awaits(&words("vi await-port --component kube-scheduler")), None);
        assert_eq!(awaits(&words("kubectl-selfhost node guard")), None);
    }

    #[test]
    fn roles_come_from_the_environment() {
        assert_eq!(
            role_of(&words("A=1 KUBECTL_SELFHOST_ROLE=self-hosted")),
            Role::SelfHosted
        );
        assert_eq!(role_of(&words("KUBECTL_SELFHOST_ROLE=fallback B=2")), Role::Fallback);
        assert_eq!(
            role_of(&words("KUBECTL_SELFHOST_ROLE=else XKUBECTL_SELFHOST_ROLE=fallback")),
            Role::Static
        );
        assert_eq!(role_of(&[]), Role::Static);
    }

    #[test]
    fn the_start_time_is_found_behind_any_name() {
        let stat = "42 (a) b) (c) S 1 42 42 0 -1 4194560 1 2 3 4 5 6 7 8 20 0 9 0 777 1 2";
        assert_eq!(started_of(stat), Some(777));
        assert_eq!(started_of("42 (x"), None);
    }

    #[test]
    fn the_pod_of_a_process_comes_from_its_mounts() {
        let uid = "0c9a3b7e-1111-4222-8333-444455556666";
        for root in [
            format!("/var/lib/kubelet/pods/{uid}/containers/kube-apiserver/1a2b3c4d"),
            format!("/pods/{uid}/containers/kube-apiserver/1a2b3c4d"),
        ] {
            let line = format!("903 871 254:0 {root} /dev/termination-log rw,relatime - ext4 /dev/vda rw");
            assert_eq!(pod_of_mount(&line), Some((uid.into(), "kube-apiserver".into())));
        }
        for line in [
            "903 871 254:0 / / rw - ext4 /dev/vda rw",
            "903 871 254:0 /var/lib/kubelet/pods/x/etc-hosts /etc/hosts rw - ext4 /dev/vda rw",
            "",
        ] {
            assert_eq!(pod_of_mount(line), None, "{line}");
        }
        let status = "Name:\tkube-apiserver\nUid:\t0\t999\t0\t0\nGid:\t0\t998\t0\t0\n";
        assert_eq!(owner_of(status), Some(Owner { user: 999, group: 998 }));
        assert_eq!(owner_of("Name:\tx\n"), None);
        let containers = Processes::new(Path::new("/proc")).containers_of("no-such-pod").unwrap();
        assert!(containers.is_empty());
    }

    #[test]
    fn this_process_is_read() {
        let processes = Processes::new(Path::new("/proc"));
        let me = std::process::id();
        assert!(processes.ids().unwrap().contains(&me));
        assert!(!processes.arguments(me).is_empty());
        assert!(processes.started(me).is_some());
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let sockets = processes.sockets(me).unwrap();
        assert!(!sockets.is_empty());
        drop(listener);
    }
}
