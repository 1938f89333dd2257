//! What an operator does to a cluster of one node: convert, edit, undo, revert, and the old way of editing a file. Each waits
//! until it is really over, and says so by an error where it never is.

pub mod beside;
pub mod edits;

use std::{
    fs,
    path::{Path, PathBuf},
    process::{Command, ExitStatus, Stdio},
    time::{Duration, Instant},
};

use serde_json::Value;

use crate::{
    command::{Output, wait_for},
    error::{Context, Error, Result},
    interrupt,
    lab::Lab,
};
use edits::{Component, Mistake};

/// The one node.
const NODE: u8 = 1;
const EVERY: Duration = Duration::from_millis(500);
/// A start, the pause after it, the old process's grace of 30 s, and some for a loaded machine.
const ROLL_DEADLINE: Duration = Duration::from_secs(240);
const MANIFESTS: &str = "/etc/kubernetes/manifests";
const GUARD_MANIFEST: &str = "selfhost-guard.yaml";
const GUARD_POD: &str = "selfhost-guard-node1";

/// A Pod of a component.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Pod {
    /// Its name.
    pub name: String,
    /// Its UID.
    pub uid: String,
    /// Whether it is Ready.
    pub ready: bool,
    /// Whether it is being deleted.
    pub deleting: bool,
    /// How often its containers were started again.
    pub restarts: u64,
    /// For a static Pod's mirror: hash of the manifest it runs from. An API that was away shows the Pod from before.
    pub manifest_hash: String,
}

impl Pod {
    fn from_json(pod: &Value) -> Self {
        let text = |path: &str| pod.pointer(path).and_then(Value::as_str).unwrap_or_default().to_owned();
        let list = |path: &str| pod.pointer(path).and_then(Value::as_array).cloned().unwrap_or_default();
        let ready = |c: &Value| c["type"] == "Ready" && c["status"] == "True";
        Self {
            name: text("/metadata/name"),
            uid: text("/metadata/uid"),
            ready: list("/status/conditions").iter().any(ready),
            deleting: pod.pointer("/metadata/deletionTimestamp").is_some(),
            restarts: list("/status/containerStatuses")
                .iter()
                .filter_map(|c| c["restartCount"].as_u64())
                .sum(),
            manifest_hash: text("/metadata/annotations/kubernetes.io~1config.hash"),
        }
    }
}

/// What `status` says about a Pod that does not run as it should.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Trouble {
    /// The Pod's name.
    pub pod: String,
    /// Why it does not run.
    pub reason: String,
    /// The last line that it wrote; empty where `status` names none.
    pub last_log_line: String,
}

/// An operator of the cluster of one node, with the plugin.
#[derive(Clone, Debug)]
pub struct Operator<'a> {
    lab: &'a Lab,
    binary: PathBuf,
}

impl<'a> Operator<'a> {
    /// With this build of the plugin.
    #[must_use]
    pub fn new(lab: &'a Lab, binary: &Path) -> Self {
        Self {
            lab,
            binary: binary.to_owned(),
        }
    }

