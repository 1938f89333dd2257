//! Bad input is refused: the message names file, field and remedy, and nothing is planned for it.

use kubectl_selfhost::plan::{PlanOptions, offline_plan};
use kubectl_selfhost::render::render_text;
use serde_json::{Value, json};

use crate::support::{
    APISERVER, MANAGER, Manifests, SCHEDULER, add_flag, assert_refused, edited, main_container, options,
};

#[test]
fn all_messages() {
    // One look at how all of it reads.
    let manifests = Manifests::new();
    let scheduler = manifests.read(SCHEDULER);
    manifests.write("kube-scheduler.yaml.bak", scheduler);
    manifests.write(MANAGER, "");
    manifests.edit(APISERVER, |pod| {
        pod["spec"]["hostNetwork"] = json!(false);
        pod["spec"]["serviceAccountName"] = json!("kube-apiserver");
        add_flag(pod, "--anonymous-auth=false");
        main_container(pod)["livenessProbe"]["httpGet"]["port"] = json!("https");
    });
    let mut plan = manifests.plan();
    plan.source = "DIR".to_owned();
    insta::assert_snapshot!(render_text(&plan, 80, false));
}

#[test]
fn duplicates_and_leftovers() {
    let manifests = Manifests::new();
    manifests.write("kube-apiserver.yaml.bak", manifests.read(APISERVER));
    assert_refused(
        &manifests.refusals(),
        "kube-apiserver.yaml, kube-apiserver.yaml.bak | 2 files run kube-apiserver",
        &["move the others out"],
    );
    // Told by content: another file name, another Pod name.
    let manifests = Manifests::new();
    let mut copy = shared::yaml::first_document(&manifests.read(SCHEDULER)).unwrap();
    copy["metadata"]["name"] = json!("my-scheduler");
    manifests.write("a.json", copy.to_string());
    assert_refused(
        &manifests.refusals(),
        "a.json, kube-scheduler.yaml | 2 files run kube-scheduler",
        &[],
    );
}

#[test]
fn empty_and_comment_only_files() {
    for content in ["", "\n  \n", "# nothing\n", "---\n# nothing\n"] {
        let manifests = Manifests::new();
        manifests.write(SCHEDULER, content);
        assert_refused(
            &manifests.refusals(),
            "kube-scheduler.yaml: document | the file is empty",
            &["write one Pod"],
        );
    }
}

/// Wherever a manifest of kubeadm's is cut off, it is refused, or only its status is lost.
#[test]
fn a_cut_file_is_found_wherever_it_is_cut() {
    let manifests = Manifests::new();
    let whole = manifests.read(SCHEDULER);
    let mut expected = shared::yaml::first_document(&whole).unwrap();
    expected.as_object_mut().unwrap().shift_remove("status");
    let mut length = 0;
    let mut refused = 0;
    for line in whole.split_inclusive('\n') {
        for cut in [length, length + line.len() / 2] {
            let text = &whole[..cut];
            manifests.write(SCHEDULER, text);
            if manifests.refusals().is_empty() {
                let read = kubectl_selfhost::manifest::parse(text.as_bytes()).unwrap();
                assert_eq!(read, expected, "cut after {:?}", text.lines().last());
            } else {
                refused += 1;
            }
        }
        length += line.len();
    }
    assert!(refused > 100, "{refused}");
}

#[test]
fn json_that_is_cut() {
    let manifests = Manifests::new();
    manifests.edit(APISERVER, |_| {});
    let whole = manifests.read(APISERVER);
    for cut in [1, whole.len() / 2, whole.len() - 1] {
        manifests.write(APISERVER, &whole[..cut]);
        let refusals = manifests.refusals();
        assert_refused(&refusals, "kube-apiserver.yaml: document | cannot be read", &[]);
    }
}

