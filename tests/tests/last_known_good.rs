//! What the guard keeps and tells: a template that ran well becomes the fallback, one that did not never does; Events; the
//! policy for our marks; the limit on changes of mind.

use std::{
    fs,
    os::unix::fs::MetadataExt,
    path::Path,
    thread,
    time::{Duration, Instant},
};

use serde_json::{Value, json};
use tests::operate::edits::{Component, Mistake};

use crate::support::{COMPONENTS, Cluster, say};

const APISERVER: Component = Component::KubeApiserver;
const SCHEDULER: Component = Component::KubeScheduler;
const STATE: &str = "/var/lib/selfhost";
const PREFIX: &str = "selfhost.node-restriction.kubernetes.io";

#[test]
fn a_template_that_ran_well_is_what_comes_back() {
    let cluster = Cluster::up();
    let before = cluster.image();
    // ten minutes in earnest
    cluster.must(&["convert", "--yes", "--last-known-good-after", "6s"]);
    cluster.assert_self_hosted();
    for component in COMPONENTS {
        await_template(&cluster, component, 1);
    }
    the_policy_keeps_others_out(&cluster);
    a_good_edit_with_a_secret_is_kept(&cluster);
    what_goes_beyond_the_original_is_not_kept(&cluster);
    after_a_power_cut_in_a_bad_edit_the_good_template_serves(&cluster);
    private(&cluster);
    events_tell(&cluster);
    a_flapping_annotation_is_held_back(&cluster);
    cluster.must(&["revert", "--yes"]);
    cluster.kubectl(&["delete", "secret", "-n", "kube-system", "webhook"]);
    cluster.kubectl(&["delete", "clusterrole,clusterrolebinding", "node-patcher"]);
    cluster.assert_untouched(&before);
    let left = cluster.kubectl(&[
        "get",
        "validatingadmissionpolicies,validatingadmissionpolicybindings",
        "-o",
        "name",
    ]);
    assert!(!left.contains("selfhost"), "{left}");
}

/// The fallback of a component, as `status` shows it.
fn fallback(cluster: &Cluster, component: &str) -> Value {
    cluster.component(component)["fallback"].clone()
}

fn await_template(cluster: &Cluster, component: &str, generation: u64) {
    cluster.wait(
        &format!("the fallback of {component} to be of generation {generation}"),
        60,
        || {
            let found = fallback(cluster, component);
            let is_it =
                found["madeOf"] == "template" && found["generation"] == generation && found.get("refused").is_none();
            if is_it { Ok(()) } else { Err(found.to_string()) }
        },
    );
}

