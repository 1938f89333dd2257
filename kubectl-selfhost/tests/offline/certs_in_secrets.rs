//! `StoreCertsInSecrets` over kubeadm's manifests: what goes into a Secret, and that every flag finds its file where it was.

use std::collections::{BTreeMap, BTreeSet};

use k8s_openapi::api::core::v1::Secret;
use kubectl_selfhost::certs_in_secrets::{
    CertificateSecret, Content, Found, NodeFiles, PerNode, Projection, STORE_CERTS, differences, named_files,
    not_encrypted, plan, read_all, too_large,
};
use kubectl_selfhost::daemon_set::{build_daemon_set, template_of};
use kubectl_selfhost::manifest::read_directory;
use kubectl_selfhost::mutators::{Context, Mode, default_mutators};
use kubectl_selfhost::names::Component;
use kubectl_selfhost::plan::{PlanOptions, Snapshot, plan as plan_all};
use kubectl_selfhost::render::render_text;
use proptest::prelude::*;
use serde_json::{Value, json};

use crate::support::{KUBEADM, add_flag, context, file, kubeadm, main_container, options, pod};

const ALL: [Component; 3] = Component::ALL;
const SCHEDULER: Component = Component::KubeScheduler;
const MANAGER: Component = Component::KubeControllerManager;
const APISERVER: Component = Component::KubeApiserver;

fn kubeconfig(user: &str) -> String {
    format!(
        "apiVersion: v1\nkind: Config\nclusters:\n- name: kubernetes\n  cluster:\n    server: https://192.0.2.11:6443\nusers:\n- name: {user}\n  user:\n    client-key-data: c2VjcmV0\n"
    )
}

/// Made-up content that tells where it belongs.
fn content(path: &str) -> String {
    let pem = |label: &str| format!("-----BEGIN {label}-----\n{path}\n-----END {label}-----\n");
    match path.rsplit('.').next() {
        Some("key") => pem("RSA PRIVATE KEY"),
        Some("crt") => pem("CERTIFICATE"),
        Some("pub") => pem("PUBLIC KEY"),
        Some("conf") => kubeconfig(path),
        _ => format!("# {path}\n"),
    }
}

fn found(path: &str) -> Found {
    Found::File(Content::new(content(path).into_bytes()))
}

/// A node on which every file is there that is asked for.
fn complete(pods: &[(Component, &Value)]) -> NodeFiles {
    read_all(pods, found)
}

fn planned(component: Component, pod: &Value) -> (CertificateSecret, Projection) {
    plan(component, pod, &complete(&[(component, pod)])).unwrap().unwrap()
}

fn errors(component: Component, pod: &Value, files: &NodeFiles) -> Vec<String> {
    let show =
        |error: &kubectl_selfhost::fields::FieldError| format!("{} | {} | {}", error.field, error.what, error.remedy);
    plan(component, pod, files).unwrap_err().iter().map(show).collect()
}

fn with_certificates(component: Component, projection: &Projection) -> Context {
    Context {
        certificates: Some(projection.clone()),
        ..context(component, Mode::Steered)
    }
}

/// The template of the DaemonSet with the gate on.
fn template(component: Component, pod: &Value, projection: &Projection) -> Value {
    let mut mutators = default_mutators(component, &Mode::Steered);
    mutators.push(STORE_CERTS);
    let context = with_certificates(component, projection);
    build_daemon_set(component, pod, &mutators, &context).unwrap()["spec"]["template"].clone()
}

fn list<'a>(value: &'a Value, key: &str) -> &'a [Value] {
    value[key].as_array().map_or(&[], Vec::as_slice)
}

fn main_of(template: &Value, component: Component) -> &Value {
    let containers = list(&template["spec"], "containers");
    containers
        .iter()
        .find(|container| container["name"] == component.name())
        .unwrap()
}

