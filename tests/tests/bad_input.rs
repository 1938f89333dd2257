//! What forbids a conversion on a real node: each refusal names the file or object and the remedy, and changes nothing.

use std::{
    cell::RefCell,
    fs,
    process::{Child, Stdio},
    time::{Duration, Instant},
};

use serde_json::json;
use tests::command::Output;

use crate::{
    bad_manifests,
    image::Image,
    running::children,
    support::{Cluster, flat, say, signal},
};

#[test]
fn bad_input_gets_a_clear_error_and_changes_nothing() {
    let cluster = Cluster::up();
    let bad = &Bad {
        cluster,
        wrong: RefCell::default(),
    };
    let before = bad.image();
    who_asks(bad);
    clusters_that_are_not_this_nodes(bad);
    objects_in_the_way(bad);
    a_mount_that_forbids_programs(bad);
    bad_manifests::components_that_do_not_run_well(bad);
    let frozen = bad.freeze_kubelet();
    let begin = Instant::now();
    bad_manifests::files_in_the_manifest_directory(bad);
    bad_manifests::a_node_that_is_not_ready(bad, begin);
    drop(frozen);
    bad.lab.wait_ready(Duration::from_secs(120)).unwrap();
    before.assert_same(&bad.image());
    // All the same, it can be converted: no refusal was for another reason than the one that was made here.
    assert_eq!(bad.selfhost(&["plan", "--exit-code"]).status.code(), Some(3));
    let wrong = bad.wrong.borrow();
    assert!(wrong.is_empty(), "{}", wrong.join("\n\n"));
}

/// Collects what is wrong, so that one run shows all of it.
pub(crate) struct Bad {
    cluster: Cluster,
    wrong: RefCell<Vec<String>>,
}

impl std::ops::Deref for Bad {
    type Target = Cluster;

    fn deref(&self) -> &Cluster {
        &self.cluster
    }
}

impl Bad {
    /// `convert` is refused with these texts in its error, and changes nothing.
    pub(crate) fn refused(&self, texts: &[&str]) {
        self.refused_with(&[], texts);
    }

    fn refused_with(&self, args: &[&str], texts: &[&str]) {
        let before = self.image();
        let output = self.selfhost(&[&["convert", "--yes"], args].concat());
        self.check(&output, texts, &before);
    }

    fn check(&self, output: &Output, texts: &[&str], before: &Image) {
        let error = &output.stderr;
        assert!(
            !output.success(),
            "nothing forbade it, and all that follows would be wrong: {texts:?}\n{error}"
        );
        let flat = flat(output);
        let mut wrong: Vec<_> = texts
            .iter()
            .filter(|text| !flat.contains(**text))
            .map(|text| format!("{text:?} is missing"))
            .collect();
        // 2 is for the command line: see `Kind` in the crate shared.
        // What was waited for may be told before it.
        let told = error.lines().any(|line| line.starts_with("error: "));
        if !matches!(output.status.code(), Some(1 | 2)) || !told || error.contains("panicked") {
            wrong.push(format!("no clear error: {}", output.status));
        }
        if !flat.contains(" hint: ") {
            wrong.push("no hint".to_owned());
        }
        wrong.extend(before.changes(&self.image()));
        if !wrong.is_empty() {
            let all = format!("expected {texts:?}: {}\n{}\n{error}", wrong.join("; "), output.stdout);
            say(&all);
            self.wrong.borrow_mut().push(all);
        }
    }
}

