//! One DaemonSet for nodes that agree, a refusal with the difference for those that do not.

use super::*;
use crate::manifest::{Entry, read_directory};
use std::path::Path;

/// A node with kubeadm's manifests, whose address stands in them.
fn node(name: &str, address: &str) -> NodeInput {
    let directory = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/kubeadm/v1.36");
    let own = |text: &str| text.replace("192.0.2.11", address);
    let entries = read_directory(&directory)
        .unwrap()
        .into_iter()
        .map(|entry| match entry {
            Entry::Pod(mut file) => {
                file.bytes = own(std::str::from_utf8(&file.bytes).unwrap()).into_bytes();
                file.sha256 = sha256_hex(&file.bytes);
                file.pod = crate::manifest::parse(&file.bytes).unwrap();
                Entry::Pod(file)
            }
            broken @ Entry::Broken { .. } => broken,
        })
        .collect();
    NodeInput {
        name: name.into(),
        address: address.parse().ok(),
        snapshot: Snapshot::of_manifests("manifests".into(), entries),
        build: "0123456789ab".into(),
    }
}

fn options(per_node: bool) -> ClusterPlanOptions {
    ClusterPlanOptions {
        components: Component::ALL.to_vec(),
        mode: Mode::Steered,
        per_node,
        single_node: false,
        feature_gates: FeatureGates::default(),
    }
}

fn daemon_sets(plan: &ClusterPlan, component: Component) -> Vec<&Value> {
    plan.nodes
        .iter()
        .flat_map(|node| &node.plan.components)
        .filter(|plan| plan.component == component)
        .filter_map(|plan| plan.daemon_set.as_ref())
        .collect()
}

fn change_flag(node: &mut NodeInput, component: Component, from: &str, to: &str) {
    let file = node.snapshot.inventory.originals.get_mut(&component).unwrap();
    let text = String::from_utf8(file.bytes.clone()).unwrap();
    assert!(text.contains(from), "{from}");
    file.bytes = text.replace(from, to).into_bytes();
    file.sha256 = sha256_hex(&file.bytes);
    file.pod = crate::manifest::parse(&file.bytes).unwrap();
}

#[test]
fn nodes_that_differ_in_their_own_addresses_alone_share_a_daemon_set() {
    let nodes = [
        node("cp-1", "192.0.2.11"),
        node("cp-2", "192.0.2.12"),
        node("cp-3", "192.0.2.13"),
    ];
    let plan = plan_cluster(&nodes, &options(false));
    assert_eq!(plan.all_refusals(), []);
    for component in Component::ALL {
        let all = daemon_sets(&plan, component);
        assert_eq!(all.len(), 3);
        assert!(all.iter().all(|one| *one == all[0]), "{component}: one for all");
        assert!(
            !all[0].to_string().contains("192.0.2.1"),
            "{component}: no node's own address is left"
        );
    }
}

#[test]
fn nodes_that_disagree_are_refused_with_what_differs() {
    let mut nodes = [node("cp-1", "192.0.2.11"), node("cp-2", "192.0.2.12")];
    change_flag(
        &mut nodes[1],
        Component::KubeScheduler,
        "--leader-elect=true",
        "--leader-elect=true\n    - --v=4",
    );
    let plan = plan_cluster(&nodes, &options(false));
    let refusals = plan.all_refusals();
    assert_eq!(refusals.len(), 1, "{refusals:#?}");
    assert_eq!(refusals[0].object, "DaemonSet self-hosted-kube-scheduler");
    for word in ["cp-1", "cp-2", "--v=4", "spec.containers[kube-scheduler].command"] {
        assert!(refusals[0].what.contains(word), "{word}: {}", refusals[0].what);
    }
    assert!(refusals[0].remedy.contains("--per-node"));

    let plan = plan_cluster(&nodes, &options(true));
    assert_eq!(plan.all_refusals(), []);
    let names: Vec<_> = daemon_sets(&plan, Component::KubeScheduler)
        .iter()
        .map(|one| one["metadata"]["name"].as_str().unwrap())
        .collect();
    assert_eq!(
        names,
        ["self-hosted-kube-scheduler-cp-1", "self-hosted-kube-scheduler-cp-2"]
    );
    // its own address may stay
    assert!(
        daemon_sets(&plan, Component::KubeApiserver)[1]
            .to_string()
            .contains("192.0.2.12")
    );
}

#[test]
fn an_advertised_address_that_is_not_the_nodes_stays_and_disagrees() {
    let mut nodes = [node("cp-1", "192.0.2.11"), node("cp-2", "192.0.2.12")];
    change_flag(
        &mut nodes[1],
        Component::KubeApiserver,
        "--advertise-address=192.0.2.12",
        "--advertise-address=198.51.100.7",
    );
    let refusals = plan_cluster(&nodes, &options(false)).all_refusals();
    assert!(
        refusals.iter().any(|refusal| refusal.what.contains("198.51.100.7")),
        "{refusals:#?}"
    );
}

#[test]
fn a_reason_on_some_nodes_names_them_and_one_on_all_is_said_once() {
    let mut plan = plan_cluster(
        &[node("cp-1", "192.0.2.11"), node("cp-2", "192.0.2.12")],
        &options(false),
    );
    let refusal = |object: &str| Refusal::new(object, "is wrong", "mend it");
    plan.nodes[0].plan.refusals = vec![refusal("a.yaml"), refusal("b.yaml"), refusal("Pod x-cp-1")];
    plan.nodes[1].plan.refusals = vec![refusal("b.yaml")];
    let objects: Vec<_> = plan.all_refusals().into_iter().map(|refusal| refusal.object).collect();
    assert_eq!(objects, ["Node cp-1: a.yaml", "b.yaml", "Pod x-cp-1"]);
}

#[test]
fn nodes_that_hold_something_come_last() {
    let names = |text: &str| text.split(' ').map(str::to_owned).collect::<Vec<_>>();
    let burdens = BTreeMap::from([("a".to_owned(), 2), ("b".to_owned(), 1)]);
    assert_eq!(order(names("a b c d"), &burdens), names("c d b a"));
    assert_eq!(order(names("b a"), &BTreeMap::new()), names("a b"));
}
