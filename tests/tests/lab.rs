//! The lab itself: it measures what is there, is able to see a failure, and leaves nothing behind.

use std::{fs, path::Path, process::Command, thread, time::Duration};

use tests::{
    Lab, Options,
    command::wait_for,
    lab::mounts_below,
    network,
    settings::{Purpose, Settings},
};

#[test]
fn an_untouched_cluster_fails_no_request_a_killed_apiserver_does_and_nothing_is_left() {
    let lab = Lab::up(1, &Options::default()).unwrap();
    untouched(&lab);
    user_is_ordinary(&lab);
    twice_is_an_error(&lab);
    plugin_runs_on_the_node(&lab);
    killed(&lab);
    reboot(&lab);
    goes_without_a_trace(lab);
}

fn untouched(lab: &Lab) {
    let probe = lab.probe().unwrap();
    let load = lab.load(8).unwrap();
    let endpoints = lab.watch_endpoints().unwrap();
    let leaders = lab.watch_leaders().unwrap();
    thread::sleep(Duration::from_secs(5));
    let (probe, load) = (probe.stop().unwrap(), load.stop().unwrap());
    let (endpoints, leaders) = (endpoints.stop().unwrap(), leaders.stop().unwrap());

    assert_eq!(probe.failed, 0, "{probe:#?}");
    assert!(probe.requests >= 240, "50 a second are due: {probe:#?}");
    assert!(probe.gaps.is_empty() && probe.longest_gap_s == 0.0, "{probe:#?}");

    for (protocol, name) in [(&load.http2, "HTTP/2.0"), (&load.http1, "HTTP/1.1")] {
        assert_eq!(protocol.failed, 0, "{load:#?}");
        assert!(protocol.requests > 100, "{load:#?}");
        assert_eq!(protocol.protocols.keys().collect::<Vec<_>>(), [name], "{load:#?}");
        assert_eq!(
            protocol.connections, protocol.clients,
            "no connection was closed: {load:#?}"
        );
    }
    assert_eq!(load.watches.failed_to_open, 0, "{load:#?}");
    assert!(load.watches.events > load.watches.watches, "{load:#?}");

    for addresses in [&endpoints.endpointslices, &endpoints.endpoints] {
        assert_eq!(addresses.initial, 1, "{endpoints:#?}");
        assert_eq!(addresses.empty_total_s, 0.0, "{endpoints:#?}");
    }
    for lease in ["kube-scheduler", "kube-controller-manager"] {
        let leader = &leaders.leases[lease];
        assert!(leader.renewals >= 2 && leader.holders.len() == 1, "{leaders:#?}");
        assert!(leader.longest_without_leader_s < 1.0, "{leaders:#?}");
    }
}

fn user_is_ordinary(lab: &Lab) {
    let config = lab.settings().user_kubeconfig().display().to_string();
    let can = |verb: &str, resource: &str, namespace: &str| {
        let args = [
            "auth",
            "can-i",
            verb,
            resource,
            "-n",
            namespace,
            "--kubeconfig",
            &config,
        ];
        lab.kubectl(&args).unwrap().stdout.trim().to_owned()
    };
    assert_eq!(can("get", "configmaps", "lab"), "yes");
    assert_eq!(can("get", "secrets", "lab"), "no");
    assert_eq!(can("get", "configmaps", "kube-system"), "no");
    let who = lab
        .kubectl(&["auth", "whoami", "-o", "jsonpath={.status.userInfo.groups}"])
        .unwrap();
    assert!(who.stdout.contains("kubeadm:cluster-admins"), "{who:?}");
    assert!(!who.stdout.contains("system:masters"), "it would hide 403s: {who:?}");
}

fn twice_is_an_error(lab: &Lab) {
    let error = Lab::create(lab.settings().clone(), 1, &Options::default()).unwrap_err();
    assert!(error.hint.contains("cargo lab down"), "{error}");
}

fn plugin_runs_on_the_node(lab: &Lab) {
    let binary = tests::static_binary::build_static().unwrap();
    let output = lab.selfhost(1, &binary, &["--version"]).unwrap();
    assert!(
        output.success() && output.stdout.contains(env!("CARGO_PKG_VERSION")),
        "{output:?}"
    );
    let known = lab.sh(1, &["env"]).unwrap().stdout;
    assert!(
        !known.contains("CARGO") && !known.contains("KUBECONFIG"),
        "the environment is the node's: {known}"
    );
}

fn ready(lab: &Lab) -> bool {
    lab.kubectl(&["get", "--raw", "/readyz", "--request-timeout=2s"])
        .unwrap()
        .success()
}

fn wait_ready(lab: &Lab) {
    wait_for(
        "the apiserver to be ready again",
        Duration::from_secs(180),
        Duration::from_millis(200),
        || {
            Ok(if ready(lab) {
                Ok(())
            } else {
                Err("it is not".to_owned())
            })
        },
    )
    .unwrap();
}

