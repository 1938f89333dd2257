//! What kubeadm writes, in several versions, converted.

use std::collections::BTreeSet;

use kubectl_selfhost::daemon_set::{
    ORIGINAL_SHA256_ANNOTATION, build_daemon_set, self_hosted_component_label_query, self_hosted_component_labels,
};
use kubectl_selfhost::diff::diff;
use kubectl_selfhost::fallback::{build_fallback, fallback_file_name, role_of};
use kubectl_selfhost::inventory::{Identity, identify};
use kubectl_selfhost::mutators::{Mode, default_mutators};
use kubectl_selfhost::names::{Component, NODE_PREFIX, Role};
use kubectl_selfhost::plan::{Gap, PlanOptions, offline_plan};
use kubectl_selfhost::render::{daemon_sets_yaml, render_text};
use serde_json::Value;

use crate::support::{KUBEADM, OTHERS, context, file, kubeadm, options};

#[test]
fn daemon_sets() {
    for variant in KUBEADM {
        let plan = offline_plan(&kubeadm(variant), &options()).unwrap();
        assert_eq!(plan.refusals, []);
        let yaml = daemon_sets_yaml(&plan).unwrap();
        insta::assert_snapshot!(format!("daemon-sets-{variant}"), yaml);
        // What is printed is what was planned.
        let read = shared::yaml::all_documents(&yaml).unwrap();
        let planned: Vec<_> = plan
            .components
            .iter()
            .filter_map(|component| component.daemon_set.clone())
            .collect();
        assert_eq!(read, planned);
    }
}

/// What is particular about each of them is carried over word for word, and what is beside them is left alone.
#[test]
fn other_control_planes() {
    let kept: [&[&str]; 5] = [
        &["--etcd-servers=https://192.0.2.21:2379,https://192.0.2.22:2379,https://192.0.2.23:2379"],
        &[
            "--service-cluster-ip-range=10.96.0.0/16,fd00:96::/112",
            "--cluster-cidr=10.244.0.0/16,fd00:244::/56",
        ],
        &[
            "--oidc-required-claim=a=b",
            "--oidc-required-claim=c=d",
            "path: /etc/kubernetes/oidc",
        ],
        &[
            "--cloud-config=/etc/kubernetes/cloud/cloud.conf",
            "path: /etc/kubernetes/cloud",
        ],
        &["--client-ca-file=/etc/kubernetes/pki/ca.crt"],
    ];
    for (variant, kept) in OTHERS.into_iter().zip(kept) {
        let plan = offline_plan(&kubeadm(variant), &options()).unwrap();
        assert_eq!(plan.refusals, [], "{variant}");
        let yaml = daemon_sets_yaml(&plan).unwrap();
        for words in kept {
            assert!(yaml.contains(words), "{variant}: {words}");
        }
        insta::assert_snapshot!(format!("daemon-sets-{variant}"), yaml);
        let beside: &[&str] = if variant.ends_with("kube-vip") {
            &["kube-vip.yaml"]
        } else {
            &[]
        };
        assert_eq!(plan.untouched, beside, "{variant}");
        if variant.contains("external-ca") {
            assert!(!yaml.contains("ca.key"), "no key that is not there is asked for");
        }
    }
}

#[test]
fn daemon_sets_in_gap_mode() {
    let plan = offline_plan(
        &kubeadm("v1.36"),
        &PlanOptions {
            mode: Mode::Gap,
            ..options()
        },
    )
    .unwrap();
    assert_eq!(plan.refusals, []);
    assert_eq!(plan.expected_gap(), Gap::OneStart);
    insta::assert_snapshot!(daemon_sets_yaml(&plan).unwrap());
}

#[test]
fn fallbacks() {
    for variant in KUBEADM {
        let plan = offline_plan(&kubeadm(variant), &options()).unwrap();
        let fallbacks: Vec<_> = plan
            .components
            .iter()
            .map(|component| {
                let yaml = shared::yaml::to_string(component.fallback.as_ref().unwrap()).unwrap();
                format!("# {}\n{yaml}", fallback_file_name(component.component))
            })
            .collect();
        insta::assert_snapshot!(format!("fallbacks-{variant}"), fallbacks.join("---\n"));
    }
}

#[test]
fn plan_text() {
    for variant in KUBEADM {
        let mut plan = offline_plan(&kubeadm(variant), &options()).unwrap();
        plan.source = "DIR".to_owned();
        let text = render_text(&plan, 80, false);
        for line in text.lines() {
            assert!(line.chars().count() <= 80, "too long: {line}");
        }
        insta::assert_snapshot!(format!("plan-{variant}"), text);
    }
}

#[test]
fn plan_text_without_an_address_and_in_gap_mode() {
    let options = PlanOptions {
        mode: Mode::Gap,
        node_address: None,
        single_node: false,
        ..options()
    };
    let plan = offline_plan(&kubeadm("v1.36-audit-encryption"), &options).unwrap();
    insta::assert_snapshot!(render_text(&plan, 60, false));
}

