//! What a manifest alone can forbid, and what it makes worth a warning.

use std::net::IpAddr;

use serde_json::Value;

use crate::component_spec::ComponentSpec;
use crate::fields::{FieldError, at, containers, list_at, string_at};
use crate::mutators::Mode;
use crate::names::Component;

/// A check of one component's Pod: everything that forbids its conversion.
pub type ManifestCheck = fn(Component, &Value, Mode) -> Result<Vec<FieldError>, FieldError>;

/// All checks of a manifest. An error of one forbids the conversion as well.
pub const MANIFEST_CHECKS: [ManifestCheck; 8] = [
    host_network,
    process_namespace,
    api_references,
    listener,
    leader_election,
    anonymous_requests,
    always_allowed_paths,
    side_cars,
];

fn host_network(component: Component, pod: &Value, _: Mode) -> Result<Vec<FieldError>, FieldError> {
    if at(pod, &["spec", "hostNetwork"]) == Some(&Value::Bool(true)) {
        return Ok(Vec::new());
    }
    Ok(vec![FieldError::new(
        "spec.hostNetwork",
        format!("is not true, so that {component} has an address of its own and there is no port to hand over"),
        "only components in the node's network can be converted: set hostNetwork: true, as kubeadm does",
    )])
}

/// The start-up probe looks at process 1 of its container; a shared process namespace has another one there.
fn process_namespace(_: Component, pod: &Value, _: Mode) -> Result<Vec<FieldError>, FieldError> {
    let shared = |key: &&str| at(pod, &["spec", key]) == Some(&Value::Bool(true));
    Ok(["hostPID", "shareProcessNamespace"]
        .into_iter()
        .filter(shared)
        .map(|key| {
            FieldError::new(
                format!("spec.{key}"),
                "is true, so that the component is not process 1 and cannot prove itself",
                "remove it: none of the three components needs it",
            )
        })
        .collect())
}

/// The kubelet refuses static Pods that refer to API objects (k8s.io/kubernetes `pkg/api/pod/util.go`,
/// `HasAPIObjectReference`); what is found here ran on an older kubelet, and could not come back as a fallback.
fn api_references(_: Component, pod: &Value, _: Mode) -> Result<Vec<FieldError>, FieldError> {
    const REMEDY: &str = "use a hostPath volume or a plain value: the fallback has to start without any apiserver";
    let error = |field: String, what: &str| FieldError::new(field, format!("refers to {what}"), REMEDY);
    let mut found = Vec::new();
    for (key, what) in [
        ("serviceAccountName", "a ServiceAccount"),
        ("serviceAccount", "a ServiceAccount"),
        ("imagePullSecrets", "a Secret"),
        ("resourceClaims", "a ResourceClaim"),
    ] {
        let set = match at(pod, &["spec", key]) {
            Some(Value::String(name)) => !name.is_empty(),
            Some(Value::Array(list)) => !list.is_empty(),
            Some(_) => true,
            None => false,
        };
        if set {
            found.push(error(format!("spec.{key}"), what));
        }
    }
    for volume in list_at(pod, &["spec", "volumes"]) {
        let field = format!("spec.volumes[{}]", string_at(volume, &["name"]).unwrap_or("?"));
        for (key, what) in [
            ("secret", "a Secret"),
            ("configMap", "a ConfigMap"),
            ("persistentVolumeClaim", "a PersistentVolumeClaim"),
            ("ephemeral", "a PersistentVolumeClaim"),
        ] {
            if at(volume, &[key]).is_some() {
                found.push(error(field.clone(), what));
            }
        }
        for source in list_at(volume, &["projected", "sources"]) {
            for (key, what) in [
                ("secret", "a Secret"),
                ("configMap", "a ConfigMap"),
                ("serviceAccountToken", "a ServiceAccount's token"),
                ("clusterTrustBundle", "a ClusterTrustBundle"),
                ("podCertificate", "a PodCertificateRequest"),
            ] {
                if at(source, &[key]).is_some() {
                    found.push(error(field.clone(), what));
                }
            }
        }
        // Drivers' volumes name their Secret in a field of these names.
        let nested = volume.as_object().into_iter().flatten().any(|(_, source)| {
            ["secretRef", "nodePublishSecretRef", "secretName"]
                .iter()
                .any(|key| at(source, &[key]).is_some())
        });
        if nested && at(volume, &["secret"]).is_none() {
            found.push(error(field, "a Secret"));
        }
    }
    for (path, container) in containers(pod) {
        for variable in list_at(container, &["env"]) {
            let field = format!("{path}.env[{}]", string_at(variable, &["name"]).unwrap_or("?"));
            for (key, what) in [("secretKeyRef", "a Secret"), ("configMapKeyRef", "a ConfigMap")] {
                if at(variable, &["valueFrom", key]).is_some() {
                    found.push(error(field.clone(), what));
                }
            }
        }
        for (index, source) in list_at(container, &["envFrom"]).iter().enumerate() {
            for (key, what) in [("secretRef", "a Secret"), ("configMapRef", "a ConfigMap")] {
                if at(source, &[key]).is_some() {
                    found.push(error(format!("{path}.envFrom[{index}]"), what));
                }
            }
        }
    }
    Ok(found)
}

