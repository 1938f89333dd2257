//! `kubectl selfhost revert`: back to the original static Pods, and nothing of ours is left.

use crate::cluster_plan::order;
use crate::component_state::is_untouched;
use crate::daemon_set::per_node_name;
use crate::fleet::Fleet;
use crate::hand_over::awaited;
use crate::leadership;
use crate::names::{Component, GUARD};
use crate::node::state::{Desired, Report, State};
use crate::observe::{Observation, is_ours, node_facts};
use crate::own_endpoints::{self, Afterwards};
use crate::patience::{self, tolerate};
use crate::planning::burdens;
use crate::run_lock::RunLock;
use crate::survey::has_files;
use crate::target::{Place, Target};
use serde::Serialize;
use shared::output::{DryRun, OutputFormat};
use shared::progress::{Outcome, Reporter, reporter};
use shared::wait::{self, Poll};
use shared::{Error, Printer, Result, prompt};
use std::time::{Duration, Instant};

const INTERVAL: Duration = Duration::from_millis(250);
/// The kubelet's stop of a Pod with its grace of 30 s, a start, and some.
const DEADLINE: Duration = Duration::from_secs(150);
const STEPS: u64 = 3;

/// What is asked for.
#[derive(Clone, Copy, Debug)]
pub struct RevertOptions {
    /// The original with port sharing on: no gap.
    pub keep_sharing: bool,
    /// Do not ask.
    pub yes: bool,
    /// Change nothing.
    pub dry_run: DryRun,
    /// How to print.
    pub output: OutputFormat,
}

/// What a revert would do to the cluster: its nodes in the order in which they are reverted.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct ClusterRevertPlan {
    /// `selfhost/v1`; changes when a field changes its meaning.
    pub api_version: &'static str,
    /// `ClusterRevertPlan`.
    pub kind: &'static str,
    /// The nodes.
    pub nodes: Vec<RevertPlan>,
}

/// What a revert would do to one node.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct RevertPlan {
    /// The Node.
    pub node: String,
    /// Components that go back to their static Pods, in this order.
    pub components: Vec<Component>,
    /// Components that are static, and only lose what is left of an earlier attempt.
    pub clean: Vec<Component>,
    /// For how long the API is away.
    pub expected_gap: String,
    /// Whether guard, files, labels, annotations and copies are there to be removed.
    pub leftovers: bool,
}

impl RevertPlan {
    /// Whether there is nothing to do.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.components.is_empty() && !self.leftovers
    }

    /// For people.
    #[must_use]
    pub fn text(&self, keep_sharing: bool) -> String {
        if self.is_empty() {
            return format!("Node {}: nothing to do\n", self.node);
        }
        let mut text = format!("Node {}\n", self.node);
        for component in &self.components {
            let how = if keep_sharing {
                "the original manifest with --permit-port-sharing=true starts beside it, then its Pod goes"
            } else {
                "its Pod goes, then the original manifest comes back, the same to the byte"
            };
            text.push_str(&format!("  {component}: {how}\n"));
        }
        for component in &self.clean {
            text.push_str(&format!("  {component}: is static already\n"));
        }
        text.push_str("  then: guard, labels, annotations, copies, files and DaemonSets of ours that serve no other node are removed\n");
        text.push_str(&format!("  expected gap of the API: {}\n", self.expected_gap));
        text
    }
}

/// Plans from what was seen; `files` says whether anything of ours lies on the node, `alone` that the cluster has no other
/// control-plane node.
#[must_use]
pub fn plan(observation: &Observation, keep_sharing: bool, files: bool, alone: bool) -> RevertPlan {
    let (clean, components): (Vec<_>, Vec<_>) = Component::ALL
        .into_iter()
        .partition(|component| is_untouched(observation, *component));
    let gap = components.contains(&Component::KubeApiserver) && !keep_sharing;
    // a DaemonSet that others have Pods of is theirs
    let ours = alone && observation.daemon_sets.values().any(|daemon_set| daemon_set.ours);
    RevertPlan {
        node: observation.node.name.clone(),
        components,
        clean,
        expected_gap: match (gap, alone) {
            (true, true) => "one, of about 3 s; for a few seconds more the starting apiserver may answer 403",
            (true, false) => {
                "one of about 3 s at this node's address; none for clients that know the other nodes' addresses"
            }
            (false, _) => "none",
        }
        .to_owned(),
        leftovers: files || observation.guard_pod.is_some() || observation.node.marked || ours,
    }
}