/// What a container sees at a path: the innermost mount decides. The bytes come from the Secret, as the kubelet puts them
/// there, with their mode; `Err` says what else lies there.
fn seen(
    template: &Value,
    component: Component,
    path: &str,
    secret: &CertificateSecret,
) -> Result<(Vec<u8>, u64), String> {
    let below = |mount: &&Value| {
        let rest = path.strip_prefix(mount["mountPath"].as_str().unwrap().trim_end_matches('/'));
        rest.is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
    };
    let mounts = list(main_of(template, component), "volumeMounts");
    let mount = mounts
        .iter()
        .filter(below)
        .max_by_key(|mount| mount["mountPath"].as_str().unwrap().len());
    let mount = mount.ok_or("nothing is mounted")?;
    let mount_path = mount["mountPath"].as_str().unwrap().trim_end_matches('/');
    let volumes = list(&template["spec"], "volumes");
    let volume = volumes
        .iter()
        .find(|volume| volume["name"] == mount["name"])
        .ok_or("no such volume")?;
    let projected = volume.get("projected").ok_or_else(|| format!("{volume}"))?;
    let rest = path[mount_path.len()..].trim_start_matches('/');
    let inside = match mount["subPath"].as_str() {
        Some(sub_path) if rest.is_empty() => sub_path.to_owned(),
        Some(sub_path) => format!("{sub_path}/{rest}"),
        None => rest.to_owned(),
    };
    let source = &projected["sources"][0]["secret"];
    assert_eq!(source["name"], secret.name);
    let item = list(source, "items")
        .iter()
        .find(|item| item["path"] == inside)
        .ok_or("no such item")?;
    let object: Secret = serde_json::from_value(secret.object()).unwrap();
    let bytes = &object.data.unwrap()[item["key"].as_str().unwrap()];
    Ok((bytes.0.clone(), item["mode"].as_u64().unwrap()))
}

/// Every flag finds its file, at the same path, and keys are for their owner alone.
#[track_caller]
fn assert_all_seen(component: Component, pod: &Value) -> (CertificateSecret, Value) {
    let files = complete(&[(component, pod)]);
    let named = named_files(component, pod, &files).unwrap();
    let (secret, projection) = plan(component, pod, &files).unwrap().unwrap();
    let template = template(component, pod, &projection);
    let mut paths = BTreeSet::new();
    for (path, entry) in &named.entries {
        let (bytes, mode) = seen(&template, component, path, &secret).unwrap();
        assert_eq!(bytes, content(&entry.host_path).into_bytes(), "{path}");
        let public = [".crt", ".pub"].iter().any(|end| entry.host_path.ends_with(end));
        assert_eq!(mode, if public { 0o444 } else { 0o400 }, "{path}");
        paths.insert(path.clone());
    }
    assert_eq!(paths.len(), secret.files.len());
    let command = |template: &Value| main_of(template, component)["command"].clone();
    let without = build_daemon_set(
        component,
        pod,
        &default_mutators(component, &Mode::Steered),
        &context(component, Mode::Steered),
    );
    assert_eq!(
        command(&template),
        command(&without.unwrap()["spec"]["template"]),
        "no flag changes"
    );
    (secret, template)
}

#[test]
fn every_flag_finds_its_file_where_it_was() {
    for variant in KUBEADM {
        for component in ALL {
            assert_all_seen(component, &file(variant, component).pod);
        }
    }
}

#[test]
fn exactly_the_files_that_flags_name() {
    let paths = |component| -> Vec<String> {
        let (secret, _) = planned(component, &pod(component));
        secret.files.into_iter().map(|file| file.path).collect()
    };
    assert_eq!(paths(SCHEDULER), ["/etc/kubernetes/scheduler.conf"]);
    assert_eq!(
        paths(MANAGER),
        [
            "/etc/kubernetes/controller-manager.conf",
            "/etc/kubernetes/pki/ca.crt",
            "/etc/kubernetes/pki/ca.key",
            "/etc/kubernetes/pki/front-proxy-ca.crt",
            "/etc/kubernetes/pki/sa.key",
        ]
    );
    // no ca.key, no front-proxy-ca.key, no etcd/ca.key: no flag of the apiserver names them
    assert_eq!(
        paths(APISERVER),
        [
            "apiserver-etcd-client.crt",
            "apiserver-etcd-client.key",
            "apiserver-kubelet-client.crt",
            "apiserver-kubelet-client.key",
            "apiserver.crt",
            "apiserver.key",
            "ca.crt",
            "etcd/ca.crt",
            "front-proxy-ca.crt",
            "front-proxy-client.crt",
            "front-proxy-client.key",
            "sa.key",
            "sa.pub",
        ]
        .map(|name| format!("/etc/kubernetes/pki/{name}"))
    );
}

