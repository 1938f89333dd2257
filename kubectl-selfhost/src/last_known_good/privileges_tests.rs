use super::*;
use proptest::prelude::*;
use serde_json::json;

const COMPONENT: Component = Component::KubeApiserver;

fn original() -> Value {
    json!({
        "metadata": {"name": "kube-apiserver", "namespace": "kube-system"},
        "spec": {
            "hostNetwork": true,
            "securityContext": {"seccompProfile": {"type": "RuntimeDefault"}},
            "containers": [{
                "name": "kube-apiserver",
                "command": ["kube-apiserver"],
                "securityContext": {"capabilities": {"add": ["NET_BIND_SERVICE"], "drop": ["ALL"]}, "allowPrivilegeEscalation": false},
                "volumeMounts": [
                    {"name": "pki", "mountPath": "/etc/kubernetes/pki", "readOnly": true},
                    {"name": "log", "mountPath": "/var/log/kube"},
                    {"name": "part", "mountPath": "/part", "subPath": "a/b"},
                ],
            }],
            "volumes": [
                {"name": "pki", "hostPath": {"path": "/etc/kubernetes/pki", "type": "DirectoryOrCreate"}},
                {"name": "log", "hostPath": {"path": "/var/log/kube/"}},
                {"name": "part", "hostPath": {"path": "/srv"}},
            ],
        },
    })
}

fn edited(pointer: &str, value: Value) -> Value {
    let mut pod = original();
    let (parent, key) = pointer.rsplit_once('/').unwrap();
    let parent = pod.pointer_mut(parent).unwrap();
    match parent {
        Value::Array(list) if key == "-" => list.push(value),
        Value::Array(list) => list[key.parse::<usize>().unwrap()] = value,
        other => other[key] = value,
    }
    pod
}

#[test]
fn what_the_original_has_passes() {
    within(COMPONENT, &original(), &original()).unwrap();
}

#[test]
fn more_than_the_original_is_refused() {
    let container = "/spec/containers/0";
    let security = "/spec/containers/0/securityContext";
    for (pointer, value, field) in [
        ("/spec/hostPID".to_owned(), json!(true), "spec.hostPID"),
        ("/spec/hostIPC".to_owned(), json!(true), "spec.hostIPC"),
        (
            "/spec/shareProcessNamespace".to_owned(),
            json!(true),
            "spec.shareProcessNamespace",
        ),
        (
            "/spec/runtimeClassName".to_owned(),
            json!("kata"),
            "spec.runtimeClassName",
        ),
        (
            "/spec/securityContext/sysctls".to_owned(),
            json!([{"name": "a", "value": "1"}]),
            "spec.securityContext.sysctls",
        ),
        (
            "/spec/securityContext/supplementalGroups".to_owned(),
            json!([6]),
            "spec.securityContext.supplementalGroups",
        ),
        (
            "/spec/securityContext/seccompProfile".to_owned(),
            json!({"type": "Unconfined"}),
            "securityContext.seccompProfile",
        ),
        (
            "/spec/securityContext/seccompProfile".to_owned(),
            Value::Null,
            "securityContext.seccompProfile",
        ),
        (
            format!("{security}/seccompProfile"),
            json!({"type": "Localhost", "localhostProfile": "x"}),
            "securityContext.seccompProfile",
        ),
        (
            format!("{security}/appArmorProfile"),
            json!({"type": "Unconfined"}),
            "securityContext.appArmorProfile",
        ),
        (
            format!("{security}/seLinuxOptions"),
            json!({"type": "spc_t"}),
            "securityContext.seLinuxOptions",
        ),
        (
            format!("{security}/privileged"),
            json!(true),
            "securityContext.privileged",
        ),
        (
            format!("{security}/procMount"),
            json!("Unmasked"),
            "securityContext.procMount",
        ),
        (
            format!("{security}/allowPrivilegeEscalation"),
            json!(true),
            "securityContext.allowPrivilegeEscalation",
        ),
        (
            format!("{security}/allowPrivilegeEscalation"),
            Value::Null,
            "securityContext.allowPrivilegeEscalation",
        ),
        (
            format!("{security}/capabilities/add"),
            json!(["NET_BIND_SERVICE", "SYS_ADMIN"]),
            "capabilities.add",
        ),
        (
            format!("{security}/capabilities/add"),
            json!(["ALL"]),
            "capabilities.add",
        ),
        (
            format!("{security}/capabilities/add"),
            json!(["cap_sys_admin"]),
            "capabilities.add",
        ),
        (
            format!("{security}/capabilities/drop"),
            json!(["CHOWN"]),
            "capabilities.drop",
        ),
        (format!("{security}/capabilities"), Value::Null, "capabilities.drop"),
        (
            format!("{container}/volumeDevices"),
            json!([{"name": "d", "devicePath": "/dev/sda"}]),
            "volumeDevices",
        ),
        (
            format!("{container}/volumeMounts/0"),
            json!({"name": "pki", "mountPath": "/x"}),
            "volumeMounts[pki]",
        ),
        (
            format!("{container}/volumeMounts/1"),
            json!({"name": "log", "mountPath": "/x", "mountPropagation": "Bidirectional"}),
            "volumeMounts[log]",
        ),
        (
            format!("{container}/volumeMounts/2"),
            json!({"name": "part", "mountPath": "/x"}),
            "volumeMounts[part]",
        ),
        (
            format!("{container}/volumeMounts/2"),
            json!({"name": "part", "mountPath": "/x", "subPathExpr": "$(X)"}),
            "volumeMounts[part]",
        ),
        (
            format!("{container}/volumeMounts/2"),
            json!({"name": "part", "mountPath": "/x", "subPath": "a/b/../../.."}),
            "volumeMounts[part]",
        ),
        (
            "/spec/volumes/1".to_owned(),
            json!({"name": "log", "hostPath": {"path": "/var/log/kubernetes"}}),
            "volumeMounts[log]",
        ),
        (
            "/spec/volumes/1".to_owned(),
            json!({"name": "log", "hostPath": {"path": "/var/log/kube/../.."}}),
            "volumeMounts[log]",
        ),
        (
            "/spec/volumes/1".to_owned(),
            json!({"name": "log", "hostPath": {"path": "/"}}),
            "volumeMounts[log]",
        ),
        (
            "/spec/volumes/-".to_owned(),
            json!({"name": "x", "hostPath": {"path": "/root", "type": "DirectoryOrCreate"}}),
            "spec.volumes[x]",
        ),
        (
            "/spec/containers/-".to_owned(),
            json!({"name": "side"}),
            "spec.containers[side]",
        ),
        (
            "/metadata/annotations".to_owned(),
            json!({"container.apparmor.security.beta.kubernetes.io/kube-apiserver": "unconfined"}),
            "metadata.annotations",
        ),
    ] {
        let error =
            within(COMPONENT, &original(), &edited(&pointer, value.clone())).expect_err(&format!("{pointer} {value}"));
        assert!(error.field.contains(field), "{pointer} {value}: {error}");
    }
}

