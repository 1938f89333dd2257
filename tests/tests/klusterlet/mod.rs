//! `kubectl klusterlet` against a real hub: Open Cluster Management's own controllers, Kubernetes' own signer, and accounts
//! with the rights that are shipped.

mod commands;
mod hub_side;
mod network;
mod reports;
mod scenarios;

use std::{
    fs,
    fs::File,
    os::unix::fs::PermissionsExt,
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    sync::{
        OnceLock,
        atomic::{AtomicU32, Ordering},
    },
    thread,
    time::{Duration, Instant},
};

use rustix::process::{Pid, Signal, kill_process};
use serde_json::{Value, json};
use tests::{
    command::{self, Output},
    hub::{APISERVER, Api, ApiOptions, AuditEvent, Parts},
    lanes::{self, Lane},
    settings::Purpose,
    static_binary::build_static_of,
};

use crate::support::built_alone;

const SECRET: &str = "hub-kubeconfig-secret";
const PENDING: &str = "hub-kubeconfig-secret-pending";
const NAMESPACE: &str = "open-cluster-management";
const MINUTE: Duration = Duration::from_secs(60);
const ACCOUNT: &str = "agent-registration-bootstrap";

/// The plugin under test: built from this checkout, or the file named by `KLUSTERLET_TEST_BINARY`.
pub(crate) fn binary() -> &'static Path {
    static BINARY: OnceLock<PathBuf> = OnceLock::new();
    BINARY.get_or_init(|| match std::env::var_os("KLUSTERLET_TEST_BINARY") {
        Some(path) => path.into(),
        None => build_static_of("kubectl-klusterlet").unwrap(),
    })
}

/// A hub and a spoke. In a lane of their own: an API takes 400 MB.
struct Pair {
    spoke: Api,
    hub: Api,
    bootstrap: PathBuf,
    _lane: Lane,
}

impl Pair {
    fn up() -> Self {
        Self::with(&ApiOptions::default())
    }

    fn with(options: &ApiOptions) -> Self {
        built_alone();
        let lane = lanes::take();
        let parts = Parts::beside(Purpose::Tests, lane.number()).unwrap();
        let mut hub = Api::up(&parts, "hub", options).unwrap();
        let bootstrap = hub.become_hub().unwrap();
        let spoke = Api::up(&parts, "spoke", &ApiOptions::default()).unwrap();
        Self {
            spoke,
            hub,
            bootstrap,
            _lane: lane,
        }
    }

    /// The directory of this cluster's files.
    fn files(&self, cluster: &str) -> PathBuf {
        self.spoke.directory().join(format!("{cluster}.files"))
    }

    /// The flags of an agent of this cluster.
    fn flags(&self, cluster: &str, bootstrap: &Path) -> Vec<String> {
        vec![
            format!("--kubeconfig={}", self.spoke.admin().display()),
            format!("--cluster-name={cluster}"),
            format!("--bootstrap-kubeconfig={}", bootstrap.display()),
            format!("--hub-kubeconfig-dir={}", self.files(cluster).display()),
        ]
    }

    fn command(&self, verb: &str, cluster: &str, more: &[&str]) -> Command {
        let mut command = Command::new(binary());
        command
            .env_clear()
            .arg(verb)
            .args(self.flags(cluster, &self.bootstrap))
            .args(more);
        command
    }

    /// Runs a command of the spoke to its end.
    fn klusterlet(&self, verb: &str, cluster: &str, more: &[&str]) -> Output {
        command::run(
            &mut self.command(verb, cluster, more),
            &format!("klusterlet {verb} {more:?}"),
            3 * MINUTE,
        )
        .unwrap()
    }

    /// Commands that take no agent's flags.
    fn place(&self, verb: &str, cluster: &str, more: &[&str]) -> Output {
        let mut command = Command::new(binary());
        command
            .env_clear()
            .arg(verb)
            .arg(format!("--kubeconfig={}", self.spoke.admin().display()))
            .arg(format!("--hub-kubeconfig-dir={}", self.files(cluster).display()))
            .args(more);
        command::run(&mut command, &format!("klusterlet {verb} {more:?}"), MINUTE).unwrap()
    }

    /// `accept` with the hub's administrator.
    fn accept(&self, cluster: &str, more: &[&str]) -> Output {
        let mut command = Command::new(binary());
        command
            .env_clear()
            .args(["accept", cluster, "--yes"])
            .arg(format!("--kubeconfig={}", self.hub.admin().display()))
            .args(more);
        command::run(
            &mut command,
            &format!("klusterlet accept {cluster} {more:?}"),
            2 * MINUTE,
        )
        .unwrap()
    }

    fn run(&self, cluster: &str) -> Agent {
        self.run_with(cluster, &self.bootstrap, &[])
    }

    fn run_with(&self, cluster: &str, bootstrap: &Path, more: &[&str]) -> Agent {
        static COUNTER: AtomicU32 = AtomicU32::new(0);
        let number = COUNTER.fetch_add(1, Ordering::Relaxed);
        let log = self.spoke.directory().join(format!("{cluster}.{number}.log"));
        let child = Command::new(binary())
            .env_clear()
            .arg("run")
            .args(self.flags(cluster, bootstrap))
            .args(["--listen=none", "--cluster-healthcheck-period=5s"])
            .args(more)
            .stdin(Stdio::null())
            .stderr(File::create(&log).unwrap())
            .spawn()
            .unwrap();
        Agent { child, log }
    }

