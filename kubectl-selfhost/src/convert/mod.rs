//! `kubectl selfhost convert`: preflight, plan, confirmation, installation, hand-overs, summary; node by node.

mod node;

use crate::certs_in_secrets::api as secrets;
use crate::feature_gates::FeatureGates;
use crate::fleet::Fleet;
use crate::names::Component;
use crate::own_endpoints::Afterwards;
use crate::planning::{Planned, is_all_converted, make_plan};
use crate::refusal::Refusal;
use crate::render::{cluster_daemon_sets_yaml, render_cluster_summary, render_cluster_text};
use crate::run_lock::RunLock;
use futures_util::StreamExt;
use futures_util::stream::FuturesUnordered;
use node::{Along, convert_node};
use shared::output::{DryRun, OutputFormat};
use shared::progress::{Outcome, Reporter, reporter};
use shared::table::Table;
use shared::{Error, Printer, Result, prompt};
use std::pin::{Pin, pin};
use std::time::{Duration, Instant};
use tokio::sync::Notify;

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
    /// One DaemonSet for each node and component.
    pub per_node: bool,
    /// A node may run the template of a DaemonSet that serves others and differs from its manifest.
    pub accept_template: bool,
    /// How long a template runs well on a node before its fallback is made of it; as it is set already when absent.
    pub last_known_good_after: Option<Duration>,
    /// How to print.
    pub output: OutputFormat,
    /// Feature gates.
    pub feature_gates: FeatureGates,
}

/// The error that a plan with refusals ends in. What is in the text that was `printed` before is not said twice.
#[must_use]
pub fn refused(refusals: &[Refusal], printed: bool) -> Error {
    let mut error = match refusals.len() {
        1 => Error::refused("one thing forbids the conversion"),
        count => Error::refused(format!("{count} things forbid the conversion")),
    };
    for refusal in refusals.iter().filter(|_| !printed) {
        error = error
            .because(format!("{}: {}", refusal.object, refusal.what))
            .hint(refusal.remedy.clone());
    }
    error.hint("nothing was changed")
}

/// Converts the nodes that were asked for.
///
/// # Errors
/// What forbids it, or what went wrong, with what to do.
pub async fn convert(fleet: Fleet, options: &ConvertOptions, printer: &Printer) -> Result<()> {
    let control_plane = fleet.control_plane.clone();
    tokio::select! {
        result = run(fleet, options, printer) => result,
        _ = tokio::signal::ctrl_c() => {
            control_plane.delete_own_helpers().await;
            Err(Error::interrupted("interrupted")
                .hint("the control plane serves, and the guard ends or takes back what has begun")
                .hint("run the same command again to carry on, or `kubectl selfhost revert` to go back"))
        }
    }
}

