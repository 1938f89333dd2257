//! What forbids a conversion on a live node: each check is a pure function over facts that were gathered before.

use crate::cluster::ControlPlane;
use crate::component_state::is_converted;
use crate::helper_pod::helper_pod;
use crate::names::{Component, FIELD_MANAGER, NAMESPACE, STATE_DIR};
use crate::node::state::Original;
use crate::observe::{Observation, cpu, ended, requested_cpu};
use crate::plan::{Gap, Plan, Snapshot};
use crate::refusal::Refusal;
use crate::settling::nobody_leads;
use crate::survey::{BadPath, Survey};
use crate::target::{Place, Target};
use crate::webhooks::{BlockingWebhook, blocking_webhooks};
use jiff::Timestamp;
use serde_json::{Value, json};
use shared::Result;
use std::collections::{BTreeMap, BTreeSet};

/// Everything that the checks of one node look at.
#[derive(Debug)]
pub struct Facts<'a> {
    /// What the API showed.
    pub observation: &'a Observation,
    /// What the manifest directory held.
    pub snapshot: &'a Snapshot,
    /// What is planned.
    pub plan: &'a Plan,
    /// CPU that the Pods on the node request, in thousandths of a core.
    pub requested_cpu: i64,
    /// hostPath volumes that are not on the node as they are asked for.
    pub bad_paths: Vec<BadPath>,
    /// Our directories on file systems that do not let files be executed.
    pub not_executable: Vec<String>,
    /// Manifests that the node's disk remembers as saved.
    pub remembered: BTreeMap<Component, Original>,
    /// Why ports cannot be shared and steered there, from a trial.
    pub steering_refused: Option<String>,
    /// When the API was looked at: helpers that go to the nodes take their time after that.
    pub now: Timestamp,
}

/// Everything that the checks of the cluster look at.
#[derive(Clone, Debug, Default)]
pub struct ClusterFacts {
    /// Permissions that are missing, as `verb resource`.
    pub missing_permissions: Vec<String>,
    /// Why the Pods of a DaemonSet, or helper Pods, would not be admitted: what, and why.
    pub not_admitted: BTreeMap<String, String>,
    /// Webhooks that can keep the Pods from being created.
    pub webhooks: Vec<BlockingWebhook>,
}

/// What convert and revert do through the API.
const PERMISSIONS: [(&str, &str, &str, &str); 19] = [
    ("get", "", "nodes", ""),
    ("list", "", "nodes", ""),
    ("patch", "", "nodes", ""),
    ("list", "", "pods", ""),
    ("create", "", "pods", NAMESPACE),
    ("get", "", "pods/log", NAMESPACE),
    ("list", "apps", "daemonsets", NAMESPACE),
    ("create", "apps", "daemonsets", NAMESPACE),
    ("delete", "apps", "daemonsets", NAMESPACE),
    ("list", "", "secrets", NAMESPACE),
    ("patch", "", "secrets", NAMESPACE),
    ("delete", "", "secrets", NAMESPACE),
    ("create", "coordination.k8s.io", "leases", NAMESPACE),
    ("update", "coordination.k8s.io", "leases", NAMESPACE),
    ("patch", "discovery.k8s.io", "endpointslices", "default"),
    ("create", "discovery.k8s.io", "endpointslices", "default"),
    ("delete", "discovery.k8s.io", "endpointslices", "default"),
    (
        "list",
        "admissionregistration.k8s.io",
        "validatingwebhookconfigurations",
        "",
    ),
    (
        "list",
        "admissionregistration.k8s.io",
        "mutatingwebhookconfigurations",
        "",
    ),
];

/// What is done through the API besides, where certificates go into Secrets.
const CERTIFICATES_PERMISSIONS: [(&str, &str, &str, &str); 3] = [
    ("get", "", "secrets", NAMESPACE),
    ("create", "", "secrets", NAMESPACE),
    ("update", "apps", "daemonsets", NAMESPACE),
];

/// What is done through the API besides, where nodes are reached by helper Pods.
const HELPER_PERMISSIONS: [(&str, &str, &str, &str); 3] = [
    ("create", "", "pods/exec", NAMESPACE),
    ("get", "", "pods/exec", NAMESPACE),
    ("delete", "", "pods", NAMESPACE),
];