/// The port and the address must be known.
fn listener(component: Component, pod: &Value, _: Mode) -> Result<Vec<FieldError>, FieldError> {
    let spec = ComponentSpec::new(component, pod)?;
    Ok([spec.secure_port().err(), spec.bind_address().err()]
        .into_iter()
        .flatten()
        .collect())
}

/// Old and new run side by side for half a minute; without an election both would act.
fn leader_election(component: Component, pod: &Value, _: Mode) -> Result<Vec<FieldError>, FieldError> {
    let spec = ComponentSpec::new(component, pod)?;
    Ok(match spec.leader_elect()? {
        Some(false) => vec![FieldError::new(
            format!("{}.command", spec.container_path()),
            format!("--leader-elect=false: while one {component} hands over to the other, both would act"),
            "set --leader-elect=true",
        )],
        _ => Vec::new(),
    })
}

/// The start-up probe carries no credentials, so that `/readyz` must be open to everybody. No HTTP probe of kubeadm's
/// works without that either.
fn anonymous_requests(component: Component, pod: &Value, _: Mode) -> Result<Vec<FieldError>, FieldError> {
    let spec = ComponentSpec::new(component, pod)?;
    if component != Component::KubeApiserver || spec.anonymous_auth()? {
        return Ok(Vec::new());
    }
    Ok(vec![FieldError::new(
        format!("{}.command", spec.container_path()),
        "--anonymous-auth=false: /readyz answers 401 to the probe that has to prove the new process",
        "remove the flag, and let anonymous requests only to /livez, /readyz and /healthz by --authentication-config",
    )])
}

/// Scheduler and controller manager open some paths to everybody by a flag; the probe's must be among them.
fn always_allowed_paths(component: Component, pod: &Value, _: Mode) -> Result<Vec<FieldError>, FieldError> {
    const FLAG: &str = "authorization-always-allow-paths";
    let spec = ComponentSpec::new(component, pod)?;
    let values = spec.flags(FLAG);
    if component == Component::KubeApiserver || values.is_empty() {
        return Ok(Vec::new());
    }
    let path = if spec.probe_path("readinessProbe") == Some("/readyz") {
        "/readyz"
    } else {
        "/healthz"
    };
    let allows = |pattern: &str| match pattern.trim().strip_suffix('*') {
        Some(prefix) => path.starts_with(prefix),
        None => pattern.trim() == path,
    };
    if values.iter().flat_map(|value| value.split(',')).any(allows) {
        return Ok(Vec::new());
    }
    Ok(vec![FieldError::new(
        format!("{}.command", spec.container_path()),
        format!("--{FLAG} leaves out {path}, which the probe of the new process asks for"),
        format!("add {path} to --{FLAG}"),
    )])
}

