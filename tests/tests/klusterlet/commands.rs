//! `join`, `accept`, `status`, `leave` and their exit codes.

use super::*;

#[test]
fn join_accept_status_leave_with_their_exit_codes() {
    let pair = Pair::up();
    let cluster = "edge-7";

    // a dry run reads and writes nothing, on either side
    let since = (
        pair.hub.requests("").unwrap().len(),
        pair.spoke.requests("").unwrap().len(),
    );
    let dry = pair.klusterlet("join", cluster, &["--dry-run"]);
    ok(&dry);
    for kind in [
        "kind: ManagedCluster",
        "kind: CertificateSigningRequest",
        "kind: Secret",
        "kind: Lease",
    ] {
        assert!(dry.stdout.contains(kind), "{kind}: {}", dry.stdout);
    }
    let mine = |events: Vec<AuditEvent>, skip: usize| {
        events
            .into_iter()
            .skip(skip)
            .filter(|event| event.agent.starts_with("kubectl-klusterlet/"))
            .collect::<Vec<_>>()
    };
    let seen = [
        mine(pair.hub.requests("").unwrap(), since.0),
        mine(pair.spoke.requests("").unwrap(), since.1),
    ]
    .concat();
    assert!(!seen.is_empty(), "it looked");
    assert!(seen.iter().all(|event| !event.writes()), "{seen:#?}");
    assert!(!pair.files(cluster).exists());

    // nobody answers: time-out, with the command that is needed
    let begin = Instant::now();
    let timed_out = pair.klusterlet("join", cluster, &["--yes", "--detach", "--timeout=3s"]);
    code(&timed_out, 4);
    assert!(
        timed_out.stderr.contains(&format!("accept {cluster}")),
        "{}",
        timed_out.stderr
    );
    tests::cache::say(&format!(
        "join that times out after 3 s took {:.2} s",
        begin.elapsed().as_secs_f64()
    ));
    let request = pair.open_requests(cluster)[0]["metadata"]["name"]
        .as_str()
        .unwrap()
        .to_owned();
    assert_eq!(pair.status(cluster)["request"]["name"], request);

    // denied: with the hub's reason; the next join asks anew
    pair.hub.must(&["certificate", "deny", &request]).unwrap();
    let denied = pair.klusterlet("join", cluster, &["--yes", "--detach", "--timeout=3s"]);
    code(&denied, 4);
    let second = pair.open_requests(cluster)[0]["metadata"]["name"]
        .as_str()
        .unwrap()
        .to_owned();
    assert_ne!(second, request);
    let mut waiting = pair
        .command("join", cluster, &["--yes", "--detach", "--timeout=60s"])
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    thread::sleep(Duration::from_secs(1));
    assert!(
        waiting.try_wait().unwrap().is_none(),
        "it goes on with the open request"
    );
    assert_eq!(pair.open_requests(cluster).len(), 1);
    ok(&pair.accept(cluster, &["--wait=joined"]));
    assert_eq!(waiting.wait_with_output().unwrap().status.code(), Some(0));

    // once more is a no-op
    let requests = pair.all_requests(cluster);
    let again = pair.klusterlet("join", cluster, &["--detach", "--wait=joined"]);
    ok(&again);
    assert!(again.stderr.contains("joined already"), "{}", again.stderr);
    assert_eq!(pair.all_requests(cluster), requests);
    let status = pair.status(cluster);
    assert_eq!(
        (&status["cluster"], &status["hubs"][0]["reachable"]),
        (&json!(cluster), &json!(true)),
        "{status:#}"
    );
    ok(&pair.klusterlet("validate", cluster, &[]));

    // leave: refused over work of the hub, then done, then a no-op
    pair.spoke.add_works().unwrap();
    let work = json!({"apiVersion": "work.open-cluster-management.io/v1", "kind": "AppliedManifestWork", "metadata": {"name": "left-over"},
        "spec": {"hubHash": "h", "manifestWorkName": "w", "agentID": "a"}});
    pair.spoke.apply(&work.to_string()).unwrap();
    let refused = pair.place("leave", cluster, &["--yes"]);
    code(&refused, 1);
    assert!(refused.stderr.contains("left-over"), "{}", refused.stderr);
    assert!(pair.secret(SECRET).is_some());
    pair.spoke
        .must(&["delete", "appliedmanifestwork", "left-over"])
        .unwrap();
    let left = pair.place("leave", cluster, &["--yes"]);
    ok(&left);
    assert!(
        left.stdout.contains(&format!("delete managedcluster {cluster}")),
        "{}",
        left.stdout
    );
    assert!(pair.secret(SECRET).is_none() && !pair.files(cluster).exists());
    let twice = pair.place("leave", cluster, &["--yes"]);
    ok(&twice);
    assert!(twice.stderr.contains("nothing was changed"), "{}", twice.stderr);
    assert_eq!(pair.status(cluster)["state"], "notJoined");
}

