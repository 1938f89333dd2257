//! What the hub is told about the spoke.

use super::*;

#[test]
fn a_spoke_without_claims_a_long_name_and_addresses_that_come_later() {
    let pair = Pair::up();
    let cluster = format!("a{}", "-very-long-name".repeat(4));
    let mut agent = pair.join_by(&cluster);
    // the kind of the claims comes later
    pair.spoke.add_claims().unwrap();
    let claim = json!({"apiVersion": "cluster.open-cluster-management.io/v1alpha1", "kind": "ClusterClaim", "metadata": {"name": "late"}, "spec": {"value": "v"}});
    pair.spoke.apply(&claim.to_string()).unwrap();
    pair.hub
        .eventually("the claim", MINUTE, |hub| {
            let found = hub.get(&["managedcluster", &cluster])?;
            Ok((found["status"]["clusterClaims"] == json!([{"name": "late", "value": "v"}])).then_some(()))
        })
        .unwrap();
    // nodes are summed up, and a cordoned one is not allocatable
    let node = |name: &str| json!({"apiVersion": "v1", "kind": "Node", "metadata": {"name": name}, "spec": {"unschedulable": name == "b"}});
    for name in ["a", "b"] {
        pair.spoke.apply(&node(name).to_string()).unwrap();
        let status = json!({"status": {"capacity": {"cpu": "8", "memory": "16393244Ki"}, "allocatable": {"cpu": "7500m", "memory": "16Gi"}}});
        pair.spoke
            .must(&[
                "patch",
                "node",
                name,
                "--subresource=status",
                "--type=merge",
                "-p",
                &status.to_string(),
            ])
            .unwrap();
    }
    pair.hub
        .eventually("the sums", MINUTE, |hub| {
            let status = hub.get(&["managedcluster", &cluster])?["status"].clone();
            let sums = status["capacity"] == json!({"cpu": "16", "memory": "32786488Ki"})
                && status["allocatable"] == json!({"cpu": "7500m", "memory": "16Gi"});
            Ok(sums.then_some(()))
        })
        .unwrap();
    // the hub's users find the spoke at an address that is told later, with its certificate authority
    assert_eq!(agent.terminate(), Some(0));
    let _agent = pair.run_with(
        &cluster,
        &pair.bootstrap,
        &["--spoke-external-server-urls=https://spoke.example.com:6443"],
    );
    pair.hub
        .eventually("the address", MINUTE, |hub| {
            let configs = hub.get(&["managedcluster", &cluster])?["spec"]["managedClusterClientConfigs"].clone();
            Ok((configs[0]["url"] == "https://spoke.example.com:6443"
                && configs[0]["caBundle"].as_str().is_some_and(|text| text.len() > 100))
            .then_some(()))
        })
        .unwrap();
    // a change of availability is recorded where the hub's users look
    let events = pair.hub.get(&["events.events.k8s.io", "-n", &cluster]).unwrap();
    let reasons: Vec<_> = events["items"]
        .as_array()
        .unwrap()
        .iter()
        .map(|event| event["reason"].clone())
        .collect();
    assert!(reasons.contains(&json!("ManagedClusterAvailable")), "{reasons:?}");
}

