//! What a ManagedCluster says about this spoke, and what is to be written to it.

use std::collections::BTreeMap;

use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, ObjectMeta};
use serde_json::{Map, Value, json};

use crate::{
    conditions::{self, AVAILABLE, CLOCK_SYNCED, HUB_ACCEPTED, JOINED, Wanted},
    facts::SpokeFacts,
    names::{ID_CLAIM, SPOKE_UID_ANNOTATION},
    resources::{ClientConfig, ManagedCluster, ManagedClusterSpec},
};

/// How far a cluster is, as its hub shows it. Each stage includes those before.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Stage {
    /// The ManagedCluster is there.
    Registered,
    /// The administrator accepts it, and the agent's rights are there.
    Accepted,
    /// The agent has joined.
    Joined,
    /// The hub sees it as available.
    Available,
}

/// The stage of a ManagedCluster.
#[must_use]
pub fn stage(cluster: &ManagedCluster) -> Stage {
    if !is_accepted(cluster) {
        Stage::Registered
    } else if !conditions::is_true(cluster, JOINED) {
        Stage::Accepted
    } else if !conditions::is_true(cluster, AVAILABLE) {
        Stage::Joined
    } else {
        Stage::Available
    }
}

/// Whether the agent may act: the administrator accepts, and the hub has made the rights.
#[must_use]
pub fn is_accepted(cluster: &ManagedCluster) -> bool {
    cluster.spec.hub_accepts_client && conditions::is_true(cluster, HUB_ACCEPTED)
}

/// Whether the administrator took the acceptance back.
#[must_use]
pub fn is_denied(cluster: &ManagedCluster) -> bool {
    !cluster.spec.hub_accepts_client && conditions::is_false(cluster, HUB_ACCEPTED)
}

/// What tells this spoke from others.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SpokeIdentity {
    /// UID of its namespace `kube-system`.
    pub uid: String,
    /// Its claim `id.k8s.io`, if it has one.
    pub id_claim: Option<String>,
    /// The external addresses that were given.
    pub urls: Vec<String>,
    /// Whether it keeps credentials, or a request, for this name.
    pub has_credentials: bool,
}

/// Whose a ManagedCluster is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Ownership {
    /// Nobody's yet.
    Free,
    /// This spoke's.
    Ours,
    /// Another spoke's, for this reason.
    Taken(String),
}

/// Whose the ManagedCluster of the wanted name is.
#[must_use]
pub fn ownership(seen: Option<&ManagedCluster>, spoke: &SpokeIdentity) -> Ownership {
    let Some(seen) = seen else {
        return Ownership::Free;
    };
    let annotation = seen
        .metadata
        .annotations
        .as_ref()
        .and_then(|all| all.get(SPOKE_UID_ANNOTATION));
    match annotation {
        Some(uid) if *uid == spoke.uid => return Ownership::Ours,
        Some(uid) => {
            return Ownership::Taken(format!(
                "the spoke whose namespace kube-system has the UID {uid} registered it"
            ));
        }
        None => {}
    }
    let claimed = seen
        .status
        .cluster_claims
        .iter()
        .find(|claim| claim.name == ID_CLAIM)
        .map(|claim| claim.value.as_str());
    match (claimed, spoke.id_claim.as_deref()) {
        (Some(theirs), Some(ours)) if theirs == ours => return Ownership::Ours,
        (Some(theirs), Some(ours)) => {
            return Ownership::Taken(format!(
                "its claim {ID_CLAIM} is {theirs:?}, and that of this spoke is {ours:?}"
            ));
        }
        _ => {}
    }
    if spoke.has_credentials {
        return Ownership::Ours;
    }
    let urls: Vec<_> = seen
        .spec
        .managed_cluster_client_configs
        .iter()
        .map(|config| config.url.as_str())
        .collect();
    if !urls.is_empty() && !spoke.urls.is_empty() && !spoke.urls.iter().any(|url| urls.contains(&url.as_str())) {
        return Ownership::Taken(format!("its addresses are {}", urls.join(", ")));
    }
    if conditions::is_true(seen, AVAILABLE) {
        return Ownership::Taken("another agent keeps its lease alive".to_owned());
    }
    Ownership::Free
}

/// The object that a spoke registers itself with.
#[must_use]
pub fn new_managed_cluster(name: &str, spoke: &SpokeIdentity, ca_bundle: Option<&str>) -> ManagedCluster {
    ManagedCluster {
        api_version: "cluster.open-cluster-management.io/v1".into(),
        kind: "ManagedCluster".into(),
        metadata: ObjectMeta {
            name: Some(name.to_owned()),
            annotations: Some(BTreeMap::from([(SPOKE_UID_ANNOTATION.to_owned(), spoke.uid.clone())])),
            ..ObjectMeta::default()
        },
        spec: ManagedClusterSpec {
            managed_cluster_client_configs: spoke.urls.iter().map(|url| client_config(url, ca_bundle)).collect(),
            ..ManagedClusterSpec::default()
        },
        ..ManagedCluster::default()
    }
}

