//! `cargo demo`: a real control plane is converted, rolled, broken, mended and reverted, and then edited the old way, while
//! an ordinary user's requests are counted.

pub mod klusterlet;
pub mod narrator;
pub mod phase;

use std::{
    path::{Path, PathBuf},
    time::Duration,
};

use crate::{
    cache,
    error::{Error, Result},
    interrupt,
    lab::{Lab, Options},
    operate::{
        Operator, Trouble,
        beside::Beside,
        edits::{self, Component, Mistake},
    },
    settings::Settings,
    static_binary,
};
use narrator::Narrator;
use phase::{Allowed, Phase, table};

/// Steps that are announced.
pub const STEPS: usize = 7;
/// The apiserver, as its edits are what clients notice.
const COMPONENT: Component = Component::KubeApiserver;
const FLAG: &str = "event-ttl";
const VALUE: &str = "2h";
/// What a revert may cost.
const LONGEST_GAP: f64 = 5.0;
/// Longest conversion or revert: each of three components may need its deadline.
const COMMAND_DEADLINE: Duration = Duration::from_secs(900);
/// The meters go on for that long after the end of each phase.
const AFTER: Duration = Duration::from_secs(3);

/// Shows everything. Returns the table of what it cost, and what was not as promised.
///
/// # Errors
/// A step could not be done.
pub fn run(settings: Settings, binary: Option<PathBuf>, narrator: Narrator) -> Result<(String, Vec<String>)> {
    narrator.step(
        1,
        "Build Kubernetes from its Go modules, and the plugin as one static file",
        "Everything below is real. The first time takes some minutes; both are kept.",
    );
    crate::packages::require_root("show the demo")?;
    cache::ensure(&settings)?;
    let binary = match binary {
        Some(binary) => binary,
        None => narrator.during("building the plugin", static_binary::build_static)?,
    };
    narrator.step(
        2,
        "Make a cluster of one node with kubeadm",
        "Its control plane runs as static Pods: files in /etc/kubernetes/manifests.",
    );
    let lab = narrator.during("making the cluster", || Lab::guarded(settings, 1, &Options::default()))?;
    let shown = Demo {
        narrator,
        operator: Operator::new(&lab, &binary),
        phases: Vec::new(),
    }
    .show();
    if shown.is_err() {
        interrupt::stop_here_when_about_to_be_interrupted();
    }
    narrator.during("taking the cluster down", || drop(lab));
    let phases = shown?;
    let wrong = phases.iter().filter_map(|p| p.verdict().err()).collect();
    Ok((table(&phases), wrong))
}

struct Demo<'a> {
    narrator: Narrator,
    operator: Operator<'a>,
    phases: Vec<Phase>,
}

