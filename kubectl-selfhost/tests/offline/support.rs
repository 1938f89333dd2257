//! Manifests and directories for the tests.

use std::path::{Path, PathBuf};

use kubectl_selfhost::manifest::ManifestFile;
use kubectl_selfhost::mutators::{Context, Mode};
use kubectl_selfhost::names::Component;
use kubectl_selfhost::plan::{Plan, PlanOptions, offline_plan};
use serde_json::{Value, json};
use tempfile::TempDir;

/// Versions and variants of what kubeadm writes.
pub const KUBEADM: [&str; 3] = ["v1.33", "v1.36", "v1.36-audit-encryption"];
/// Stands for the name of a build.
pub const BUILD: &str = "0123456789ab";

pub fn kubeadm(variant: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("tests/fixtures/kubeadm")
        .join(variant)
}

/// Options as for the node of the fixtures.
pub fn options() -> PlanOptions {
    PlanOptions {
        node_address: "192.0.2.11".parse().ok(),
        ..PlanOptions::new(BUILD)
    }
}

pub fn context(component: Component, mode: Mode) -> Context {
    Context {
        component,
        mode,
        build: BUILD.to_owned(),
        node_address: "192.0.2.11".parse().ok(),
        per_node: false,
        single_node: true,
        original_sha256: None,
    }
}

/// The static Pod of a component as kubeadm v1.36 writes it.
pub fn pod(component: Component) -> Value {
    file("v1.36", component).pod
}

pub fn file(variant: &str, component: Component) -> ManifestFile {
    let entries = kubectl_selfhost::manifest::read_directory(&kubeadm(variant)).unwrap();
    let inventory = kubectl_selfhost::inventory::take_inventory(entries);
    inventory.originals.get(&component).unwrap().clone()
}

/// A manifest directory with kubeadm's files, to be spoiled.
pub struct Manifests(TempDir);

impl Manifests {
    pub fn new() -> Self {
        let directory = tempfile::tempdir().unwrap();
        for entry in std::fs::read_dir(kubeadm("v1.36")).unwrap() {
            let entry = entry.unwrap();
            std::fs::copy(entry.path(), directory.path().join(entry.file_name())).unwrap();
        }
        Self(directory)
    }

    pub fn path(&self) -> &Path {
        self.0.path()
    }

    pub fn read(&self, name: &str) -> String {
        std::fs::read_to_string(self.0.path().join(name)).unwrap()
    }

    pub fn write(&self, name: &str, bytes: impl AsRef<[u8]>) -> &Self {
        std::fs::write(self.0.path().join(name), bytes).unwrap();
        self
    }

    pub fn remove(&self, name: &str) -> &Self {
        std::fs::remove_file(self.0.path().join(name)).unwrap();
        self
    }

    /// Changes the Pod of a file; it is written back as JSON.
    pub fn edit(&self, name: &str, edit: impl FnOnce(&mut Value)) -> &Self {
        let mut pod = shared::yaml::first_document(&self.read(name)).unwrap();
        edit(&mut pod);
        self.write(name, serde_json::to_vec(&pod).unwrap())
    }

    pub fn plan(&self) -> Plan {
        offline_plan(self.path(), &options()).unwrap()
    }

    /// The refusals as `object | what | remedy`, with nothing of this machine in them.
    pub fn refusals(&self) -> Vec<String> {
        let here = self.path().display().to_string();
        let show = |refusal: &kubectl_selfhost::refusal::Refusal| {
            format!("{} | {} | {}", refusal.object, refusal.what, refusal.remedy).replace(&here, "DIR")
        };
        self.plan().refusals.iter().map(show).collect()
    }
}

/// Adds a flag to the command of the first container.
pub fn add_flag(pod: &mut Value, flag: &str) {
    pod["spec"]["containers"][0]["command"]
        .as_array_mut()
        .unwrap()
        .push(json!(flag));
}
