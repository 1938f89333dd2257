//! The custom resources of Open Cluster Management that the agent reads and writes, with the fields it needs; others are
//! carried along where an object is written back.

use std::collections::BTreeMap;

use k8s_openapi::apimachinery::pkg::{
    api::resource::Quantity,
    apis::meta::v1::{Condition, ObjectMeta},
};
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

/// Makes a struct with a field `metadata` known to the client. The third name is the plural in URLs.
macro_rules! resource {
    ($kind:ident, $name:literal, $plural:literal, $group:literal, $version:literal) => {
        impl kube::Resource for $kind {
            type DynamicType = ();
            type Scope = k8s_openapi::ClusterResourceScope;

            fn kind((): &()) -> std::borrow::Cow<'_, str> {
                $name.into()
            }
            fn group((): &()) -> std::borrow::Cow<'_, str> {
                $group.into()
            }
            fn version((): &()) -> std::borrow::Cow<'_, str> {
                $version.into()
            }
            fn plural((): &()) -> std::borrow::Cow<'_, str> {
                $plural.into()
            }
            fn meta(&self) -> &ObjectMeta {
                &self.metadata
            }
            fn meta_mut(&mut self) -> &mut ObjectMeta {
                &mut self.metadata
            }
        }
    };
}

/// `cluster.open-cluster-management.io/v1 ManagedCluster`.
#[derive(Clone, Debug, Default, PartialEq, Deserialize, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct ManagedCluster {
    /// `apiVersion`; written, and not needed to read.
    #[serde(default = "cluster_api_version")]
    pub api_version: String,
    /// `kind`.
    #[serde(default = "cluster_kind")]
    pub kind: String,
    /// Name, labels and the like.
    pub metadata: ObjectMeta,
    /// What the hub's administrator and the agent want.
    #[serde(default)]
    pub spec: ManagedClusterSpec,
    /// What is.
    #[serde(default)]
    pub status: ManagedClusterStatus,
}
resource!(
    ManagedCluster,
    "ManagedCluster",
    "managedclusters",
    "cluster.open-cluster-management.io",
    "v1"
);

fn cluster_api_version() -> String {
    "cluster.open-cluster-management.io/v1".to_owned()
}

fn cluster_kind() -> String {
    "ManagedCluster".to_owned()
}

/// Spec of a ManagedCluster.
#[derive(Clone, Debug, Default, PartialEq, Deserialize, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct ManagedClusterSpec {
    /// Addresses at which the hub's users reach the spoke.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub managed_cluster_client_configs: Vec<ClientConfig>,
    /// Whether the hub's administrator accepts the cluster.
    #[serde(default)]
    pub hub_accepts_client: bool,
    /// How long a lease is good, in seconds; the agent renews it this often. The hub's default is 60.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub lease_duration_seconds: Option<i32>,
    /// Fields that are only carried along.
    #[serde(flatten)]
    pub other: Map<String, Value>,
}

/// An address of the spoke.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct ClientConfig {
    /// https URL.
    pub url: String,
    /// Certificate authorities, base64 of PEM.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ca_bundle: Option<String>,
}

/// Status of a ManagedCluster.
#[derive(Clone, Debug, Default, PartialEq, Deserialize, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct ManagedClusterStatus {
    /// Who says what about the cluster.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub conditions: Vec<Condition>,
    /// Sum over all nodes.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub capacity: BTreeMap<String, Quantity>,
    /// Sum over the nodes that take Pods.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub allocatable: BTreeMap<String, Quantity>,
    /// Version of the spoke.
    #[serde(default)]
    pub version: ClusterVersion,
    /// Claims of the spoke.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub cluster_claims: Vec<StatusClaim>,
    /// Namespaces that the hub wants on the spoke.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub managed_namespaces: Vec<ManagedNamespace>,
    /// Fields that are only carried along.
    #[serde(flatten)]
    pub other: Map<String, Value>,
}

/// Version of the spoke.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize, Serialize)]
pub struct ClusterVersion {
    /// Kubernetes, such as `v1.36.3`.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub kubernetes: String,
}

/// A claim in the status of a ManagedCluster.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize, Serialize)]
pub struct StatusClaim {
    /// Name of the ClusterClaim.
    pub name: String,
    /// Its value.
    pub value: String,
}

/// A namespace that the hub wants on the spoke.
#[derive(Clone, Debug, Default, PartialEq, Deserialize, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct ManagedNamespace {
    /// Its name.
    pub name: String,
    /// The set of clusters for whose sake it is there.
    #[serde(default)]
    pub cluster_set: String,
    /// What the agent made of it.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub conditions: Vec<Condition>,
}

/// `cluster.open-cluster-management.io/v1alpha1 ClusterClaim`, on the spoke.
#[derive(Clone, Debug, Default, PartialEq, Deserialize, Serialize)]
pub struct ClusterClaim {
    /// Name and labels.
    pub metadata: ObjectMeta,
    /// The value.
    #[serde(default)]
    pub spec: ClusterClaimSpec,
}
resource!(
    ClusterClaim,
    "ClusterClaim",
    "clusterclaims",
    "cluster.open-cluster-management.io",
    "v1alpha1"
);

/// Spec of a ClusterClaim.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize, Serialize)]
pub struct ClusterClaimSpec {
    /// Any text.
    #[serde(default)]
    pub value: String,
}

/// A Node with the few fields that are summed up: the whole of a thousand Nodes would be large.
#[derive(Clone, Debug, Default, PartialEq, Deserialize, Serialize)]
pub struct SlimNode {
    /// Only the name is used.
    pub metadata: ObjectMeta,
    /// Whether it takes Pods.
    #[serde(default)]
    pub spec: SlimNodeSpec,
    /// What it has.
    #[serde(default)]
    pub status: SlimNodeStatus,
}
resource!(SlimNode, "Node", "nodes", "", "v1");

/// Spec of a Node.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize, Serialize)]
pub struct SlimNodeSpec {
    /// Cordoned.
    #[serde(default)]
    pub unschedulable: bool,
}

/// Status of a Node.
#[derive(Clone, Debug, Default, PartialEq, Deserialize, Serialize)]
pub struct SlimNodeStatus {
    /// All that it has.
    #[serde(default)]
    pub capacity: BTreeMap<String, Quantity>,
    /// What of it Pods may use.
    #[serde(default)]
    pub allocatable: BTreeMap<String, Quantity>,
}

/// `work.open-cluster-management.io/v1 AppliedManifestWork`, on the spoke: what of a hub's work is still there.
#[derive(Clone, Debug, Default, PartialEq, Deserialize, Serialize)]
pub struct AppliedManifestWork {
    /// Only the name is used.
    pub metadata: ObjectMeta,
}
resource!(
    AppliedManifestWork,
    "AppliedManifestWork",
    "appliedmanifestworks",
    "work.open-cluster-management.io",
    "v1"
);