impl Demo<'_> {
    fn show(mut self) -> Result<Vec<Phase>> {
        self.convert()?;
        self.good_edit()?;
        self.bad_edit()?;
        self.revert()?;
        self.old_way()?;
        Ok(self.phases)
    }

    /// Does something with all meters running beside.
    fn measured(
        &mut self,
        name: &'static str,
        allowed: Allowed,
        work: impl FnOnce(&Narrator, &Operator<'_>) -> Result<()>,
    ) -> Result<()> {
        let (narrator, operator) = (self.narrator, &self.operator);
        let beside = Beside::start(operator.lab())?;
        interrupt::pause(Duration::from_secs(1));
        work(&narrator, operator)?;
        interrupt::pause(AFTER);
        let counts = narrator.during("reading the meters", || beside.stop())?.counts();
        let phase = Phase { name, counts, allowed };
        let all = [phase.counts.new, phase.counts.http2, phase.counts.http1];
        narrator.say(&format!(
            "=> {} requests, {} failed, longest gap {:.1} s{}",
            all.iter().map(|s| s.sent).sum::<u64>(),
            all.iter().map(|s| s.failed).sum::<u64>(),
            phase.counts.longest_gap,
            if phase.counts.longest_disturbance > phase.counts.longest_gap {
                format!(" ({:.1} s until the last failure)", phase.counts.longest_disturbance)
            } else {
                String::new()
            }
        ));
        if let Err(wrong) = phase.verdict() {
            narrator.say(&format!("=> NOT AS PROMISED: {wrong}"));
            phase
                .counts
                .kinds
                .iter()
                .for_each(|kind| narrator.say(&format!("   {kind}")));
        }
        self.phases.push(phase);
        Ok(())
    }

    fn convert(&mut self) -> Result<()> {
        self.narrator.step(
            3,
            "kubectl selfhost convert",
            "Each static Pod hands its port over to a Pod of a DaemonSet. Nobody is to notice.",
        );
        self.measured("convert", Allowed::Nothing, |narrator, operator| {
            narrator.during_bars("converting", || {
                operator.selfhost_on_terminal(&["convert", "--yes"], COMMAND_DEADLINE)
            })?;
            must_be(operator, "self-hosted")
        })?;
        self.show_status()
    }

    fn good_edit(&mut self) -> Result<()> {
        self.narrator.step(
            4,
            "Change a flag of the apiserver, through its DaemonSet",
            "It rolls like any workload: the new one proves healthy before the old one goes.",
        );
        self.measured("flag, DaemonSet", Allowed::Nothing, |narrator, operator| {
            let patch = edits::set_flag(&operator.daemon_set(COMPONENT)?, COMPONENT, FLAG, VALUE)?;
            narrator.say(&format!(
                "$ kubectl -n kube-system patch daemonset {} --type=json -p '{patch}'",
                COMPONENT.daemon_set()
            ));
            let pod = narrator.during("rolling", || operator.roll(COMPONENT, FLAG, VALUE))?;
            narrator.say(&format!("Pod {} serves with --{FLAG}={VALUE}.", pod.name));
            Ok(())
        })
    }

    fn bad_edit(&mut self) -> Result<()> {
        self.narrator.step(
            5,
            "Break it: a wrong --etcd-servers, and then kubectl rollout undo",
            "With a static Pod this ends in a dead API. Here the old Pod goes on serving.",
        );
        self.measured("bad edit and undo", Allowed::Nothing, |narrator, operator| {
            let before = operator.settle(COMPONENT)?;
            operator.make_mistake(COMPONENT, Mistake::WrongBackend)?;
            let trouble = narrator.during("the new apiserver tries", || name_trouble(operator, &before.name))?;
            narrator.say("$ kubectl selfhost status");
            let (status, _) = operator.selfhost(&["status"])?;
            narrator.say(&status.stdout);
            narrator.say(&status.stderr);
            narrator.say(&format!(
                "It names the Pod ({}), the reason ({}) and its last line.",
                trouble.pod, trouble.reason
            ));
            narrator.say(&format!(
                "$ kubectl -n kube-system rollout undo daemonset/{}",
                COMPONENT.daemon_set()
            ));
            operator.undo(COMPONENT)?;
            let after = narrator.during("undoing", || operator.settle(COMPONENT))?;
            if after.uid != before.uid || after.restarts != before.restarts {
                return Err(Error::new(
                    "undo the bad edit",
                    format!("Pod {} serves now, and not {} from before", after.name, before.name),
                ));
            }
            narrator.say(&format!("Pod {} has served all the time.", after.name));
            Ok(())
        })
    }

    fn show_status(&self) -> Result<()> {
        self.narrator.say("$ kubectl selfhost status");
        let (status, _) = self.operator.selfhost(&["status"])?;
        self.narrator.say(&status.stdout);
        self.narrator.say(&status.stderr);
        Ok(())
    }

    fn revert(&mut self) -> Result<()> {
        self.narrator.step(
            6,
            "kubectl selfhost revert",
            "The way back is always open. It costs one short gap, which it announces.",
        );
        let before = self
            .operator
            .lab()
            .file(1, "/etc/kubernetes/manifests/kube-apiserver.yaml")?;
        self.measured("revert", Allowed::OneGap(LONGEST_GAP), |narrator, operator| {
            narrator.during_bars("reverting", || {
                operator.selfhost_on_terminal(&["revert", "--yes"], COMMAND_DEADLINE)
            })?;
            must_be(operator, "static")
        })?;
        must_exist(&before)
    }

    fn old_way(&mut self) -> Result<()> {
        self.narrator.step(
            7,
            "The same flag in the static manifest, for comparison",
            "The kubelet stops the only apiserver, and then starts the new one.",
        );
        self.measured("flag, static manifest", Allowed::MustFail, |narrator, operator| {
            let text = operator.read_manifest(COMPONENT)?;
            let edited = edits::set_flag_in_manifest(&text, COMPONENT, FLAG, VALUE)?;
            narrator.during("the API is away", || {
                operator.edit_manifest(COMPONENT, &edited, FLAG, Some(VALUE))
            })
        })
    }
}

fn must_be(operator: &Operator<'_>, state: &str) -> Result<()> {
    let states = operator.states()?;
    if states.iter().all(|s| s == state) {
        return Ok(());
    }
    Err(Error::new(
        format!("see that all components are {state}"),
        format!("kubectl selfhost status says {}", states.join(", ")),
    ))
}

fn must_exist(path: &Path) -> Result<()> {
    if path.exists() {
        return Ok(());
    }
    Err(Error::new(
        "see that the manifest is back",
        format!("{} is not there", path.display()),
    ))
}

/// Waits until `status` names what is wrong with the Pod that is not the old one, with the last line that it wrote.
fn name_trouble(operator: &Operator<'_>, old: &str) -> Result<Trouble> {
    let deadline = Duration::from_secs(150);
    crate::command::wait_for(
        "kubectl selfhost status to name what is wrong",
        deadline,
        Duration::from_secs(2),
        || {
            let troubles = operator.troubles(COMPONENT)?;
            let named = troubles
                .iter()
                .find(|t| t.pod != old && !t.reason.is_empty() && !t.last_log_line.is_empty());
            Ok(named.cloned().ok_or_else(|| format!("it says {troubles:?}")))
        },
    )
}