/// A node that is to be reverted.
#[derive(Debug)]
struct Reverted<'a> {
    target: Target,
    observation: &'a Observation,
    plan: RevertPlan,
    /// The cluster has no other control-plane node.
    alone: bool,
}

/// Reverts the nodes that were asked for.
///
/// # Errors
/// What went wrong, with what to do. A revert that was broken off is finished by the next one.
pub async fn revert(fleet: &Fleet, options: RevertOptions, printer: &Printer) -> Result<()> {
    tokio::select! {
        result = run(fleet, options, printer) => result,
        _ = tokio::signal::ctrl_c() => {
            fleet.control_plane.delete_own_helpers().await;
            Err(Error::interrupted("interrupted")
                .hint("the guard of the node finishes what has begun")
                .hint("run the same command again to carry on"))
        }
    }
}

async fn run(fleet: &Fleet, options: RevertOptions, printer: &Printer) -> Result<()> {
    let nodes = planned(fleet, options).await?;
    let reporter = reporter(printer, options.output);
    if nodes.iter().all(|node| node.plan.is_empty()) {
        for node in &nodes {
            reporter.note(&format!(
                "Node {} is static already, and nothing of ours is left: nothing to do",
                node.target.node_name
            ));
        }
        return Ok(());
    }
    if options.output == OutputFormat::Json {
        if options.dry_run != DryRun::None {
            let plan = ClusterRevertPlan {
                api_version: crate::plan::API_VERSION,
                kind: "ClusterRevertPlan",
                nodes: nodes.iter().map(|node| node.plan.clone()).collect(),
            };
            return shared::output::print(printer, options.output, &plan, |_| shared::table::Table::new(["NODE"]));
        }
    } else {
        for node in &nodes {
            printer.data(&node.plan.text(options.keep_sharing))?;
        }
    }
    if options.dry_run != DryRun::None {
        return Ok(());
    }
    for node in &nodes {
        guard_must_be_there(node.observation, &node.plan)?;
        no_roll_may_be_on_its_way(node.observation, &node.plan)?;
    }
    let names: Vec<&str> = nodes.iter().map(|node| node.target.node_name.as_str()).collect();
    let question = match names.as_slice() {
        [only] => format!("Revert the control plane of Node {only}?"),
        several => format!("Revert the control plane of the Nodes {}?", several.join(", ")),
    };
    prompt::confirm(printer, &question, None, options.yes)?;
    let lock = RunLock::acquire(&fleet.control_plane, |what| {
        reporter.note(&format!("waiting for {what}"));
    })
    .await?;
    let result = tokio::select! {
        result = apply(&nodes, options, reporter.as_ref()) => result,
        lost = lock.lost() => Err(lost),
        _ = tokio::signal::ctrl_c() => {
            lock.release().await;
            // the outer one tells
            return std::future::pending().await;
        }
    };
    lock.release().await;
    result
}

/// The nodes with their plans, in the order in which they go back.
async fn planned(fleet: &Fleet, options: RevertOptions) -> Result<Vec<Reverted<'_>>> {
    let burdens = burdens(fleet).await?;
    let alone = fleet.observations.len() <= 1;
    let names = fleet.selected().iter().map(|seen| seen.node.name.clone()).collect();
    let mut nodes = Vec::new();
    for name in order(names, &burdens) {
        let Some(observation) = fleet.observations.iter().find(|seen| seen.node.name == name) else {
            continue;
        };
        let target = fleet.target(observation)?;
        let files = match &target.place {
            Place::Here(local) => has_files(local),
            // nothing in the cluster says so, and it costs a Pod to look: only where the node was asked for by its name
            Place::Away { .. } if fleet.reach.nodes.contains(&name) && !observation.node.marked => {
                target.survey().await?.has_files
            }
            Place::Away { .. } => false,
        };
        nodes.push(Reverted {
            plan: plan(observation, options.keep_sharing, files, alone),
            target,
            observation,
            alone,
        });
    }
    Ok(nodes)
}

