//! `kubectl selfhost convert`: preflight, plan, confirmation, installation, hand-overs, summary; node by node.

use crate::certs_in_secrets::api as secrets;
use crate::cluster_plan::{ClusterPlan, ClusterPlanOptions, NodeInput, NodePlan, describe, order, plan_cluster};
use crate::component_state::{component_state, is_converted};
use crate::diff::diff;
use crate::feature_gates::{FeatureGates, Gate};
use crate::fleet::Fleet;
use crate::hand_over::{self, HandOver};
use crate::mutators::Mode;
use crate::names::{Component, GUARD};
use crate::node::state::Desired;
use crate::observe::{DaemonSetFacts, Observation, daemon_set_facts, node_facts};
use crate::patience;
use crate::plan::{ComponentState, Plan, Snapshot};
use crate::preflight::{self, ClusterFacts};
use crate::refusal::Refusal;
use crate::render::{cluster_daemon_sets_yaml, render_cluster_summary, render_cluster_text};
use crate::run_lock::RunLock;
use crate::settling::settle;
use crate::survey::Survey;
use crate::target::Target;
use jiff::Timestamp;
use shared::output::{DryRun, OutputFormat};
use shared::progress::{Outcome, Reporter, reporter};
use shared::table::Table;
use shared::wait::{self, Poll};
use shared::{Error, Printer, Result, prompt};
use std::collections::BTreeMap;
use std::pin::Pin;
use std::sync::Arc;
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
    /// How to print.
    pub output: OutputFormat,
    /// Feature gates.
    pub feature_gates: FeatureGates,
}

/// A node that is to be converted, with everything that its plan was made from.
#[derive(Debug)]
pub struct PlannedNode {
    /// How it is reached.
    pub target: Target,
    /// What the API showed.
    pub observation: Observation,
    /// What the manifest directory held.
    pub snapshot: Snapshot,
    /// What the node itself showed; absent where nothing is to be done.
    pub survey: Option<Survey>,
}

impl PlannedNode {
    /// Whether all of it is converted already, and guarded by this very program.
    fn is_done(&self, options: &ConvertOptions) -> bool {
        let guard = self.observation.node.guard.as_ref();
        is_all_converted(&self.observation, options)
            && guard.is_some_and(|guard| guard.build == self.target.binary.build)
    }
}

fn is_all_converted(observation: &Observation, options: &ConvertOptions) -> bool {
    options
        .components
        .iter()
        .all(|component| is_converted(observation, *component))
}

/// A plan for a cluster, with everything that it was made from.
#[derive(Debug)]
pub struct Planned {
    /// The cluster.
    pub fleet: Fleet,
    /// The nodes, in the order of the conversion.
    pub nodes: Vec<PlannedNode>,
    /// What would be done.
    pub plan: ClusterPlan,
}

