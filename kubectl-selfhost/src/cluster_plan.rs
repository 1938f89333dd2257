//! What a conversion would do to all nodes of a cluster: the plan of each, and what they must have in common.

use crate::certs_in_secrets;
use crate::diff::{Difference, diff};
use crate::feature_gates::FeatureGates;
use crate::manifest::sha256_hex;
use crate::mutators::Mode;
use crate::names::Component;
use crate::plan::{API_VERSION, Plan, PlanOptions, Snapshot, plan};
use crate::refusal::Refusal;
use serde::Serialize;
use serde_json::Value;
use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

/// One node, as its plan is computed from it.
#[derive(Clone, Debug)]
pub struct NodeInput {
    /// Name of the Node.
    pub name: String,
    /// Its address as Pods see it, if it is known.
    pub address: Option<IpAddr>,
    /// Its manifests, and how its components run.
    pub snapshot: Snapshot,
    /// Build of our executable for it.
    pub build: String,
}

/// What is to be planned.
#[derive(Clone, Debug)]
pub struct ClusterPlanOptions {
    /// The components to convert.
    pub components: Vec<Component>,
    /// How ports are handed over.
    pub mode: Mode,
    /// One DaemonSet for each node and component, instead of one for each component.
    pub per_node: bool,
    /// The cluster has one control-plane node.
    pub single_node: bool,
    /// Feature gates.
    pub feature_gates: FeatureGates,
}

/// The plan of one node.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct NodePlan {
    /// Name of the Node.
    pub node: String,
    /// What would be done there, and what forbids it.
    pub plan: Plan,
}

/// The plan of a cluster: its nodes in the order in which they are converted.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct ClusterPlan {
    /// `selfhost/v1`; changes when a field changes its meaning.
    pub api_version: &'static str,
    /// `ClusterPlan`.
    pub kind: &'static str,
    /// The nodes.
    pub nodes: Vec<NodePlan>,
    /// What forbids it and belongs to no single node.
    pub refusals: Vec<Refusal>,
    /// What the reader should know and belongs to no single node.
    pub warnings: Vec<String>,
}

impl ClusterPlan {
    /// A plan of these nodes.
    #[must_use]
    pub fn new(nodes: Vec<NodePlan>) -> Self {
        Self {
            api_version: API_VERSION,
            kind: "ClusterPlan",
            nodes,
            refusals: Vec::new(),
            warnings: Vec::new(),
        }
    }

    /// Whether it would change anything.
    #[must_use]
    pub fn has_changes(&self) -> bool {
        self.nodes.iter().any(|node| node.plan.has_changes())
    }

    /// Everything that forbids it. What forbids it on several nodes for the same reason is said once, with their names.
    #[must_use]
    pub fn all_refusals(&self) -> Vec<Refusal> {
        let mut all = self.refusals.clone();
        let mut by_refusal: Vec<(&Refusal, Vec<&str>)> = Vec::new();
        for node in &self.nodes {
            for refusal in &node.plan.refusals {
                match by_refusal.iter_mut().find(|(known, _)| *known == refusal) {
                    Some((_, nodes)) => nodes.push(&node.node),
                    None => by_refusal.push((refusal, vec![&node.node])),
                }
            }
        }
        for (refusal, nodes) in by_refusal {
            let mut refusal = refusal.clone();
            let named = nodes.iter().all(|node| refusal.object.contains(*node));
            if self.nodes.len() > 1 && !named && nodes.len() < self.nodes.len() {
                refusal.object = format!("Node {}: {}", nodes.join(", Node "), refusal.object);
            }
            all.push(refusal);
        }
        all
    }

    /// All warnings about nodes, each once, and those that belong to none.
    #[must_use]
    pub fn all_warnings(&self) -> Vec<String> {
        let mut all = self.warnings.clone();
        for node in &self.nodes {
            for warning in &node.plan.warnings {
                if !all.contains(warning) {
                    all.push(warning.clone());
                }
            }
        }
        all
    }
}

