//! One node on its way: executable and guard on it, and then one component after the other.

use super::{ConvertOptions, ModeChoice};
use crate::certs_in_secrets::api as secrets;
use crate::cluster_plan::NodePlan;
use crate::component_state::is_converted;
use crate::hand_over::{self, HandOver};
use crate::names::{Component, GUARD};
use crate::node::state::Desired;
use crate::observe::{DaemonSetFacts, Observation, daemon_set_facts, node_facts};
use crate::own_endpoints::Afterwards;
use crate::patience;
use crate::plan::{ComponentState, Plan, Snapshot};
use crate::planning::{Planned, PlannedNode};
use shared::progress::{Outcome, Reporter};
use shared::wait::{self, Poll};
use shared::{Error, Result};
use std::collections::BTreeMap;
use std::time::{Duration, Instant};
use tokio::sync::Notify;

/// How long a guard that has started has to see that it lacks nothing.
const SETTLED: Duration = Duration::from_secs(30);

/// All of a node but the hand-over of its apiserver, which is returned where it is to be done.
pub(super) async fn convert_node<'a>(
    planned: &'a Planned,
    node: &'a PlannedNode,
    plan: &'a NodePlan,
    options: &ConvertOptions,
    along: Along<'a>,
    reporter: &dyn Reporter,
) -> Result<Option<Staged<'a>>> {
    let task = format!("{}/node", node.target.node_name);
    reporter.begin(&task, &format!("{} node", node.target.node_name), 3);
    let prepared = prepare(node, options, &task, reporter).await;
    match &prepared {
        Ok(()) => reporter.finish(&task, Outcome::Done, "the guard watches over this node"),
        Err(error) => reporter.finish(&task, Outcome::Failed, error.what()),
    }
    prepared?;
    // the apiserver is the last of them
    for component in Component::ALL.iter().filter(|one| options.components.contains(one)) {
        let staged = stage_one(planned, node, &plan.plan, options, *component, along, reporter).await?;
        match staged {
            Some(staged) if *component == Component::KubeApiserver => return Ok(Some(staged)),
            Some(staged) => staged.hand_over(reporter).await?,
            None => {}
        }
    }
    Ok(None)
}

/// What a hand-over tells, and what it leaves to be ended, while others go on.
#[derive(Clone, Copy, Debug)]
pub(super) struct Along<'a> {
    pub(super) handed: &'a Notify,
    pub(super) afterwards: &'a Afterwards,
}

/// A component whose Pod waits on its node.
pub(super) struct Staged<'a> {
    hand_over: HandOver<'a>,
    /// How long it took until it waited.
    took: Duration,
}

impl Staged<'_> {
    pub(super) async fn hand_over(self, reporter: &dyn Reporter) -> Result<()> {
        let (task, began) = (&self.hand_over.task, Instant::now());
        match self.hand_over.run(reporter).await {
            Ok(()) => {
                let took = self.took + began.elapsed();
                let text = format!("self-hosted after {:.1} s", took.as_secs_f64());
                reporter.finish(task, Outcome::Done, &text);
                Ok(())
            }
            Err(error) => {
                reporter.finish(task, Outcome::Failed, error.what());
                Err(error)
            }
        }
    }
}

