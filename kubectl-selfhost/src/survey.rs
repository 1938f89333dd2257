//! What a node shows of itself, and what is done to its files: on the node, by this process, or by the helper Pod there.

use crate::install::{self, NodeBinary};
use crate::inventory::{Inventory, take_inventory};
use crate::local_node::{self, LocalNode, may_execute};
use crate::manifest::{Entry, ManifestFile, parse, read_directory, sha256_hex};
use crate::names::{BIN_DIR, BIN_NAME, Component};
use crate::node::await_port::describe;
use crate::node::process::Processes;
use crate::node::state::{ComponentFiles, Original};
use crate::node::trial;
use serde::{Deserialize, Serialize};
use shared::{Error, Result};
use std::collections::BTreeMap;
use std::fs::Metadata;
use std::path::Path;
use std::time::Duration;

/// Everything that is read on a node before anything is changed there.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Survey {
    /// Version of the program that looked.
    pub version: String,
    /// Where things lie.
    pub local: LocalNode,
    /// The manifest directory.
    pub entries: Vec<Entry>,
    /// When each component's manifest was last changed, nanoseconds since the epoch.
    pub originals: BTreeMap<Component, Original>,
    /// Originals that are saved on the node, whole.
    pub saved: BTreeMap<Component, ManifestFile>,
    /// Manifests that the node's disk remembers as saved.
    pub remembered: BTreeMap<Component, Original>,
    /// hostPath volumes that are not as they are asked for.
    pub bad_paths: Vec<BadPath>,
    /// Our directories on file systems that do not let files be executed.
    pub not_executable: Vec<String>,
    /// Why ports cannot be shared and steered here; absent when they can.
    pub steering_refused: Option<String>,
    /// Whether files of ours lie here.
    pub has_files: bool,
}

/// A hostPath volume whose path is not as it is asked for.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct BadPath {
    /// Whose.
    pub component: Component,
    /// Name of the volume.
    pub volume: String,
    /// The path on the node.
    pub path: String,
    /// What is wrong with it, as it reads after the path.
    pub wrong: String,
}

impl Survey {
    /// The files of the manifest directory, sorted out.
    #[must_use]
    pub fn inventory(&self) -> Inventory {
        take_inventory(self.entries.clone())
    }
}

/// Looks at this node. Nothing is changed: the trial listens on a loopback port of its own for a moment.
///
/// # Errors
/// The manifest directory cannot be listed.
pub fn survey(local: &LocalNode) -> Result<Survey> {
    let directory = &local.manifest_directory;
    let entries = read_directory(directory).map_err(|error| {
        Error::new(format!("the manifest directory {} cannot be read", directory.display())).because(describe(&error))
    })?;
    let inventory = take_inventory(entries.clone());
    let each = |read: fn(Component) -> Option<Original>| {
        Component::ALL
            .into_iter()
            .filter_map(|component| Some((component, read(component)?)))
            .collect()
    };
    let originals = inventory
        .originals
        .iter()
        .filter_map(|(component, file)| {
            let metadata = crate::node::guard::files::metadata(&file.path, file.sha256.clone()).ok()?;
            Some((*component, metadata))
        })
        .collect();
    Ok(Survey {
        version: env!("CARGO_PKG_VERSION").to_owned(),
        local: local.clone(),
        originals,
        saved: Component::ALL
            .into_iter()
            .filter_map(|component| Some((component, saved_original(component)?)))
            .collect(),
        remembered: each(|component| {
            let bytes = std::fs::read(ComponentFiles::new(component).original_metadata()).ok()?;
            serde_json::from_slice(&bytes).ok()
        }),
        bad_paths: bad_paths(&inventory),
        not_executable: [BIN_DIR]
            .into_iter()
            .filter(|path| may_execute(Path::new(path)) == Some(false))
            .map(str::to_owned)
            .collect(),
        steering_refused: trial::run().err(),
        has_files: has_files(local),
        entries,
    })
}

/// The original of a component as the guard saved it on this node; `None` when there is none that is whole.
fn saved_original(component: Component) -> Option<ManifestFile> {
    let files = ComponentFiles::new(component);
    let metadata: Original = serde_json::from_slice(&std::fs::read(files.original_metadata()).ok()?).ok()?;
    let bytes = std::fs::read(files.original()).ok()?;
    let sha256 = sha256_hex(&bytes);
    if sha256 != metadata.sha256 {
        return None;
    }
    Some(ManifestFile {
        pod: parse(&bytes).ok()?,
        path: files.original(),
        file_name: metadata.file_name,
        mode: metadata.mode,
        uid: metadata.uid,
        gid: metadata.gid,
        symlink: false,
        bytes,
        sha256,
    })
}

fn bad_paths(inventory: &Inventory) -> Vec<BadPath> {
    let mut bad = Vec::new();
    for (component, file) in &inventory.originals {
        let Ok(spec) = crate::component_spec::ComponentSpec::new(*component, &file.pod) else {
            continue;
        };
        for host_path in spec.host_paths() {
            let found = std::fs::metadata(&host_path.path).ok();
            if let Some(wrong) = wrong_path(&host_path.kind, found.as_ref()) {
                bad.push(BadPath {
                    component: *component,
                    volume: host_path.volume,
                    path: host_path.path,
                    wrong: wrong.to_owned(),
                });
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
        ("Socket", Some(found)) if !is_socket(found) => Some("is not a socket"),
        _ => None,
    }
}

#[cfg(unix)]
fn is_socket(found: &Metadata) -> bool {
    std::os::unix::fs::FileTypeExt::is_socket(&found.file_type())
}

#[cfg(not(unix))]
fn is_socket(_: &Metadata) -> bool {
    false
}

/// Whether anything of ours lies on this node.
#[must_use]
pub fn has_files(local: &LocalNode) -> bool {
    let has_entries = |directory: &Path| std::fs::read_dir(directory).is_ok_and(|mut entries| entries.next().is_some());
    local_node::own_directories().into_iter().any(has_entries) || install::guard_manifest_path(local).exists()
}

/// What an installation needs to know.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Installation {
    /// Name of the Node.
    pub node_name: String,
    /// Image of the guard: one that is on the node.
    pub image: String,
    /// How long a template runs well before it becomes the fallback; as it is set already when absent.
    pub last_known_good_after: Option<Duration>,
}

/// Installs state directory, executable and guard on this node. Returns whether the guard's manifest was changed.
///
/// # Errors
/// Names what cannot be written, or why the executable does not run.
pub fn install(local: &LocalNode, binary: &NodeBinary, installation: &Installation) -> Result<bool> {
    install::install_state_directory()?;
    install::install_binary(binary)?;
    let settings = install::GuardSettings {
        node_name: &installation.node_name,
        image: &installation.image,
        build: &binary.build,
        last_known_good_after: installation.last_known_good_after,
    };
    install::install_guard(local, settings)
}

/// Whether a process of the guard runs on this node.
#[must_use]
pub fn guard_runs() -> bool {
    let processes = Processes::new(Path::new("/proc"));
    let ids = processes.ids().unwrap_or_default();
    ids.into_iter().any(|pid| {
        let arguments = processes.arguments(pid);
        arguments.first().is_some_and(|first| first.ends_with(BIN_NAME))
            && arguments.get(1).map(String::as_str) == Some("node")
            && arguments.get(2).map(String::as_str) == Some("guard")
            && processes.shares_pid_namespace(pid)
    })
}

#[cfg(test)]
#[path = "survey_tests.rs"]
mod tests;
