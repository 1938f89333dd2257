//! Each check against made-up facts: a refusal appears exactly when its fact is there, and names object and remedy.

use super::*;
use crate::manifest::{ManifestFile, read_directory};
use crate::names::BIN_DIR;
use crate::node::state::Desired;
use crate::observe::{DaemonSetFacts, node_facts, pod_facts};
use crate::plan::{PlanOptions, plan};
use jiff::SignedDuration;
use serde_json::from_value;
use std::path::Path;
use std::sync::LazyLock;

/// Everything that [`Facts`] borrows or holds.
struct World {
    observation: Observation,
    snapshot: Snapshot,
    plan: Plan,
    cluster: ClusterFacts,
    requested_cpu: i64,
    bad_paths: Vec<BadPath>,
    not_executable: Vec<String>,
    remembered: BTreeMap<Component, Original>,
    steering_refused: Option<String>,
    now: Timestamp,
}

/// A Node as the API shows it.
fn node_object() -> Value {
    json!({
        "metadata": {"name": "cp-1", "uid": "u-1", "annotations": {}, "labels": {}},
        "status": {
            "conditions": [{"type": "Ready", "status": "True", "lastHeartbeatTime": null, "lastTransitionTime": null}],
            "addresses": [{"type": "InternalIP", "address": "192.0.2.11"}],
            "allocatable": {"cpu": "2"},
        },
    })
}

/// The mirror Pod of a static Pod.
fn mirror(component: Component, ready: bool, state: &Value) -> Value {
    json!({
        "metadata": {"name": format!("{component}-cp-1"), "annotations": {"kubernetes.io/config.mirror": "x"}},
        "spec": {"containers": [{"name": component.name(), "image": "registry.k8s.io/x:v1.36.3"}]},
        "status": {
            "conditions": [{"type": "Ready", "status": if ready { "True" } else { "False" }}],
            "containerStatuses": [{"name": component.name(), "image": "", "imageID": "", "ready": ready, "started": true,
                "restartCount": 0, "state": state}],
        },
    })
}

/// kubeadm's manifests, with their plan.
static KUBEADM: LazyLock<(Snapshot, Plan)> = LazyLock::new(|| {
    let directory = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/kubeadm/v1.36");
    let snapshot = Snapshot::of_manifests("manifests".into(), read_directory(&directory).unwrap());
    let plan = plan(&snapshot, &PlanOptions::new("0123456789ab"));
    assert_eq!(plan.refusals, [], "the fixtures can be converted");
    (snapshot, plan)
});

impl World {
    fn healthy() -> Self {
        let (snapshot, plan) = KUBEADM.clone();
        let mut observation = Observation {
            node: node_facts(&from_value(node_object()).unwrap()),
            pods: BTreeMap::new(),
            guard_pod: None,
            daemon_sets: BTreeMap::new(),
            leaders: BTreeMap::new(),
            renewals: BTreeMap::new(),
        };
        for component in Component::ALL {
            let pod = from_value(mirror(component, true, &json!({"running": {}}))).unwrap();
            observation
                .pods
                .insert(component, vec![pod_facts(&pod, component.name())]);
            if component.lease().is_some() {
                observation.leaders.insert(component, "cp-1_a".into());
                observation
                    .renewals
                    .insert(component, NOW - SignedDuration::from_secs(2));
            }
        }
        Self {
            observation,
            snapshot,
            plan,
            cluster: ClusterFacts::default(),
            requested_cpu: 650,
            bad_paths: Vec::new(),
            not_executable: Vec::new(),
            remembered: BTreeMap::new(),
            steering_refused: None,
            now: NOW,
        }
    }

