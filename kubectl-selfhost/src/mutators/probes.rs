//! Steps that change probes and container ports.

use serde_json::{Map, Value, json};

use super::{Context, Mode, MutationError, PodSpecMutator, main_container_mut};
use crate::component_spec::{BindAddress, ComponentSpec};
use crate::fields::{CONTAINER_LISTS, FieldError, at, container_path, containers_mut, list_at, remove, string_at};
use crate::names::{BIN_MOUNT, BIN_NAME, Component, NOTES_MOUNT};

pub(super) const NUMERIC_PORTS: PodSpecMutator = PodSpecMutator {
    name: "numeric-probe-ports",
    reason: "probes name their port by number, as the named ports go",
    apply: |template, _| number_probe_ports(template),
};

pub(super) const NO_CONTAINER_PORTS: PodSpecMutator = PodSpecMutator {
    name: "no-container-ports",
    reason: "with hostNetwork a declared port becomes a hostPort, and no Pod is placed while the old one holds it",
    apply: |template, _| {
        drop_container_ports(template);
        Ok(())
    },
};

pub(super) const HOST: PodSpecMutator = PodSpecMutator {
    name: "probe-host",
    reason: "without a host the kubelet asks the address of the Pod's own node, on every node",
    apply: drop_probe_hosts,
};

const STARTUP_REASON: &str = "on a shared port an HTTP probe may be answered by the neighbour, so our executable in \
     the container proves that this very process is ready";

pub(super) const STARTUP: PodSpecMutator = PodSpecMutator {
    name: "own-process-startup-probe",
    reason: STARTUP_REASON,
    apply: replace_startup_probe,
};

pub(super) const STARTUP_GAP: PodSpecMutator = PodSpecMutator {
    name: "own-process-startup-probe-gap",
    ..STARTUP
};

/// Parts of a container whose port may be a name, with the kinds of action that have a port.
const PROBES: [&str; 3] = ["livenessProbe", "readinessProbe", "startupProbe"];
const HOOKS: [&str; 2] = ["postStart", "preStop"];
const ACTIONS: [&str; 2] = ["httpGet", "tcpSocket"];

/// Names of ports, with their numbers, that one container declares. Probes resolve names inside their container only
/// (k8s.io/kubernetes `pkg/probe/util.go`).
fn declared_ports(container: &Value) -> Map<String, Value> {
    list_at(container, &["ports"])
        .iter()
        .filter_map(|port| {
            Some((
                string_at(port, &["name"])?.to_owned(),
                port.get("containerPort")?.clone(),
            ))
        })
        .collect()
}

/// The number behind a port, or why there is none. `None` means that it is a number already.
fn resolve_port(port: &Value, declared: &Map<String, Value>, field: &str) -> Result<Option<Value>, FieldError> {
    let Some(name) = port.as_str() else { return Ok(None) };
    if let Some(number) = declared.get(name) {
        return Ok(Some(number.clone()));
    }
    match name.parse::<u16>() {
        Ok(number) => Ok(Some(json!(number))),
        Err(_) => Err(FieldError::new(
            field,
            format!("names the port {name:?}, which its container does not declare under `ports`"),
            "write the port's number, or declare a port of that name",
        )),
    }
}

/// Turns named ports of probes and life-cycle hooks into numbers.
pub(crate) fn number_probe_ports(template: &mut Value) -> Result<(), MutationError> {
    let Some(spec) = template.get_mut("spec") else {
        return Ok(());
    };
    for list in CONTAINER_LISTS {
        let containers = spec.get_mut(list).and_then(Value::as_array_mut).into_iter().flatten();
        for (index, container) in containers.enumerate() {
            let path = container_path(list, index, container);
            let declared = declared_ports(container);
            let probes = PROBES.iter().map(|probe| (format!("/{probe}"), *probe));
            let hooks = HOOKS.iter().map(|hook| (format!("/lifecycle/{hook}"), *hook));
            for (pointer, name) in probes.chain(hooks) {
                let Some(handler) = container.pointer_mut(&pointer) else {
                    continue;
                };
                for action in ACTIONS {
                    let Some(port) = handler.get_mut(action).and_then(|action| action.get_mut("port")) else {
                        continue;
                    };
                    if let Some(number) = resolve_port(port, &declared, &format!("{path}.{name}.{action}.port"))? {
                        *port = number;
                    }
                }
            }
        }
    }
    Ok(())
}

/// Takes the declared ports from every container.
pub(crate) fn drop_container_ports(template: &mut Value) {
    for container in containers_mut(template) {
        remove(container, "ports");
    }
}

