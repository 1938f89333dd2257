//! A control plane there and back: conversion, reboot, revert, and what clients notice of it.

use std::{fs, time::Duration};

use serde_json::Value;

use crate::{
    image::Image,
    support::{COMPONENTS, Cluster, assert_no_failure, assert_one_gap, flat, owners, say},
};

const DEADLINE: Duration = Duration::from_secs(240);

#[test]
fn a_control_plane_is_converted_survives_a_reboot_and_comes_back_byte_for_byte() {
    let cluster = Cluster::up();
    let before = cluster.image();
    assert_eq!(before.marks(), 0);
    looking_changes_nothing(&cluster, &before);
    converted(&cluster);
    converted_twice(&cluster);
    rebooted(&cluster);
    reverted(&cluster, &before);
    one_component_and_then_the_rest(&cluster);
    reverted_without_a_gap(&cluster, &before);
}

fn looking_changes_nothing(cluster: &Cluster, before: &Image) {
    let plan = cluster.must(&["plan"]).stdout;
    for component in COMPONENTS {
        let line = format!("{component} ({component}.yaml): static -> self-hosted");
        assert!(plan.contains(&line), "{plan}");
    }
    assert!(plan.contains("expected gap"), "{plan}");
    assert_eq!(
        cluster.selfhost(&["plan", "--exit-code"]).status.code(),
        Some(3),
        "there is something to do"
    );
    let json: Value = serde_json::from_str(&cluster.must(&["plan", "-o", "json"]).stdout).unwrap();
    assert_eq!(
        json["nodes"][0]["plan"]["components"].as_array().map(Vec::len),
        Some(3),
        "{json:#}"
    );

    let client = cluster.must(&["convert", "--dry-run=client", "-o", "yaml"]).stdout;
    assert_eq!(client.matches("kind: DaemonSet").count(), 3, "{client}");
    let server = cluster.must(&["convert", "--dry-run=server"]);
    for component in COMPONENTS {
        let created = format!("DaemonSet self-hosted-{component} would be created");
        assert!(server.stderr.contains(&created), "{server:?}");
    }

    let unasked = cluster.selfhost(&["convert"]);
    assert!(!unasked.success() && unasked.stderr.contains("--yes"), "{unasked:?}");
    let status = cluster.status();
    assert!(
        status["components"]
            .as_array()
            .unwrap()
            .iter()
            .all(|c| c["state"] == "static"),
        "{status:#}"
    );
    let nothing = cluster.must(&["revert", "--yes"]);
    assert!(nothing.stderr.contains("nothing to do"), "{nothing:?}");
    before.assert_same(&cluster.image());
}

fn converted(cluster: &Cluster) {
    let convert = || cluster.start(&["convert", "--yes"]).wait(DEADLINE);
    let ((success, events, stderr), noticed) = cluster.beside(convert);
    assert!(success, "{stderr}\n{events:#?}");
    assert_no_failure("convert", &noticed);
    for (lease, leader) in &noticed.leaders.leases {
        say(&format!(
            "{lease}: without a leader for {:.2} s",
            leader.longest_without_leader_s
        ));
        assert_eq!(
            leader.holders.iter().filter(|h| !h.is_empty()).count(),
            2,
            "{lease}: {leader:#?}"
        );
    }
    told(&events);
    cluster.assert_self_hosted();
}

const TASKS: [&str; 4] = [
    "node1/node",
    "node1/kube-scheduler",
    "node1/kube-controller-manager",
    "node1/kube-apiserver",
];

/// Each task begins, does as many steps as it said, and ends well.
fn told(events: &[Value]) {
    for task in TASKS {
        let of_task: Vec<_> = events.iter().filter(|e| e["task"] == task).collect();
        let steps = of_task.iter().filter(|e| e["event"] == "step").count();
        let first = of_task
            .first()
            .unwrap_or_else(|| panic!("no event of {task}: {events:#?}"));
        assert_eq!(
            (&first["event"], &first["steps"]),
            (&"begin".into(), &steps.into()),
            "{of_task:#?}"
        );
        let last = of_task.last().unwrap();
        assert_eq!(
            (&last["event"], &last["outcome"]),
            (&"finish".into(), &"done".into()),
            "{of_task:#?}"
        );
        assert!(
            of_task
                .iter()
                .any(|e| e["event"] == "waiting" && e["message"].is_string()),
            "{of_task:#?}"
        );
    }
    let begun = events.iter().filter(|e| e["event"] == "begin");
    let order: Vec<_> = begun.filter_map(|e| e["task"].as_str()).collect();
    assert_eq!(order, TASKS);
}

fn converted_twice(cluster: &Cluster) {
    let before = cluster.image();
    let again = cluster.must(&["convert", "--yes"]);
    let text = format!("{}{}", again.stdout, again.stderr);
    assert!(text.contains("self-hosted already: nothing to do"), "{text}");
    assert_eq!(
        cluster.selfhost(&["plan", "--exit-code"]).status.code(),
        Some(0),
        "nothing to do"
    );
    before.assert_same(&cluster.image());
}

