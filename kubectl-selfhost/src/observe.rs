//! What the API shows of a node's control plane, reduced to the facts that decisions need.

use crate::cluster::ControlPlane;
use crate::daemon_set::per_node_name;
use crate::names::{AWAIT_CONTAINER, Component, FIELD_MANAGER, GUARD};
use crate::node::guard::api::guard_annotation;
use crate::node::state::{Desired, GuardReport, Report};
use jiff::Timestamp;
use k8s_openapi::api::apps::v1::DaemonSet;
use k8s_openapi::api::core::v1::{ContainerStatus, Node, Pod};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use serde::Serialize;
use shared::Result;
use std::collections::BTreeMap;

/// A Pod that belongs to a component on a node.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct PodFacts {
    /// Its name.
    pub name: String,
    /// Whether it stands for a static Pod.
    pub mirror: bool,
    /// Whether it is being deleted.
    pub terminating: bool,
    /// Whether it is Ready.
    pub ready: bool,
    /// Whether it is not Ready yet, with a container that runs or is being made.
    #[serde(skip)]
    pub starting: bool,
    /// Whether it waits in our init container.
    pub awaiting: bool,
    /// Restarts of the component's container.
    pub restarts: i32,
    /// Image of the component.
    pub image: String,
    /// Why it does not run, in the cluster's words: reason and message.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub trouble: Option<String>,
    /// Name of the component's container.
    pub container: String,
    /// The container has ended at least once: its previous log is worth reading.
    pub ended: bool,
}

/// A Node.
#[derive(Clone, Debug, Default)]
pub struct NodeFacts {
    /// Its name.
    pub name: String,
    /// Its UID.
    pub uid: String,
    /// Whether it is Ready; else why not.
    pub not_ready: Option<String>,
    /// The first InternalIP.
    pub address: Option<String>,
    /// All InternalIPs.
    pub addresses: Vec<String>,
    /// Names under which its processes may know it: its own, and what its hostname is said to be.
    pub host_names: Vec<String>,
    /// Operating system, as the Node names it, such as `linux`.
    pub operating_system: String,
    /// Kind of processor, as the Node names it, such as `amd64`.
    pub architecture: String,
    /// CPU that Pods may request, in thousandths of a core.
    pub allocatable_cpu: i64,
    /// The Cluster API object that owns it.
    pub cluster_api: Option<String>,
    /// Components whose gate label it carries.
    pub gated: Vec<Component>,
    /// What the CLI last stated.
    pub desired: BTreeMap<Component, Desired>,
    /// What the guard last reported.
    pub reports: BTreeMap<Component, Report>,
    /// What the guard last reported of itself.
    pub guard: Option<GuardReport>,
    /// Whether anything of ours is written on it.
    pub marked: bool,
}

/// A DaemonSet of one of our names.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DaemonSetFacts {
    /// Its name.
    pub name: String,
    /// The Node that it is for alone; absent where it serves all that are gated.
    pub node: Option<String>,
    /// Whether we made it.
    pub ours: bool,
    /// SHA-256 of the original it was made from.
    pub original: Option<String>,
    /// Whether it hands over with a gap.
    pub gap: bool,
    /// The build of our executable that it mounts.
    pub build: Option<String>,
    /// SHA-256 of the certificates that its Pods take from a Secret.
    pub certificates: Option<String>,
}

/// Everything about one node.
#[derive(Clone, Debug)]
pub struct Observation {
    /// The Node.
    pub node: NodeFacts,
    /// Pods by component.
    pub pods: BTreeMap<Component, Vec<PodFacts>>,
    /// The guard's Pod.
    pub guard_pod: Option<PodFacts>,
    /// DaemonSets of our names that serve this node, or would.
    pub daemon_sets: BTreeMap<Component, DaemonSetFacts>,
    /// Who leads.
    pub leaders: BTreeMap<Component, String>,
    /// When the Lease was last renewed, as the clock of its holder said.
    pub renewals: BTreeMap<Component, Timestamp>,
}

impl Observation {
    /// Whether the control plane of this node is, or was, ours to care for: it has a Pod of a component, or bears our marks.
    #[must_use]
    pub fn is_control_plane(&self) -> bool {
        self.node.marked || self.guard_pod.is_some() || self.pods.values().any(|pods| !pods.is_empty())
    }

