//! `kubectl klusterlet` against a real hub: Open Cluster Management's own controllers, Kubernetes' own signer, and accounts
//! with the rights that are shipped.

use std::{
    fs,
    fs::File,
    os::unix::fs::PermissionsExt,
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    sync::{
        OnceLock,
        atomic::{AtomicU32, Ordering},
    },
    thread,
    time::{Duration, Instant},
};

use rustix::process::{Pid, Signal, kill_process};
use serde_json::{Value, json};
use tests::{
    command::{self, Output},
    hub::{APISERVER, Api, ApiOptions, AuditEvent, Parts},
    lanes::{self, Lane},
    settings::Purpose,
    static_binary::build_static_of,
};

use crate::support::built_alone;

const SECRET: &str = "hub-kubeconfig-secret";
const PENDING: &str = "hub-kubeconfig-secret-pending";
const NAMESPACE: &str = "open-cluster-management";
const MINUTE: Duration = Duration::from_secs(60);
const ACCOUNT: &str = "agent-registration-bootstrap";

/// The plugin under test: built from this checkout, or the file named by `KLUSTERLET_TEST_BINARY`.
pub(crate) fn binary() -> &'static Path {
    static BINARY: OnceLock<PathBuf> = OnceLock::new();
    BINARY.get_or_init(|| match std::env::var_os("KLUSTERLET_TEST_BINARY") {
        Some(path) => path.into(),
        None => build_static_of("kubectl-klusterlet").unwrap(),
    })
}

/// A hub and a spoke, in a lane of their own: an API takes 400 MB.
struct Pair {
    spoke: Api,
    hub: Api,
    bootstrap: PathBuf,
    _lane: Lane,
}

impl Pair {
    fn up() -> Self {
        Self::with(&ApiOptions::default())
    }

    fn with(options: &ApiOptions) -> Self {
        built_alone();
        let lane = lanes::take();
        let parts = Parts::beside(Purpose::Tests, lane.number()).unwrap();
        let mut hub = Api::up(&parts, "hub", options).unwrap();
        let bootstrap = hub.become_hub().unwrap();
        let spoke = Api::up(&parts, "spoke", &ApiOptions::default()).unwrap();
        Self {
            spoke,
            hub,
            bootstrap,
            _lane: lane,
        }
    }

    /// The directory of this cluster's files.
    fn files(&self, cluster: &str) -> PathBuf {
        self.spoke.directory().join(format!("{cluster}.files"))
    }

    /// The flags of an agent of this cluster.
    fn flags(&self, cluster: &str, bootstrap: &Path) -> Vec<String> {
        vec![
            format!("--kubeconfig={}", self.spoke.admin().display()),
            format!("--cluster-name={cluster}"),
            format!("--bootstrap-kubeconfig={}", bootstrap.display()),
            format!("--hub-kubeconfig-dir={}", self.files(cluster).display()),
        ]
    }

    fn command(&self, verb: &str, cluster: &str, more: &[&str]) -> Command {
        let mut command = Command::new(binary());
        command
            .env_clear()
            .arg(verb)
            .args(self.flags(cluster, &self.bootstrap))
            .args(more);
        command
    }

    /// Runs a command of the spoke to its end.
    fn klusterlet(&self, verb: &str, cluster: &str, more: &[&str]) -> Output {
        command::run(
            &mut self.command(verb, cluster, more),
            &format!("klusterlet {verb} {more:?}"),
            3 * MINUTE,
        )
        .unwrap()
    }

    /// Commands that take no agent's flags.
    fn place(&self, verb: &str, cluster: &str, more: &[&str]) -> Output {
        let mut command = Command::new(binary());
        command
            .env_clear()
            .arg(verb)
            .arg(format!("--kubeconfig={}", self.spoke.admin().display()))
            .arg(format!("--hub-kubeconfig-dir={}", self.files(cluster).display()))
            .args(more);
        command::run(&mut command, &format!("klusterlet {verb} {more:?}"), MINUTE).unwrap()
    }

    /// `accept` with the hub's administrator.
    fn accept(&self, cluster: &str, more: &[&str]) -> Output {
        let mut command = Command::new(binary());
        command
            .env_clear()
            .args(["accept", cluster, "--yes"])
            .arg(format!("--kubeconfig={}", self.hub.admin().display()))
            .args(more);
        command::run(
            &mut command,
            &format!("klusterlet accept {cluster} {more:?}"),
            2 * MINUTE,
        )
        .unwrap()
    }

    fn run(&self, cluster: &str) -> Agent {
        self.run_with(cluster, &self.bootstrap, &[])
    }

    fn run_with(&self, cluster: &str, bootstrap: &Path, more: &[&str]) -> Agent {
        static COUNTER: AtomicU32 = AtomicU32::new(0);
        let number = COUNTER.fetch_add(1, Ordering::Relaxed);
        let log = self.spoke.directory().join(format!("{cluster}.{number}.log"));
        let child = Command::new(binary())
            .env_clear()
            .arg("run")
            .args(self.flags(cluster, bootstrap))
            .args(["--listen=none", "--cluster-healthcheck-period=5s"])
            .args(more)
            .stdin(Stdio::null())
            .stderr(File::create(&log).unwrap())
            .spawn()
            .unwrap();
        Agent { child, log }
    }

