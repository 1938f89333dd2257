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
    if let Some(sha256) = &context.original_sha256 {
        metadata.insert("annotations".to_owned(), json!({ORIGINAL_SHA256_ANNOTATION: sha256}));
    }
    // Steered, a new Pod runs beside the old one before that one goes. In gap mode two cannot run at once, and an
    // edit of the template must not stop the control plane unasked.
    let strategy = match context.mode {
        Mode::Steered => json!({"type": "RollingUpdate", "rollingUpdate": {"maxSurge": 1, "maxUnavailable": 0}}),
        Mode::Gap => json!({"type": "OnDelete"}),
    };
    let mut spec = json!({
        "selector": {"matchLabels": self_hosted_component_labels(component)},
        "updateStrategy": strategy,
    });
    if context.mode == Mode::Steered {
        spec["minReadySeconds"] = json!(MIN_READY_SECONDS);
    }
    spec["revisionHistoryLimit"] = json!(10);
    spec["template"] = template.clone();
    json!({"apiVersion": "apps/v1", "kind": "DaemonSet", "metadata": metadata, "spec": spec})
}
