//! `kubectl selfhost convert`: preflight, plan, confirmation, installation, hand-overs, summary.

use crate::hand_over::{self, HandOver};
use crate::install::{self, NodeBinary};
use crate::live::{Live, is_converted};
use crate::mutators::{FeatureGates, Mode};
use crate::names::{Component, GUARD};
use crate::node::state::Desired;
use crate::node::trial;
use crate::observe::{DaemonSetFacts, Observation, daemon_set_facts};
use crate::patience;
use crate::plan::{ComponentState, Plan, PlanOptions, Snapshot, plan};
use crate::preflight;
use crate::refusal::Refusal;
use crate::render::{daemon_sets_yaml, render_summary, render_text};
use shared::output::{DryRun, OutputFormat};
use shared::progress::{Outcome, Reporter, reporter};
use shared::table::Table;
use shared::wait::{self, Poll};
use shared::{Error, Printer, Result, prompt};
use std::collections::BTreeMap;
use std::time::{Duration, Instant};

/// How ports are handed over.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, clap::ValueEnum)]
pub enum ModeChoice {
    /// Share and steer ports; refuse where that cannot be done
    #[default]
    Steered,
    /// One short gap for each component
    Gap,
}

/// What is asked for.
#[derive(Clone, Debug)]
pub struct ConvertOptions {
    /// Which components.
    pub components: Vec<Component>,
    /// How.
    pub mode: ModeChoice,
    /// Do not ask.
    pub yes: bool,
    /// Change nothing.
    pub dry_run: DryRun,
    /// How to print.
    pub output: OutputFormat,
    /// Feature gates.
    pub feature_gates: FeatureGates,
}

/// A plan for this node, with everything that it was made from.
#[derive(Debug)]
pub struct Planned {
    /// The node.
    pub live: Live,
    /// What the API showed.
    pub observation: Observation,
    /// What the manifest directory held.
    pub snapshot: Snapshot,
    /// Our executable.
    pub binary: NodeBinary,
    /// What would be done.
    pub plan: Plan,
}

/// Looks at the node and its cluster, and plans. Nothing is changed.
///
/// # Errors
/// When the node or the API cannot be looked at. What forbids a conversion is in the plan, not an error.
pub async fn make_plan(live: Live, options: &ConvertOptions) -> Result<Planned> {
    let binary = NodeBinary::of_this_process()?;
    let observation = live.observe().await?;
    let snapshot = live.snapshot(&observation)?;
    let mode = match options.mode {
        ModeChoice::Steered => Mode::Steered,
        ModeChoice::Gap => Mode::Gap,
    };
    let apiservers = live
        .control_plane
        .pods("component=kube-apiserver,tier=control-plane")
        .await?;
    let nodes: std::collections::BTreeSet<String> = apiservers
        .into_iter()
        .filter_map(|pod| pod.spec.and_then(|spec| spec.node_name))
        .collect();
    let plan_options = PlanOptions {
        components: options.components.clone(),
        mode,
        node_address: observation
            .node
            .address
            .as_ref()
            .and_then(|address| address.parse().ok()),
        single_node: nodes.len() <= 1,
        feature_gates: options.feature_gates.clone(),
        ..PlanOptions::new(binary.build.clone())
    };
    let mut plan = plan(&snapshot, &plan_options);
    if nodes.len() > 1 {
        plan.refusals.push(Refusal::new(
            format!("cluster {}", live.control_plane.cluster.server),
            format!(
                "has {} control-plane nodes, and this version converts clusters of one",
                nodes.len()
            ),
            "wait for a version that converts several nodes",
        ));
    }
    let converted = options
        .components
        .iter()
        .all(|component| is_converted(&observation, *component));
    if !converted {
        if mode == Mode::Steered
            && let Err(why) = trial::run()
        {
            plan.refusals.push(Refusal::new(
                format!("Node {}", live.node_name),
                format!("ports cannot be shared and steered here: {why}"),
                "convert with --mode gap: each component is away for one start (about 3 s for the apiserver)",
            ));
        }
        let facts = preflight::gather(&live, &observation, &snapshot, &plan).await?;
        let (refusals, warnings) = (preflight::refusals(&facts), preflight::warnings(&facts));
        plan.refusals.extend(refusals);
        plan.warnings.extend(warnings);
    }
    Ok(Planned {
        live,
        observation,
        snapshot,
        binary,
        plan,
    })
}

