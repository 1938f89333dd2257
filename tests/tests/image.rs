//! All that the plugin may change on a node and in its cluster, to be compared with what it was before.

use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    os::unix::fs::MetadataExt,
    path::Path,
};

use sha2::{Digest, Sha256};

use crate::support::{Cluster, MANIFESTS};

/// Each thing that the plugin may change, with a text that is another one when it was changed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Image(BTreeMap<String, String>);

impl Image {
    pub(crate) fn of(cluster: &Cluster) -> Self {
        let mut image = BTreeMap::new();
        for directory in [MANIFESTS, "/opt/selfhost", "/var/lib/selfhost"] {
            add_files(&mut image, directory, &cluster.file(directory));
        }
        // Where the harness puts the plugin itself.
        image.retain(|path, _| !path.starts_with("/opt/selfhost/cli"));
        let kinds = "daemonsets,secrets,controllerrevisions,pods,poddisruptionbudgets,roles,rolebindings";
        for object in cluster.get(&[kinds, "-n", "kube-system"])["items"].as_array().unwrap() {
            let metadata = &object["metadata"];
            // Those of static Pods come and go with the kubelet.
            if metadata["annotations"].get("kubernetes.io/config.mirror").is_some() {
                continue;
            }
            image.insert(format!("{} {}", object["kind"], metadata["name"]), written(object));
        }
        let node = cluster.get(&["node", "node1"]);
        for kind in ["labels", "annotations"] {
            for (key, value) in node["metadata"][kind].as_object().into_iter().flatten() {
                image.insert(format!("{kind} {key}"), value.to_string());
            }
        }
        // Those that come and go with the state of the node are the node controller's.
        let taints = node["spec"]["taints"].as_array().cloned().unwrap_or_default();
        let of_state = |taint: &serde_json::Value| {
            let key = taint["key"].as_str().unwrap_or_default();
            key.starts_with("node.kubernetes.io/")
        };
        let taints: Vec<_> = taints.into_iter().filter(|taint| !of_state(taint)).collect();
        image.insert("taints".to_owned(), serde_json::Value::from(taints).to_string());
        Self(image)
    }

    /// Fails with what differs.
    pub(crate) fn assert_same(&self, after: &Self) {
        let changes = self.changes(after);
        assert!(changes.is_empty(), "something was changed:\n{}", changes.join("\n"));
    }

    /// What differs, in words.
    pub(crate) fn changes(&self, after: &Self) -> Vec<String> {
        let keys: BTreeSet<_> = self.0.keys().chain(after.0.keys()).collect();
        keys.into_iter()
            .filter(|key| self.0.get(*key) != after.0.get(*key))
            .map(|key| format!("{key}: {:?} -> {:?}", self.0.get(key), after.0.get(key)))
            .collect()
    }

    /// The image but for these.
    pub(crate) fn without(&self, keys: &[String]) -> Self {
        Self(
            self.0
                .iter()
                .filter(|(key, _)| !keys.contains(key))
                .map(|(k, v)| (k.clone(), v.clone()))
                .collect(),
        )
    }

    /// How many things bear the plugin's name.
    pub(crate) fn marks(&self) -> usize {
        let ours = |key: &&String| key.contains("selfhost") || key.contains("self-hosted");
        self.0.keys().filter(ours).count()
    }
}

/// What was written of an object: all but what controllers and the kubelet report of it, whenever they get to it.
fn written(object: &serde_json::Value) -> String {
    let mut object = object.clone();
    if let Some(fields) = object.as_object_mut() {
        fields.remove("status");
    }
    if let Some(metadata) = object["metadata"].as_object_mut() {
        for field in ["resourceVersion", "managedFields"] {
            metadata.remove(field);
        }
    }
    object.to_string()
}

fn add_files(image: &mut BTreeMap<String, String>, name: &str, path: &Path) {
    for entry in fs::read_dir(path).into_iter().flatten().flatten() {
        let (path, name) = (entry.path(), format!("{name}/{}", entry.file_name().to_string_lossy()));
        // It may go at any moment.
        let Ok(metadata) = fs::symlink_metadata(&path) else {
            continue;
        };
        let (mode, uid, gid) = (metadata.mode(), metadata.uid(), metadata.gid());
        let mut text = format!("{mode:o} {uid}:{gid}");
        if metadata.is_dir() {
            add_files(image, &name, &path);
        } else {
            let sum: [u8; 32] = Sha256::digest(fs::read(&path).unwrap_or_default()).into();
            let sum: String = sum.iter().map(|b| format!("{b:02x}")).collect();
            text = format!("{text} {}.{:09} {sum}", metadata.mtime(), metadata.mtime_nsec());
        }
        image.insert(name, text);
    }
}
