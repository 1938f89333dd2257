//! Steps about where the Pod runs, under which labels and as whom.

use serde_json::{Value, json};

use super::carrier::retain;
use super::{Context, MutationError, PodSpecMutator};
use crate::fields::{FieldError, containers_mut, list_at, list_mut, map_mut, remove, string_at};

pub(super) const LEFTOVERS: PodSpecMutator = PodSpecMutator {
    name: "leftovers",
    reason: "belongs to one running Pod or to one node, and has no place in a template",
    apply: |template, context| {
        drop_leftovers(template)?;
        // Admission computes the number from the class; a template that gives it is refused where they differ.
        if let Some(spec) = template.get_mut("spec") {
            remove(spec, "priority");
        }
        if !context.single_node {
            drop_annotations(template, |key| key == ADVERTISE_ANNOTATION);
        }
        Ok(())
    },
};

pub(super) const LABELS: PodSpecMutator = PodSpecMutator {
    name: "label",
    reason: "the label by which the DaemonSet finds its Pods",
    apply: add_label,
};

pub(super) const GATE: PodSpecMutator = PodSpecMutator {
    name: "gate",
    reason: "only nodes that are opened one by one get a Pod, and no kubelet can open its own node",
    apply: |template, context| {
        let selector = map_mut(spec_mut(template)?, "nodeSelector", "spec.nodeSelector")?;
        selector.insert(context.component.gate_label(), json!(GATE_OPEN));
        Ok(())
    },
};

pub(super) const TOLERATIONS: PodSpecMutator = PodSpecMutator {
    name: "tolerations",
    reason: "a static Pod runs whatever taints its node has; so must this one",
    apply: tolerate_everything,
};

pub(super) const NO_TOKEN: PodSpecMutator = PodSpecMutator {
    name: "no-service-account-token",
    reason: "the token would come from the apiserver that this Pod may have to start first",
    apply: |template, _| {
        let spec = spec_mut(template)?;
        for key in ["serviceAccountName", "serviceAccount"] {
            remove(spec, key);
        }
        map_mut(template, "spec", "spec")?.insert("automountServiceAccountToken".to_owned(), json!(false));
        Ok(())
    },
};

/// Value of a gate label that lets Pods in.
pub const GATE_OPEN: &str = "enabled";

/// By this annotation kubeadm finds the apiserver's endpoint of a node (k8s.io/kubernetes
/// `cmd/kubeadm/app/constants`). A template of several nodes cannot hold it.
const ADVERTISE_ANNOTATION: &str = "kubeadm.kubernetes.io/kube-apiserver.advertise-address.endpoint";

/// Annotations that the kubelet writes start like this.
const KUBELET_ANNOTATIONS: &str = "kubernetes.io/config.";

/// Metadata that the apiserver or the kubelet gives to one Pod.
const POD_METADATA: [&str; 10] = [
    "name",
    "generateName",
    "namespace",
    "uid",
    "creationTimestamp",
    "resourceVersion",
    "generation",
    "selfLink",
    "ownerReferences",
    "managedFields",
];

fn spec_mut(template: &mut Value) -> Result<&mut Value, MutationError> {
    map_mut(template, "spec", "spec")?;
    template
        .get_mut("spec")
        .ok_or_else(|| FieldError::new("spec", "is missing", "write the Pod's spec"))
}

fn drop_annotations(template: &mut Value, unwanted: impl Fn(&str) -> bool) {
    let Some(metadata) = template.get_mut("metadata") else {
        return;
    };
    let Some(annotations) = metadata.get_mut("annotations").and_then(Value::as_object_mut) else {
        return;
    };
    let before = annotations.len();
    annotations.retain(|key, _| !unwanted(key));
    if annotations.is_empty() && before > 0 {
        remove(metadata, "annotations");
    }
}