/// Takes the node's literal address from the probes, where the Pod's own address is as good.
///
/// A host stays where the component listens on loopback, where it is a loopback address or a name, and where the
/// component listens on one address that may not be the node's.
fn drop_probe_hosts(template: &mut Value, context: &Context) -> Result<(), MutationError> {
    let bind = ComponentSpec::new(context.component, template)?.bind_address()?;
    let (container, _) = main_container_mut(template, context.component)?;
    for probe in PROBES {
        let Some(action) = container.get_mut(probe).and_then(|probe| probe.get_mut("httpGet")) else {
            continue;
        };
        let host = string_at(action, &["host"]).and_then(|host| host.parse::<std::net::IpAddr>().ok());
        let Some(host) = host.filter(|host| !host.is_loopback()) else {
            continue;
        };
        let drop = match bind {
            BindAddress::Unspecified => true,
            BindAddress::Loopback(_) => false,
            BindAddress::Specific(address) => address == host && context.node_address == Some(host),
        };
        if drop {
            remove(action, "host");
        }
    }
    Ok(())
}

/// The path that tells whether a component is ready: `/readyz`, or `/healthz` where an older kubeadm used that.
pub(crate) fn ready_path(spec: &ComponentSpec<'_>, component: Component) -> &'static str {
    if component == Component::KubeApiserver || spec.probe_path("readinessProbe") == Some("/readyz") {
        "/readyz"
    } else {
        "/healthz"
    }
}

fn replace_startup_probe(template: &mut Value, context: &Context) -> Result<(), MutationError> {
    let spec = ComponentSpec::new(context.component, template)?;
    let address = match spec.bind_address()? {
        BindAddress::Unspecified => "127.0.0.1".to_owned(),
        BindAddress::Loopback(address) | BindAddress::Specific(address) => address.to_string(),
    };
    let mut command = vec![
        format!("{BIN_MOUNT}/{BIN_NAME}"),
        "node".to_owned(),
        "probe".to_owned(),
        "--component".to_owned(),
        context.component.name().to_owned(),
        "--port".to_owned(),
        spec.secure_port()?.to_string(),
        "--path".to_owned(),
        ready_path(&spec, context.component).to_owned(),
        "--address".to_owned(),
        address,
    ];
    if context.mode == Mode::Gap {
        command.push("--no-steer".to_owned());
    } else if context.component == Component::KubeApiserver {
        command.extend(["--notes".to_owned(), NOTES_MOUNT.to_owned()]);
    }
    let (container, path) = main_container_mut(template, context.component)?;
    let probe = json!({
        "exec": {"command": command},
        "periodSeconds": 1,
        "timeoutSeconds": 15,
        // one run looks for 10 s, so this is about four minutes
        "failureThreshold": 24,
    });
    match container.as_object_mut() {
        Some(container) => {
            container.insert("startupProbe".to_owned(), probe);
            Ok(())
        }
        None => Err(FieldError::new(path, "is no map", "write the container as a map")),
    }
}

/// Whether `probe` of `container` is the one that we write.
pub(crate) fn is_own_probe(container: &Value) -> bool {
    at(container, &["startupProbe", "exec", "command"])
        .and_then(|command| command.get(0))
        .and_then(Value::as_str)
        .is_some_and(|program| program.starts_with(BIN_MOUNT))
}

#[cfg(test)]
mod tests {
    use super::super::test_support::{apiserver, applied, context, refused};
    use super::*;

    fn template(component: Component, flags: &[&str], container: &Value) -> Value {
        let mut command = vec![component.name()];
        command.extend(flags);
        let mut main = json!({"name": component.name(), "command": command});
        main.as_object_mut()
            .unwrap()
            .extend(container.as_object().unwrap().clone());
        json!({"spec": {"containers": [main]}})
    }

    #[test]
    fn named_ports_become_numbers() {
        let context = context(Component::KubeApiserver);
        let before = template(
            Component::KubeApiserver,
            &[],
            &json!({
                "ports": [{"name": "probe-port", "containerPort": 6443}],
                "livenessProbe": {"httpGet": {"port": "probe-port", "path": "/livez"}, "x-new": 1},
                "readinessProbe": {"tcpSocket": {"port": "6443"}},
                "startupProbe": {"httpGet": {"port": 6443}},
                "lifecycle": {"preStop": {"httpGet": {"port": "probe-port"}}},
            }),
        );
        let after = applied(NUMERIC_PORTS, &before, &context);
        let container = &after["spec"]["containers"][0];
        assert_eq!(
            container["livenessProbe"],
            json!({"httpGet": {"port": 6443, "path": "/livez"}, "x-new": 1})
        );
        assert_eq!(container["readinessProbe"]["tcpSocket"]["port"], 6443);
        assert_eq!(container["startupProbe"]["httpGet"]["port"], 6443);
        assert_eq!(container["lifecycle"]["preStop"]["httpGet"]["port"], 6443);
        assert_eq!(container["ports"], before["spec"]["containers"][0]["ports"]);
    }

    #[test]
    fn an_unknown_port_name_is_refused() {
        let before = template(
            Component::KubeApiserver,
            &[],
            &json!({"ports": [{"name": "https", "containerPort": 6443}], "livenessProbe": {"httpGet": {"port": "probe-port"}}}),
        );
        let error = refused(NUMERIC_PORTS, &before, &context(Component::KubeApiserver));
        assert_eq!(
            error.field,
            "spec.containers[kube-apiserver].livenessProbe.httpGet.port"
        );
        assert!(error.what.contains("probe-port"), "{error}");
    }

    #[test]
    fn ports_go_from_side_cars_too() {
        let mut before = apiserver(&["kube-apiserver"]);
        before["spec"]["containers"][0]["ports"] = json!([{"containerPort": 6443}]);
        before["spec"]["initContainers"] = json!([{"name": "side", "ports": [{"containerPort": 1}], "image": "x"}]);
        let after = applied(NO_CONTAINER_PORTS, &before, &context(Component::KubeApiserver));
        assert_eq!(after["spec"]["initContainers"], json!([{"name": "side", "image": "x"}]));
        assert_eq!(after["spec"]["containers"][0].get("ports"), None);
    }

    #[test]
    fn hosts() {
        let node = "192.0.2.11";
        for (flags, host, known, stays) in [
            (vec![], node, true, false),
            (vec![], node, false, false),
            (vec!["--bind-address=0.0.0.0"], node, true, false),
            (vec!["--bind-address=::"], "2001:db8::1", true, false),
            (vec![], "127.0.0.1", true, true),
            (vec![], "::1", true, true),
            (vec!["--bind-address=127.0.0.1"], "127.0.0.1", true, true),
            (vec!["--bind-address=127.0.0.1"], node, true, true),
            (vec!["--bind-address=192.0.2.11"], node, true, false),
            // With one address that may not be the node's, the Pod's address may lead nowhere.
            (vec!["--bind-address=192.0.2.11"], node, false, true),
            (vec!["--bind-address=198.51.100.1"], "198.51.100.1", true, true),
            (vec![], "localhost", true, true),
        ] {
            let before = template(
                Component::KubeApiserver,
                &flags,
                &json!({"livenessProbe": {"httpGet": {"host": host, "path": "/livez"}, "periodSeconds": 10}}),
            );
            let mut context = context(Component::KubeApiserver);
            if !known {
                context.node_address = None;
            }
            let after = applied(HOST, &before, &context);
            let mut expected = before.clone();
            if !stays {
                expected["spec"]["containers"][0]["livenessProbe"]["httpGet"] = json!({"path": "/livez"});
            }
            assert_eq!(after, expected, "{flags:?} {host} {known}");
        }
    }

    fn startup(component: Component, flags: &[&str], container: &Value, mode: Mode) -> String {
        let context = Context {
            mode,
            ..context(component)
        };
        let mutator = if mode == Mode::Gap { STARTUP_GAP } else { STARTUP };
        let after = applied(mutator, &template(component, flags, container), &context);
        let probe = &after["spec"]["containers"][0]["startupProbe"];
        assert_eq!(probe["periodSeconds"], 1);
        assert_eq!(probe["timeoutSeconds"], 15);
        assert_eq!(probe["failureThreshold"], 24);
        assert_eq!(probe.get("initialDelaySeconds"), None);
        assert_eq!(probe.get("httpGet"), None);
        let command: Vec<String> = serde_json::from_value(probe["exec"]["command"].clone()).unwrap();
        assert_eq!(
            command[..4],
            ["/selfhost/bin/kubectl-selfhost", "node", "probe", "--component"]
        );
        command[4..].join(" ")
    }

    #[test]
    fn the_startup_probe_asks_the_own_process() {
        use Component::{KubeApiserver, KubeControllerManager, KubeScheduler};
        let readyz = json!({"readinessProbe": {"httpGet": {"path": "/readyz?exclude=x"}}, "startupProbe": {"initialDelaySeconds": 10}});
        assert_eq!(
            startup(KubeApiserver, &[], &json!({}), Mode::Steered),
            "kube-apiserver --port 6443 --path /readyz --address 127.0.0.1 --notes /selfhost/notes"
        );
        assert_eq!(
            startup(
                KubeApiserver,
                &["--secure-port", "7443", "--bind-address=::"],
                &json!({}),
                Mode::Gap
            ),
            "kube-apiserver --port 7443 --path /readyz --address 127.0.0.1 --no-steer"
        );
        assert_eq!(
            startup(KubeScheduler, &["--bind-address=127.0.0.1"], &readyz, Mode::Steered),
            "kube-scheduler --port 10259 --path /readyz --address 127.0.0.1"
        );
        assert_eq!(
            startup(
                KubeControllerManager,
                &["--bind-address=::1"],
                &json!({}),
                Mode::Steered
            ),
            "kube-controller-manager --port 10257 --path /healthz --address ::1"
        );
        assert_eq!(
            startup(KubeApiserver, &["--bind-address=192.0.2.7"], &json!({}), Mode::Steered),
            "kube-apiserver --port 6443 --path /readyz --address 192.0.2.7 --notes /selfhost/notes"
        );
    }

    #[test]
    fn a_switched_off_port_is_refused() {
        let before = template(Component::KubeScheduler, &["--secure-port=0"], &json!({}));
        let error = refused(STARTUP, &before, &context(Component::KubeScheduler));
        assert_eq!(error.field, "spec.containers[kube-scheduler].command[1]");
    }
}