fn the_policy_keeps_others_out(cluster: &Cluster) {
    let policy = cluster.must(&["policy"]).stdout;
    let file = cluster.lab.settings().state.join("policy.yaml");
    fs::write(&file, policy).unwrap();
    cluster.kubectl(&["apply", "-f", &file.display().to_string()]);
    cluster.kubectl(&[
        "create",
        "clusterrole",
        "node-patcher",
        "--verb=get,patch,update",
        "--resource=nodes,nodes/status",
    ]);
    cluster.kubectl(&[
        "create",
        "clusterrolebinding",
        "node-patcher",
        "--clusterrole=node-patcher",
        "--user=patcher",
    ]);
    let desired = format!("{PREFIX}/kube-apiserver.desired");
    let refused = |user: &str, args: &[&str]| {
        let output = cluster
            .lab
            .kubectl(&[&[format!("--as={user}").as_str()], args].concat())
            .unwrap();
        let told = output.stderr.contains("selfhost-node-marks") && output.stderr.contains("DaemonSets in kube-system");
        if !output.success() && told {
            Ok(())
        } else {
            Err(format!("{user} {args:?}: {output:?}"))
        }
    };
    // a policy is in force some seconds after it was made
    let flap = [
        "annotate",
        "node",
        "node1",
        "--overwrite",
        &format!("{desired}=static"),
        "--dry-run=server",
    ];
    cluster.wait("the policy to be in force", 60, || refused("patcher", &flap));
    for change in [
        format!("{desired}-"),
        format!("{PREFIX}/kube-apiserver.report={{}}"),
        format!("{PREFIX}/guard-"),
        format!("{PREFIX}/something=new"),
    ] {
        refused("patcher", &["annotate", "node", "node1", "--overwrite", &change]).unwrap();
    }
    for change in [
        format!("{PREFIX}/kube-apiserver-"),
        format!("{PREFIX}/kube-apiserver=other"),
    ] {
        refused("patcher", &["label", "node", "node1", "--overwrite", &change]).unwrap();
    }
    let status = json!({"metadata": {"annotations": {desired.clone(): "static"}}}).to_string();
    refused(
        "patcher",
        &[
            "patch",
            "node",
            "node1",
            "--subresource=status",
            "--type=merge",
            "-p",
            &status,
        ],
    )
    .unwrap();
    // what is not ours is not our business, and the kubelet and administrators work on
    cluster.kubectl(&["--as=patcher", "annotate", "node", "node1", "example.com/x=y"]);
    cluster.kubectl(&["annotate", "node", "node1", "example.com/x-"]);
    let kubelet = [
        "--kubeconfig=/etc/kubernetes/kubelet.conf",
        "annotate",
        "node",
        "node1",
        "--overwrite",
    ];
    let as_kubelet = |change: &str| {
        let path = cluster.lab.built().kubernetes.join("kubectl").display().to_string();
        let args = [&[path.as_str()], &kubelet[..], &[change]].concat();
        cluster.lab.sh(1, &args).unwrap()
    };
    let output = as_kubelet(&format!("{desired}=static"));
    assert!(
        !output.success() && output.stderr.contains("selfhost-node-marks"),
        "{output:?}"
    );
    let output = as_kubelet(&format!("{PREFIX}/guard=x"));
    assert!(output.success(), "the guard puts it right again: {output:?}");
    cluster.wait("the guard to report again", 30, || {
        let node = cluster.get(&["node", "node1"]);
        let guard = node["metadata"]["annotations"][format!("{PREFIX}/guard")].to_string();
        if guard.contains("build") { Ok(()) } else { Err(guard) }
    });
}

fn a_good_edit_with_a_secret_is_kept(cluster: &Cluster) {
    let operator = cluster.operator();
    cluster.kubectl(&[
        "create",
        "secret",
        "generic",
        "webhook",
        "-n",
        "kube-system",
        "--from-literal=key=very secret",
    ]);
    let template = cluster.get(&["daemonset", "-n", "kube-system", &APISERVER.daemon_set()]);
    let flags = template["spec"]["template"]["spec"]["containers"][0]["command"]
        .as_array()
        .unwrap()
        .len();
    let container = "/spec/template/spec/containers/0";
    operator
        .patch(
            APISERVER,
            &json!([
                {"op": "add", "path": format!("{container}/command/{flags}"), "value": "--event-ttl=3h"},
                {"op": "add", "path": format!("{container}/volumeMounts/-"), "value": {"name": "webhook", "mountPath": "/etc/webhook", "readOnly": true}},
                {"op": "add", "path": "/spec/template/spec/volumes/-", "value": {"name": "webhook", "secret": {"secretName": "webhook"}}},
            ]),
        )
        .unwrap();
    operator.settle(APISERVER).unwrap();
    await_template(cluster, "kube-apiserver", 2);
    private(cluster);
    let files = cluster.file(&format!("{STATE}/kube-apiserver/files"));
    let directory = fs::read_dir(&files).unwrap().next().unwrap().unwrap().path();
    assert_eq!(
        fs::read_to_string(directory.join("webhook/key")).unwrap(),
        "very secret"
    );
    let node = cluster.get(&["node", "node1"]).to_string();
    assert!(!node.contains("very secret") && !cluster.kubectl(&["get", "events", "-A"]).contains("very secret"));
}

