//! A manifest directory as the kubelet reads it.
//!
//! The kubelet takes every regular file whose name does not start with a dot, whatever its extension, follows symbolic
//! links, does not descend into directories, and reads the first document of each as one Pod
//! (k8s.io/kubernetes `pkg/kubelet/config/file.go` and `common.go`).

use shared::atomic_file::Facts;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use serde_json::Value;
use sha2::{Digest, Sha256};

use crate::fields::{FieldError, at, container_path, list_at, string_at, type_name};

/// Namespace of a Pod that names none.
pub const DEFAULT_NAMESPACE: &str = "default";

/// Why the content of a file is no Pod.
pub type ParseError = FieldError;

/// A file with a Pod, and all that is needed to put it back as it was.
#[derive(Clone, Debug, PartialEq, serde::Serialize, serde::Deserialize)]
pub struct ManifestFile {
    /// Path of the file.
    pub path: PathBuf,
    /// Last part of the path.
    pub file_name: String,
    /// The bytes of the file.
    #[serde(with = "crate::base64")]
    pub bytes: Vec<u8>,
    /// SHA-256 of the bytes, in hex.
    pub sha256: String,
    /// Permission bits of the file, as in `0o600`.
    pub mode: u32,
    /// Owner of the file.
    pub uid: u32,
    /// Group of the file.
    pub gid: u32,
    /// Whether the path is a symbolic link; mode and owner are those of its target.
    pub symlink: bool,
    /// The Pod in the file.
    pub pod: Value,
}

/// One file that the kubelet looks at.
#[derive(Clone, Debug, PartialEq, serde::Serialize, serde::Deserialize)]
pub enum Entry {
    /// A file with a Pod.
    Pod(ManifestFile),
    /// A file that the kubelet cannot use.
    Broken {
        /// Last part of the path.
        file_name: String,
        /// The bytes of the file; empty where it cannot be read.
        #[serde(with = "crate::base64")]
        bytes: Vec<u8>,
        /// What is wrong with it.
        error: ParseError,
    },
}

/// The manifest directory cannot be listed.
#[derive(Debug, thiserror::Error)]
#[error("cannot read the manifest directory {}", path.display())]
pub struct ReadError {
    /// The directory.
    pub path: PathBuf,
    /// Why.
    #[source]
    pub source: io::Error,
}

/// Reads a manifest directory. The entries are sorted by name, as the kubelet sorts them.
///
/// # Errors
/// The directory cannot be listed. A file that cannot be read or understood is an [`Entry::Broken`].
pub fn read_directory(directory: &Path) -> Result<Vec<Entry>, ReadError> {
    let failed = |source| ReadError {
        path: directory.to_owned(),
        source,
    };
    let mut paths = fs::read_dir(directory)
        .map_err(failed)?
        .map(|entry| entry.map(|entry| entry.path()))
        .collect::<io::Result<Vec<_>>>()
        .map_err(failed)?;
    paths.sort();
    Ok(paths.iter().filter_map(|path| read_entry(path)).collect())
}

fn read_entry(path: &Path) -> Option<Entry> {
    let file_name = path.file_name()?.to_string_lossy().into_owned();
    if file_name.starts_with('.') {
        return None;
    }
    let broken = |bytes: Vec<u8>, error| {
        Some(Entry::Broken {
            file_name: file_name.clone(),
            bytes,
            error,
        })
    };
    let unreadable = |error: &io::Error| {
        let remedy = "make the file readable, or move it out of the manifest directory";
        FieldError::new("file", format!("cannot be read: {error}"), remedy)
    };
    let metadata = match fs::metadata(path) {
        Ok(metadata) if metadata.is_file() => metadata,
        // Directories, sockets and the like are not read; nor is a file that went away meanwhile.
        Ok(_) => return None,
        Err(error) if error.kind() == io::ErrorKind::NotFound && !path.is_symlink() => return None,
        Err(error) => return broken(Vec::new(), unreadable(&error)),
    };
    let bytes = match fs::read(path) {
        Ok(bytes) => bytes,
        Err(error) => return broken(Vec::new(), unreadable(&error)),
    };
    let facts = Facts::of(&metadata);
    match parse(&bytes) {
        Ok(pod) => Some(Entry::Pod(ManifestFile {
            path: path.to_owned(),
            file_name,
            sha256: sha256_hex(&bytes),
            bytes,
            mode: facts.mode,
            uid: facts.user,
            gid: facts.group,
            symlink: path.is_symlink(),
            pod,
        })),
        Err(error) => broken(bytes, error),
    }
}

