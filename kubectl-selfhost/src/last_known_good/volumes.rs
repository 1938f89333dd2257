//! Volumes of a template that a static Pod cannot have: what comes of them.

use serde_json::Value;

use super::refused;
use crate::component_spec::ComponentSpec;
use crate::fields::{FieldError, at, containers, list_at, list_mut, map_mut, remove, string_at};
use crate::mutators::{MutationError, main_container_mut, put_named};
use crate::names::Component;

/// A volume whose files come from API objects, and are to lie on the node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FileVolume {
    /// Its name, which is a plain directory name.
    pub name: String,
    /// Where it is seen.
    pub mounts: Vec<FileMount>,
}

/// Where a container sees a volume.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FileMount {
    /// Name of the container.
    pub container: String,
    /// Path in the container.
    pub path: String,
    /// The part of the volume that is seen there; all of it when absent.
    pub sub_path: Option<String>,
}

/// Longest name of a volume (a DNS label).
const LONGEST_NAME: usize = 63;

fn is_plain_name(name: &str) -> bool {
    let fits = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '-';
    !name.is_empty() && name.len() <= LONGEST_NAME && name.chars().all(fits)
}

/// Whether a path stays where it starts: relative, without a step up.
pub(crate) fn stays_below(path: &str) -> bool {
    !path.is_empty() && !path.starts_with('/') && !path.split('/').any(|part| matches!(part, ".." | "." | ""))
}

/// The volumes that become files.
///
/// # Errors
/// A volume that is neither of the node nor files of API objects.
pub(super) fn file_volumes(pod: &Value) -> Result<Vec<FileVolume>, FieldError> {
    every_mount_has_its_volume(pod)?;
    let mut found = Vec::new();
    for volume in list_at(pod, &["spec", "volumes"]) {
        let name = string_at(volume, &["name"]).unwrap_or_default();
        let field = format!("spec.volumes[{name}]");
        let kind = volume
            .as_object()
            .and_then(|volume| volume.iter().find(|(key, value)| *key != "name" && !value.is_null()))
            .map(|(key, _)| key.as_str());
        match kind {
            Some("hostPath" | "emptyDir" | "downwardAPI") | None => continue,
            Some("secret" | "configMap") => {}
            Some("projected") => only_files(volume, &field)?,
            Some(other) => {
                return Err(refused(
                    field,
                    format!("is of the kind {other}, which needs the API or a driver"),
                ));
            }
        }
        if !is_plain_name(name) {
            return Err(refused(field, "has a name that is no plain one"));
        }
        let mounts = mounts_of(pod, name)?;
        if !mounts.is_empty() {
            found.push(FileVolume {
                name: name.to_owned(),
                mounts,
            });
        }
    }
    Ok(found)
}

fn every_mount_has_its_volume(pod: &Value) -> Result<(), FieldError> {
    let volumes = list_at(pod, &["spec", "volumes"]);
    for (path, container) in containers(pod) {
        for mount in list_at(container, &["volumeMounts"]) {
            let name = string_at(mount, &["name"]).unwrap_or_default();
            if !volumes.iter().any(|volume| string_at(volume, &["name"]) == Some(name)) {
                return Err(refused(
                    format!("{path}.volumeMounts[{name}]"),
                    "mounts a volume that is not there without the DaemonSet",
                ));
            }
        }
    }
    Ok(())
}

fn only_files(volume: &Value, field: &str) -> Result<(), FieldError> {
    for source in list_at(volume, &["projected", "sources"]) {
        let kinds = source
            .as_object()
            .into_iter()
            .flatten()
            .filter(|(_, value)| !value.is_null());
        for (kind, _) in kinds {
            if !matches!(kind.as_str(), "secret" | "configMap" | "downwardAPI") {
                return Err(refused(
                    format!("{field}.projected"),
                    format!("has a {kind}, which only the API can give"),
                ));
            }
        }
    }
    Ok(())
}