/// A roll that is on its way, or stuck, must end first: two Pods of a component leave the port at different times, and a
/// process that hangs keeps it from the static Pod for its whole grace.
fn no_roll_may_be_on_its_way(observation: &Observation, plan: &RevertPlan) -> Result<()> {
    for component in &plan.components {
        let pods = observation.pods.get(component).map(Vec::as_slice).unwrap_or_default();
        let mine: Vec<&str> = pods
            .iter()
            .filter(|pod| !pod.mirror && !pod.terminating)
            .map(|pod| pod.name.as_str())
            .collect();
        if mine.len() > 1 {
            let shared = component.daemon_set_name();
            let name = observation
                .daemon_sets
                .get(component)
                .map_or(shared.as_str(), |facts| facts.name.as_str());
            return Err(Error::refused(format!(
                "DaemonSet {name} is in the middle of a roll on Node {}",
                plan.node
            ))
            .because(format!("its Pods are {}", mine.join(" and ")))
            .hint(format!(
                "wait until the roll is done, or undo it: kubectl -n kube-system rollout undo daemonset/{name}"
            ))
            .hint("nothing was changed"));
        }
    }
    Ok(())
}

fn guard_must_be_there(observation: &Observation, plan: &RevertPlan) -> Result<()> {
    if plan.components.is_empty() || observation.guard_pod.is_some() {
        return Ok(());
    }
    Err(
        Error::refused(format!("the guard of Node {} does not run", observation.node.name))
            .because(format!(
                "Pod {GUARD}-{} is not there, and it is the guard that puts the manifests back",
                observation.node.name
            ))
            .hint("run `kubectl selfhost convert`: it installs the guard again; then revert"),
    )
}