fn who_asks(bad: &Bad) {
    let path = "/opt/selfhost/cli/kubectl-selfhost";
    let user = [
        "setpriv",
        "--reuid=65534",
        "--regid=65534",
        "--clear-groups",
        "--",
        path,
        "convert",
        "--yes",
    ];
    let before = bad.image();
    let output = bad.lab.sh(1, &user).unwrap();
    bad.check(&output, &["/etc/kubernetes/admin.conf", "sudo"], &before);

    let ordinary = bad.lab.settings().user_kubeconfig().display().to_string();
    bad.refused_with(&["--kubeconfig", &ordinary], &["forbidden", "kube-system"]);

    let _reader = bad.with_object(&json!({
        "apiVersion": "rbac.authorization.k8s.io/v1", "kind": "ClusterRole", "metadata": {"name": "reader"},
        "rules": [
            {"apiGroups": ["*"], "resources": ["*"], "verbs": ["get", "list", "watch"]},
            {"apiGroups": ["authorization.k8s.io"], "resources": ["selfsubjectaccessreviews"], "verbs": ["create"]},
        ],
    }));
    let _binding = bad.with_object(&json!({
        "apiVersion": "rbac.authorization.k8s.io/v1", "kind": "ClusterRoleBinding", "metadata": {"name": "reader"},
        "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "reader"},
        "subjects": [{"apiGroup": "rbac.authorization.k8s.io", "kind": "User", "name": "reader"}],
    }));
    let texts = [
        "may not: patch nodes",
        "create daemonsets in kube-system",
        "cluster administrator",
    ];
    bad.refused_with(&["--as", "reader"], &texts);
}

/// Another apiserver on the node that stores its objects elsewhere: another bad.
struct Neighbour(Child);

impl Neighbour {
    fn start(bad: &Bad) -> Self {
        let text = fs::read_to_string(bad.manifest("kube-apiserver")).unwrap();
        let flags = text
            .lines()
            .filter_map(|line| line.trim().strip_prefix("- --").map(|flag| format!("--{flag}")));
        let mut args = vec!["kube-apiserver".to_owned()];
        args.extend(flags.filter(|flag| !flag.starts_with("--secure-port=")));
        args.extend(["--secure-port=7443".to_owned(), "--etcd-prefix=/another".to_owned()]);
        let args: Vec<_> = args.iter().map(String::as_str).collect();
        let mut command = bad.lab.command(1, &args).unwrap();
        Self(
            command
                .stdin(Stdio::null())
                .stdout(Stdio::null())
                .stderr(Stdio::null())
                .spawn()
                .unwrap(),
        )
    }
}

impl Drop for Neighbour {
    fn drop(&mut self) {
        // Its parent in the harness ends with it.
        for pid in children(self.0.id()) {
            signal(pid, rustix::process::Signal::KILL);
        }
        let _ = self.0.wait();
    }
}

fn clusters_that_are_not_this_nodes(bad: &Bad) {
    // system:masters: the other cluster knows no role yet that kubeadm made.
    let admin = fs::read_to_string(bad.file("/etc/kubernetes/super-admin.conf")).unwrap();
    assert_eq!(admin.matches(":6443").count(), 1, "{admin}");
    let kubeconfig = |name: &str, text: String| -> String {
        let path = format!("/etc/kubernetes/{name}.conf");
        fs::write(bad.file(&path), text).unwrap();
        path
    };
    let elsewhere = kubeconfig("elsewhere", admin.replace(":6443", ":7443"));
    let address = format!("{}:7443", bad.lab.settings().address(1));
    bad.refused_with(&["--kubeconfig", &elsewhere], &[&address, "connection refused"]);
    bad.refused_with(
        &["--kubeconfig", "/etc/kubernetes/none.conf"],
        &["/etc/kubernetes/none.conf"],
    );
    bad.refused_with(&["--context", "nowhere"], &["nowhere", "/etc/kubernetes/admin.conf"]);
    let authority = |text: &str| {
        let line = text
            .lines()
            .find(|line| line.contains("certificate-authority-data:"))
            .unwrap();
        line.split_whitespace().last().unwrap().to_owned()
    };
    let etcd = fs::read(bad.file("/etc/kubernetes/pki/etcd/ca.crt")).unwrap();
    let untrusted = kubeconfig("untrusted", admin.replace(&authority(&admin), &base64(&etcd)));
    bad.refused_with(&["--kubeconfig", &untrusted], &["certificate"]);

    let neighbour = Neighbour::start(bad);
    let other = |args: &[&str]| {
        let file = bad.file(&elsewhere).display().to_string();
        bad.lab.kubectl(&[args, &["--kubeconfig", &file]].concat()).unwrap()
    };
    bad.wait("the other cluster to be up", 60, || {
        let output = other(&["get", "namespace", "kube-system", "default"]);
        if output.success() { Ok(()) } else { Err(output.stderr) }
    });
    let texts = [
        "does not belong to the cluster at",
        &address,
        "Node node1",
        "/etc/kubernetes/admin.conf",
    ];
    bad.refused_with(&["--kubeconfig", &elsewhere], &texts);
    // And one of the same name makes no difference.
    let node = json!({"apiVersion": "v1", "kind": "Node", "metadata": {"name": "node1"}});
    let file = bad.lab.settings().state.join("node.json");
    fs::write(&file, node.to_string()).unwrap();
    let created = other(&["create", "-f", &file.display().to_string()]);
    assert!(created.success(), "{created:?}");
    bad.refused_with(&["--kubeconfig", &elsewhere], &texts);
    drop(neighbour);
    for path in [elsewhere, untrusted] {
        fs::remove_file(bad.file(&path)).unwrap();
    }
}