fn mounts_of(pod: &Value, name: &str) -> Result<Vec<FileMount>, FieldError> {
    let mut mounts = Vec::new();
    for (path, container) in containers(pod) {
        for mount in list_at(container, &["volumeMounts"]) {
            if string_at(mount, &["name"]) != Some(name) {
                continue;
            }
            let field = format!("{path}.volumeMounts[{name}]");
            let sub_path = string_at(mount, &["subPath"]).filter(|path| !path.is_empty());
            if at(mount, &["subPathExpr"]).is_some() || sub_path.is_some_and(|path| !stays_below(path)) {
                return Err(refused(field, "mounts a part of the volume that is not named plainly"));
            }
            mounts.push(FileMount {
                container: string_at(container, &["name"]).unwrap_or_default().to_owned(),
                path: string_at(mount, &["mountPath"]).unwrap_or_default().to_owned(),
                sub_path: sub_path.map(str::to_owned),
            });
        }
    }
    Ok(mounts)
}

/// Whether a volume is one that the gate `StoreCertsInSecrets` made for a component.
fn is_certificates(component: Component, volume: &Value) -> bool {
    let sources = list_at(volume, &["projected", "sources"]);
    let prefix = format!("{}-certs-", component.daemon_set_name());
    !sources.is_empty()
        && sources
            .iter()
            .all(|source| string_at(source, &["secret", "name"]).is_some_and(|name| name.starts_with(&prefix)))
}

fn trimmed(path: &str) -> &str {
    path.trim_end_matches('/')
}

/// Certificates that come from our Secret come from the node again, from where the original manifest has them.
///
/// # Errors
/// The template mounts the Secret where the original mounts nothing.
pub(super) fn undo_certificates(component: Component, pod: &mut Value, original: &Value) -> Result<(), MutationError> {
    let ours: Vec<String> = list_at(pod, &["spec", "volumes"])
        .iter()
        .filter(|volume| is_certificates(component, volume))
        .filter_map(|volume| string_at(volume, &["name"]).map(str::to_owned))
        .collect();
    if ours.is_empty() {
        return Ok(());
    }
    let before = ComponentSpec::new(component, original)?;
    let known = list_at(before.container(), &["volumeMounts"]);
    let at_path = |path: &str| {
        known
            .iter()
            .find(|mount| string_at(mount, &["mountPath"]).map(trimmed) == Some(trimmed(path)))
    };
    let (container, field) = main_container_mut(pod, component)?;
    let mounts = list_mut(container, "volumeMounts", &format!("{field}.volumeMounts"))?;
    let mut back: Vec<Value> = Vec::new();
    for mount in mounts.iter_mut() {
        let is_ours = string_at(mount, &["name"]).is_some_and(|name| ours.iter().any(|ours| ours == name));
        if !is_ours {
            continue;
        }
        let path = string_at(mount, &["mountPath"]).unwrap_or_default().to_owned();
        let original = at_path(&path).ok_or_else(|| {
            refused(
                format!("{field}.volumeMounts"),
                format!("mounts certificates of a Secret at {path}, where the original manifest mounts nothing"),
            )
        })?;
        *mount = original.clone();
        back.push(original.clone());
        // an outer mount brought what inner ones had
        let inner = |other: &&Value| {
            string_at(other, &["mountPath"]).is_some_and(|other| other.starts_with(&format!("{}/", trimmed(&path))))
        };
        back.extend(known.iter().filter(inner).cloned());
    }
    for mount in &back {
        if !mounts
            .iter()
            .any(|there| there.get("mountPath") == mount.get("mountPath"))
        {
            mounts.push(mount.clone());
        }
    }
    let names: Vec<&str> = back.iter().filter_map(|mount| string_at(mount, &["name"])).collect();
    let group = at(original, &["spec", "securityContext", "fsGroup"]).cloned();
    let spec = pod.get_mut("spec").ok_or_else(|| refused("spec", "is missing"))?;
    list_mut(spec, "volumes", "spec.volumes")?
        .retain(|volume| !string_at(volume, &["name"]).is_some_and(|name| ours.iter().any(|ours| ours == name)));
    for volume in list_at(original, &["spec", "volumes"]) {
        if string_at(volume, &["name"]).is_some_and(|name| names.contains(&name)) {
            put_named(spec, "volumes", "spec.volumes", "name", volume.clone())?;
        }
    }
    match group {
        Some(group) => {
            map_mut(spec, "securityContext", "spec.securityContext")?.insert("fsGroup".to_owned(), group);
        }
        None => {
            if let Some(security) = spec.get_mut("securityContext") {
                remove(security, "fsGroup");
            }
        }
    }
    Ok(())
}