    /// The cluster.
    #[must_use]
    pub fn lab(&self) -> &'a Lab {
        self.lab
    }

    /// Runs the plugin on the node, and gives what it wrote and how long it took.
    ///
    /// # Errors
    /// It fails, or does not end.
    pub fn selfhost(&self, args: &[&str]) -> Result<(Output, Duration)> {
        self.lab.install_selfhost(NODE, &self.binary)?;
        let begin = Instant::now();
        let output = self.lab.selfhost(NODE, &self.binary, args)?;
        let took = begin.elapsed();
        Ok((output.checked(&format!("kubectl selfhost {}", args.join(" ")))?, took))
    }

    /// Runs the plugin on the node with this process's terminal as its output, so that its bars move there.
    ///
    /// # Errors
    /// It fails or does not end within `deadline`.
    pub fn selfhost_on_terminal(&self, args: &[&str], deadline: Duration) -> Result<()> {
        let path = self.lab.install_selfhost(NODE, &self.binary)?;
        let what = format!("kubectl selfhost {}", args.join(" "));
        let mut command = self.lab.command(NODE, &[&[path.as_str()], args].concat())?;
        let status = run_to_its_end(command.stdin(Stdio::null()), &what, deadline)?;
        if status.success() {
            Ok(())
        } else {
            Err(Error::new(what, format!("{status}; why is told above")))
        }
    }

    /// What `status -o json` says.
    ///
    /// # Errors
    /// It fails or prints something else.
    pub fn status(&self) -> Result<Value> {
        let (output, _) = self.selfhost(&["status", "-o", "json"])?;
        serde_json::from_str(&output.stdout).what(|| "read the output of kubectl selfhost status".to_owned())
    }

    /// The state of each component that `status` names, in the order of [`Component::ALL`].
    ///
    /// # Errors
    /// As [`Operator::status`].
    pub fn states(&self) -> Result<Vec<String>> {
        let status = self.status()?;
        let state = |c: Component| entry(&status, c)["state"].as_str().unwrap_or_default().to_owned();
        Ok(Component::ALL.map(state).to_vec())
    }

    /// The Pods of a component that `status` finds fault with.
    ///
    /// # Errors
    /// As [`Operator::status`].
    pub fn troubles(&self, component: Component) -> Result<Vec<Trouble>> {
        let status = self.status()?;
        let troubles = entry(&status, component)["troubles"]
            .as_array()
            .cloned()
            .unwrap_or_default();
        let text = |t: &Value, name: &str| t[name].as_str().unwrap_or_default().to_owned();
        let trouble = |t: &Value| Trouble {
            pod: text(t, "pod"),
            reason: text(t, "reason"),
            last_log_line: text(t, "lastLogLine"),
        };
        Ok(troubles.iter().map(trouble).collect())
    }

    /// Runs `kubectl` as administrator, in kube-system.
    fn kubectl(&self, args: &[&str]) -> Result<Output> {
        self.lab.kubectl(&[&["-n", "kube-system"], args].concat())
    }

    fn get(&self, args: &[&str]) -> Result<std::result::Result<Value, String>> {
        let output = self.kubectl(&[&["get", "-o", "json", "--request-timeout=5s"], args].concat())?;
        if !output.success() {
            return Ok(Err(output.stderr));
        }
        serde_json::from_str(&output.stdout)
            .map(Ok)
            .what(|| format!("read kubectl get {}", args.join(" ")))
    }

    /// A component's DaemonSet.
    ///
    /// # Errors
    /// It cannot be read.
    pub fn daemon_set(&self, component: Component) -> Result<Value> {
        let name = component.daemon_set();
        self.get(&["daemonset", &name])?
            .map_err(|e| Error::new(format!("read DaemonSet {name}"), e))
    }

    /// The Pods of a component's DaemonSet, or why they cannot be listed right now.
    ///
    /// # Errors
    /// `kubectl` cannot be run.
    pub fn pods(&self, component: Component) -> Result<std::result::Result<Vec<Pod>, String>> {
        let selector = format!("k8s-app={}", component.daemon_set());
        let list = self.get(&["pods", "-l", &selector])?;
        Ok(list.map(|l| {
            l["items"]
                .as_array()
                .into_iter()
                .flatten()
                .map(Pod::from_json)
                .collect()
        }))
    }

    /// Applies a JSON patch to a component's DaemonSet, by `kubectl patch`.
    ///
    /// # Errors
    /// The API refuses it.
    pub fn patch(&self, component: Component, patch: &Value) -> Result<()> {
        let (name, patch) = (component.daemon_set(), patch.to_string());
        let args = ["patch", "daemonset", &name, "--type=json", "-p", &patch];
        self.kubectl(&args)?
            .checked(&format!("kubectl patch daemonset {name}"))
            .map(drop)
    }

    /// Takes the last edit of a component's DaemonSet back, by `kubectl rollout undo`.
    ///
    /// # Errors
    /// The API refuses it.
    pub fn undo(&self, component: Component) -> Result<()> {
        let name = format!("daemonset/{}", component.daemon_set());
        let args = ["rollout", "undo", &name];
        self.kubectl(&args)?
            .checked(&format!("kubectl rollout undo {name}"))
            .map(drop)
    }

    /// Waits until a component's DaemonSet has one Pod, which is Ready and made from its template as it is now, and no other
    /// is left; for the apiserver also until its address is back in `default/kubernetes`.
    ///
    /// # Errors
    /// It does not come to that.
    pub fn settle(&self, component: Component) -> Result<Pod> {
        let name = component.daemon_set();
        let what = format!("DaemonSet {name} to have one ready Pod of its newest template");
        let pod = wait_for(&what, ROLL_DEADLINE, EVERY, || {
            let (daemon_set, pods) = match (self.get(&["daemonset", &name])?, self.pods(component)?) {
                (Ok(daemon_set), Ok(pods)) => (daemon_set, pods),
                (Err(e), _) | (_, Err(e)) => return Ok(Err(e)),
            };
            Ok(settled(&daemon_set, &pods))
        })?;
        if component == Component::KubeApiserver {
            self.await_endpoints()?;
        }
        Ok(pod)
    }

    /// Waits until `default/kubernetes` has an address.
    ///
    /// # Errors
    /// It gets none.
    pub fn await_endpoints(&self) -> Result<()> {
        wait_for(
            "an address of default/kubernetes",
            Duration::from_secs(60),
            EVERY,
            || {
                let slice = self.get(&["endpointslice", "kubernetes", "-n", "default"])?;
                Ok(slice.and_then(|s| match s["endpoints"].as_array() {
                    Some(list) if !list.is_empty() => Ok(()),
                    _ => Err("it has none".to_owned()),
                }))
            },
        )
    }

    /// Waits until kube-scheduler and kube-controller-manager have leaders that renew their Leases. An outage of the API makes
    /// both give up and start anew, after a back-off.
    ///
    /// # Errors
    /// They do not come to that.
    pub fn await_leaders(&self) -> Result<()> {
        let renewed = |name: &str| -> Result<std::result::Result<String, String>> {
            Ok(self.get(&["lease", name])?.map(|l| l["spec"]["renewTime"].to_string()))
        };
        for name in [Component::KubeScheduler, Component::KubeControllerManager].map(Component::name) {
            let mut first = None;
            // The back-off of the kubelet is 5 minutes at most.
            wait_for(&format!("{name} to lead"), Duration::from_secs(360), 4 * EVERY, || {
                Ok(match (&first, renewed(name)?) {
                    (_, Err(e)) => Err(e),
                    (Some(known), Ok(now)) if *known != now => Ok(()),
                    (Some(_), Ok(now)) => Err(format!("it renewed its Lease last at {now}")),
                    (None, Ok(now)) => {
                        first = Some(now);
                        Err("its Lease was read once".to_owned())
                    }
                })
            })?;
        }
        Ok(())
    }

    /// Gives a flag a value in a component's DaemonSet, waits until the roll is over, and makes sure that the process has it.
    ///
    /// # Errors
    /// The roll does not end, or the flag did not get there.
    pub fn roll(&self, component: Component, flag: &str, value: &str) -> Result<Pod> {
        let before = self.settle(component)?;
        self.patch(
            component,
            &edits::set_flag(&self.daemon_set(component)?, component, flag, value)?,
        )?;
        let pod = self.settle(component)?;
        if pod.uid == before.uid {
            return Err(Error::new(
                format!("change --{flag} of {component}"),
                format!("Pod {} is still the one from before", pod.name),
            ));
        }
        self.flag_must_be(component, flag, value)?;
        Ok(pod)
    }

    /// Makes a mistake in a component's template.
    ///
    /// # Errors
    /// The API refuses it.
    pub fn make_mistake(&self, component: Component, mistake: Mistake) -> Result<()> {
        self.patch(
            component,
            &edits::make_mistake(&self.daemon_set(component)?, component, mistake)?,
        )
    }

    /// The command lines of the running processes of a component.
    fn command_lines(&self, component: Component) -> Result<Vec<String>> {
        let pids = self.lab.pids(NODE, component.name())?;
        Ok(pids.into_iter().map(command_line).filter(|l| !l.is_empty()).collect())
    }

    fn flag_must_be(&self, component: Component, flag: &str, value: &str) -> Result<()> {
        match has_flag(&self.command_lines(component)?, flag, value) {
            Ok(()) => Ok(()),
            Err(e) => Err(Error::new(format!("change --{flag} of {component}"), e)),
        }
    }

    fn manifest(&self, component: Component) -> Result<PathBuf> {
        self.lab
            .file(NODE, Path::new(MANIFESTS).join(format!("{component}.yaml")))
    }

    /// The bytes of a component's static manifest.
    ///
    /// # Errors
    /// It is not there.
    pub fn read_manifest(&self, component: Component) -> Result<String> {
        let path = self.manifest(component)?;
        fs::read_to_string(&path).what(|| format!("read {}", path.display()))
    }

    /// Writes a component's static manifest as an editor does (the kubelet sees it at once), and waits until one process runs
    /// with that flag, or without it where no value is given, and its mirror Pod is Ready.
    ///
    /// # Errors
    /// It does not come to that.
    pub fn edit_manifest(&self, component: Component, text: &str, flag: &str, value: Option<&str>) -> Result<()> {
        let path = self.manifest(component)?;
        let before = self.lab.pids(NODE, component.name())?;
        let name = format!("{component}-node1");
        let what = || format!("read Pod {name}");
        let mirror = self.get(&["pod", &name])?.map_err(|e| Error::new(what(), e))?;
        let hash = Pod::from_json(&mirror).manifest_hash;
        fs::write(&path, text).what(|| format!("write {}", path.display()))?;
        let what = format!("the static Pod of {component} to run from its edited manifest");
        wait_for(&what, ROLL_DEADLINE, EVERY, || {
            let now = self.lab.pids(NODE, component.name())?;
            if now.iter().any(|pid| before.contains(pid)) {
                return Ok(Err("the old process runs".to_owned()));
            }
            let lines = self.command_lines(component)?;
            let good = match value {
                Some(value) => has_flag(&lines, flag, value),
                None if lines.len() == 1 => Ok(()),
                None => Err(format!("{} processes run", lines.len())),
            };
            if let Err(e) = good {
                return Ok(Err(e));
            }
            Ok(self.get(&["pod", &name])?.and_then(|pod| {
                let pod = Pod::from_json(&pod);
                if pod.manifest_hash == hash {
                    Err(format!("Pod {name} is still the one from before"))
                } else if pod.ready && !pod.deleting {
                    Ok(())
                } else {
                    Err(format!("Pod {name} is not ready"))
                }
            }))
        })?;
        self.lab.wait_ready(Duration::from_secs(120))?;
        self.await_endpoints()?;
        self.await_leaders()
    }

    /// PID of the guard on the machine.
    ///
    /// # Errors
    /// It does not run.
    pub fn guard(&self) -> Result<i32> {
        self.guards()?
            .first()
            .copied()
            .ok_or_else(|| Error::new("find the guard of the node", "it does not run").hint("convert the node first"))
    }

    fn guards(&self) -> Result<Vec<i32>> {
        let pids = self.lab.pids(NODE, "kubectl-selfhost")?;
        Ok(pids
            .into_iter()
            .filter(|pid| command_line(*pid).contains(" node guard "))
            .collect())
    }

    /// Stops the guard by moving its manifest away, and waits until process and Pod are gone.
    ///
    /// # Errors
    /// There is no guard, or it stays.
    pub fn stop_guard(&self) -> Result<StoppedGuard<'_>> {
        self.guard()?;
        let from = self.lab.file(NODE, Path::new(MANIFESTS).join(GUARD_MANIFEST))?;
        let to = self.lab.file(NODE, Path::new("/etc/kubernetes").join(GUARD_MANIFEST))?;
        fs::rename(&from, &to).what(|| format!("move {}", from.display()))?;
        let stopped = StoppedGuard {
            operator: self,
            from,
            to,
        };
        wait_for("the guard to be gone", Duration::from_secs(90), EVERY, || {
            if !self.guards()?.is_empty() {
                return Ok(Err("its process runs".to_owned()));
            }
            Ok(match self.get(&["pod", GUARD_POD])? {
                Ok(_) => Err(format!("Pod {GUARD_POD} is there")),
                Err(e) if e.contains("NotFound") => Ok(()),
                Err(e) => Err(e),
            })
        })?;
        Ok(stopped)
    }
}