#[test]
fn refusals_have_their_reasons_and_exit_codes() {
    let mut pair = Pair::up();
    // the same cluster
    let mut same = Command::new(binary());
    same.env_clear()
        .args(["join", "--yes", "--cluster-name=self"])
        .arg(format!("--kubeconfig={}", pair.hub.admin().display()))
        .arg(format!("--bootstrap-kubeconfig={}", pair.bootstrap.display()))
        .arg(format!("--hub-kubeconfig-dir={}", pair.files("self").display()));
    let same = command::run(&mut same, "join itself", MINUTE).unwrap();
    code(&same, 1);
    assert!(same.stderr.contains("same cluster"), "{}", same.stderr);

    // the name is another spoke's
    let foreign = json!({"apiVersion": "cluster.open-cluster-management.io/v1", "kind": "ManagedCluster",
        "metadata": {"name": "taken", "annotations": {"agent.open-cluster-management.io/spoke-uid": "another"}}, "spec": {"hubAcceptsClient": false}});
    pair.hub.apply(&foreign.to_string()).unwrap();
    code(
        &pair.klusterlet("join", "taken", &["--yes", "--detach", "--timeout=20s"]),
        7,
    );
    assert_eq!(pair.all_requests("taken"), 0);

    // two identities claim one name
    let _agent = pair.run("twice");
    pair.wait_for_request("twice");
    let copy = pair.open_requests("twice").remove(0);
    let other = json!({"apiVersion": "certificates.k8s.io/v1", "kind": "CertificateSigningRequest",
        "metadata": {"name": "twice-other", "labels": copy["metadata"]["labels"]}, "spec": {"request": copy["spec"]["request"], "signerName": copy["spec"]["signerName"], "usages": copy["spec"]["usages"]}});
    pair.hub.apply(&other.to_string()).unwrap();
    let refused = pair.accept("twice", &["--requester=kubernetes-admin"]);
    code(&refused, 1);
    assert!(
        refused.stderr.contains("identities claim the name twice"),
        "{}",
        refused.stderr
    );
    assert_eq!(pair.open_requests("twice").len(), 2, "nothing was approved");

    // the hub does not know the credentials
    let expired = pair.spoke.directory().join("expired.conf");
    let mut object: Value = serde_json::from_str(&fs::read_to_string(&pair.bootstrap).unwrap()).unwrap();
    object["users"][0]["user"] = json!({"token": "no-longer-valid"});
    fs::write(&expired, object.to_string()).unwrap();
    let mut unknown = Command::new(binary());
    unknown
        .env_clear()
        .arg("join")
        .args(pair.flags("x", &expired))
        .args(["--yes", "--component-namespace=other"]);
    let unknown = command::run(&mut unknown, "join with a token that ended", MINUTE).unwrap();
    code(&unknown, 6);

    // the hub is down
    pair.hub.stop(APISERVER).unwrap();
    let mut down = Command::new(binary());
    down.env_clear()
        .arg("join")
        .args(pair.flags("y", &pair.bootstrap))
        .args(["--yes", "--component-namespace=other"]);
    code(&command::run(&mut down, "join a hub that is down", MINUTE).unwrap(), 5);
}

#[test]
fn a_denial_is_told_with_its_reason_and_a_running_agent_does_not_ask_again() {
    let pair = Pair::up();
    let child = pair
        .command("join", "no", &["--yes", "--detach", "--timeout=60s"])
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let request = pair.wait_for_request("no");
    pair.hub.must(&["certificate", "deny", &request]).unwrap();
    let output = child.wait_with_output().unwrap();
    let stderr = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(3), "{stderr}");
    assert!(stderr.contains("KubectlDeny"), "{stderr}");

    let agent = pair.run("no");
    agent.wait_for_line("denied the certificate request");
    thread::sleep(Duration::from_secs(3));
    assert_eq!(pair.all_requests("no"), 1);
    // once it is gone from the hub, one is asked for again
    pair.hub.must(&["delete", "csr", &request]).unwrap();
    pair.wait_for_request("no");
}