fn client_config(url: &str, ca_bundle: Option<&str>) -> ClientConfig {
    ClientConfig {
        url: url.to_owned(),
        ca_bundle: ca_bundle.map(str::to_owned),
    }
}

/// The object with the addresses that it lacks; `None` where it lacks none. What is there is never removed or changed.
#[must_use]
pub fn with_urls(seen: &ManagedCluster, urls: &[String], ca_bundle: Option<&str>) -> Option<ManagedCluster> {
    let mut changed = seen.clone();
    let configs = &mut changed.spec.managed_cluster_client_configs;
    let before = configs.len();
    for url in urls {
        if !configs.iter().any(|config| config.url == *url) {
            configs.push(client_config(url, ca_bundle));
        }
    }
    (configs.len() > before).then_some(changed)
}

/// What the agent wants the status to say.
#[derive(Clone, Debug, Default)]
pub struct Report {
    /// About the spoke.
    pub facts: SpokeFacts,
    /// About its certificate: its life, or why it could not be renewed. `None`: nothing happened that the hub does not know.
    pub rotation: Option<Result<String, String>>,
    /// About the namespaces that the hub wants, by name.
    pub namespaces: BTreeMap<String, Result<(), String>>,
}

/// The merge patch that brings the status to what the agent wants, with the object's UID and version so that nobody's
/// change is lost; `None` where nothing is to be written.
///
/// Nothing is written while the hub has not accepted, or says that the clocks differ: then it would take the times in it
/// for wrong.
#[must_use]
pub fn status_patch(seen: &ManagedCluster, report: &Report, now: Timestamp) -> Option<Value> {
    if !is_accepted(seen) || conditions::is_false(seen, CLOCK_SYNCED) || seen.metadata.deletion_timestamp.is_some() {
        return None;
    }
    let mut status = Map::new();
    conditions_patch(seen, report, now, &mut status);
    let facts = &report.facts;
    if let Some(version) = &facts.version
        && seen.status.version.kubernetes != *version
    {
        status.insert("version".into(), json!({"kubernetes": version}));
    }
    if let Some(totals) = &facts.totals {
        let mut capacity = Map::new();
        for (name, quantity) in &totals.capacity {
            if seen.status.capacity.get(name) != Some(quantity) {
                capacity.insert(name.clone(), json!(quantity));
            }
        }
        let mut allocatable = Map::new();
        for (name, quantity) in &totals.allocatable {
            if seen.status.allocatable.get(name) != Some(quantity) {
                allocatable.insert(name.clone(), json!(quantity));
            }
        }
        for name in seen
            .status
            .allocatable
            .keys()
            .filter(|name| !totals.allocatable.contains_key(*name))
        {
            allocatable.insert(name.clone(), Value::Null);
        }
        for (name, map) in [("capacity", capacity), ("allocatable", allocatable)] {
            if !map.is_empty() {
                status.insert(name.into(), Value::Object(map));
            }
        }
    }
    if let Some(sent) = &facts.claims
        && seen.status.cluster_claims != sent.claims
    {
        status.insert("clusterClaims".into(), json!(sent.claims));
    }
    if !report.namespaces.is_empty() {
        let mut namespaces = seen.status.managed_namespaces.clone();
        let mut changed = false;
        for namespace in &mut namespaces {
            if let Some(result) = report.namespaces.get(&namespace.name) {
                changed |= conditions::set(&mut namespace.conditions, &Wanted::namespace(result), now);
            }
        }
        if changed {
            status.insert("managedNamespaces".into(), json!(namespaces));
        }
    }
    if status.is_empty() {
        return None;
    }
    Some(json!({
        "metadata": {"uid": seen.metadata.uid, "resourceVersion": seen.metadata.resource_version},
        "status": status,
    }))
}

fn conditions_patch(seen: &ManagedCluster, report: &Report, now: Timestamp, status: &mut Map<String, Value>) {
    let mut all: Vec<Condition> = seen.status.conditions.clone();
    let mut changed = false;
    // Set once; nobody resets it.
    if !conditions::is_true(seen, JOINED) {
        changed |= conditions::set(&mut all, &Wanted::joined(), now);
    }
    if let Some(verdict) = &report.facts.availability {
        changed |= conditions::set(&mut all, &Wanted::available(verdict.as_deref()), now);
    }
    if let Some(result) = &report.rotation {
        changed |= conditions::set(&mut all, &Wanted::rotated(result), now);
    }
    if changed {
        status.insert("conditions".into(), json!(all));
    }
}

#[cfg(test)]
#[path = "registration_tests.rs"]
mod tests;