    /// Whether the process that holds this identity (`<hostname>_<random>`) runs on this node.
    #[must_use]
    pub fn is_holder(&self, identity: &str) -> bool {
        let host = identity.rsplit_once('_').map_or(identity, |(host, _)| host);
        self.node.host_names.iter().any(|name| name.eq_ignore_ascii_case(host))
    }
}

/// What the API shows of the whole cluster, not sorted by node yet.
#[derive(Debug)]
struct Seen {
    pods: Vec<Pod>,
    daemon_sets: Vec<DaemonSet>,
    leaders: BTreeMap<Component, String>,
    renewals: BTreeMap<Component, Timestamp>,
}

impl Seen {
    async fn look(control_plane: &ControlPlane) -> Result<Self> {
        let names: Vec<&str> = Component::ALL
            .iter()
            .map(|component| component.name())
            .chain([GUARD])
            .collect();
        let pods = control_plane
            .pods(&format!("component in ({})", names.join(",")))
            .await?;
        let daemon_sets = control_plane.daemon_sets().await?;
        let (mut leaders, mut renewals) = (BTreeMap::new(), BTreeMap::new());
        for component in Component::ALL {
            if let Some(name) = component.lease()
                && let Some(spec) = control_plane.lease(name).await?.and_then(|lease| lease.spec)
            {
                if let Some(holder) = spec.holder_identity.filter(|holder| !holder.is_empty()) {
                    leaders.insert(component, holder);
                }
                if let Some(renewed) = spec.renew_time {
                    renewals.insert(component, renewed.0);
                }
            }
        }
        Ok(Self {
            pods,
            daemon_sets,
            leaders,
            renewals,
        })
    }

    fn on(&self, node: NodeFacts) -> Observation {
        let pods: Vec<&Pod> = self
            .pods
            .iter()
            .filter(|pod| node_of(pod) == Some(&node.name))
            .collect();
        let mine = |component: Component| {
            let pods = pods.iter().filter(|pod| is_of(pod, component));
            (component, pods.map(|pod| pod_facts(pod, component.name())).collect())
        };
        let daemon_set = |component: Component| {
            let named = |name: String| {
                let facts = self.daemon_sets.iter().map(daemon_set_facts);
                facts.into_iter().find(|facts| facts.name == name)
            };
            let own = named(per_node_name(component, &node.name));
            Some((component, own.or_else(|| named(component.daemon_set_name()))?))
        };
        Observation {
            guard_pod: pods
                .iter()
                .find(|pod| is_mirror_of(pod, GUARD, &node.name))
                .map(|pod| pod_facts(pod, "guard")),
            pods: Component::ALL.into_iter().map(mine).collect(),
            daemon_sets: Component::ALL.into_iter().filter_map(daemon_set).collect(),
            leaders: self.leaders.clone(),
            renewals: self.renewals.clone(),
            node,
        }
    }
}

/// The node that a Pod runs on, or is meant for: the Pods of a DaemonSet name theirs before they are scheduled.
fn node_of(pod: &Pod) -> Option<&str> {
    let spec = pod.spec.as_ref()?;
    spec.node_name.as_deref().or_else(|| {
        let affinity = spec.affinity.as_ref()?.node_affinity.as_ref()?;
        let terms = &affinity
            .required_during_scheduling_ignored_during_execution
            .as_ref()?
            .node_selector_terms;
        let fields = terms.iter().flat_map(|term| term.match_fields.iter().flatten());
        let name = fields.filter(|field| field.key == "metadata.name" && field.operator == "In");
        name.flat_map(|field| field.values.iter().flatten())
            .map(String::as_str)
            .next()
    })
}

/// Looks at all control-plane nodes, sorted by name. The number of requests does not depend on how many there are.
///
/// # Errors
/// As the API says.
pub async fn observe_cluster(control_plane: &ControlPlane) -> Result<Vec<Observation>> {
    let seen = Seen::look(control_plane).await?;
    let nodes = control_plane.nodes().await?;
    let mut all: Vec<Observation> = nodes.iter().map(|node| seen.on(node_facts(node))).collect();
    all.retain(Observation::is_control_plane);
    all.sort_by(|one, other| one.node.name.cmp(&other.node.name));
    Ok(all)
}