/// The error that a plan with refusals ends in. What is in the text that was `printed` before is not said twice.
#[must_use]
pub fn refused(plan: &Plan, printed: bool) -> Error {
    let mut error = match plan.refusals.len() {
        1 => Error::refused("one thing forbids the conversion"),
        count => Error::refused(format!("{count} things forbid the conversion")),
    };
    for refusal in plan.refusals.iter().filter(|_| !printed) {
        error = error
            .because(format!("{}: {}", refusal.object, refusal.what))
            .hint(refusal.remedy.clone());
    }
    error.hint("nothing was changed")
}

/// Converts the node that this runs on.
///
/// # Errors
/// What forbids it, or what went wrong, with what to do.
pub async fn convert(live: Live, options: &ConvertOptions, printer: &Printer) -> Result<()> {
    let planned = make_plan(live, options).await?;
    let width = printer.stdout_width().unwrap_or(100);
    let converted = options
        .components
        .iter()
        .all(|component| is_converted(&planned.observation, *component));
    let guard = planned.observation.node.guard.as_ref();
    if converted && guard.is_some_and(|guard| guard.build == planned.binary.build) {
        let reporter = reporter(printer, options.output);
        reporter.note(&format!(
            "Node {} is self-hosted already: nothing to do",
            planned.live.node_name
        ));
        return Ok(());
    }
    if converted && options.output != OutputFormat::Json {
        printer.note("the guard is of another build than this program, and is replaced by this one's");
    }
    match (options.dry_run, options.output) {
        (DryRun::None, OutputFormat::Json) => {}
        (DryRun::Client | DryRun::Server, OutputFormat::Yaml) => printer.data(&daemon_sets_yaml(&planned.plan)?)?,
        (_, OutputFormat::Json) => {
            shared::output::print(printer, options.output, &planned.plan, |_| Table::new(["COMPONENT"]))?;
        }
        (DryRun::None, _) => printer.data(&render_summary(&planned.plan, width, printer.color_stdout()))?,
        _ => printer.data(&render_text(&planned.plan, width, printer.color_stdout()))?,
    }
    if !planned.plan.refusals.is_empty() {
        return Err(refused(&planned.plan, !options.output.is_for_programs()));
    }
    if options.dry_run == DryRun::Server {
        try_on_server(&planned, printer).await?;
    }
    if options.dry_run != DryRun::None {
        return Ok(());
    }
    if options.output != OutputFormat::Json {
        printer.note("each change with its reason: kubectl selfhost plan");
    }
    let question = format!("Convert the control plane of Node {}?", planned.live.node_name);
    prompt::confirm(printer, &question, None, options.yes)?;
    let reporter = reporter(printer, options.output);
    tokio::select! {
        result = apply(&planned, options, reporter.as_ref()) => result?,
        _ = tokio::signal::ctrl_c() => {
            return Err(Error::interrupted("interrupted")
                .hint("the control plane serves, and the guard ends or takes back what has begun")
                .hint("run the same command again to carry on, or `kubectl selfhost revert` to go back"));
        }
    }
    if options.output != OutputFormat::Json {
        printer.note("next: `kubectl selfhost status`; the control plane is edited with `kubectl -n kube-system edit daemonset self-hosted-kube-apiserver` now");
    }
    Ok(())
}

async fn try_on_server(planned: &Planned, printer: &Printer) -> Result<()> {
    for component in &planned.plan.components {
        if let Some(daemon_set) = &component.daemon_set
            && !planned.observation.daemon_sets.contains_key(&component.component)
        {
            planned.live.control_plane.create_daemon_set(daemon_set, true).await?;
            printer.note(format!(
                "DaemonSet {} would be created (server dry run)",
                component.component.daemon_set_name()
            ));
        }
    }
    Ok(())
}

/// Carries a plan out.
async fn apply(planned: &Planned, options: &ConvertOptions, reporter: &dyn Reporter) -> Result<()> {
    let began = Instant::now();
    let node = "node";
    reporter.begin(node, "node", 3);
    let prepared = prepare(planned, options, reporter).await;
    match &prepared {
        Ok(()) => reporter.finish(node, Outcome::Done, "the guard watches over this node"),
        Err(error) => reporter.finish(node, Outcome::Failed, error.what()),
    }
    prepared?;
    for component in &options.components {
        hand_over_one(planned, options, *component, reporter).await?;
    }
    reporter.note(&format!(
        "Node {} is self-hosted: {} component{} in {:.0} s",
        planned.live.node_name,
        options.components.len(),
        if options.components.len() == 1 { "" } else { "s" },
        began.elapsed().as_secs_f64()
    ));
    Ok(())
}

