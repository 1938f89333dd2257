//! What forbids a conversion on a live node: each check is a pure function over facts that were gathered before.

use crate::live::{Live, is_converted};
use crate::local_node::may_execute;
use crate::names::{BIN_DIR, Component, FIELD_MANAGER, NAMESPACE, STATE_DIR};
use crate::node::state::{ComponentFiles, Original};
use crate::observe::{Observation, cpu};
use crate::plan::{Gap, Plan, Snapshot};
use crate::refusal::Refusal;
use crate::webhooks::{BlockingWebhook, blocking_webhooks};
use serde_json::{Value, json};
use shared::Result;
use std::collections::BTreeMap;
use std::fs::Metadata;
use std::os::unix::fs::FileTypeExt;
use std::path::Path;

/// Everything that the checks look at.
#[derive(Debug)]
pub struct Facts<'a> {
    /// What the API showed.
    pub observation: &'a Observation,
    /// What the manifest directory held.
    pub snapshot: &'a Snapshot,
    /// What is planned.
    pub plan: &'a Plan,
    /// Permissions that are missing, as `verb resource`.
    pub missing_permissions: Vec<String>,
    /// Why a component's Pod would not be admitted.
    pub not_admitted: BTreeMap<Component, String>,
    /// Webhooks that can keep the Pods from being created.
    pub webhooks: Vec<BlockingWebhook>,
    /// hostPath volumes that are not on the node as they are asked for: component, volume, path, what is wrong.
    pub bad_paths: Vec<(Component, String, String, String)>,
    /// Our directories on file systems that do not let files be executed.
    pub not_executable: Vec<String>,
    /// Manifests that the node's disk remembers as saved.
    pub remembered: BTreeMap<Component, Original>,
}