/// A guard that was stopped. It stays so when this is dropped: see [`StoppedGuard::start`].
#[derive(Debug)]
pub struct StoppedGuard<'a> {
    operator: &'a Operator<'a>,
    from: PathBuf,
    to: PathBuf,
}

impl StoppedGuard<'_> {
    /// That it is still stopped.
    ///
    /// # Errors
    /// Somebody started it.
    pub fn must_be_stopped(&self) -> Result<()> {
        match self.operator.guards()?.as_slice() {
            [] => Ok(()),
            [pid, ..] => Err(Error::new(
                "measure without the guard",
                format!("it runs as process {pid}"),
            )),
        }
    }

    /// Starts it again, and waits until its Pod is ready.
    ///
    /// # Errors
    /// It does not start.
    pub fn start(self) -> Result<()> {
        fs::rename(&self.to, &self.from).what(|| format!("move {}", self.to.display()))?;
        wait_for("the guard to run", Duration::from_secs(90), EVERY, || {
            Ok(self.operator.get(&["pod", GUARD_POD])?.and_then(|pod| {
                if Pod::from_json(&pod).ready {
                    Ok(())
                } else {
                    Err("its Pod is not ready".to_owned())
                }
            }))
        })
    }
}

fn entry(status: &Value, component: Component) -> &Value {
    let all = status["nodes"][0]["components"].as_array();
    all.into_iter()
        .flatten()
        .find(|c| c["component"] == component.name())
        .unwrap_or(&Value::Null)
}

