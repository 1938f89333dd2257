//! The static Pod that brings a component back when its DaemonSet cannot.
//!
//! It starts without any apiserver: hostPath volumes only, nothing that refers to an API object. It shares its port, so
//! that the self-hosted Pod can take over from it without a gap.

use serde_json::{Value, json};

use crate::component_spec::ComponentSpec;
use crate::daemon_set::SELECTOR_LABEL;
use crate::fields::{FieldError, at, list_at, remove};
use crate::mutators::{
    self, Context, MutationError, drop_carrier, drop_container_ports, drop_leftovers, is_own_probe, merge_go_debug,
    number_probe_ports, permit_port_sharing, set_environment,
};
use crate::names::{Component, NAMESPACE, ROLE_ENV, Role};

/// Name of the fallback's Pod. It differs from the original's: two static Pods of one name would share a mirror Pod.
#[must_use]
pub fn fallback_name(component: Component) -> String {
    format!("{component}-selfhost-fallback")
}

/// Name of the fallback's file in the manifest directory.
#[must_use]
pub fn fallback_file_name(component: Component) -> String {
    format!("selfhost-fallback-{component}.yaml")
}

/// The fallback of `component`, made from its static Pod or from the template of its DaemonSet.
///
/// What [`crate::mutators::default_mutators`] adds for the DaemonSet alone is taken away again: the waiting container,
/// our volumes, the gate, the label that the DaemonSet would claim the Pod by, and the start-up probe that needs our
/// executable.
///
/// # Errors
/// The Pod does not run the component, names a probe port that does not exist, or takes GODEBUG from elsewhere.
pub fn build_fallback(component: Component, pod: &Value) -> Result<Value, MutationError> {
    let mut template = crate::daemon_set::template_of(pod)?;
    drop_leftovers(&mut template)?;
    drop_carrier(&mut template);
    let context = Context {
        component,
        mode: mutators::Mode::Steered,
        build: String::new(),
        node_address: None,
        only_node: Some(String::new()),
        single_node: true,
        original_sha256: None,
        certificates: None,
    };
    permit_port_sharing(&mut template, component)?;
    number_probe_ports(&mut template)?;
    drop_container_ports(&mut template);
    set_environment(&mut template, &context, ROLE_ENV, Role::Fallback.env_value())?;
    merge_go_debug(&mut template, &context)?;
    restore_startup_probe(&mut template, component)?;
    drop_gate(&mut template, component);

    let mut metadata = json!({"name": fallback_name(component), "namespace": NAMESPACE});
    if let (Some(metadata), Some(Value::Object(kept))) = (metadata.as_object_mut(), remove(&mut template, "metadata")) {
        metadata.extend(kept);
    }
    if let Some(labels) = metadata.get_mut("labels")
        && at(labels, &[SELECTOR_LABEL]) == Some(&json!(component.daemon_set_name()))
    {
        remove(labels, SELECTOR_LABEL);
    }
    let mut fallback = json!({"apiVersion": "v1", "kind": "Pod", "metadata": metadata});
    if let (Some(fallback), Value::Object(rest)) = (fallback.as_object_mut(), template) {
        fallback.extend(rest);
    }
    Ok(fallback)
}

/// Puts an HTTP start-up probe in the place of ours, asking what the liveness probe asks.
fn restore_startup_probe(template: &mut Value, component: Component) -> Result<(), FieldError> {
    let spec = ComponentSpec::new(component, template)?;
    if !is_own_probe(spec.container()) {
        return Ok(());
    }
    let action = at(spec.container(), &["livenessProbe", "httpGet"]).cloned();
    let (container, _) = mutators::main_container_mut(template, component)?;
    remove(container, "startupProbe");
    if let (Some(action), Some(container)) = (action, container.as_object_mut()) {
        let probe = json!({"httpGet": action, "periodSeconds": 1, "timeoutSeconds": 15, "failureThreshold": 240});
        container.insert("startupProbe".to_owned(), probe);
    }
    Ok(())
}

fn drop_gate(template: &mut Value, component: Component) {
    let Some(spec) = template.get_mut("spec") else { return };
    let Some(selector) = spec.get_mut("nodeSelector") else {
        return;
    };
    if remove(selector, &component.gate_label()).is_some()
        && selector.as_object().is_some_and(serde_json::Map::is_empty)
    {
        remove(spec, "nodeSelector");
    }
}

/// Whether a container environment marks a Pod as one of ours; see [`ROLE_ENV`].
#[must_use]
pub fn role_of(container: &Value) -> Role {
    let value = list_at(container, &["env"])
        .iter()
        .rfind(|variable| variable.get("name").and_then(Value::as_str) == Some(ROLE_ENV))
        .and_then(|variable| variable.get("value").and_then(Value::as_str));
    [Role::SelfHosted, Role::Fallback]
        .into_iter()
        .find(|role| Some(role.env_value()) == value)
        .unwrap_or(Role::Static)
}