/// Gathers what is true of the whole cluster, and asks whether a helper for each of these nodes would be admitted. Nothing
/// is changed: Pods are tried as a dry run.
///
/// # Errors
/// When the API cannot be asked.
pub async fn gather_cluster(
    control_plane: &ControlPlane,
    away: &[&Target],
    certificates: bool,
) -> Result<ClusterFacts> {
    let mut facts = ClusterFacts::default();
    let more: &[_] = if away.is_empty() { &[] } else { &HELPER_PERMISSIONS };
    let secrets: &[_] = if certificates { &CERTIFICATES_PERMISSIONS } else { &[] };
    for (verb, group, resource, namespace) in PERMISSIONS.iter().chain(more).chain(secrets) {
        if !control_plane.may(verb, group, resource, namespace).await? {
            let place = if namespace.is_empty() {
                String::new()
            } else {
                format!(" in {namespace}")
            };
            facts.missing_permissions.push(format!("{verb} {resource}{place}"));
        }
    }
    if !facts.missing_permissions.is_empty() {
        return Ok(facts);
    }
    let (validating, mutating) = control_plane.webhooks().await?;
    facts.webhooks = blocking_webhooks(&validating, &mutating);
    // one for all: only the node's name differs
    if let Some(target) = away.first()
        && let Place::Away { image } = &target.place
        && let Err(error) = control_plane
            .would_admit_pod(&helper_pod(&target.node_name, image))
            .await
    {
        facts.not_admitted.insert("the helper".into(), first_reason(&error));
    }
    Ok(facts)
}

/// Asks whether the Pods of these DaemonSets would be admitted.
///
/// # Errors
/// When the API cannot be asked.
pub async fn try_pods<'a>(
    control_plane: &ControlPlane,
    daemon_sets: impl Iterator<Item = &'a Value>,
    facts: &mut ClusterFacts,
) -> Result<()> {
    let mut tried = BTreeSet::new();
    for daemon_set in daemon_sets {
        let name = daemon_set["metadata"]["name"].as_str().unwrap_or_default().to_owned();
        if tried.insert(name.clone())
            && let Err(error) = control_plane.would_admit_pod(&pod_of(daemon_set)).await
        {
            facts.not_admitted.insert(name, first_reason(&error));
        }
    }
    Ok(())
}

fn first_reason(error: &shared::Error) -> String {
    error.why().first().cloned().unwrap_or_else(|| error.to_string())
}

/// Gathers what is true of one node.
///
/// # Errors
/// When the API cannot be asked.
pub async fn gather<'a>(
    control_plane: &ControlPlane,
    observation: &'a Observation,
    survey: &Survey,
    snapshot: &'a Snapshot,
    plan: &'a Plan,
    now: Timestamp,
) -> Result<Facts<'a>> {
    let pods = control_plane.pods_on(&observation.node.name).await?;
    Ok(Facts {
        requested_cpu: pods.iter().filter(|pod| !ended(pod)).map(requested_cpu).sum(),
        observation,
        snapshot,
        plan,
        bad_paths: survey.bad_paths.clone(),
        not_executable: survey.not_executable.clone(),
        remembered: survey.remembered.clone(),
        steering_refused: survey.steering_refused.clone(),
        now,
    })
}

/// A Pod as the DaemonSet's controller would make it.
fn pod_of(daemon_set: &Value) -> Value {
    let template = &daemon_set["spec"]["template"];
    let mut metadata = template["metadata"].clone();
    metadata["generateName"] = json!("selfhost-preflight-");
    metadata["namespace"] = json!(NAMESPACE);
    json!({"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": template["spec"]})
}

/// Everything that forbids the conversion of the node.
#[must_use]
pub fn refusals(facts: &Facts<'_>) -> Vec<Refusal> {
    let checks = [
        executable, steering, manifests, paths, running, leading, capacity, foreign,
    ];
    let found = checks.iter().flat_map(|check| check(facts));
    node(facts.observation).into_iter().chain(found).collect()
}

/// Everything that forbids a conversion in this cluster.
#[must_use]
pub fn cluster_refusals(facts: &ClusterFacts) -> Vec<Refusal> {
    [permissions, admission].iter().flat_map(|check| check(facts)).collect()
}