async fn hand_over_one(
    planned: &Planned,
    options: &ConvertOptions,
    component: Component,
    reporter: &dyn Reporter,
) -> Result<()> {
    let task = component.name();
    reporter.begin(task, task, hand_over::STEPS);
    if is_converted(&planned.observation, component) {
        reporter.finish(task, Outcome::Skipped, "self-hosted already");
        return Ok(());
    }
    let began = Instant::now();
    let existing = planned.observation.daemon_sets.get(&component);
    let daemon_set = planned
        .plan
        .components
        .iter()
        .find(|plan| plan.component == component)
        .and_then(|plan| plan.daemon_set.as_ref());
    // one that serves is the user's, who may have edited it; one that does not is this program's business
    let serves = planned.snapshot.state(component) != ComponentState::Static;
    let outdated = !serves && existing.is_some_and(|existing| daemon_set.and_then(facts_of) != Some(existing.clone()));
    let hand_over = HandOver {
        control_plane: &planned.live.control_plane,
        node: &planned.live.node_name,
        component,
        daemon_set: daemon_set.filter(|_| existing.is_none() || outdated),
        outdated,
        desired: match options.mode {
            ModeChoice::Steered => Desired::SelfHosted,
            ModeChoice::Gap => Desired::SelfHostedGap,
        },
    };
    match hand_over.run(reporter).await {
        Ok(()) => {
            reporter.finish(
                task,
                Outcome::Done,
                &format!("self-hosted after {:.1} s", began.elapsed().as_secs_f64()),
            );
            Ok(())
        }
        Err(error) => {
            reporter.finish(task, Outcome::Failed, error.what());
            Err(error)
        }
    }
}

fn facts_of(daemon_set: &serde_json::Value) -> Option<DaemonSetFacts> {
    let daemon_set = serde_json::from_value(daemon_set.clone()).ok()?;
    Some(daemon_set_facts(&daemon_set))
}

/// Executable and guard on the node, originals in the cluster: nothing of it touches a component.
async fn prepare(planned: &Planned, options: &ConvertOptions, reporter: &dyn Reporter) -> Result<()> {
    let Planned {
        live,
        observation,
        snapshot,
        binary,
        ..
    } = planned;
    let task = "node";
    install::install_state_directory()?;
    install::install_binary(binary)?;
    reporter.step(task, &format!("executable installed as {}", binary.path().display()));
    save_originals(planned).await?;
    reporter.step(task, "copies of the manifests kept in the cluster");
    let image = guard_image(snapshot, observation).ok_or_else(|| {
        Error::refused("no image is known that is on this node")
            .because("no component of the control plane was found to take one from")
    })?;
    let before = observation.node.guard.as_ref().map(|guard| guard.process);
    let changed = install::install_guard(&live.local, &live.node_name, &image, &binary.build)?;
    let what = format!("the guard of Node {} (Pod {GUARD}-{})", live.node_name, live.node_name);
    wait::until(&what, Duration::from_secs(90), Duration::from_millis(250), |what| reporter.waiting(task, what), async || {
        patience::tolerate(async {
            let now = live.observe_node().await?;
            Ok(match now.guard {
                Some(guard) if guard.build == binary.build && (!changed || Some(guard.process) != before) => Poll::Ready(guard),
                _ => Poll::Pending("the guard to start and report".into()),
            })
        }
        .await)
    })
    .await
    .and_then(|guard| match guard.steering_refused {
        Some(why) if options.mode == ModeChoice::Steered => Err(Error::refused("the guard's Pod cannot share and steer ports on this node")
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

async fn save_originals(planned: &Planned) -> Result<()> {
    let live = &planned.live;
    let mut files: BTreeMap<String, Vec<u8>> = live.control_plane.originals(&live.node_name).await?.unwrap_or_default();
    let before = files.clone();
    for (component, file) in &planned.snapshot.inventory.originals {
        let state = planned.snapshot.states.get(component);
        if state != Some(&ComponentState::Static) && files.contains_key(component.name()) {
            continue; // a hand-over is on its way: what was saved before it began counts
        }
        let metadata = crate::node::guard::files::metadata(&file.path, file.sha256.clone())
            .map_err(|error| Error::new("a manifest cannot be saved").because(error))?;
        let metadata =
            serde_json::to_vec(&metadata).map_err(|error| Error::new("a manifest cannot be saved").because(error))?;
        files.insert(component.name().to_owned(), file.bytes.clone());
        files.insert(format!("{component}.json"), metadata);
    }
    if files != before {
        live.control_plane.save_originals(&live.node_name, &files).await?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::daemon_set::build_daemon_set;
    use crate::mutators::{default_mutators, test_support};

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
