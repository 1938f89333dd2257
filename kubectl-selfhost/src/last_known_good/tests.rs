use super::*;
use crate::certs_in_secrets::{Found, NodeFiles, STORE_CERTS, plan};
use crate::daemon_set::mutate;
use crate::mutators::{Mode, default_mutators, test_support};
use crate::names::{BIN_VOLUME, NAMESPACE, NOTES_VOLUME, ROLE_ENV, RUN_VOLUME, STATE_DIR};

fn fixture(version: &str, component: Component) -> Value {
    let path = Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("tests/fixtures/kubeadm")
        .join(version)
        .join(format!("{component}.yaml"));
    shared::yaml::first_document(&std::fs::read_to_string(path).unwrap()).unwrap()
}

/// The Pod as the API shows it: converted, bound, and with what controllers and admission add.
fn running(component: Component, original: &Value, mode: Mode) -> Value {
    let context = crate::mutators::Context {
        mode,
        ..test_support::context(component)
    };
    let template = crate::daemon_set::template_of(original).unwrap();
    let template = mutate(template, &default_mutators(component, &mode), &context).unwrap();
    as_the_api_shows_it(component, template)
}

fn as_the_api_shows_it(component: Component, template: Value) -> Value {
    let mut pod = template;
    let metadata = pod["metadata"].as_object_mut().unwrap();
    metadata.insert("name".into(), json!(format!("self-hosted-{component}-x7k2p")));
    metadata.insert("generateName".into(), json!(format!("self-hosted-{component}-")));
    metadata.insert("namespace".into(), json!(NAMESPACE));
    metadata.insert("uid".into(), json!("5d1c9c2e-0000-4000-8000-000000000001"));
    metadata.insert("ownerReferences".into(), json!([{"kind": "DaemonSet"}]));
    metadata.insert("finalizers".into(), json!(["x/y"]));
    pod["metadata"]["labels"][REVISION_LABEL] = json!("6d9f8c7b5");
    pod["metadata"]["labels"][GENERATION_LABEL] = json!("3");
    let spec = pod["spec"].as_object_mut().unwrap();
    spec.insert("nodeName".into(), json!("cp-1"));
    spec.insert("serviceAccountName".into(), json!("default"));
    spec.insert("serviceAccount".into(), json!("default"));
    spec.insert("restartPolicy".into(), json!("Always"));
    spec.insert("schedulerName".into(), json!("default-scheduler"));
    spec.insert("preemptionPolicy".into(), json!("PreemptLowerPriority"));
    spec.insert(
        "affinity".into(),
        json!({"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {}}}),
    );
    pod["status"] =
        json!({"phase": "Running", "hostIP": "192.0.2.11", "hostIPs": [{"ip": "192.0.2.11"}, {"ip": "2001:db8::11"}]});
    pod
}

/// Without what the port's hand-over needs, the fallback of the template is that of the original it was made from.
#[test]
fn it_is_the_inverse_of_the_mutators() {
    for version in ["v1.33", "v1.36", "v1.36-audit-encryption"] {
        for component in Component::ALL {
            for mode in [Mode::Steered, Mode::Gap] {
                let original = fixture(version, component);
                let draft = draft(component, &running(component, &original, mode), &original)
                    .unwrap_or_else(|error| panic!("{version} {component}: {error}"));
                assert!(draft.volumes.is_empty());
                let mut made = draft.manifest(Path::new("/x"));
                let mut expected = build_fallback(component, &original).unwrap();
                // what a Pod has by default is written out
                for pod in [&mut made, &mut expected] {
                    remove(pod.get_mut("spec").unwrap(), "restartPolicy");
                    neutral(component, pod);
                }
                assert_eq!(made, expected, "{version} {component} {mode:?}");
            }
        }
    }
}

/// What differs and may: the start-up probe is another one that asks the same process over HTTP, hosts of probes and the
/// address are the node's own in either form.
fn neutral(component: Component, pod: &mut Value) {
    let (container, _) = crate::mutators::main_container_mut(pod, component).unwrap();
    remove(container, "startupProbe");
    for probe in ["livenessProbe", "readinessProbe"] {
        if let Some(action) = container.get_mut(probe).and_then(|probe| probe.get_mut("httpGet")) {
            remove(action, "host");
        }
    }
    let list = container["env"].as_array_mut().unwrap();
    list.retain(|variable| variable["name"] != "HOST_IP");
    for word in container["command"].as_array_mut().unwrap() {
        if word == "--advertise-address=$(HOST_IP)" || word.as_str().unwrap().starts_with("--advertise-address=") {
            *word = json!("--advertise-address");
        }
    }
    if let Some(annotations) = pod["metadata"].get_mut("annotations").and_then(Value::as_object_mut) {
        annotations.retain(|key, _| !key.starts_with("kubeadm.kubernetes.io/"));
        if annotations.is_empty() {
            remove(&mut pod["metadata"], "annotations");
        }
    }
    remove(&mut pod["spec"], "priority");
}

#[test]
fn nothing_of_ours_and_nothing_of_the_api_is_left() {
    let component = Component::KubeApiserver;
    let original = fixture("v1.36", component);
    let mut pod = running(component, &original, Mode::Steered);
    pod["spec"]["imagePullSecrets"] = json!([{"name": "pull-secret"}]);
    pod["spec"]["ephemeralContainers"] = json!([{"name": "debugger", "securityContext": {"privileged": true}}]);
    pod["spec"]["containers"][0]["imagePullPolicy"] = json!("Always");
    let draft = draft(component, &pod, &original).unwrap();
    assert_eq!(
        draft.template,
        Template {
            generation: Some(3),
            revision: Some("6d9f8c7b5".into())
        }
    );
    let manifest = draft.manifest(Path::new("/x"));
    let text = manifest.to_string();
    for gone in [
        BIN_VOLUME,
        RUN_VOLUME,
        NOTES_VOLUME,
        "selfhost-await-port",
        "k8s-app",
        "serviceAccount",
        "pull-secret",
        "debugger",
        "nodeName",
        "hostIP\"",
        "ownerReferences",
        "finalizers",
        "uid",
        REVISION_LABEL,
        GENERATION_LABEL,
        "affinity",
        "preStop",
        "status.hostIP",
        "tolerations",
        "Always\",\"livenessProbe",
    ] {
        assert!(!text.contains(gone), "{gone}: {text}");
    }
    let container = &manifest["spec"]["containers"][0];
    assert_eq!(container["imagePullPolicy"], "IfNotPresent");
    let env = container["env"].as_array().unwrap();
    let value = |name: &str| env.iter().find(|v| v["name"] == name).map(|v| v["value"].clone());
    assert_eq!(value(ROLE_ENV), Some(json!("fallback")));
    assert_eq!(value("HOST_IP"), Some(json!("192.0.2.11")));
    assert!(container["startupProbe"]["httpGet"].is_object());
    assert!(list_at(container, &["command"]).contains(&json!("--permit-port-sharing=true")));
    assert_eq!(manifest["metadata"]["name"], "kube-apiserver-selfhost-fallback");
}

#[test]
fn an_edit_of_flags_image_and_resources_is_in_it() {
    let component = Component::KubeScheduler;
    let original = fixture("v1.36", component);
    let mut pod = running(component, &original, Mode::Steered);
    let container = &mut pod["spec"]["containers"][0];
    container["image"] = json!("registry.k8s.io/kube-scheduler:v1.36.4");
    container["command"].as_array_mut().unwrap().push(json!("--v=4"));
    container["resources"]["requests"]["cpu"] = json!("200m");
    let made = draft(component, &pod, &original).unwrap().manifest(Path::new("/x"));
    let container = &made["spec"]["containers"][0];
    assert_eq!(container["image"], "registry.k8s.io/kube-scheduler:v1.36.4");
    assert!(list_at(container, &["command"]).contains(&json!("--v=4")));
    assert_eq!(container["resources"]["requests"]["cpu"], "200m");
}

#[test]
fn what_no_static_pod_can_have_is_refused() {
    let component = Component::KubeApiserver;
    let original = fixture("v1.36", component);
    let container = "/spec/containers/0";
    for (pointer, value, field) in [
        (
            "/spec/resourceClaims".to_owned(),
            json!([{"name": "gpu"}]),
            "spec.resourceClaims",
        ),
        (
            format!("{container}/envFrom"),
            json!([{"secretRef": {"name": "s"}}]),
            "envFrom",
        ),
        (
            format!("{container}/env/0"),
            json!({"name": "P", "valueFrom": {"secretKeyRef": {"name": "s", "key": "k"}}}),
            "env[P]",
        ),
        (
            format!("{container}/env/0"),
            json!({"name": "P", "valueFrom": {"configMapKeyRef": {"name": "s", "key": "k"}}}),
            "env[P]",
        ),
        (
            "/spec/volumes/0".to_owned(),
            json!({"name": "ca-certs", "persistentVolumeClaim": {"claimName": "c"}}),
            "spec.volumes[ca-certs]",
        ),
        (
            "/spec/volumes/0".to_owned(),
            json!({"name": "ca-certs", "csi": {"driver": "d"}}),
            "spec.volumes[ca-certs]",
        ),
        (
            "/spec/volumes/0".to_owned(),
            json!({"name": "ca-certs", "projected": {"sources": [{"serviceAccountToken": {"path": "t"}}]}}),
            "spec.volumes[ca-certs]",
        ),
        (
            "/spec/volumes/0".to_owned(),
            json!({"name": "ca-certs", "projected": {"sources": [{"secret": {"name": "a"}}, {"clusterTrustBundle": {"path": "t"}}]}}),
            "spec.volumes[ca-certs]",
        ),
        (
            "/spec/volumes/0".to_owned(),
            json!({"name": "elsewhere", "secret": {}}),
            "volumeMounts[ca-certs]",
        ),
        ("/spec/hostPID".to_owned(), json!(true), "spec.hostPID"),
        ("/status".to_owned(), json!({}), "env[HOST_IP]"),
    ] {
        let mut pod = running(component, &original, Mode::Steered);
        let (parent, key) = pointer.rsplit_once('/').unwrap();
        match pod.pointer_mut(parent).unwrap() {
            Value::Array(list) => list[key.parse::<usize>().unwrap()] = value.clone(),
            other => other[key] = value.clone(),
        }
        let error = draft(component, &pod, &original).expect_err(&format!("{pointer} {value}"));
        assert!(error.field.contains(field), "{pointer}: {error}");
    }
    let mut pod = running(component, &original, Mode::Steered);
    pod["spec"]["containers"][0]["command"]
        .as_array_mut()
        .unwrap()
        .push(json!("--bind-address=192.0.2.11"));
    let error = draft(component, &pod, &original).unwrap_err();
    assert!(error.what.contains("another port or address"), "{error}");
}

#[test]
fn files_of_api_objects_become_files_of_the_node() {
    let component = Component::KubeApiserver;
    let original = fixture("v1.36", component);
    let mut pod = running(component, &original, Mode::Steered);
    let volumes = pod["spec"]["volumes"].as_array_mut().unwrap();
    volumes.push(json!({"name": "webhook", "secret": {"secretName": "webhook"}}));
    volumes.push(json!({"name": "policy", "configMap": {"name": "policy"}}));
    volumes.push(json!({"name": "both", "projected": {"sources": [{"secret": {"name": "a"}}, {"configMap": {"name": "b"}}, {"downwardAPI": {}}]}}));
    let mounts = pod["spec"]["containers"][0]["volumeMounts"].as_array_mut().unwrap();
    mounts.push(json!({"name": "webhook", "mountPath": "/etc/webhook", "readOnly": true}));
    mounts.push(json!({"name": "policy", "mountPath": "/etc/policy.yaml", "subPath": "policy.yaml"}));
    mounts.push(json!({"name": "both", "mountPath": "/both"}));
    let made = draft(component, &pod, &original).unwrap();
    let names: Vec<&str> = made.volumes.iter().map(|volume| volume.name.as_str()).collect();
    assert_eq!(names, ["webhook", "policy", "both"]);
    assert_eq!(
        made.volumes[1].mounts,
        [FileMount {
            container: "kube-apiserver".into(),
            path: "/etc/policy.yaml".into(),
            sub_path: Some("policy.yaml".into())
        }]
    );
    let manifest = made.manifest(&Path::new(STATE_DIR).join("kube-apiserver/files/0123"));
    let volume = list_at(&manifest, &["spec", "volumes"])
        .iter()
        .find(|v| v["name"] == "policy")
        .unwrap();
    assert_eq!(
        volume,
        &json!({"name": "policy", "hostPath": {"path": "/var/lib/selfhost/kube-apiserver/files/0123/policy", "type": "Directory"}})
    );
    assert!(!manifest.to_string().contains("secret"), "{manifest}");
    for sub_path in ["../x", "/x", "a/../b", "a//b"] {
        let mut pod = pod.clone();
        let mounts = pod["spec"]["containers"][0]["volumeMounts"].as_array_mut().unwrap();
        mounts.last_mut().unwrap()["subPath"] = json!(sub_path);
        draft(component, &pod, &original).expect_err(sub_path);
    }
}

/// With certificates in Secrets the fallback keeps to the files of the node.
#[test]
fn certificates_of_our_secret_come_from_the_node_again() {
    let component = Component::KubeApiserver;
    let original = fixture("v1.36", component);
    let mut files = NodeFiles::new();
    loop {
        let wanted = crate::certs_in_secrets::wanted(&[(component, &original)], &files);
        if wanted.is_empty() {
            break;
        }
        for path in wanted {
            let content = crate::certs_in_secrets::Content::new(
                b"-----BEGIN CERTIFICATE-----\nAA==\n-----END CERTIFICATE-----\n".to_vec(),
            );
            files.insert(path, Found::File(content));
        }
    }
    let (_, projection) = plan(component, &original, &files).unwrap().unwrap();
    let context = crate::mutators::Context {
        certificates: Some(projection),
        ..test_support::context(component)
    };
    let mut mutators = default_mutators(component, &Mode::Steered);
    mutators.push(STORE_CERTS);
    let template = mutate(crate::daemon_set::template_of(&original).unwrap(), &mutators, &context).unwrap();
    let pod = as_the_api_shows_it(component, template);
    assert!(pod.to_string().contains("-certs-"), "{pod:#}");
    let with = draft(component, &pod, &original).unwrap();
    assert!(with.volumes.is_empty());
    let mut with = with.manifest(Path::new("/x"));
    let without = draft(component, &running(component, &original, Mode::Steered), &original).unwrap();
    let mut without = without.manifest(Path::new("/x"));
    for pod in [&mut with, &mut without] {
        let by_name = |list: &mut Value| {
            list.as_array_mut().unwrap().sort_by_key(|v| v["name"].to_string());
        };
        by_name(&mut pod["spec"]["volumes"]);
        by_name(&mut pod["spec"]["containers"][0]["volumeMounts"]);
    }
    assert_eq!(with, without);
}
