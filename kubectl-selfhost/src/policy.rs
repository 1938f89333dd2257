//! `kubectl selfhost policy`: a ValidatingAdmissionPolicy that keeps our marks on Nodes to those who may make them.
//!
//! Who may create DaemonSets in kube-system has the say over a converted control plane anyway; nobody else gets it by patching
//! a Node. The node's own kubelet, as which the guard reports, may write the reports and nothing else. That it is its own Node,
//! and that no kubelet sets these labels, is NodeRestriction's affair and checked again here.

use crate::names::{Component, FIELD_MANAGER, NODE_PREFIX};
use serde_json::{Value, json};

/// Name of the policy and of its binding.
pub const NAME: &str = "selfhost-node-marks";

/// The keys of a map that were added, changed or removed and begin with our prefix, as an expression in CEL.
fn changed(field: &str) -> String {
    let of = |object: &str| format!("{object}.metadata.?{field}.orValue({{}})");
    let (new, old) = (
        of("object"),
        format!("(oldObject == null ? {{}} : {})", of("oldObject")),
    );
    format!(
        "{new}.filter(key, key.startsWith('{NODE_PREFIX}/') && (!(key in {old}) || {old}[key] != {new}[key])) + \
         {old}.filter(key, key.startsWith('{NODE_PREFIX}/') && !(key in {new}))"
    )
}

/// The policy and its binding.
#[must_use]
pub fn objects() -> [Value; 2] {
    let labels = json!({"app.kubernetes.io/managed-by": FIELD_MANAGER});
    let reports: Vec<String> = Component::ALL
        .iter()
        .map(|component| component.report_annotation())
        .chain([crate::node::guard::api::guard_annotation()])
        .map(|name| format!("'{name}'"))
        .collect();
    let reports = reports.join(", ");
    let admin = "authorizer.group('apps').resource('daemonsets').namespace('kube-system').check('create').allowed()";
    let own = "request.userInfo.username == 'system:node:' + object.metadata.name";
    let policy = json!({
        "apiVersion": "admissionregistration.k8s.io/v1",
        "kind": "ValidatingAdmissionPolicy",
        "metadata": {"name": NAME, "labels": labels},
        "spec": {
            "failurePolicy": "Fail",
            "matchConstraints": {"resourceRules": [{
                "apiGroups": [""],
                "apiVersions": ["v1"],
                "operations": ["CREATE", "UPDATE"],
                // a status may be written with metadata
                "resources": ["nodes", "nodes/status"],
            }]},
            // nothing else of a Node is looked at: no kubelet waits for this policy
            "matchConditions": [{
                "name": "marks-change",
                "expression": format!("({}).size() + ({}).size() > 0", changed("labels"), changed("annotations")),
            }],
            "validations": [
                {
                    "expression": format!("({}).size() == 0 || {admin}", changed("labels")),
                    "message": format!("labels {NODE_PREFIX}/... say where control-plane Pods run: that is for those who may create DaemonSets in kube-system"),
                    "reason": "Forbidden",
                },
                {
                    "expression": format!(
                        "({}).all(key, {own} && key in [{reports}]) || {admin}",
                        changed("annotations")
                    ),
                    "message": format!("annotations {NODE_PREFIX}/... say what serves the control plane: that is for those who may create DaemonSets in kube-system, and reports are for the node's own kubelet"),
                    "reason": "Forbidden",
                },
            ],
        },
    });
    let binding = json!({
        "apiVersion": "admissionregistration.k8s.io/v1",
        "kind": "ValidatingAdmissionPolicyBinding",
        "metadata": {"name": NAME, "labels": labels},
        "spec": {"policyName": NAME, "validationActions": ["Deny"]},
    });
    [policy, binding]
}

/// Both as YAML, for `kubectl apply -f -`.
///
/// # Errors
/// They cannot be written as YAML.
pub fn yaml() -> shared::Result<String> {
    let [policy, binding] = objects();
    Ok(format!(
        "{}---\n{}",
        shared::yaml::to_string(&policy)?,
        shared::yaml::to_string(&binding)?
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_is_labelled_as_ours_and_names_what_the_guard_writes() {
        for object in objects() {
            assert_eq!(object["metadata"]["name"], NAME);
            assert_eq!(
                object["metadata"]["labels"]["app.kubernetes.io/managed-by"],
                FIELD_MANAGER
            );
        }
        let text = yaml().unwrap();
        for component in Component::ALL {
            assert!(text.contains(&component.report_annotation()));
            assert!(
                !text.contains(&component.desired_annotation()),
                "no kubelet states what is wanted"
            );
        }
        assert_eq!(text.matches("\n---\n").count(), 1);
        let back = shared::yaml::first_document(&text).unwrap();
        assert_eq!(back, objects()[0]);
    }
}