#[test]
fn the_nodes_directory_of_keys_is_gone_and_everything_else_stays() {
    for component in ALL {
        let pod = pod(component);
        let (_, template) = assert_all_seen(component, &pod);
        let host_paths = |spec: &Value| -> BTreeSet<String> {
            let paths = list(spec, "volumes")
                .iter()
                .filter_map(|volume| volume["hostPath"]["path"].as_str());
            paths
                .filter(|path| !path.contains("selfhost"))
                .map(str::to_owned)
                .collect()
        };
        let (before, after) = (host_paths(&pod["spec"]), host_paths(&template["spec"]));
        let gone: Vec<&String> = before.difference(&after).collect();
        let expected: &[&str] = match component {
            SCHEDULER => &["/etc/kubernetes/scheduler.conf"],
            MANAGER => &["/etc/kubernetes/controller-manager.conf", "/etc/kubernetes/pki"],
            APISERVER => &["/etc/kubernetes/pki"],
        };
        assert_eq!(gone, expected);
        assert!(after.is_subset(&before));
    }
}

#[test]
fn plans_and_daemon_sets() {
    for variant in KUBEADM {
        let mut snapshot = Snapshot::of_manifests("manifests".into(), read_directory(&kubeadm(variant)).unwrap());
        snapshot.files = complete(&snapshot.pods(&ALL));
        let options = PlanOptions {
            feature_gates: "StoreCertsInSecrets=true".parse().unwrap(),
            ..options()
        };
        let plan = plan_all(&snapshot, &options);
        assert_eq!(plan.refusals, []);
        let text = render_text(&plan, 120, false);
        let json = serde_json::to_string(&plan).unwrap();
        for secret in ["c2VjcmV0", "PRIVATE KEY", "client-key-data"] {
            assert!(!text.contains(secret) && !json.contains(secret), "{secret}");
            assert!(!format!("{plan:?}").contains(secret), "{secret}");
        }
        // what changes because of the gate
        let lines: Vec<&str> = text.lines().collect();
        let start = |line: &&str| line.contains("come from a Secret");
        let shown: Vec<String> = lines
            .iter()
            .enumerate()
            .filter(|(_, line)| start(line))
            .flat_map(|(at, _)| {
                lines[at..]
                    .iter()
                    .take_while(|line| !line.is_empty())
                    .map(|line| (*line).to_owned())
            })
            .collect();
        insta::assert_snapshot!(format!("certs-{variant}"), shown.join("\n"));
        let warned = plan
            .warnings
            .iter()
            .any(|warning| warning.contains("--encryption-provider-config"));
        assert_eq!(warned, variant != "v1.36-audit-encryption");
        for component in &plan.components {
            // the fallback starts without an API
            let fallback = component.fallback.as_ref().unwrap();
            assert!(
                list(&fallback["spec"], "volumes")
                    .iter()
                    .all(|volume| volume.get("hostPath").is_some())
            );
        }
    }
}

#[test]
fn without_the_gate_nothing_is_read_and_nothing_changes() {
    let snapshot = Snapshot::of_manifests("manifests".into(), read_directory(&kubeadm("v1.36")).unwrap());
    let off = PlanOptions {
        feature_gates: "StoreCertsInSecrets=false".parse().unwrap(),
        ..options()
    };
    let plan = plan_all(&snapshot, &off);
    assert_eq!(plan, plan_all(&snapshot, &options()));
    assert!(plan.components.iter().all(|component| component.secret.is_none()));
}

#[test]
fn another_content_is_another_secret_and_the_same_is_the_same() {
    let pod = pod(APISERVER);
    let (first, projection) = planned(APISERVER, &pod);
    assert_eq!(planned(APISERVER, &pod), (first.clone(), projection.clone()));
    let mut files = complete(&[(APISERVER, &pod)]);
    let key = "/etc/kubernetes/pki/apiserver.key";
    files.insert(
        key.into(),
        Found::File(Content::new(b"-----BEGIN PRIVATE KEY-----\n".to_vec())),
    );
    let (second, other) = plan(APISERVER, &pod, &files).unwrap().unwrap();
    assert_ne!(first.name, second.name);
    assert_ne!(first.sha256, second.sha256);
    let (old, new) = (
        template(APISERVER, &pod, &projection),
        template(APISERVER, &pod, &other),
    );
    let annotation = |template: &Value| {
        template["metadata"]["annotations"]["selfhost.node-restriction.kubernetes.io/certificates-sha256"].clone()
    };
    assert_eq!(annotation(&old), first.sha256);
    assert_eq!(annotation(&new), second.sha256);
    // on a template that has an older Secret, the step leads to the same as on the original
    let mut rolled = old.clone();
    (STORE_CERTS.apply)(&mut rolled, &with_certificates(APISERVER, &other)).unwrap();
    assert_eq!(rolled, new);
    let mut twice = new.clone();
    (STORE_CERTS.apply)(&mut twice, &with_certificates(APISERVER, &other)).unwrap();
    assert_eq!(twice, new);
}