async fn apply(nodes: &[Reverted<'_>], options: RevertOptions, reporter: &dyn Reporter) -> Result<()> {
    let began = Instant::now();
    let afterwards = Afterwards::default();
    for node in nodes {
        if node.plan.is_empty() {
            reporter.note(&format!("Node {} is static already", node.target.node_name));
            continue;
        }
        let began = Instant::now();
        revert_node(node, options, &afterwards, reporter).await?;
        reporter.note(&format!(
            "Node {} is static again, after {:.0} s",
            node.target.node_name,
            began.elapsed().as_secs_f64()
        ));
    }
    afterwards.end().await;
    if nodes.len() > 1 {
        reporter.note(&format!(
            "all {} nodes are static, after {:.0} s",
            nodes.len(),
            began.elapsed().as_secs_f64()
        ));
    }
    Ok(())
}

async fn revert_node(
    node: &Reverted<'_>,
    options: RevertOptions,
    afterwards: &Afterwards,
    reporter: &dyn Reporter,
) -> Result<()> {
    let name = &node.target.node_name;
    for component in &node.plan.components {
        let task = format!("{name}/{component}");
        let began = Instant::now();
        reporter.begin(&task, &format!("{name} {component}"), STEPS);
        match back(node, *component, &task, options, afterwards, reporter).await {
            Ok(()) => reporter.finish(
                &task,
                Outcome::Done,
                &format!("static after {:.1} s", began.elapsed().as_secs_f64()),
            ),
            Err(error) => {
                reporter.finish(&task, Outcome::Failed, error.what());
                return Err(error.hint("run the same command again to carry on"));
            }
        }
    }
    let task = format!("{name}/node");
    reporter.begin(&task, &format!("{name} node"), 3);
    match clean(node, &task, reporter).await {
        Ok(()) => {
            reporter.finish(&task, Outcome::Done, "nothing of ours is left");
            Ok(())
        }
        Err(error) => {
            reporter.finish(&task, Outcome::Failed, error.what());
            Err(error.hint("run the same command again to carry on"))
        }
    }
}

async fn patch_node(
    target: &Target,
    annotations: &[(String, Option<&str>)],
    labels: &[(String, Option<&str>)],
) -> Result<()> {
    let what = format!("Node {} to be changed", target.node_name);
    patience::call(&what, async || {
        target
            .control_plane
            .patch_node(&target.node_name, annotations, labels)
            .await
    })
    .await
}

async fn report(target: &Target, component: Component) -> Result<Option<Report>> {
    let node = node_facts(&target.control_plane.node(&target.node_name).await?);
    Ok(node.reports.get(&component).cloned())
}

/// One component goes back.
async fn back(
    node: &Reverted<'_>,
    component: Component,
    task: &str,
    options: RevertOptions,
    afterwards: &Afterwards,
    reporter: &dyn Reporter,
) -> Result<()> {
    let target = &node.target;
    let (control_plane, name) = (&target.control_plane, &target.node_name);
    let desired = if options.keep_sharing {
        Desired::StaticSharing
    } else {
        Desired::Static
    };
    let leader = patience::call("the Lease to be read", async || {
        leadership::holder(control_plane, component).await
    })
    .await?
    .filter(|holder| node.alone || node.observation.is_holder(holder));
    let saved = match component {
        Component::KubeApiserver => {
            patience::call("the Service's addresses to be read", async || {
                own_endpoints::save(control_plane, &node.observation.node.addresses).await
            })
            .await?
        }
        _ => None,
    };
    let wish = [(component.desired_annotation(), Some(desired.as_str()))];
    patch_node(target, &wish, &[]).await?;
    let work = async {
        let what = format!("the guard of Node {name} to be ready for {component} to leave its DaemonSet");
        wait_for(target, component, task, &what, reporter, |report| {
            let waits_for_pod = report.step.starts_with("waiting for the DaemonSet's Pod to go");
            report.desired == desired
                && (report.releasable
                    || report.settled
                    || (!options.keep_sharing && waits_for_pod)
                    || report.state == State::None)
        })
        .await?;
        reporter.step(task, "the guard is ready");
        // the DaemonSet's Pod goes when its Node is no longer gated
        reporter.waiting(task, "the Node to be ungated");
        patch_node(target, &[], &[(component.gate_label(), None)]).await?;
        reporter.step(task, "its DaemonSet leaves this Node");
        let what = format!("{component} to be static on Node {name}");
        wait_for(target, component, task, &what, reporter, |report| {
            report.desired == desired && report.settled && report.state == State::Static
        })
        .await
    };
    own_endpoints::kept(control_plane, saved.as_ref(), node.alone, afterwards, work).await?;
    if leader.is_some() {
        // best effort: at worst leadership waits for the Lease to run out
        let _ = leadership::release(control_plane, component, leader.as_deref()).await;
    }
    reporter.step(task, "its static Pod serves");
    Ok(())
}

async fn wait_for(
    target: &Target,
    component: Component,
    task: &str,
    what: &str,
    reporter: &dyn Reporter,
    reached: impl Fn(&Report) -> bool,
) -> Result<()> {
    wait::until(
        what,
        DEADLINE,
        INTERVAL,
        |what| reporter.waiting(task, what),
        async || {
            tolerate(report(target, component).await.map(|report| match report {
                None => Poll::Pending("the guard to report".into()),
                Some(report) if reached(&report) => Poll::Ready(()),
                Some(report) => Poll::Pending(awaited(&report)),
            }))
        },
    )
    .await
}

/// Removes objects, labels, annotations, guard and files.
async fn clean(node: &Reverted<'_>, task: &str, reporter: &dyn Reporter) -> Result<()> {
    let target = &node.target;
    let (control_plane, name) = (&target.control_plane, &target.node_name);
    for component in Component::ALL {
        patch_node(target, &[], &[(component.gate_label(), None)]).await?;
        remove_daemon_sets(target, component).await?;
    }
    crate::certs_in_secrets::api::remove_unused(control_plane).await?;
    reporter.step(task, "DaemonSets that serve no other node deleted");
    reporter.waiting(task, "the guard's manifest to be taken out");
    target.remove_guard().await?;
    let pod = format!("{GUARD}-{name}");
    wait::until(
        "the guard to end",
        Duration::from_secs(90),
        INTERVAL,
        |what| reporter.waiting(task, what),
        async || {
            tolerate(control_plane.pod(&pod).await.map(|pod| match pod {
                Some(_) => Poll::Pending("its mirror Pod to go".into()),
                None => Poll::Ready(()),
            }))
        },
    )
    .await?;
    let mut annotations = vec![(crate::node::guard::api::guard_annotation(), None)];
    for component in Component::ALL {
        annotations.push((component.desired_annotation(), None));
        annotations.push((component.report_annotation(), None));
    }
    wait::until(
        "the guard's process to exit",
        Duration::from_secs(60),
        INTERVAL,
        |what| reporter.waiting(task, what),
        async || {
            Ok(if target.remove_files().await? {
                Poll::Ready(())
            } else {
                Poll::Pending("its process to exit".into())
            })
        },
    )
    .await?;
    reporter.step(task, "guard and files gone");
    patience::call("the copies of the manifests to be deleted", async || {
        control_plane.delete_originals(name).await
    })
    .await?;
    let elsewhere = patience::call("the Nodes to be listed", async || control_plane.nodes().await).await?;
    let elsewhere = elsewhere.iter().map(node_facts);
    if !elsewhere.into_iter().any(|other| other.marked && other.name != *name) {
        patience::call("the policy for our marks to be deleted", async || {
            match control_plane.delete_policy().await {
                // who may not even look at policies has made none
                Err(error) if error.cause() == shared::error::Cause::Forbidden => Ok(()),
                other => other,
            }
        })
        .await?;
    }
    // last: by these marks a run after one that was killed here knows that something is left
    patch_node(target, &annotations, &[]).await?;
    reporter.step(task, "copies and annotations removed");
    Ok(())
}

/// A DaemonSet goes with its last node, one for this node alone at once.
async fn remove_daemon_sets(target: &Target, component: Component) -> Result<()> {
    let control_plane = &target.control_plane;
    let own = per_node_name(component, &target.node_name);
    let what = format!("DaemonSet {} to be deleted", component.daemon_set_name());
    patience::call(&what, async || {
        let elsewhere = control_plane.nodes_with_label(&component.gate_label()).await?;
        for (name, unused) in [(own.clone(), true), (component.daemon_set_name(), elsewhere.is_empty())] {
            let daemon_set = control_plane.daemon_set(&name).await?;
            if unused && daemon_set.is_some_and(|daemon_set| is_ours(&daemon_set.metadata)) {
                control_plane.delete_daemon_set(&name).await?;
            }
        }
        Ok(())
    })
    .await
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::observe::{NodeFacts, PodFacts};
    use std::collections::BTreeMap;

    fn pod(name: &str, mirror: bool, terminating: bool) -> PodFacts {
        PodFacts {
            name: name.into(),
            mirror,
            terminating,
            ready: true,
            starting: false,
            awaiting: false,
            restarts: 0,
            image: String::new(),
            trouble: None,
            container: String::new(),
            ended: false,
        }
    }

    fn observation(pods: Vec<PodFacts>) -> Observation {
        let gated = vec![Component::KubeApiserver];
        Observation {
            node: NodeFacts {
                name: "cp-1".into(),
                gated,
                marked: true,
                ..NodeFacts::default()
            },
            pods: BTreeMap::from([(Component::KubeApiserver, pods)]),
            guard_pod: None,
            daemon_sets: BTreeMap::new(),
            leaders: BTreeMap::new(),
            renewals: BTreeMap::new(),
        }
    }

    #[test]
    fn a_roll_that_is_on_its_way_ends_first() {
        for (pods, refused) in [
            (vec![pod("a", false, false)], false),
            (vec![pod("a", false, false), pod("b", false, true)], false),
            (vec![pod("a", false, false), pod("m", true, false)], false),
            (vec![pod("a", false, false), pod("b", false, false)], true),
        ] {
            let observation = observation(pods);
            let plan = plan(&observation, false, true, true);
            let result = no_roll_may_be_on_its_way(&observation, &plan);
            assert_eq!(result.is_err(), refused);
            if let Err(error) = result {
                assert!(
                    error.hints()[0].contains("rollout undo daemonset/self-hosted-kube-apiserver"),
                    "{error}"
                );
            }
        }
    }

    #[test]
    fn only_what_is_converted_goes_back_and_the_gap_is_announced() {
        let converted = observation(vec![pod("a", false, false)]);
        let with_gap = plan(&converted, false, true, true);
        assert_eq!(with_gap.components, [Component::KubeApiserver]);
        assert_eq!(
            with_gap.clean,
            [Component::KubeScheduler, Component::KubeControllerManager]
        );
        assert!(with_gap.expected_gap.starts_with("one"));
        assert_eq!(plan(&converted, true, true, true).expected_gap, "none");
        assert!(
            plan(&converted, false, true, false)
                .expected_gap
                .contains("none for clients that know the other nodes")
        );
        let mut untouched = observation(Vec::new());
        untouched.node = NodeFacts {
            name: "cp-1".into(),
            ..NodeFacts::default()
        };
        assert!(plan(&untouched, false, false, true).is_empty());
        assert!(
            !plan(&untouched, false, true, true).is_empty(),
            "files of an earlier attempt are removed"
        );
    }

    #[test]
    fn without_its_guard_a_converted_node_cannot_go_back() {
        let converted = observation(vec![pod("a", false, false)]);
        let error = guard_must_be_there(&converted, &plan(&converted, false, true, true)).unwrap_err();
        assert!(error.to_string().contains("selfhost-guard-cp-1"), "{error}");
    }
}