    fn open_requests(&self, cluster: &str) -> Vec<Value> {
        let all = self
            .hub
            .get(&[
                "csr",
                "-l",
                &format!("open-cluster-management.io/cluster-name={cluster}"),
            ])
            .unwrap();
        let items = all["items"].as_array().unwrap().clone();
        items
            .into_iter()
            .filter(|request| request["status"]["conditions"].is_null())
            .collect()
    }

    fn all_requests(&self, cluster: &str) -> usize {
        let all = self
            .hub
            .get(&[
                "csr",
                "-l",
                &format!("open-cluster-management.io/cluster-name={cluster}"),
            ])
            .unwrap();
        all["items"].as_array().unwrap().len()
    }

    fn wait_for_request(&self, cluster: &str) -> String {
        self.hub
            .eventually("a certificate request", MINUTE, |_| {
                Ok(self
                    .open_requests(cluster)
                    .first()
                    .map(|request| request["metadata"]["name"].as_str().unwrap().to_owned()))
            })
            .unwrap()
    }

    /// A condition's status, or nothing.
    fn condition(&self, cluster: &str, kind: &str) -> Option<String> {
        let output = self
            .hub
            .kubectl(&["get", "managedcluster", cluster, "-o", "json"])
            .unwrap();
        let object: Value = serde_json::from_str(&output.stdout).ok()?;
        let all = object["status"]["conditions"].as_array()?;
        let found = all.iter().find(|condition| condition["type"] == kind)?;
        Some(found["status"].as_str()?.to_owned())
    }

    fn wait_for(&self, cluster: &str, kind: &str, status: &str, deadline: Duration) {
        self.hub
            .eventually(&format!("{kind} to be {status}"), deadline, |_| {
                Ok((self.condition(cluster, kind).as_deref() == Some(status)).then_some(()))
            })
            .unwrap();
    }

    fn wait_until_available(&self, cluster: &str) {
        self.wait_for(cluster, "ManagedClusterJoined", "True", MINUTE);
        self.wait_for(cluster, "ManagedClusterConditionAvailable", "True", MINUTE);
    }

    fn join_by(&self, cluster: &str) -> Agent {
        let agent = self.run(cluster);
        self.wait_for_request(cluster);
        ok(&self.accept(cluster, &[]));
        self.wait_until_available(cluster);
        agent
    }

    fn secret(&self, name: &str) -> Option<Value> {
        let output = self
            .spoke
            .kubectl(&["get", "secret", "-n", NAMESPACE, name, "-o", "json"])
            .unwrap();
        output.success().then(|| serde_json::from_str(&output.stdout).unwrap())
    }

    /// How often the hub wants the lease to be renewed.
    fn set_lease(&self, cluster: &str, seconds: u32) {
        let patch = json!({"spec": {"leaseDurationSeconds": seconds}}).to_string();
        self.hub
            .must(&["patch", "managedcluster", cluster, "--type=merge", "-p", &patch])
            .unwrap();
    }

    fn lease(&self, cluster: &str) -> String {
        let lease = self
            .hub
            .get(&["lease", "-n", cluster, "managed-cluster-lease"])
            .unwrap();
        lease["spec"]["renewTime"].as_str().unwrap().to_owned()
    }

    fn wait_for_renewal(&self, cluster: &str, deadline: Duration) {
        let before = self.lease(cluster);
        self.hub
            .eventually("the lease to be renewed", deadline, |_| {
                Ok((self.lease(cluster) != before).then_some(()))
            })
            .unwrap();
    }

    fn status(&self, cluster: &str) -> Value {
        let output = self.place("status", cluster, &["-o", "json"]);
        ok(&output);
        serde_json::from_str(&output.stdout).unwrap()
    }
}

/// An agent that runs; killed when it is dropped.
struct Agent {
    child: Child,
    log: PathBuf,
}

impl Agent {
    fn log(&self) -> String {
        fs::read_to_string(&self.log).unwrap()
    }

    fn wait_for_line(&self, text: &str) {
        let begin = Instant::now();
        while !self.log().contains(text) {
            assert!(begin.elapsed() < MINUTE, "no line with {text:?}:\n{}", self.log());
            thread::sleep(Duration::from_millis(100));
        }
    }

    fn lives(&mut self) -> bool {
        self.child.try_wait().unwrap().is_none()
    }

    /// As a supervisor ends it. Returns its exit code.
    fn terminate(&mut self) -> Option<i32> {
        kill_process(
            Pid::from_raw(i32::try_from(self.child.id()).unwrap()).unwrap(),
            Signal::TERM,
        )
        .unwrap();
        let begin = Instant::now();
        loop {
            if let Some(status) = self.child.try_wait().unwrap() {
                return status.code();
            }
            assert!(
                begin.elapsed() < Duration::from_secs(10),
                "it does not end:\n{}",
                self.log()
            );
            thread::sleep(Duration::from_millis(20));
        }
    }
}

impl Drop for Agent {
    fn drop(&mut self) {
        if thread::panicking() {
            tests::cache::say(&format!("log of the agent:\n{}", command::tail(&self.log(), 30)));
        }
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn ok(output: &Output) {
    code(output, 0);
}

fn code(output: &Output, expected: i32) {
    assert_eq!(
        output.status.code(),
        Some(expected),
        "{}\n{}",
        output.stdout,
        output.stderr
    );
}

fn by<'a>(events: &'a [AuditEvent], verb: &str, resource: &str) -> Vec<&'a AuditEvent> {
    events
        .iter()
        .filter(|event| event.verb == verb && event.resource == resource)
        .collect()
}
