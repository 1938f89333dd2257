//! Manifests that forbid a conversion, and components that suffer from theirs: a part of the tests of bad input.

use std::{
    fs,
    os::unix::fs::MetadataExt,
    path::PathBuf,
    time::{Duration, Instant},
};

use serde_json::Value;

use crate::{
    bad_input::Bad,
    support::{MANIFESTS, say},
};

/// A manifest that is another one until the value is dropped; then the old file itself is back.
struct Replaced {
    path: PathBuf,
    kept: PathBuf,
}

impl Replaced {
    fn new(bad: &Bad, component: &str, change: impl Fn(&str) -> String) -> Self {
        let path = bad.manifest(component);
        let kept = bad.file("/etc/kubernetes/kept.yaml");
        let text = fs::read_to_string(&path).unwrap();
        let changed = change(&text);
        assert_ne!(changed, text, "the change finds its place in {text}");
        let inode = fs::metadata(&path).unwrap().ino();
        let new = bad.file("/etc/kubernetes/new.yaml");
        fs::write(&new, changed).unwrap();
        fs::rename(&path, &kept).unwrap();
        fs::rename(&new, &path).unwrap();
        assert_ne!(fs::metadata(&path).unwrap().ino(), inode);
        Self { path, kept }
    }
}

impl Drop for Replaced {
    fn drop(&mut self) {
        fs::rename(&self.kept, &self.path).unwrap();
    }
}

fn wait_for_pod(bad: &Bad, what: &str, holds: impl Fn(&Value) -> bool) {
    bad.wait(what, 120, || {
        let pods = bad.pods("kube-scheduler");
        let seen: Vec<_> = pods
            .iter()
            .map(|pod| pod["status"]["containerStatuses"].to_string())
            .collect();
        if pods.len() == 1 && holds(&pods[0]["status"]) {
            Ok(())
        } else {
            Err(seen.join("\n"))
        }
    });
}

/// The kubelet does what the manifests say, and the component suffers.
pub(crate) fn components_that_do_not_run_well(bad: &Bad) {
    let pod = "Pod kube-system/kube-scheduler-node1";
    {
        let _broken = Replaced::new(bad, "kube-scheduler", |text| {
            text.replace(
                "    - --leader-elect=true\n",
                "    - --leader-elect=true\n    - --no-such-flag\n",
            )
        });
        wait_for_pod(bad, "the scheduler to be in restart back-off", |status| {
            status["containerStatuses"][0]["state"]["waiting"]["reason"] == "CrashLoopBackOff"
        });
        bad.refused(&[
            pod,
            "is not ready",
            "CrashLoopBackOff",
            "exit code 1",
            "mend the static Pod first",
        ]);
    }
    {
        let _unready = Replaced::new(bad, "kube-scheduler", |text| {
            let (before, probe) = text.split_once("readinessProbe:").unwrap();
            format!(
                "{before}readinessProbe:{}",
                probe.replacen("path: /readyz", "path: /nothing", 1)
            )
        });
        wait_for_pod(bad, "the scheduler to run without being ready", |status| {
            let container = &status["containerStatuses"][0];
            container["started"] == true && container["ready"] == false && container["restartCount"] == 0
        });
        bad.refused(&[pod, "is not ready", "its readiness probe fails"]);
    }
    {
        let path = bad.manifest("kube-scheduler");
        let away = bad.file("/etc/kubernetes/away.yaml");
        fs::rename(&path, &away).unwrap();
        bad.wait("the scheduler to be gone", 60, || {
            let pods = bad.pods("kube-scheduler");
            if pods.is_empty() {
                Ok(())
            } else {
                Err(format!("{} Pods", pods.len()))
            }
        });
        bad.refused(&[MANIFESTS, "no manifest there runs kube-scheduler", "staticPodPath"]);
        fs::rename(&away, &path).unwrap();
    }
    // The same Pod as at first: the kubelet may take its time.
    bad.lab.wait_ready(Duration::from_secs(120)).unwrap();
}