fn rebooted(cluster: &Cluster) {
    cluster.lab.reboot(1).unwrap();
    let ready = || {
        cluster
            .lab
            .kubectl(&["get", "--raw", "/readyz", "--request-timeout=2s"])
            .unwrap()
    };
    let begin = std::time::Instant::now();
    cluster.wait("the API to come back after a reboot", 120, || {
        let output = ready();
        if output.success() { Ok(()) } else { Err(output.stderr) }
    });
    say(&format!(
        "after a reboot the API is back after {:.1} s",
        begin.elapsed().as_secs_f64()
    ));
    cluster.wait("the DaemonSets' Pods alone to serve after a reboot", 180, || {
        let status = cluster.status();
        let settled = status["components"].as_array().unwrap().iter().all(|c| {
            c["state"] == "self-hosted" && c["ready"] == true && c.get("step").is_none() && c.get("troubles").is_none()
        });
        let pods: Vec<_> = COMPONENTS.iter().flat_map(|c| cluster.pods(c)).collect();
        // The kubelet removes the fallback's Pod from the API some seconds after its process has gone.
        if settled && pods.len() == 3 {
            Ok(())
        } else {
            Err(format!("{}; {status}", owners(&pods)))
        }
    });
    say(&format!(
        "and from the DaemonSets alone after {:.1} s",
        begin.elapsed().as_secs_f64()
    ));
    cluster.assert_self_hosted();
}

fn reverted(cluster: &Cluster, before: &Image) {
    let plan = cluster.must(&["revert", "--dry-run=client"]).stdout;
    assert!(
        plan.contains("expected gap of the API: one"),
        "the gap is announced: {plan}"
    );
    let unasked = cluster.selfhost(&["revert"]);
    assert!(!unasked.success() && unasked.stderr.contains("--yes"), "{unasked:?}");
    cluster.assert_self_hosted();
    let revert = || cluster.start(&["revert", "--yes"]).wait(DEADLINE);
    let ((success, events, stderr), noticed) = cluster.beside(revert);
    assert!(success, "{stderr}\n{events:#?}");
    assert_one_gap("revert", &noticed);
    cluster.assert_untouched(before);
}

fn one_component_and_then_the_rest(cluster: &Cluster) {
    cluster.must(&["convert", "--yes", "--components", "kube-scheduler"]);
    let states = || {
        let status = cluster.status();
        let all = status["components"].as_array().unwrap().clone();
        all.iter()
            .map(|c| c["state"].as_str().unwrap().to_owned())
            .collect::<Vec<_>>()
    };
    assert_eq!(states(), ["self-hosted", "static", "static"]);
    let image = cluster.image();
    cluster.must(&["convert", "--yes", "--components", "kube-scheduler"]);
    image.assert_same(&cluster.image());
    somebody_writes_a_manifest(cluster);
    cluster.must(&["convert", "--yes"]);
    cluster.assert_self_hosted();
}

/// As when another tool brings back the manifest of a component that is converted, with changes of its own.
fn somebody_writes_a_manifest(cluster: &Cluster) {
    let frozen = cluster.freeze_kubelet();
    let original = fs::read_to_string(cluster.file("/var/lib/selfhost/kube-scheduler/original.manifest")).unwrap();
    let path = cluster.manifest("kube-scheduler");
    fs::write(
        &path,
        original.replace("- kube-scheduler\n", "- kube-scheduler\n    - --v=3\n"),
    )
    .unwrap();
    cluster.wait("status to name the manifest", 20, || {
        let found = cluster.component("kube-scheduler")["foreignManifest"]["file"].clone();
        if found == "/etc/kubernetes/manifests/kube-scheduler.yaml" {
            Ok(())
        } else {
            Err(found.to_string())
        }
    });
    let image = cluster.image();
    let refused = cluster.selfhost(&["convert", "--yes"]);
    assert!(!refused.success(), "{refused:?}");
    for part in [
        "/etc/kubernetes/manifests/kube-scheduler.yaml",
        "written by somebody else",
        "move it out",
    ] {
        assert!(flat(&refused).contains(part), "{part}: {refused:?}");
    }
    image.assert_same(&cluster.image());
    fs::remove_file(&path).unwrap();
    drop(frozen);
    cluster.wait("the guard to see that it is gone", 20, || {
        let status = cluster.component("kube-scheduler");
        if status.get("foreignManifest").is_none() && status["state"] == "self-hosted" {
            Ok(())
        } else {
            Err(status.to_string())
        }
    });
}

fn reverted_without_a_gap(cluster: &Cluster, before: &Image) {
    let (reverted, noticed) = cluster.beside(|| cluster.must(&["revert", "--yes", "--keep-sharing"]));
    assert_no_failure("revert --keep-sharing", &noticed);
    assert!(
        reverted.stdout.contains("expected gap of the API: none"),
        "{reverted:?}"
    );
    cluster.lab.wait_ready(Duration::from_secs(60)).unwrap();
    // The manifests are the originals and one flag more, as it says.
    let sharing = cluster.image();
    for component in COMPONENTS {
        let path = cluster.manifest(component);
        let text = fs::read_to_string(&path).unwrap();
        assert_eq!(
            text.matches("--permit-port-sharing=true").count(),
            1,
            "{component}: {text}"
        );
        assert_eq!(cluster.lab.pids(1, component).unwrap().len(), 1, "{component}");
    }
    let without = |image: &Image| image.without(&COMPONENTS.map(|c| format!("/etc/kubernetes/manifests/{c}.yaml")));
    without(before).assert_same(&without(&sharing));
    // It can be converted again from there: see the plan.
    assert_eq!(cluster.selfhost(&["plan", "--exit-code"]).status.code(), Some(3));
}
