//! What the hub does: it signs, rotates, denies, deletes, forgets, distrusts; and who speaks to it.

use super::*;

#[test]
fn a_certificate_is_rotated_and_a_restart_goes_on_with_the_open_request() {
    let pair = Pair::with(&ApiOptions {
        signing_duration: "2m".into(),
        ..ApiOptions::default()
    });
    let mut agent = pair.run("rotates");
    let request = pair.wait_for_request("rotates");
    for _ in 0..3 {
        agent.child.kill().unwrap();
        agent.child.wait().unwrap();
        agent = pair.run("rotates");
        agent.wait_for_line("the agent starts");
        thread::sleep(Duration::from_secs(1));
    }
    assert_eq!(pair.all_requests("rotates"), 1);
    assert_eq!(pair.wait_for_request("rotates"), request);
    ok(&pair.accept("rotates", &[]));
    pair.wait_for("rotates", "ManagedClusterJoined", "True", 2 * MINUTE);
    let first = pair.secret(SECRET).unwrap()["data"]["tls.crt"].clone();
    pair.hub
        .eventually("the next certificate", 2 * MINUTE, |_| {
            Ok(pair.secret(SECRET).filter(|secret| secret["data"]["tls.crt"] != first))
        })
        .unwrap();
    pair.wait_for("rotates", "ClusterCertificateRotated", "True", MINUTE);
    let asked = by(
        &pair.hub.requests("system:open-cluster-management:rotates:").unwrap(),
        "create",
        "certificatesigningrequests",
    )
    .len();
    assert!(asked >= 1, "the cluster asked by itself");
    assert!(pair.open_requests("rotates").is_empty());
    assert!(agent.lives());
}

#[test]
fn the_hub_takes_back_deletes_and_forgets() {
    let mut pair = Pair::up();
    let mut agent = pair.join_by("gone");
    // the period of the renewals is the hub's to say
    pair.set_lease("gone", 4);
    pair.wait_for_renewal("gone", Duration::from_secs(10));
    pair.wait_for_renewal("gone", Duration::from_secs(10));

    // the acceptance is taken back, and given again
    let accepts = |value: bool| json!({"spec": {"hubAcceptsClient": value}}).to_string();
    pair.hub
        .must(&["patch", "managedcluster", "gone", "--type=merge", "-p", &accepts(false)])
        .unwrap();
    agent.wait_for_line("does not accept ManagedCluster gone any more");
    pair.hub
        .must(&["patch", "managedcluster", "gone", "--type=merge", "-p", &accepts(true)])
        .unwrap();
    pair.wait_for_renewal("gone", Duration::from_secs(15));

    // the hub is down for a while
    pair.hub.stop(APISERVER).unwrap();
    thread::sleep(Duration::from_secs(12));
    assert!(agent.lives());
    pair.hub.start(APISERVER).unwrap();
    pair.wait_for_renewal("gone", Duration::from_secs(30));

    // deleted: told, and not made again by itself
    pair.hub
        .must(&["delete", "managedcluster", "gone", "--timeout=60s"])
        .unwrap();
    pair.hub
        .eventually("the agent to notice", MINUTE, |_| {
            Ok(["deleted", "not accepted yet, or was deleted"]
                .iter()
                .any(|text| agent.log().contains(text))
                .then_some(()))
        })
        .unwrap();
    thread::sleep(Duration::from_secs(3));
    assert!(!pair.hub.kubectl(&["get", "managedcluster", "gone"]).unwrap().success());
    assert_eq!(pair.all_requests("gone"), 1);
    assert!(agent.lives());
}

#[test]
fn a_second_agent_waits_and_takes_over() {
    let pair = Pair::up();
    let mut first = pair.join_by("both");
    let second = pair.run("both");
    second.wait_for_line("another agent runs for this spoke");
    let join = pair.klusterlet("join", "both", &["--yes", "--detach"]);
    ok(&join);
    assert!(join.stderr.contains("its agent runs"), "{}", join.stderr);
    let refused = pair.place("leave", "both", &["--yes"]);
    code(&refused, 1);
    assert!(refused.stderr.contains("an agent still runs"), "{}", refused.stderr);
    assert_eq!(first.terminate(), Some(0));
    let old = pair.lease("both");
    pair.hub
        .eventually("the second agent to renew", MINUTE, |_| {
            Ok((pair.lease("both") != old).then_some(()))
        })
        .unwrap();
    assert_eq!(pair.all_requests("both"), 1);
}

#[test]
fn a_hub_that_was_rebuilt_behind_its_address_leads_to_one_new_request() {
    let mut pair = Pair::up();
    let file = pair.spoke.directory().join("bootstrap-copy.conf");
    fs::copy(&pair.bootstrap, &file).unwrap();
    let mut agent = pair.run_with("again", &file, &[]);
    pair.wait_for_request("again");
    ok(&pair.accept("again", &[]));
    pair.wait_until_available("again");

    pair.hub.rebuild().unwrap();
    pair.hub.become_hub().unwrap();
    agent.wait_for_line("does not accept the bootstrap credentials");
    assert_eq!(pair.all_requests("again"), 0);
    // what nobody knows is not tried again and again
    let refused = |pair: &Pair| {
        pair.hub
            .requests("")
            .unwrap()
            .iter()
            .filter(|event| event.agent.starts_with("kubectl-klusterlet/") && event.code == 401)
            .count()
    };
    let before = refused(&pair);
    thread::sleep(Duration::from_secs(20));
    assert!(
        refused(&pair) - before < 12,
        "{} requests in 20 s",
        refused(&pair) - before
    );

    fs::copy(&pair.bootstrap, &file).unwrap();
    pair.wait_for_request("again");
    thread::sleep(Duration::from_secs(2));
    assert_eq!(pair.all_requests("again"), 1);
    ok(&pair.accept("again", &[]));
    pair.wait_until_available("again");
    assert!(agent.lives());
}

#[test]
fn a_signer_that_the_hub_does_not_trust_leads_to_one_more_request_and_not_to_a_loop() {
    let mut pair = Pair::up();
    pair.hub.sign_with_another_authority().unwrap();
    let mut agent = pair.run("distrusted");
    let first = pair.wait_for_request("distrusted");
    ok(&pair.accept("distrusted", &[]));
    // the pair looks valid in every respect, and the hub says 401 to it
    let second = pair.wait_for_request("distrusted");
    assert_ne!(first, second);
    ok(&pair.accept("distrusted", &[]));
    agent.wait_for_line("does not accept it either (401)");
    thread::sleep(Duration::from_secs(10));
    assert_eq!(pair.all_requests("distrusted"), 2);
    assert!(agent.lives());
    // once somebody acts, it asks again
    pair.spoke.must(&["delete", "secret", "-n", NAMESPACE, SECRET]).unwrap();
    pair.wait_for_request("distrusted");
    assert_eq!(pair.all_requests("distrusted"), 3);
}
