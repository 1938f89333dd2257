//! `--feature-gates=StoreCertsInSecrets=true` on a real control plane: there, renewed, through a reboot, and back.

use std::{fs, os::unix::fs::PermissionsExt, time::Duration};

use crate::support::{COMPONENTS, Cluster, assert_no_failure, flat};

const GATE: &str = "--feature-gates=StoreCertsInSecrets=true";
const PKI: &str = "/etc/kubernetes/pki";
const DEADLINE: Duration = Duration::from_secs(240);

#[test]
fn certificates_come_from_secrets_are_renewed_by_a_roll_and_are_gone_after_a_revert() {
    let cluster = Cluster::up();
    let before = cluster.image();
    what_is_missing_is_refused(&cluster);
    converted(&cluster);
    let first = secrets(&cluster);
    again_changes_nothing(&cluster, &first);
    renewed(&cluster, &first);
    cluster.lab.reboot(1).unwrap();
    cluster.wait("the control plane to be self-hosted again", 180, || {
        let output = cluster.selfhost(&["status", "-o", "json"]);
        let states = output.stdout.matches("\"self-hosted\"").count();
        if output.success() && states >= 3 {
            Ok(())
        } else {
            Err(flat(&output))
        }
    });
    cluster.must(&["revert", "--yes"]);
    assert_eq!(secrets(&cluster), [""; 0]);
    cluster.assert_untouched(&before);
}

/// Names of the Secrets with certificates.
fn secrets(cluster: &Cluster) -> Vec<String> {
    let label = "app.kubernetes.io/managed-by=kubectl-selfhost,app.kubernetes.io/component=certificates";
    let list = cluster.get(&["secrets", "-n", "kube-system", "-l", label]);
    let names = list["items"].as_array().unwrap().iter();
    names
        .map(|secret| secret["metadata"]["name"].as_str().unwrap().to_owned())
        .collect()
}

fn what_is_missing_is_refused(cluster: &Cluster) {
    let (key, aside) = (
        cluster.file(&format!("{PKI}/ca.key")),
        cluster.file(&format!("{PKI}/aside")),
    );
    fs::rename(&key, &aside).unwrap();
    let output = cluster.selfhost(&["convert", "--yes", GATE]);
    fs::rename(&aside, &key).unwrap();
    let said = flat(&output);
    assert!(!output.success(), "{said}");
    assert!(
        said.contains("--cluster-signing-key-file names /etc/kubernetes/pki/ca.key"),
        "{said}"
    );
    assert!(said.contains("nothing was changed"), "{said}");
    assert_eq!(secrets(cluster), [""; 0]);
}

fn converted(cluster: &Cluster) {
    let convert = || cluster.start(&["convert", "--yes", GATE]).wait(DEADLINE);
    let ((success, events, stderr), noticed) = cluster.beside(convert);
    assert!(success, "{stderr}\n{events:#?}");
    assert_no_failure("convert with Secrets", &noticed);
    cluster.assert_self_hosted();
    assert_eq!(secrets(cluster).len(), 3);
    for component in COMPONENTS {
        let pod = &cluster.pods(component)[0];
        let volumes = pod["spec"]["volumes"].to_string();
        assert!(
            volumes.contains(&format!("self-hosted-{component}-certs-")),
            "{volumes}"
        );
        assert!(
            !volumes.contains("\"/etc/kubernetes/"),
            "nothing of the node's: {volumes}"
        );
    }
    // as the process itself sees it: the same paths, the same bytes, keys for nobody else
    let process = cluster.lab.pids(1, "kube-apiserver").unwrap()[0];
    for (name, mode) in [("sa.key", 0o400), ("apiserver.key", 0o400), ("etcd/ca.crt", 0o444)] {
        let seen = format!("/proc/{process}/root{PKI}/{name}");
        assert_eq!(
            fs::read(&seen).unwrap(),
            fs::read(cluster.file(&format!("{PKI}/{name}"))).unwrap(),
            "{name}"
        );
        assert_eq!(
            fs::metadata(&seen).unwrap().permissions().mode() & 0o777,
            mode,
            "{name}"
        );
    }
    assert!(
        !fs::exists(format!("/proc/{process}/root{PKI}/ca.key")).unwrap(),
        "no flag of the apiserver names it"
    );
}

fn again_changes_nothing(cluster: &Cluster, first: &[String]) {
    let again = cluster.must(&["convert", "--yes", GATE]);
    assert!(again.stderr.contains("nothing to do"), "{again:?}");
    assert_eq!(secrets(cluster), first);
    // one that somebody deleted comes back
    cluster.kubectl(&["delete", "secret", "-n", "kube-system", &first[0]]);
    cluster.must(&["convert", "--yes", GATE]);
    assert_eq!(secrets(cluster), first);
}

/// New files on the node reach the Pods when they are asked to, one Pod after the other.
fn renewed(cluster: &Cluster, first: &[String]) {
    let renew = cluster
        .lab
        .command(1, &["kubeadm", "certs", "renew", "apiserver"])
        .unwrap()
        .output()
        .unwrap();
    assert!(renew.status.success(), "{renew:?}");
    let old = cluster.lab.pids(1, "kube-apiserver").unwrap();
    let convert = || cluster.start(&["convert", "--yes", GATE]).wait(DEADLINE);
    let ((success, events, stderr), noticed) = cluster.beside(convert);
    assert!(success, "{stderr}\n{events:#?}");
    assert_no_failure("a roll onto a renewed certificate", &noticed);
    let new = cluster.lab.pids(1, "kube-apiserver").unwrap();
    assert!(new.len() == 1 && new != old, "{old:?} {new:?}");
    let seen = fs::read(format!("/proc/{}/root{PKI}/apiserver.crt", new[0])).unwrap();
    assert_eq!(seen, fs::read(cluster.file(&format!("{PKI}/apiserver.crt"))).unwrap());
    let now = secrets(cluster);
    assert_eq!(now.len(), 3, "the old one is gone: {now:?}");
    assert_eq!(
        now.iter().filter(|name| first.contains(name)).count(),
        2,
        "the others are the same: {now:?}"
    );
}
