//! `recover`: a node whose control plane is gone and whose guard is gone too comes back from its own files.

use std::{fs, time::Duration};

use tests::operate::edits::Component;

use crate::support::{COMPONENTS, Cluster, flat, say};

#[test]
fn a_node_without_control_plane_and_guard_comes_back_from_its_own_files() {
    let cluster = Cluster::up();
    let before = cluster.image();
    let output = cluster.selfhost(&["recover", "--yes"]);
    assert!(
        !output.success() && flat(&output).contains("nothing of a converted control plane lies on this node"),
        "{output:?}"
    );
    before.assert_same(&cluster.image());
    cluster.must(&["convert", "--yes"]);
    let idle = cluster.must(&["recover", "--yes"]);
    assert!(flat(&idle).contains("there is nothing to bring back"), "{idle:?}");
    everything_is_gone(&cluster);
    planned_and_brought_back(&cluster);
    without_daemon_sets_the_fallbacks_serve_on(&cluster);
    cluster.must(&["convert", "--yes"]);
    cluster.assert_self_hosted();
    cluster.must(&["revert", "--yes"]);
    cluster.assert_untouched(&before);
}

/// Guard and executable are deleted, and the node loses power: nothing brings the control plane back.
fn everything_is_gone(cluster: &Cluster) {
    fs::remove_file(cluster.file("/etc/kubernetes/manifests/selfhost-guard.yaml")).unwrap();
    fs::remove_dir_all(cluster.file("/opt/selfhost/bin")).unwrap();
    cluster.lab.halt(1).unwrap();
    cluster.lab.start(1).unwrap();
    cluster.wait("etcd to run again", 90, || {
        let running = cluster.lab.pids(1, "etcd").unwrap();
        if running.len() == 1 {
            Ok(())
        } else {
            Err(format!("{running:?}"))
        }
    });
    std::thread::sleep(Duration::from_secs(10));
    for component in COMPONENTS {
        assert_eq!(cluster.lab.pids(1, component).unwrap(), [0; 0], "{component}");
    }
}

fn planned_and_brought_back(cluster: &Cluster) {
    let names = cluster.manifest_names();
    let plan = cluster.must(&["recover", "--dry-run"]);
    for component in COMPONENTS {
        let line = format!("{component}: nothing serves: the fallback is put in, made of the original manifest");
        assert!(plan.stdout.contains(&line), "{plan:?}");
    }
    assert!(plan.stdout.contains("executable and guard are put back"), "{plan:?}");
    assert_eq!(cluster.manifest_names(), names, "a dry run changes nothing");
    let unasked = cluster.selfhost(&["recover"]);
    assert!(!unasked.success() && unasked.stderr.contains("--yes"), "{unasked:?}");
    assert_eq!(cluster.manifest_names(), names, "nothing is done unasked");
    // a damaged original is told, and nothing is done
    let original = cluster.file("/var/lib/selfhost/kube-scheduler/original.manifest");
    let bytes = fs::read(&original).unwrap();
    fs::write(&original, b"x").unwrap();
    let damaged = cluster.selfhost(&["recover", "--yes"]);
    assert!(
        !damaged.success() && flat(&damaged).contains("original.manifest is damaged"),
        "{damaged:?}"
    );
    assert_eq!(cluster.manifest_names(), names, "nothing was changed");
    fs::write(&original, bytes).unwrap();

    let begin = std::time::Instant::now();
    let done = cluster.must(&["recover", "--yes"]);
    assert!(flat(&done).contains("self-hosted again after"), "{done:?}");
    say(&format!(
        "self-hosted again {:.0} s after nothing",
        begin.elapsed().as_secs_f64()
    ));
    let operator = cluster.operator();
    operator.await_leaders().unwrap();
    operator.await_endpoints().unwrap();
    cluster.wait("status to show it", 60, || {
        let status = cluster.selfhost(&["status", "-o", "json"]);
        if status.stdout.matches("\"self-hosted\"").count() == 3 && !status.stdout.contains("troubles") {
            Ok(())
        } else {
            Err(flat(&status))
        }
    });
    for component in Component::ALL {
        operator.settle(component).unwrap();
    }
    // its process ends what it serves, for up to 30 s, and its mirror is there until then
    cluster.wait("the fallbacks' Pods to go", 90, || {
        let pods = cluster.kubectl(&["get", "pods", "-n", "kube-system", "-o", "name"]);
        if pods.contains("selfhost-fallback") {
            Err(pods)
        } else {
            Ok(())
        }
    });
    cluster.assert_self_hosted();
}

/// The apiserver's DaemonSet is gone as well: what was brought back stays, and `recover` says so. The guard goes first, or it puts
/// the fallback in; the controller manager stays, as it is what takes the Pods of a deleted DaemonSet away.
fn without_daemon_sets_the_fallbacks_serve_on(cluster: &Cluster) {
    let gone = |program: &str| {
        cluster.wait(&format!("{program} to be gone"), 120, || {
            let running = cluster.lab.pids(1, program).unwrap();
            if running.is_empty() {
                Ok(())
            } else {
                Err(format!("{running:?}"))
            }
        });
    };
    fs::remove_file(cluster.file("/etc/kubernetes/manifests/selfhost-guard.yaml")).unwrap();
    gone("kubectl-selfhost");
    cluster.kubectl(&[
        "delete",
        "daemonset",
        "-n",
        "kube-system",
        "self-hosted-kube-apiserver",
        "--wait=false",
    ]);
    gone("kube-apiserver");
    let done = cluster.must(&["recover", "--yes", "--timeout", "60s"]);
    assert!(flat(&done).contains("the fallbacks serve"), "{done:?}");
    assert_eq!(cluster.component("kube-apiserver")["state"], "fallback");
}
