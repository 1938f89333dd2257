//! What is shown of what was seen: states, troubles, remarks, and the shape of the JSON that programs read.

use super::*;
use crate::observe::{node_facts, pod_facts};
use serde_json::{Value, from_value, json};
use std::collections::BTreeMap;

const SCHEDULER: Component = Component::KubeScheduler;
const APISERVER: Component = Component::KubeApiserver;

/// A Node with these reports of a guard.
fn observation(reports: &[(Component, Value)]) -> Observation {
    let mut annotations = serde_json::Map::new();
    for (component, report) in reports {
        annotations.insert(component.report_annotation(), report.to_string().into());
    }
    let guard = json!({"version": "0.1.0", "build": "0123456789ab", "process": 7});
    annotations.insert(crate::node::guard::api::guard_annotation(), guard.to_string().into());
    Observation {
        node: node_facts(&from_value(json!({"metadata": {"name": "cp-1", "annotations": annotations}})).unwrap()),
        pods: BTreeMap::new(),
        guard_pod: Some(facts("selfhost-guard-cp-1", "guard", true, &running())),
        daemon_sets: BTreeMap::new(),
        leaders: BTreeMap::new(),
        renewals: BTreeMap::new(),
    }
}

fn report(state: &str, desired: &str) -> Value {
    json!({"state": state, "desired": desired, "settled": true, "guard": "0.1.0"})
}

fn running() -> Value {
    json!({"containerStatuses": [{"name": "c", "image": "", "imageID": "", "ready": true, "started": true, "restartCount": 0,
        "state": {"running": {}}}]})
}

fn waiting_for_its_port() -> Value {
    json!({
        "initContainerStatuses": [{"name": crate::names::AWAIT_CONTAINER, "image": "", "imageID": "", "ready": false,
            "restartCount": 0, "state": {"running": {}}}],
        "containerStatuses": [{"name": "c", "image": "", "imageID": "", "ready": false, "restartCount": 0,
            "state": {"waiting": {"reason": "PodInitializing"}}}],
    })
}

fn crashing() -> Value {
    json!({"containerStatuses": [{"name": "c", "image": "", "imageID": "", "ready": false, "started": false,
        "restartCount": 3, "state": {"waiting": {"reason": "CrashLoopBackOff", "message": "back-off 40s"}},
        "lastState": {"terminated": {"exitCode": 1}}}]})
}

/// A Pod; a name that ends in the node's is that of a mirror Pod.
fn facts(name: &str, container: &str, ready: bool, status: &Value) -> PodFacts {
    let mut status = status.clone();
    status["conditions"] = json!([{"type": "Ready", "status": if ready { "True" } else { "False" }}]);
    let mirror = name.ends_with("-cp-1");
    let annotations = if mirror {
        json!({"kubernetes.io/config.mirror": "x"})
    } else {
        json!({})
    };
    let pod = json!({
        "metadata": {"name": name, "annotations": annotations},
        "spec": {"containers": [{"name": "c", "image": format!("registry.k8s.io/{container}:v1.36.3")}]},
        "status": status,
    });
    pod_facts(&from_value(pod).unwrap(), "c")
}

fn of(status: &Status, component: Component) -> &ComponentStatus {
    status
        .components
        .iter()
        .find(|status| status.component == component)
        .unwrap()
}

/// A node on which everything that can be shown is there.
fn busy() -> Observation {
    let scheduler = json!({
        "state": "self-hosted", "desired": "self-hosted", "settled": true, "guard": "0.1.0",
        "foreignManifest": {"file": "/etc/kubernetes/manifests/kube-scheduler.yaml", "modified": "2026-01-02T03:04:05Z"},
        "fallback": {"madeOf": "template", "generation": 3, "revision": "6d9f8c7b5", "since": "2026-01-02T03:14:05Z",
            "refused": "spec.hostPID: is true, and is not in the original manifest"},
    });
    let apiserver = json!({
        "state": "both", "desired": "self-hosted", "settled": false, "guard": "0.1.0",
        "step": "waiting for the new process to prove healthy itself", "error": "setsockopt was refused",
    });
    let mut controller_manager = report("fallback", "self-hosted");
    controller_manager["fallback"] = json!({"madeOf": "original"});
    let mut observation = observation(&[
        (SCHEDULER, scheduler),
        (Component::KubeControllerManager, controller_manager),
        (APISERVER, apiserver),
    ]);
    observation.pods = BTreeMap::from([
        (
            SCHEDULER,
            vec![facts(
                "self-hosted-kube-scheduler-x1",
                "kube-scheduler",
                true,
                &running(),
            )],
        ),
        (
            Component::KubeControllerManager,
            vec![facts(
                "kube-controller-manager-selfhost-fallback-cp-1",
                "kube-controller-manager",
                true,
                &running(),
            )],
        ),
        (
            APISERVER,
            vec![
                facts("kube-apiserver-cp-1", "kube-apiserver", true, &running()),
                facts("self-hosted-kube-apiserver-x2", "kube-apiserver", false, &crashing()),
            ],
        ),
    ]);
    observation.leaders.insert(SCHEDULER, "cp-1_6a1e".into());
    observation
}