/// Reduces a DaemonSet.
#[must_use]
pub fn daemon_set_facts(daemon_set: &DaemonSet) -> DaemonSetFacts {
    let annotations = daemon_set.metadata.annotations.clone().unwrap_or_default();
    let spec = Some(&daemon_set.spec);
    let strategy = spec
        .and_then(|spec| spec.update_strategy.as_ref())
        .and_then(|strategy| strategy.type_.clone());
    let volumes = spec
        .and_then(|spec| spec.template.spec.as_ref())
        .and_then(|pod| pod.volumes.clone())
        .unwrap_or_default();
    let path = volumes
        .iter()
        .find(|volume| volume.name == crate::names::BIN_VOLUME)
        .and_then(|volume| volume.host_path.as_ref())
        .map(|host_path| host_path.path.clone());
    DaemonSetFacts {
        name: daemon_set.metadata.name.clone().unwrap_or_default(),
        node: annotations.get(crate::daemon_set::NODE_ANNOTATION).cloned(),
        ours: is_ours(&daemon_set.metadata),
        original: annotations.get(crate::daemon_set::ORIGINAL_SHA256_ANNOTATION).cloned(),
        gap: strategy.as_deref() == Some("OnDelete"),
        build: path.and_then(|path| path.rsplit('/').next().map(str::to_owned)),
        certificates: crate::certs_in_secrets::api::certificates_of(daemon_set),
    }
}

/// Whether we made an object.
#[must_use]
pub fn is_ours(metadata: &ObjectMeta) -> bool {
    let label = metadata
        .labels
        .as_ref()
        .and_then(|labels| labels.get("app.kubernetes.io/managed-by"));
    label.map(String::as_str) == Some(FIELD_MANAGER)
}

/// Reduces a Node.
#[must_use]
pub fn node_facts(node: &Node) -> NodeFacts {
    let annotations = node.metadata.annotations.clone().unwrap_or_default();
    let labels = node.metadata.labels.clone().unwrap_or_default();
    let status = node.status.clone().unwrap_or_default();
    let ready = status
        .conditions
        .unwrap_or_default()
        .into_iter()
        .find(|condition| condition.type_ == "Ready");
    let not_ready = match ready {
        Some(condition) if condition.status == "True" => None,
        Some(condition) => Some(
            condition
                .message
                .unwrap_or_else(|| "the kubelet does not report".into()),
        ),
        None => Some("the kubelet has not reported yet".into()),
    };
    let name = node.metadata.name.clone().unwrap_or_default();
    let said = status
        .addresses
        .iter()
        .flatten()
        .filter(|address| address.type_ == "Hostname");
    let mut host_names: Vec<String> = said.map(|address| address.address.clone()).collect();
    host_names.extend(labels.get("kubernetes.io/hostname").cloned());
    host_names.push(name.clone());
    host_names.sort();
    host_names.dedup();
    let addresses: Vec<String> = status
        .addresses
        .unwrap_or_default()
        .into_iter()
        .filter(|address| address.type_ == "InternalIP")
        .map(|address| address.address)
        .collect();
    let (mut desired, mut reports) = (BTreeMap::new(), BTreeMap::new());
    for component in Component::ALL {
        if let Some(value) = annotations
            .get(&component.desired_annotation())
            .and_then(|text| Desired::parse(text))
        {
            desired.insert(component, value);
        }
        if let Some(report) = annotations
            .get(&component.report_annotation())
            .and_then(|text| serde_json::from_str(text).ok())
        {
            reports.insert(component, report);
        }
    }
    let ours = |key: &String| key.starts_with(crate::names::NODE_PREFIX);
    let system = status.node_info.unwrap_or_default();
    NodeFacts {
        name,
        host_names,
        operating_system: system.operating_system,
        architecture: system.architecture,
        uid: node.metadata.uid.clone().unwrap_or_default(),
        not_ready,
        address: addresses.first().cloned(),
        addresses,
        allocatable_cpu: status
            .allocatable
            .unwrap_or_default()
            .get("cpu")
            .map_or(0, |quantity| cpu(&quantity.0)),
        cluster_api: annotations.get("cluster.x-k8s.io/machine").cloned(),
        gated: Component::ALL
            .into_iter()
            .filter(|component| labels.contains_key(&component.gate_label()))
            .collect(),
        desired,
        reports,
        guard: annotations
            .get(&guard_annotation())
            .and_then(|text| serde_json::from_str(text).ok()),
        marked: annotations.keys().any(ours) || labels.keys().any(ours),
    }
}