async fn run(fleet: Fleet, options: &ConvertOptions, printer: &Printer) -> Result<()> {
    let quiet = options.output.is_for_programs();
    let planned = make_plan(fleet, options, |what| {
        if !quiet {
            printer.note(what);
        }
    })
    .await?;
    let width = printer.stdout_width().unwrap_or(80);
    let rolls = planned
        .plan
        .nodes
        .iter()
        .any(|node| node.plan.components.iter().any(|plan| plan.rolls));
    let may_go_on = rolls || !planned.plan.all_refusals().is_empty();
    if !may_go_on && !planned.nodes.is_empty() && planned.nodes.iter().all(|node| node.is_done(options)) {
        if options.dry_run == DryRun::None {
            keep_secrets(&planned).await?;
        }
        let reporter = reporter(printer, options.output);
        for node in &planned.nodes {
            reporter.note(&format!(
                "Node {} is self-hosted already: nothing to do",
                node.target.node_name
            ));
        }
        return Ok(());
    }
    if options.output != OutputFormat::Json {
        for node in planned
            .nodes
            .iter()
            .filter(|node| is_all_converted(&node.observation, options))
        {
            let guard = node.observation.node.guard.as_ref();
            if guard.is_some_and(|guard| guard.build != node.target.binary.build) {
                printer.note("the guard is of another build than this program, and is replaced by this one's");
            }
            for trouble in guard.iter().flat_map(|guard| &guard.troubles) {
                printer.note(format!("the guard of Node {}: {trouble}", node.target.node_name));
            }
        }
    }
    match (options.dry_run, options.output) {
        (DryRun::None, OutputFormat::Json) => {}
        (DryRun::Client | DryRun::Server, OutputFormat::Yaml) => {
            printer.data(&cluster_daemon_sets_yaml(&planned.plan)?)?;
        }
        (_, OutputFormat::Json) => {
            shared::output::print(printer, options.output, &planned.plan, |_| Table::new(["COMPONENT"]))?;
        }
        (DryRun::None, _) => printer.data(&render_cluster_summary(&planned.plan, width, printer.color_stdout()))?,
        _ => printer.data(&render_cluster_text(&planned.plan, width, printer.color_stdout()))?,
    }
    let refusals = planned.plan.all_refusals();
    if !refusals.is_empty() {
        return Err(refused(&refusals, !options.output.is_for_programs()));
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
    let names: Vec<&str> = planned
        .nodes
        .iter()
        .map(|node| node.target.node_name.as_str())
        .collect();
    let question = match names.as_slice() {
        [only] => format!("Convert the control plane of Node {only}?"),
        several => format!("Convert the control plane of the Nodes {}?", several.join(", ")),
    };
    prompt::confirm(printer, &question, None, options.yes)?;
    let reporter = reporter(printer, options.output);
    let control_plane = &planned.fleet.control_plane;
    let lock = RunLock::acquire(control_plane, |what| reporter.note(&format!("waiting for {what}"))).await?;
    let result = tokio::select! {
        result = apply(&planned, options, reporter.as_ref()) => result,
        lost = lock.lost() => Err(lost),
        _ = tokio::signal::ctrl_c() => {
            lock.release().await;
            // the outer one tells
            return std::future::pending().await;
        }
    };
    lock.release().await;
    result?;
    if options.output != OutputFormat::Json {
        printer.note("next: `kubectl selfhost status`; the control plane is edited with `kubectl -n kube-system edit daemonset self-hosted-kube-apiserver` now");
    }
    Ok(())
}

async fn try_on_server(planned: &Planned, printer: &Printer) -> Result<()> {
    let mut tried = Vec::new();
    for (node, plan) in planned.nodes.iter().zip(&planned.plan.nodes) {
        for component in &plan.plan.components {
            let Some(daemon_set) = &component.daemon_set else {
                continue;
            };
            let name = daemon_set["metadata"]["name"].as_str().unwrap_or_default();
            let exists = node.observation.daemon_sets.values().any(|facts| facts.name == name);
            if !exists && !tried.contains(&name) {
                tried.push(name);
                planned.fleet.control_plane.create_daemon_set(daemon_set, true).await?;
                if let Some(secret) = &component.secret {
                    secrets::ensure(&planned.fleet.control_plane, secret, true).await?;
                    printer.note(format!("Secret {} would be created (server dry run)", secret.name));
                }
                printer.note(format!("DaemonSet {name} would be created (server dry run)"));
            }
        }
    }
    Ok(())
}

/// The end of an apiserver's hand-over: the old process finishes what it serves, while the new one serves already.
type Drain<'a> = Pin<Box<dyn Future<Output = Result<()>> + 'a>>;
type Drains<'a> = FuturesUnordered<Drain<'a>>;

/// Carries a plan out, node by node. While the old apiserver of a node finishes what it serves, for up to its grace of
/// 30 s, the next node is converted: the new apiserver has proved itself by then, and the static manifest is out.
async fn apply(planned: &Planned, options: &ConvertOptions, reporter: &dyn Reporter) -> Result<()> {
    let began = Instant::now();
    planned.fleet.control_plane.delete_ended_helpers().await?;
    let afterwards = Afterwards::default();
    let handed: Vec<Notify> = planned.nodes.iter().map(|_| Notify::new()).collect();
    let mut drains = Drains::new();
    let mut result = Ok(());
    for ((node, plan), handed) in planned.nodes.iter().zip(&planned.plan.nodes).zip(&handed) {
        let name = &node.target.node_name;
        if node.is_done(options) {
            reporter.note(&format!("Node {name} is self-hosted already"));
            continue;
        }
        let began = Instant::now();
        let along = Along {
            handed,
            afterwards: &afterwards,
        };
        let first = convert_node(planned, node, plan, options, along, reporter);
        let last = match alongside(first, &mut drains).await {
            Ok(last) => last,
            Err(error) => {
                result = Err(error);
                break;
            }
        };
        let mut last: Drain<'_> = Box::pin(async move {
            if let Some(staged) = last {
                staged.hand_over(reporter).await?;
            }
            converted(name, options, began, reporter);
            Ok(())
        });
        let until_handed = async {
            tokio::select! {
                result = &mut last => result.map(|()| true),
                () = handed.notified() => Ok(false),
            }
        };
        match alongside(until_handed, &mut drains).await {
            Ok(true) => {}
            Ok(false) => drains.push(last),
            Err(error) => {
                result = Err(error);
                break;
            }
        }
    }
    // whatever came of a node: a hand-over is not left half told
    while let Some(ended) = drains.next().await {
        result = result.and(ended);
    }
    afterwards.end().await;
    result?;
    roll(planned, reporter).await?;
    if planned.nodes.len() > 1 {
        reporter.note(&format!(
            "all {} nodes are self-hosted, after {:.0} s",
            planned.nodes.len(),
            began.elapsed().as_secs_f64()
        ));
    }
    Ok(())
}

