//! The DaemonSet that runs a component in place of its static Pod.

use std::collections::BTreeMap;

use serde_json::{Map, Value, json};

use crate::fields::FieldError;
use crate::mutators::{Context, Mode, MutationError, PodSpecMutator};
use crate::names::{Component, FIELD_MANAGER, NAMESPACE};

/// Annotation of a DaemonSet with the SHA-256, in hex, of the manifest that it was made from.
pub const ORIGINAL_SHA256_ANNOTATION: &str = "selfhost.node-restriction.kubernetes.io/original-sha256";

/// For so long a new Pod is ready before the old one is told to go. The start-up probe has turned new connections to the
/// new process by then, and what the old one had accepted gets its answer. It protects against nothing else.
const MIN_READY_SECONDS: u32 = 5;

/// Label by which a DaemonSet finds its Pods.
pub const SELECTOR_LABEL: &str = "k8s-app";

/// Annotation of a DaemonSet that is for one Node alone, with the Node's name.
pub const NODE_ANNOTATION: &str = "selfhost.node-restriction.kubernetes.io/node";

/// Label of the Pods of a DaemonSet that is for one Node alone: it keeps their selectors apart.
pub const NODE_LABEL: &str = "selfhost.node-restriction.kubernetes.io/node";

/// Longest value of a label (Kubernetes, "Labels and Selectors", syntax).
const LONGEST_LABEL: usize = 63;

/// Name of the DaemonSet of a component for one Node alone.
#[must_use]
pub fn per_node_name(component: Component, node: &str) -> String {
    format!("{}-{}", component.daemon_set_name(), short_name(node))
}

/// A Node's name as it fits into a label: a long one by the start of its SHA-256.
fn short_name(node: &str) -> String {
    if node.len() <= LONGEST_LABEL {
        node.to_owned()
    } else {
        crate::manifest::sha256_hex(node.as_bytes())[..16].to_owned()
    }
}

/// A mutator that cannot do its work on this Pod.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("step {mutator}: {source}")]
pub struct BuildError {
    /// Name of the mutator; `template` where the Pod itself is no map.
    pub mutator: &'static str,
    /// What it stumbled over.
    #[source]
    pub source: MutationError,
}

/// The labels that the Pods of a component's DaemonSet are found by. Never more: a selector cannot be changed later.
#[must_use]
pub fn self_hosted_component_labels(component: Component) -> BTreeMap<String, String> {
    BTreeMap::from([(SELECTOR_LABEL.to_owned(), component.daemon_set_name())])
}

/// The label query that finds the self-hosted Pods of a component.
#[must_use]
pub fn self_hosted_component_label_query(component: Component) -> String {
    format!("{SELECTOR_LABEL}={}", component.daemon_set_name())
}

/// The part of a Pod that a template starts from: all but `apiVersion` and `kind`.
///
/// # Errors
/// The Pod is no map.
pub fn template_of(pod: &Value) -> Result<Value, FieldError> {
    let Value::Object(pod) = pod else {
        return Err(FieldError::new("document", "is no map", "write a Pod"));
    };
    let kept = pod
        .iter()
        .filter(|(key, _)| !matches!(key.as_str(), "apiVersion" | "kind"));
    Ok(Value::Object(
        kept.map(|(key, value)| (key.clone(), value.clone())).collect(),
    ))
}

/// Applies all mutators to a template, in their order.
///
/// # Errors
/// The first mutator that refuses; nothing is returned of the half-done template.
pub fn mutate(mut template: Value, mutators: &[PodSpecMutator], context: &Context) -> Result<Value, BuildError> {
    for mutator in mutators {
        (mutator.apply)(&mut template, context).map_err(|source| BuildError {
            mutator: mutator.name,
            source,
        })?;
    }
    Ok(template)
}

/// The DaemonSet of `component` for the static Pod `pod`.
///
/// # Errors
/// A mutator refuses the Pod.
pub fn build_daemon_set(
    component: Component,
    pod: &Value,
    mutators: &[PodSpecMutator],
    context: &Context,
) -> Result<Value, BuildError> {
    let template = template_of(pod).map_err(|source| BuildError {
        mutator: "template",
        source,
    })?;
    Ok(wrap(component, &mutate(template, mutators, context)?, context))
}

