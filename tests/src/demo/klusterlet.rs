//! `cargo demo klusterlet`: a spoke joins a real hub, is accepted, and gets its next certificate by itself.

use std::{
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    time::Duration,
};

use serde_json::Value;

use super::narrator::Narrator;
use crate::{
    command::{self, Output},
    error::{Context, Error, Result},
    hub::{Api, ApiOptions, Parts},
    settings::Purpose,
    static_binary::build_static_of,
};

/// The cluster's name on the hub.
const CLUSTER: &str = "edge-7";
/// Life of the certificates, so short that one sees the next.
const LIFE: &str = "2m";
const DEADLINE: Duration = Duration::from_secs(120);

/// An agent, ended with the demo.
struct Agent(Child);

impl Drop for Agent {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Shows everything.
///
/// # Errors
/// A step could not be done.
pub fn run(binary: Option<PathBuf>, narrator: Narrator) -> Result<()> {
    crate::packages::require_root("show the demo")?;
    narrator.step(
        1,
        "Build Kubernetes, Open Cluster Management and the plugin",
        "Everything below is real. The first time takes some minutes.",
    );
    let parts = Parts::ensure(Purpose::Demo)?;
    let binary = match binary {
        Some(binary) => binary,
        None => narrator.during("building the plugin", || build_static_of("kubectl-klusterlet"))?,
    };
    narrator.step(
        2,
        "Start a hub and a spoke",
        "Two Kubernetes APIs as plain processes; on the hub, Open Cluster Management's own controllers.",
    );
    let options = ApiOptions {
        signing_duration: LIFE.into(),
        ..ApiOptions::default()
    };
    let mut hub = narrator.during("starting the hub", || Api::up(&parts, "hub", &options))?;
    let bootstrap = narrator.during("making it a hub", || hub.become_hub())?;
    let spoke = narrator.during("starting the spoke", || {
        Api::up(&parts, "spoke", &ApiOptions::default())
    })?;
    let demo = Demo {
        narrator,
        binary,
        hub,
        spoke,
        bootstrap,
    };
    demo.show()
}

struct Demo {
    narrator: Narrator,
    binary: PathBuf,
    hub: Api,
    spoke: Api,
    bootstrap: PathBuf,
}

impl Demo {
    fn command(&self, args: &[&str], kubeconfig: &Path) -> Command {
        let mut command = Command::new(&self.binary);
        command
            .env_clear()
            .args(args)
            .arg(format!("--kubeconfig={}", kubeconfig.display()));
        command
    }

    fn tell(&self, args: &[&str], kubeconfig: &Path) -> Result<Output> {
        let shown = format!(
            "kubectl klusterlet {}",
            args.iter()
                .filter(|arg| !arg.contains('/'))
                .copied()
                .collect::<Vec<_>>()
                .join(" ")
        );
        self.narrator.say(&format!("$ {shown}"));
        let output = command::run(&mut self.command(args, kubeconfig), &shown, DEADLINE)?.checked(&shown)?;
        for line in output.stdout.lines().chain(output.stderr.lines()) {
            self.narrator.say(&format!("  {line}"));
        }
        Ok(output)
    }

    fn show(&self) -> Result<()> {
        let narrator = self.narrator;
        let files = format!(
            "--hub-kubeconfig-dir={}",
            self.spoke.directory().join("files").display()
        );
        let bootstrap = format!("--bootstrap-kubeconfig={}", self.bootstrap.display());
        let cluster = format!("--cluster-name={CLUSTER}");
        narrator.step(
            3,
            "Join",
            "The plugin registers the spoke and asks for a certificate; then it waits for the hub's administrator.",
        );
        narrator.say(&format!(
            "$ kubectl klusterlet join --cluster-name={CLUSTER} --bootstrap-kubeconfig=bootstrap.conf"
        ));
        let mut join = self.command(&["join", "--yes", &cluster, &bootstrap, &files], &self.spoke.admin());
        let log = self.spoke.directory().join("join.log");
        let file = std::fs::File::create(&log).what(|| format!("write {}", log.display()))?;
        let mut agent = Agent(
            join.stdin(Stdio::null())
                .stderr(file)
                .spawn()
                .what(|| "start join".to_owned())?,
        );
        let label = format!("open-cluster-management.io/cluster-name={CLUSTER}");
        self.hub.eventually("the certificate request", DEADLINE, |hub| {
            Ok(hub.get(&["csr", "-l", &label])?["items"]
                .as_array()
                .is_some_and(|all| !all.is_empty())
                .then_some(()))
        })?;
        narrator.step(
            4,
            "Accept, with a context of the hub",
            "The right request is found by its subject and its requester.",
        );
        self.tell(&["accept", CLUSTER, "--yes", "--wait=available"], &self.hub.admin())?;
        let said = std::fs::read_to_string(&log).unwrap_or_default();
        for line in said.lines() {
            narrator.say(&format!("  {line}"));
        }
        narrator.step(5, "Status", "What the spoke keeps, and what the hub shows.");
        self.tell(&["status", &files], &self.spoke.admin())?;
        narrator.step(6, "The next certificate", "Its life is some minutes here. With a quarter of it left the agent asks for the next one, and the hub approves by itself.");
        let first = self.certificate()?;
        narrator.during("waiting for the next certificate", || {
            self.hub.eventually("the next certificate", DEADLINE, |_| {
                Ok((self.certificate()? != first).then_some(()))
            })
        })?;
        self.tell(&["status", &files], &self.spoke.admin())?;
        if let Some(status) = agent.0.try_wait().what(|| "look at the agent".to_owned())? {
            return Err(Error::new("keep the agent", format!("it ended: {status}")));
        }
        narrator.step(7, "Leave", "The agent ends, and the spoke keeps nothing.");
        drop(agent);
        self.tell(&["leave", "--yes", &files], &self.spoke.admin())?;
        Ok(())
    }

    fn certificate(&self) -> Result<Value> {
        let secret = self
            .spoke
            .get(&["secret", "-n", "open-cluster-management", "hub-kubeconfig-secret"])?;
        Ok(secret["data"]["tls.crt"].clone())
    }
}
