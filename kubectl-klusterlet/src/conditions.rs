//! Conditions of a ManagedCluster: names, reasons, and how they are set.

use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, Time};

use crate::resources::ManagedCluster;

/// By the hub: rights are there.
pub const HUB_ACCEPTED: &str = "HubAcceptedManagedCluster";
/// By the agent, once: it has joined.
pub const JOINED: &str = "ManagedClusterJoined";
/// By the agent, and `Unknown` by the hub when the lease is stale.
pub const AVAILABLE: &str = "ManagedClusterConditionAvailable";
/// By the hub: the clocks of agent and hub agree.
pub const CLOCK_SYNCED: &str = "ManagedClusterConditionClockSynced";
/// By the agent: the last rotation of its certificate.
pub const CERTIFICATE_ROTATED: &str = "ClusterCertificateRotated";
/// On a managed namespace.
pub const NAMESPACE_AVAILABLE: &str = "NamespaceAvailable";

/// Longest message that the API takes.
const LONGEST_MESSAGE: usize = 32_768;

/// A condition that is to be set.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Wanted {
    /// Its type.
    pub kind: &'static str,
    /// `True` or `False`.
    pub status: bool,
    /// CamelCase.
    pub reason: &'static str,
    /// For people.
    pub message: String,
}

impl Wanted {
    /// `ManagedClusterJoined`.
    #[must_use]
    pub fn joined() -> Self {
        Self {
            kind: JOINED,
            status: true,
            reason: "ManagedClusterJoined",
            message: "Managed cluster joined".into(),
        }
    }

    /// `ManagedClusterConditionAvailable`: true, or false with what the spoke's API server says.
    #[must_use]
    pub fn available(trouble: Option<&str>) -> Self {
        Self {
            kind: AVAILABLE,
            status: trouble.is_none(),
            reason: if trouble.is_none() {
                "ManagedClusterAvailable"
            } else {
                "ManagedClusterKubeAPIServerUnavailable"
            },
            message: trouble.map_or_else(
                || "Managed cluster is available".to_owned(),
                |text| format!("The kube-apiserver is not ok, {text}"),
            ),
        }
    }

    /// `ClusterCertificateRotated`.
    #[must_use]
    pub fn rotated(result: &Result<String, String>) -> Self {
        Self {
            kind: CERTIFICATE_ROTATED,
            status: result.is_ok(),
            reason: if result.is_ok() {
                "ClientCertificateUpdated"
            } else {
                "ClientCertificateUpdateFailed"
            },
            message: match result {
                Ok(text) | Err(text) => text.clone(),
            },
        }
    }

    /// `NamespaceAvailable` of a managed namespace.
    #[must_use]
    pub fn namespace(result: &Result<(), String>) -> Self {
        Self {
            kind: NAMESPACE_AVAILABLE,
            status: result.is_ok(),
            reason: if result.is_ok() {
                "NamespaceApplied"
            } else {
                "NamespaceApplyFailed"
            },
            message: match result {
                Ok(()) => "Namespace successfully applied and managed".to_owned(),
                Err(why) => format!("Failed to apply namespace: {why}"),
            },
        }
    }
}

/// Sets a condition; the time of transition changes only when the status does. Whether anything changed.
pub fn set(conditions: &mut Vec<Condition>, wanted: &Wanted, now: Timestamp) -> bool {
    let status = if wanted.status { "True" } else { "False" };
    let mut message = wanted.message.clone();
    while message.len() > LONGEST_MESSAGE {
        message.pop();
    }
    match conditions.iter_mut().find(|condition| condition.type_ == wanted.kind) {
        Some(found) => {
            let same = found.status == status && found.reason == wanted.reason && found.message == message;
            if found.status != status {
                found.last_transition_time = Time(now);
            }
            found.status = status.to_owned();
            found.reason = wanted.reason.to_owned();
            found.message = message;
            !same
        }
        None => {
            conditions.push(Condition {
                type_: wanted.kind.to_owned(),
                status: status.to_owned(),
                reason: wanted.reason.to_owned(),
                message,
                last_transition_time: Time(now),
                observed_generation: None,
            });
            true
        }
    }
}

/// The condition of this type.
#[must_use]
pub fn get<'a>(cluster: &'a ManagedCluster, kind: &str) -> Option<&'a Condition> {
    cluster
        .status
        .conditions
        .iter()
        .find(|condition| condition.type_ == kind)
}

/// Whether the condition is there and `True`.
#[must_use]
pub fn is_true(cluster: &ManagedCluster, kind: &str) -> bool {
    get(cluster, kind).is_some_and(|condition| condition.status == "True")
}

/// Whether the condition is there and `False`.
#[must_use]
pub fn is_false(cluster: &ManagedCluster, kind: &str) -> bool {
    get(cluster, kind).is_some_and(|condition| condition.status == "False")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_time_of_transition_is_that_of_the_status() {
        let (first, second) = (Timestamp::UNIX_EPOCH, Timestamp::now());
        let mut conditions = Vec::new();
        assert!(set(&mut conditions, &Wanted::available(None), first));
        assert!(!set(&mut conditions, &Wanted::available(None), second));
        assert_eq!(conditions[0].last_transition_time.0, first);
        assert!(set(
            &mut conditions,
            &Wanted::available(Some("status code: 500, down")),
            second
        ));
        assert_eq!(conditions[0].last_transition_time.0, second);
        assert_eq!(conditions[0].reason, "ManagedClusterKubeAPIServerUnavailable");
        assert_eq!(
            conditions[0].message,
            "The kube-apiserver is not ok, status code: 500, down"
        );
        assert!(set(&mut conditions, &Wanted::joined(), second));
        assert_eq!(conditions.len(), 2);
    }

    #[test]
    fn messages_are_as_long_as_the_api_takes() {
        let mut conditions = Vec::new();
        set(
            &mut conditions,
            &Wanted::available(Some(&"ä".repeat(40_000))),
            Timestamp::UNIX_EPOCH,
        );
        assert!(conditions[0].message.len() <= 32_768);
    }
}