/// Whether the gate asks for Secrets: then those that nothing uses any more go.
fn has_secrets(planned: &Planned) -> bool {
    let mut components = planned.plan.nodes.iter().flat_map(|node| &node.plan.components);
    components.any(|plan| plan.secret.is_some())
}

/// Puts back a Secret that somebody deleted: the Pods that run have its files, and the next ones would not start.
async fn keep_secrets(planned: &Planned) -> Result<()> {
    for plan in planned.plan.nodes.iter().flat_map(|node| &node.plan.components) {
        if let Some(secret) = &plan.secret {
            secrets::ensure(&planned.fleet.control_plane, secret, false).await?;
        }
    }
    Ok(())
}

/// Rolls DaemonSets that serve onto other files, one after the other, and removes the Secrets that nothing uses any more.
async fn roll(planned: &Planned, reporter: &dyn Reporter) -> Result<()> {
    if !has_secrets(planned) {
        return Ok(());
    }
    let control_plane = &planned.fleet.control_plane;
    keep_secrets(planned).await?;
    let (mut rolled, mut waiting) = (Vec::new(), false);
    for (node, plan) in planned.nodes.iter().zip(&planned.plan.nodes) {
        for plan in plan.plan.components.iter().filter(|plan| plan.rolls) {
            let facts = node.observation.daemon_sets.get(&plan.component);
            let name = facts.map_or_else(|| plan.component.daemon_set_name(), |facts| facts.name.clone());
            let Some(projection) = plan.projection.as_ref().filter(|_| !rolled.contains(&name)) else {
                continue;
            };
            rolled.push(name.clone());
            let began = Instant::now();
            reporter.begin(&name, &name, 1);
            match secrets::roll(control_plane, plan.component, &name, projection, reporter).await {
                Ok(true) => {
                    let text = format!(
                        "its Pods have the other files after {:.1} s",
                        began.elapsed().as_secs_f64()
                    );
                    reporter.finish(&name, Outcome::Done, &text);
                }
                Ok(false) => {
                    waiting = true;
                    reporter.finish(&name, Outcome::Done, "changed; it was converted with a gap, and its Pods start with the other files when you delete them");
                }
                Err(error) => {
                    reporter.finish(&name, Outcome::Failed, error.what());
                    return Err(error);
                }
            }
        }
    }
    if !waiting {
        secrets::remove_unused(control_plane).await?;
    }
    Ok(())
}

/// Work to its end, and the drains of earlier nodes meanwhile. One of these that fails is told when the work is done, so that
/// nothing more is begun.
async fn alongside<T>(work: impl Future<Output = Result<T>>, drains: &mut Drains<'_>) -> Result<T> {
    let mut work = pin!(work);
    let mut failed = None;
    loop {
        tokio::select! {
            result = &mut work => return failed.map_or(result, Err),
            Some(ended) = drains.next(), if !drains.is_empty() => {
                if let Err(error) = ended {
                    failed.get_or_insert(error);
                }
            }
        }
    }
}

fn converted(name: &str, options: &ConvertOptions, began: Instant, reporter: &dyn Reporter) {
    reporter.note(&format!(
        "Node {name} is self-hosted: {} component{} in {:.0} s",
        options.components.len(),
        if options.components.len() == 1 { "" } else { "s" },
        began.elapsed().as_secs_f64()
    ));
}
