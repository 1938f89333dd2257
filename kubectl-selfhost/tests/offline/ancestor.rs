//! What the ancestor of this tool, kubeadm's self-hosting phase, promised in its tests, as far as it is still right.
//!
//! Other on purpose: the gate instead of the role label, a toleration of everything, dnsPolicy as it was, probe hosts.

use kubectl_selfhost::daemon_set::build_daemon_set;
use kubectl_selfhost::manifest::parse;
use kubectl_selfhost::mutators::{Mode, default_mutators};
use kubectl_selfhost::names::Component;
use serde_json::{Value, json};

use crate::support::context;

fn converted(component: Component, pod: &Value) -> Value {
    let mutators = default_mutators(component, &Mode::Steered);
    let daemon_set = build_daemon_set(component, pod, &mutators, &context(component, Mode::Steered)).unwrap();
    daemon_set["spec"]["template"].clone()
}

fn apiserver(command: &[&str]) -> Value {
    json!({
        "metadata": {"name": "kube-apiserver"},
        "spec": {"containers": [{"name": "kube-apiserver", "image": "x", "command": command}]},
    })
}

#[test]
fn the_advertised_address_becomes_the_nodes() {
    let template = converted(
        Component::KubeApiserver,
        &apiserver(&["kube-apiserver", "--advertise-address=192.0.2.11"]),
    );
    let main = &template["spec"]["containers"][0];
    assert_eq!(
        main["command"],
        json!([
            "kube-apiserver",
            "--advertise-address=$(HOST_IP)",
            "--permit-port-sharing=true"
        ])
    );
    let host_ip: Vec<_> = main["env"]
        .as_array()
        .unwrap()
        .iter()
        .filter(|entry| entry["name"] == "HOST_IP")
        .collect();
    assert_eq!(
        host_ip,
        [&json!({"name": "HOST_IP", "valueFrom": {"fieldRef": {"fieldPath": "status.hostIP"}}})]
    );
}

#[test]
fn no_address_is_invented() {
    let template = converted(Component::KubeApiserver, &apiserver(&["kube-apiserver", "--foo=bar"]));
    let text = template.to_string();
    assert!(!text.contains("advertise") && !text.contains("HOST_IP"), "{text}");
}

#[test]
fn a_pod_without_containers_is_an_error_and_no_panic() {
    for component in Component::ALL {
        for pod in [
            json!({}),
            json!({"spec": {}}),
            json!({"spec": {"containers": []}}),
            json!({"spec": []}),
            json!([]),
        ] {
            let mutators = default_mutators(component, &Mode::Steered);
            assert!(build_daemon_set(component, &pod, &mutators, &context(component, Mode::Steered)).is_err());
        }
    }
}

#[test]
fn selectors_and_tolerations_are_kept_before_ours() {
    let mut pod = apiserver(&["kube-apiserver"]);
    pod["spec"]["nodeSelector"] = json!({"foo": "bar"});
    pod["spec"]["tolerations"] = json!([{"key": "foo", "value": "bar"}]);
    let template = converted(Component::KubeApiserver, &pod);
    assert_eq!(template["spec"]["nodeSelector"]["foo"], "bar");
    assert_eq!(template["spec"]["nodeSelector"].as_object().unwrap().len(), 2);
    assert_eq!(
        template["spec"]["tolerations"],
        json!([{"key": "foo", "value": "bar"}, {"operator": "Exists"}])
    );
}

#[test]
fn the_dns_policy_stays() {
    for policy in ["ClusterFirst", "Default", "None", "ClusterFirstWithHostNet"] {
        let mut pod = apiserver(&["kube-apiserver"]);
        pod["spec"]["dnsPolicy"] = json!(policy);
        assert_eq!(converted(Component::KubeApiserver, &pod)["spec"]["dnsPolicy"], policy);
    }
    assert_eq!(
        converted(Component::KubeApiserver, &apiserver(&["kube-apiserver"]))["spec"].get("dnsPolicy"),
        None
    );
}

#[test]
fn unsorted_and_repeated_flags_volumes_without_type_and_odd_values_stay() {
    let flags = [
        "kube-controller-manager",
        "--z-last=1",
        "--controllers=*,bootstrapsigner,tokencleaner",
        "--a-first",
        "--repeated=one",
        "--repeated=two",
        "--two-elements",
        "--looks-like-a-flag",
        "--empty=",
    ];
    let pod = json!({
        "metadata": {"name": "kube-controller-manager", "creationTimestamp": null, "labels": {"tier": "control-plane"}},
        "spec": {
            "containers": [{"name": "kube-controller-manager", "image": "x", "command": flags,
                "livenessProbe": {"failureThreshold": 8, "httpGet": {"host": "127.0.0.1", "path": "/healthz", "port": 10252, "scheme": "HTTP"}}}],
            "volumes": [
                {"name": "k8s-certs", "hostPath": {"path": "/etc/kubernetes/pki"}},
                {"name": "kubeconfig", "hostPath": {"path": "/etc/kubernetes/controller-manager.conf", "type": "FileOrCreate"}},
            ],
        },
        "status": {},
    });
    let template = converted(Component::KubeControllerManager, &pod);
    let command = template["spec"]["containers"][0]["command"].as_array().unwrap();
    assert_eq!(command[..flags.len()], flags.map(|flag| json!(flag)));
    assert_eq!(command[flags.len()..], [json!("--permit-port-sharing=true")]);
    assert_eq!(
        template["spec"]["volumes"].as_array().unwrap()[..2],
        *pod["spec"]["volumes"].as_array().unwrap()
    );
    assert_eq!(
        template["spec"]["containers"][0]["livenessProbe"],
        pod["spec"]["containers"][0]["livenessProbe"]
    );
    assert_eq!(template.get("status"), None);
    assert_eq!(template["metadata"].get("creationTimestamp"), None);
}

#[test]
fn yaml_and_json_load_the_same() {
    let yaml =
        "apiVersion: v1\nkind: Pod\nmetadata: {name: testpod}\nspec:\n  containers:\n  - {name: a, image: busybox}\n";
    let json = r#"{"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "testpod"},
        "spec": {"containers": [{"name": "a", "image": "busybox"}]}}"#;
    assert_eq!(parse(yaml.as_bytes()).unwrap(), parse(json.as_bytes()).unwrap());
}

#[test]
fn a_spec_that_is_a_list_does_not_load() {
    let error = parse(b"apiVersion: v1\nkind: Pod\nmetadata: {name: testpod}\nspec:\n- a\n").unwrap_err();
    assert_eq!(
        (error.field.as_str(), error.what.as_str()),
        ("spec", "must be a map, but is a list")
    );
}