/// A hostPath that the original does not have: the Pod runs, and the fallback stays what it was.
fn what_goes_beyond_the_original_is_not_kept(cluster: &Cluster) {
    let operator = cluster.operator();
    operator
        .patch(
            SCHEDULER,
            &json!([
                {"op": "add", "path": "/spec/template/spec/containers/0/volumeMounts/-", "value": {"name": "root", "mountPath": "/host", "readOnly": true}},
                {"op": "add", "path": "/spec/template/spec/volumes/-", "value": {"name": "root", "hostPath": {"path": "/root"}}},
            ]),
        )
        .unwrap();
    operator.settle(SCHEDULER).unwrap();
    cluster.wait("status to say why the fallback stays", 60, || {
        let found = fallback(cluster, "kube-scheduler");
        let told = found["refused"]
            .as_str()
            .is_some_and(|why| why.contains("mounts /root of the node to read"));
        if told && found["generation"] == 1 {
            Ok(())
        } else {
            Err(found.to_string())
        }
    });
    let table = cluster.must(&["status", "-o", "wide"]);
    assert!(
        table.stdout.contains("generation 2") && table.stdout.contains("generation 1"),
        "{table:?}"
    );
    assert!(
        table
            .stderr
            .contains("kube-scheduler: the fallback is still made of the template of generation 1"),
        "{table:?}"
    );
    operator.undo(SCHEDULER).unwrap();
    operator.settle(SCHEDULER).unwrap();
}

fn after_a_power_cut_in_a_bad_edit_the_good_template_serves(cluster: &Cluster) {
    let operator = cluster.operator();
    operator.make_mistake(APISERVER, Mistake::UnknownFlag).unwrap();
    cluster.wait("the bad Pod to fail", 60, || {
        let troubles = operator.troubles(APISERVER).unwrap();
        if troubles.is_empty() {
            Err("no trouble yet".into())
        } else {
            Ok(())
        }
    });
    // longer than a good template needs
    thread::sleep(Duration::from_secs(10));
    assert_eq!(
        fallback(cluster, "kube-apiserver")["generation"],
        2,
        "a template that never ran well is not kept"
    );
    cluster.lab.halt(1).unwrap();
    cluster.lab.start(1).unwrap();
    let seen = fallback_process(cluster, Duration::from_secs(120));
    assert!(
        seen.contains("--event-ttl=3h"),
        "the fallback is the template that ran well: {seen}"
    );
    cluster.wait("the API after the power cut", 120, || {
        match cluster.lab.kubectl(&["get", "nodes"]).unwrap() {
            output if output.success() => Ok(()),
            output => Err(output.stderr),
        }
    });
    cluster.wait("the bad edit to be undone", 60, || {
        operator.undo(APISERVER).map_err(|error| error.to_string())
    });
    cluster.wait("the good Pods to serve alone", 240, || {
        let status = cluster.selfhost(&["status", "-o", "json"]);
        let alone = status.stdout.matches("\"self-hosted\"").count() >= 3
            && cluster.manifest_names() == ["etcd.yaml", "selfhost-guard.yaml"];
        if alone {
            Ok(())
        } else {
            Err(format!("{:?} {}", cluster.manifest_names(), status.stdout))
        }
    });
    operator.settle(APISERVER).unwrap();
    operator.await_leaders().unwrap();
    cluster.assert_self_hosted();
}

/// The command line of the first fallback of the apiserver that is seen.
fn fallback_process(cluster: &Cluster, deadline: Duration) -> String {
    let begin = Instant::now();
    while begin.elapsed() < deadline {
        for pid in cluster.lab.pids(1, "kube-apiserver").unwrap_or_default() {
            let read = |name: &str| fs::read_to_string(format!("/proc/{pid}/{name}")).unwrap_or_default();
            if read("environ").contains("KUBECTL_SELFHOST_ROLE=fallback") {
                let file = format!("/proc/{pid}/root/etc/webhook/key");
                let content = fs::read_to_string(&file).unwrap();
                assert_eq!(content, "very secret", "its Secret is a file of the node");
                say(&format!(
                    "the fallback runs {:.1} s after the start",
                    begin.elapsed().as_secs_f64()
                ));
                return read("cmdline").replace('\0', " ");
            }
        }
        thread::sleep(Duration::from_millis(20));
    }
    panic!("no fallback came within {deadline:?}");
}

