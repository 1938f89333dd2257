//! `kubectl selfhost revert`: back to the original static Pods, and nothing of ours is left.

use crate::hand_over::awaited;
use crate::install;
use crate::leadership;
use crate::live::{Live, is_untouched};
use crate::names::{Component, GUARD};
use crate::node::process::Processes;
use crate::node::state::{Desired, Report, State};
use crate::observe::Observation;
use crate::own_endpoints;
use crate::patience::{self, tolerate};
use serde::Serialize;
use shared::output::{DryRun, OutputFormat};
use shared::progress::{Outcome, Reporter, reporter};
use shared::wait::{self, Poll};
use shared::{Error, Printer, Result, prompt};
use std::path::Path;
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

/// What a revert would do.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct RevertPlan {
    /// `selfhost/v1`; changes when a field changes its meaning.
    pub api_version: &'static str,
    /// `RevertPlan`.
    pub kind: &'static str,
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
        let mut text = String::new();
        for component in &self.components {
            let how = if keep_sharing {
                "the original manifest with --permit-port-sharing=true starts beside it, then its Pod goes"
            } else {
                "its Pod goes, then the original manifest comes back, the same to the byte"
            };
            text.push_str(&format!("{component}: {how}\n"));
        }
        for component in &self.clean {
            text.push_str(&format!("{component}: is static already\n"));
        }
        text.push_str("then: DaemonSets, guard, labels, annotations, copies and files of ours are removed\n");
        text.push_str(&format!("expected gap of the API: {}\n", self.expected_gap));
        text
    }
}

/// Plans from what was seen; `files` says whether anything of ours lies on the node.
#[must_use]
pub fn plan(observation: &Observation, keep_sharing: bool, files: bool) -> RevertPlan {
    let (clean, components): (Vec<_>, Vec<_>) = Component::ALL
        .into_iter()
        .partition(|component| is_untouched(observation, *component));
    let gap = components.contains(&Component::KubeApiserver) && !keep_sharing;
    let ours = observation.daemon_sets.values().any(|daemon_set| daemon_set.ours);
    RevertPlan {
        api_version: crate::plan::API_VERSION,
        kind: "RevertPlan",
        node: observation.node.name.clone(),
        components,
        clean,
        expected_gap: if gap {
            "one, of about 3 s; for a few seconds more the starting apiserver may answer 403"
        } else {
            "none"
        }
        .to_owned(),
        leftovers: files || observation.guard_pod.is_some() || observation.node.marked || ours,
    }
}

/// Reverts the node that this runs on.
///
/// # Errors
/// What went wrong, with what to do. A revert that was broken off is finished by the next one.
pub async fn revert(live: &Live, options: RevertOptions, printer: &Printer) -> Result<()> {
    let observation = live.observe().await?;
    let files = crate::local_node::own_directories().into_iter().any(has_entries)
        || install::guard_manifest_path(&live.local).exists();
    let plan = plan(&observation, options.keep_sharing, files);
    let reporter = reporter(printer, options.output);
    if plan.is_empty() {
        reporter.note(&format!(
            "Node {} is static already, and nothing of ours is left: nothing to do",
            live.node_name
        ));
        return Ok(());
    }
    if options.output == OutputFormat::Json {
        if options.dry_run != DryRun::None {
            return shared::output::print(printer, options.output, &plan, |_| shared::table::Table::new(["NODE"]));
        }
    } else {
        printer.data(&plan.text(options.keep_sharing))?;
    }
    if options.dry_run != DryRun::None {
        return Ok(());
    }
    guard_must_be_there(&observation, &plan)?;
    no_roll_may_be_on_its_way(&observation, &plan)?;
    prompt::confirm(
        printer,
        &format!("Revert the control plane of Node {}?", live.node_name),
        None,
        options.yes,
    )?;
    tokio::select! {
        result = apply(live, &plan, options, reporter.as_ref()) => result,
        _ = tokio::signal::ctrl_c() => Err(Error::interrupted("interrupted")
            .hint("the guard of the node finishes what has begun")
            .hint("run the same command again to carry on")),
    }
}

