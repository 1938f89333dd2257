//! What a node shows of its volumes' paths.

use super::*;
use crate::manifest::read_directory;
use serde_json::json;
use std::os::unix::net::UnixListener;

#[test]
fn paths_are_held_against_the_type_of_their_volume() {
    let directory = tempfile::tempdir().unwrap();
    let at = |name: &str| directory.path().join(name);
    std::fs::create_dir(at("directory")).unwrap();
    std::fs::write(at("file"), "x").unwrap();
    std::fs::write(at("empty"), "").unwrap();
    let _socket = UnixListener::bind(at("socket")).unwrap();
    let not_there = Some("is not there");
    let (no_directory, no_file, no_socket) = (
        Some("is not a directory"),
        Some("is not a file"),
        Some("is not a socket"),
    );
    let names = ["missing", "directory", "file", "empty", "socket"];
    for (kind, expected) in [
        ("", [None; 5]),
        ("DirectoryOrCreate", [None; 5]),
        ("Directory", [not_there, None, no_directory, no_directory, no_directory]),
        ("File", [not_there, no_file, None, None, no_file]),
        (
            "FileOrCreate",
            [not_there, no_file, None, Some("is an empty file"), no_file],
        ),
        ("Socket", [not_there, no_socket, no_socket, no_socket, None]),
    ] {
        for (name, expected) in names.iter().zip(expected) {
            let found = std::fs::metadata(at(name)).ok();
            assert_eq!(wrong_path(kind, found.as_ref()), expected, "{kind:?} {name}");
        }
    }
}

#[test]
fn paths_of_all_volumes_are_looked_at() {
    let directory = tempfile::tempdir().unwrap();
    let fixtures = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/kubeadm/v1.36");
    let mut inventory = take_inventory(read_directory(&fixtures).unwrap());
    let missing = directory.path().join("policy.yaml").display().to_string();
    for file in inventory.originals.values_mut() {
        let volumes = file.pod["spec"]["volumes"].as_array_mut().unwrap();
        for volume in volumes.iter_mut() {
            volume["hostPath"] = json!({"path": directory.path(), "type": "Directory"});
        }
        volumes.push(json!({"name": "policy", "hostPath": {"path": missing, "type": "File"}}));
    }
    let expected: Vec<_> = Component::ALL
        .into_iter()
        .map(|component| BadPath {
            component,
            volume: "policy".to_owned(),
            path: missing.clone(),
            wrong: "is not there".to_owned(),
        })
        .collect();
    assert_eq!(bad_paths(&inventory), expected);
}

#[test]
fn a_survey_is_read_back_as_it_was_written() {
    let fixtures = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/kubeadm/v1.36");
    let local = LocalNode {
        manifest_directory: fixtures.clone(),
        kubelet_kubeconfig: "/etc/kubernetes/kubelet.conf".into(),
        kubelet_certificates: "/var/lib/kubelet/pki".into(),
    };
    let survey = survey(&local).unwrap();
    assert_eq!(survey.originals.len(), 3);
    let text = serde_json::to_string(&survey).unwrap();
    assert_eq!(serde_json::from_str::<Survey>(&text).unwrap(), survey);
}