/// Brings a component so far that its Pod waits on the node; `None` when it is self-hosted already.
async fn stage_one<'a>(
    planned: &'a Planned,
    node: &'a PlannedNode,
    plan: &'a Plan,
    options: &ConvertOptions,
    component: Component,
    along: Along<'a>,
    reporter: &dyn Reporter,
) -> Result<Option<Staged<'a>>> {
    let control_plane = &planned.fleet.control_plane;
    let name = &node.target.node_name;
    let task = format!("{name}/{component}");
    reporter.begin(&task, &format!("{name} {component}"), hand_over::STEPS);
    if is_converted(&node.observation, component) {
        reporter.finish(&task, Outcome::Skipped, "self-hosted already");
        return Ok(None);
    }
    let began = Instant::now();
    let wanted = plan.components.iter().find(|plan| plan.component == component);
    let wanted = wanted.and_then(|plan| plan.daemon_set.as_ref());
    // an earlier node of this run may have made it
    let daemon_set_name = match wanted {
        Some(wanted) => wanted["metadata"]["name"].as_str().unwrap_or_default().to_owned(),
        None => node
            .observation
            .daemon_sets
            .get(&component)
            .map_or_else(|| component.daemon_set_name(), |facts| facts.name.clone()),
    };
    let existing = patience::call("the DaemonSet to be read", async || {
        control_plane.daemon_set(&daemon_set_name).await
    })
    .await?;
    let existing = existing.as_ref().map(daemon_set_facts);
    // one that serves is the user's, who may have edited it; one that does not is this program's business
    let serves = node.snapshot.state(component) != ComponentState::Static
        || patience::call("the gated Nodes to be listed", async || {
            control_plane.nodes_with_label(&component.gate_label()).await
        })
        .await?
        .iter()
        .any(|gated| gated != name);
    if let Some(secret) = plan
        .components
        .iter()
        .find(|plan| plan.component == component)
        .and_then(|plan| plan.secret.as_ref())
    {
        reporter.waiting(&task, &format!("Secret {} to be created", secret.name));
        secrets::ensure(control_plane, secret, false).await?;
    }
    let outdated = !serves && existing.is_some() && wanted.and_then(facts_of) != existing;
    let hand_over = HandOver {
        control_plane,
        observation: &node.observation,
        task,
        component,
        daemon_set: wanted.filter(|_| existing.is_none() || outdated),
        daemon_set_name,
        outdated,
        alone: planned.fleet.observations.len() <= 1,
        handed: along.handed,
        afterwards: along.afterwards,
        desired: match options.mode {
            ModeChoice::Steered => Desired::SelfHosted,
            ModeChoice::Gap => Desired::SelfHostedGap,
        },
    };
    if let Err(error) = hand_over.stage(reporter).await {
        reporter.finish(&hand_over.task, Outcome::Failed, error.what());
        return Err(error);
    }
    let took = began.elapsed();
    Ok(Some(Staged { hand_over, took }))
}

fn facts_of(daemon_set: &serde_json::Value) -> Option<DaemonSetFacts> {
    let daemon_set = serde_json::from_value(daemon_set.clone()).ok()?;
    Some(daemon_set_facts(&daemon_set))
}

/// Executable and guard on the node, originals in the cluster: nothing of it touches a component.
async fn prepare(node: &PlannedNode, options: &ConvertOptions, task: &str, reporter: &dyn Reporter) -> Result<()> {
    let PlannedNode {
        target,
        observation,
        snapshot,
        ..
    } = node;
    let name = &target.node_name;
    let image = guard_image(snapshot, observation).ok_or_else(|| {
        Error::refused("no image is known that is on this node")
            .because("no component of the control plane was found to take one from")
    })?;
    let before = observation.node.guard.as_ref().map(|guard| guard.process);
    let began = Instant::now();
    reporter.waiting(task, "the executable and the guard to be installed");
    let changed = target.install(&image, options.last_known_good_after).await?;
    reporter.step(
        task,
        &format!("executable installed as {}", target.binary.path().display()),
    );
    save_originals(node).await?;
    reporter.step(task, "copies of the manifests kept in the cluster");
    let what = format!("the guard of Node {name} (Pod {GUARD}-{name})");
    wait::until(&what, Duration::from_secs(90), Duration::from_millis(250), |what| reporter.waiting(task, what), async || {
        patience::tolerate(async {
            let now = node_facts(&target.control_plane.node(name).await?);
            Ok(match now.guard {
                Some(guard) if guard.build == target.binary.build && (!changed || Some(guard.process) != before) => {
                    // what was installed just now is seen at its next look
                    match guard.troubles.first() {
                        Some(trouble) if began.elapsed() < SETTLED => Poll::Pending(trouble.clone()),
                        _ => Poll::Ready(guard),
                    }
                }
                _ => Poll::Pending("the guard to start and report".into()),
            })
        }
        .await)
    })
    .await
    .and_then(|guard| {
        if guard.troubles.is_empty() {
            return Ok(guard);
        }
        let error = Error::refused(format!("the guard of Node {name} could not do its work when it is needed"));
        Err(guard.troubles.into_iter().fold(error, Error::because))
    })
    .and_then(|guard| match guard.steering_refused {
        Some(why) if options.mode == ModeChoice::Steered => Err(Error::refused(format!("the guard's Pod cannot share and steer ports on Node {name}"))
            .because(why)
            .hint("convert with --mode gap, or allow it what its manifest asks for; `kubectl selfhost revert` takes the guard away")),
        _ => Ok(()),
    })?;
    reporter.step(task, "guard runs");
    Ok(())
}

