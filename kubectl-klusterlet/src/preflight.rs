//! What both APIs have to allow.

use k8s_openapi::api::authorization::v1::ResourceAttributes;
use shared::{Result, kube_client::Cluster};

use crate::{hub::may, names::AGENT_LEASE};

/// A permission, in the words of `kubectl auth can-i`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Permission {
    /// API group.
    pub group: &'static str,
    /// Resource.
    pub resource: &'static str,
    /// Verb.
    pub verb: &'static str,
    /// Namespace, for those within one.
    pub namespace: Option<String>,
    /// Object; `None` for all.
    pub name: Option<String>,
    /// Whether the agent works without it.
    pub is_optional: bool,
}

impl Permission {
    /// In words.
    #[must_use]
    pub fn describe(&self) -> String {
        let group = if self.group.is_empty() {
            String::new()
        } else {
            format!(".{}", self.group)
        };
        let name = self.name.as_ref().map_or_else(String::new, |name| format!("/{name}"));
        let namespace = self
            .namespace
            .as_ref()
            .map_or_else(String::new, |namespace| format!(" in namespace {namespace}"));
        format!("{} {}{group}{name}{namespace}", self.verb, self.resource)
    }

    fn attributes(&self) -> ResourceAttributes {
        ResourceAttributes {
            group: Some(self.group.to_owned()),
            resource: Some(self.resource.to_owned()),
            verb: Some(self.verb.to_owned()),
            namespace: self.namespace.clone(),
            name: self.name.clone(),
            ..ResourceAttributes::default()
        }
    }
}

/// What the bootstrap credentials need on the hub: the checks of Open Cluster Management's own agent.
#[must_use]
pub fn of_bootstrap() -> Vec<Permission> {
    let permission = |group, resource, verb| Permission {
        group,
        resource,
        verb,
        namespace: None,
        name: None,
        is_optional: false,
    };
    let mut all: Vec<_> = ["create", "get"]
        .map(|verb| permission("cluster.open-cluster-management.io", "managedclusters", verb))
        .to_vec();
    all.extend(
        ["create", "get", "list", "watch"]
            .map(|verb| permission("certificates.k8s.io", "certificatesigningrequests", verb)),
    );
    all
}

/// What the agent needs on the spoke.
#[must_use]
pub fn of_spoke(namespace: &str, secrets: &[String]) -> Vec<Permission> {
    let mut all = Vec::new();
    let mut add = |group, resource, verb, namespace: Option<&str>, name: Option<&str>, is_optional| {
        all.push(Permission {
            group,
            resource,
            verb,
            namespace: namespace.map(str::to_owned),
            name: name.map(str::to_owned),
            is_optional,
        });
    };
    for secret in secrets {
        for verb in ["get", "update", "delete"] {
            add("", "secrets", verb, Some(namespace), Some(secret), false);
        }
    }
    add("", "secrets", "create", Some(namespace), None, false);
    for verb in ["get", "update"] {
        add(
            "coordination.k8s.io",
            "leases",
            verb,
            Some(namespace),
            Some(AGENT_LEASE),
            false,
        );
    }
    add("coordination.k8s.io", "leases", "create", Some(namespace), None, false);
    add("", "namespaces", "get", None, Some("kube-system"), false);
    for verb in ["list", "watch"] {
        add("", "nodes", verb, None, None, true);
        add(
            "cluster.open-cluster-management.io",
            "clusterclaims",
            verb,
            None,
            None,
            true,
        );
    }
    all
}

/// The permissions that are missing.
///
/// # Errors
/// The API does not answer.
pub async fn missing(cluster: &Cluster, permissions: &[Permission]) -> Result<Vec<Permission>> {
    let asked = permissions
        .iter()
        .map(|permission| may(cluster, permission.attributes()));
    let answers = futures_util::future::try_join_all(asked).await?;
    Ok(permissions
        .iter()
        .zip(answers)
        .filter(|(_, allowed)| !allowed)
        .map(|(permission, _)| permission.clone())
        .collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn permissions_read_like_those_of_kubectl() {
        let hub: Vec<_> = of_bootstrap().iter().map(Permission::describe).collect();
        assert_eq!(hub[0], "create managedclusters.cluster.open-cluster-management.io");
        assert_eq!(hub.len(), 6);
        let spoke = of_spoke("agents", &["a".into()]);
        assert!(
            spoke
                .iter()
                .any(|permission| permission.describe() == "get secrets/a in namespace agents")
        );
        assert!(
            spoke
                .iter()
                .filter(|permission| permission.is_optional)
                .all(|permission| ["list", "watch"].contains(&permission.verb))
        );
    }
}