#[test]
fn what_is_no_pod() {
    for (content, start, part) in [
        (
            "apiVersion: v1\nkind: PodList\nitems: []\n",
            "kube-scheduler.yaml: kind | is PodList",
            "one Pod",
        ),
        (
            "apiVersion: v1\nkind: List\nitems: []\n",
            "kube-scheduler.yaml: kind | is List",
            "one Pod",
        ),
        (
            "apiVersion: apps/v1\nkind: Deployment\n",
            "kube-scheduler.yaml: kind | is apps/v1 Deployment",
            "move the file",
        ),
        (
            "kind: Pod\n",
            "kube-scheduler.yaml: kind | is (no apiVersion) Pod",
            "move the file",
        ),
        (
            "- a\n- b\n",
            "kube-scheduler.yaml: document | is a list, not a Pod",
            "one Pod",
        ),
        (
            "just text\n",
            "kube-scheduler.yaml: document | is a string, not a Pod",
            "one Pod",
        ),
        (
            "a: [\n",
            "kube-scheduler.yaml: document | cannot be read: line",
            "one Pod",
        ),
        (
            "a: 1\na: 2\n",
            "kube-scheduler.yaml: document | cannot be read: line 2",
            "twice",
        ),
    ] {
        let manifests = Manifests::new();
        manifests.write(SCHEDULER, content);
        assert_refused(&manifests.refusals(), start, &[part]);
    }
    let manifests = Manifests::new();
    manifests.write(SCHEDULER, [0xff, 0xfe, b'a']);
    assert_refused(
        &manifests.refusals(),
        "kube-scheduler.yaml: document | is not UTF-8 text",
        &[],
    );
}

#[test]
fn fields_of_the_wrong_type() {
    type Edit = fn(&mut Value);
    let cases: [(Edit, &str); 12] = [
        (|pod| pod["spec"] = json!([]), "spec | must be a map, but is a list"),
        (
            |pod| pod["metadata"] = json!("x"),
            "metadata | must be a map, but is a string",
        ),
        (
            |pod| pod["metadata"]["labels"]["a"] = json!(true),
            "metadata.labels[a] | must be a string, but is a boolean",
        ),
        (
            |pod| pod["spec"]["hostNetwork"] = json!("yes"),
            "spec.hostNetwork | must be true or false, but is a string",
        ),
        (
            |pod| pod["spec"]["containers"] = json!([]),
            "spec.containers | there are none",
        ),
        (
            |pod| pod["spec"]["containers"] = json!({}),
            "spec.containers | must be a list, but is a map",
        ),
        (
            |pod| main_container(pod)["command"] = json!("kube-scheduler --v=2"),
            "spec.containers[kube-scheduler].command | must be a list, but is a string",
        ),
        (
            |pod| main_container(pod)["command"][1] = json!(511),
            "spec.containers[kube-scheduler].command[1] | must be a string, but is a number",
        ),
        (
            |pod| main_container(pod)["env"] = json!([{"name": "A", "value": 1}]),
            "spec.containers[kube-scheduler].env[A].value | must be a string, but is a number",
        ),
        (
            |pod| main_container(pod)["image"] = Value::Null,
            "spec.containers[kube-scheduler].image | is missing",
        ),
        (
            |pod| main_container(pod)["livenessProbe"] = json!([]),
            "spec.containers[kube-scheduler].livenessProbe | must be a map, but is a list",
        ),
        (
            |pod| pod["spec"]["volumes"] = json!([]),
            "spec.containers[kube-scheduler].volumeMounts[0].name | mounts the volume \"kubeconfig\", which the Pod does not have",
        ),
    ];
    for (edit, expected) in cases {
        assert_refused(&edited(SCHEDULER, edit), &format!("{SCHEDULER}: {expected}"), &[]);
    }
}

#[test]
fn commands_that_are_no_list_of_flags() {
    for (command, part) in [
        (
            json!(["sh", "-c", "exec kube-scheduler --leader-elect=true"]),
            "from one string",
        ),
        (
            json!(["/bin/sh", "-ec", "umask 77; /usr/local/bin/kube-scheduler"]),
            "from one string",
        ),
        (json!(["kube-scheduler --leader-elect=true"]), "from one string"),
        (
            json!(["/go-runner", "--log-file=/x", "kube-scheduler", "--v=2"]),
            "through \"go-runner\"",
        ),
        (json!(null), "leaves it to the image"),
        (json!(["--leader-elect=true"]), "leaves it to the image"),
        (json!(["/bin/sleep", "1"]), "no container runs kube-scheduler"),
    ] {
        let refusals = edited(SCHEDULER, |pod| main_container(pod)["command"] = command.clone());
        assert_refused(&refusals, "kube-scheduler.yaml: spec.containers", &[part]);
    }
}