#[test]
fn colours_are_all_that_differs_between_coloured_and_plain_text() {
    let plan = offline_plan(&kubeadm("v1.36"), &options()).unwrap();
    let colored = render_text(&plan, 80, true);
    assert!(
        colored.contains("\x1b[32m    + --permit-port-sharing=true\x1b[0m"),
        "{colored}"
    );
    let mut plain = String::new();
    let mut rest = colored.as_str();
    while let Some((before, after)) = rest.split_once('\x1b') {
        plain.push_str(before);
        rest = after.split_once('m').unwrap().1;
    }
    plain.push_str(rest);
    assert_eq!(plain, render_text(&plan, 80, false));
}

#[test]
fn plan_as_json() {
    let plan = offline_plan(&kubeadm("v1.36"), &options()).unwrap();
    let json = serde_json::to_value(&plan).unwrap();
    assert_eq!(
        (&json["apiVersion"], &json["kind"]),
        (&"selfhost/v1".into(), &"Plan".into())
    );
    assert_eq!(json["components"][2]["component"], "kube-apiserver");
    assert_eq!(json["components"][2]["state"], "static");
    assert_eq!(json["components"][2]["expectedGap"], "none");
    assert_eq!(json["components"][2]["manifest"], "kube-apiserver.yaml");
    assert_eq!(json["components"][2]["daemonSet"]["kind"], "DaemonSet");
    assert_eq!(json["untouched"], serde_json::json!(["etcd.yaml"]));
    assert_eq!(json["refusals"], serde_json::json!([]));
}

/// The net difference between manifest and template is made of nothing but changes that carry a reason.
#[test]
fn nothing_changes_without_a_reason() {
    for variant in KUBEADM {
        for component in Component::ALL {
            for mode in [Mode::Steered, Mode::Gap] {
                let original = file(variant, component).pod;
                let mutators = default_mutators(component, &mode);
                let context = context(component, mode);
                let (changes, template) = kubectl_selfhost::plan::changes(&original, &mutators, &context).unwrap();
                assert!(
                    changes
                        .iter()
                        .all(|change| !change.reason.is_empty() && change.before != change.after)
                );
                let explained: BTreeSet<_> = changes.iter().map(|change| change.path.as_str()).collect();
                let start = kubectl_selfhost::daemon_set::template_of(&original).unwrap();
                for difference in diff(&start, &template) {
                    let covered = explained.iter().any(|path| difference.path.starts_with(*path));
                    assert!(covered, "{component}: {} changes without a reason", difference.path);
                }
                // And every change is there in the end, or is built upon by a later one.
                assert!(!changes.is_empty());
                let daemon_set = build_daemon_set(component, &original, &mutators, &context).unwrap();
                assert_eq!(daemon_set["spec"]["template"], template);
            }
        }
    }
}

#[test]
fn the_daemon_set_around_the_template() {
    let plan = offline_plan(&kubeadm("v1.36"), &options()).unwrap();
    for component_plan in &plan.components {
        let component = component_plan.component;
        let daemon_set = component_plan.daemon_set.as_ref().unwrap();
        assert_eq!(daemon_set["metadata"]["name"], format!("self-hosted-{component}"));
        assert_eq!(daemon_set["metadata"]["namespace"], "kube-system");
        assert_eq!(
            daemon_set["metadata"]["annotations"][ORIGINAL_SHA256_ANNOTATION],
            file("v1.36", component).sha256
        );
        let labels = serde_json::to_value(self_hosted_component_labels(component)).unwrap();
        assert_eq!(
            daemon_set["spec"]["selector"],
            serde_json::json!({"matchLabels": labels})
        );
        let template_labels = daemon_set["spec"]["template"]["metadata"]["labels"]
            .as_object()
            .unwrap();
        let query = self_hosted_component_label_query(component);
        let (key, value) = query.split_once('=').unwrap();
        assert_eq!(template_labels[key], value);
        assert_eq!(template_labels["component"], component.name());
        assert_eq!(template_labels["tier"], "control-plane");
        assert_eq!(daemon_set["spec"].get("status"), None);
    }
    assert!(ORIGINAL_SHA256_ANNOTATION.starts_with(&format!("{NODE_PREFIX}/")));
}

/// The Pod of a template, as the apiserver would show it.
fn pod_of(daemon_set: &Value) -> Value {
    let mut pod = daemon_set["spec"]["template"].clone();
    pod["apiVersion"] = "v1".into();
    pod["kind"] = "Pod".into();
    pod["metadata"]["name"] = "self-hosted-x-abcde".into();
    pod["metadata"]["namespace"] = "kube-system".into();
    pod
}