fn has_entries(directory: &Path) -> bool {
    std::fs::read_dir(directory).is_ok_and(|mut entries| entries.next().is_some())
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
            let name = component.daemon_set_name();
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

async fn apply(live: &Live, plan: &RevertPlan, options: RevertOptions, reporter: &dyn Reporter) -> Result<()> {
    let began = Instant::now();
    for component in &plan.components {
        let task = component.name();
        let began = Instant::now();
        reporter.begin(task, task, STEPS);
        match back(live, *component, options, reporter).await {
            Ok(()) => reporter.finish(
                task,
                Outcome::Done,
                &format!("static after {:.1} s", began.elapsed().as_secs_f64()),
            ),
            Err(error) => {
                reporter.finish(task, Outcome::Failed, error.what());
                return Err(error.hint("run the same command again to carry on"));
            }
        }
    }
    let task = "node";
    reporter.begin(task, "node", 3);
    match clean(live, reporter).await {
        Ok(()) => reporter.finish(task, Outcome::Done, "nothing of ours is left"),
        Err(error) => {
            reporter.finish(task, Outcome::Failed, error.what());
            return Err(error.hint("run the same command again to carry on"));
        }
    }
    reporter.note(&format!(
        "Node {} is static again, after {:.0} s",
        live.node_name,
        began.elapsed().as_secs_f64()
    ));
    Ok(())
}

async fn patch_node(
    live: &Live,
    annotations: &[(String, Option<&str>)],
    labels: &[(String, Option<&str>)],
) -> Result<()> {
    let what = format!("Node {} to be changed", live.node_name);
    patience::call(&what, async || {
        live.control_plane
            .patch_node(&live.node_name, annotations, labels)
            .await
    })
    .await
}

async fn report(live: &Live, component: Component) -> Result<Option<Report>> {
    Ok(live.observe_node().await?.reports.get(&component).cloned())
}

/// One component goes back.
async fn back(live: &Live, component: Component, options: RevertOptions, reporter: &dyn Reporter) -> Result<()> {
    let control_plane = &live.control_plane;
    let task = component.name();
    let desired = if options.keep_sharing {
        Desired::StaticSharing
    } else {
        Desired::Static
    };
    let leader = patience::call("the Lease to be read", async || {
        leadership::holder(control_plane, component).await
    })
    .await?;
    let saved = match component {
        Component::KubeApiserver => {
            patience::call("the Service's addresses to be read", async || {
                own_endpoints::save(control_plane).await
            })
            .await?
        }
        _ => None,
    };
    let wish = [(component.desired_annotation(), Some(desired.as_str()))];
    patch_node(live, &wish, &[]).await?;
    let work = async {
        let what = format!(
            "the guard of Node {} to be ready for {component} to leave its DaemonSet",
            live.node_name
        );
        wait_for(live, component, &what, reporter, |report| {
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
        patch_node(live, &[], &[(component.gate_label(), None)]).await?;
        reporter.step(task, "its DaemonSet leaves this Node");
        let what = format!("{component} to be static on Node {}", live.node_name);
        wait_for(live, component, &what, reporter, |report| {
            report.desired == desired && report.settled && report.state == State::Static
        })
        .await
    };
    tokio::select! {
        done = work => done?,
        () = own_endpoints::keep(control_plane, saved.as_ref()) => {}
    }
    if leader.is_some() {
        // best effort: at worst leadership waits for the Lease to run out
        let _ = leadership::release(control_plane, component, leader.as_deref()).await;
    }
    reporter.step(task, "its static Pod serves");
    Ok(())
}

async fn wait_for(
    live: &Live,
    component: Component,
    what: &str,
    reporter: &dyn Reporter,
    reached: impl Fn(&Report) -> bool,
) -> Result<()> {
    let task = component.name();
    wait::until(
        what,
        DEADLINE,
        INTERVAL,
        |what| reporter.waiting(task, what),
        async || {
            tolerate(report(live, component).await.map(|report| match report {
                None => Poll::Pending("the guard to report".into()),
                Some(report) if reached(&report) => Poll::Ready(()),
                Some(report) => Poll::Pending(awaited(&report)),
            }))
        },
    )
    .await
}

/// Removes objects, labels, annotations, guard and files.
async fn clean(live: &Live, reporter: &dyn Reporter) -> Result<()> {
    let control_plane = &live.control_plane;
    let task = "node";
    for component in Component::ALL {
        patch_node(live, &[], &[(component.gate_label(), None)]).await?;
        let what = format!("DaemonSet {} to be deleted", component.daemon_set_name());
        patience::call(&what, async || {
            let elsewhere = control_plane.nodes_with_label(&component.gate_label()).await?;
            let daemon_set = control_plane.daemon_set(component).await?;
            if elsewhere.is_empty()
                && daemon_set.is_some_and(|daemon_set| crate::observe::is_ours(&daemon_set.metadata))
            {
                control_plane.delete_daemon_set(component).await?;
            }
            Ok(())
        })
        .await?;
    }
    reporter.step(task, "DaemonSets deleted");
    install::remove_guard(&live.local)?;
    let pod = format!("{GUARD}-{}", live.node_name);
    wait::until(
        "the guard to end",
        Duration::from_secs(90),
        INTERVAL,
        |what| reporter.waiting(task, what),
        async || {
            if guard_runs() {
                return Ok(Poll::Pending("its process to exit".into()));
            }
            tolerate(control_plane.pod(&pod).await.map(|pod| match pod {
                Some(_) => Poll::Pending("its mirror Pod to go".into()),
                None => Poll::Ready(()),
            }))
        },
    )
    .await?;
    reporter.step(task, "guard gone");
    let mut annotations = vec![(crate::node::guard::api::guard_annotation(), None)];
    for component in Component::ALL {
        annotations.push((component.desired_annotation(), None));
        annotations.push((component.report_annotation(), None));
    }
    patch_node(live, &annotations, &[]).await?;
    patience::call("the copies of the manifests to be deleted", async || {
        control_plane.delete_originals(&live.node_name).await
    })
    .await?;
    install::remove_files()?;
    reporter.step(task, "annotations, copies and files removed");
    Ok(())
}

fn guard_runs() -> bool {
    let processes = Processes::new(Path::new("/proc"));
    let ids = processes.ids().unwrap_or_default();
    ids.into_iter().any(|pid| {
        let arguments = processes.arguments(pid);
        arguments
            .first()
            .is_some_and(|first| first.ends_with(crate::names::BIN_NAME))
            && arguments.get(1).map(String::as_str) == Some("node")
            && arguments.get(2).map(String::as_str) == Some("guard")
    })
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
            requested_cpu: 0,
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
            let plan = plan(&observation, false, true);
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
        let with_gap = plan(&converted, false, true);
        assert_eq!(with_gap.components, [Component::KubeApiserver]);
        assert_eq!(
            with_gap.clean,
            [Component::KubeScheduler, Component::KubeControllerManager]
        );
        assert!(with_gap.expected_gap.starts_with("one"));
        assert_eq!(plan(&converted, true, true).expected_gap, "none");
        let mut untouched = observation(Vec::new());
        untouched.node = NodeFacts {
            name: "cp-1".into(),
            ..NodeFacts::default()
        };
        assert!(plan(&untouched, false, false).is_empty());
        assert!(
            !plan(&untouched, false, true).is_empty(),
            "files of an earlier attempt are removed"
        );
    }

    #[test]
    fn without_its_guard_a_converted_node_cannot_go_back() {
        let converted = observation(vec![pod("a", false, false)]);
        let error = guard_must_be_there(&converted, &plan(&converted, false, true)).unwrap_err();
        assert!(error.to_string().contains("selfhost-guard-cp-1"), "{error}");
    }
}