/// SHA-256 of `bytes`, in hex.
#[must_use]
pub fn sha256_hex(bytes: &[u8]) -> String {
    Sha256::digest(bytes).iter().map(|byte| format!("{byte:02x}")).collect()
}

/// Namespace of a Pod, where the kubelet would run it.
#[must_use]
pub fn namespace_of(pod: &Value) -> &str {
    string_at(pod, &["metadata", "namespace"])
        .filter(|namespace| !namespace.is_empty())
        .unwrap_or(DEFAULT_NAMESPACE)
}

/// The Pod in the first document of `bytes`, which may be JSON or YAML.
///
/// Only what the kubelet would accept passes, as far as we look: the fields that we work with have their types,
/// every container has a name and an image, and every mounted volume exists. So a file that was cut off anywhere is
/// found even where what is left is well-formed.
///
/// # Errors
/// The bytes are no such Pod; the error names the field.
pub fn parse(bytes: &[u8]) -> Result<Value, ParseError> {
    const CORRECT: &str = "write one Pod into the file, or move it out of the manifest directory";
    let document = |what: String| FieldError::new("document", what, CORRECT);
    let text = std::str::from_utf8(bytes).map_err(|error| document(format!("is not UTF-8 text: {error}")))?;
    let value = shared::yaml::first_document(text).map_err(|error| match error {
        shared::yaml::Error::Empty => document("the file is empty, or holds nothing but comments".to_owned()),
        error => document(format!("cannot be read: {error}")),
    })?;
    check_pod(&value)?;
    Ok(value)
}

fn check_pod(pod: &Value) -> Result<(), ParseError> {
    if pod.is_null() {
        return Err(FieldError::new(
            "document",
            "the file holds nothing but comments",
            "write one Pod into the file",
        ));
    }
    if !pod.is_object() {
        return Err(FieldError::new(
            "document",
            format!("is {}, not a Pod", type_name(pod)),
            "write one Pod into the file",
        ));
    }
    match (string_at(pod, &["apiVersion"]), string_at(pod, &["kind"])) {
        (Some("v1"), Some("Pod")) => {}
        (Some("v1"), Some(list @ ("PodList" | "List"))) => {
            return Err(FieldError::new(
                "kind",
                format!("is {list}, but the kubelet reads one Pod from a file"),
                "write each Pod into a file of its own",
            ));
        }
        (version, kind) => {
            return Err(FieldError::new(
                "kind",
                format!(
                    "is {} {}, not v1 Pod",
                    version.unwrap_or("(no apiVersion)"),
                    kind.unwrap_or("(no kind)")
                ),
                "a manifest directory holds Pods only: move the file out of it",
            ));
        }
    }
    let metadata = expect_map(pod, "metadata", "metadata")?;
    expect_string(metadata, "name", "metadata.name")?;
    optional_string(metadata, "namespace", "metadata.namespace")?;
    for key in ["labels", "annotations"] {
        if let Some(map) = optional_map(metadata, key, &format!("metadata.{key}"))? {
            for (name, value) in map {
                if !value.is_string() {
                    return Err(mistyped(&format!("metadata.{key}[{name}]"), "a string", value));
                }
            }
        }
    }
    let spec = expect_map(pod, "spec", "spec")?;
    optional_bool(spec, "hostNetwork", "spec.hostNetwork")?;
    optional_map(spec, "nodeSelector", "spec.nodeSelector")?;
    optional_list(spec, "tolerations", "spec.tolerations")?;
    let mut volumes = Vec::new();
    for (index, volume) in optional_list(spec, "volumes", "spec.volumes")?.iter().enumerate() {
        volumes.push(expect_string(volume, "name", &format!("spec.volumes[{index}].name"))?);
    }
    for list in ["initContainers", "containers"] {
        for (index, container) in optional_list(spec, list, &format!("spec.{list}"))?.iter().enumerate() {
            check_container(container, &container_path(list, index, container), &volumes)?;
        }
    }
    if list_at(spec, &["containers"]).is_empty() {
        return Err(FieldError::new(
            "spec.containers",
            "there are none",
            "a Pod needs at least one container",
        ));
    }
    Ok(())
}