fn killed(lab: &Lab) {
    let probe = lab.probe().unwrap();
    let load = lab.load(8).unwrap();
    thread::sleep(Duration::from_secs(1));
    lab.kill(1, "kube-apiserver").unwrap();
    assert!(lab.kill(1, "no-such-program").is_err());
    wait_for(
        "the apiserver to be gone",
        Duration::from_secs(10),
        Duration::from_millis(50),
        || {
            Ok(if ready(lab) {
                Err("it answers".to_owned())
            } else {
                Ok(())
            })
        },
    )
    .unwrap();
    wait_ready(lab);
    thread::sleep(Duration::from_secs(3));
    let (probe, load) = (probe.stop().unwrap(), load.stop().unwrap());

    assert!(probe.failed > 0 && probe.longest_gap_s > 0.2, "{probe:#?}");
    assert!(
        probe.kinds.keys().any(|k| k.contains("connection refused")),
        "{probe:#?}"
    );
    let gap = &probe.gaps[0];
    assert!(gap.start > 0.5 && gap.length < probe.seconds && !gap.open, "{probe:#?}");
    for protocol in [&load.http2, &load.http1] {
        assert!(
            protocol.failed > 0 && protocol.connections > protocol.clients,
            "{load:#?}"
        );
    }
    assert!(load.watches.reopened + load.watches.failed_to_open > 0, "{load:#?}");
}

fn reboot(lab: &Lab) {
    let started = || {
        let template = "jsonpath={.items[*].status.containerStatuses[*].state.running.startedAt}";
        lab.kubectl(&["get", "pods", "-n", "kube-system", "-o", template])
            .unwrap()
            .stdout
    };
    lab.wait_ready(Duration::from_secs(120)).unwrap();
    fs::write(lab.file(1, "/var/lib/selfhost/kept").unwrap(), "kept").unwrap();
    let before = started();
    let times: Vec<_> = before.split_whitespace().map(str::to_owned).collect();
    assert_eq!(times.len(), 4, "{before}");
    lab.halt(1).unwrap();
    assert!(!ready(lab));
    assert!(lab.sh(1, &["true"]).unwrap_err().to_string().contains("not running"));
    lab.start(1).unwrap();
    wait_ready(lab);
    wait_for(
        "all containers to be new ones",
        Duration::from_secs(120),
        Duration::from_millis(500),
        || {
            let after = started();
            let all_new = after.split_whitespace().count() == 4 && times.iter().all(|t| !after.contains(t.as_str()));
            Ok(if all_new { Ok(()) } else { Err(after) })
        },
    )
    .unwrap();
    assert_eq!(lab.sh(1, &["cat", "/var/lib/selfhost/kept"]).unwrap().stdout, "kept");
    assert!(
        !Path::new("/var/lib/selfhost/kept").exists(),
        "the node's files are its own"
    );
}

fn goes_without_a_trace(lab: Lab) {
    let settings = lab.settings().clone();
    let namespace = network::inode(&settings, 1).unwrap();
    assert!(
        network::processes(namespace).len() > 6,
        "containerd, kubelet, four shims and components at least"
    );
    drop(lab);
    assert_eq!(network::processes(namespace), [0; 0]);
    assert_eq!(network::namespaces(&settings), [""; 0]);
    assert_eq!(network::interfaces(&settings), [""; 0]);
    assert!(!Path::new("/sys/class/net").join(&settings.name).exists());
    assert_eq!(mounts_below(&settings.state), [""; 0]);
    assert!(!settings.state.exists());
}

#[test]
fn who_is_not_root_is_told_so() {
    let output = Command::new("setpriv")
        .args(["--reuid=65534", "--regid=65534", "--clear-groups", "--"])
        .arg(env!("CARGO_BIN_EXE_lab"))
        .arg("down")
        .env("SELFHOST_LAB_CACHE", "/tmp/nowhere/at/all")
        .output()
        .unwrap();
    let text = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(1), "{text}");
    assert!(
        text.contains("only root") && text.contains("hint: run it as root"),
        "{text}"
    );
}

#[test]
fn the_plugin_is_static_and_needs_nothing_around_it() {
    let binary = tests::static_binary::build_static().unwrap();
    let root = std::env::temp_dir().join(format!("selfhost-lab-empty-{}", std::process::id()));
    fs::create_dir_all(&root).unwrap();
    fs::copy(&binary, root.join("kubectl-selfhost")).unwrap();
    let output = Command::new("chroot")
        .arg(&root)
        .args(["/kubectl-selfhost", "--version"])
        .output()
        .unwrap();
    fs::remove_dir_all(&root).unwrap();
    assert!(output.status.success(), "{output:?}");
    assert!(
        String::from_utf8_lossy(&output.stdout).contains(env!("CARGO_PKG_VERSION")),
        "{output:?}"
    );
}

#[test]
fn configuration_that_kubeadm_does_not_know_is_an_error_and_leaves_nothing() {
    let options = Options {
        cluster_configuration: "nonsense: 1".to_owned(),
        ..Options::default()
    };
    let error = Lab::up_alone(1, &options).unwrap_err();
    assert!(
        error.why.contains("nonsense") && error.hint.contains("v1beta4"),
        "{error}"
    );
    let settings = Settings::from_env(Purpose::Tests).unwrap();
    assert!(!settings.state.exists());
    assert_eq!(network::namespaces(&settings), [""; 0]);
}

#[test]
fn the_meters_own_tests_pass() {
    let module = Path::new(env!("CARGO_MANIFEST_DIR")).join("lab/labtool");
    let (go, _) = tests::packages::require_go(std::slice::from_ref(&module)).unwrap();
    for args in [&["vet", "./..."][..], &["test", "./..."]] {
        let output = Command::new(&go).current_dir(&module).args(args).output().unwrap();
        assert!(output.status.success(), "go {args:?}: {output:?}");
    }
}