/// Looks at the nodes and their cluster, and plans. Nothing is changed: nodes elsewhere are looked at through helper Pods,
/// which are removed again. What passes by itself is waited for.
///
/// # Errors
/// When a node or the API cannot be looked at. What forbids a conversion is in the plan, not an error.
pub async fn make_plan(mut fleet: Fleet, options: &ConvertOptions, looking: impl Fn(&str)) -> Result<Planned> {
    settle(&mut fleet, &options.components, &looking).await?;
    // looking at nodes takes its time, in which the Leases are renewed unseen
    let now = Timestamp::now();
    let control_plane = fleet.control_plane.clone();
    let burdens = burdens(&fleet).await?;
    let names = fleet.selected().iter().map(|seen| seen.node.name.clone()).collect();
    let mut targets = Vec::new();
    for name in order(names, &burdens) {
        if let Some(observation) = fleet.observations.iter().find(|seen| seen.node.name == name) {
            targets.push((fleet.target(observation)?, observation.clone()));
        }
    }
    if targets.is_empty() {
        return Err(Error::refused(format!(
            "no static Pod of a control plane was found in the cluster at {}",
            control_plane.cluster.server
        ))
        .because("no Pod in kube-system carries the label component=kube-apiserver, as kubeadm's do")
        .hint("only control planes of static Pods can be converted: see whether this is the right cluster"));
    }
    let certificates = options.feature_gates.enabled(Gate::StoreCertsInSecrets);
    let converts = |observation: &Observation| !is_all_converted(observation, options);
    // the files of a node that is converted may be others by now
    let to_do = |observation: &Observation| certificates || converts(observation);
    let away: Vec<&Target> = targets
        .iter()
        .filter(|(target, seen)| target.is_away() && to_do(seen))
        .map(|(target, _)| target)
        .collect();
    let mut facts = ClusterFacts::default();
    if targets.iter().any(|(_, seen)| to_do(seen)) {
        facts = preflight::gather_cluster(&control_plane, &away, certificates).await?;
    }
    let mut early: Vec<Refusal> = preflight::cluster_refusals(&facts);
    for (_, seen) in targets.iter().filter(|(_, seen)| to_do(seen)) {
        early.extend(preflight::node(seen));
    }
    if !early.is_empty() && !away.is_empty() {
        // no helper would get there
        let mut plan = ClusterPlan::new(Vec::new());
        plan.refusals = early;
        return Ok(Planned {
            fleet,
            nodes: Vec::new(),
            plan,
        });
    }
    let mut nodes = Vec::new();
    for (target, observation) in targets {
        let survey = if to_do(&observation) {
            looking(&format!("looking at Node {}", target.node_name));
            Some(target.survey().await?)
        } else {
            None
        };
        let mut snapshot = snapshot(&observation, survey.as_ref());
        if certificates {
            snapshot.files = target.files(&snapshot.pods(&options.components)).await?;
        }
        nodes.push(PlannedNode {
            snapshot,
            target,
            observation,
            survey,
        });
    }
    let mode = match options.mode {
        ModeChoice::Steered => Mode::Steered,
        ModeChoice::Gap => Mode::Gap,
    };
    let plan_options = ClusterPlanOptions {
        components: options.components.clone(),
        mode,
        per_node: options.per_node,
        single_node: fleet.observations.len() <= 1,
        feature_gates: options.feature_gates.clone(),
    };
    let inputs: Vec<NodeInput> = nodes.iter().map(input).collect();
    let mut plan = plan_cluster(&inputs, &plan_options);
    let daemon_sets = plan
        .nodes
        .iter()
        .flat_map(|node| &node.plan.components)
        .filter_map(|component| component.daemon_set.as_ref());
    if facts.missing_permissions.is_empty() {
        preflight::try_pods(&control_plane, daemon_sets, &mut facts).await?;
    }
    plan.refusals.extend(preflight::cluster_refusals(&facts));
    plan.warnings.extend(preflight::warnings(&facts));
    for (node, planned) in plan.nodes.iter_mut().zip(&nodes) {
        if let Some(survey) = planned.survey.as_ref().filter(|_| converts(&planned.observation)) {
            let facts = preflight::gather(
                &control_plane,
                &planned.observation,
                survey,
                &planned.snapshot,
                &node.plan,
                now,
            )
            .await?;
            let refusals = preflight::refusals(&facts);
            node.plan.refusals.extend(refusals);
        }
    }
    existing_daemon_sets(&control_plane, &nodes, &mut plan, options).await?;
    Ok(Planned { fleet, nodes, plan })
}

/// How many Leases and virtual addresses each node holds.
///
/// # Errors
/// As the API says.
pub async fn burdens(fleet: &Fleet) -> Result<BTreeMap<String, usize>> {
    /// The Lease by which kube-vip says who holds the address of the control plane (kube-vip, "vip_leasename").
    const KUBE_VIP: &str = "plndr-cp-lock";
    let mut holders: Vec<String> = match fleet.observations.first() {
        Some(observation) if fleet.observations.len() > 1 => observation.leaders.values().cloned().collect(),
        _ => return Ok(BTreeMap::new()),
    };
    let virtual_address = fleet.control_plane.lease(KUBE_VIP).await?;
    holders.extend(virtual_address.and_then(|lease| lease.spec?.holder_identity));
    let mut burdens = BTreeMap::new();
    for holder in holders {
        for seen in fleet.observations.iter().filter(|seen| seen.is_holder(&holder)) {
            *burdens.entry(seen.node.name.clone()).or_default() += 1;
        }
    }
    Ok(burdens)
}

fn input(node: &PlannedNode) -> NodeInput {
    let address = node.observation.node.address.as_ref();
    NodeInput {
        name: node.observation.node.name.clone(),
        address: address.and_then(|address| address.parse().ok()),
        snapshot: node.snapshot.clone(),
        build: node.target.binary.build.clone(),
    }
}

