//! Admission webhooks that can keep the Pods of a DaemonSet from being created when they do not answer.

use crate::names::NAMESPACE;
use k8s_openapi::api::admissionregistration::v1::{
    MutatingWebhookConfiguration, RuleWithOperations, ValidatingWebhookConfiguration,
};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::LabelSelector;
use std::collections::BTreeMap;

/// One webhook.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BlockingWebhook {
    /// Kind, configuration and webhook.
    pub name: String,
}

/// The webhooks with `failurePolicy: Fail` (the default) that are asked when a Pod is created in kube-system.
#[must_use]
pub fn blocking_webhooks(
    validating: &[ValidatingWebhookConfiguration],
    mutating: &[MutatingWebhookConfiguration],
) -> Vec<BlockingWebhook> {
    let mut found = Vec::new();
    for configuration in validating {
        for webhook in configuration.webhooks.iter().flatten() {
            if fails(webhook.failure_policy.as_deref())
                && asked_for_pods(webhook.rules.as_deref())
                && selects_kube_system(webhook.namespace_selector.as_ref())
            {
                found.push(named(
                    "ValidatingWebhookConfiguration",
                    configuration.metadata.name.as_deref(),
                    &webhook.name,
                ));
            }
        }
    }
    for configuration in mutating {
        for webhook in configuration.webhooks.iter().flatten() {
            if fails(webhook.failure_policy.as_deref())
                && asked_for_pods(webhook.rules.as_deref())
                && selects_kube_system(webhook.namespace_selector.as_ref())
            {
                found.push(named(
                    "MutatingWebhookConfiguration",
                    configuration.metadata.name.as_deref(),
                    &webhook.name,
                ));
            }
        }
    }
    found
}

fn named(kind: &str, configuration: Option<&str>, webhook: &str) -> BlockingWebhook {
    BlockingWebhook {
        name: format!("{kind} {}, webhook {webhook}", configuration.unwrap_or_default()),
    }
}

fn fails(policy: Option<&str>) -> bool {
    policy != Some("Ignore")
}

fn asked_for_pods(rules: Option<&[RuleWithOperations]>) -> bool {
    let any =
        |list: &Option<Vec<String>>, values: &[&str]| list.iter().flatten().any(|item| values.contains(&item.as_str()));
    rules.into_iter().flatten().any(|rule| {
        any(&rule.operations, &["*", "CREATE"])
            && any(&rule.api_groups, &["*", ""])
            && any(&rule.resources, &["*", "*/*", "pods"])
            && rule.scope.as_deref() != Some("Cluster")
    })
}

/// Whether a selector matches kube-system, of which only the label `kubernetes.io/metadata.name` is sure.
fn selects_kube_system(selector: Option<&LabelSelector>) -> bool {
    let labels = BTreeMap::from([("kubernetes.io/metadata.name", NAMESPACE)]);
    let Some(selector) = selector else { return true };
    let exact = selector
        .match_labels
        .iter()
        .flatten()
        .all(|(key, value)| labels.get(key.as_str()) == Some(&value.as_str()));
    exact
        && selector.match_expressions.iter().flatten().all(|expression| {
            let value = labels.get(expression.key.as_str());
            let among = || value.is_some_and(|value| expression.values.iter().flatten().any(|item| item == value));
            match expression.operator.as_str() {
                "In" => among(),
                "NotIn" => !among(),
                "Exists" => value.is_some(),
                "DoesNotExist" => value.is_none(),
                _ => true,
            }
        })
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn found(webhook: &serde_json::Value) -> usize {
        let configuration = json!({"metadata": {"name": "policy"}, "webhooks": [webhook]});
        let validating = serde_json::from_value(configuration.clone()).unwrap();
        let mutating = serde_json::from_value(configuration).unwrap();
        blocking_webhooks(&[validating], &[mutating]).len()
    }

    fn webhook(extra: &serde_json::Value) -> serde_json::Value {
        let mut webhook = json!({
            "name": "pods.example.test", "clientConfig": {}, "admissionReviewVersions": ["v1"], "sideEffects": "None",
            "rules": [{"operations": ["CREATE"], "apiGroups": [""], "apiVersions": ["v1"], "resources": ["pods"]}],
        });
        webhook
            .as_object_mut()
            .unwrap()
            .extend(extra.as_object().unwrap().clone());
        webhook
    }

    #[test]
    fn only_webhooks_that_can_block_pods_in_kube_system_are_named() {
        let selector = |operator: &str, values: &[&str]| {
            json!({"namespaceSelector": {"matchExpressions": [
                {"key": "kubernetes.io/metadata.name", "operator": operator, "values": values}]}})
        };
        for (extra, expected) in [
            (json!({}), 2),
            (json!({"failurePolicy": "Fail"}), 2),
            (json!({"failurePolicy": "Ignore"}), 0),
            (selector("NotIn", &["kube-system", "a"]), 0),
            (selector("NotIn", &["a"]), 2),
            (selector("In", &["a"]), 0),
            (json!({"namespaceSelector": {"matchLabels": {"team": "a"}}}), 0),
            (
                json!({"rules": [{"operations": ["*"], "apiGroups": ["*"], "apiVersions": ["*"], "resources": ["*/*"]}]}),
                2,
            ),
            (
                json!({"rules": [{"operations": ["UPDATE"], "apiGroups": [""], "apiVersions": ["v1"], "resources": ["pods"]}]}),
                0,
            ),
            (
                json!({"rules": [{"operations": ["CREATE"], "apiGroups": ["apps"], "apiVersions": ["v1"], "resources": ["*"]}]}),
                0,
            ),
        ] {
            assert_eq!(found(&webhook(&extra)), expected, "{extra}");
        }
    }
}
