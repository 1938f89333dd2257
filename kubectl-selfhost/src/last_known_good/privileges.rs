//! Whether a template asks for no more of the node than the original manifest did.
//!
//! The fallback starts without admission: what gets into it has root's say on the node. Whoever may change a DaemonSet can
//! run what he likes for as long as the DaemonSet says so; the fallback must not make that last.

use serde_json::Value;

use crate::component_spec::ComponentSpec;
use crate::fields::{FieldError, at, containers, list_at, string_at};
use crate::names::Component;

/// What to do about anything that is refused here.
const REMEDY: &str =
    "the earlier fallback stays; where this is meant, revert, put it into the static manifest, and convert again";

fn refused(field: impl Into<String>, what: impl Into<String>) -> FieldError {
    FieldError::new(field, what, REMEDY)
}

/// Checks that `wanted` stays within the hostPaths and privileges of `original`. Both are whole Pods of `component`.
///
/// A container that the original does not have is measured by the original's main one.
///
/// # Errors
/// The first thing that goes beyond the original.
pub fn within(component: Component, original: &Value, wanted: &Value) -> Result<(), FieldError> {
    pod_level(original, wanted)?;
    let main = ComponentSpec::new(component, original)?.container();
    for (path, container) in containers(wanted) {
        let name = string_at(container, &["name"]);
        let (_, same) = containers(original)
            .find(|(_, known)| string_at(known, &["name"]) == name)
            .unwrap_or_else(|| (String::new(), main));
        container_level(&path, (original, same), (wanted, container))?;
    }
    annotations(original, wanted)?;
    host_paths(original, wanted)
}

fn flag(value: &Value, path: &[&str]) -> bool {
    at(value, path).and_then(Value::as_bool).unwrap_or(false)
}

fn pod_level(original: &Value, wanted: &Value) -> Result<(), FieldError> {
    for key in ["hostNetwork", "hostPID", "hostIPC", "shareProcessNamespace"] {
        if flag(wanted, &["spec", key]) && !flag(original, &["spec", key]) {
            return Err(refused(
                format!("spec.{key}"),
                "is true, and is not in the original manifest",
            ));
        }
    }
    for key in ["runtimeClassName", "hostUsers"] {
        let differs = at(wanted, &["spec", key]) != at(original, &["spec", key]);
        // its own user namespace is less than the node's
        let less = key == "hostUsers" && at(wanted, &["spec", key]) == Some(&Value::Bool(false));
        if differs && !less {
            return Err(refused(format!("spec.{key}"), "is not what the original manifest says"));
        }
    }
    for key in ["supplementalGroups", "sysctls"] {
        let had = list_at(original, &["spec", "securityContext", key]);
        if list_at(wanted, &["spec", "securityContext", key])
            .iter()
            .any(|item| !had.contains(item))
        {
            return Err(refused(
                format!("spec.securityContext.{key}"),
                "has more than the original manifest",
            ));
        }
    }
    Ok(())
}

/// A field of a container's security context, where it is not given the Pod's.
fn security<'a>(pod: &'a Value, container: &'a Value, key: &str) -> Option<&'a Value> {
    at(container, &["securityContext", key]).or_else(|| at(pod, &["spec", "securityContext", key]))
}

/// A Pod, and one of its containers.
type In<'a> = (&'a Value, &'a Value);