/// Takes from a Pod what its life as one Pod has left on it. The number of its priority stays: a static Pod gets none from
/// admission.
pub(crate) fn drop_leftovers(template: &mut Value) -> Result<(), MutationError> {
    remove(template, "status");
    if let Some(metadata) = template.get_mut("metadata") {
        for key in POD_METADATA {
            remove(metadata, key);
        }
    }
    drop_annotations(template, |key| key.starts_with(KUBELET_ANNOTATIONS));
    let Some(spec) = template.get_mut("spec") else {
        return Ok(());
    };
    match spec.get("restartPolicy") {
        None | Some(Value::Null) => {}
        Some(Value::String(policy)) if policy == "Always" => {}
        Some(other) => {
            return Err(FieldError::new(
                "spec.restartPolicy",
                format!("is {other}, but the Pods of a DaemonSet are always restarted"),
                "set it to Always or remove it",
            ));
        }
    }
    remove(spec, "nodeName");
    retain(spec, "tolerations", |toleration| !is_default_toleration(toleration));
    let tokens: Vec<String> = list_at(spec, &["volumes"])
        .iter()
        .filter_map(|volume| string_at(volume, &["name"]))
        .filter(|name| name.starts_with("kube-api-access-"))
        .map(str::to_owned)
        .collect();
    let is_token =
        |value: &Value| string_at(value, &["name"]).is_some_and(|name| tokens.iter().any(|token| token == name));
    retain(spec, "volumes", |volume| !is_token(volume));
    for container in containers_mut(template) {
        retain(container, "volumeMounts", |mount| !is_token(mount));
    }
    Ok(())
}

/// Tolerations that the kubelet gives to static Pods, and admission to all others.
fn is_default_toleration(toleration: &Value) -> bool {
    let field = |key| string_at(toleration, &[key]).unwrap_or_default();
    field("operator") == "Exists"
        && field("effect") == "NoExecute"
        && matches!(
            field("key"),
            "" | "node.kubernetes.io/not-ready" | "node.kubernetes.io/unreachable"
        )
}

fn add_label(template: &mut Value, context: &Context) -> Result<(), MutationError> {
    const KEY: &str = "k8s-app";
    let wanted = context.component.daemon_set_name();
    map_mut(template, "metadata", "metadata")?;
    let labels = match template.get_mut("metadata") {
        Some(metadata) => map_mut(metadata, "labels", "metadata.labels")?,
        None => return Ok(()),
    };
    match labels.get(KEY).and_then(Value::as_str) {
        Some(existing) if existing != wanted => Err(FieldError::new(
            format!("metadata.labels[{KEY}]"),
            format!("is {existing:?}, but the DaemonSet finds its Pods by this label and needs {wanted:?} there"),
            "use another label for your own purpose",
        )),
        _ => {
            labels.insert(KEY.to_owned(), json!(wanted));
            Ok(())
        }
    }
}