    fn facts(&self) -> Facts<'_> {
        Facts {
            observation: &self.observation,
            snapshot: &self.snapshot,
            plan: &self.plan,
            requested_cpu: self.requested_cpu,
            bad_paths: self.bad_paths.clone(),
            not_executable: self.not_executable.clone(),
            remembered: self.remembered.clone(),
            steering_refused: self.steering_refused.clone(),
            now: self.now,
        }
    }

    fn refusals(&self) -> Vec<Refusal> {
        [cluster_refusals(&self.cluster), refusals(&self.facts())].concat()
    }

    fn node(&mut self, change: impl FnOnce(&mut Value)) {
        let mut node = node_object();
        change(&mut node);
        self.observation.node = node_facts(&from_value(node).unwrap());
    }

    fn pod(&mut self, component: Component, pod: Value) {
        self.observation
            .pods
            .insert(component, vec![pod_facts(&from_value(pod).unwrap(), component.name())]);
    }

    fn saved(&mut self, component: Component, sha256: &str) {
        let original = Original {
            file_name: format!("{component}.yaml"),
            mode: 0o600,
            uid: 0,
            gid: 0,
            modified_ns: 0,
            sha256: sha256.into(),
        };
        self.remembered.insert(component, original);
    }

    fn original(&mut self, component: Component) -> &mut ManifestFile {
        self.snapshot.inventory.originals.get_mut(&component).unwrap()
    }

    fn daemon_set(&mut self, component: Component, ours: bool) {
        let facts = DaemonSetFacts {
            name: component.daemon_set_name(),
            node: None,
            ours,
            original: None,
            gap: false,
            build: None,
            certificates: None,
        };
        self.observation.daemon_sets.insert(component, facts);
    }
}

const NOW: Timestamp = Timestamp::constant(1_800_000_000, 0);
const SCHEDULER: Component = Component::KubeScheduler;
const APISERVER: Component = Component::KubeApiserver;

/// Makes a fact.
type Change = fn(&mut World);

/// A fact, and words of the one refusal that it causes: of its object, of what is wrong, of the remedy.
type Case = (&'static str, Change, &'static str, &'static str, &'static str);

const CASES: [Case; 18] = [
    (
        "the kubelet says it is not ready",
        |world| {
            world.node(|node| {
                node["status"]["conditions"][0]["status"] = json!("False");
                node["status"]["conditions"][0]["message"] = json!("container runtime is down");
            });
        },
        "Node cp-1",
        "is not Ready: container runtime is down",
        "mend the node",
    ),
    (
        "the kubelet has never reported",
        |world| world.node(|node| node["status"]["conditions"] = json!([])),
        "Node cp-1",
        "the kubelet has not reported yet",
        "mend the node",
    ),
    (
        "Cluster API owns the node",
        |world| world.node(|node| node["metadata"]["annotations"]["cluster.x-k8s.io/machine"] = json!("cp-1-abcde")),
        "Node cp-1",
        "belongs to the Cluster API Machine cp-1-abcde",
        "KubeadmControlPlane",
    ),
    (
        "the executable could not be run",
        |world| world.not_executable.push(BIN_DIR.into()),
        BIN_DIR,
        "mounted noexec",
        "remount it with exec",
    ),
    (
        "permissions are missing",
        |world| {
            world.cluster.missing_permissions = vec!["patch nodes".into(), "create daemonsets in kube-system".into()];
        },
        "your user",
        "may not: patch nodes, create daemonsets in kube-system",
        "/etc/kubernetes/admin.conf",
    ),
    (
        "a quota refuses the Pods",
        |world| {
            world
                .cluster
                .not_admitted
                .insert(SCHEDULER.daemon_set_name(), "exceeded quota: pods".into());
        },
        "Pods of self-hosted-kube-scheduler",
        "would not be admitted to kube-system: exceeded quota: pods",
        "change the quota",
    ),
    (
        "a file behind a volume is missing",
        |world| {
            world.bad_paths.push(BadPath {
                component: APISERVER,
                volume: "policy".into(),
                path: "/etc/kubernetes/policy.yaml".into(),
                wrong: "is not there".into(),
            });
        },
        "/etc/kubernetes/policy.yaml",
        "is not there, and the volume policy of kube-apiserver needs it",
        "put it there",
    ),
    (
        "a manifest is a symbolic link",
        |world| world.original(SCHEDULER).symlink = true,
        "kube-scheduler.yaml",
        "is a symbolic link",
        "put the manifest itself",
    ),
    (
        "ports cannot be steered on the node",
        |world| world.steering_refused = Some("setsockopt was refused".into()),
        "Node cp-1",
        "ports cannot be shared and steered here: setsockopt was refused",
        "--mode gap",
    ),
    (
        "the kubelet does not run the manifest",
        |world| {
            world.observation.pods.insert(SCHEDULER, Vec::new());
        },
        "Pod kube-system/kube-scheduler-cp-1",
        "is not there",
        "kubelet's log",
    ),
    (
        "what is there is the Pod of something else",
        |world| {
            let mut pod = mirror(APISERVER, true, &json!({"running": {}}));
            pod["metadata"]["name"] = json!("kube-apiserver-cp-2");
            world.pod(APISERVER, pod);
        },
        "Pod kube-system/kube-apiserver-cp-1",
        "is not there",
        "kubelet's log",
    ),
    (
        "the component is in restart back-off",
        |world| {
            let state = json!({"waiting": {"reason": "CrashLoopBackOff", "message": "back-off 40s"}});
            world.pod(SCHEDULER, mirror(SCHEDULER, false, &state));
        },
        "Pod kube-system/kube-scheduler-cp-1",
        "is not ready: CrashLoopBackOff: back-off 40s",
        "mend the static Pod first",
    ),
    (
        "the component runs and is not ready",
        |world| world.pod(APISERVER, mirror(APISERVER, false, &json!({"running": {}}))),
        "Pod kube-system/kube-apiserver-cp-1",
        "its readiness probe fails",
        "mend the static Pod first",
    ),
    (
        "the scheduler's Lease is not renewed",
        |world| {
            let renewed = NOW - SignedDuration::from_secs(21);
            world.observation.renewals.insert(SCHEDULER, renewed);
        },
        "Lease kube-system/kube-scheduler",
        "was last renewed 21s ago, by cp-1_a: no kube-scheduler leads",
        "look into the log of kube-scheduler",
    ),
    (
        "no controller manager has ever led",
        |world| {
            world.observation.leaders.remove(&Component::KubeControllerManager);
            world.observation.renewals.remove(&Component::KubeControllerManager);
        },
        "Lease kube-system/kube-controller-manager",
        "is not there: no kube-controller-manager has ever led",
        "look into the log of kube-controller-manager",
    ),
    (
        "there is no CPU for two apiservers",
        |world| world.requested_cpu = 1751,
        "Node cp-1",
        "has 249m CPU left to request, and 250m are needed",
        "move other Pods away",
    ),
    (
        "somebody else has a DaemonSet of that name",
        |world| world.daemon_set(APISERVER, false),
        "DaemonSet kube-system/self-hosted-kube-apiserver",
        "was not made by this program",
        "kubeadm alpha selfhosting pivot",
    ),
    (
        "a manifest came back while its component is converted",
        |world| {
            world.saved(SCHEDULER, &"0123456789ab".repeat(6)[..64]);
            world.observation.node.desired.insert(SCHEDULER, Desired::SelfHosted);
        },
        "kube-scheduler.yaml",
        "that of the saved original with 0123456789ab",
        "the saved original is in /var/lib/selfhost/kube-scheduler/",
    ),
];