#[test]
fn the_secret_is_what_the_api_takes() {
    let (secret, _) = planned(APISERVER, &pod(APISERVER));
    let object: Secret = serde_json::from_value(secret.object()).unwrap();
    assert_eq!(object.metadata.namespace.as_deref(), Some("kube-system"));
    assert_eq!(object.immutable, Some(true));
    assert!(
        secret.name.starts_with("self-hosted-kube-apiserver-certs-") && secret.name.len() == 45,
        "{}",
        secret.name
    );
    let data = object.data.unwrap();
    assert!(secret.is(&data));
    let mut other = data.clone();
    other.values_mut().next().unwrap().0.push(b'x');
    assert!(!secret.is(&other));
    assert_eq!(data.values().map(|bytes| bytes.0.len()).sum::<usize>(), secret.size());
    assert_eq!(too_large(&secret), None);
}

#[test]
fn a_secret_has_its_limit() {
    let mut pod = pod(SCHEDULER);
    add_flag(&mut pod, "--tls-cert-file=/etc/kubernetes/scheduler.conf");
    for (size, refused) in [(1024 * 1024, false), (1024 * 1024 + 1, true)] {
        let files = BTreeMap::from([(
            "/etc/kubernetes/scheduler.conf".to_owned(),
            Found::File(Content::new(vec![b'#'; size])),
        )]);
        let (secret, _) = plan(SCHEDULER, &pod, &files).unwrap().unwrap();
        let refusal = too_large(&secret);
        assert_eq!(refusal.is_some(), refused, "{size}");
        if let Some(refusal) = refusal {
            assert!(
                refusal.what.contains("1048577 bytes") && refusal.what.contains("scheduler.conf"),
                "{refusal}"
            );
        }
    }
}

/// Changes a Pod, and says what its apiserver is refused for.
fn refused(change: impl FnOnce(&mut Value)) -> Vec<String> {
    let mut pod = pod(APISERVER);
    change(&mut pod);
    errors(APISERVER, &pod, &complete(&[(APISERVER, &pod)]))
}

#[test]
fn what_is_not_there_is_named_with_its_flag() {
    for (found, words) in [
        (Found::Absent, "/etc/kubernetes/pki/sa.key is not there"),
        (
            Found::NoFile("a directory".into()),
            "/etc/kubernetes/pki/sa.key is a directory and no file",
        ),
        (
            Found::Unreadable("permission denied".into()),
            "cannot be read: permission denied",
        ),
        (
            Found::File(Content::new(Vec::new())),
            "/etc/kubernetes/pki/sa.key is empty",
        ),
    ] {
        let pod = pod(APISERVER);
        let mut files = complete(&[(APISERVER, &pod)]);
        files.insert("/etc/kubernetes/pki/sa.key".into(), found);
        let errors = errors(APISERVER, &pod, &files);
        assert_eq!(errors.len(), 1, "{errors:?}");
        assert!(
            errors[0].starts_with("spec.containers[kube-apiserver].command["),
            "{errors:?}"
        );
        assert!(
            errors[0].contains("--service-account-signing-key-file names") && errors[0].contains(words),
            "{errors:?}"
        );
    }
    // what was not looked at is no file that is there
    let errors = errors(SCHEDULER, &pod(SCHEDULER), &NodeFiles::new());
    assert!(
        errors[0].contains("/etc/kubernetes/scheduler.conf") && errors[0].contains("not looked at"),
        "{errors:?}"
    );
}

#[test]
fn an_external_authority_has_no_key_here() {
    // as kubeadm writes it where ca.key is not on the node
    let mut pod = pod(MANAGER);
    for word in main_container(&mut pod)["command"].as_array_mut().unwrap() {
        let text = word.as_str().unwrap().to_owned();
        if text.starts_with("--cluster-signing-") {
            *word = json!(format!("{}=", text.split('=').next().unwrap()));
        }
    }
    let (secret, _) = assert_all_seen(MANAGER, &pod);
    assert!(
        secret.files.iter().all(|file| !file.path.ends_with("ca.key")),
        "{secret:?}"
    );
}