/// Nobody but root reads anything of ours, but for what Pods must see.
fn private(cluster: &Cluster) {
    fn walk(path: &Path, root: &Path, found: &mut Vec<String>) {
        let metadata = fs::symlink_metadata(path).unwrap();
        let inside = format!("/{}", path.strip_prefix(root).unwrap().display());
        let mode = metadata.mode() & 0o7777;
        let expected = match (metadata.is_dir(), inside.as_str()) {
            (true, path) if path.ends_with("/run") => 0o755,
            (true, path) if path.ends_with("/notes") => 0o1777,
            (true, _) => 0o700,
            (false, path) if path.ends_with("/run/verdict") || path.contains("/notes/") => 0o644,
            (false, _) => 0o600,
        };
        if mode != expected || metadata.uid() != 0 || metadata.gid() != 0 {
            found.push(format!("{inside}: {mode:o}, {}:{}", metadata.uid(), metadata.gid()));
        }
        if metadata.is_dir() {
            for entry in fs::read_dir(path).unwrap().flatten() {
                walk(&entry.path(), root, found);
            }
        }
    }
    let root = cluster.file(STATE);
    let mut found = Vec::new();
    walk(&root, &root, &mut found);
    assert_eq!(found, [""; 0]);
}

fn events_tell(cluster: &Cluster) {
    let list = cluster.get(&["events", "-n", "default", "--field-selector=source=selfhost-guard"]);
    let events: Vec<(String, String)> = list["items"]
        .as_array()
        .unwrap()
        .iter()
        .map(|event| {
            assert_eq!(
                (&event["involvedObject"]["kind"], &event["involvedObject"]["name"]),
                (&json!("Node"), &json!("node1"))
            );
            let text = |key: &str| event[key].as_str().unwrap_or_default().to_owned();
            (text("reason"), text("message"))
        })
        .collect();
    for (reason, message) in [
        ("SelfHostHandedOver", "kube-scheduler: the DaemonSet's Pod serves alone"),
        (
            "SelfHostLastKnownGood",
            "kube-apiserver: the fallback is made of the template of generation 2",
        ),
        (
            "SelfHostFallbackStays",
            "kube-scheduler: the template that runs cannot be the fallback",
        ),
        ("SelfHostFallbackIn", "kube-apiserver: nothing served"),
        ("SelfHostFallbackOut", "kube-apiserver: the fallback was taken out"),
    ] {
        assert!(
            events.iter().any(|(r, m)| r == reason && m.starts_with(message)),
            "{reason}: {events:#?}"
        );
    }
    assert!(events.len() < 40, "{events:#?}");
}

/// Somebody who may do it states one thing and its opposite again and again.
fn a_flapping_annotation_is_held_back(cluster: &Cluster) {
    let (desired, report) = (
        format!("{PREFIX}/kube-scheduler.desired"),
        format!("{PREFIX}/kube-scheduler.report"),
    );
    let reported = || -> Value {
        let node = cluster.get(&["node", "node1"]);
        serde_json::from_str(node["metadata"]["annotations"][&report].as_str().unwrap()).unwrap()
    };
    let mut made = 0;
    let mut held_back = String::new();
    for turn in 0..14 {
        let wish = if turn % 2 == 0 { "static" } else { "self-hosted" };
        cluster.kubectl(&["annotate", "node", "node1", "--overwrite", &format!("{desired}={wish}")]);
        cluster.wait("the guard to follow, or to say that it does not", 30, || {
            let now = reported();
            let error = now["error"].as_str().unwrap_or_default().to_owned();
            if error.contains("has changed 10 times within 30 minutes") {
                held_back = error;
                Ok(())
            } else if now["desired"] == wish {
                made += 1;
                Ok(())
            } else {
                Err(now.to_string())
            }
        });
        if !held_back.is_empty() {
            break;
        }
    }
    assert!(held_back.contains("the next change is made in"), "{held_back}");
    say(&format!("{made} changes were made, then: {held_back}"));
    assert!((5..10).contains(&made), "{made}");
}
