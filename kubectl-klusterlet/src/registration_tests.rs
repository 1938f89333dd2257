use k8s_openapi::apimachinery::pkg::{api::resource::Quantity, apis::meta::v1::Time};

use super::*;
use crate::{
    facts::{SentClaims, Totals},
    resources::{ManagedNamespace, StatusClaim},
};

fn condition(kind: &str, status: &str) -> Condition {
    Condition {
        type_: kind.into(),
        status: status.into(),
        reason: "Reason".into(),
        message: String::new(),
        last_transition_time: Time(Timestamp::UNIX_EPOCH),
        observed_generation: None,
    }
}

fn cluster(accepts: bool, conditions: &[(&str, &str)]) -> ManagedCluster {
    let mut cluster = new_managed_cluster("c", &spoke("uid"), None);
    cluster.metadata.annotations = None;
    cluster.metadata.uid = Some("u".into());
    cluster.metadata.resource_version = Some("7".into());
    cluster.spec.hub_accepts_client = accepts;
    cluster.status.conditions = conditions
        .iter()
        .map(|(kind, status)| condition(kind, status))
        .collect();
    cluster
}

fn accepted() -> ManagedCluster {
    cluster(true, &[(HUB_ACCEPTED, "True")])
}

fn spoke(uid: &str) -> SpokeIdentity {
    SpokeIdentity {
        uid: uid.into(),
        ..SpokeIdentity::default()
    }
}

#[test]
fn stages_follow_the_conditions() {
    for (accepts, conditions, expected) in [
        (false, &[][..], Stage::Registered),
        (true, &[], Stage::Registered),
        (true, &[(HUB_ACCEPTED, "False")], Stage::Registered),
        (true, &[(HUB_ACCEPTED, "True")], Stage::Accepted),
        (true, &[(HUB_ACCEPTED, "True"), (JOINED, "True")], Stage::Joined),
        (
            true,
            &[(HUB_ACCEPTED, "True"), (JOINED, "True"), (AVAILABLE, "Unknown")],
            Stage::Joined,
        ),
        (
            true,
            &[(HUB_ACCEPTED, "True"), (JOINED, "True"), (AVAILABLE, "True")],
            Stage::Available,
        ),
        (
            false,
            &[(HUB_ACCEPTED, "True"), (JOINED, "True"), (AVAILABLE, "True")],
            Stage::Registered,
        ),
    ] {
        assert_eq!(
            stage(&cluster(accepts, conditions)),
            expected,
            "{accepts} {conditions:?}"
        );
    }
    assert!(is_denied(&cluster(false, &[(HUB_ACCEPTED, "False")])));
    assert!(!is_denied(&cluster(false, &[])), "not accepted yet is not denied");
    assert!(!is_denied(&accepted()));
}

#[test]
fn a_name_is_taken_by_another_identity_only() {
    let with_claim = |value: &str| {
        let mut seen = accepted();
        seen.status.cluster_claims = vec![StatusClaim {
            name: ID_CLAIM.into(),
            value: value.into(),
        }];
        seen
    };
    let with_uid = |uid: &str| new_managed_cluster("c", &spoke(uid), None);
    let with_url = |url: &str| {
        let mut seen = cluster(false, &[]);
        seen.spec.managed_cluster_client_configs = vec![client_config(url, None)];
        seen
    };
    let alive = cluster(true, &[(HUB_ACCEPTED, "True"), (AVAILABLE, "True")]);
    let ours = SpokeIdentity {
        uid: "uid".into(),
        id_claim: Some("id".into()),
        urls: vec!["https://a".into()],
        has_credentials: false,
    };
    let known = SpokeIdentity {
        has_credentials: true,
        ..ours.clone()
    };
    let taken =
        |seen: &ManagedCluster, spoke: &SpokeIdentity| matches!(ownership(Some(seen), spoke), Ownership::Taken(_));

    assert_eq!(ownership(None, &ours), Ownership::Free);
    assert_eq!(
        ownership(Some(&cluster(false, &[])), &ours),
        Ownership::Free,
        "made by the administrator beforehand"
    );
    assert_eq!(ownership(Some(&with_uid("uid")), &ours), Ownership::Ours);
    assert!(taken(&with_uid("other"), &ours) && taken(&with_uid("other"), &known));
    assert_eq!(ownership(Some(&with_claim("id")), &ours), Ownership::Ours);
    assert!(taken(&with_claim("other"), &ours) && taken(&with_claim("other"), &known));
    assert!(taken(&with_url("https://b"), &ours));
    assert_eq!(ownership(Some(&with_url("https://a")), &ours), Ownership::Free);
    assert!(taken(&alive, &ours), "somebody keeps it alive");
    assert_eq!(ownership(Some(&alive), &known), Ownership::Ours);
}