#[test]
fn flags_in_every_form() {
    let mut pod = pod(APISERVER);
    for flag in [
        "--service-account-key-file=/etc/kubernetes/pki/old.pub",
        "--service-account-key-file",
        "/etc/kubernetes/pki/older.pub",
        "--tls-sni-cert-key=/etc/kubernetes/pki/sni.crt,/etc/kubernetes/pki/sni.key:api.example.test,*.example.test",
        "--tls_sni_cert_key=/etc/kubernetes//pki/./sni2.crt,/etc/kubernetes/pki/sni2.key",
        // newer than the table of flags
        "--some-new-bundle=/etc/kubernetes/pki/new/bundle.crt",
        "--some-new-level=/etc/kubernetes/other",
    ] {
        add_flag(&mut pod, flag);
    }
    let files = complete(&[(APISERVER, &pod)]);
    let (secret, projection) = plan(APISERVER, &pod, &files).unwrap().unwrap();
    let template = template(APISERVER, &pod, &projection);
    for name in [
        "sa.pub",
        "old.pub",
        "older.pub",
        "sni.crt",
        "sni.key",
        "sni2.crt",
        "sni2.key",
        "new/bundle.crt",
    ] {
        let path = format!("/etc/kubernetes/pki/{name}");
        assert!(seen(&template, APISERVER, &path, &secret).is_ok(), "{name}");
    }
    assert!(secret.files.iter().all(|file| file.path != "/etc/kubernetes/other"));
}

#[test]
fn a_kubeconfig_brings_the_files_that_it_names() {
    let mut pod = pod(SCHEDULER);
    pod["spec"]["volumes"]
        .as_array_mut()
        .unwrap()
        .push(json!({"name": "kubelet", "hostPath": {"path": "/srv/scheduler", "type": "Directory"}}));
    main_container(&mut pod)["volumeMounts"]
        .as_array_mut()
        .unwrap()
        .push(json!({"name": "kubelet", "mountPath": "/etc/scheduler"}));
    for word in main_container(&mut pod)["command"].as_array_mut().unwrap() {
        if word.as_str().unwrap().starts_with("--kubeconfig=") {
            *word = json!("--kubeconfig=/etc/scheduler/kubeconfig");
        }
    }
    let kubeconfig = "apiVersion: v1\nkind: Config\nclusters:\n- cluster: {certificate-authority: ../scheduler/ca.crt}\n- cluster: {certificate-authority: ca/ca.crt}\nusers:\n- user: {client-certificate: client.crt, client-key: /etc/scheduler/client.key, tokenFile: ''}\n";
    let read = |path: &str| match path {
        "/srv/scheduler/kubeconfig" => Found::File(Content::new(kubeconfig.into())),
        path => found(path),
    };
    let files = read_all(&[(SCHEDULER, &pod)], read);
    let errors = errors(SCHEDULER, &pod, &files);
    assert!(
        errors.len() == 1 && errors[0].contains("../scheduler/ca.crt"),
        "{errors:?}"
    );
    let kubeconfig = kubeconfig.replace("../scheduler/ca.crt", "");
    let read = |path: &str| match path {
        "/srv/scheduler/kubeconfig" => Found::File(Content::new(kubeconfig.clone().into())),
        path => found(path),
    };
    let files = read_all(&[(SCHEDULER, &pod)], read);
    let (secret, projection) = plan(SCHEDULER, &pod, &files).unwrap().unwrap();
    let template = template(SCHEDULER, &pod, &projection);
    for name in ["kubeconfig", "ca/ca.crt", "client.crt", "client.key"] {
        let (bytes, _) = seen(&template, SCHEDULER, &format!("/etc/scheduler/{name}"), &secret).unwrap();
        let host_path = format!("/srv/scheduler/{name}");
        assert_eq!(Found::File(Content::new(bytes)), read(&host_path), "{name}");
    }
    let named: Vec<&str> = secret.files.iter().map(|file| file.named_by.as_str()).collect();
    assert!(named.contains(&"client-key in /etc/scheduler/kubeconfig"), "{named:?}");
}

