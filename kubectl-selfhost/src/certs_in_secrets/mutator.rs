//! The step that lets a template take its files from the Secret.

use serde_json::{Value, json};

use super::secrets::Projection;
use crate::fields::{FieldError, containers, list_at, list_mut, map_mut, remove, string_at};
use crate::mutators::{MutationError, PodSpecMutator, main_container_mut, put_named};
use crate::names::Component;

/// Annotation of the Pod template with the SHA-256 of the Secret's content: what a Pod was started with.
pub const CERTIFICATES_SHA256_ANNOTATION: &str = "selfhost.node-restriction.kubernetes.io/certificates-sha256";

/// The step of the gate. It does nothing where [`Context::certificates`] is empty: then no flag names a file.
pub const STORE_CERTS: PodSpecMutator = PodSpecMutator {
    name: "store-certs-in-secrets",
    reason: "certificates, keys and kubeconfigs come from a Secret, under the paths that the flags name",
    apply: |template, context| match &context.certificates {
        Some(projection) => store_certs(template, context.component, projection),
        None => Ok(()),
    },
};

pub(super) fn store_certs(
    template: &mut Value,
    component: Component,
    projection: &Projection,
) -> Result<(), MutationError> {
    let annotations = annotations_mut(template)?;
    annotations.insert(CERTIFICATES_SHA256_ANNOTATION.to_owned(), json!(projection.sha256));
    let (container, path) = main_container_mut(template, component)?;
    let mounts = list_mut(container, "volumeMounts", &format!("{path}.volumeMounts"))?;
    mounts.retain(|mount| {
        let at = string_at(mount, &["mountPath"]).map(trimmed);
        !projection.dropped.iter().any(|dropped| Some(dropped.as_str()) == at)
    });
    for projected in &projection.mounts {
        let is_it = |mount: &&mut Value| string_at(mount, &["mountPath"]).map(trimmed) == Some(&projected.mount_path);
        let mount = mounts.iter_mut().find(is_it).ok_or_else(|| {
            FieldError::new(
                format!("{path}.volumeMounts"),
                format!(
                    "mounts nothing at {} any more, where the Secret's files belong",
                    projected.mount_path
                ),
                "put the mount back",
            )
        })?;
        for key in ["subPath", "subPathExpr"] {
            remove(mount, key);
        }
        if let Some(mount) = mount.as_object_mut() {
            mount.insert(
                "name".to_owned(),
                projected.volume.get("name").cloned().unwrap_or_default(),
            );
            mount.insert("readOnly".to_owned(), json!(true));
            if let Some(sub_path) = &projected.sub_path {
                mount.insert("subPath".to_owned(), json!(sub_path));
            }
        }
    }
    let spec = spec_mut(template)?;
    for projected in &projection.mounts {
        put_named(spec, "volumes", "spec.volumes", "name", projected.volume.clone())?;
    }
    if let Some(group) = projection.group {
        let security = map_mut(spec, "securityContext", "spec.securityContext")?;
        security.entry("fsGroup").or_insert(json!(group));
    }
    let used: Vec<String> = containers(template)
        .flat_map(|(_, container)| list_at(container, &["volumeMounts"]))
        .filter_map(|mount| string_at(mount, &["name"]).map(str::to_owned))
        .collect();
    list_mut(spec_mut(template)?, "volumes", "spec.volumes")?.retain(|volume| {
        let name = string_at(volume, &["name"]).unwrap_or_default();
        !projection.host_volumes.contains(name) || used.iter().any(|used| used == name)
    });
    Ok(())
}

fn trimmed(path: &str) -> &str {
    path.trim_end_matches('/')
}

fn spec_mut(template: &mut Value) -> Result<&mut Value, MutationError> {
    map_mut(template, "spec", "spec")?;
    template
        .get_mut("spec")
        .ok_or_else(|| FieldError::new("spec", "is missing", "write the Pod's spec"))
}

fn annotations_mut(template: &mut Value) -> Result<&mut serde_json::Map<String, Value>, MutationError> {
    map_mut(template, "metadata", "metadata")?;
    let metadata = template
        .get_mut("metadata")
        .ok_or_else(|| FieldError::new("metadata", "is missing", "write the Pod's metadata"))?;
    map_mut(metadata, "annotations", "metadata.annotations")
}
