//! How faults are caused, and how it is waited until a node has come back from them.

use std::{
    env, fs,
    path::{Path, PathBuf},
    process::Command,
    sync::atomic::{AtomicBool, Ordering},
    thread,
    time::{Duration, Instant},
};

use serde_json::Value;
use tests::lab::OWN_FILE_SYSTEM;

use crate::support::{COMPONENTS, Cluster, MANIFESTS, flat, owners, say};

/// How often something is done: `few` in an ordinary run, `many` with `SELFHOST_TEST_FAULTS=all`.
pub(crate) fn times(few: usize, many: usize) -> usize {
    if is_long() { many } else { few }
}

/// Whether everything is to be done and not a sample.
pub(crate) fn is_long() -> bool {
    env::var("SELFHOST_TEST_FAULTS").is_ok_and(|value| value == "all")
}

impl Cluster {
    /// Whether the API says that it is ready.
    pub(crate) fn api(&self) -> Result<(), String> {
        let output = self
            .lab
            .kubectl(&["get", "--raw", "/readyz", "--request-timeout=2s"])
            .unwrap();
        if output.success() { Ok(()) } else { Err(output.stderr) }
    }

    pub(crate) fn await_api(&self, what: &str, seconds: u64) {
        self.wait(&format!("the API to answer: {what}"), seconds, || self.api());
    }

    /// Cuts the power and gives it back; how long the API takes from there.
    pub(crate) fn power_cycle(&self, what: &str) -> Duration {
        self.power_cycle_with(what, || {})
    }

    /// As [`Cluster::power_cycle`], and does something while the node is off.
    pub(crate) fn power_cycle_with(&self, what: &str, while_off: impl FnOnce()) -> Duration {
        self.lab.halt(1).unwrap();
        while_off();
        let begin = Instant::now();
        let done = AtomicBool::new(false);
        let seen = thread::scope(|scope| {
            let watcher = scope.spawn(|| self.first_seen(begin, &done));
            let stopper = Stopper(&done);
            self.lab.start(1).unwrap();
            self.await_api(what, 180);
            drop(stopper);
            watcher.join().unwrap()
        });
        let took = begin.elapsed();
        say(&format!(
            "{what}: the API answers {:.1} s after the power came back ({})",
            took.as_secs_f64(),
            seen.join(", ")
        ));
        took
    }

    /// When the processes that count were first there.
    fn first_seen(&self, begin: Instant, done: &AtomicBool) -> Vec<String> {
        let mut missing = vec!["containerd", "kubelet", "etcd", "kubectl-selfhost", "kube-apiserver"];
        let mut seen = Vec::new();
        while !done.load(Ordering::Relaxed) {
            missing.retain(|program| {
                let is_there = !self.lab.pids(1, program).unwrap().is_empty();
                if is_there {
                    seen.push(format!("{program} {:.1} s", begin.elapsed().as_secs_f64()));
                }
                !is_there
            });
            thread::sleep(Duration::from_millis(50));
        }
        seen
    }

    /// Waits until the DaemonSets' Pods serve alone, and nothing is left to do.
    pub(crate) fn await_self_hosted(&self, what: &str, seconds: u64) {
        let begin = Instant::now();
        self.wait(&format!("the DaemonSets' Pods alone to serve: {what}"), seconds, || {
            self.api()?;
            let status = self.try_status()?;
            let components = status["components"].as_array().unwrap();
            let settled = components.iter().all(|c| {
                c["state"] == "self-hosted"
                    && c["ready"] == true
                    && ["step", "troubles", "error"].iter().all(|field| c.get(field).is_none())
            });
            // the kubelet removes the fallback's Pod from the API some seconds after its process has gone
            let pods = self.all_pods()?;
            if settled && pods.len() == COMPONENTS.len() && status["guard"]["running"] == true {
                Ok(())
            } else {
                Err(format!("{}; {status}", owners(&pods)))
            }
        });
        say(&format!(
            "{what}: from the DaemonSets alone {:.1} s later",
            begin.elapsed().as_secs_f64()
        ));
        self.assert_self_hosted();
    }