fn busy_status() -> Status {
    let mut status = status(&busy());
    for trouble in status
        .components
        .iter_mut()
        .flat_map(|component| &mut component.troubles)
    {
        trouble.last_log_line = Some("Error: unknown flag: --no-such-flag".into());
    }
    status
}

fn cluster(node: Status) -> ClusterStatus {
    ClusterStatus {
        api_version: API_VERSION,
        kind: "ClusterStatus",
        nodes: vec![node],
    }
}

#[test]
fn remarks_name_their_node_where_there_are_several() {
    let mut status = cluster(busy_status());
    let alone = cluster_remarks(&status);
    assert!(alone.iter().all(|remark| !remark.starts_with("cp-1: ")), "{alone:?}");
    status.nodes.push(busy_status());
    assert_eq!(cluster_remarks(&status).len(), 2 * alone.len());
    assert!(
        cluster_remarks(&status)
            .iter()
            .all(|remark| remark.starts_with("cp-1: "))
    );
}

#[test]
fn the_json_has_its_documented_shape() {
    insta::assert_snapshot!("json", serde_json::to_string_pretty(&cluster(busy_status())).unwrap());
    // what is not there is left out
    let quiet = serde_json::to_value(status(&observation(&[]))).unwrap();
    assert_eq!(
        quiet["components"][0],
        json!({"component": "kube-scheduler", "state": "none", "version": "", "ready": false})
    );
}

#[test]
fn the_tables_have_a_row_for_each_component() {
    let status = cluster(busy_status());
    insta::assert_snapshot!("table", table(&status, false).render(None));
    insta::assert_snapshot!("table_wide", table(&status, true).render(None));
}

#[test]
fn everything_else_is_remarked() {
    insta::assert_snapshot!("remarks", remarks(&busy_status()).join("\n"));
    let mut quiet = observation(&[(SCHEDULER, report("static", "static"))]);
    quiet.pods.insert(
        SCHEDULER,
        vec![facts("kube-scheduler-cp-1", "kube-scheduler", true, &running())],
    );
    assert_eq!(remarks(&status(&quiet)), Vec::<String>::new());
}

#[test]
fn the_guard_knows_the_state_best_and_without_one_the_pods_tell() {
    let pods = |names: &[&str]| -> Vec<PodFacts> {
        names
            .iter()
            .map(|name| facts(name, "kube-scheduler", true, &running()))
            .collect()
    };
    let (static_pod, fallback, own) = (
        "kube-scheduler-cp-1",
        "kube-scheduler-selfhost-fallback-cp-1",
        "self-hosted-kube-scheduler-x1",
    );
    for (reported, pods, expected, serving) in [
        (
            Some("static"),
            pods(&[static_pod]),
            ComponentState::Static,
            Some(static_pod),
        ),
        (Some("self-hosted"), pods(&[own]), ComponentState::SelfHosted, Some(own)),
        (
            Some("both"),
            pods(&[static_pod]),
            ComponentState::Both,
            Some(static_pod),
        ),
        (
            Some("fallback"),
            pods(&[own, fallback]),
            ComponentState::Fallback,
            Some(fallback),
        ),
        // a mirror Pod may outlive its process for a moment: the guard has looked at the processes
        (
            Some("self-hosted"),
            pods(&[static_pod, own]),
            ComponentState::SelfHosted,
            Some(own),
        ),
        (Some("none"), pods(&[]), ComponentState::None, None),
        (None, pods(&[static_pod]), ComponentState::Static, Some(static_pod)),
        (None, pods(&[own]), ComponentState::SelfHosted, Some(own)),
        (None, pods(&[fallback]), ComponentState::Fallback, Some(fallback)),
        (None, pods(&[static_pod, own]), ComponentState::Both, None),
        (None, pods(&[fallback, own]), ComponentState::Both, None),
        (None, pods(&[]), ComponentState::None, None),
    ] {
        let mut observation = observation(&[(SCHEDULER, report(reported.unwrap_or("none"), "self-hosted"))]);
        if reported.is_none() {
            observation.guard_pod = None; // what an earlier guard reported does not count
        }
        observation.pods.insert(SCHEDULER, pods);
        let status = status(&observation);
        assert_eq!(of(&status, SCHEDULER).state, expected, "{reported:?}");
        if expected != ComponentState::Both || reported.is_some() {
            assert_eq!(of(&status, SCHEDULER).pod.as_deref(), serving, "{reported:?}");
        }
    }
}