/// The image of any component: our executable, mounted into it, needs nothing of it. The apiserver's if it is known, so
/// that a later run finds the same one and leaves the guard as it is.
fn guard_image(snapshot: &Snapshot, observation: &Observation) -> Option<String> {
    Component::ALL.into_iter().rev().find_map(|component| {
        let from_manifest = || {
            let pod = &snapshot.inventory.originals.get(&component)?.pod;
            let spec = crate::component_spec::ComponentSpec::new(component, pod).ok()?;
            spec.container().get("image")?.as_str().map(str::to_owned)
        };
        let pods = observation.pods.get(&component);
        from_manifest().or_else(|| {
            pods?
                .iter()
                .map(|pod| pod.image.clone())
                .find(|image| !image.is_empty())
        })
    })
}

async fn save_originals(node: &PlannedNode) -> Result<()> {
    let (control_plane, name) = (&node.target.control_plane, &node.target.node_name);
    let Some(survey) = &node.survey else { return Ok(()) };
    let mut files: BTreeMap<String, Vec<u8>> = patience::call("the copies of the manifests to be read", async || {
        control_plane.originals(name).await
    })
    .await?
    .unwrap_or_default();
    let before = files.clone();
    for (component, file) in &node.snapshot.inventory.originals {
        let state = node.snapshot.states.get(component);
        if state != Some(&ComponentState::Static) && files.contains_key(component.name()) {
            continue; // a hand-over is on its way: what was saved before it began counts
        }
        let metadata = survey
            .originals
            .get(component)
            .ok_or_else(|| Error::new("a manifest cannot be saved").because("its owner and mode are not known"))?;
        let metadata =
            serde_json::to_vec(metadata).map_err(|error| Error::new("a manifest cannot be saved").because(error))?;
        files.insert(component.name().to_owned(), file.bytes.clone());
        files.insert(format!("{component}.json"), metadata);
    }
    if files != before {
        patience::call("the copies of the manifests to be kept", async || {
            control_plane.save_originals(name, &files).await
        })
        .await?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::daemon_set::build_daemon_set;
    use crate::mutators::{Mode, default_mutators, test_support};

    fn facts(mode: Mode, build: &str, original: &str) -> DaemonSetFacts {
        let component = Component::KubeScheduler;
        let context = crate::mutators::Context {
            mode,
            build: build.into(),
            original_sha256: Some(original.into()),
            ..test_support::context(component)
        };
        let pod = serde_json::json!({"spec": {"hostNetwork": true, "containers": [{
            "name": "kube-scheduler", "image": "i", "command": ["kube-scheduler"], "livenessProbe": {"httpGet": {"port": 10259}}}]}});
        facts_of(&build_daemon_set(component, &pod, &default_mutators(component, &mode), &context).unwrap()).unwrap()
    }

    #[test]
    fn a_daemon_set_of_another_mode_build_or_original_is_another_one() {
        let this = facts(Mode::Steered, "b1", "o1");
        assert!(this.ours && !this.gap);
        assert_eq!(
            (this.build.as_deref(), this.original.as_deref()),
            (Some("b1"), Some("o1"))
        );
        assert_eq!(this, facts(Mode::Steered, "b1", "o1"));
        for other in [
            facts(Mode::Gap, "b1", "o1"),
            facts(Mode::Steered, "b2", "o1"),
            facts(Mode::Steered, "b1", "o2"),
        ] {
            assert_ne!(this, other);
        }
    }
}