/// The DaemonSet around a template that is mutated already.
#[must_use]
pub(crate) fn wrap(component: Component, template: &Value, context: &Context) -> Value {
    let mut metadata = Map::new();
    metadata.insert("name".to_owned(), json!(component.daemon_set_name()));
    metadata.insert("namespace".to_owned(), json!(NAMESPACE));
    metadata.insert(
        "labels".to_owned(),
        json!({
            "app.kubernetes.io/managed-by": FIELD_MANAGER,
            "component": component.name(),
            SELECTOR_LABEL: component.daemon_set_name(),
            "tier": "control-plane",
        }),
    );
    let mut annotations = Map::new();
    if let Some(sha256) = &context.original_sha256 {
        annotations.insert(ORIGINAL_SHA256_ANNOTATION.to_owned(), json!(sha256));
    }
    let mut template = template.clone();
    let mut selector = json!(self_hosted_component_labels(component));
    if let Some(node) = &context.only_node {
        metadata.insert("name".to_owned(), json!(per_node_name(component, node)));
        annotations.insert(NODE_ANNOTATION.to_owned(), json!(node));
        selector[NODE_LABEL] = json!(short_name(node));
        template["metadata"]["labels"][NODE_LABEL] = json!(short_name(node));
        only_on(&mut template, node);
    }
    if !annotations.is_empty() {
        metadata.insert("annotations".to_owned(), Value::Object(annotations));
    }
    // Steered, a new Pod runs beside the old one before that one goes. In gap mode two cannot run at once, and an
    // edit of the template must not stop the control plane unasked.
    let strategy = match context.mode {
        Mode::Steered => json!({"type": "RollingUpdate", "rollingUpdate": {"maxSurge": 1, "maxUnavailable": 0}}),
        Mode::Gap => json!({"type": "OnDelete"}),
    };
    let mut spec = json!({
        "selector": {"matchLabels": selector},
        "updateStrategy": strategy,
    });
    if context.mode == Mode::Steered {
        spec["minReadySeconds"] = json!(MIN_READY_SECONDS);
    }
    spec["revisionHistoryLimit"] = json!(10);
    spec["template"] = template;
    json!({"apiVersion": "apps/v1", "kind": "DaemonSet", "metadata": metadata, "spec": spec})
}

/// Binds a template to one Node by its name, in every alternative that it has.
fn only_on(template: &mut Value, node: &str) {
    let affinity = &mut template["spec"]["affinity"]["nodeAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"];
    let terms = &mut affinity["nodeSelectorTerms"];
    if terms.as_array().is_none_or(Vec::is_empty) {
        *terms = json!([{}]);
    }
    for term in terms.as_array_mut().into_iter().flatten() {
        let field = json!({"key": "metadata.name", "operator": "In", "values": [node]});
        match term.get_mut("matchFields").and_then(Value::as_array_mut) {
            Some(fields) => fields.push(field),
            None => term["matchFields"] = json!([field]),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_daemon_set_for_one_node_has_its_own_name_selector_and_place() {
        let component = Component::KubeScheduler;
        let context = Context {
            only_node: Some("cp-1".into()),
            ..crate::mutators::test_support::context(component)
        };
        let template = json!({"metadata": {"labels": {"a": "b"}}, "spec": {}});
        let daemon_set = wrap(component, &template, &context);
        assert_eq!(daemon_set["metadata"]["name"], "self-hosted-kube-scheduler-cp-1");
        let selector = &daemon_set["spec"]["selector"]["matchLabels"];
        assert_eq!(selector[NODE_LABEL], "cp-1");
        let template = &daemon_set["spec"]["template"];
        assert_eq!(template["metadata"]["labels"], json!({"a": "b", NODE_LABEL: "cp-1"}));
        let terms = template
            .pointer("/spec/affinity/nodeAffinity/requiredDuringSchedulingIgnoredDuringExecution/nodeSelectorTerms");
        assert_eq!(
            terms.unwrap(),
            &json!([{"matchFields": [{"key": "metadata.name", "operator": "In", "values": ["cp-1"]}]}])
        );
        let long = "n".repeat(100);
        assert_eq!(
            per_node_name(component, &long).len(),
            "self-hosted-kube-scheduler-".len() + 16
        );
    }
}