fn base64(bytes: &[u8]) -> String {
    const ALPHABET: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    let mut text = String::new();
    for chunk in bytes.chunks(3) {
        let number = chunk.iter().fold(0_usize, |n, byte| n << 8 | usize::from(*byte)) << (8 * (3 - chunk.len()));
        for place in 0..4 {
            let letter = char::from(ALPHABET[number >> (18 - 6 * place) & 63]);
            text.push(if place <= chunk.len() { letter } else { '=' });
        }
    }
    text
}

fn objects_in_the_way(bad: &Bad) {
    {
        // As the ancestor leaves one when it gives up: its labels, its name.
        let labels =
            json!({"k8s-app": "self-hosted-kube-apiserver", "component": "kube-apiserver", "tier": "control-plane"});
        let _foreign = bad.with_object(&json!({
            "apiVersion": "apps/v1", "kind": "DaemonSet",
            "metadata": {"name": "self-hosted-kube-apiserver", "namespace": "kube-system", "labels": labels},
            "spec": {
                "selector": {"matchLabels": labels},
                "template": {
                    "metadata": {"labels": labels},
                    "spec": {
                        "nodeSelector": {"node-role.kubernetes.io/master": ""},
                        "containers": [{"name": "kube-apiserver", "image": "registry.k8s.io/kube-apiserver:v1.20.15"}],
                    },
                },
            },
        }));
        settled(bad, "daemonset", "self-hosted-kube-apiserver");
        bad.refused(&[
            "DaemonSet kube-system/self-hosted-kube-apiserver",
            "was not made by this program",
            "find out whose",
        ]);
        assert_eq!(
            bad.selfhost(&["plan", "--exit-code"]).status.code(),
            Some(4),
            "plan says so as well"
        );
    }
    for (kind, extra) in [
        ("ValidatingWebhookConfiguration", json!({})),
        ("MutatingWebhookConfiguration", json!({"reinvocationPolicy": "Never"})),
    ] {
        let mut webhook = json!({
            "name": "pods.policy.test", "failurePolicy": "Fail", "sideEffects": "None", "admissionReviewVersions": ["v1"],
            "timeoutSeconds": 1, "clientConfig": {"url": "https://127.0.0.1:9/"},
            "rules": [{"operations": ["CREATE"], "apiGroups": [""], "apiVersions": ["v1"], "resources": ["pods"]}],
        });
        webhook
            .as_object_mut()
            .unwrap()
            .extend(extra.as_object().unwrap().clone());
        let _webhook = bad.with_object(&json!({
            "apiVersion": "admissionregistration.k8s.io/v1", "kind": kind, "metadata": {"name": "policy"}, "webhooks": [webhook],
        }));
        // The apiserver learns of it by a watch.
        bad.wait("the webhook to be in force", 30, || {
            let pod = ["run", "nobody", "--image=none", "--dry-run=server", "-n", "kube-system"];
            let output = bad.lab.kubectl(&pod).unwrap();
            if output.stderr.contains("pods.policy.test") {
                Ok(())
            } else {
                Err(output.stderr)
            }
        });
        bad.refused(&[
            "Pods of self-hosted-kube-apiserver",
            "kube-system",
            "pods.policy.test",
            "exclude kube-system",
        ]);
    }
    {
        let _quota = bad.with_object(&json!({
            "apiVersion": "v1", "kind": "ResourceQuota", "metadata": {"name": "few", "namespace": "kube-system"},
            "spec": {"hard": {"pods": "1"}},
        }));
        bad.wait("the quota to be counted", 30, || {
            let quota = bad.get(&["resourcequota", "few", "-n", "kube-system"]);
            if quota["status"]["used"]["pods"].is_string() {
                Ok(())
            } else {
                Err(quota.to_string())
            }
        });
        bad.refused(&[
            "Pods of self-hosted-kube-scheduler",
            "exceeded quota: few",
            "change the quota",
        ]);
    }
    {
        let _range = bad.with_object(&json!({
            "apiVersion": "v1", "kind": "LimitRange", "metadata": {"name": "small", "namespace": "kube-system"},
            "spec": {"limits": [{"type": "Container", "max": {"cpu": "220m"}}]},
        }));
        bad.wait("the limit to be in force", 30, || {
            let output = bad.selfhost(&["plan"]);
            if output.success() {
                Err("it is not yet".to_owned())
            } else {
                Ok(())
            }
        });
        bad.refused(&["Pods of self-hosted-kube-apiserver", "cpu limit of 220m", "LimitRange"]);
    }
    {
        let node = bad.get(&["node", "node1"]);
        let allocatable: i64 = node["status"]["allocatable"]["cpu"].as_str().unwrap().parse().unwrap();
        // kubeadm's Pods ask for 650m; 100m are left, and the apiserver asks for 250m.
        let cpu = format!("{}m", 1000 * allocatable - 650 - 100);
        let _greedy = bad.with_object(&json!({
            "apiVersion": "v1", "kind": "Pod", "metadata": {"name": "greedy", "namespace": "default"},
            "spec": {
                "nodeName": "node1", "automountServiceAccountToken": false, "terminationGracePeriodSeconds": 0,
                "containers": [{"name": "a", "image": "none.test/none", "imagePullPolicy": "Never",
                    "resources": {"requests": {"cpu": cpu}}}],
            },
        }));
        bad.refused(&[
            "Node node1",
            "has 100m CPU left",
            "250m are needed",
            "lower their CPU requests",
        ]);
    }
    bad.kubectl(&["annotate", "node", "node1", "cluster.x-k8s.io/machine=pool-7"]);
    bad.refused(&["Node node1", "Cluster API Machine pool-7", "KubeadmControlPlane"]);
    bad.kubectl(&["annotate", "node", "node1", "cluster.x-k8s.io/machine-"]);
}

/// Waits until controllers have seen an object, so that no change of theirs is taken for one of the plugin.
fn settled(bad: &Bad, kind: &str, name: &str) {
    bad.wait("its controller to have seen it", 30, || {
        let object = bad.get(&[kind, name, "-n", "kube-system"]);
        let seen = object["status"]["observedGeneration"] == object["metadata"]["generation"];
        if seen {
            Ok(())
        } else {
            Err(object["status"].to_string())
        }
    });
}

fn a_mount_that_forbids_programs(bad: &Bad) {
    let run = |args: &[&str]| {
        let output = bad.lab.sh(1, args).unwrap();
        assert!(output.success(), "{args:?}: {output:?}");
    };
    run(&["mkdir", "/opt/selfhost/bin"]);
    run(&["mount", "-t", "tmpfs", "-o", "noexec", "tmpfs", "/opt/selfhost/bin"]);
    bad.refused(&["/opt/selfhost/bin", "noexec", "remount it with exec"]);
    run(&["umount", "/opt/selfhost/bin"]);
    run(&["rmdir", "/opt/selfhost/bin"]);
}