/// Whether a DaemonSet on one node has come to rest, and with which Pod.
fn settled(daemon_set: &Value, pods: &[Pod]) -> std::result::Result<Pod, String> {
    let number = |path: &str| daemon_set.pointer(path).and_then(Value::as_u64).unwrap_or_default();
    if number("/status/observedGeneration") != number("/metadata/generation") {
        return Err("the controller has not seen the template yet".to_owned());
    }
    let [pod] = pods else {
        return Err(format!("it has {} Pods", pods.len()));
    };
    if pod.deleting || !pod.ready {
        return Err(format!(
            "Pod {} is {}",
            pod.name,
            if pod.deleting { "being deleted" } else { "not ready" }
        ));
    }
    for count in ["desiredNumberScheduled", "updatedNumberScheduled", "numberReady"] {
        if number(&format!("/status/{count}")) != 1 {
            return Err(format!("{count} is not 1"));
        }
    }
    Ok(pod.clone())
}

fn has_flag(command_lines: &[String], flag: &str, value: &str) -> std::result::Result<(), String> {
    let word = format!("--{flag}={value}");
    match command_lines {
        [line] if line.split(' ').any(|w| w == word) => Ok(()),
        [line] => Err(format!("the process runs without {word}: {line}")),
        many => Err(format!("{} processes run", many.len())),
    }
}