/// The manifests of a node, with what the cluster says of the components.
fn snapshot(observation: &Observation, survey: Option<&Survey>) -> Snapshot {
    let (source, entries) = match survey {
        Some(survey) => (
            survey.local.manifest_directory.display().to_string(),
            survey.entries.clone(),
        ),
        None => (format!("Node {}", observation.node.name), Vec::new()),
    };
    let mut snapshot = Snapshot::of_manifests(source, entries);
    for component in Component::ALL {
        let has_manifest = snapshot.inventory.originals.contains_key(&component);
        let state = component_state(observation, component, has_manifest);
        snapshot.states.insert(component, state);
        if !has_manifest && let Some(saved) = survey.and_then(|survey| survey.saved.get(&component)) {
            snapshot.saved.insert(component, saved.clone());
        }
        if let Some(daemon_set) = observation.daemon_sets.get(&component) {
            snapshot.existing.insert(component);
            snapshot
                .certificates
                .extend(daemon_set.certificates.clone().map(|sha256| (component, sha256)));
        }
    }
    snapshot
}

/// A DaemonSet that serves other nodes is the user's, who may have edited it: a node that is converted later runs its
/// template and not its own manifest. Where these differ, that is refused until somebody has accepted it.
async fn existing_daemon_sets(
    control_plane: &crate::cluster::ControlPlane,
    nodes: &[PlannedNode],
    plan: &mut ClusterPlan,
    options: &ConvertOptions,
) -> Result<()> {
    for component in &options.components {
        let name = component.daemon_set_name();
        let elsewhere = control_plane_serves_elsewhere(control_plane, *component, nodes).await?;
        for (node, planned) in plan.nodes.iter_mut().zip(nodes) {
            let facts = planned
                .observation
                .daemon_sets
                .get(component)
                .filter(|facts| facts.name == name && facts.ours);
            let wanted = node.plan.components.iter().find(|plan| plan.component == *component);
            let wanted = wanted.and_then(|plan| plan.daemon_set.as_ref());
            let (Some(facts), Some(wanted), true) = (facts, wanted, elsewhere) else {
                continue;
            };
            if options.per_node {
                plan.refusals.push(Refusal::new(
                    format!("DaemonSet {name}"),
                    "serves nodes already, and --per-node would make another one beside it",
                    "leave --per-node out, or revert the other nodes first",
                ));
                return Ok(());
            }
            if let Some(build) = facts
                .build
                .as_ref()
                .filter(|build| **build != planned.target.binary.build)
            {
                node.plan.refusals.push(Refusal::new(
                    format!("DaemonSet {name}"),
                    format!(
                        "runs the build {build} of this program's executable, and Node {} would get {}",
                        node.node, planned.target.binary.build
                    ),
                    format!(
                        "use the executable of that build, which its nodes have in {}/{build}",
                        crate::names::BIN_DIR
                    ),
                ));
            }
            // the API fills in what a template leaves out: both have to have gone through it
            let mut probe = wanted.clone();
            probe["metadata"]["name"] = serde_json::json!(format!("{name}-plan"));
            let tried = control_plane.create_daemon_set(&probe, true).await?;
            let live = control_plane.daemon_set(&name).await?;
            let live =
                serde_json::to_value(live).map_err(|error| Error::new("a DaemonSet cannot be read").because(error))?;
            let template =
                |value: &serde_json::Value| value.pointer("/spec/template/spec").cloned().unwrap_or_default();
            let differences = diff(&template(&tried), &template(&live));
            if !differences.is_empty() {
                let what = format!(
                    "Node {} would run the template of DaemonSet {name}, which is not what its manifest says: {}",
                    node.node,
                    describe(&differences, "in the manifest", "in the DaemonSet")
                );
                if options.accept_template {
                    node.plan.warnings.push(what);
                } else {
                    node.plan.refusals.push(Refusal::new(
                        format!("DaemonSet {name}"),
                        what,
                        "edit one of them until they agree, or give --accept-template: what the manifest says is lost then, until the node is reverted",
                    ));
                }
            }
        }
    }
    Ok(())
}