#[test]
fn a_healthy_node_is_not_refused_and_nothing_is_remarked() {
    let world = World::healthy();
    assert_eq!(world.refusals(), []);
    assert_eq!(warnings(&world.cluster), Vec::<String>::new());
}

#[test]
fn each_fact_causes_its_own_refusal_and_no_other() {
    for (name, change, object, what, remedy) in CASES {
        let mut world = World::healthy();
        change(&mut world);
        let found = world.refusals();
        let [refusal] = found.as_slice() else {
            panic!("{name}: {found:#?}")
        };
        assert!(refusal.object.contains(object), "{name}: {refusal:#?}");
        assert!(refusal.what.contains(what), "{name}: {refusal:#?}");
        assert!(refusal.remedy.contains(remedy), "{name}: {refusal:#?}");
    }
}

#[test]
fn two_facts_cause_two_refusals() {
    let with = |changes: &[Change]| {
        let mut world = World::healthy();
        for change in changes {
            change(&mut world);
        }
        world.refusals()
    };
    for (index, (first_name, first, first_object, ..)) in CASES.iter().enumerate() {
        for (second_name, second, second_object, ..) in &CASES[index + 1..] {
            let found = with(&[*first, *second]);
            let count = |refusals: Vec<Refusal>| refusals.iter().filter(|refusal| found.contains(refusal)).count();
            assert_eq!(count(with(&[*second])), 1, "{first_name} + {second_name}: {found:#?}");
            // of two facts about one object the second may take the place of the first
            if first_object != second_object {
                assert_eq!(count(with(&[*first])), 1, "{first_name} + {second_name}: {found:#?}");
                assert_eq!(found.len(), 2, "{first_name} + {second_name}: {found:#?}");
            }
        }
    }
}

