//! `deploy`: prints what runs the agent as a Pod of the spoke, with the least rights.

use serde_json::{Value, json};
use shared::{Error, Result, yaml};

use crate::{
    names::{AGENT_LEASE, DEPLOYMENT, FIELD_MANAGER, pending_secret},
    options::FailoverAgentOptions,
};

/// Where the bootstrap kubeconfig is mounted.
const BOOTSTRAP_MOUNT: &str = "/spoke/bootstrap";
/// Port of health and metrics.
const PORT: u16 = 8080;

/// What `deploy` is told beside the agent's options.
#[derive(Clone, Debug)]
pub struct DeployOptions {
    /// Image with the executable at `/kubectl-klusterlet`.
    pub image: String,
    /// Secret, with the key `kubeconfig`, that holds the bootstrap kubeconfig.
    pub bootstrap_secret: String,
}

/// All objects in the order in which they are applied.
///
/// # Errors
/// The cluster's name is missing: a Pod cannot be asked.
pub fn objects(options: &FailoverAgentOptions, deploy: &DeployOptions) -> Result<Vec<Value>> {
    if options.cluster_name.is_empty() {
        return Err(Error::usage("cluster name is empty").hint("give --cluster-name NAME"));
    }
    let namespace = options.namespace(None);
    let labels = json!({"app.kubernetes.io/name": DEPLOYMENT, "app.kubernetes.io/managed-by": FIELD_MANAGER});
    let metadata = json!({"name": DEPLOYMENT, "namespace": namespace, "labels": labels});
    let cluster_wide = json!({"name": DEPLOYMENT, "labels": labels});
    let account = json!([{"kind": "ServiceAccount", "name": DEPLOYMENT, "namespace": namespace}]);
    let secrets = [
        options.hub_kubeconfig_secret.clone(),
        pending_secret(&options.hub_kubeconfig_secret),
    ];
    let binding = |kind: &str| json!({"apiGroup": "rbac.authorization.k8s.io", "kind": kind, "name": DEPLOYMENT});
    Ok(vec![
        json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": namespace}}),
        json!({"apiVersion": "v1", "kind": "ServiceAccount", "metadata": metadata}),
        json!({
            "apiVersion": "rbac.authorization.k8s.io/v1", "kind": "Role", "metadata": metadata,
            "rules": [
                // Creation cannot be limited to a name.
                {"apiGroups": [""], "resources": ["secrets"], "verbs": ["create"]},
                {"apiGroups": [""], "resources": ["secrets"], "resourceNames": secrets, "verbs": ["get", "list", "watch", "update", "delete"]},
                {"apiGroups": ["coordination.k8s.io"], "resources": ["leases"], "verbs": ["create"]},
                {"apiGroups": ["coordination.k8s.io"], "resources": ["leases"], "resourceNames": [AGENT_LEASE], "verbs": ["get", "update"]},
            ],
        }),
        json!({
            "apiVersion": "rbac.authorization.k8s.io/v1", "kind": "RoleBinding", "metadata": metadata,
            "roleRef": binding("Role"), "subjects": account,
        }),
        json!({
            "apiVersion": "rbac.authorization.k8s.io/v1", "kind": "ClusterRole", "metadata": cluster_wide,
            "rules": [
                {"apiGroups": [""], "resources": ["nodes"], "verbs": ["list", "watch"]},
                {"apiGroups": ["cluster.open-cluster-management.io"], "resources": ["clusterclaims"], "verbs": ["get", "list", "watch"]},
                // kube-system names the cluster; the others are those that the hub wants to manage.
                {"apiGroups": [""], "resources": ["namespaces"], "verbs": ["get", "list", "create", "patch"]},
                {"nonResourceURLs": ["/livez", "/healthz", "/version"], "verbs": ["get"]},
            ],
        }),
        json!({
            "apiVersion": "rbac.authorization.k8s.io/v1", "kind": "ClusterRoleBinding", "metadata": cluster_wide,
            "roleRef": binding("ClusterRole"), "subjects": account,
        }),
        deployment(options, deploy, &metadata, &labels),
    ])
}

