//! The Secret of a component, and the volumes that bring its files to where the flags look for them.

use std::collections::{BTreeMap, BTreeSet};

use k8s_openapi::ByteString;
use serde::Serialize;
use serde_json::{Value, json};

use super::files::{Entry, Mount, NamedFiles};
use super::{Content, short_sha256};
use crate::component_spec::ComponentSpec;
use crate::fields::{FieldError, at, containers, list_at, string_at};
use crate::manifest::sha256_hex;
use crate::names::{Component, FIELD_MANAGER, NAMESPACE};

/// Longest name of a key of a Secret (k8s.io/apimachinery `pkg/util/validation`, `IsConfigMapKey`).
const LONGEST_KEY: usize = 253;
/// Value of the label `app.kubernetes.io/component` of our Secrets with certificates.
const LABEL: &str = "certificates";

/// The Secret of one component: printed without what is in it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct CertificateSecret {
    /// The component.
    pub component: Component,
    /// Its name in kube-system; it ends in the start of its SHA-256, so that another content has another name.
    pub name: String,
    /// SHA-256 of all keys and files, in hex.
    pub sha256: String,
    /// Its files, in the order of their keys.
    pub files: Vec<SecretFile>,
    #[serde(skip)]
    data: BTreeMap<String, Content>,
}

/// One file of a Secret.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct SecretFile {
    /// Its key in the Secret.
    pub key: String,
    /// Its path in the container.
    pub path: String,
    /// Where it comes from on the node.
    pub host_path: String,
    /// The flag or the file that names it.
    pub named_by: String,
    /// Permission bits in the container.
    pub mode: u32,
    /// Bytes.
    pub size: usize,
    /// The start of its SHA-256.
    pub sha256: String,
}

/// How a template takes a component's files from its Secret.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Projection {
    /// Name of the Secret.
    pub secret: String,
    /// SHA-256 of its content.
    pub sha256: String,
    /// The mounts that are replaced.
    pub mounts: Vec<ProjectedMount>,
    /// Mount paths that go, as an outer mount brings their files.
    pub dropped: Vec<String>,
    /// hostPath volumes that may go when nothing mounts them any more.
    pub host_volumes: BTreeSet<String>,
    /// A group for the Pod that may read the files, where the component does not run as root.
    pub group: Option<i64>,
}

/// One mount of the component's container.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ProjectedMount {
    /// Where it is mounted.
    pub mount_path: String,
    /// The file of the volume that is mounted; the whole volume when absent.
    pub sub_path: Option<String>,
    /// The volume.
    pub volume: Value,
}

impl CertificateSecret {
    /// The object for the API. It is immutable: Pods of an older template keep what they were started with, and going back to
    /// that template brings its files back.
    #[must_use]
    pub fn object(&self) -> Value {
        let data: BTreeMap<&String, ByteString> = self
            .data
            .iter()
            .map(|(key, content)| (key, ByteString(content.bytes().to_vec())))
            .collect();
        json!({
            "apiVersion": "v1",
            "kind": "Secret",
            "metadata": {
                "name": self.name,
                "namespace": NAMESPACE,
                "labels": {
                    "app.kubernetes.io/managed-by": FIELD_MANAGER,
                    "app.kubernetes.io/component": LABEL,
                    "component": self.component.name(),
                },
            },
            "immutable": true,
            "type": "Opaque",
            "data": data,
        })
    }

    /// Its files by their path in the container.
    #[must_use]
    pub fn contents(&self) -> BTreeMap<String, Content> {
        let content = |file: &SecretFile| Some((file.path.clone(), self.data.get(&file.key)?.clone()));
        self.files.iter().filter_map(content).collect()
    }

    /// Bytes of all files.
    #[must_use]
    pub fn size(&self) -> usize {
        self.files.iter().map(|file| file.size).sum()
    }

    /// Whether a Secret of the cluster holds the same.
    #[must_use]
    pub fn is(&self, data: &BTreeMap<String, ByteString>) -> bool {
        self.data.len() == data.len()
            && self
                .data
                .iter()
                .all(|(key, content)| data.get(key).is_some_and(|bytes| bytes.0 == content.bytes()))
    }
}

/// The label query that finds these Secrets.
#[must_use]
pub fn label_query() -> String {
    format!("app.kubernetes.io/managed-by={FIELD_MANAGER},app.kubernetes.io/component={LABEL}")
}