/// What the reader should know, and what forbids nothing.
#[must_use]
pub fn warnings(facts: &ClusterFacts) -> Vec<String> {
    facts
        .webhooks
        .iter()
        .map(|webhook| {
            format!(
                "{}: refuses Pods in kube-system while it does not answer, and unlike static Pods those of a DaemonSet need its leave; exclude kube-system with its namespaceSelector",
                webhook.name
            )
        })
        .collect()
}

fn steering(facts: &Facts<'_>) -> Vec<Refusal> {
    let steered = facts
        .plan
        .components
        .iter()
        .any(|plan| plan.daemon_set.is_some() && plan.expected_gap == Gap::None);
    let why = facts.steering_refused.as_ref().filter(|_| steered);
    why.map(|why| {
        Refusal::new(
            format!("Node {}", facts.observation.node.name),
            format!("ports cannot be shared and steered here: {why}"),
            "convert with --mode gap: each component is away for one start (about 3 s for the apiserver)",
        )
    })
    .into_iter()
    .collect()
}

/// What of a Node alone forbids its conversion.
#[must_use]
pub fn node(observation: &Observation) -> Vec<Refusal> {
    let node = &observation.node;
    let object = format!("Node {}", node.name);
    let mut refusals = Vec::new();
    if let Some(why) = &node.not_ready {
        refusals.push(Refusal::new(
            &object,
            format!("is not Ready: {why}"),
            "mend the node first",
        ));
    }
    if let Some(machine) = &node.cluster_api {
        refusals.push(Refusal::new(
            &object,
            format!("belongs to the Cluster API Machine {machine}, which would replace the node and what was converted on it"),
            "configure the control plane through its KubeadmControlPlane object",
        ));
    }
    refusals
}

fn executable(facts: &Facts<'_>) -> Vec<Refusal> {
    let refusal = |path: &String| {
        Refusal::new(
            path,
            "lies on a file system that is mounted noexec: the Pods could not run our executable from there",
            "remount it with exec, or mount another file system there",
        )
    };
    facts.not_executable.iter().map(refusal).collect()
}

fn permissions(facts: &ClusterFacts) -> Vec<Refusal> {
    if facts.missing_permissions.is_empty() {
        return Vec::new();
    }
    vec![Refusal::new(
        "your user",
        format!("may not: {}", facts.missing_permissions.join(", ")),
        "use a kubeconfig of a cluster administrator, such as /etc/kubernetes/admin.conf",
    )]
}

/// What can be read from a directory and not be done on a node.
fn manifests(facts: &Facts<'_>) -> Vec<Refusal> {
    let mut refusals = Vec::new();
    for file in facts.snapshot.inventory.originals.values() {
        let path = file.path.display().to_string();
        if file.symlink {
            refusals.push(Refusal::new(
                &path,
                "is a symbolic link, which could not be put back as it was",
                "put the manifest itself into the manifest directory",
            ));
        }
    }
    refusals
}

fn admission(facts: &ClusterFacts) -> Vec<Refusal> {
    facts
        .not_admitted
        .iter()
        .map(|(whose, why)| {
            Refusal::new(
                format!("Pods of {whose}"),
                format!("would not be admitted to kube-system: {why}"),
                "change the quota, LimitRange, policy or webhook that refuses them, or exclude kube-system from it",
            )
        })
        .collect()
}

fn paths(facts: &Facts<'_>) -> Vec<Refusal> {
    facts
        .bad_paths
        .iter()
        .map(|bad| {
            let BadPath {
                component,
                volume,
                path,
                wrong,
            } = bad;
            Refusal::new(
                path,
                format!("{wrong}, and the volume {volume} of {component} needs it"),
                "put it there, or correct the manifest",
            )
        })
        .collect()
}

