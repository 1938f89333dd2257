//! What `kubectl klusterlet deploy` prints, in a real cluster, with an image that holds the static executable and nothing
//! else.

use std::{
    fs,
    path::Path,
    process::Command,
    time::{Duration, Instant},
};

use serde_json::Value;
use tests::{
    Lab, Options, command,
    hub::{Api, ApiOptions, Parts},
    settings::Purpose,
};

use crate::{klusterlet::binary, support::built_alone};

const MINUTE: Duration = Duration::from_secs(60);
const IMAGE: &str = "example.com/klusterlet:test";
const CLUSTER: &str = "from-a-pod";

fn must(command: &mut Command, what: &str) -> String {
    command::run(command, what, 2 * MINUTE)
        .unwrap()
        .checked(what)
        .unwrap()
        .stdout
}

fn kubectl(lab: &Lab, args: &[&str]) -> String {
    must(&mut lab.kubectl_command(args), &format!("kubectl {args:?}"))
}

#[test]
fn the_deployment_joins_with_the_least_rights_and_leave_removes_it() {
    built_alone();
    let lab = Lab::up(1, &Options::default()).unwrap();
    let address = lab.settings().gateway().parse().unwrap();
    let options = ApiOptions {
        address: Some(address),
        ..ApiOptions::default()
    };
    let mut hub = Api::up(&Parts::ensure(Purpose::Tests).unwrap(), "hub-of-pods", &options).unwrap();
    let bootstrap = hub.become_hub().unwrap();
    // Answers to Pods find their way back; the route goes with the lab's bridge.
    let node = lab.settings().address(1);
    must(
        Command::new("ip").args(["route", "replace", "10.244.1.0/24", "via", &node]),
        "make a route to the Pods",
    );
    import(&lab, binary());

    let manifest = must(
        Command::new(binary())
            .env_clear()
            .args(["deploy", "--image", IMAGE, "--cluster-name", CLUSTER, "-o", "yaml"]),
        "deploy",
    );
    let file = lab.settings().state.join("deploy.yaml");
    fs::write(&file, manifest).unwrap();
    kubectl(&lab, &["create", "namespace", "open-cluster-management"]);
    let from = format!("--from-file=kubeconfig={}", bootstrap.display());
    kubectl(
        &lab,
        &[
            "-n",
            "open-cluster-management",
            "create",
            "secret",
            "generic",
            "bootstrap-hub-kubeconfig",
            &from,
        ],
    );
    kubectl(&lab, &["apply", "-f", &file.display().to_string()]);
    // There is no kube-proxy here, so the service's address leads nowhere.
    let host = format!("KUBERNETES_SERVICE_HOST={}", lab.settings().address(1));
    let deployment = "deployment/kubectl-klusterlet-agent";
    kubectl(
        &lab,
        &[
            "-n",
            "open-cluster-management",
            "set",
            "env",
            deployment,
            &host,
            "KUBERNETES_SERVICE_PORT=6443",
        ],
    );
    let label = format!("open-cluster-management.io/cluster-name={CLUSTER}");
    hub.eventually("the certificate request", 3 * MINUTE, |hub| {
        Ok(hub.get(&["csr", "-l", &label])?["items"]
            .as_array()
            .is_some_and(|all| !all.is_empty())
            .then_some(()))
    })
    .inspect_err(|_| tell(&lab))
    .unwrap();
    let mut accept = Command::new(binary());
    accept
        .env_clear()
        .args(["accept", CLUSTER, "--yes", "--wait=available"])
        .arg(format!("--kubeconfig={}", hub.admin().display()));
    must(&mut accept, "accept");
    kubectl(
        &lab,
        &[
            "-n",
            "open-cluster-management",
            "rollout",
            "status",
            "deployment/kubectl-klusterlet-agent",
            "--timeout=60s",
        ],
    );
    let cluster = hub.get(&["managedcluster", CLUSTER]).unwrap();
    assert!(cluster["status"]["capacity"]["cpu"].is_string(), "{cluster:#}");
    assert!(
        cluster["status"]["version"]["kubernetes"]
            .as_str()
            .unwrap()
            .starts_with("v1."),
        "{cluster:#}"
    );
    let log = kubectl(
        &lab,
        &[
            "-n",
            "open-cluster-management",
            "logs",
            "deployment/kubectl-klusterlet-agent",
        ],
    );
    assert!(!log.contains("orbidden"), "{log}");

    let mut leave = Command::new(binary());
    leave
        .env_clear()
        .args(["leave", "--yes"])
        .arg(format!("--kubeconfig={}", lab.settings().admin_kubeconfig().display()));
    must(&mut leave, "leave");
    let begin = Instant::now();
    loop {
        let left = kubectl(
            &lab,
            &[
                "get",
                "-n",
                "open-cluster-management",
                "deployment,pod,serviceaccount,role,rolebinding,lease",
                "-o",
                "name",
            ],
        );
        let ours: Vec<_> = left.lines().filter(|line| line.contains("klusterlet")).collect();
        if ours.is_empty() {
            break;
        }
        assert!(begin.elapsed() < MINUTE, "{ours:?}");
    }
    let secrets: Value = serde_json::from_str(&kubectl(
        &lab,
        &["get", "-n", "open-cluster-management", "secret", "-o", "json"],
    ))
    .unwrap();
    assert_eq!(
        secrets["items"].as_array().unwrap().len(),
        1,
        "the bootstrap Secret is not the plugin's"
    );
}

/// Puts an image with the executable onto the node.
fn import(lab: &Lab, binary: &Path) {
    let path = "/opt/selfhost/cli/klusterlet.tar";
    let to = lab.file(1, path).unwrap();
    fs::create_dir_all(to.parent().unwrap()).unwrap();
    let mut pack = Command::new(&lab.built().labtool);
    pack.arg("image")
        .arg(&to)
        .arg(IMAGE)
        .arg(format!("kubectl-klusterlet={}", binary.display()));
    must(&mut pack, "pack the image");
    let ctr = lab.built().runtime.join("ctr").display().to_string();
    let imported = lab
        .sh(1, &[&ctr, "--namespace", "k8s.io", "images", "import", path])
        .unwrap();
    assert!(imported.success(), "{}{}", imported.stdout, imported.stderr);
}

fn tell(lab: &Lab) {
    for args in [
        &["-n", "open-cluster-management", "describe", "pods"][..],
        &[
            "-n",
            "open-cluster-management",
            "logs",
            "deployment/kubectl-klusterlet-agent",
            "--tail=20",
        ],
    ] {
        let output = lab.kubectl(args).unwrap();
        tests::cache::say(&format!("{}{}", command::tail(&output.stdout, 30), output.stderr));
    }
}