/// The Secret of a component, and how its template uses it; `None` where no flag names a file.
///
/// # Errors
/// No container of the Pod runs the component.
pub fn project(
    component: Component,
    pod: &Value,
    named: &NamedFiles,
) -> Result<Option<(CertificateSecret, Projection)>, FieldError> {
    if named.entries.is_empty() {
        return Ok(None);
    }
    let spec = ComponentSpec::new(component, pod)?;
    let group = group_of(pod, spec.container());
    let keyed: BTreeMap<String, &Entry> = named
        .entries
        .values()
        .map(|entry| (key_of(&entry.path), entry))
        .collect();
    let mode_of = |entry: &Entry| match (entry.content.is_public(), group) {
        (true, _) => 0o444,
        (false, None) => 0o400,
        (false, Some(_)) => 0o440,
    };
    let files: Vec<SecretFile> = keyed
        .iter()
        .map(|(key, entry)| SecretFile {
            key: key.clone(),
            path: entry.path.clone(),
            host_path: entry.host_path.clone(),
            named_by: entry.named_by.clone(),
            mode: mode_of(entry),
            size: entry.content.len(),
            sha256: short_sha256(&entry.content.sha256()),
        })
        .collect();
    let sha256 = digest(&keyed);
    let name = format!("{}-certs-{}", component.daemon_set_name(), short_sha256(&sha256));
    let mounts = named
        .mounts
        .iter()
        .enumerate()
        .map(|(index, mount)| {
            let mine = keyed.iter().filter(|(_, entry)| entry.mount == index);
            let items: Vec<Value> = mine
                .map(|(key, entry)| json!({"key": key, "path": path_in(mount, entry), "mode": mode_of(entry)}))
                .collect();
            let single = named.entries.contains_key(&mount.mount_path);
            ProjectedMount {
                mount_path: mount.mount_path.clone(),
                sub_path: single.then(|| base_name(&mount.mount_path).to_owned()),
                volume: json!({
                    "name": volume_name(pod, mount, index),
                    "projected": {
                        "defaultMode": if group.is_some() { 0o440 } else { 0o400 },
                        "sources": [{"secret": {"name": name, "items": items}}],
                    },
                }),
            }
        })
        .collect();
    let projection = Projection {
        secret: name.clone(),
        sha256: sha256.clone(),
        mounts,
        dropped: named.inner.iter().map(|mount| mount.mount_path.clone()).collect(),
        host_volumes: named
            .mounts
            .iter()
            .chain(&named.inner)
            .map(|mount| mount.volume.clone())
            .collect(),
        group,
    };
    let secret = CertificateSecret {
        component,
        name,
        sha256,
        files,
        data: keyed
            .into_iter()
            .map(|(key, entry)| (key, entry.content.clone()))
            .collect(),
    };
    Ok(Some((secret, projection)))
}

/// Where a file lies in the volume of its mount.
fn path_in(mount: &Mount, entry: &Entry) -> String {
    match entry
        .path
        .strip_prefix(&mount.mount_path)
        .map(|rest| rest.trim_start_matches('/'))
    {
        Some("") | None => base_name(&mount.mount_path).to_owned(),
        Some(rest) => rest.to_owned(),
    }
}

fn base_name(path: &str) -> &str {
    path.rsplit('/').next().unwrap_or(path)
}

/// The volume keeps its name, unless something else in the Pod goes on using the node's files under it.
fn volume_name(pod: &Value, mount: &Mount, index: usize) -> String {
    let uses = containers(pod)
        .flat_map(|(_, container)| list_at(container, &["volumeMounts"]))
        .filter(|other| string_at(other, &["name"]) == Some(&mount.volume))
        .count();
    if uses <= 1 {
        mount.volume.clone()
    } else {
        format!("selfhost-certs-{index}")
    }
}

/// The key of a path in a Secret: readable, valid, and another one for every path.
fn key_of(path: &str) -> String {
    let fits = |character: char| character.is_ascii_alphanumeric() || matches!(character, '-' | '.');
    let plain: String = path
        .trim_start_matches('/')
        .chars()
        .map(|character| match character {
            '/' => '_',
            character if fits(character) => character,
            _ => '_',
        })
        .collect();
    let exact = path
        .trim_start_matches('/')
        .chars()
        .all(|character| character == '/' || fits(character));
    // a key that is `.` or begins with `..` is not valid
    if exact && plain.len() <= LONGEST_KEY && !plain.starts_with('.') {
        return plain;
    }
    let digest = short_sha256(&sha256_hex(path.as_bytes()));
    let end: String = plain.chars().rev().take(LONGEST_KEY - digest.len() - 2).collect();
    let end: String = end.chars().rev().collect();
    format!("x{digest}_{end}")
}

/// SHA-256 over all keys and contents. Lengths stand between them, so that nothing can move from one to the next.
fn digest(keyed: &BTreeMap<String, &Entry>) -> String {
    let mut bytes = Vec::new();
    for (key, entry) in keyed {
        bytes.extend(format!("{} {} {}\n", key.len(), key, entry.content.sha256()).into_bytes());
    }
    sha256_hex(&bytes)
}

/// A group that may read the Secret's files where the component is not root: the kubelet gives them to the Pod's `fsGroup`.
fn group_of(pod: &Value, container: &Value) -> Option<i64> {
    let of = |field: &str| {
        at(container, &["securityContext", field])
            .or_else(|| at(pod, &["spec", "securityContext", field]))
            .cloned()
    };
    let number = |field: &str| of(field).and_then(|value| value.as_i64());
    let user = number("runAsUser").unwrap_or(0);
    let not_root = of("runAsNonRoot") == Some(Value::Bool(true));
    if user == 0 && !not_root {
        return None;
    }
    let own = at(pod, &["spec", "securityContext", "fsGroup"]).and_then(Value::as_i64);
    // any group will do; 65534 is nobody's
    own.or_else(|| number("runAsGroup").filter(|group| *group != 0))
        .or(Some(user).filter(|user| *user != 0))
        .or(Some(65534))
}