#[test]
fn of_two_pods_the_one_that_is_ready_is_shown() {
    let mut observation = observation(&[(SCHEDULER, report("self-hosted", "self-hosted"))]);
    observation.pods.insert(
        SCHEDULER,
        vec![
            facts("self-hosted-kube-scheduler-old", "kube-scheduler", true, &running()),
            facts("self-hosted-kube-scheduler-new", "kube-scheduler", false, &crashing()),
        ],
    );
    let status = status(&observation);
    let scheduler = of(&status, SCHEDULER);
    assert!(scheduler.ready);
    assert_eq!(scheduler.pod.as_deref(), Some("self-hosted-kube-scheduler-old"));
    assert_eq!(scheduler.version, "v1.36.3");
    let [trouble] = scheduler.troubles.as_slice() else {
        panic!("{scheduler:#?}")
    };
    assert_eq!(trouble.pod, "self-hosted-kube-scheduler-new");
    assert_eq!(trouble.reason, "CrashLoopBackOff (exit code 1): back-off 40s");
}

#[test]
fn a_waiting_pod_is_trouble_only_where_it_should_run() {
    for (state, desired, expected) in [
        ("static", "static", None),
        ("self-hosted", "self-hosted", Some("waits for its port")),
    ] {
        let mut observation = observation(&[(SCHEDULER, report(state, desired))]);
        observation.pods.insert(
            SCHEDULER,
            vec![facts(
                "self-hosted-kube-scheduler-x1",
                "kube-scheduler",
                false,
                &waiting_for_its_port(),
            )],
        );
        let status = status(&observation);
        let reasons: Vec<&str> = of(&status, SCHEDULER)
            .troubles
            .iter()
            .map(|trouble| trouble.reason.as_str())
            .collect();
        assert_eq!(reasons, expected.into_iter().collect::<Vec<_>>(), "{state}");
    }
}

#[test]
fn a_pod_that_is_being_deleted_is_no_trouble() {
    let mut observation = observation(&[(SCHEDULER, report("self-hosted", "self-hosted"))]);
    let mut going = facts("self-hosted-kube-scheduler-x1", "kube-scheduler", false, &crashing());
    going.terminating = true;
    observation.pods.insert(SCHEDULER, vec![going]);
    assert_eq!(of(&status(&observation), SCHEDULER).troubles, []);
}

#[test]
fn a_guard_that_does_not_run_is_told_with_its_reason() {
    let mut observation = observation(&[]);
    observation.guard_pod = Some(facts("selfhost-guard-cp-1", "guard", false, &crashing()));
    let status = status(&observation);
    assert!(!status.guard.running);
    assert_eq!(
        remarks(&status),
        ["Pod selfhost-guard-cp-1: CrashLoopBackOff (exit code 1): back-off 40s"]
    );
    assert!(
        table(&cluster(status), false)
            .render(None)
            .lines()
            .skip(1)
            .all(|line| line.ends_with("none"))
    );
}

#[test]
fn the_version_is_the_tag_of_the_image() {
    for (image, expected) in [
        ("registry.k8s.io/kube-apiserver:v1.36.3", "v1.36.3"),
        ("registry.example.test:5000/kube-apiserver:v1.36.3", "v1.36.3"),
        ("registry.example.test:5000/kube-apiserver", ""),
        ("kube-apiserver:v1.36.3@sha256:0123", "v1.36.3"),
        ("kube-apiserver@sha256:0123", ""),
        ("", ""),
    ] {
        assert_eq!(version(image), expected, "{image}");
    }
}