fn deployment(options: &FailoverAgentOptions, deploy: &DeployOptions, metadata: &Value, labels: &Value) -> Value {
    let mut arguments = vec![
        "run".to_owned(),
        format!("--cluster-name={}", options.cluster_name),
        format!("--bootstrap-kubeconfig={BOOTSTRAP_MOUNT}/kubeconfig"),
        format!("--hub-kubeconfig-secret={}", options.hub_kubeconfig_secret),
        format!("--hub-kubeconfig-dir={}", options.hub_kubeconfig_dir.display()),
        format!(
            "--cluster-healthcheck-period={}s",
            options.cluster_health_check_period.as_secs_f64()
        ),
        format!("--max-custom-cluster-claims={}", options.max_custom_cluster_claims),
        format!("--listen=0.0.0.0:{PORT}"),
    ];
    if !options.agent_name.is_empty() {
        arguments.push(format!("--agent-name={}", options.agent_name));
    }
    if let Some(life) = options.client_cert_expiration {
        arguments.push(format!("--client-cert-expiration={}s", life.as_secs_f64()));
    }
    arguments.extend(
        options
            .spoke_external_server_urls
            .iter()
            .map(|url| format!("--spoke-external-server-urls={url}")),
    );
    arguments.extend(
        options
            .reserved_cluster_claim_suffixes
            .iter()
            .map(|suffix| format!("--reserved-cluster-claim-suffixes={suffix}")),
    );
    let probe = |path: &str, period: u32| json!({"httpGet": {"path": path, "port": PORT}, "periodSeconds": period});
    let selector = json!({"app.kubernetes.io/name": DEPLOYMENT});
    json!({
        "apiVersion": "apps/v1", "kind": "Deployment", "metadata": metadata,
        "spec": {
            "replicas": 1,
            "selector": {"matchLabels": selector},
            "template": {
                "metadata": {"labels": labels},
                "spec": {
                    "serviceAccountName": DEPLOYMENT,
                    // The clusters that join are often one control-plane node and nothing else.
                    "tolerations": [{"key": "node-role.kubernetes.io/control-plane", "operator": "Exists", "effect": "NoSchedule"}],
                    "securityContext": {"runAsNonRoot": true, "runAsUser": 65532, "runAsGroup": 65532, "fsGroup": 65532, "seccompProfile": {"type": "RuntimeDefault"}},
                    "containers": [{
                        "name": "agent",
                        "image": deploy.image,
                        "command": ["/kubectl-klusterlet"],
                        "args": arguments,
                        "ports": [{"name": "metrics", "containerPort": PORT}],
                        "livenessProbe": probe("/healthz", 10),
                        "readinessProbe": probe("/readyz", 5),
                        "resources": {"requests": {"cpu": "5m", "memory": "16Mi"}, "limits": {"memory": "64Mi"}},
                        "securityContext": {"allowPrivilegeEscalation": false, "readOnlyRootFilesystem": true, "capabilities": {"drop": ["ALL"]}},
                        "volumeMounts": [
                            {"name": "bootstrap", "mountPath": BOOTSTRAP_MOUNT, "readOnly": true},
                            {"name": "hub", "mountPath": options.hub_kubeconfig_dir.display().to_string()},
                        ],
                    }],
                    "volumes": [
                        // Without the Secret the agent still works with what the hub signed.
                        {"name": "bootstrap", "secret": {"secretName": deploy.bootstrap_secret, "optional": true}},
                        {"name": "hub", "emptyDir": {"medium": "Memory", "sizeLimit": "1Mi"}},
                    ],
                },
            },
        },
    })
}

/// The objects as one YAML text.
///
/// # Errors
/// As [`objects`].
pub fn manifest(options: &FailoverAgentOptions, deploy: &DeployOptions) -> Result<String> {
    let mut text = String::new();
    for object in objects(options, deploy)? {
        text.push_str("---\n");
        text.push_str(&yaml::to_string(&object)?);
    }
    Ok(text)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_manifest_is_what_is_reviewed() {
        let mut options = FailoverAgentOptions::new();
        let deploy = DeployOptions {
            image: "example.com/klusterlet:1".into(),
            bootstrap_secret: "bootstrap-hub-kubeconfig".into(),
        };
        assert!(manifest(&options, &deploy).is_err(), "a Pod needs a name");
        options.cluster_name = "edge-7".into();
        insta::assert_snapshot!(manifest(&options, &deploy).unwrap());
    }
}