    /// All Pods of the components, where the API answers.
    fn all_pods(&self) -> Result<Vec<Value>, String> {
        let selector = format!("component in ({})", COMPONENTS.join(","));
        let output = self
            .lab
            .kubectl(&["get", "pods", "-n", "kube-system", "-l", &selector, "-o", "json"])
            .unwrap();
        let list: Value = serde_json::from_str(&output.stdout).map_err(|_| output.stderr)?;
        Ok(list["items"].as_array().cloned().unwrap_or_default())
    }

    /// `status` of the only node, where the API answers.
    pub(crate) fn try_status(&self) -> Result<Value, String> {
        let output = self.selfhost(&["status", "-o", "json"]);
        let status: Value = serde_json::from_str(&output.stdout).map_err(|_| output.stderr)?;
        Ok(status["nodes"][0].clone())
    }

    /// PIDs of a component.
    pub(crate) fn processes(&self, component: &str) -> Vec<i32> {
        self.lab.pids(1, component).unwrap()
    }

    /// PIDs of all three.
    pub(crate) fn all_processes(&self) -> Vec<Vec<i32>> {
        COMPONENTS.map(|component| self.processes(component)).to_vec()
    }

    /// Waits until `status`, for people and for programs, has these words.
    pub(crate) fn await_named(&self, what: &str, words: &[&str]) {
        self.wait(&format!("status to name it: {what}"), 60, || {
            let text = flat(&self.selfhost(&["status"]));
            let json = flat(&self.selfhost(&["status", "-o", "json"]));
            match words.iter().find(|word| !text.contains(*word) || !json.contains(*word)) {
                Some(word) => Err(format!("{word:?} is missing in {text}\n{json}")),
                None => Ok(()),
            }
        });
    }

    /// Names of the Pods of a component's DaemonSet.
    pub(crate) fn daemon_pods(&self, component: &str) -> Vec<String> {
        let all = self.pods(component);
        let of_daemon_set = all
            .iter()
            .filter(|pod| pod["metadata"]["ownerReferences"][0]["kind"] == "DaemonSet");
        of_daemon_set
            .map(|pod| pod["metadata"]["name"].as_str().unwrap().to_owned())
            .collect()
    }

    /// The PID of the guard on this machine.
    pub(crate) fn guard(&self) -> Option<i32> {
        let pids = self.lab.pids(1, "kubectl-selfhost").unwrap();
        pids.into_iter().find(|pid| {
            let line = fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
            String::from_utf8_lossy(&line).contains("\0node\0guard\0")
        })
    }

    /// All that the guard has written, the restarted ones included, without the time stamps.
    pub(crate) fn guard_lines(&self) -> Vec<String> {
        let directories = fs::read_dir(self.file("/var/log/pods")).into_iter().flatten().flatten();
        let mut files: Vec<PathBuf> = directories
            .filter(|entry| entry.file_name().to_string_lossy().contains("_selfhost-guard-"))
            .flat_map(|entry| fs::read_dir(entry.path().join("guard")).into_iter().flatten().flatten())
            .map(|entry| entry.path())
            .collect();
        files.sort();
        let texts = files.iter().map(|path| fs::read_to_string(path).unwrap_or_default());
        let lines = texts.flat_map(|text| text.lines().map(str::to_owned).collect::<Vec<_>>());
        lines
            .filter_map(|line| line.splitn(4, ' ').nth(3).map(str::to_owned))
            .collect()
    }

    /// The kubelet starts what has crashed again after a second, and not after up to five minutes: for tests that kill the same
    /// process many times.
    pub(crate) fn without_back_off(&self) {
        let path = self.file("/var/lib/kubelet/config.yaml");
        let text = fs::read_to_string(&path).unwrap();
        let longest = "crashLoopBackOff: {maxContainerRestartPeriod: 1s}";
        let text = text.replace("crashLoopBackOff: {}", longest);
        assert!(text.contains(longest), "{text}");
        fs::write(&path, text).unwrap();
        self.restart_kubelet();
    }