#[test]
fn less_than_the_original_passes() {
    let security = "/spec/containers/0/securityContext";
    for (pointer, value) in [
        ("/spec/hostNetwork".to_owned(), json!(false)),
        ("/spec/hostUsers".to_owned(), json!(false)),
        (format!("{security}/capabilities/add"), json!([])),
        (format!("{security}/runAsUser"), json!(999)),
        (format!("{security}/appArmorProfile"), json!({"type": "RuntimeDefault"})),
        ("/spec/containers/0/image".to_owned(), json!("another:1")),
        (
            "/spec/containers/0/volumeMounts/1".to_owned(),
            json!({"name": "log", "mountPath": "/x", "readOnly": true, "subPath": "deep/er"}),
        ),
        (
            "/spec/volumes/0".to_owned(),
            json!({"name": "pki", "hostPath": {"path": "/etc/kubernetes/pki/etcd"}}),
        ),
        (
            "/spec/containers/-".to_owned(),
            json!({"name": "side", "securityContext": {"allowPrivilegeEscalation": false, "capabilities": {"drop": ["ALL"]}}}),
        ),
    ] {
        within(COMPONENT, &original(), &edited(&pointer, value.clone()))
            .unwrap_or_else(|e| panic!("{pointer} {value}: {e}"));
    }
}

#[test]
fn a_component_that_was_not_root_stays_so() {
    let mut was = original();
    was["spec"]["securityContext"]["runAsUser"] = json!(999);
    for (user, fine) in [
        (json!(999), true),
        (json!(0), false),
        (json!(998), false),
        (Value::Null, true),
    ] {
        let mut wanted = was.clone();
        wanted["spec"]["containers"][0]["securityContext"]["runAsUser"] = user.clone();
        assert_eq!(within(COMPONENT, &was, &wanted).is_ok(), fine, "{user}");
    }
}

proptest! {
    /// Whatever is mounted: it is accepted only when it lies below what the original mounts, and is written only where that is.
    #[test]
    fn no_path_outside_the_original_gets_through(parts in prop::collection::vec("[a-z.]{1,3}|etc|kubernetes|pki|var|log|kube|\\.\\.", 0..6), read_only: bool) {
        let path = format!("/{}", parts.join("/"));
        let mut pod = edited("/spec/volumes/1", json!({"name": "log", "hostPath": {"path": path}}));
        pod["spec"]["containers"][0]["volumeMounts"][1]["readOnly"] = json!(read_only);
        let clean: Vec<&str> = path.split('/').filter(|part| !part.is_empty() && *part != ".").collect();
        let below = |root: &[&str]| clean.starts_with(root) && !clean.contains(&"..");
        let fine = below(&["var", "log", "kube"]) || below(&["srv", "a", "b"]) || (read_only && below(&["etc", "kubernetes", "pki"]));
        prop_assert_eq!(within(COMPONENT, &original(), &pod).is_ok(), fine, "{}", path);
    }
}