/// Whether a Pod stands for a static Pod of that name.
#[must_use]
pub fn is_mirror_of(pod: &Pod, name: &str, node: &str) -> bool {
    is_mirror(pod) && pod.metadata.name.as_deref() == Some(&format!("{name}-{node}"))
}

fn is_mirror(pod: &Pod) -> bool {
    pod.metadata
        .annotations
        .as_ref()
        .is_some_and(|map| map.contains_key("kubernetes.io/config.mirror"))
}

fn is_of(pod: &Pod, component: Component) -> bool {
    pod.metadata.namespace.as_deref() == Some(crate::names::NAMESPACE)
        && pod
            .metadata
            .labels
            .as_ref()
            .and_then(|labels| labels.get("component"))
            .map(String::as_str)
            == Some(component.name())
}

/// Whether a Pod has ended, and needs nothing any more.
#[must_use]
pub fn ended(pod: &Pod) -> bool {
    let phase = pod.status.as_ref().and_then(|status| status.phase.as_deref());
    matches!(phase, Some("Succeeded" | "Failed"))
}

/// Reduces a Pod; `container` is the one that matters.
#[must_use]
pub fn pod_facts(pod: &Pod, container: &str) -> PodFacts {
    let status = pod.status.clone().unwrap_or_default();
    let containers = pod
        .spec
        .as_ref()
        .map(|spec| spec.containers.clone())
        .unwrap_or_default();
    let named = containers
        .iter()
        .find(|c| c.name == container)
        .or_else(|| containers.first());
    let statuses = status.container_statuses.clone().unwrap_or_default();
    let main = named.and_then(|named| statuses.iter().find(|status| status.name == named.name));
    let init = status.init_container_statuses.clone().unwrap_or_default();
    let condition = |kind: &str| status.conditions.iter().flatten().find(|c| c.type_ == kind);
    let unscheduled = condition("PodScheduled")
        .filter(|c| c.status == "False")
        .and_then(|c| c.message.clone());
    let refused = status
        .message
        .clone()
        .filter(|_| status.phase.as_deref() == Some("Failed"));
    let ready = condition("Ready").is_some_and(|c| c.status == "True");
    let terminating = pod.metadata.deletion_timestamp.is_some();
    PodFacts {
        name: pod.metadata.name.clone().unwrap_or_default(),
        mirror: is_mirror(pod),
        terminating,
        ready,
        starting: !ready && !terminating && main.is_some_and(runs_or_is_made),
        awaiting: init
            .iter()
            .any(|status| status.name == AWAIT_CONTAINER && status.state.as_ref().is_some_and(|s| s.running.is_some())),
        restarts: main.map_or(0, |status| status.restart_count),
        image: named.and_then(|named| named.image.clone()).unwrap_or_default(),
        trouble: unscheduled
            .map(|message| format!("not scheduled: {message}"))
            .or(refused)
            .or_else(|| init.iter().find_map(trouble))
            .or_else(|| main.and_then(trouble)),
        container: named.map(|named| named.name.clone()).unwrap_or_default(),
        ended: main.is_some_and(|status| status.restart_count > 0 || terminated(status).is_some()),
    }
}

fn terminated(status: &ContainerStatus) -> Option<&k8s_openapi::api::core::v1::ContainerStateTerminated> {
    let last = |state: &Option<k8s_openapi::api::core::v1::ContainerState>| {
        state.as_ref().is_some_and(|state| state.terminated.is_some())
    };
    if last(&status.state) {
        return status.state.as_ref()?.terminated.as_ref();
    }
    if last(&status.last_state) {
        status.last_state.as_ref()?.terminated.as_ref()
    } else {
        None
    }
}

fn runs_or_is_made(status: &ContainerStatus) -> bool {
    let Some(state) = &status.state else { return false };
    let made = |reason: &str| matches!(reason, "PodInitializing" | "ContainerCreating");
    let waits_for_it = state.waiting.as_ref().and_then(|waiting| waiting.reason.as_deref());
    state.running.is_some() || waits_for_it.is_some_and(made)
}