#[test]
fn configuration_stays_on_the_node_and_what_it_names_does_not() {
    let pod_of = |flag: &str| {
        let mut pod = file("v1.36-audit-encryption", APISERVER).pod;
        pod["spec"]["volumes"]
            .as_array_mut()
            .unwrap()
            .push(json!({"name": "authz", "hostPath": {"path": "/etc/kubernetes/authz"}}));
        main_container(&mut pod)["volumeMounts"]
            .as_array_mut()
            .unwrap()
            .push(json!({"name": "authz", "mountPath": "/etc/kubernetes/authz"}));
        add_flag(&mut pod, flag);
        pod
    };
    let pod = pod_of("--authorization-config=/etc/kubernetes/authz/config.yaml");
    let config = "authorizers:\n- webhook:\n    connectionInfo: {kubeConfigFile: /etc/kubernetes/pki/webhook.conf}\n    other: [/etc/kubernetes/pki/absent, /etc/kubernetes/authz/x, /etc/kubernetes/pki]\n";
    let read = |path: &str| match path {
        "/etc/kubernetes/authz/config.yaml" => Found::File(Content::new(config.into())),
        "/etc/kubernetes/pki/absent" => Found::Absent,
        "/etc/kubernetes/pki" => Found::NoFile("a directory".into()),
        path => found(path),
    };
    let files = read_all(&[(APISERVER, &pod)], read);
    let (secret, projection) = plan(APISERVER, &pod, &files).unwrap().unwrap();
    let template = template(APISERVER, &pod, &projection);
    assert!(seen(&template, APISERVER, "/etc/kubernetes/pki/webhook.conf", &secret).is_ok());
    for path in [
        "/etc/kubernetes/authz/config.yaml",
        "/etc/kubernetes/enc/config.yaml",
        "/etc/kubernetes/audit/policy.yaml",
    ] {
        let stays = seen(&template, APISERVER, path, &secret).unwrap_err();
        assert!(stays.contains("hostPath"), "{path}: {stays}");
    }
    // beside the keys it cannot stay
    let (secret, _) = planned(
        APISERVER,
        &pod_of("--audit-policy-file=/etc/kubernetes/pki/policy.yaml"),
    );
    assert!(
        secret
            .files
            .iter()
            .any(|file| file.path == "/etc/kubernetes/pki/policy.yaml")
    );
}

#[test]
fn what_cannot_be_in_a_secret_is_refused() {
    let errors = refused(|pod| add_flag(pod, "--encryption-provider-config=/etc/kubernetes/pki/enc.yaml"));
    assert!(
        errors.len() == 1 && errors[0].contains("the key to the Secrets must not be kept in one"),
        "{errors:?}"
    );
    let errors = refused(|pod| add_flag(pod, "--audit-log-path=/etc/kubernetes/pki/audit.log"));
    assert!(
        errors.len() == 1 && errors[0].contains("cannot be written"),
        "{errors:?}"
    );
    let errors = refused(|pod| add_flag(pod, "--tls-cert-file=/nowhere/tls.crt"));
    assert!(
        errors.len() == 1 && errors[0].contains("which no volume of the container holds"),
        "{errors:?}"
    );
    let errors = refused(|pod| add_flag(pod, "--tls-cert-file=/etc/ssl/certs/tls.crt"));
    assert!(
        errors.len() == 1 && errors[0].contains("trust store /etc/ssl of the node"),
        "{errors:?}"
    );
    for path in [
        "tls.crt",
        "/etc/kubernetes/pki/$(NODE).crt",
        "/etc/kubernetes/pki/../tls.crt",
    ] {
        let errors = refused(|pod| add_flag(pod, &format!("--tls-cert-file={path}")));
        assert!(
            errors.len() == 1 && errors[0].contains("no plain absolute path"),
            "{path}: {errors:?}"
        );
    }
    let errors = refused(|pod| {
        let volume = json!({"name": "run", "hostPath": {"path": "/run/kms"}});
        pod["spec"]["volumes"].as_array_mut().unwrap().push(volume);
        let mount = json!({"name": "run", "mountPath": "/etc/kubernetes/pki/kms"});
        main_container(pod)["volumeMounts"].as_array_mut().unwrap().push(mount);
    });
    assert!(
        errors.len() == 1 && errors[0].starts_with("spec.volumes[run] | is mounted at /etc/kubernetes/pki/kms"),
        "{errors:?}"
    );
}

#[test]
fn a_bundle_in_the_systems_trust_store_stays_there() {
    let mut pod = pod(APISERVER);
    add_flag(&mut pod, "--oidc-ca-file=/etc/ssl/certs/ca-certificates.crt");
    let (secret, template) = assert_all_seen(APISERVER, &pod);
    let stays = seen(&template, APISERVER, "/etc/ssl/certs/ca-certificates.crt", &secret).unwrap_err();
    assert!(stays.contains("\"path\":\"/etc/ssl/certs\""), "{stays}");
}