#[test]
fn urls_are_added_and_never_changed() {
    let urls = |texts: &[&str]| texts.iter().map(|text| (*text).to_owned()).collect::<Vec<_>>();
    let identity = SpokeIdentity {
        urls: urls(&["https://a"]),
        ..spoke("x")
    };
    let seen = new_managed_cluster("c", &identity, Some("Y2E="));
    assert_eq!(
        seen.spec.managed_cluster_client_configs[0].ca_bundle.as_deref(),
        Some("Y2E=")
    );
    assert!(!seen.spec.hub_accepts_client);
    assert_eq!(with_urls(&seen, &urls(&["https://a"]), None), None);
    assert_eq!(with_urls(&seen, &[], None), None);
    let more = with_urls(&seen, &urls(&["https://b", "https://a", "https://b"]), Some("eA==")).unwrap();
    let configs: Vec<_> = more
        .spec
        .managed_cluster_client_configs
        .iter()
        .map(|c| (c.url.as_str(), c.ca_bundle.as_deref()))
        .collect();
    assert_eq!(configs, [("https://a", Some("Y2E=")), ("https://b", Some("eA=="))]);
}

fn facts() -> SpokeFacts {
    let quantities = |cpu: &str| BTreeMap::from([("cpu".to_owned(), Quantity(cpu.into()))]);
    SpokeFacts {
        version: Some("v1.36.3".into()),
        totals: Some(Totals {
            capacity: quantities("8"),
            allocatable: quantities("7"),
        }),
        claims: Some(SentClaims {
            claims: vec![StatusClaim {
                name: "a".into(),
                value: "b".into(),
            }],
            cut: vec![],
        }),
        availability: Some(None),
    }
}

fn apply(seen: &ManagedCluster, patch: &Value) -> ManagedCluster {
    fn merge(into: &mut Value, patch: &Value) {
        let Value::Object(patch) = patch else {
            *into = patch.clone();
            return;
        };
        if !into.is_object() {
            *into = json!({});
        }
        for (name, value) in patch {
            if value.is_null() {
                into.as_object_mut().unwrap().remove(name);
            } else {
                merge(&mut into[name], value);
            }
        }
    }
    let mut object = serde_json::to_value(seen).unwrap();
    merge(&mut object, patch);
    serde_json::from_value(object).unwrap()
}

#[test]
fn one_patch_says_all_and_the_next_has_nothing_to_say() {
    let now = Timestamp::now();
    let report = Report {
        facts: facts(),
        rotation: Some(Ok("renewed".into())),
        ..Report::default()
    };
    let seen = accepted();
    let patch = status_patch(&seen, &report, now).unwrap();
    assert_eq!(patch["metadata"], json!({"uid": "u", "resourceVersion": "7"}));
    let after = apply(&seen, &patch);
    assert_eq!(stage(&after), Stage::Available);
    assert_eq!(after.status.version.kubernetes, "v1.36.3");
    assert_eq!(after.status.cluster_claims.len(), 1);
    assert!(conditions::is_true(&after, conditions::CERTIFICATE_ROTATED) && conditions::is_true(&after, HUB_ACCEPTED));
    assert_eq!(status_patch(&after, &report, now), None);
}