#[test]
fn what_is_allowed_just_so_is_not_refused() {
    let allowed: [(&str, Change); 9] = [
        ("another user than root", |world| {
            world.original(APISERVER).pod["spec"]["securityContext"]["runAsUser"] = json!(65532);
        }),
        ("ports that cannot be steered, in gap mode", |world| {
            world.steering_refused = Some("setsockopt was refused".into());
            for plan in &mut world.plan.components {
                plan.expected_gap = Gap::OneStart;
            }
        }),
        ("as much CPU as is needed", |world| {
            world.requested_cpu = 1750;
        }),
        ("a node that does not tell its CPU", |world| {
            world.node(|node| node["status"]["allocatable"] = json!({}));
        }),
        ("a DaemonSet of ours", |world| world.daemon_set(APISERVER, true)),
        ("an original that is saved and unchanged", |world| {
            let sha256 = world.snapshot.inventory.originals[&SCHEDULER].sha256.clone();
            world.saved(SCHEDULER, &sha256);
            world.observation.node.desired.insert(SCHEDULER, Desired::SelfHosted);
        }),
        ("an original that was edited after a revert", |world| {
            world.saved(SCHEDULER, &"ab".repeat(32));
            world.observation.node.desired.insert(SCHEDULER, Desired::Static);
        }),
        ("an original that was edited, and nobody wishes anything", |world| {
            world.saved(SCHEDULER, &"ab".repeat(32));
        }),
        ("a saved original of a component whose manifest is out", |world| {
            world.saved(SCHEDULER, &"ab".repeat(32));
            world.observation.node.desired.insert(SCHEDULER, Desired::SelfHosted);
            world.snapshot.inventory.originals.remove(&SCHEDULER);
        }),
    ];
    for (name, change) in allowed {
        let mut world = World::healthy();
        change(&mut world);
        assert_eq!(world.refusals(), [], "{name}");
    }
}

#[test]
fn only_components_of_the_plan_must_run() {
    let mut world = World::healthy();
    world.observation.pods.clear();
    assert_eq!(world.refusals().len(), 3);
    world.plan.components.retain(|plan| plan.component == SCHEDULER);
    let found = world.refusals();
    assert!(
        found.len() == 1 && found[0].object.contains("kube-scheduler-cp-1"),
        "{found:#?}"
    );
}

#[test]
fn the_needed_cpu_is_that_of_the_largest_component_with_its_side_cars() {
    let mut world = World::healthy();
    world.requested_cpu = 1500;
    assert_eq!(world.refusals(), []);
    for plan in &mut world.plan.components {
        if plan.component == APISERVER
            && let Some(daemon_set) = &mut plan.daemon_set
            && let Some(containers) = daemon_set["spec"]["template"]["spec"]["containers"].as_array_mut()
        {
            containers.push(json!({"name": "kms", "resources": {"requests": {"cpu": "0.3"}}}));
        }
    }
    let found = world.refusals();
    assert!(
        found.len() == 1 && found[0].what.contains("500m CPU left to request, and 550m"),
        "{found:#?}"
    );
}

#[test]
fn webhooks_are_a_warning_and_no_refusal() {
    let mut world = World::healthy();
    world.cluster.webhooks.push(BlockingWebhook {
        name: "ValidatingWebhookConfiguration policy, webhook pods.example.test".into(),
    });
    assert_eq!(world.refusals(), []);
    let [warning] = <[String; 1]>::try_from(warnings(&world.cluster)).unwrap();
    assert!(
        warning.starts_with("ValidatingWebhookConfiguration policy, webhook pods.example.test: "),
        "{warning}"
    );
    assert!(warning.contains("exclude kube-system"), "{warning}");
}

#[test]
fn the_pod_of_the_trial_is_what_the_daemon_set_would_make() {
    let world = World::healthy();
    for plan in &world.plan.components {
        let daemon_set = plan.daemon_set.as_ref().unwrap();
        let pod = pod_of(daemon_set);
        let template = &daemon_set["spec"]["template"];
        assert_eq!(pod["spec"], template["spec"]);
        assert_eq!(pod["metadata"]["labels"], template["metadata"]["labels"]);
        assert_eq!(pod["metadata"]["namespace"], NAMESPACE);
        from_value::<k8s_openapi::api::core::v1::Pod>(pod).unwrap();
    }
}