#[test]
fn an_inner_mount_of_keys_comes_with_the_outer_one() {
    let mut pod = pod(APISERVER);
    let volume = json!({"name": "etcd-certs", "hostPath": {"path": "/srv/etcd"}});
    pod["spec"]["volumes"].as_array_mut().unwrap().push(volume);
    let mount = json!({"name": "etcd-certs", "mountPath": "/etc/kubernetes/pki/etcd/"});
    main_container(&mut pod)["volumeMounts"]
        .as_array_mut()
        .unwrap()
        .push(mount);
    let (secret, template) = assert_all_seen(APISERVER, &pod);
    let file = secret
        .files
        .iter()
        .find(|file| file.path.ends_with("etcd/ca.crt"))
        .unwrap();
    assert_eq!(file.host_path, "/srv/etcd/ca.crt");
    assert!(!template.to_string().contains("etcd-certs"));
}

#[test]
fn a_side_car_keeps_the_nodes_files() {
    let mut pod = pod(APISERVER);
    pod["spec"]["containers"].as_array_mut().unwrap().push(json!({
        "name": "kms", "image": "kms", "volumeMounts": [{"name": "k8s-certs", "mountPath": "/pki"}],
    }));
    let (_, template) = assert_all_seen(APISERVER, &pod);
    let volumes = list(&template["spec"], "volumes");
    let volume = |name: &str| volumes.iter().find(|volume| volume["name"] == name);
    assert_eq!(volume("k8s-certs").unwrap()["hostPath"]["path"], "/etc/kubernetes/pki");
    assert!(volume("selfhost-certs-0").unwrap().get("projected").is_some());
}

#[test]
fn a_component_that_is_not_root_reads_by_its_group() {
    for (security, group) in [
        (json!({"runAsUser": 1000}), 1000),
        (json!({"runAsUser": 1000, "runAsGroup": 1001}), 1001),
        (json!({"runAsUser": 1000, "fsGroup": 7}), 7),
        (json!({"runAsNonRoot": true}), 65534),
    ] {
        let mut pod = pod(SCHEDULER);
        pod["spec"]["securityContext"] = security.clone();
        let (secret, projection) = planned(SCHEDULER, &pod);
        assert_eq!(secret.files[0].mode, 0o440, "{security}");
        let template = template(SCHEDULER, &pod, &projection);
        assert_eq!(template["spec"]["securityContext"]["fsGroup"], group, "{security}");
    }
    let mut pod = pod(SCHEDULER);
    pod["spec"]["securityContext"] = json!({"runAsUser": 0, "runAsGroup": 5});
    let (secret, projection) = planned(SCHEDULER, &pod);
    assert_eq!(secret.files[0].mode, 0o400);
    assert!(
        template(SCHEDULER, &pod, &projection)["spec"]["securityContext"]
            .get("fsGroup")
            .is_none()
    );
}

#[test]
fn encryption_at_rest_is_asked_for() {
    let mut pod = pod(APISERVER);
    assert!(not_encrypted(&pod).unwrap().contains("--encryption-provider-config"));
    add_flag(&mut pod, "--encryption-provider-config=");
    assert!(not_encrypted(&pod).is_some());
    add_flag(&mut pod, "--encryption-provider-config=/etc/kubernetes/enc/config.yaml");
    assert_eq!(not_encrypted(&pod), None);
}

fn certificate(names: &[&str]) -> Content {
    let names: Vec<String> = names.iter().map(|name| (*name).to_owned()).collect();
    let key = rcgen::generate_simple_self_signed(names).unwrap();
    Content::new(key.cert.pem().into_bytes())
}

fn nodes(contents: &[(&str, Content)]) -> PerNode {
    let one = |(node, content): &(&str, Content)| {
        (
            (*node).to_owned(),
            BTreeMap::from([("/pki/x".to_owned(), content.clone())]),
        )
    };
    contents.iter().map(one).collect()
}