/// Files that the plugin reads and the kubelet, which stands still, does not: the component lives on.
pub(crate) fn files_in_the_manifest_directory(bad: &Bad) {
    let with_file = |name: &str, content: &str, texts: &[&str]| {
        let path = bad.file(&format!("{MANIFESTS}/{name}"));
        fs::write(&path, content).unwrap();
        bad.refused(texts);
        fs::remove_file(&path).unwrap();
    };
    let scheduler = fs::read_to_string(bad.manifest("kube-scheduler")).unwrap();
    let apiserver = fs::read_to_string(bad.manifest("kube-apiserver")).unwrap();
    with_file(
        "kube-apiserver.yaml.bak",
        &apiserver,
        &[
            "kube-apiserver.yaml, kube-apiserver.yaml.bak",
            "2 files run kube-apiserver",
            "move the others out",
        ],
    );
    with_file(
        "kube-apiserver.yaml.new",
        "",
        &["kube-apiserver.yaml.new", "is empty", "move it out"],
    );
    let cut = &apiserver[..apiserver.find("image:").unwrap() + 3];
    with_file("kube-apiserver.cut", cut, &["kube-apiserver.cut"]);
    let list = format!(
        "apiVersion: v1\nkind: PodList\nitems:\n- {}",
        apiserver.trim_end().replace('\n', "\n  ")
    );
    with_file("all.yaml", &list, &["all.yaml", "PodList"]);

    let with_change = |component: &str, change: &dyn Fn(&str) -> String, texts: &[&str]| {
        let _changed = Replaced::new(bad, component, change);
        bad.refused(texts);
    };
    with_change(
        "kube-scheduler",
        &|_| String::new(),
        &["kube-scheduler.yaml", "is empty"],
    );
    with_change(
        "kube-scheduler",
        &|text| {
            text.replace(
                "    - kube-scheduler\n",
                "    - sh\n    - -c\n    - exec kube-scheduler --leader-elect=true\n",
            )
        },
        &[
            "kube-scheduler.yaml: spec.containers[kube-scheduler].command",
            "shell",
            "write the command as a list",
        ],
    );
    with_change(
        "kube-apiserver",
        &|text| text.replace("port: probe-port", "port: nobody"),
        &[
            "kube-apiserver.yaml: spec.containers[kube-apiserver]",
            "Probe.httpGet.port",
            "\"nobody\"",
            "write the port's number",
        ],
    );
    with_change(
        "kube-scheduler",
        &|text| {
            text.replace(
                "/etc/kubernetes/scheduler.conf\n      type: FileOrCreate",
                "/etc/kubernetes/missing.conf\n      type: File",
            )
        },
        &[
            "/etc/kubernetes/missing.conf",
            "is not there",
            "the volume kubeconfig of kube-scheduler needs it",
        ],
    );
    with_change(
        "kube-apiserver",
        &|text| {
            let side_car = "  containers:\n  - name: kms\n    image: kms.test/kms:1\n    command: [kms, --listen=unix:///run/kms/kms.sock]\n    \
                            volumeMounts:\n    - {name: kms, mountPath: /run/kms}\n";
            let volume = "  volumes:\n  - {name: kms, hostPath: {path: /run/kms, type: DirectoryOrCreate}}\n";
            text.replacen("  containers:\n", side_car, 1)
                .replacen("  volumes:\n", volume, 1)
        },
        &[
            "kube-apiserver.yaml: spec.containers[kms]",
            "the Unix socket /run/kms/kms.sock",
            "a static Pod of its own",
        ],
    );
    assert_eq!(fs::read_to_string(bad.manifest("kube-scheduler")).unwrap(), scheduler);
    assert_eq!(fs::read_to_string(bad.manifest("kube-apiserver")).unwrap(), apiserver);
}

/// The kubelet has stood still for so long that the cluster has noticed.
pub(crate) fn a_node_that_is_not_ready(bad: &Bad, since: Instant) {
    bad.wait("the Node to be seen as not Ready", 120, || {
        let node = bad.get(&["node", "node1"]);
        let ready = node["status"]["conditions"]
            .as_array()
            .unwrap()
            .iter()
            .find(|c| c["type"] == "Ready")
            .cloned();
        if ready.as_ref().is_some_and(|c| c["status"] != "True") {
            Ok(())
        } else {
            Err(format!("{ready:?}"))
        }
    });
    say(&format!(
        "the Node is not Ready {:.0} s after its kubelet stood still",
        since.elapsed().as_secs_f64()
    ));
    bad.refused(&[
        "Node node1",
        "is not Ready",
        "Kubelet stopped posting node status",
        "mend the node first",
    ]);
}
