//! Manifests and directories for the tests.

use std::path::{Path, PathBuf};

use kubectl_selfhost::manifest::ManifestFile;
use kubectl_selfhost::mutators::{Context, Mode};
use kubectl_selfhost::names::Component;
use kubectl_selfhost::plan::{Plan, PlanOptions, offline_plan};
use serde_json::{Value, json};
use tempfile::TempDir;

/// Versions and variants of what kubeadm writes.
pub(crate) const KUBEADM: [&str; 3] = ["v1.33", "v1.36", "v1.36-audit-encryption"];
/// Other ways to configure a control plane, as kubeadm 1.36 writes them; kube-vip lies beside one of them.
pub(crate) const OTHERS: [&str; 5] = [
    "v1.36-external-etcd",
    "v1.36-dual-stack",
    "v1.36-oidc",
    "v1.36-cloud-config",
    "v1.36-external-ca-kube-vip",
];
/// Stands for the name of a build.
pub(crate) const BUILD: &str = "0123456789ab";

pub(crate) fn kubeadm(variant: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("tests/fixtures/kubeadm")
        .join(variant)
}

/// Options as for the node of the fixtures.
pub(crate) fn options() -> PlanOptions {
    PlanOptions {
        node_address: "192.0.2.11".parse().ok(),
        ..PlanOptions::new(BUILD)
    }
}

pub(crate) fn context(component: Component, mode: Mode) -> Context {
    Context {
        component,
        mode,
        build: BUILD.to_owned(),
        node_address: "192.0.2.11".parse().ok(),
        only_node: None,
        single_node: true,
        original_sha256: None,
        certificates: None,
    }
}

/// The static Pod of a component as kubeadm v1.36 writes it.
pub(crate) fn pod(component: Component) -> Value {
    file("v1.36", component).pod
}

pub(crate) fn file(variant: &str, component: Component) -> ManifestFile {
    let entries = kubectl_selfhost::manifest::read_directory(&kubeadm(variant)).unwrap();
    let inventory = kubectl_selfhost::inventory::take_inventory(entries);
    inventory.originals.get(&component).unwrap().clone()
}

/// A manifest directory with kubeadm's files, to be spoiled.
pub(crate) struct Manifests(TempDir);

impl Manifests {
    pub(crate) fn new() -> Self {
        let directory = tempfile::tempdir().unwrap();
        for entry in std::fs::read_dir(kubeadm("v1.36")).unwrap() {
            let entry = entry.unwrap();
            std::fs::copy(entry.path(), directory.path().join(entry.file_name())).unwrap();
        }
        Self(directory)
    }

    pub(crate) fn path(&self) -> &Path {
        self.0.path()
    }

    pub(crate) fn read(&self, name: &str) -> String {
        std::fs::read_to_string(self.0.path().join(name)).unwrap()
    }

    pub(crate) fn write(&self, name: &str, bytes: impl AsRef<[u8]>) -> &Self {
        std::fs::write(self.0.path().join(name), bytes).unwrap();
        self
    }

    pub(crate) fn remove(&self, name: &str) -> &Self {
        std::fs::remove_file(self.0.path().join(name)).unwrap();
        self
    }

    /// Changes the Pod of a file; it is written back as JSON.
    pub(crate) fn edit(&self, name: &str, edit: impl FnOnce(&mut Value)) -> &Self {
        let mut pod = shared::yaml::first_document(&self.read(name)).unwrap();
        edit(&mut pod);
        self.write(name, serde_json::to_vec(&pod).unwrap())
    }

    pub(crate) fn plan(&self) -> Plan {
        offline_plan(self.path(), &options()).unwrap()
    }

    /// The refusals as `object | what | remedy`, with nothing of this machine in them.
    pub(crate) fn refusals(&self) -> Vec<String> {
        let here = self.path().display().to_string();
        let show = |refusal: &kubectl_selfhost::refusal::Refusal| {
            format!("{} | {} | {}", refusal.object, refusal.what, refusal.remedy).replace(&here, "DIR")
        };
        self.plan().refusals.iter().map(show).collect()
    }
}

/// Adds a flag to the command of the first container.
pub(crate) fn add_flag(pod: &mut Value, flag: &str) {
    pod["spec"]["containers"][0]["command"]
        .as_array_mut()
        .unwrap()
        .push(json!(flag));
}

pub(crate) const APISERVER: &str = "kube-apiserver.yaml";
pub(crate) const MANAGER: &str = "kube-controller-manager.yaml";
pub(crate) const SCHEDULER: &str = "kube-scheduler.yaml";

/// The refusals after `edit` of the Pod in `file`.
pub(crate) fn edited(file: &str, edit: impl FnOnce(&mut Value)) -> Vec<String> {
    let manifests = Manifests::new();
    manifests.edit(file, edit);
    manifests.refusals()
}

pub(crate) fn main_container(pod: &mut Value) -> &mut Value {
    &mut pod["spec"]["containers"][0]
}

/// Exactly one refusal, that begins with `start` and contains all of `parts`.
#[track_caller]
pub(crate) fn assert_refused(refusals: &[String], start: &str, parts: &[&str]) {
    assert_eq!(refusals.len(), 1, "{refusals:#?}");
    let refusal = &refusals[0];
    assert!(refusal.starts_with(start), "{refusal}");
    for part in parts {
        assert!(refusal.contains(part), "{part:?} is not in {refusal}");
    }
}