fn tolerate_everything(template: &mut Value, _: &Context) -> Result<(), MutationError> {
    let list = list_mut(spec_mut(template)?, "tolerations", "spec.tolerations")?;
    let everything = |toleration: &Value| {
        let absent = |key| string_at(toleration, &[key]).unwrap_or_default().is_empty();
        string_at(toleration, &["operator"]) == Some("Exists")
            && absent("key")
            && absent("effect")
            && toleration.get("tolerationSeconds").is_none_or(Value::is_null)
    };
    if !list.iter().any(everything) {
        list.push(json!({"operator": "Exists"}));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::super::test_support::{applied, context, refused};
    use super::*;
    use crate::names::Component;

    #[test]
    fn what_a_running_pod_carries_goes() {
        let live = json!({
            "metadata": {
                "name": "kube-scheduler-n1", "namespace": "kube-system", "uid": "u", "creationTimestamp": null,
                "labels": {"component": "kube-scheduler", "user": "x"},
                "annotations": {"kubernetes.io/config.hash": "h", "kubernetes.io/config.mirror": "m", "user": "y"},
            },
            "spec": {
                "nodeName": "n1", "priority": 2_000_001_000, "priorityClassName": "system-node-critical",
                "terminationGracePeriodSeconds": 30, "dnsPolicy": "Default", "x-new": {"a": 1}, "restartPolicy": "Always",
                "tolerations": [
                    {"effect": "NoExecute", "operator": "Exists"},
                    {"key": "foo", "operator": "Exists", "effect": "NoExecute"},
                    {"key": "node.kubernetes.io/not-ready", "operator": "Exists", "effect": "NoExecute", "tolerationSeconds": 300},
                ],
                "containers": [{"name": "kube-scheduler", "command": ["kube-scheduler"],
                    "volumeMounts": [{"name": "kube-api-access-x1", "mountPath": "/t"}, {"name": "a", "mountPath": "/a"}]}],
                "volumes": [{"name": "a", "hostPath": {"path": "/a"}}, {"name": "kube-api-access-x1", "projected": {}}],
            },
            "status": {"phase": "Running"},
        });
        assert_eq!(
            applied(LEFTOVERS, &live, &context(Component::KubeScheduler)),
            json!({
                "metadata": {"labels": {"component": "kube-scheduler", "user": "x"}, "annotations": {"user": "y"}},
                "spec": {
                    "priorityClassName": "system-node-critical", "terminationGracePeriodSeconds": 30,
                    "dnsPolicy": "Default", "x-new": {"a": 1}, "restartPolicy": "Always",
                    "tolerations": [{"key": "foo", "operator": "Exists", "effect": "NoExecute"}],
                    "containers": [{"name": "kube-scheduler", "command": ["kube-scheduler"],
                        "volumeMounts": [{"name": "a", "mountPath": "/a"}]}],
                    "volumes": [{"name": "a", "hostPath": {"path": "/a"}}],
                },
            })
        );
    }

    #[test]
    fn the_endpoint_annotation_stays_on_a_single_node() {
        let before = json!({"metadata": {"annotations": {ADVERTISE_ANNOTATION: "192.0.2.11:6443"}}, "spec": {}});
        let single = context(Component::KubeApiserver);
        assert_eq!(applied(LEFTOVERS, &before, &single), before);
        let several = Context {
            single_node: false,
            ..single
        };
        assert_eq!(
            applied(LEFTOVERS, &before, &several),
            json!({"metadata": {}, "spec": {}})
        );
    }

    #[test]
    fn other_restart_policies_are_refused() {
        let before = json!({"spec": {"restartPolicy": "OnFailure"}});
        assert_eq!(
            refused(LEFTOVERS, &before, &context(Component::KubeScheduler)).field,
            "spec.restartPolicy"
        );
    }

    #[test]
    fn gate_keeps_other_selectors() {
        let context = context(Component::KubeScheduler);
        let gate = context.component.gate_label();
        for (before, after) in [
            (json!({}), json!({&gate: "enabled"})),
            (json!({"foo": "bar"}), json!({"foo": "bar", &gate: "enabled"})),
            (json!({&gate: "x"}), json!({&gate: "enabled"})),
        ] {
            let template = applied(GATE, &json!({"spec": {"nodeSelector": before}}), &context);
            assert_eq!(template["spec"]["nodeSelector"], after);
        }
        assert_eq!(
            applied(GATE, &json!({"spec": {}}), &context)["spec"]["nodeSelector"],
            json!({gate: "enabled"})
        );
    }

    #[test]
    fn tolerations_are_appended_once() {
        let context = context(Component::KubeScheduler);
        for (before, after) in [
            (json!(null), json!([{"operator": "Exists"}])),
            (
                json!([{"key": "foo", "value": "bar"}]),
                json!([{"key": "foo", "value": "bar"}, {"operator": "Exists"}]),
            ),
            (json!([{"operator": "Exists"}]), json!([{"operator": "Exists"}])),
            // Less than everything: an effect, or an end.
            (
                json!([{"operator": "Exists", "effect": "NoSchedule"}]),
                json!([{"operator": "Exists", "effect": "NoSchedule"}, {"operator": "Exists"}]),
            ),
        ] {
            let template = applied(TOLERATIONS, &json!({"spec": {"tolerations": before}}), &context);
            assert_eq!(template["spec"]["tolerations"], after);
        }
    }

    #[test]
    fn no_token() {
        let before = json!({"spec": {"serviceAccountName": "default", "serviceAccount": "default"}});
        let after = applied(NO_TOKEN, &before, &context(Component::KubeScheduler));
        assert_eq!(after, json!({"spec": {"automountServiceAccountToken": false}}));
    }

    #[test]
    fn the_label_is_added_and_a_foreign_one_refused() {
        let context = context(Component::KubeScheduler);
        let before = json!({"metadata": {"labels": {"tier": "control-plane"}}});
        assert_eq!(
            applied(LABELS, &before, &context)["metadata"]["labels"],
            json!({"tier": "control-plane", "k8s-app": "self-hosted-kube-scheduler"})
        );
        let foreign = json!({"metadata": {"labels": {"k8s-app": "mine"}}});
        assert_eq!(refused(LABELS, &foreign, &context).field, "metadata.labels[k8s-app]");
    }
}
