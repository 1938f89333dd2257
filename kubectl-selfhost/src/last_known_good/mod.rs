//! The fallback that is made of a template which has run well on the node: pure, from the Pod that runs to a static Pod.
//!
//! [`draft`] undoes what the DaemonSet needs, puts back what a static Pod cannot have (Secrets and other API objects) as files
//! on the node, and refuses what goes beyond the original manifest; see [`privileges`]. Who decides that a template has run
//! well, and who reads and writes the files, is the guard: [`crate::node::guard::soak`] and [`crate::node::guard::keep`].

pub mod privileges;
mod volumes;

use serde_json::{Map, Value, json};
use std::path::Path;

use crate::certs_in_secrets::CERTIFICATES_SHA256_ANNOTATION;
use crate::component_spec::ComponentSpec;
use crate::daemon_set::NODE_LABEL;
use crate::fallback::build_fallback;
use crate::fields::{FieldError, at, containers, containers_mut, list_at, remove, string_at};
use crate::names::Component;

pub use volumes::{FileMount, FileVolume};

/// What to do about something that no static Pod can have.
const REMEDY: &str = "the earlier fallback stays; use files of the node, or take it out of the template";

/// Labels that the DaemonSet controller gives to its Pods (k8s.io/api `apps/v1`).
const REVISION_LABEL: &str = "controller-revision-hash";
const GENERATION_LABEL: &str = "pod-template-generation";

/// Where a Pod runs is settled for a static Pod: the kubelet holds it to these all the same, and the labels of a Node may be
/// gone. The original's are kept.
const PLACEMENT: [&str; 8] = [
    "nodeSelector",
    "affinity",
    "tolerations",
    "topologySpreadConstraints",
    "schedulerName",
    "preemptionPolicy",
    "schedulingGates",
    "readinessGates",
];

/// References to API objects, with which the kubelet refuses a static Pod (k8s.io/kubernetes `pkg/api/pod`,
/// `HasAPIObjectReference`). Nothing of it is needed: images are on the node, and no component uses a token.
const REFERENCES: [&str; 4] = [
    "serviceAccountName",
    "serviceAccount",
    "automountServiceAccountToken",
    "imagePullSecrets",
];

/// Which template a Pod was made from, as its labels say.
#[derive(Clone, Debug, Default, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Template {
    /// The DaemonSet's generation of templates: what `kubectl rollout history` calls a revision may differ from it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub generation: Option<u64>,
    /// The hash in the name of its ControllerRevision.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub revision: Option<String>,
}

impl Template {
    /// That of a Pod.
    #[must_use]
    pub fn of(pod: &Value) -> Self {
        let label = |name: &str| string_at(pod, &["metadata", "labels", name]);
        let is_plain =
            |text: &&str| text.len() <= 63 && text.chars().all(|c| c.is_ascii_alphanumeric() || "-_.".contains(c));
        Self {
            generation: label(GENERATION_LABEL).and_then(|text| text.parse().ok()),
            revision: label(REVISION_LABEL).filter(is_plain).map(str::to_owned),
        }
    }
}

/// A fallback whose files are still to be written.
#[derive(Clone, Debug, PartialEq)]
pub struct Draft {
    /// The template it is made of.
    pub template: Template,
    /// Volumes that become files on the node.
    pub volumes: Vec<FileVolume>,
    manifest: Value,
}

impl Draft {
    /// The static Pod, with the files of its volumes in that directory, each volume in one of its own name.
    #[must_use]
    pub fn manifest(&self, directory: &Path) -> Value {
        let mut manifest = self.manifest.clone();
        let list = manifest.pointer_mut("/spec/volumes").and_then(Value::as_array_mut);
        for volume in list.into_iter().flatten() {
            let name = string_at(volume, &["name"]).unwrap_or_default().to_owned();
            if let Some(ours) = self.volumes.iter().find(|ours| ours.name == name) {
                let path = directory.join(&ours.name);
                *volume = json!({"name": name, "hostPath": {"path": path, "type": "Directory"}});
            }
        }
        manifest
    }
}

/// The fallback of a component from the Pod of its DaemonSet, as the API shows it, and the original manifest's Pod.
///
/// # Errors
/// What of the Pod cannot be in a static Pod, or goes beyond the original.
pub fn draft(component: Component, pod: &Value, original: &Value) -> Result<Draft, FieldError> {
    let mut pod = pod.clone();
    if let Some(spec) = pod.get_mut("spec") {
        // somebody debugs it: not part of the template
        remove(spec, "ephemeralContainers");
    }
    no_claims(&pod)?;
    let addresses = Addresses::of(&pod);
    let mut fallback = build_fallback(component, &pod)?;
    plain_metadata(&mut fallback);
    place_as(&mut fallback, original);
    for container in containers_mut(&mut fallback) {
        if string_at(container, &["imagePullPolicy"]) == Some("Always")
            && let Some(container) = container.as_object_mut()
        {
            // it is on the node, and there may be no registry when it is needed
            container.insert("imagePullPolicy".to_owned(), json!("IfNotPresent"));
        }
    }
    literal_environment(&mut fallback, &addresses)?;
    volumes::undo_certificates(component, &mut fallback, original)?;
    privileges::within(component, original, &fallback)?;
    listens_there(component, &fallback, original)?;
    Ok(Draft {
        template: Template::of(&pod),
        volumes: volumes::file_volumes(&fallback)?,
        manifest: fallback,
    })
}

