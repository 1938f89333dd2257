//! Names that a hub of Open Cluster Management expects (its repository, `pkg/registration`), and our own.

/// Prefix of users and groups of agents; with `CLUSTER:AGENT` behind it, the user of an agent.
pub const SUBJECT_PREFIX: &str = "system:open-cluster-management:";
/// The group of all agents.
pub const ALL_CLUSTERS_GROUP: &str = "system:open-cluster-management:managed-clusters";
/// Label of a certificate request: the cluster's name.
pub const CLUSTER_NAME_LABEL: &str = "open-cluster-management.io/cluster-name";
/// Label of requests of addons, which are none of ours.
pub const ADDON_NAME_LABEL: &str = "open-cluster-management.io/addon-name";
/// The signer of client certificates.
pub const SIGNER: &str = "kubernetes.io/kube-apiserver-client";
/// The group whose members may register clusters.
pub const BOOTSTRAP_GROUP: &str = "system:bootstrappers:managedcluster";
/// Prefix of the users of bootstrap tokens.
pub const BOOTSTRAP_TOKEN_PREFIX: &str = "system:bootstrap:";
/// End of the name of the ServiceAccount that registers clusters, whatever its namespace is.
pub const BOOTSTRAP_ACCOUNT: &str = ":agent-registration-bootstrap";
/// Open Cluster Management's own agent makes no more requests when this many are there for one cluster.
pub const PEER_REQUEST_LIMIT: usize = 10;
/// The Lease of a cluster, in the hub's namespace of the cluster's name.
pub const CLUSTER_LEASE: &str = "managed-cluster-lease";
/// Annotation of the ManagedCluster that tells which spoke registered it: the UID of its namespace `kube-system`. A hub
/// lets an agent set annotations with this prefix only.
pub const SPOKE_UID_ANNOTATION: &str = "agent.open-cluster-management.io/spoke-uid";
/// Prefix of the label of namespaces that a hub manages.
pub const CLUSTER_SET_LABEL_PREFIX: &str = "clusterset.open-cluster-management.io/";
/// Label of a claim that stays on the spoke.
pub const SPOKE_ONLY_LABEL: &str = "open-cluster-management.io/spoke-only";
/// The claim that identifies a cluster.
pub const ID_CLAIM: &str = "id.k8s.io";
/// Claims that are sent before all others and never cut.
pub const RESERVED_CLAIMS: [&str; 4] = [
    ID_CLAIM,
    "kubeversion.open-cluster-management.io",
    "platform.open-cluster-management.io",
    "product.open-cluster-management.io",
];

/// Namespace of the agent where it is in no Pod and nothing else was said.
pub const DEFAULT_NAMESPACE: &str = "open-cluster-management";
/// Where a Pod finds the namespace of its ServiceAccount.
pub const SERVICE_ACCOUNT_NAMESPACE_FILE: &str = "/var/run/secrets/kubernetes.io/serviceaccount/namespace";
/// Secret with the credentials for the hub.
pub const HUB_KUBECONFIG_SECRET: &str = "hub-kubeconfig-secret";
/// Directory that they are copied to.
pub const HUB_KUBECONFIG_DIR: &str = "/spoke/hub-kubeconfig";
/// The Lease on the spoke that only one agent holds.
pub const AGENT_LEASE: &str = "kubectl-klusterlet-agent";
/// Who wrote a field.
pub const FIELD_MANAGER: &str = "kubectl-klusterlet";
/// Name of the objects that `deploy` prints.
pub const DEPLOYMENT: &str = "kubectl-klusterlet-agent";

/// Keys of the Secret and names of the files.
pub mod key {
    /// The kubeconfig for the hub, which names the two PEM files by relative paths.
    pub const KUBECONFIG: &str = "kubeconfig";
    /// The certificate chain.
    pub const CERTIFICATE: &str = "tls.crt";
    /// The private key.
    pub const KEY: &str = "tls.key";
    /// The cluster's name on the hub.
    pub const CLUSTER_NAME: &str = "cluster-name";
    /// The agent's name.
    pub const AGENT_NAME: &str = "agent-name";
    /// All of them.
    pub const ALL: [&str; 5] = [KUBECONFIG, CERTIFICATE, KEY, CLUSTER_NAME, AGENT_NAME];
}

/// Name of the Secret that keeps a request that is under way.
#[must_use]
pub fn pending_secret(hub_kubeconfig_secret: &str) -> String {
    format!("{hub_kubeconfig_secret}-pending")
}

/// The user of an agent, which is the common name of its certificate.
#[must_use]
pub fn agent_user(cluster: &str, agent: &str) -> String {
    format!("{SUBJECT_PREFIX}{cluster}:{agent}")
}

/// The group of the agents of a cluster.
#[must_use]
pub fn cluster_group(cluster: &str) -> String {
    format!("{SUBJECT_PREFIX}{cluster}")
}

/// Cluster and agent of a user name; `None` where it is not one of an agent.
#[must_use]
pub fn parse_agent_user(user: &str) -> Option<(&str, &str)> {
    let (cluster, agent) = user.strip_prefix(SUBJECT_PREFIX)?.split_once(':')?;
    (!cluster.is_empty() && !agent.is_empty() && !agent.contains(':')).then_some((cluster, agent))
}

/// Whether it can be the name of a ManagedCluster: a DNS label of at most 63 characters, as it also names a namespace.
#[must_use]
pub fn is_dns_label(name: &str) -> bool {
    let inner = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'-';
    !name.is_empty() && name.len() <= 63 && name.bytes().all(inner) && !name.starts_with('-') && !name.ends_with('-')
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn users_of_agents_have_exactly_two_parts() {
        for (user, parts) in [
            ("system:open-cluster-management:a:b", Some(("a", "b"))),
            ("system:open-cluster-management:a", None),
            ("system:open-cluster-management:a:b:c", None),
            ("system:open-cluster-management::b", None),
            ("system:open-cluster-management:a:", None),
            ("test", None),
        ] {
            assert_eq!(parse_agent_user(user), parts, "{user}");
        }
        assert_eq!(parse_agent_user(&agent_user("c", "x")), Some(("c", "x")));
    }

    #[test]
    fn names_of_clusters_are_dns_labels() {
        let longest = "a".repeat(63);
        for name in ["a", "edge-7", "7", &longest] {
            assert!(is_dns_label(name), "{name}");
        }
        let too_long = "a".repeat(64);
        for name in ["", "-a", "a-", "A", "a.b", "test-cluster-!@#", "ä", &too_long] {
            assert!(!is_dns_label(name), "{name}");
        }
    }
}
