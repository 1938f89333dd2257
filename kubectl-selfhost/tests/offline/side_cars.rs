//! Side-cars, of which two copies run during a hand-over, and what is worth a warning.

use kubectl_selfhost::mutators::Mode;
use kubectl_selfhost::plan::{PlanOptions, offline_plan};
use serde_json::{Value, json};

use crate::support::{APISERVER, Manifests, add_flag, assert_refused, edited, main_container, options};

/// A key-management plugin beside the apiserver that serves a socket at `socket` in the volume `volume`.
fn side_car(pod: &mut Value, volume: &Value, socket: &str, mount: &Value) {
    let mut volume = volume.clone();
    volume["name"] = json!("kms");
    pod["spec"]["volumes"].as_array_mut().unwrap().push(volume);
    let mounts = json!([mount]);
    let side_car =
        json!({"name": "kms", "image": "kms", "args": [format!("--listen={socket}")], "volumeMounts": mounts});
    pod["spec"]["containers"].as_array_mut().unwrap().push(side_car);
    let main = main_container(pod)["volumeMounts"].as_array_mut().unwrap();
    main.push(json!({"name": "kms", "mountPath": "/kms"}));
}

#[test]
fn side_cars_with_a_shared_socket() {
    let directory = json!({"hostPath": {"path": "/run/kms", "type": "DirectoryOrCreate"}});
    let mount = json!({"name": "kms", "mountPath": "/kms"});
    for socket in ["unix:///kms/a.sock", "unix:/kms/a", "/kms/a.sock", "/kms/a.socket"] {
        let refusals = edited(APISERVER, |pod| side_car(pod, &directory, socket, &mount));
        assert_refused(
            &refusals,
            "kube-apiserver.yaml: spec.containers[kms] | uses the Unix socket /kms/a",
            &["/run/kms"],
        );
    }
    // A native side-car is an init container that is restarted always.
    let refusals = edited(APISERVER, |pod| {
        side_car(pod, &directory, "/kms/a.sock", &mount);
        let mut side_car = pod["spec"]["containers"].as_array_mut().unwrap().pop().unwrap();
        side_car["restartPolicy"] = json!("Always");
        pod["spec"]["initContainers"] = json!([side_car]);
    });
    assert_refused(
        &refusals,
        "kube-apiserver.yaml: spec.initContainers[kms] | uses the Unix socket",
        &[],
    );
    let socket = json!({"hostPath": {"path": "/run/kms/a.sock", "type": "Socket"}});
    let read_only = json!({"name": "kms", "mountPath": "/kms", "readOnly": true});
    let refusals = edited(APISERVER, |pod| side_car(pod, &socket, "none", &read_only));
    assert_refused(
        &refusals,
        "kube-apiserver.yaml: spec.volumes[kms] | is a Unix socket that",
        &[],
    );
}

#[test]
fn sockets_that_two_pods_do_not_fight_for() {
    let mount = json!({"name": "kms", "mountPath": "/kms"});
    // Each Pod has an emptyDir of its own.
    let refusals = edited(APISERVER, |pod| {
        side_car(pod, &json!({"emptyDir": {}}), "/kms/a.sock", &mount)
    });
    assert_eq!(refusals, [""; 0]);
    // A plugin in a Pod of its own: the apiserver is a client only.
    let refusals = edited(APISERVER, |pod| {
        side_car(
            pod,
            &json!({"hostPath": {"path": "/run/kms/a.sock", "type": "Socket"}}),
            "/kms/a.sock",
            &mount,
        );
        pod["spec"]["containers"].as_array_mut().unwrap().pop();
    });
    assert_eq!(refusals, [""; 0]);
}

#[test]
fn side_cars_that_listen() {
    let listening = |pod: &mut Value| {
        let side_car = json!({"name": "auth", "image": "x", "ports": [{"containerPort": 9000}]});
        pod["spec"]["containers"].as_array_mut().unwrap().push(side_car);
    };
    assert_refused(
        &edited(APISERVER, listening),
        "kube-apiserver.yaml: spec.containers[auth].ports",
        &["port 9000"],
    );
    let manifests = Manifests::new();
    manifests.edit(APISERVER, listening);
    let plan = offline_plan(
        manifests.path(),
        &PlanOptions {
            mode: Mode::Gap,
            ..options()
        },
    )
    .unwrap();
    assert_eq!(plan.refusals, []);
}

#[test]
fn warnings() {
    let warned = |edit: &dyn Fn(&mut Value)| {
        let manifests = Manifests::new();
        manifests.edit(APISERVER, edit);
        let plan = manifests.plan();
        assert_eq!(plan.refusals, []);
        plan.components[2].warnings.join("\n")
    };
    assert_eq!(warned(&|_| {}), "");
    for (flag, part) in [
        (
            "--audit-log-path=/var/log/audit.log",
            "two apiservers append to /var/log/audit.log",
        ),
        ("--authentication-config=/etc/x", "anonymous requests to /readyz"),
        ("--advertise-address=192.0.2.99", "is not the node's address 192.0.2.11"),
    ] {
        assert!(warned(&|pod| add_flag(pod, flag)).contains(part), "{flag}");
    }
    assert_eq!(warned(&|pod| add_flag(pod, "--audit-log-path=-")), "");
    let class = |pod: &mut Value| {
        pod["spec"].as_object_mut().unwrap().shift_remove("priorityClassName");
    };
    assert!(warned(&class).contains("no priorityClassName"));
    assert!(warned(&|pod| pod["spec"]["dnsPolicy"] = json!("ClusterFirstWithHostNet")).contains("cluster's DNS"));
    let writer = |pod: &mut Value| {
        side_car(
            pod,
            &json!({"hostPath": {"path": "/data"}}),
            "none",
            &json!({"name": "kms", "mountPath": "/kms"}),
        );
    };
    assert!(warned(&writer).contains("spec.containers[kms] may write to /data"));
}