#[test]
fn executables_with_a_path_and_flags_in_args_are_fine() {
    let refusals = edited(SCHEDULER, |pod| {
        let main = main_container(pod);
        let flags = main["command"].as_array().unwrap()[1..].to_vec();
        main["command"] = json!(["/usr/local/bin/kube-scheduler"]);
        main["args"] = json!(flags);
    });
    assert_eq!(refusals, [""; 0]);
}

#[test]
fn a_missing_namespace_is_default() {
    let refusals = edited(SCHEDULER, |pod| {
        pod["metadata"].as_object_mut().unwrap().shift_remove("namespace");
    });
    assert_refused(
        &refusals,
        "kube-scheduler.yaml: metadata.namespace",
        &["\"default\"", "namespace: kube-system"],
    );
}

#[test]
fn a_missing_component_is_named_and_can_be_left_out() {
    let manifests = Manifests::new();
    manifests.remove(SCHEDULER);
    assert_refused(
        &manifests.refusals(),
        "DIR | no manifest there runs kube-scheduler",
        &["--components"],
    );
    let components = options()
        .components
        .into_iter()
        .filter(|component| component.name() != "kube-scheduler")
        .collect();
    let plan = offline_plan(
        manifests.path(),
        &PlanOptions {
            components,
            ..options()
        },
    )
    .unwrap();
    assert_eq!(plan.refusals, []);
    assert_eq!(plan.components.len(), 2);
}

#[test]
fn ports_that_cannot_be_used() {
    let refusals = edited(APISERVER, |pod| {
        main_container(pod)["readinessProbe"]["httpGet"]["port"] = json!("https")
    });
    let field = "kube-apiserver.yaml: spec.containers[kube-apiserver].readinessProbe.httpGet.port";
    assert_refused(&refusals, field, &["\"https\"", "write the port's number"]);
    for (port, part) in [
        ("0", "switches the secure port off"),
        ("70000", "is no port"),
        ("https", "is no port"),
    ] {
        let refusals = edited(SCHEDULER, |pod| add_flag(pod, &format!("--secure-port={port}")));
        assert_refused(
            &refusals,
            "kube-scheduler.yaml: spec.containers[kube-scheduler].command[6]",
            &[part],
        );
    }
    let refusals = edited(SCHEDULER, |pod| add_flag(pod, "--bind-address=localhost"));
    assert_refused(
        &refusals,
        "kube-scheduler.yaml: spec.containers[kube-scheduler].command[6]",
        &["is no IP address"],
    );
}

#[test]
fn two_at_once_that_would_both_act() {
    for flag in ["--leader-elect=false", "--leader_elect=F"] {
        let refusals = edited(MANAGER, |pod| add_flag(pod, flag));
        assert_refused(
            &refusals,
            "kube-controller-manager.yaml: spec.containers",
            &["both would act", "--leader-elect=true"],
        );
    }
    // The last one counts.
    let refusals = edited(MANAGER, |pod| {
        add_flag(pod, "--leader-elect=false");
        add_flag(pod, "--leader-elect");
    });
    assert_eq!(refusals, [""; 0]);
    let refusals = edited(MANAGER, |pod| add_flag(pod, "--leader-elect=maybe"));
    assert_refused(&refusals, "kube-controller-manager.yaml: ", &["neither true nor false"]);
}

#[test]
fn probes_that_would_get_401_or_403() {
    let refusals = edited(APISERVER, |pod| add_flag(pod, "--anonymous-auth=false"));
    assert_refused(
        &refusals,
        "kube-apiserver.yaml: spec.containers",
        &["401", "--authentication-config"],
    );
    let refusals = edited(SCHEDULER, |pod| {
        add_flag(pod, "--authorization-always-allow-paths=/metrics")
    });
    assert_refused(
        &refusals,
        "kube-scheduler.yaml: spec.containers",
        &["leaves out /readyz"],
    );
    for allowed in ["/healthz,/readyz,/livez", "/*", "/ready*"] {
        let refusals = edited(SCHEDULER, |pod| {
            add_flag(pod, &format!("--authorization-always-allow-paths={allowed}"))
        });
        assert_eq!(refusals, [""; 0]);
    }
}

