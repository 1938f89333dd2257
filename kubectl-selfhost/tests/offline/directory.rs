//! A manifest directory is read as the kubelet reads it.

use std::fs;
use std::os::unix::fs::{PermissionsExt, symlink};

use kubectl_selfhost::inventory::take_inventory;
use kubectl_selfhost::manifest::{Entry, read_directory, sha256_hex};
use kubectl_selfhost::names::{Component, GUARD, ROLE_ENV};
use serde_json::json;

use crate::support::{Manifests, options, pod};

fn names(manifests: &Manifests) -> Vec<String> {
    read_directory(manifests.path())
        .unwrap()
        .into_iter()
        .map(|entry| match entry {
            Entry::Pod(file) => file.file_name,
            Entry::Broken { file_name, .. } => format!("{file_name} (broken)"),
        })
        .collect()
}

#[test]
fn every_regular_file_counts_but_dot_files_and_directories() {
    let manifests = Manifests::new();
    let scheduler = manifests.read("kube-scheduler.yaml");
    manifests
        .remove("kube-scheduler.yaml")
        .write("a-scheduler.old.txt~", &scheduler)
        .write(".kube-scheduler.yaml", "x");
    fs::create_dir(manifests.path().join("sub")).unwrap();
    fs::write(manifests.path().join("sub/kube-scheduler.yaml"), &scheduler).unwrap();
    assert_eq!(
        names(&manifests),
        [
            "a-scheduler.old.txt~",
            "etcd.yaml",
            "kube-apiserver.yaml",
            "kube-controller-manager.yaml"
        ]
    );
    let plan = manifests.plan();
    assert_eq!(plan.refusals, []);
    assert_eq!(plan.components[0].manifest.as_deref(), Some("a-scheduler.old.txt~"));
}

#[test]
fn symbolic_links_are_followed() {
    let manifests = Manifests::new();
    let elsewhere = tempfile::tempdir().unwrap();
    let target = elsewhere.path().join("scheduler");
    fs::write(&target, manifests.read("kube-scheduler.yaml")).unwrap();
    fs::set_permissions(&target, fs::Permissions::from_mode(0o640)).unwrap();
    manifests.remove("kube-scheduler.yaml");
    symlink(&target, manifests.path().join("link")).unwrap();
    symlink(elsewhere.path(), manifests.path().join("link-to-directory")).unwrap();
    symlink("nowhere", manifests.path().join("kube-scheduler-dangling")).unwrap();
    let inventory = take_inventory(read_directory(manifests.path()).unwrap());
    let file = &inventory.originals[&Component::KubeScheduler];
    assert_eq!(
        (file.file_name.as_str(), file.symlink, file.mode),
        ("link", true, 0o640)
    );
    assert_eq!(inventory.refusals.len(), 1, "{:?}", inventory.refusals);
    assert!(inventory.refusals[0].object.starts_with("kube-scheduler-dangling"));
}

#[test]
fn bytes_digest_mode_and_owner_are_kept() {
    let manifests = Manifests::new();
    let path = manifests.path().join("kube-apiserver.yaml");
    fs::set_permissions(&path, fs::Permissions::from_mode(0o600)).unwrap();
    let inventory = take_inventory(read_directory(manifests.path()).unwrap());
    let file = &inventory.originals[&Component::KubeApiserver];
    assert_eq!(file.bytes, fs::read(&path).unwrap());
    assert_eq!(file.mode, 0o600);
    assert_eq!(file.path, path);
    assert_eq!(file.sha256, sha256_hex(&file.bytes));
    assert_eq!(
        sha256_hex(b"abc"),
        "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad"
    );
}

#[test]
fn only_the_first_document_counts() {
    let manifests = Manifests::new();
    let both = format!(
        "{}---\n{}",
        manifests.read("kube-scheduler.yaml"),
        manifests.read("kube-apiserver.yaml")
    );
    manifests.write("kube-scheduler.yaml", format!("# a comment\n---\n{both}"));
    let plan = manifests.plan();
    assert_eq!(plan.refusals, []);
    assert_eq!(plan.components.len(), 3);
}

#[test]
fn our_own_files_are_known_by_their_content() {
    let manifests = Manifests::new();
    let mut fallback = pod(Component::KubeApiserver);
    fallback["metadata"]["name"] = json!("kube-apiserver-selfhost-fallback");
    fallback["spec"]["containers"][0]["env"] = json!([{"name": ROLE_ENV, "value": "fallback"}]);
    let guard = json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": GUARD, "namespace": "kube-system"},
        "spec": {"containers": [{"name": "guard", "image": "x", "command": ["guard", "kube-apiserver"]}]}});
    manifests
        .write("x.json", fallback.to_string())
        .write("y.json", guard.to_string());
    let inventory = take_inventory(read_directory(manifests.path()).unwrap());
    assert_eq!(inventory.refusals, []);
    assert_eq!(inventory.fallbacks[&Component::KubeApiserver].file_name, "x.json");
    assert_eq!(inventory.guard.unwrap().file_name, "y.json");
    assert_eq!(
        inventory
            .others
            .iter()
            .map(|file| file.file_name.as_str())
            .collect::<Vec<_>>(),
        ["etcd.yaml"]
    );
}

#[test]
fn what_is_no_component_is_left_alone_even_if_broken() {
    let manifests = Manifests::new();
    let other = |name: &str, namespace: &str, command: &[&str]| {
        json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name, "namespace": namespace},
            "spec": {"hostNetwork": true, "containers": [{"name": name, "image": "x", "command": command}]}})
        .to_string()
    };
    manifests
        .write("vip.yaml", other("kube-vip", "kube-system", &["/kube-vip", "manager"]))
        // Another cluster's apiserver, hosted here under another name.
        .write(
            "hosted.yaml",
            other("hosted", "tenant", &["kube-apiserver", "--secure-port=7443"]),
        )
        .write("README", "this is not YAML: [")
        .write("empty", "");
    let plan = manifests.plan();
    assert_eq!(plan.refusals, []);
    assert_eq!(plan.untouched, ["etcd.yaml", "hosted.yaml", "vip.yaml"]);
    assert_eq!(plan.warnings.len(), 2, "{:?}", plan.warnings);
    let text = serde_json::to_string(&plan.components).unwrap();
    assert!(!text.contains("kube-vip") && !text.contains("etcd.yaml"));
}

#[test]
fn a_directory_that_is_not_there_is_an_error() {
    let missing = std::path::Path::new("/nonexistent/manifests");
    let error = kubectl_selfhost::plan::offline_plan(missing, &options()).unwrap_err();
    assert_eq!(
        error.to_string(),
        "cannot read the manifest directory /nonexistent/manifests"
    );
}

#[test]
fn an_empty_directory_has_no_components() {
    let manifests = Manifests::new();
    for name in ["etcd", "kube-apiserver", "kube-controller-manager", "kube-scheduler"] {
        manifests.remove(&format!("{name}.yaml"));
    }
    let refusals = manifests.refusals();
    assert_eq!(refusals.len(), 3, "{refusals:?}");
    assert!(refusals[0].starts_with("DIR | no manifest there runs kube-scheduler | "));
}