/// What convert and revert do through the API.
const PERMISSIONS: [(&str, &str, &str, &str); 14] = [
    ("get", "", "nodes", ""),
    ("list", "", "nodes", ""),
    ("patch", "", "nodes", ""),
    ("list", "", "pods", ""),
    ("create", "", "pods", NAMESPACE),
    ("get", "", "pods/log", NAMESPACE),
    ("create", "apps", "daemonsets", NAMESPACE),
    ("delete", "apps", "daemonsets", NAMESPACE),
    ("patch", "", "secrets", NAMESPACE),
    ("delete", "", "secrets", NAMESPACE),
    ("update", "coordination.k8s.io", "leases", NAMESPACE),
    ("patch", "discovery.k8s.io", "endpointslices", "default"),
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

/// Gathers the facts. Nothing is changed: Pods are tried as a dry run.
///
/// # Errors
/// When the API cannot be asked.
pub async fn gather<'a>(
    live: &Live,
    observation: &'a Observation,
    snapshot: &'a Snapshot,
    plan: &'a Plan,
) -> Result<Facts<'a>> {
    let control_plane = &live.control_plane;
    let mut missing_permissions = Vec::new();
    for (verb, group, resource, namespace) in PERMISSIONS {
        if !control_plane.may(verb, group, resource, namespace).await? {
            let place = if namespace.is_empty() {
                String::new()
            } else {
                format!(" in {namespace}")
            };
            missing_permissions.push(format!("{verb} {resource}{place}"));
        }
    }
    let mut not_admitted = BTreeMap::new();
    let mut webhooks = Vec::new();
    if missing_permissions.is_empty() {
        let (validating, mutating) = control_plane.webhooks().await?;
        webhooks = blocking_webhooks(&validating, &mutating);
        for component in &plan.components {
            if let Some(daemon_set) = &component.daemon_set
                && let Err(error) = control_plane.would_admit_pod(&pod_of(daemon_set)).await
            {
                not_admitted.insert(
                    component.component,
                    error.why().first().cloned().unwrap_or_else(|| error.to_string()),
                );
            }
        }
    }
    let not_executable = [BIN_DIR]
        .into_iter()
        .filter(|path| may_execute(Path::new(path)) == Some(false));
    let remembered = Component::ALL.into_iter().filter_map(|component| {
        let bytes = std::fs::read(ComponentFiles::new(component).original_metadata()).ok()?;
        Some((component, serde_json::from_slice(&bytes).ok()?))
    });
    Ok(Facts {
        observation,
        snapshot,
        plan,
        missing_permissions,
        not_admitted,
        webhooks,
        bad_paths: bad_paths(snapshot),
        not_executable: not_executable.map(str::to_owned).collect(),
        remembered: remembered.collect(),
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

fn bad_paths(snapshot: &Snapshot) -> Vec<(Component, String, String, String)> {
    let mut bad = Vec::new();
    for (component, file) in &snapshot.inventory.originals {
        let Ok(spec) = crate::component_spec::ComponentSpec::new(*component, &file.pod) else {
            continue;
        };
        for host_path in spec.host_paths() {
            let found = std::fs::metadata(&host_path.path).ok();
            if let Some(wrong) = wrong_path(&host_path.kind, found.as_ref()) {
                bad.push((*component, host_path.volume, host_path.path, wrong.to_owned()));
            }
        }
    }
    bad
}

/// What is wrong with a path for a hostPath volume of that type. `FileOrCreate` is taken at its word only when the file is
/// there: the kubelet would make an empty one, and no component starts from an empty file.
fn wrong_path(kind: &str, found: Option<&Metadata>) -> Option<&'static str> {
    match (kind, found) {
        ("" | "DirectoryOrCreate", _) => None,
        (_, None) => Some("is not there"),
        ("Directory", Some(found)) if !found.is_dir() => Some("is not a directory"),
        ("File" | "FileOrCreate", Some(found)) if !found.is_file() => Some("is not a file"),
        ("FileOrCreate", Some(found)) if found.len() == 0 => Some("is an empty file"),
        ("Socket", Some(found)) if !found.file_type().is_socket() => Some("is not a socket"),
        _ => None,
    }
}

/// Everything that forbids the conversion.
#[must_use]
pub fn refusals(facts: &Facts<'_>) -> Vec<Refusal> {
    [
        node,
        permissions,
        manifests,
        admission,
        paths,
        running,
        capacity,
        foreign,
    ]
    .iter()
    .flat_map(|check| check(facts))
    .collect()
}

/// What the reader should know, and what forbids nothing.
#[must_use]
pub fn warnings(facts: &Facts<'_>) -> Vec<String> {
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

fn node(facts: &Facts<'_>) -> Vec<Refusal> {
    let node = &facts.observation.node;
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
    refusals.extend(facts.not_executable.iter().map(|path| {
        Refusal::new(
            path,
            "lies on a file system that is mounted noexec: the Pods could not run our executable from there",
            "remount it with exec, or mount another file system there",
        )
    }));
    refusals
}

fn permissions(facts: &Facts<'_>) -> Vec<Refusal> {
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
    for (component, file) in &facts.snapshot.inventory.originals {
        let path = file.path.display().to_string();
        if file.symlink {
            refusals.push(Refusal::new(
                &path,
                "is a symbolic link, which could not be put back as it was",
                "put the manifest itself into the manifest directory",
            ));
        }
        let user = |value: &Value| {
            value
                .get("securityContext")
                .and_then(|context| context.get("runAsUser"))
                .and_then(Value::as_i64)
        };
        let main = crate::component_spec::ComponentSpec::new(*component, &file.pod).ok();
        let uid = main
            .and_then(|spec| user(spec.container()))
            .or_else(|| file.pod.get("spec").and_then(user))
            .unwrap_or(0);
        let steered = facts
            .plan
            .components
            .iter()
            .any(|plan| plan.component == *component && plan.expected_gap == Gap::None);
        if uid != 0 && steered {
            refusals.push(Refusal::new(
                &path,
                format!("runs {component} as user {uid}, and only that user's sockets may join its port: the guard, which steers it, is root"),
                "convert with --mode gap, or run it as root",
            ));
        }
    }
    refusals
}

fn admission(facts: &Facts<'_>) -> Vec<Refusal> {
    facts
        .not_admitted
        .iter()
        .map(|(component, why)| {
            Refusal::new(
                format!("Pods of {}", component.daemon_set_name()),
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
        .map(|(component, volume, path, wrong)| {
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
    let free = facts.observation.node.allocatable_cpu - facts.observation.requested_cpu;
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
    for (component, daemon_set) in &facts.observation.daemon_sets {
        if !daemon_set.ours {
            refusals.push(Refusal::new(
                format!("DaemonSet {NAMESPACE}/{}", component.daemon_set_name()),
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