fn refused(field: impl Into<String>, what: impl Into<String>) -> FieldError {
    FieldError::new(field, what, REMEDY)
}

fn no_claims(pod: &Value) -> Result<(), FieldError> {
    if list_at(pod, &["spec", "resourceClaims"]).is_empty() {
        Ok(())
    } else {
        Err(refused(
            "spec.resourceClaims",
            "are API objects, which a static Pod cannot have",
        ))
    }
}

/// Only labels and annotations of the template stay.
fn plain_metadata(fallback: &mut Value) {
    let Some(metadata) = fallback.get_mut("metadata").and_then(Value::as_object_mut) else {
        return;
    };
    metadata.retain(|key, _| matches!(key.as_str(), "name" | "namespace" | "labels" | "annotations"));
    let drop = |map: Option<&mut Value>, keys: &[&str]| {
        if let Some(map) = map.and_then(Value::as_object_mut) {
            map.retain(|key, _| !keys.contains(&key.as_str()));
        }
    };
    drop(
        metadata.get_mut("labels"),
        &[REVISION_LABEL, GENERATION_LABEL, NODE_LABEL],
    );
    drop(metadata.get_mut("annotations"), &[CERTIFICATES_SHA256_ANNOTATION]);
    if metadata
        .get("annotations")
        .and_then(Value::as_object)
        .is_some_and(Map::is_empty)
    {
        metadata.shift_remove("annotations");
    }
}

fn place_as(fallback: &mut Value, original: &Value) {
    let Some(spec) = fallback.get_mut("spec") else { return };
    for key in REFERENCES {
        remove(spec, key);
    }
    for key in PLACEMENT {
        remove(spec, key);
        if let (Some(value), Some(spec)) = (at(original, &["spec", key]), spec.as_object_mut()) {
            spec.insert(key.to_owned(), value.clone());
        }
    }
}

/// What the Pod's environment may be told of its node.
struct Addresses {
    host_ip: Option<String>,
    host_ips: Option<String>,
    node_name: Option<String>,
}

impl Addresses {
    fn of(pod: &Value) -> Self {
        let all: Vec<&str> = list_at(pod, &["status", "hostIPs"])
            .iter()
            .filter_map(|entry| string_at(entry, &["ip"]))
            .collect();
        Self {
            host_ip: string_at(pod, &["status", "hostIP"]).map(str::to_owned),
            host_ips: (!all.is_empty()).then(|| all.join(",")),
            node_name: string_at(pod, &["spec", "nodeName"]).map(str::to_owned),
        }
    }

    /// What stands behind a field; `None` where a static Pod knows it as well. The Pod's own addresses are the node's: it uses
    /// the node's network.
    fn of_field(&self, field: &str) -> Option<Option<&String>> {
        match field {
            "status.hostIP" | "status.podIP" => Some(self.host_ip.as_ref()),
            "status.hostIPs" | "status.podIPs" => Some(self.host_ips.as_ref()),
            "spec.nodeName" => Some(self.node_name.as_ref()),
            _ => None,
        }
    }
}

/// A kubelet that has not spoken with any API yet may not know the node's address: what the Pod was told is written down.
fn literal_environment(fallback: &mut Value, addresses: &Addresses) -> Result<(), FieldError> {
    for (path, container) in containers(fallback) {
        if !list_at(container, &["envFrom"]).is_empty() {
            return Err(refused(
                format!("{path}.envFrom"),
                "takes the environment from API objects",
            ));
        }
        for variable in list_at(container, &["env"]) {
            let name = string_at(variable, &["name"]).unwrap_or_default();
            for key in ["secretKeyRef", "configMapKeyRef"] {
                if at(variable, &["valueFrom", key]).is_some() {
                    return Err(refused(
                        format!("{path}.env[{name}]"),
                        "takes its value from an API object",
                    ));
                }
            }
        }
    }
    for container in containers_mut(fallback) {
        let list = container.get_mut("env").and_then(Value::as_array_mut);
        for variable in list.into_iter().flatten() {
            let Some(known) = string_at(variable, &["valueFrom", "fieldRef", "fieldPath"])
                .and_then(|field| addresses.of_field(field))
            else {
                continue;
            };
            let name = string_at(variable, &["name"]).unwrap_or_default().to_owned();
            let Some(value) = known else {
                return Err(refused(
                    format!("env[{name}]"),
                    "asks for an address that the Pod does not show",
                ));
            };
            *variable = json!({"name": name, "value": value});
        }
    }
    Ok(())
}

/// The guard looks where the original listens.
fn listens_there(component: Component, fallback: &Value, original: &Value) -> Result<(), FieldError> {
    let (now, was) = (
        ComponentSpec::new(component, fallback)?,
        ComponentSpec::new(component, original)?,
    );
    if now.secure_port()? == was.secure_port()? && now.bind_address()? == was.bind_address()? {
        return Ok(());
    }
    Err(refused(
        now.container_path(),
        "listens on another port or address than the original manifest says",
    ))
}

#[cfg(test)]
#[path = "tests.rs"]
mod tests;