fn container_level(path: &str, original: In<'_>, wanted: In<'_>) -> Result<(), FieldError> {
    let field = |key: &str| format!("{path}.securityContext.{key}");
    let get = |(pod, container): In<'_>, key: &str| security(pod, container, key).cloned();
    let (_, had) = original;
    let (_, container) = wanted;
    if flag(container, &["securityContext", "privileged"]) && !flag(had, &["securityContext", "privileged"]) {
        return Err(refused(
            field("privileged"),
            "is true, and is not in the original manifest",
        ));
    }
    let escalates = |container: &Value| {
        at(container, &["securityContext", "allowPrivilegeEscalation"])
            .and_then(Value::as_bool)
            .unwrap_or(true)
    };
    if escalates(container) && !escalates(had) {
        return Err(refused(
            field("allowPrivilegeEscalation"),
            "is false in the original manifest only",
        ));
    }
    // root is what an image without a user of its own runs as
    let user = |of: In<'_>, key: &str| get(of, key).and_then(|value| value.as_i64()).unwrap_or(0);
    for key in ["runAsUser", "runAsGroup"] {
        let (was, is) = (user(original, key), user(wanted, key));
        if was != 0 && is != was {
            return Err(refused(
                field(key),
                format!("is {is}, and {was} in the original manifest"),
            ));
        }
    }
    for (key, unset) in [("seccompProfile", "Unconfined"), ("appArmorProfile", "RuntimeDefault")] {
        let kind = |of: In<'_>| {
            let profile = get(of, key);
            let kind = profile
                .as_ref()
                .and_then(|profile| string_at(profile, &["type"]).map(str::to_owned));
            (kind.unwrap_or_else(|| unset.to_owned()), profile)
        };
        let ((was, had), (is, has)) = (kind(original), kind(wanted));
        let fine = was == "Unconfined" || is == "RuntimeDefault" || had == has;
        if !fine {
            return Err(refused(
                field(key),
                format!("is {is}, and {was} in the original manifest"),
            ));
        }
    }
    let options = get(wanted, "seLinuxOptions");
    if options.is_some() && options != get(original, "seLinuxOptions") {
        return Err(refused(
            field("seLinuxOptions"),
            "is not what the original manifest says",
        ));
    }
    let proc_mount = |container: &Value| string_at(container, &["securityContext", "procMount"]) == Some("Unmasked");
    if proc_mount(container) && !proc_mount(had) {
        return Err(refused(
            field("procMount"),
            "is Unmasked, and is not in the original manifest",
        ));
    }
    capabilities(&field("capabilities"), had, container)?;
    if !list_at(container, &["volumeDevices"]).is_empty() {
        return Err(refused(
            format!("{path}.volumeDevices"),
            "a device cannot be in a fallback",
        ));
    }
    Ok(())
}

/// Names of capabilities, one writing of each.
fn names(container: &Value, key: &str) -> Vec<String> {
    list_at(container, &["securityContext", "capabilities", key])
        .iter()
        .filter_map(Value::as_str)
        .map(|name| name.to_ascii_uppercase().trim_start_matches("CAP_").to_owned())
        .collect()
}

fn capabilities(field: &str, original: &Value, wanted: &Value) -> Result<(), FieldError> {
    let (had, dropped) = (names(original, "add"), names(original, "drop"));
    let (adds, drops) = (names(wanted, "add"), names(wanted, "drop"));
    if let Some(more) = adds
        .iter()
        .find(|name| !had.contains(name) && !had.iter().any(|had| had == "ALL"))
    {
        return Err(refused(
            format!("{field}.add"),
            format!("has {more}, which is not in the original manifest"),
        ));
    }
    if let Some(kept) = dropped
        .iter()
        .find(|name| !drops.contains(name) && !drops.iter().any(|drop| drop == "ALL"))
    {
        return Err(refused(
            format!("{field}.drop"),
            format!("does not have {kept}, which the original manifest drops"),
        ));
    }
    Ok(())
}

/// Profiles that older clusters name in annotations.
fn annotations(original: &Value, wanted: &Value) -> Result<(), FieldError> {
    const PROFILES: [&str; 2] = [
        "container.apparmor.security.beta.kubernetes.io/",
        "container.seccomp.security.alpha.kubernetes.io/",
    ];
    let of = |pod: &Value, key: &str| at(pod, &["metadata", "annotations", key]).cloned();
    let all = at(wanted, &["metadata", "annotations"]).and_then(Value::as_object);
    for (key, value) in all.into_iter().flatten() {
        let is_profile = PROFILES.iter().any(|prefix| key.starts_with(prefix));
        if is_profile && value != "runtime/default" && of(original, key).as_ref() != Some(value) {
            return Err(refused(
                format!("metadata.annotations[{key}]"),
                "is not what the original manifest says",
            ));
        }
    }
    Ok(())
}