    /// Kills the kubelet, which starts again a second later.
    pub(crate) fn restart_kubelet(&self) {
        let before = self.lab.pids(1, "kubelet").unwrap();
        self.lab.kill(1, "kubelet").unwrap();
        self.wait("the kubelet to start again", 30, || {
            let now = self.lab.pids(1, "kubelet").unwrap();
            if now.is_empty() || now == before {
                Err(format!("{now:?}"))
            } else {
                Ok(())
            }
        });
    }

    /// Names of the fallbacks in the manifest directory.
    pub(crate) fn fallbacks(&self) -> Vec<String> {
        let names = self.manifest_names().into_iter();
        names.filter(|name| name.starts_with("selfhost-fallback-")).collect()
    }

    /// Adds a file to the manifest directory.
    pub(crate) fn add_manifest(&self, name: &str, text: &str) {
        fs::write(self.file(&format!("{MANIFESTS}/{name}")), text).unwrap();
    }
}

/// Tells another thread to end, also when this one panics.
pub(crate) struct Stopper<'a>(pub(crate) &'a AtomicBool);

impl Drop for Stopper<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// A file system of its own in the place of one of the node's directories, with what was in there. The node must be off when
/// it is made: it takes the directories over when it starts.
pub(crate) struct OwnFileSystem(PathBuf);

impl OwnFileSystem {
    /// In memory, of that size, such as `512k`.
    pub(crate) fn mount(directory: &Path, size: &str) -> Self {
        let aside = directory.with_extension("aside");
        run("cp", &["-a", text(directory), text(&aside)]);
        run(
            "mount",
            &[
                "-t",
                "tmpfs",
                "-o",
                &format!("size={size},mode=755"),
                OWN_FILE_SYSTEM,
                text(directory),
            ],
        );
        let mounted = Self(directory.to_owned());
        run("cp", &["-a", &format!("{}/.", text(&aside)), text(directory)]);
        fs::remove_dir_all(&aside).unwrap();
        mounted
    }

    /// Fills it to the last byte; dropped, the value makes room again.
    pub(crate) fn fill(&self) -> Filled {
        use std::io::Write;
        let path = self.0.join("filler");
        let mut file = fs::File::create(&path).unwrap();
        for size in [4096, 1] {
            while file.write_all(&vec![b'x'; size]).is_ok() {}
        }
        let _ = file.sync_all();
        let another = fs::write(self.0.join("another"), "x");
        assert!(another.is_err(), "the file system is full");
        let _ = fs::remove_file(self.0.join("another"));
        Filled(path)
    }

    /// Makes all of it read-only, as a kernel does with a disk that fails; dropped, the value undoes it.
    pub(crate) fn read_only(&self) -> ReadOnly<'_> {
        run("mount", &["-o", "remount,ro", text(&self.0)]);
        assert!(fs::write(self.0.join("x"), "x").is_err(), "it is read-only");
        ReadOnly(self)
    }
}

impl Drop for OwnFileSystem {
    fn drop(&mut self) {
        // the node goes on with it until it is switched off
        let _ = Command::new("umount").arg("--lazy").arg(&self.0).status();
    }
}

/// See [`OwnFileSystem::fill`].
pub(crate) struct Filled(PathBuf);

impl Drop for Filled {
    fn drop(&mut self) {
        let _ = fs::remove_file(&self.0);
    }
}

/// See [`OwnFileSystem::read_only`].
pub(crate) struct ReadOnly<'a>(&'a OwnFileSystem);

impl Drop for ReadOnly<'_> {
    fn drop(&mut self) {
        let _ = Command::new("mount").args(["-o", "remount,rw"]).arg(&self.0.0).status();
    }
}

fn text(path: &Path) -> &str {
    path.to_str().unwrap()
}

fn run(program: &str, args: &[&str]) {
    let output = Command::new(program).args(args).output().unwrap();
    assert!(
        output.status.success(),
        "{program} {args:?}: {}",
        String::from_utf8_lossy(&output.stderr)
    );
}