    fn open_requests(&self, cluster: &str) -> Vec<Value> {
        let all = self
            .hub
            .get(&[
                "csr",
                "-l",
                &format!("open-cluster-management.io/cluster-name={cluster}"),
            ])
            .unwrap();
        let items = all["items"].as_array().unwrap().clone();
        items
            .into_iter()
            .filter(|request| request["status"]["conditions"].is_null())
            .collect()
    }

    fn all_requests(&self, cluster: &str) -> usize {
        let all = self
            .hub
            .get(&[
                "csr",
                "-l",
                &format!("open-cluster-management.io/cluster-name={cluster}"),
            ])
            .unwrap();
        all["items"].as_array().unwrap().len()
    }

    fn wait_for_request(&self, cluster: &str) -> String {
        self.hub
            .eventually("a certificate request", MINUTE, |_| {
                Ok(self
                    .open_requests(cluster)
                    .first()
                    .map(|request| request["metadata"]["name"].as_str().unwrap().to_owned()))
            })
            .unwrap()
    }

    /// A condition's status, or nothing.
    fn condition(&self, cluster: &str, kind: &str) -> Option<String> {
        let output = self
            .hub
            .kubectl(&["get", "managedcluster", cluster, "-o", "json"])
            .unwrap();
        let object: Value = serde_json::from_str(&output.stdout).ok()?;
        let all = object["status"]["conditions"].as_array()?;
        let found = all.iter().find(|condition| condition["type"] == kind)?;
        Some(found["status"].as_str()?.to_owned())
    }

    fn wait_for(&self, cluster: &str, kind: &str, status: &str, deadline: Duration) {
        self.hub
            .eventually(&format!("{kind} to be {status}"), deadline, |_| {
                Ok((self.condition(cluster, kind).as_deref() == Some(status)).then_some(()))
            })
            .unwrap();
    }

    fn wait_until_available(&self, cluster: &str) {
        self.wait_for(cluster, "ManagedClusterJoined", "True", MINUTE);
        self.wait_for(cluster, "ManagedClusterConditionAvailable", "True", MINUTE);
    }

    fn join_by(&self, cluster: &str) -> Agent {
        let agent = self.run(cluster);
        self.wait_for_request(cluster);
        ok(&self.accept(cluster, &[]));
        self.wait_until_available(cluster);
        agent
    }

    fn secret(&self, name: &str) -> Option<Value> {
        let output = self
            .spoke
            .kubectl(&["get", "secret", "-n", NAMESPACE, name, "-o", "json"])
            .unwrap();
        output.success().then(|| serde_json::from_str(&output.stdout).unwrap())
    }

    fn lease(&self, cluster: &str) -> String {
        let lease = self
            .hub
            .get(&["lease", "-n", cluster, "managed-cluster-lease"])
            .unwrap();
        lease["spec"]["renewTime"].as_str().unwrap().to_owned()
    }

    fn wait_for_renewal(&self, cluster: &str, deadline: Duration) {
        let before = self.lease(cluster);
        self.hub
            .eventually("the lease to be renewed", deadline, |_| {
                Ok((self.lease(cluster) != before).then_some(()))
            })
            .unwrap();
    }

    fn status(&self, cluster: &str) -> Value {
        let output = self.place("status", cluster, &["-o", "json"]);
        ok(&output);
        serde_json::from_str(&output.stdout).unwrap()
    }
}

/// An agent that runs; killed when it is dropped.
struct Agent {
    child: Child,
    log: PathBuf,
}

impl Agent {
    fn log(&self) -> String {
        fs::read_to_string(&self.log).unwrap()
    }

    fn wait_for_line(&self, text: &str) {
        let begin = Instant::now();
        while !self.log().contains(text) {
            assert!(begin.elapsed() < MINUTE, "no line with {text:?}:\n{}", self.log());
            thread::sleep(Duration::from_millis(100));
        }
    }

    fn lives(&mut self) -> bool {
        self.child.try_wait().unwrap().is_none()
    }

    /// As a supervisor ends it. Returns its exit code.
    fn terminate(&mut self) -> Option<i32> {
        kill_process(
            Pid::from_raw(i32::try_from(self.child.id()).unwrap()).unwrap(),
            Signal::TERM,
        )
        .unwrap();
        let begin = Instant::now();
        loop {
            if let Some(status) = self.child.try_wait().unwrap() {
                return status.code();
            }
            assert!(
                begin.elapsed() < Duration::from_secs(10),
                "it does not end:\n{}",
                self.log()
            );
            thread::sleep(Duration::from_millis(20));
        }
    }
}

impl Drop for Agent {
    fn drop(&mut self) {
        if thread::panicking() {
            tests::cache::say(&format!("log of the agent:\n{}", command::tail(&self.log(), 30)));
        }
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn ok(output: &Output) {
    code(output, 0);
}

fn code(output: &Output, expected: i32) {
    assert_eq!(
        output.status.code(),
        Some(expected),
        "{}\n{}",
        output.stdout,
        output.stderr
    );
}

fn by<'a>(events: &'a [AuditEvent], verb: &str, resource: &str) -> Vec<&'a AuditEvent> {
    events
        .iter()
        .filter(|event| event.verb == verb && event.resource == resource)
        .collect()
}

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
    pair.hub
        .must(&[
            "patch",
            "managedcluster",
            "gone",
            "--type=merge",
            "-p",
            r#"{"spec": {"leaseDurationSeconds": 4}}"#,
        ])
        .unwrap();
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