/// The plan for these nodes, in their order. Pure: the same nodes and options give the same plan.
#[must_use]
pub fn plan_cluster(nodes: &[NodeInput], options: &ClusterPlanOptions) -> ClusterPlan {
    let originals = common_originals(nodes, &options.components);
    let of_node = |node: &NodeInput| NodePlan {
        node: node.name.clone(),
        plan: plan(
            &node.snapshot,
            &PlanOptions {
                components: options.components.clone(),
                mode: options.mode,
                build: node.build.clone(),
                node_address: node.address,
                only_node: options.per_node.then(|| node.name.clone()),
                originals: if options.per_node {
                    BTreeMap::new()
                } else {
                    originals.clone()
                },
                single_node: options.single_node,
                feature_gates: options.feature_gates.clone(),
            },
        ),
    };
    let mut plan = ClusterPlan::new(nodes.iter().map(of_node).collect());
    if !options.per_node {
        // templates that differ in their Secrets alone say less than the files
        let files = different_files(&plan.nodes, &options.components);
        plan.refusals = if files.is_empty() {
            disagreements(&plan.nodes)
        } else {
            files
        };
    }
    plan
}

/// What a shared DaemonSet says that it was made from: the SHA-256 of the original, or of all of them where they differ.
fn common_originals(nodes: &[NodeInput], components: &[Component]) -> BTreeMap<Component, String> {
    let of = |component: &Component| {
        let sums: BTreeSet<&str> = nodes
            .iter()
            .filter_map(|node| {
                let snapshot = &node.snapshot;
                let original = snapshot.inventory.originals.get(component);
                Some(original.or_else(|| snapshot.saved.get(component))?.sha256.as_str())
            })
            .collect();
        let sum = match (sums.len(), sums.first()) {
            (0, _) | (_, None) => return None,
            (1, Some(only)) => (*only).to_owned(),
            _ => sha256_hex(sums.into_iter().collect::<Vec<_>>().join("\n").as_bytes()),
        };
        Some((*component, sum))
    };
    components.iter().filter_map(of).collect()
}

/// Where the files differ that would go into one Secret.
fn different_files(nodes: &[NodePlan], components: &[Component]) -> Vec<Refusal> {
    let of = |component: &Component| {
        let contents = |node: &NodePlan| {
            let plan = node.plan.components.iter().find(|plan| plan.component == *component)?;
            Some((node.node.clone(), plan.secret.as_ref()?.contents()))
        };
        certs_in_secrets::differences(*component, &nodes.iter().filter_map(contents).collect())
    };
    components.iter().flat_map(of).collect()
}

/// Where the templates of two nodes differ, one DaemonSet cannot serve both.
fn disagreements(nodes: &[NodePlan]) -> Vec<Refusal> {
    let mut refusals = Vec::new();
    for component in Component::ALL {
        let templates: Vec<(&str, &Value)> = nodes
            .iter()
            .filter_map(|node| {
                let plan = node.plan.components.iter().find(|plan| plan.component == component)?;
                Some((node.node.as_str(), plan.daemon_set.as_ref()?.pointer("/spec/template")?))
            })
            .collect();
        let Some(((first, template), others)) = templates.split_first() else {
            continue;
        };
        for (other, another) in others {
            let differences = diff(template, another);
            if !differences.is_empty() {
                refusals.push(Refusal::new(
                    format!("DaemonSet {}", component.daemon_set_name()),
                    format!(
                        "cannot serve Node {first} and Node {other}, whose manifests differ: {}",
                        describe(&differences, &format!("on {first}"), &format!("on {other}"))
                    ),
                    "make the manifests the same, or give --per-node: one DaemonSet for each node and component",
                ));
            }
        }
    }
    refusals
}

/// Most differences that are named.
const MOST: usize = 8;

/// Differences as one line; `before` and `after` say where each value stands.
#[must_use]
pub fn describe(differences: &[Difference], before: &str, after: &str) -> String {
    let text = |value: &Option<Value>| value.as_ref().map_or_else(|| "nothing".to_owned(), Value::to_string);
    let mut words: Vec<String> = differences
        .iter()
        .take(MOST)
        .map(|difference| {
            format!(
                "{}: {} {before}, {} {after}",
                difference.path,
                text(&difference.before),
                text(&difference.after)
            )
        })
        .collect();
    if differences.len() > MOST {
        words.push(format!("and {} more", differences.len() - MOST));
    }
    words.join("; ")
}

/// The order in which nodes are converted, or reverted: those that hold Leases or a virtual address come last, so that
/// each of these moves once. Otherwise by name.
#[must_use]
pub fn order(mut nodes: Vec<String>, burdens: &BTreeMap<String, usize>) -> Vec<String> {
    nodes.sort_by(|one, other| {
        let burden = |name: &String| burdens.get(name).copied().unwrap_or_default();
        (burden(one), one).cmp(&(burden(other), other))
    });
    nodes
}

#[cfg(test)]
#[path = "cluster_plan_tests.rs"]
mod tests;
