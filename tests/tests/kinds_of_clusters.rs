//! Control planes that differ from kubeadm's defaults: converted without a failed request, rolled, and put back to the byte.

use std::{fs, path::Path, time::Duration};

use tests::Options;

use crate::support::{COMPONENTS, Cluster, assert_no_failure, assert_one_gap, binary, say};

/// 32 bytes that are no secret, in base64.
const KEY: &str = "bm90IGEgc2VjcmV0LCBidXQgbG9uZyBlbm91Z2ghISE=";

const AUDIT_AND_ENCRYPTION: &str = "
apiServer:
  extraArgs:
  - {name: audit-policy-file, value: /etc/kubernetes/audit/policy.yaml}
  - {name: audit-log-path, value: /var/log/kubernetes/audit.log}
  - {name: encryption-provider-config, value: /etc/kubernetes/encryption/providers.yaml}
  extraVolumes:
  - {name: audit, hostPath: /etc/kubernetes/audit, mountPath: /etc/kubernetes/audit, readOnly: true, pathType: Directory}
  - {name: audit-log, hostPath: /var/log/kubernetes, mountPath: /var/log/kubernetes, pathType: DirectoryOrCreate}
  - {name: encryption, hostPath: /etc/kubernetes/encryption, mountPath: /etc/kubernetes/encryption, readOnly: true, pathType: Directory}
";

#[test]
fn ipv6_alone_another_port_audit_and_encryption() {
    let policy = "apiVersion: audit.k8s.io/v1\nkind: Policy\nrules: [{level: Metadata}]\n";
    let providers = format!(
        "apiVersion: apiserver.config.k8s.io/v1\nkind: EncryptionConfiguration\nresources:\n- resources: [secrets]\n  \
         providers: [{{aescbc: {{keys: [{{name: key, secret: '{KEY}'}}]}}}}, {{identity: {{}}}}]\n"
    );
    let cluster = Cluster::with(&Options {
        port: 7443,
        ipv6: true,
        cluster_configuration: AUDIT_AND_ENCRYPTION.to_owned(),
        files: vec![
            ("/etc/kubernetes/audit/policy.yaml".to_owned(), policy.to_owned()),
            ("/etc/kubernetes/encryption/providers.yaml".to_owned(), providers),
        ],
    });
    let logged = || {
        fs::metadata(cluster.file("/var/log/kubernetes/audit.log"))
            .unwrap()
            .len()
    };
    let before = logged();
    there_and_back(&cluster, "IPv6, port 7443, audit, encryption");
    assert!(logged() > before, "the self-hosted apiserver writes the audit log");
}

/// The components run as users of their own, and the guard, which steers their ports, as root.
#[test]
fn components_that_are_not_root() {
    let cluster = Cluster::with(&Options {
        cluster_configuration: "featureGates: {RootlessControlPlane: true}".to_owned(),
        ..Options::default()
    });
    for component in COMPONENTS {
        let manifest = fs::read_to_string(cluster.manifest(component)).unwrap();
        assert!(manifest.contains("runAsUser: "), "{manifest}");
    }
    the_api_takes_the_daemon_sets_of_others(&cluster);
    there_and_back(&cluster, "not root");
}

/// DaemonSets made from other clusters' manifests, as far as an API can tell without their nodes.
fn the_api_takes_the_daemon_sets_of_others(cluster: &Cluster) {
    let fixtures = Path::new(env!("CARGO_MANIFEST_DIR")).join("../kubectl-selfhost/tests/fixtures/kubeadm");
    let mut directories: Vec<_> = fs::read_dir(&fixtures)
        .unwrap()
        .map(|entry| entry.unwrap().path())
        .collect();
    directories.sort();
    assert!(directories.len() >= 8, "{directories:?}");
    for directory in directories {
        let path = directory.display().to_string();
        let args = ["convert", "--manifests", &path, "--dry-run=client", "-o", "yaml"];
        let rendered = cluster.lab.selfhost_from_here(binary(), &args).unwrap();
        assert!(rendered.success(), "{path}: {}", rendered.stderr);
        let file = cluster.lab.settings().state.join("rendered.yaml");
        fs::write(&file, &rendered.stdout).unwrap();
        let created = cluster.kubectl(&["create", "--dry-run=server", "-f", &file.display().to_string()]);
        assert_eq!(
            created.matches("created (server dry run)").count(),
            3,
            "{path}: {created}"
        );
    }
}

fn there_and_back(cluster: &Cluster, what: &str) {
    let image = cluster.image();
    let (_, noticed) = cluster.beside(|| cluster.must(&["convert", "--yes"]));
    assert_no_failure(&format!("{what}: convert"), &noticed);
    cluster.assert_self_hosted();
    let (_, noticed) = cluster.beside(|| {
        cluster.kubectl(&[
            "rollout",
            "restart",
            "-n",
            "kube-system",
            "daemonset/self-hosted-kube-apiserver",
        ]);
        cluster.kubectl(&[
            "rollout",
            "status",
            "-n",
            "kube-system",
            "daemonset/self-hosted-kube-apiserver",
            "--timeout=240s",
        ]);
        cluster.wait("the old apiserver to end", 120, || {
            match cluster.pods("kube-apiserver").len() {
                1 => Ok(()),
                count => Err(format!("{count} Pods")),
            }
        });
    });
    assert_no_failure(&format!("{what}: roll"), &noticed);
    cluster.wait("the guard to rest", 60, || {
        let status = cluster.component("kube-apiserver");
        if status.get("step").is_none() {
            Ok(())
        } else {
            Err(status.to_string())
        }
    });
    let (_, noticed) = cluster.beside(|| cluster.must(&["revert", "--yes"]));
    assert_one_gap(&format!("{what}: revert"), &noticed);
    cluster.lab.wait_ready(Duration::from_secs(60)).unwrap();
    cluster.assert_untouched(&image);
    say(&format!("{what}: there and back"));
}