#[test]
fn namespaces_that_the_hub_wants_are_made_and_marked() {
    let pair = Pair::up();
    let _agent = pair.join_by("spaces");
    let set = json!({"apiVersion": "cluster.open-cluster-management.io/v1beta2", "kind": "ManagedClusterSet", "metadata": {"name": "team"},
        "spec": {"clusterSelector": {"selectorType": "ExclusiveClusterSetLabel"}, "managedNamespaces": [{"name": "wanted"}]}});
    pair.hub.apply(&set.to_string()).unwrap();
    pair.hub
        .must(&[
            "label",
            "managedcluster",
            "spaces",
            "--overwrite",
            "cluster.open-cluster-management.io/clusterset=team",
        ])
        .unwrap();
    let label = pair
        .spoke
        .eventually("the namespace", MINUTE, |spoke| {
            let output = spoke.kubectl(&["get", "namespace", "wanted", "-o", "json"])?;
            let object: Value = serde_json::from_str(&output.stdout).unwrap_or_default();
            let labels = object["metadata"]["labels"].as_object().cloned().unwrap_or_default();
            Ok(labels
                .into_iter()
                .find(|(name, value)| name.starts_with("clusterset.open-cluster-management.io/") && value == "true"))
        })
        .unwrap()
        .0;
    pair.hub
        .eventually("the condition of the namespace", MINUTE, |hub| {
            let namespaces = hub.get(&["managedcluster", "spaces"])?["status"]["managedNamespaces"].clone();
            Ok((namespaces[0]["conditions"][0]["reason"] == "NamespaceApplied").then_some(()))
        })
        .unwrap();
    pair.hub
        .must(&[
            "patch",
            "managedclusterset",
            "team",
            "--type=merge",
            "-p",
            r#"{"spec": {"managedNamespaces": null}}"#,
        ])
        .unwrap();
    pair.spoke
        .eventually("the mark to be taken away", MINUTE, |spoke| {
            Ok((spoke.get(&["namespace", "wanted"])?["metadata"]["labels"][&label] == "false").then_some(()))
        })
        .unwrap();
}

#[test]
fn claims_are_cut_with_a_word_and_a_spoke_that_fails_for_20_seconds_is_unavailable() {
    let mut pair = Pair::up();
    pair.spoke.add_claims().unwrap();
    for name in ["a", "b", "c", "x.reserved.io", "id.k8s.io"] {
        let claim = json!({"apiVersion": "cluster.open-cluster-management.io/v1alpha1", "kind": "ClusterClaim", "metadata": {"name": name}, "spec": {"value": "v"}});
        pair.spoke.apply(&claim.to_string()).unwrap();
    }
    let mut agent = pair.run_with(
        "fails",
        &pair.bootstrap,
        &[
            "--max-custom-cluster-claims=2",
            "--reserved-cluster-claim-suffixes=reserved.io",
        ],
    );
    pair.wait_for_request("fails");
    ok(&pair.accept("fails", &[]));
    pair.wait_until_available("fails");
    let cluster = pair.hub.get(&["managedcluster", "fails"]).unwrap();
    let names: Vec<_> = cluster["status"]["clusterClaims"]
        .as_array()
        .unwrap()
        .iter()
        .map(|claim| claim["name"].clone())
        .collect();
    assert_eq!(names, ["id.k8s.io", "x.reserved.io", "a", "b"]);
    agent.wait_for_line("more claims than --max-custom-cluster-claims allows");

    pair.set_lease("fails", 4);
    pair.spoke.stop(APISERVER).unwrap();
    let begin = Instant::now();
    while begin.elapsed() < Duration::from_secs(15) {
        assert_eq!(
            pair.condition("fails", "ManagedClusterConditionAvailable").as_deref(),
            Some("True")
        );
        thread::sleep(Duration::from_secs(2));
    }
    pair.wait_for("fails", "ManagedClusterConditionAvailable", "False", MINUTE);
    let took = begin.elapsed();
    tests::cache::say(&format!(
        "told unavailable {:.1} s after the API server's end",
        took.as_secs_f64()
    ));
    assert!(took >= Duration::from_secs(20), "{took:?}");
    let cluster = pair.hub.get(&["managedcluster", "fails"]).unwrap();
    let conditions = cluster["status"]["conditions"].as_array().unwrap();
    assert!(
        conditions
            .iter()
            .any(|condition| condition["reason"] == "ManagedClusterKubeAPIServerUnavailable"),
        "{conditions:#?}"
    );
    // The agent cannot renew its own Lease on the spoke any more, and goes on telling the hub for as long as it takes.
    thread::sleep(Duration::from_secs(80).saturating_sub(begin.elapsed()));
    pair.wait_for_renewal("fails", Duration::from_secs(20));
    assert_eq!(
        pair.condition("fails", "ManagedClusterConditionAvailable").as_deref(),
        Some("False")
    );
    assert!(agent.lives());
    pair.spoke.start(APISERVER).unwrap();
    pair.wait_for("fails", "ManagedClusterConditionAvailable", "True", MINUTE);
}
