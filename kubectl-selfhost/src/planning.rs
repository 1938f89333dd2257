//! The plan of a live cluster: which nodes, what they show, what would be done, and everything that forbids it.

use crate::cluster_plan::{ClusterPlan, ClusterPlanOptions, NodeInput, describe, order, plan_cluster};
use crate::component_state::{component_state, is_converted};
use crate::convert::{ConvertOptions, ModeChoice};
use crate::diff::diff;
use crate::feature_gates::Gate;
use crate::fleet::Fleet;
use crate::mutators::Mode;
use crate::names::Component;
use crate::observe::Observation;
use crate::plan::Snapshot;
use crate::preflight::{self, ClusterFacts};
use crate::refusal::Refusal;
use crate::settling::settle;
use crate::survey::Survey;
use crate::target::Target;
use jiff::Timestamp;
use shared::{Error, Result};
use std::collections::BTreeMap;

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
    /// Whether all of it is converted already, and guarded by this very program, which lacks nothing.
    #[must_use]
    pub fn is_done(&self, options: &ConvertOptions) -> bool {
        // a setting of the guard is made even where nothing else is to be done
        let set = options.last_known_good_after.is_some();
        is_all_converted(&self.observation, options) && self.is_guarded() && !set
    }

    /// whether this very program guards it, and lacks nothing.
    #[must_use]
    pub fn is_guarded(&self) -> bool {
        let guard = self.observation.node.guard.as_ref();
        guard.is_some_and(|guard| guard.build == self.target.binary.build && guard.troubles.is_empty())
    }
}

/// Whether all components that were asked for are converted on a node.
#[must_use]
pub fn is_all_converted(observation: &Observation, options: &ConvertOptions) -> bool {
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
            if target.is_away() {
                looking(&format!("looking at Node {}", target.node_name));
            }
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
