//! What is waited for and what is not, over kubeadm's manifests.

use super::*;
use crate::manifest::read_directory;
use crate::observe::{NodeFacts, PodFacts, pod_facts};
use jiff::SignedDuration;
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::path::Path;

const NOW: Timestamp = Timestamp::constant(1_800_000_000, 0);
const SCHEDULER: Component = Component::KubeScheduler;
const MANAGER: Component = Component::KubeControllerManager;
const APISERVER: Component = Component::KubeApiserver;

fn snapshot() -> Snapshot {
    let directory = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/kubeadm/v1.36");
    Snapshot::of_manifests("manifests".into(), read_directory(&directory).unwrap())
}

fn pod(component: Component, ready: bool, state: &Value) -> PodFacts {
    let pod = json!({
        "metadata": {"name": format!("{component}-cp-1"), "annotations": {"kubernetes.io/config.mirror": "x"}},
        "spec": {"containers": [{"name": component.name(), "image": "i"}]},
        "status": {
            "conditions": [{"type": "Ready", "status": if ready { "True" } else { "False" }}],
            "containerStatuses": [{"name": component.name(), "image": "", "imageID": "", "ready": ready, "started": ready,
                "restartCount": 0, "state": state}],
        },
    });
    pod_facts(&serde_json::from_value(pod).unwrap(), component.name())
}

fn healthy() -> Observation {
    let running = |component| (component, vec![pod(component, true, &json!({"running": {}}))]);
    let renewed = |component| (component, NOW - SignedDuration::from_secs(2));
    Observation {
        node: NodeFacts {
            name: "cp-1".into(),
            ..NodeFacts::default()
        },
        pods: Component::ALL.into_iter().map(running).collect(),
        guard_pod: None,
        daemon_sets: BTreeMap::new(),
        leaders: BTreeMap::from([(SCHEDULER, "cp-1_a".into()), (MANAGER, "cp-1_b".into())]),
        renewals: [SCHEDULER, MANAGER].into_iter().map(renewed).collect(),
    }
}

fn missing(observation: &Observation) -> Vec<String> {
    unsettled(observation, &Component::ALL, NOW)
}

#[test]
fn nothing_is_waited_for_on_a_healthy_node() {
    assert_eq!(missing(&healthy()), [""; 0]);
}

#[test]
fn a_pod_that_starts_is_waited_for_and_one_that_fails_is_not() {
    let expected = vec!["Pod kube-system/kube-apiserver-cp-1 to be ready".to_owned()];
    for (state, ready, waited) in [
        (json!({"running": {}}), false, true),
        (json!({"waiting": {"reason": "ContainerCreating"}}), false, true),
        (json!({"waiting": {"reason": "CrashLoopBackOff"}}), false, false),
        (json!({"waiting": {"reason": "ErrImageNeverPull"}}), false, false),
        (json!({"terminated": {"exitCode": 1}}), false, false),
        (json!({"running": {}}), true, false),
        (json!({}), false, false),
    ] {
        let mut observation = healthy();
        observation.pods.insert(APISERVER, vec![pod(APISERVER, ready, &state)]);
        let expected = if waited { expected.clone() } else { Vec::new() };
        assert_eq!(missing(&observation), expected, "{state} {ready}");
    }
    let mut gone = healthy();
    gone.pods.clear();
    assert_eq!(missing(&gone), [""; 0]);
}

#[test]
fn only_the_static_pod_of_this_node_and_of_a_chosen_component_counts() {
    let starting = pod(APISERVER, false, &json!({"running": {}}));
    let mut observation = healthy();
    observation.pods.insert(APISERVER, vec![starting.clone()]);
    assert_eq!(missing(&observation).len(), 1);
    assert_eq!(unsettled(&observation, &[SCHEDULER], NOW), [""; 0]);
    for other in [
        PodFacts {
            mirror: false,
            ..starting.clone()
        },
        PodFacts {
            name: "kube-apiserver-cp-2".into(),
            ..starting
        },
    ] {
        observation.pods.insert(APISERVER, vec![other]);
        assert_eq!(missing(&observation), [""; 0]);
    }
}

#[test]
fn a_leader_is_waited_for_once_its_lease_is_old() {
    for (age, waited) in [(-60, false), (0, false), (20, false), (21, true), (86_400, true)] {
        let mut observation = healthy();
        observation
            .renewals
            .insert(MANAGER, NOW - SignedDuration::from_secs(age));
        let expected: &[&str] = if waited {
            &["a kube-controller-manager to lead"]
        } else {
            &[]
        };
        assert_eq!(missing(&observation), expected, "{age}");
    }
    // one that is not there may be one that is not used; the checks look at the flags
    let mut observation = healthy();
    observation.renewals.remove(&SCHEDULER);
    assert_eq!(missing(&observation), [""; 0]);
    // that of the Pod says it all
    observation
        .renewals
        .insert(SCHEDULER, NOW - SignedDuration::from_secs(60));
    assert_eq!(missing(&observation), ["a kube-scheduler to lead"]);
    observation
        .pods
        .insert(SCHEDULER, vec![pod(SCHEDULER, false, &json!({"running": {}}))]);
    assert_eq!(
        missing(&observation),
        ["Pod kube-system/kube-scheduler-cp-1 to be ready"]
    );
}

#[test]
fn a_lease_that_its_component_does_not_use_says_nothing() {
    let without_lease = || {
        let mut observation = healthy();
        observation.renewals.clear();
        observation
    };
    let leads = |flag: Option<&str>| {
        let mut snapshot = snapshot();
        let file = snapshot.inventory.originals.get_mut(&SCHEDULER).unwrap();
        let command = file.pod["spec"]["containers"][0]["command"].as_array_mut().unwrap();
        command.extend(flag.map(|flag| json!(flag)));
        nobody_leads(&without_lease(), &snapshot, SCHEDULER, NOW).is_none()
    };
    for flag in [
        "--leader-elect=false",
        "--leader-elect=perhaps",
        "--leader-elect-resource-name=other",
        "--leader-elect-resource-namespace=default",
        "--leader-elect-resource-lock=endpoints",
        "--config=/etc/kubernetes/scheduler.yaml",
    ] {
        assert!(leads(Some(flag)), "{flag}");
    }
    for flag in [
        None,
        Some("--leader-elect"),
        Some("--leader-elect-resource-name=kube-scheduler"),
        Some("--v=4"),
    ] {
        assert!(!leads(flag), "{flag:?}");
    }
    // the apiserver elects nobody, and a component whose manifest is out is the guard's business
    assert_eq!(nobody_leads(&without_lease(), &snapshot(), APISERVER, NOW), None);
    assert_eq!(
        nobody_leads(&without_lease(), &Snapshot::default(), SCHEDULER, NOW),
        None
    );
}

#[test]
fn a_lease_that_is_renewed_while_we_look_has_a_leader_whatever_the_clocks_say() {
    let at = |seconds: i64| Timestamp::from_second(seconds).unwrap();
    let scheduler = Component::KubeScheduler;
    let first = BTreeMap::from([(scheduler, at(100)), (Component::KubeControllerManager, at(100))]);
    let mut later = BTreeMap::from([(scheduler, at(102)), (Component::KubeControllerManager, at(100))]);
    count_as_fresh(&mut later, &first, at(5000));
    assert_eq!(later[&scheduler], at(5000));
    assert_eq!(later[&Component::KubeControllerManager], at(100));
}
