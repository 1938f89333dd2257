//! The control plane is changed through its DaemonSets: a good flag with nobody watching, and bad edits that cost nothing.

use std::time::Duration;

use tests::operate::edits::{Component, Mistake};

use crate::support::{Cluster, assert_no_failure, say};

const APISERVER: Component = Component::KubeApiserver;

#[test]
fn a_flag_is_changed_and_bad_edits_are_undone_without_a_failed_request() {
    let cluster = Cluster::up();
    cluster.must(&["convert", "--yes"]);
    cluster.assert_self_hosted();
    a_good_flag_with_the_guard_stopped(&cluster);
    cluster.assert_self_hosted();
    a_bad_edit(
        &cluster,
        APISERVER,
        Mistake::UnknownFlag,
        "unknown flag: --no-such-flag",
    );
    a_bad_edit(&cluster, APISERVER, Mistake::Hangs, "misbehaving on purpose");
    a_bad_edit(
        &cluster,
        Component::KubeScheduler,
        Mistake::UnknownFlag,
        "unknown flag: --no-such-flag",
    );
    a_bad_edit(
        &cluster,
        Component::KubeControllerManager,
        Mistake::NeverBinds,
        "misbehaving on purpose",
    );
    cluster.assert_self_hosted();
}

fn a_good_flag_with_the_guard_stopped(cluster: &Cluster) {
    let operator = cluster.operator();
    let before = operator.settle(APISERVER).unwrap();
    let guard = operator.stop_guard().unwrap();
    let (after, noticed) = cluster.beside(|| operator.roll(APISERVER, "event-ttl", "2h0m0s").unwrap());
    guard.must_be_stopped().unwrap();
    assert_no_failure("a good flag, guard stopped", &noticed);
    assert_ne!(after.uid, before.uid);
    let running = cluster.lab.pids(1, "kube-apiserver").unwrap();
    assert_eq!(running.len(), 1, "{running:?}");
    let arguments = std::fs::read_to_string(format!("/proc/{}/cmdline", running[0])).unwrap();
    assert!(arguments.split('\0').any(|a| a == "--event-ttl=2h0m0s"), "{arguments}");
    guard.start().unwrap();
}

/// The old Pod serves on, `status` says what is wrong with the new one, and the undo costs nothing either.
fn a_bad_edit(cluster: &Cluster, component: Component, mistake: Mistake, last_words: &str) {
    let what = format!("{mistake} for {component}");
    let operator = cluster.operator();
    let before = operator.settle(component).unwrap();
    let (after, noticed) = cluster.beside(|| {
        operator.make_mistake(component, mistake).unwrap();
        cluster.wait(&format!("status to tell of the {what}"), 60, || {
            let troubles = operator.troubles(component).unwrap();
            let told = troubles.iter().any(|t| {
                t.pod.starts_with(&component.daemon_set())
                    && !t.reason.is_empty()
                    && t.last_log_line.contains(last_words)
            });
            if told { Ok(()) } else { Err(format!("{troubles:?}")) }
        });
        // For people as well.
        let table = cluster.must(&["status"]);
        let line = format!("{component}: Pod {}-", component.daemon_set());
        assert!(
            table.stderr.contains(&line) && table.stderr.contains("it last wrote: "),
            "{table:?}"
        );
        // Longer than the probes, the soak time and the first restarts take.
        std::thread::sleep(Duration::from_secs(15));
        let pods = operator.pods(component).unwrap().unwrap();
        let old = pods
            .iter()
            .find(|p| p.uid == before.uid)
            .unwrap_or_else(|| panic!("{what}: {pods:?}"));
        assert!(
            old.ready && !old.deleting && old.restarts == before.restarts,
            "{what}: {old:?}"
        );
        assert_eq!(pods.len(), 2, "{what}: {pods:?}");
        operator.undo(component).unwrap();
        operator.settle(component).unwrap()
    });
    assert_no_failure(&what, &noticed);
    assert_eq!(
        (&after.uid, after.restarts),
        (&before.uid, before.restarts),
        "{what}: the old Pod serves on"
    );
    if let Some(seconds) = noticed.without_leader(component.name()) {
        say(&format!("{what}: without a leader for {seconds:.2} s"));
    }
}