/// Whether a component's shared DaemonSet serves nodes that are not being converted now, or are converted already.
async fn control_plane_serves_elsewhere(
    control_plane: &crate::cluster::ControlPlane,
    component: Component,
    nodes: &[PlannedNode],
) -> Result<bool> {
    if !nodes
        .iter()
        .any(|node| node.observation.daemon_sets.contains_key(&component))
    {
        return Ok(false);
    }
    let gated = control_plane.nodes_with_label(&component.gate_label()).await?;
    let pending = |name: &String| {
        nodes
            .iter()
            .any(|node| node.observation.node.name == *name && !is_converted(&node.observation, component))
    };
    Ok(gated.iter().any(|name| !pending(name)))
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
    let width = printer.stdout_width().unwrap_or(100);
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
    let renewed = |node: &&PlannedNode| is_all_converted(&node.observation, options) && !node.is_done(options);
    if options.output != OutputFormat::Json && planned.nodes.iter().any(|node| renewed(&node)) {
        printer.note("the guard is of another build than this program, and is replaced by this one's");
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

/// Carries a plan out, node by node. While the old apiserver of a node finishes what it serves, for up to its grace of
/// 30 s, the next node is prepared and its scheduler and controller manager are handed over; its apiserver is not.
async fn apply(planned: &Planned, options: &ConvertOptions, reporter: &dyn Reporter) -> Result<()> {
    let began = Instant::now();
    planned.fleet.control_plane.delete_ended_helpers().await?;
    let mut drain: Option<Drain<'_>> = None;
    for (node, plan) in planned.nodes.iter().zip(&planned.plan.nodes) {
        let name = &node.target.node_name;
        if node.is_done(options) {
            reporter.note(&format!("Node {name} is self-hosted already"));
            continue;
        }
        let began = Instant::now();
        let first = async { convert_node(planned, node, plan, options, reporter).await };
        both(first, drain.take()).await?;
        if !options.components.contains(&Component::KubeApiserver) {
            converted(name, options, began, reporter);
            continue;
        }
        let handed = Arc::new(Notify::new());
        let told = handed.clone();
        let mut last: Drain<'_> = Box::pin(async move {
            hand_over_one(
                planned,
                node,
                &plan.plan,
                options,
                Component::KubeApiserver,
                &told,
                reporter,
            )
            .await?;
            converted(name, options, began, reporter);
            Ok(())
        });
        tokio::select! {
            result = &mut last => result?,
            () = handed.notified() => drain = Some(last),
        }
    }
    both(async { Ok(()) }, drain).await?;
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

/// Both to their ends, whatever comes of one of them: a hand-over is not left half told.
async fn both(first: impl Future<Output = Result<()>>, drain: Option<Drain<'_>>) -> Result<()> {
    match drain {
        None => first.await,
        Some(drain) => {
            let (first, drain) = tokio::join!(first, drain);
            first.and(drain)
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

/// All of a node but its apiserver.
async fn convert_node(
    planned: &Planned,
    node: &PlannedNode,
    plan: &NodePlan,
    options: &ConvertOptions,
    reporter: &dyn Reporter,
) -> Result<()> {
    let task = format!("{}/node", node.target.node_name);
    reporter.begin(&task, &format!("{} node", node.target.node_name), 3);
    let prepared = prepare(node, options, &task, reporter).await;
    match &prepared {
        Ok(()) => reporter.finish(&task, Outcome::Done, "the guard watches over this node"),
        Err(error) => reporter.finish(&task, Outcome::Failed, error.what()),
    }
    prepared?;
    for component in &options.components {
        if *component != Component::KubeApiserver {
            hand_over_one(planned, node, &plan.plan, options, *component, &Notify::new(), reporter).await?;
        }
    }
    Ok(())
}

async fn hand_over_one(
    planned: &Planned,
    node: &PlannedNode,
    plan: &Plan,
    options: &ConvertOptions,
    component: Component,
    handed: &Notify,
    reporter: &dyn Reporter,
) -> Result<()> {
    let control_plane = &planned.fleet.control_plane;
    let name = &node.target.node_name;
    let task = format!("{name}/{component}");
    reporter.begin(&task, &format!("{name} {component}"), hand_over::STEPS);
    if is_converted(&node.observation, component) {
        reporter.finish(&task, Outcome::Skipped, "self-hosted already");
        return Ok(());
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
        task: &task,
        component,
        daemon_set: wanted.filter(|_| existing.is_none() || outdated),
        daemon_set_name: &daemon_set_name,
        outdated,
        alone: planned.fleet.observations.len() <= 1,
        handed,
        desired: match options.mode {
            ModeChoice::Steered => Desired::SelfHosted,
            ModeChoice::Gap => Desired::SelfHostedGap,
        },
    };
    match hand_over.run(reporter).await {
        Ok(()) => {
            reporter.finish(
                &task,
                Outcome::Done,
                &format!("self-hosted after {:.1} s", began.elapsed().as_secs_f64()),
            );
            Ok(())
        }
        Err(error) => {
            reporter.finish(&task, Outcome::Failed, error.what());
            Err(error)
        }
    }
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
    reporter.waiting(task, "the executable and the guard to be installed");
    let changed = target.install(&image).await?;
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
                Some(guard) if guard.build == target.binary.build && (!changed || Some(guard.process) != before) => Poll::Ready(guard),
                _ => Poll::Pending("the guard to start and report".into()),
            })
        }
        .await)
    })
    .await
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