#[test]
fn nothing_is_written_before_acceptance_with_wrong_clocks_or_during_deletion() {
    let report = Report {
        facts: facts(),
        ..Report::default()
    };
    let mut deleting = accepted();
    deleting.metadata.deletion_timestamp = Some(Time(Timestamp::UNIX_EPOCH));
    for seen in [
        cluster(false, &[]),
        cluster(true, &[]),
        cluster(false, &[(HUB_ACCEPTED, "False")]),
        cluster(true, &[(HUB_ACCEPTED, "True"), (CLOCK_SYNCED, "False")]),
        deleting,
    ] {
        assert_eq!(status_patch(&seen, &report, Timestamp::now()), None, "{seen:?}");
    }
    assert!(
        status_patch(
            &cluster(true, &[(HUB_ACCEPTED, "True"), (CLOCK_SYNCED, "True")]),
            &report,
            Timestamp::now()
        )
        .is_some()
    );
}

#[test]
fn capacity_of_others_stays_and_allocatable_of_a_cordoned_node_goes() {
    let mut seen = accepted();
    seen.status.capacity = BTreeMap::from([
        ("others".to_owned(), Quantity("1".into())),
        ("cpu".into(), Quantity("8".into())),
    ]);
    seen.status.allocatable = BTreeMap::from([("cpu".to_owned(), Quantity("7".into()))]);
    let mut report = Report {
        facts: facts(),
        ..Report::default()
    };
    report.facts.totals.as_mut().unwrap().allocatable.clear();
    let after = apply(&seen, &status_patch(&seen, &report, Timestamp::now()).unwrap());
    assert!(after.status.capacity.contains_key("others"));
    assert!(after.status.allocatable.is_empty());
}

#[test]
fn unknown_facts_are_not_written() {
    let patch = status_patch(&accepted(), &Report::default(), Timestamp::now()).unwrap();
    let keys: Vec<_> = patch["status"].as_object().unwrap().keys().collect();
    assert_eq!(keys, ["conditions"], "joined, and nothing else");
    assert_eq!(patch["status"]["conditions"].as_array().unwrap().len(), 2);
}

#[test]
fn managed_namespaces_get_their_condition_each() {
    let mut seen = accepted();
    seen.status.managed_namespaces = ["a", "b", "c"]
        .map(|name| ManagedNamespace {
            name: name.into(),
            ..Default::default()
        })
        .to_vec();
    let report = Report {
        namespaces: BTreeMap::from([("a".to_owned(), Ok(())), ("b".to_owned(), Err("forbidden".to_owned()))]),
        ..Report::default()
    };
    let after = apply(&seen, &status_patch(&seen, &report, Timestamp::now()).unwrap());
    let found: Vec<_> = after
        .status
        .managed_namespaces
        .iter()
        .map(|n| n.conditions.first().map(|c| (c.status.as_str(), c.reason.as_str())))
        .collect();
    assert_eq!(
        found,
        [
            Some(("True", "NamespaceApplied")),
            Some(("False", "NamespaceApplyFailed")),
            None
        ]
    );
}

#[test]
fn what_is_not_known_here_survives_a_write() {
    let object = json!({
        "apiVersion": "cluster.open-cluster-management.io/v1", "kind": "ManagedCluster",
        "metadata": {"name": "c"},
        "spec": {"hubAcceptsClient": true, "leaseDurationSeconds": 60, "taints": [{"key": "k", "effect": "NoSelect"}]},
        "status": {"conditions": [], "version": {"kubernetes": "v1"}, "newField": {"a": 1}},
    });
    let read: ManagedCluster = serde_json::from_value(object.clone()).unwrap();
    let written = serde_json::to_value(read).unwrap();
    assert_eq!(written["spec"], object["spec"]);
    assert_eq!(written["status"]["newField"], json!({"a": 1}));
}