/// A part of the node's file system that a container sees.
#[derive(Debug, PartialEq, Eq)]
struct Grant {
    path: Vec<String>,
    writable: bool,
    /// Whether mounts that the container makes appear on the node.
    spreads: bool,
}

/// The parts of a path; `None` where it is not absolute, or climbs.
fn parts(path: &str) -> Option<Vec<String>> {
    let parts: Vec<String> = path
        .strip_prefix('/')?
        .split('/')
        .filter(|part| !part.is_empty() && *part != ".")
        .map(str::to_owned)
        .collect();
    (!parts.iter().any(|part| part == "..")).then_some(parts)
}

/// The hostPath volume of that name.
fn host_path<'a>(pod: &'a Value, name: &str) -> Option<&'a str> {
    let volumes = list_at(pod, &["spec", "volumes"]);
    let volume = volumes
        .iter()
        .find(|volume| string_at(volume, &["name"]) == Some(name))?;
    string_at(volume, &["hostPath", "path"])
}

/// What a mount of a hostPath volume shows; `None` where it is none, or cannot be told.
fn grant(pod: &Value, mount: &Value) -> Option<(String, Grant)> {
    let path = host_path(pod, string_at(mount, &["name"])?)?;
    let sub_path = string_at(mount, &["subPath"]).unwrap_or_default();
    let whole = format!("{path}/{sub_path}");
    Some((
        whole.trim_end_matches('/').to_owned(),
        Grant {
            path: parts(&whole)?,
            writable: !flag(mount, &["readOnly"]),
            spreads: string_at(mount, &["mountPropagation"]) == Some("Bidirectional"),
        },
    ))
}

fn host_paths(original: &Value, wanted: &Value) -> Result<(), FieldError> {
    let granted: Vec<Grant> = containers(original)
        .flat_map(|(_, container)| list_at(container, &["volumeMounts"]))
        // what a variable names cannot be told beforehand: it grants nothing
        .filter(|mount| at(mount, &["subPathExpr"]).is_none())
        .filter_map(|mount| grant(original, mount).map(|(_, grant)| grant))
        .collect();
    let is_granted = |wanted: &Grant| {
        granted.iter().any(|grant| {
            wanted.path.starts_with(&grant.path)
                && (grant.writable || !wanted.writable)
                && (grant.spreads || !wanted.spreads)
        })
    };
    for (field, container) in containers(wanted) {
        for mount in list_at(container, &["volumeMounts"]) {
            let name = string_at(mount, &["name"]).unwrap_or_default();
            let Some(path) = host_path(wanted, name) else { continue };
            let field = format!("{field}.volumeMounts[{name}]");
            let Some((path, want)) = grant(wanted, mount) else {
                return Err(refused(field, format!("{path} is no plain absolute path")));
            };
            if !is_granted(&want) {
                let how = if want.writable { "to write" } else { "to read" };
                return Err(refused(
                    field,
                    format!("mounts {path} of the node {how}, which the original manifest does not"),
                ));
            }
        }
    }
    // one that nothing mounts is made by the kubelet all the same, where its type says so
    for volume in list_at(wanted, &["spec", "volumes"]) {
        let Some(path) = string_at(volume, &["hostPath", "path"]) else {
            continue;
        };
        let covered = parts(path).is_some_and(|path| granted.iter().any(|grant| path.starts_with(&grant.path)));
        let whole = list_at(original, &["spec", "volumes"])
            .iter()
            .any(|known| string_at(known, &["hostPath", "path"]) == Some(path));
        if !covered && !whole {
            let name = string_at(volume, &["name"]).unwrap_or_default();
            return Err(refused(
                format!("spec.volumes[{name}]"),
                format!("is {path} of the node, which the original manifest does not mount"),
            ));
        }
    }
    Ok(())
}

#[cfg(test)]
#[path = "privileges_tests.rs"]
mod tests;