/// The static Pods must run well before anything is changed: else a failure would be laid at our door.
fn running(facts: &Facts<'_>) -> Vec<Refusal> {
    let mut refusals = Vec::new();
    for plan in &facts.plan.components {
        let component = plan.component;
        if !facts.snapshot.inventory.originals.contains_key(&component) || is_converted(facts.observation, component) {
            continue;
        }
        let name = format!("{component}-{}", facts.observation.node.name);
        let pod = facts
            .observation
            .pods
            .get(&component)
            .and_then(|pods| pods.iter().find(|pod| pod.mirror && pod.name == name));
        let object = format!("Pod {NAMESPACE}/{name}");
        match pod {
            None => refusals.push(Refusal::new(
                object,
                "is not there: the kubelet does not run this manifest",
                "look into the kubelet's log for why it refuses the manifest",
            )),
            Some(pod) if !pod.ready => {
                let why = pod
                    .trouble
                    .clone()
                    .unwrap_or_else(|| "its readiness probe fails".into());
                refusals.push(Refusal::new(
                    object,
                    format!("is not ready: {why}"),
                    "mend the static Pod first; it must run well before it is converted",
                ));
            }
            Some(_) => {}
        }
    }
    refusals
}

/// A component that nobody leads does nothing, however ready its Pods are.
fn leading(facts: &Facts<'_>) -> Vec<Refusal> {
    let refusal = |component: Component| {
        let what = nobody_leads(facts.observation, facts.snapshot, component, facts.now)?;
        Some(Refusal::new(
            format!("Lease {NAMESPACE}/{component}"),
            what,
            format!(
                "look into the log of {component} for why it does not lead; if it does, set the clocks of this machine and of the node right"
            ),
        ))
    };
    let plans = facts.plan.components.iter();
    plans.filter_map(|plan| refusal(plan.component)).collect()
}

/// Two of a component run side by side for half a minute, one component after the other.
fn capacity(facts: &Facts<'_>) -> Vec<Refusal> {
    let needed = facts
        .plan
        .components
        .iter()
        .filter_map(|plan| plan.daemon_set.as_ref())
        .map(|daemon_set| {
            let containers = daemon_set["spec"]["template"]["spec"]["containers"]
                .as_array()
                .cloned()
                .unwrap_or_default();
            containers
                .iter()
                .filter_map(|c| c["resources"]["requests"]["cpu"].as_str().map(cpu))
                .sum::<i64>()
        })
        .max()
        .unwrap_or(0);
    let free = facts.observation.node.allocatable_cpu - facts.requested_cpu;
    if facts.observation.node.allocatable_cpu == 0 || needed <= free {
        return Vec::new();
    }
    vec![Refusal::new(
        format!("Node {}", facts.observation.node.name),
        format!("has {free}m CPU left to request, and {needed}m are needed while old and new Pod run side by side"),
        "move other Pods away, or lower their CPU requests",
    )]
}

/// Things under our names that are not ours, and what an earlier attempt of somebody else left.
fn foreign(facts: &Facts<'_>) -> Vec<Refusal> {
    let mut refusals = Vec::new();
    for daemon_set in facts.observation.daemon_sets.values() {
        if !daemon_set.ours {
            refusals.push(Refusal::new(
                format!("DaemonSet {NAMESPACE}/{}", daemon_set.name),
                format!("is there already and was not made by this program (no label app.kubernetes.io/managed-by={FIELD_MANAGER})"),
                "find out whose it is; an unfinished `kubeadm alpha selfhosting pivot` leaves such a one: delete it when no Pod of it serves",
            ));
        }
    }
    for (component, original) in &facts.remembered {
        let now = facts
            .snapshot
            .inventory
            .originals
            .get(component)
            .map(|file| &file.sha256);
        let Some(now) = now.filter(|now| **now != original.sha256) else {
            continue;
        };
        if facts
            .observation
            .node
            .desired
            .get(component)
            .is_some_and(|desired| desired.is_self_hosted())
        {
            refusals.push(Refusal::new(
                facts.snapshot.inventory.originals.get(component).map(|f| f.path.display().to_string()).unwrap_or_default(),
                format!("was written by somebody else while {component} is (being) converted: its SHA-256 begins with {}, that of the saved original with {}", start(now), start(&original.sha256)),
                format!("move it out of the manifest directory; the saved original is in {STATE_DIR}/{component}/"),
            ));
        }
    }
    refusals
}

/// Enough of a checksum for people to compare.
fn start(sha256: &str) -> String {
    sha256.chars().take(12).collect()
}

#[cfg(test)]
#[path = "preflight_tests.rs"]
mod tests;