#[test]
fn networks_and_process_namespaces() {
    let refusals = edited(SCHEDULER, |pod| pod["spec"]["hostNetwork"] = json!(false));
    assert_refused(
        &refusals,
        "kube-scheduler.yaml: spec.hostNetwork",
        &["no port to hand over"],
    );
    for key in ["hostPID", "shareProcessNamespace"] {
        let refusals = edited(SCHEDULER, |pod| pod["spec"][key] = json!(true));
        assert_refused(&refusals, &format!("kube-scheduler.yaml: spec.{key}"), &["process 1"]);
    }
    let refusals = edited(SCHEDULER, |pod| pod["spec"]["restartPolicy"] = json!("OnFailure"));
    assert_refused(&refusals, "kube-scheduler.yaml: spec.restartPolicy", &["Always"]);
}

#[test]
fn references_to_api_objects() {
    type Edit = fn(&mut Value);
    let cases: [(Edit, &str, &str); 9] = [
        (
            |pod| pod["spec"]["serviceAccountName"] = json!("x"),
            "spec.serviceAccountName",
            "ServiceAccount",
        ),
        (
            |pod| pod["spec"]["imagePullSecrets"] = json!([{"name": "x"}]),
            "spec.imagePullSecrets",
            "Secret",
        ),
        (
            |pod| pod["spec"]["volumes"][0] = json!({"name": "kubeconfig", "secret": {"secretName": "x"}}),
            "spec.volumes[kubeconfig]",
            "Secret",
        ),
        (
            |pod| pod["spec"]["volumes"][0] = json!({"name": "kubeconfig", "configMap": {"name": "x"}}),
            "spec.volumes[kubeconfig]",
            "ConfigMap",
        ),
        (
            |pod| {
                pod["spec"]["volumes"][0] = json!({"name": "kubeconfig", "persistentVolumeClaim": {"claimName": "x"}})
            },
            "spec.volumes[kubeconfig]",
            "PersistentVolumeClaim",
        ),
        (
            |pod| {
                pod["spec"]["volumes"][0] =
                    json!({"name": "kubeconfig", "projected": {"sources": [{"serviceAccountToken": {"path": "t"}}]}})
            },
            "spec.volumes[kubeconfig]",
            "token",
        ),
        (
            |pod| {
                pod["spec"]["volumes"][0] =
                    json!({"name": "kubeconfig", "csi": {"driver": "d", "nodePublishSecretRef": {"name": "x"}}})
            },
            "spec.volumes[kubeconfig]",
            "Secret",
        ),
        (
            |pod| main_container(pod)["env"] = json!([{"name": "A", "valueFrom": {"secretKeyRef": {"name": "x"}}}]),
            "spec.containers[kube-scheduler].env[A]",
            "Secret",
        ),
        (
            |pod| main_container(pod)["envFrom"] = json!([{"configMapRef": {"name": "x"}}]),
            "spec.containers[kube-scheduler].envFrom[0]",
            "ConfigMap",
        ),
    ];
    for (edit, field, part) in cases {
        assert_refused(
            &edited(SCHEDULER, edit),
            &format!("{SCHEDULER}: {field} | "),
            &[part, "fallback"],
        );
    }
}

#[test]
fn what_cannot_be_merged() {
    let refusals = edited(APISERVER, |pod| {
        main_container(pod)["env"] =
            json!([{"name": "GODEBUG", "valueFrom": {"fieldRef": {"fieldPath": "metadata.name"}}}]);
    });
    assert_refused(
        &refusals,
        "kube-apiserver.yaml: spec.containers[kube-apiserver].env[GODEBUG].valueFrom",
        &[],
    );
    let refusals = edited(APISERVER, |pod| pod["metadata"]["labels"]["k8s-app"] = json!("mine"));
    assert_refused(
        &refusals,
        "kube-apiserver.yaml: metadata.labels[k8s-app]",
        &["self-hosted-kube-apiserver"],
    );
}
