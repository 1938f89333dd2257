//! The static Pod of the guard.

use crate::names::{BIN_DIR, BIN_MOUNT, BIN_NAME, FIELD_MANAGER, GUARD, NAMESPACE, NODE_PREFIX, STATE_DIR};
use serde_json::{Value, json};
use std::path::Path;
use std::time::Duration;

/// What differs from node to node.
#[derive(Clone, Copy, Debug)]
pub struct GuardPlace<'a> {
    /// Name of the Node.
    pub node_name: &'a str,
    /// The kubelet's manifest directory.
    pub manifest_directory: &'a Path,
    /// The kubelet's kubeconfig.
    pub kubeconfig: &'a Path,
    /// Directory of the kubelet's rotating certificates, which its kubeconfig names.
    pub kubelet_certificates: &'a Path,
    /// An image that is on the node already: our executable needs nothing of it.
    pub image: &'a str,
    /// Build of the executable; see [`BIN_DIR`].
    pub build: &'a str,
    /// How long a template runs well before it becomes the fallback; the usual time when absent.
    pub last_known_good_after: Option<Duration>,
    /// Number of the inode of the executable's directory. A guard whose directory was removed and made again still has the one
    /// that is gone mounted: with another number its manifest differs, and the kubelet starts it anew.
    pub executable_directory: u64,
}

/// Flag of the guard with [`GuardPlace::last_known_good_after`].
const AFTER_FLAG: &str = "--last-known-good-after";

/// The time that an existing manifest of the guard says.
#[must_use]
pub fn last_known_good_after(pod: &Value) -> Option<Duration> {
    let command = pod.pointer("/spec/containers/0/command")?.as_array()?;
    let at = command.iter().position(|word| word == AFTER_FLAG)?;
    shared::kube_client::parse_duration(command.get(at + 1)?.as_str()?).ok()
}

/// The guard's Pod. hostPath volumes only and no API object: it starts without an API.
///
/// Capabilities: `SYS_PTRACE` makes a live socket share its port; `NET_ADMIN` steers it without losing a connection (see
/// [`crate::node::ports::steer`]); `CHOWN`, `FOWNER` and `DAC_OVERRIDE` put manifests back
/// with the owner and mode they had.
#[must_use]
pub fn guard_pod(place: GuardPlace<'_>) -> Value {
    let GuardPlace {
        node_name,
        manifest_directory,
        kubeconfig,
        kubelet_certificates,
        image,
        build,
        last_known_good_after,
        executable_directory,
    } = place;
    let after = last_known_good_after.map(|after| [AFTER_FLAG.to_owned(), format!("{}s", after.as_secs())]);
    let host = |name: &str, path: &Path, kind: &str| json!({"name": name, "hostPath": {"path": path, "type": kind}});
    let mut pod = json!({
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {
            "name": GUARD,
            "namespace": NAMESPACE,
            "labels": {"app.kubernetes.io/managed-by": FIELD_MANAGER, "component": GUARD, "tier": "control-plane"},
            "annotations": {format!("{NODE_PREFIX}/executable-directory"): executable_directory.to_string()},
        },
        "spec": {
            "hostNetwork": true,
            "hostPID": true,
            "priorityClassName": "system-node-critical",
            "terminationGracePeriodSeconds": 5,
            "securityContext": {"runAsUser": 0, "seccompProfile": {"type": "RuntimeDefault"}},
            "containers": [{
                "name": "guard",
                "image": image,
                "imagePullPolicy": "IfNotPresent",
                "command": [
                    format!("{BIN_MOUNT}/{BIN_NAME}"), "node", "guard",
                    "--node-name", node_name,
                    "--manifest-directory", manifest_directory,
                    "--kubeconfig", kubeconfig,
                    "--state-directory", STATE_DIR,
                    "--build", build,
                ],
                "resources": {"requests": {"cpu": "10m", "memory": "24Mi"}, "limits": {"memory": "96Mi"}},
                "securityContext": {
                    "allowPrivilegeEscalation": false,
                    "readOnlyRootFilesystem": true,
                    "capabilities": {"drop": ["ALL"], "add": ["CHOWN", "DAC_OVERRIDE", "FOWNER", "NET_ADMIN", "SYS_PTRACE"]},
                },
                "volumeMounts": [
                    {"name": "bin", "mountPath": BIN_MOUNT, "readOnly": true},
                    {"name": "state", "mountPath": STATE_DIR},
                    {"name": "manifests", "mountPath": manifest_directory},
                    {"name": "kubeconfig", "mountPath": kubeconfig, "readOnly": true},
                    {"name": "kubelet-certificates", "mountPath": kubelet_certificates, "readOnly": true},
                ],
            }],
            "volumes": [
                host("bin", &Path::new(BIN_DIR).join(build), "Directory"),
                host("state", Path::new(STATE_DIR), "Directory"),
                host("manifests", manifest_directory, "Directory"),
                host("kubeconfig", kubeconfig, "File"),
                host("kubelet-certificates", kubelet_certificates, "Directory"),
            ],
        },
    });
    if let Some(command) = pod
        .pointer_mut("/spec/containers/0/command")
        .and_then(Value::as_array_mut)
    {
        command.extend(after.into_iter().flatten().map(Value::String));
    }
    pod
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_refers_to_no_api_object_and_mounts_what_it_needs_and_no_more() {
        let pod = guard_pod(GuardPlace {
            node_name: "cp-1",
            manifest_directory: Path::new("/etc/kubernetes/manifests"),
            kubeconfig: Path::new("/etc/kubernetes/kubelet.conf"),
            kubelet_certificates: Path::new("/var/lib/kubelet/pki"),
            image: "registry.k8s.io/kube-apiserver:v1.36.3",
            build: "0123456789ab",
            last_known_good_after: Some(Duration::from_secs(90)),
            executable_directory: 12,
        });
        assert_eq!(last_known_good_after(&pod), Some(Duration::from_secs(90)));
        assert_eq!(last_known_good_after(&json!({})), None);
        assert!(pod["spec"].get("serviceAccountName").is_none());
        let paths: Vec<&str> = pod["spec"]["volumes"]
            .as_array()
            .unwrap()
            .iter()
            .map(|v| v["hostPath"]["path"].as_str().unwrap())
            .collect();
        assert_eq!(
            paths,
            [
                "/opt/selfhost/bin/0123456789ab",
                "/var/lib/selfhost",
                "/etc/kubernetes/manifests",
                "/etc/kubernetes/kubelet.conf",
                "/var/lib/kubelet/pki",
            ]
        );
        let writable: Vec<&str> = pod["spec"]["containers"][0]["volumeMounts"]
            .as_array()
            .unwrap()
            .iter()
            .filter(|mount| mount.get("readOnly").is_none())
            .map(|mount| mount["name"].as_str().unwrap())
            .collect();
        assert_eq!(writable, ["state", "manifests"]);
    }
}