#[test]
fn certificates_that_differ_between_nodes_are_told_by_their_names() {
    let same = certificate(&["cp-1", "192.0.2.1"]);
    assert_eq!(
        differences(APISERVER, &nodes(&[("a", same.clone()), ("b", same.clone())])),
        []
    );
    assert_eq!(differences(APISERVER, &nodes(&[("a", same.clone())])), []);

    let other = certificate(&["cp-2", "192.0.2.1", "2001:db8::2"]);
    let found = differences(APISERVER, &nodes(&[("a", same.clone()), ("b", other)]));
    let [refusal] = found.as_slice() else {
        panic!("{found:?}")
    };
    assert_eq!(refusal.object, "/pki/x");
    assert!(
        refusal
            .what
            .contains("every Pod of self-hosted-kube-apiserver would get the same"),
        "{refusal}"
    );
    assert!(
        refusal
            .what
            .contains("only a has DNS cp-1; only b has DNS cp-2, IP 2001:db8::2"),
        "{refusal}"
    );

    let again = certificate(&["cp-1", "192.0.2.1"]);
    let found = differences(APISERVER, &nodes(&[("a", same.clone()), ("b", again)]));
    assert!(found[0].what.contains("its SHA-256 begins with "), "{found:?}");

    let mut missing = nodes(&[("a", same), ("b", certificate(&["x"]))]);
    missing.get_mut("b").unwrap().clear();
    let found = differences(APISERVER, &missing);
    assert!(found[0].what.contains("b has none"), "{found:?}");
}

#[test]
fn keys_that_differ_are_told_by_checksums_alone() {
    let key = |text: &str| Content::new(format!("-----BEGIN PRIVATE KEY-----\n{text}\n").into_bytes());
    let found = differences(MANAGER, &nodes(&[("a", key("AAAA")), ("b", key("BBBB"))]));
    assert!(found[0].what.contains("on a, its SHA-256 begins with"), "{found:?}");
    assert!(!found[0].to_string().contains("AAAA") && !found[0].to_string().contains("BBBB"));
    let config = |server: &str| Content::new(kubeconfig("u").replace("192.0.2.11", server).into_bytes());
    let found = differences(
        MANAGER,
        &nodes(&[("a", config("192.0.2.1")), ("b", config("192.0.2.2"))]),
    );
    assert!(
        found[0]
            .what
            .contains("only a has server https://192.0.2.1:6443; only b has server"),
        "{found:?}"
    );
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    /// Whatever the paths are: each has a key of its own that the API takes, is seen where the flag says, and the step changes
    /// nothing when it is taken again.
    #[test]
    fn any_paths(names in proptest::collection::btree_set("[a-zA-Z0-9._@ ü-]{1,12}(/[a-z_.-]{1,8}){0,3}", 1..12)) {
        let plain = |name: &&String| name.split('/').all(|part| part != ".." && part != ".");
        let names: Vec<&String> = names.iter().filter(plain).collect();
        let mut pod = pod(APISERVER);
        for name in &names {
            add_flag(&mut pod, &format!("--service-account-key-file=/etc/kubernetes/pki/{name}"));
        }
        let files = complete(&[(APISERVER, &pod)]);
        let named = named_files(APISERVER, &pod, &files).unwrap();
        let (secret, projection) = plan(APISERVER, &pod, &files).unwrap().unwrap();
        let valid = |key: &str| {
            let characters = key.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"-._".contains(&byte));
            characters && !key.is_empty() && key.len() <= 253 && key != "." && !key.starts_with("..")
        };
        let keys: BTreeSet<&String> = secret.files.iter().map(|file| &file.key).collect();
        prop_assert_eq!(keys.len(), named.entries.len());
        prop_assert!(keys.iter().all(|key| valid(key)), "{:?}", keys);
        let template = template(APISERVER, &pod, &projection);
        for (path, entry) in &named.entries {
            let bytes = seen(&template, APISERVER, path, &secret).map(|(bytes, _)| bytes);
            prop_assert_eq!(bytes, Ok(content(&entry.host_path).into_bytes()), "{}", path);
        }
        let mut twice = template.clone();
        (STORE_CERTS.apply)(&mut twice, &with_certificates(APISERVER, &projection)).unwrap();
        prop_assert_eq!(&twice, &template);
        // and on the bare Pod it is the same step
        let mut bare = template_of(&pod).unwrap();
        (STORE_CERTS.apply)(&mut bare, &with_certificates(APISERVER, &projection)).unwrap();
        let volumes = |template: &Value| -> Vec<Value> {
            list(&template["spec"], "volumes").iter().filter(|volume| volume.get("projected").is_some()).cloned().collect()
        };
        prop_assert_eq!(volumes(&bare), volumes(&template));
    }
}
