//! The four scenarios: bootstrap kubeconfig and stored credentials valid or not.

use super::*;

#[test]
fn scenario_1_bootstrap_kubeconfig_is_valid_and_there_are_no_credentials() {
    let pair = Pair::up();
    pair.spoke.add_claims().unwrap();
    let claim = |name: &str| {
        json!({"apiVersion": "cluster.open-cluster-management.io/v1alpha1", "kind": "ClusterClaim", "metadata": {"name": name}, "spec": {"value": "v"}}).to_string()
    };
    pair.spoke.apply(&claim("id.k8s.io")).unwrap();
    let mut agent = pair.run("one");
    let request = pair.wait_for_request("one");
    assert!(request.starts_with("one-"), "{request}");
    thread::sleep(Duration::from_secs(3));
    assert_eq!(pair.all_requests("one"), 1, "one request, however long nobody answers");
    assert_eq!(pair.condition("one", "ManagedClusterJoined"), None);
    ok(&pair.accept("one", &["--wait=available"]));
    pair.wait_until_available("one");

    let cluster = pair.hub.get(&["managedcluster", "one"]).unwrap();
    assert!(
        cluster["status"]["version"]["kubernetes"]
            .as_str()
            .unwrap()
            .starts_with("v1."),
        "{cluster:#}"
    );
    assert_eq!(
        cluster["status"]["clusterClaims"],
        json!([{"name": "id.k8s.io", "value": "v"}])
    );
    let user = "system:open-cluster-management:one:";
    let events = pair.hub.requests(user).unwrap();
    let written: Vec<_> = by(&events, "patch", "managedclusters/status")
        .into_iter()
        .filter(|event| event.code == 200)
        .collect();
    assert_eq!(written.len(), 1, "one write says all: {events:#?}");

    let secret = pair.secret(SECRET).unwrap();
    let keys: Vec<_> = secret["data"].as_object().unwrap().keys().cloned().collect();
    assert_eq!(keys, ["agent-name", "cluster-name", "kubeconfig", "tls.crt", "tls.key"]);
    assert_eq!(pair.secret(PENDING), None, "nothing is left of the request");
    let files = pair.files("one");
    assert_eq!(fs::metadata(&files).unwrap().permissions().mode() & 0o777, 0o700);
    for key in &keys {
        assert_eq!(
            fs::metadata(files.join(key)).unwrap().permissions().mode() & 0o777,
            0o600,
            "{key}"
        );
    }
    // the files are enough for any other client
    let kubeconfig = files.join("kubeconfig").display().to_string();
    let other = pair
        .hub
        .kubectl(&[
            "--kubeconfig",
            &kubeconfig,
            "get",
            "managedcluster",
            "one",
            "-o",
            "name",
        ])
        .unwrap();
    ok(&other);

    // a claim that comes later is sent, and one that goes is taken away
    pair.spoke.apply(&claim("later")).unwrap();
    let claims = |wanted: usize| {
        pair.hub
            .eventually("the claims", MINUTE, |hub| {
                let cluster = hub.get(&["managedcluster", "one"])?;
                Ok((cluster["status"]["clusterClaims"].as_array().map_or(0, Vec::len) == wanted).then_some(()))
            })
            .unwrap();
    };
    claims(2);
    pair.spoke.must(&["delete", "clusterclaim", "later"]).unwrap();
    claims(1);
    assert_eq!(agent.terminate(), Some(0), "{}", agent.log());
    for line in agent.log().lines() {
        let object: Value = serde_json::from_str(line).unwrap_or_else(|error| panic!("{error}: {line}"));
        assert!(
            object["time"].is_string() && object["level"].is_string() && object["message"].is_string(),
            "{line}"
        );
    }
}

#[test]
fn scenario_2_both_are_valid() {
    let pair = Pair::up();
    let mut agent = pair.join_by("two");
    agent.terminate();
    let before = pair.hub.requests(ACCOUNT).unwrap().len();
    let requests = pair.all_requests("two");
    let begin = Instant::now();
    let old = pair.lease("two");
    let _agent = pair.run("two");
    pair.hub
        .eventually("the lease to be renewed", MINUTE, |_| {
            Ok((pair.lease("two") != old).then_some(()))
        })
        .unwrap();
    tests::cache::say(&format!("restart to renewal: {:.2} s", begin.elapsed().as_secs_f64()));
    assert_eq!(
        pair.hub.requests(ACCOUNT).unwrap().len(),
        before,
        "the bootstrap credentials are not used"
    );
    assert_eq!(pair.all_requests("two"), requests, "no certificate is asked for");
}

#[test]
fn scenario_3_bootstrap_kubeconfig_is_invalid_and_the_credentials_are_valid() {
    let pair = Pair::up();
    pair.join_by("three").terminate();
    let missing = pair.spoke.directory().join("missing.conf");
    let garbage = pair.spoke.directory().join("garbage.conf");
    fs::write(&garbage, "{{{").unwrap();
    let expired = pair.spoke.directory().join("expired.conf");
    let text = fs::read_to_string(&pair.bootstrap).unwrap();
    let mut object: Value = serde_json::from_str(&text).unwrap();
    object["users"][0]["user"] = json!({"token": "no-longer-valid"});
    fs::write(&expired, object.to_string()).unwrap();
    for file in [missing, garbage, expired] {
        let old = pair.lease("three");
        let mut agent = pair.run_with("three", &file, &[]);
        pair.hub
            .eventually("the lease to be renewed", MINUTE, |_| {
                Ok((pair.lease("three") != old).then_some(()))
            })
            .unwrap_or_else(|error| panic!("{}: {error}\n{}", file.display(), agent.log()));
        assert!(agent.lives());
        agent.terminate();
    }
    assert_eq!(pair.all_requests("three"), 1);
}

#[test]
fn scenario_4_neither_is_valid_and_a_new_file_is_noticed_without_a_restart() {
    let pair = Pair::up();
    let file = pair.spoke.directory().join("late.conf");
    let mut agent = pair.run_with("four", &file, &[]);
    agent.wait_for_line("waiting for the file to change");
    fs::write(&file, "{{{").unwrap();
    thread::sleep(Duration::from_secs(2));
    let mut object: Value = serde_json::from_str(&fs::read_to_string(&pair.bootstrap).unwrap()).unwrap();
    object["users"][0]["user"] = json!({"token": "not-valid-yet"});
    fs::write(&file, object.to_string()).unwrap();
    agent.wait_for_line("does not accept the bootstrap credentials");
    assert_eq!(pair.all_requests("four"), 0);
    fs::copy(&pair.bootstrap, &file).unwrap();
    pair.wait_for_request("four");
    ok(&pair.accept("four", &[]));
    pair.wait_until_available("four");
    assert!(agent.lives(), "the same process");
}