fn check_container(container: &Value, path: &str, volumes: &[&str]) -> Result<(), ParseError> {
    if !container.is_object() {
        return Err(mistyped(path, "a map", container));
    }
    expect_string(container, "name", &format!("{path}.name"))?;
    expect_string(container, "image", &format!("{path}.image"))?;
    for key in ["command", "args"] {
        for (index, word) in optional_list(container, key, &format!("{path}.{key}"))?
            .iter()
            .enumerate()
        {
            if !word.is_string() {
                return Err(mistyped(&format!("{path}.{key}[{index}]"), "a string", word));
            }
        }
    }
    for (index, variable) in optional_list(container, "env", &format!("{path}.env"))?
        .iter()
        .enumerate()
    {
        let name = expect_string(variable, "name", &format!("{path}.env[{index}].name"))?;
        optional_string(variable, "value", &format!("{path}.env[{name}].value"))?;
    }
    optional_list(container, "ports", &format!("{path}.ports"))?;
    for probe in ["livenessProbe", "readinessProbe", "startupProbe"] {
        optional_map(container, probe, &format!("{path}.{probe}"))?;
    }
    for (index, mount) in optional_list(container, "volumeMounts", &format!("{path}.volumeMounts"))?
        .iter()
        .enumerate()
    {
        let volume = expect_string(mount, "name", &format!("{path}.volumeMounts[{index}].name"))?;
        if !volumes.contains(&volume) {
            return Err(FieldError::new(
                format!("{path}.volumeMounts[{index}].name"),
                format!("mounts the volume {volume:?}, which the Pod does not have"),
                "the file may be cut off: restore it, or add the volume",
            ));
        }
    }
    Ok(())
}

fn mistyped(field: &str, expected: &str, found: &Value) -> FieldError {
    FieldError::new(
        field,
        format!("must be {expected}, but is {}", type_name(found)),
        "correct the field: the kubelet cannot read it either",
    )
}

fn missing(field: &str) -> FieldError {
    FieldError::new(
        field,
        "is missing",
        "the file may be cut off: restore it, or add the field",
    )
}

fn optional_map<'a>(
    parent: &'a Value,
    key: &str,
    field: &str,
) -> Result<Option<&'a serde_json::Map<String, Value>>, FieldError> {
    at(parent, &[key])
        .map(|value| value.as_object().ok_or_else(|| mistyped(field, "a map", value)))
        .transpose()
}

fn expect_map<'a>(parent: &'a Value, key: &str, field: &str) -> Result<&'a Value, FieldError> {
    optional_map(parent, key, field)?;
    at(parent, &[key]).ok_or_else(|| missing(field))
}

fn optional_list<'a>(parent: &'a Value, key: &str, field: &str) -> Result<&'a [Value], FieldError> {
    match at(parent, &[key]) {
        None => Ok(&[]),
        Some(Value::Array(list)) => Ok(list),
        Some(other) => Err(mistyped(field, "a list", other)),
    }
}

fn optional_string<'a>(parent: &'a Value, key: &str, field: &str) -> Result<Option<&'a str>, FieldError> {
    at(parent, &[key])
        .map(|value| value.as_str().ok_or_else(|| mistyped(field, "a string", value)))
        .transpose()
}

fn expect_string<'a>(parent: &'a Value, key: &str, field: &str) -> Result<&'a str, FieldError> {
    optional_string(parent, key, field)?
        .filter(|text| !text.is_empty())
        .ok_or_else(|| missing(field))
}

fn optional_bool(parent: &Value, key: &str, field: &str) -> Result<Option<bool>, FieldError> {
    at(parent, &[key])
        .map(|value| value.as_bool().ok_or_else(|| mistyped(field, "true or false", value)))
        .transpose()
}