/// Two copies of a side-car run at once as well. What only one process can hold, they would fight for.
fn side_cars(component: Component, pod: &Value, mode: Mode) -> Result<Vec<FieldError>, FieldError> {
    const REMEDY: &str = "move the side-car into a static Pod of its own, which is not converted";
    let spec = ComponentSpec::new(component, pod)?;
    let mut found = Vec::new();
    for (path, side_car) in spec.side_cars() {
        let mounts = spec.host_mounts(side_car);
        let main_mounts = spec.host_mounts(spec.container());
        // A socket in an emptyDir is fine: each Pod has its own.
        for socket in ComponentSpec::unix_sockets(side_car) {
            let on_node = mounts
                .iter()
                .find(|(_, mount, writable)| *writable && is_below(&socket, mount));
            if let Some((volume, _, _)) = on_node {
                found.push(FieldError::new(
                    path.clone(),
                    format!(
                        "uses the Unix socket {socket} in {} of the node, which the old and the new Pod would fight for",
                        volume.path
                    ),
                    REMEDY,
                ));
            }
        }
        for (volume, _, _) in &mounts {
            let shared = main_mounts.iter().any(|(other, _, _)| other.volume == volume.volume);
            if shared && volume.kind == "Socket" {
                found.push(FieldError::new(
                    format!("spec.volumes[{}]", volume.volume),
                    format!("is a Unix socket that {path} shares with {component}; two Pods would fight for it"),
                    REMEDY,
                ));
            }
        }
        if mode == Mode::Steered {
            for port in list_at(side_car, &["ports"]) {
                let number = at(port, &["hostPort"]).or_else(|| at(port, &["containerPort"]));
                if let Some(number) = number {
                    found.push(FieldError::new(
                        format!("{path}.ports"),
                        format!("declares port {number}, and only one of two side-cars at once can listen on it"),
                        REMEDY,
                    ));
                }
            }
        }
    }
    found.dedup();
    Ok(found)
}

/// Whether `path` lies in `directory`, or is it.
fn is_below(path: &str, directory: &str) -> bool {
    path.strip_prefix(directory.trim_end_matches('/'))
        .is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
}

/// What does not forbid a conversion, but should be known before it.
///
/// # Errors
/// A flag cannot be read; the checks refuse it as well.
pub fn warnings(component: Component, pod: &Value, node_address: Option<IpAddr>) -> Result<Vec<String>, FieldError> {
    let spec = ComponentSpec::new(component, pod)?;
    let mut found = Vec::new();
    if string_at(pod, &["spec", "priorityClassName"])
        .unwrap_or_default()
        .is_empty()
    {
        found.push(
            "no priorityClassName: a static Pod is never evicted, but the DaemonSet's Pod could be; \
             kubeadm writes system-node-critical"
                .to_owned(),
        );
    }
    if let Some(path) = spec.audit_log_path() {
        found.push(format!(
            "two apiservers append to {path} while one hands over to the other, and both may rotate it, so that lines \
             of that half minute can end up in either file"
        ));
    }
    if spec.flag("authentication-config").is_some() {
        found.push(
            "--authentication-config must let anonymous requests to /readyz, which cannot be seen from here".to_owned(),
        );
    }
    if let Some(address) = spec.advertise_address() {
        match (address.parse::<IpAddr>().ok(), node_address) {
            _ if address.starts_with("$(") => {}
            (Some(given), Some(node)) if given == node => {}
            (_, None) => found.push(format!(
                "--advertise-address={address} stays as it is: the node's address is not known here, and on another node it \
                 would be wrong"
            )),
            (_, Some(node)) => found.push(format!(
                "--advertise-address={address} is not the node's address {node} and stays as it is: on another node it \
                 would be wrong"
            )),
        }
    }
    if string_at(pod, &["spec", "dnsPolicy"]) == Some("ClusterFirstWithHostNet") {
        found.push(
            "dnsPolicy ClusterFirstWithHostNet stays as it is: names are looked up in the cluster's DNS, which needs \
             this control plane to be up"
                .to_owned(),
        );
    }
    for (path, side_car) in spec.side_cars() {
        for (volume, _, writable) in spec.host_mounts(side_car) {
            if writable {
                found.push(format!(
                    "{path} may write to {} of the node, and two of it run during a hand-over",
                    volume.path
                ));
            }
        }
    }
    Ok(found)
}