/// Why a container does not run as it should.
fn trouble(status: &ContainerStatus) -> Option<String> {
    let state = status.state.as_ref()?;
    if let Some(waiting) = &state.waiting {
        let reason = waiting.reason.clone().unwrap_or_default();
        if matches!(reason.as_str(), "" | "PodInitializing" | "ContainerCreating") {
            return None;
        }
        let exit = terminated(status)
            .map(|end| format!(" (exit code {})", end.exit_code))
            .unwrap_or_default();
        let message = waiting
            .message
            .clone()
            .map(|message| format!(": {message}"))
            .unwrap_or_default();
        return Some(format!("{reason}{exit}{message}"));
    }
    if let Some(end) = &state.terminated {
        if end.exit_code == 0 {
            return None;
        }
        let reason = end.reason.clone().unwrap_or_else(|| "ended".into());
        return Some(format!("{reason} (exit code {})", end.exit_code));
    }
    if status.started == Some(false) {
        let again = if status.restart_count > 0 {
            format!(", restarted {} times", status.restart_count)
        } else {
            String::new()
        };
        return Some(format!("running, and has not proved healthy yet{again}"));
    }
    None
}

/// CPU that a Pod requests, in thousandths of a core.
#[must_use]
pub fn requested_cpu(pod: &Pod) -> i64 {
    let containers = pod
        .spec
        .as_ref()
        .map(|spec| spec.containers.as_slice())
        .unwrap_or_default();
    containers
        .iter()
        .filter_map(|container| container.resources.as_ref()?.requests.as_ref()?.get("cpu"))
        .map(|quantity| cpu(&quantity.0))
        .sum()
}

/// A CPU quantity in thousandths of a core, rounded up; 0 when it cannot be read.
#[must_use]
pub fn cpu(quantity: &str) -> i64 {
    let (digits, factor) = match quantity.strip_suffix(['m', 'u', 'n', 'k']) {
        None => (quantity, 1e3),
        Some(digits) => (
            digits,
            match quantity.chars().last() {
                Some('m') => 1.0,
                Some('u') => 1e-3,
                Some('n') => 1e-6,
                _ => 1e6,
            },
        ),
    };
    let value = digits.parse::<f64>().map_or(0.0, |value| (value * factor).ceil());
    // a node has fewer cores than this
    if (0.0..=1e12).contains(&value) {
        #[expect(clippy::cast_possible_truncation, reason = "the range is checked")]
        let value = value as i64;
        value
    } else {
        0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cpu_quantities_are_read() {
        for (text, expected) in [
            ("250m", 250),
            ("2", 2000),
            ("0.1", 100),
            ("1500u", 2),
            ("1k", 1_000_000),
            ("", 0),
            ("x", 0),
            ("-1", 0),
        ] {
            assert_eq!(cpu(text), expected, "{text}");
        }
    }

    fn pod(value: serde_json::Value) -> PodFacts {
        pod_facts(&serde_json::from_value(value).unwrap(), "kube-apiserver")
    }

    #[test]
    fn trouble_is_told_in_the_clusters_words() {
        let waiting = pod(serde_json::json!({
            "metadata": {"name": "a"},
            "spec": {"containers": [{"name": "kube-apiserver", "image": "i:1"}]},
            "status": {
                "initContainerStatuses": [{"name": AWAIT_CONTAINER, "image": "", "imageID": "", "ready": false, "restartCount": 0,
                    "state": {"running": {}}}],
                "containerStatuses": [{"name": "kube-apiserver", "image": "", "imageID": "", "ready": false, "restartCount": 0,
                    "state": {"waiting": {"reason": "PodInitializing"}}}],
            },
        }));
        assert!(waiting.awaiting && waiting.trouble.is_none() && !waiting.ended);
        let crashed = pod(serde_json::json!({
            "metadata": {"name": "a"},
            "spec": {"containers": [{"name": "kube-apiserver", "image": "i:1"}]},
            "status": {"containerStatuses": [{"name": "kube-apiserver", "image": "", "imageID": "", "ready": false,
                "restartCount": 3, "state": {"waiting": {"reason": "CrashLoopBackOff", "message": "back-off 40s"}},
                "lastState": {"terminated": {"exitCode": 1}}}]},
        }));
        assert_eq!(
            crashed.trouble.as_deref(),
            Some("CrashLoopBackOff (exit code 1): back-off 40s")
        );
        assert!(crashed.ended);
        let pending = pod(serde_json::json!({
            "metadata": {"name": "a"},
            "status": {"conditions": [{"type": "PodScheduled", "status": "False", "message": "Insufficient cpu"}]},
        }));
        assert_eq!(pending.trouble.as_deref(), Some("not scheduled: Insufficient cpu"));
    }
}