/// The words of a process's command line, joined by spaces; empty for one that is gone.
fn command_line(pid: i32) -> String {
    let bytes = fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
    String::from_utf8_lossy(&bytes)
        .trim_end_matches('\0')
        .replace('\0', " ")
}

/// Runs a program to its end with the streams it has been given, or kills it at the deadline.
fn run_to_its_end(command: &mut Command, what: &str, deadline: Duration) -> Result<ExitStatus> {
    interrupt::stop_here_when_interrupted();
    let mut child = command.spawn().what(|| what.to_owned())?;
    let begin = Instant::now();
    loop {
        if let Some(status) = child.try_wait().what(|| what.to_owned())? {
            return Ok(status);
        }
        if begin.elapsed() > deadline {
            let _ = child.kill();
            let _ = child.wait();
            return Err(Error::new(
                what,
                format!("it has not ended after {} s", deadline.as_secs()),
            ));
        }
        interrupt::pause(Duration::from_millis(50));
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn pod(ready: bool, deleting: bool) -> Pod {
        Pod {
            name: "p".into(),
            uid: "u".into(),
            ready,
            deleting,
            restarts: 0,
            manifest_hash: "h".into(),
        }
    }

    #[test]
    fn a_daemon_set_is_settled_with_exactly_one_ready_pod_of_the_newest_template() {
        let status = |observed: u64, updated: u64| {
            json!({"metadata": {"generation": 2}, "status": {"observedGeneration": observed,
                "desiredNumberScheduled": 1, "updatedNumberScheduled": updated, "numberReady": 1}})
        };
        let good = pod(true, false);
        assert_eq!(settled(&status(2, 1), std::slice::from_ref(&good)), Ok(good.clone()));
        for (status, pods) in [
            (status(1, 1), vec![good.clone()]),
            (status(2, 0), vec![good.clone()]),
            (status(2, 1), vec![]),
            (status(2, 1), vec![good.clone(), pod(true, true)]),
            (status(2, 1), vec![pod(true, true)]),
            (status(2, 1), vec![pod(false, false)]),
        ] {
            assert!(settled(&status, &pods).is_err(), "{status} {pods:?}");
        }
    }

    #[test]
    fn a_pod_is_read_from_what_the_api_says() {
        let read = Pod::from_json(&json!({
            "metadata": {"name": "p", "uid": "u", "annotations": {"kubernetes.io/config.hash": "h"}},
            "status": {"conditions": [{"type": "Ready", "status": "True"}], "containerStatuses": [{"restartCount": 2}, {"restartCount": 1}]},
        }));
        assert_eq!(
            read,
            Pod {
                restarts: 3,
                ..pod(true, false)
            }
        );
        assert!(Pod::from_json(&json!({"metadata": {"deletionTimestamp": "2026-01-01T00:00:00Z"}})).deleting);
    }

    #[test]
    fn a_flag_counts_in_the_only_process_alone() {
        let with = "kube-apiserver --v=2 --event-ttl=2h".to_owned();
        assert_eq!(has_flag(std::slice::from_ref(&with), "event-ttl", "2h"), Ok(()));
        assert!(has_flag(std::slice::from_ref(&with), "event-ttl", "2").is_err());
        assert!(has_flag(&[], "event-ttl", "2h").is_err());
        assert!(has_flag(&[with.clone(), with], "event-ttl", "2h").is_err());
    }
}