#[test]
fn a_fallback_is_a_static_pod_that_starts_without_an_apiserver() {
    for variant in KUBEADM {
        for component in Component::ALL {
            let original = file(variant, component).pod;
            let fallback = build_fallback(component, &original).unwrap();
            let text = shared::yaml::to_string(&fallback).unwrap();
            // It is a manifest that we ourselves take for a fallback of that component.
            let read = kubectl_selfhost::manifest::parse(text.as_bytes()).unwrap();
            assert_eq!(read, fallback);
            assert_eq!(identify(&read), Ok(Identity::Component(component, Role::Fallback)));
            assert_ne!(read["metadata"]["name"], original["metadata"]["name"]);
            // Nobody computes it for a static Pod.
            assert_eq!(read["spec"]["priority"], original["spec"]["priority"]);
            for volume in read["spec"]["volumes"].as_array().unwrap() {
                assert!(volume.get("hostPath").is_some(), "{volume}");
            }
            for check in kubectl_selfhost::checks::MANIFEST_CHECKS {
                assert_eq!(check(component, &read, Mode::Steered), Ok(vec![]));
            }
            assert!(text.contains("--permit-port-sharing=true") && text.contains("multipathtcp=0"));
            assert!(!text.contains("ports:") && !text.contains("probe-port"));
            // The DaemonSet must not adopt its mirror Pod.
            assert_eq!(read["metadata"]["labels"].get("k8s-app"), None);
        }
    }
}

#[test]
fn a_fallback_of_the_template_is_the_fallback_of_the_manifest() {
    for component in Component::ALL {
        let original = file("v1.36", component).pod;
        let mutators = default_mutators(component, &Mode::Steered);
        let daemon_set = build_daemon_set(component, &original, &mutators, &context(component, Mode::Steered)).unwrap();
        let from_template = build_fallback(component, &pod_of(&daemon_set)).unwrap();
        let from_manifest = build_fallback(component, &original).unwrap();
        let text = shared::yaml::to_string(&from_template).unwrap();
        assert!(
            !text.contains("/selfhost") && !text.contains("node-restriction"),
            "{text}"
        );
        assert_eq!(role_of(&from_template["spec"]["containers"][0]), Role::Fallback);
        // What a template cannot say any more: where the manifest's own start-up probe asked, the literal address,
        // and the number of the priority.
        let differs: Vec<_> = diff(&from_manifest, &from_template)
            .into_iter()
            .map(|one| one.path)
            .collect();
        let expected = [
            "startupProbe",
            "httpGet.host",
            "HOST_IP",
            "advertise",
            "command[1]",
            "tolerations",
            "spec.priority",
            "automount",
            "env[",
        ];
        for path in &differs {
            assert!(expected.iter().any(|part| path.contains(part)), "{component}: {path}");
        }
    }
}

/// A converted Pod goes through the mutators again without any change.
#[test]
fn converting_twice_is_converting_once() {
    for variant in KUBEADM {
        for component in Component::ALL {
            for mode in [Mode::Steered, Mode::Gap] {
                let mutators = default_mutators(component, &mode);
                let context = context(component, mode);
                let once = build_daemon_set(component, &file(variant, component).pod, &mutators, &context).unwrap();
                let twice = build_daemon_set(component, &pod_of(&once), &mutators, &context).unwrap();
                assert_eq!(once, twice);
            }
        }
    }
}

/// The commands in the template are commands that our executable knows.
#[test]
fn the_commands_in_the_template_can_be_parsed() {
    use clap::Parser;
    for mode in [Mode::Steered, Mode::Gap] {
        for variant in KUBEADM {
            let plan = offline_plan(&kubeadm(variant), &PlanOptions { mode, ..options() }).unwrap();
            for component in &plan.components {
                let template = component.daemon_set.as_ref().unwrap();
                let spec = &template["spec"]["template"]["spec"];
                for command in [
                    &spec["initContainers"][0]["command"],
                    &spec["containers"][0]["startupProbe"]["exec"]["command"],
                ] {
                    let words: Vec<String> = serde_json::from_value(command.clone()).unwrap();
                    if let Err(error) = kubectl_selfhost::cli::Cli::try_parse_from(&words) {
                        panic!("{words:?}: {error}");
                    }
                }
            }
        }
    }
}

/// Every field of what we write is one that Kubernetes knows, spelled and typed as it knows it.
#[test]
fn every_field_is_known_to_kubernetes() {
    use k8s_openapi::api::apps::v1::DaemonSet;
    use k8s_openapi::api::core::v1::Pod;
    for mode in [Mode::Steered, Mode::Gap] {
        for variant in KUBEADM {
            let plan = offline_plan(&kubeadm(variant), &PlanOptions { mode, ..options() }).unwrap();
            for component in plan.components {
                let daemon_set = component.daemon_set.unwrap();
                let typed: DaemonSet = serde_json::from_value(daemon_set.clone()).unwrap();
                assert_eq!(diff(&daemon_set, &serde_json::to_value(typed).unwrap()), []);
                let fallback = component.fallback.unwrap();
                let typed: Pod = serde_json::from_value(fallback.clone()).unwrap();
                assert_eq!(diff(&fallback, &serde_json::to_value(typed).unwrap()), []);
            }
        }
    }
}
