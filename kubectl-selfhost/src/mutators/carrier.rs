//! Steps that bring our executable into the Pod and let it wait for its turn.

use serde_json::{Value, json};

use super::{Context, Mode, MutationError, PodSpecMutator, main_container_mut, put_named};
use crate::component_spec::ComponentSpec;
use crate::fields::{FieldError, at, containers_mut, list_mut, map_mut, remove, string_at};
use crate::names::{
    AWAIT_CONTAINER, BIN_DIR, BIN_MOUNT, BIN_NAME, BIN_VOLUME, NOTES_VOLUME, ROLE_ENV, RUN_MOUNT, RUN_VOLUME, Role,
    STATE_DIR,
};

const AWAIT_REASON: &str = "the component starts only when the node's guard says so, and never takes the port from a \
     process that must keep it";

pub(super) const AWAIT_PORT: PodSpecMutator = PodSpecMutator {
    name: "await-port",
    reason: AWAIT_REASON,
    apply: await_port,
};

pub(super) const AWAIT_PORT_GAP: PodSpecMutator = PodSpecMutator {
    name: "await-port-gap",
    ..AWAIT_PORT
};

pub(super) const CARRIER: PodSpecMutator = PodSpecMutator {
    name: "carrier",
    reason: "the component's image has no tools, so our executable comes from the node",
    apply: carry,
};

pub(super) const ROLE: PodSpecMutator = PodSpecMutator {
    name: "role",
    reason: "tells this process from the static one and from the fallback on the same node",
    apply: |template, context| set_environment(template, context, ROLE_ENV, Role::SelfHosted.env_value()),
};

pub(super) const GO_DEBUG: PodSpecMutator = PodSpecMutator {
    name: "no-multipath-tcp",
    reason: "the kernel steers new connections between plain TCP listeners only, and Go opens multipath ones",
    apply: merge_go_debug,
};

/// Name and mount path of our volumes.
const AWAIT_MOUNTS: [(&str, &str); 2] = [(BIN_VOLUME, BIN_MOUNT), (RUN_VOLUME, RUN_MOUNT)];

/// Fields of a container's security context that decide as whom a process runs. The waiting process must be the same
/// user as the component: the kernel lets only the same user join a port's group.
const IDENTITY: [&str; 4] = ["runAsUser", "runAsGroup", "runAsNonRoot", "seLinuxOptions"];

fn await_port(template: &mut Value, context: &Context) -> Result<(), MutationError> {
    let spec = ComponentSpec::new(context.component, template)?;
    let mut command = vec![
        format!("{BIN_MOUNT}/{BIN_NAME}"),
        "node".to_owned(),
        "await-port".to_owned(),
        "--component".to_owned(),
        context.component.name().to_owned(),
        "--port".to_owned(),
        spec.secure_port()?.to_string(),
        "--verdict".to_owned(),
        format!("{RUN_MOUNT}/verdict"),
    ];
    if let Some(address) = spec.flag("bind-address") {
        command.extend(["--bind-address".to_owned(), address]);
    }
    if context.mode == Mode::Gap {
        command.push("--no-steer".to_owned());
    }
    let main = spec.container();
    let mut container = json!({"name": AWAIT_CONTAINER});
    for field in ["image", "imagePullPolicy"] {
        if let Some(value) = at(main, &[field]) {
            container[field] = value.clone();
        }
    }
    container["command"] = json!(command);
    let mut security = json!({
        "allowPrivilegeEscalation": false,
        "readOnlyRootFilesystem": true,
        "capabilities": {"drop": ["ALL"]},
    });
    for field in IDENTITY {
        if let Some(value) = at(main, &["securityContext", field]) {
            security[field] = value.clone();
        }
    }
    container["securityContext"] = security;
    container["volumeMounts"] = AWAIT_MOUNTS
        .iter()
        .map(|(name, path)| json!({"name": name, "mountPath": path, "readOnly": true}))
        .collect();

    let spec = spec_mut(template)?;
    let list = list_mut(spec, "initContainers", "spec.initContainers")?;
    list.retain(|existing| string_at(existing, &["name"]) != Some(AWAIT_CONTAINER));
    list.insert(0, container);
    Ok(())
}

fn spec_mut(template: &mut Value) -> Result<&mut Value, MutationError> {
    map_mut(template, "spec", "spec")?;
    template
        .get_mut("spec")
        .ok_or_else(|| FieldError::new("spec", "is missing", "write the Pod's spec"))
}

fn carry(template: &mut Value, context: &Context) -> Result<(), MutationError> {
    let spec = spec_mut(template)?;
    let component = context.component;
    for (name, path) in [
        (BIN_VOLUME, format!("{BIN_DIR}/{}", context.build)),
        (RUN_VOLUME, format!("{STATE_DIR}/{component}/run")),
    ] {
        let volume = json!({"name": name, "hostPath": {"path": path, "type": "Directory"}});
        put_named(spec, "volumes", "spec.volumes", "name", volume)?;
    }
    let (container, path) = main_container_mut(template, component)?;
    let mount = json!({"name": BIN_VOLUME, "mountPath": BIN_MOUNT, "readOnly": true});
    put_named(
        container,
        "volumeMounts",
        &format!("{path}.volumeMounts"),
        "mountPath",
        mount,
    )
}

/// Takes from a Pod what [`AWAIT_PORT`], [`CARRIER`] and the pre-stop hook put there.
pub(crate) fn drop_carrier(pod: &mut Value) {
    let ours = |name: Option<&str>| {
        [BIN_VOLUME, RUN_VOLUME, NOTES_VOLUME]
            .into_iter()
            .any(|volume| Some(volume) == name)
    };
    if let Some(spec) = pod.get_mut("spec") {
        retain(spec, "initContainers", |container| {
            string_at(container, &["name"]) != Some(AWAIT_CONTAINER)
        });
        retain(spec, "volumes", |volume| !ours(string_at(volume, &["name"])));
    }
    for container in containers_mut(pod) {
        retain(container, "volumeMounts", |mount| !ours(string_at(mount, &["name"])));
        super::drop_pre_stop(container);
    }
}

/// Keeps the elements of a list that `keep` wants; a list that gets empty by it goes.
pub(super) fn retain(parent: &mut Value, key: &str, keep: impl Fn(&Value) -> bool) {
    let Some(list) = parent.get_mut(key).and_then(Value::as_array_mut) else {
        return;
    };
    let before = list.len();
    list.retain(keep);
    if list.is_empty() && before > 0 {
        remove(parent, key);
    }
}

/// Sets an environment variable of the main container. Of several of one name the last one counts and stays.
pub(crate) fn set_environment(
    template: &mut Value,
    context: &Context,
    name: &str,
    value: &str,
) -> Result<(), MutationError> {
    let (container, path) = main_container_mut(template, context.component)?;
    let list = list_mut(container, "env", &format!("{path}.env"))?;
    let entry = json!({"name": name, "value": value});
    match list
        .iter_mut()
        .rfind(|variable| string_at(variable, &["name"]) == Some(name))
    {
        Some(variable) => *variable = entry,
        None => list.push(entry),
    }
    Ok(())
}

/// Adds `multipathtcp=0` to GODEBUG, whose other settings stay (Go: `go doc runtime`, GODEBUG is a comma-separated list
/// of name=value).
pub(crate) fn merge_go_debug(template: &mut Value, context: &Context) -> Result<(), MutationError> {
    const NAME: &str = "GODEBUG";
    let (container, path) = main_container_mut(template, context.component)?;
    let list = list_mut(container, "env", &format!("{path}.env"))?;
    let Some(variable) = list
        .iter_mut()
        .rfind(|variable| string_at(variable, &["name"]) == Some(NAME))
    else {
        list.push(json!({"name": NAME, "value": "multipathtcp=0"}));
        return Ok(());
    };
    if at(variable, &["valueFrom"]).is_some() {
        return Err(FieldError::new(
            format!("{path}.env[{NAME}].valueFrom"),
            "takes GODEBUG from elsewhere, but multipathtcp=0 has to be added to its value",
            "write the value into the manifest",
        ));
    }
    let mut settings: Vec<&str> = string_at(variable, &["value"])
        .unwrap_or_default()
        .split(',')
        .filter(|setting| {
            !setting.trim().is_empty() && setting.split('=').next().map(str::trim) != Some("multipathtcp")
        })
        .collect();
    settings.push("multipathtcp=0");
    let value = settings.join(",");
    map_value(variable, "value", value);
    Ok(())
}

fn map_value(variable: &mut Value, key: &str, value: String) {
    if let Some(map) = variable.as_object_mut() {
        map.insert(key.to_owned(), Value::String(value));
    }
}

#[cfg(test)]
mod tests {
    use super::super::test_support::{apiserver, applied, context, refused};
    use super::*;
    use crate::names::Component;

    #[test]
    fn the_waiting_container_comes_first_and_runs_as_the_component() {
        let context = context(Component::KubeApiserver);
        let mut before = apiserver(&["kube-apiserver", "--bind-address", "192.0.2.7", "--secure-port=7443"]);
        before["spec"]["initContainers"] = json!([{"name": "user", "image": "x"}]);
        let main = &mut before["spec"]["containers"][0];
        main["image"] = json!("registry.k8s.io/kube-apiserver:v1.36.3");
        main["imagePullPolicy"] = json!("Never");
        main["securityContext"] = json!({"runAsUser": 999, "runAsGroup": 998, "privileged": true});
        let after = applied(AWAIT_PORT, &before, &context);
        let list = &after["spec"]["initContainers"];
        assert_eq!(list[1], json!({"name": "user", "image": "x"}));
        assert_eq!(
            list[0],
            json!({
                "name": "selfhost-await-port",
                "image": "registry.k8s.io/kube-apiserver:v1.36.3",
                "imagePullPolicy": "Never",
                "command": ["/selfhost/bin/kubectl-selfhost", "node", "await-port", "--component", "kube-apiserver",
                    "--port", "7443", "--verdict", "/selfhost/run/verdict", "--bind-address", "192.0.2.7"],
                "securityContext": {"allowPrivilegeEscalation": false, "readOnlyRootFilesystem": true,
                    "capabilities": {"drop": ["ALL"]}, "runAsUser": 999, "runAsGroup": 998},
                "volumeMounts": [{"name": "selfhost-bin", "mountPath": "/selfhost/bin", "readOnly": true},
                    {"name": "selfhost-run", "mountPath": "/selfhost/run", "readOnly": true}],
            })
        );
        assert_eq!(after["spec"]["containers"], before["spec"]["containers"]);
        let gap = applied(
            AWAIT_PORT_GAP,
            &before,
            &Context {
                mode: Mode::Gap,
                ..context
            },
        );
        let command = gap["spec"]["initContainers"][0]["command"].as_array().unwrap().clone();
        assert_eq!(command.last(), Some(&json!("--no-steer")));
    }

    #[test]
    fn the_carrier_adds_volumes_behind_the_others_and_can_be_taken_away() {
        let context = context(Component::KubeScheduler);
        let before = json!({"spec": {
            "containers": [{"name": "kube-scheduler", "command": ["kube-scheduler"],
                "volumeMounts": [{"name": "kubeconfig", "mountPath": "/etc/kubernetes/scheduler.conf"}]}],
            "volumes": [{"name": "kubeconfig", "hostPath": {"path": "/etc/kubernetes/scheduler.conf"}}],
        }});
        let mut after = applied(CARRIER, &before, &context);
        assert_eq!(
            after["spec"]["volumes"].as_array().unwrap()[1..],
            [
                json!({"name": "selfhost-bin", "hostPath": {"path": "/opt/selfhost/bin/0123456789ab", "type": "Directory"}}),
                json!({"name": "selfhost-run", "hostPath": {"path": "/var/lib/selfhost/kube-scheduler/run", "type": "Directory"}}),
            ]
        );
        assert_eq!(
            after["spec"]["containers"][0]["volumeMounts"].as_array().unwrap()[1..],
            [json!({"name": "selfhost-bin", "mountPath": "/selfhost/bin", "readOnly": true})]
        );
        after = applied(AWAIT_PORT, &after, &context);
        drop_carrier(&mut after);
        assert_eq!(after, before);
    }

    #[test]
    fn go_debug_is_merged() {
        let context = context(Component::KubeApiserver);
        for (before, after) in [
            (None, "multipathtcp=0"),
            (Some(""), "multipathtcp=0"),
            (Some("madvdontneed=1"), "madvdontneed=1,multipathtcp=0"),
            (Some("multipathtcp=1,madvdontneed=1"), "madvdontneed=1,multipathtcp=0"),
            (Some("a=1,multipathtcp=2,b=2"), "a=1,b=2,multipathtcp=0"),
        ] {
            let mut template = apiserver(&["kube-apiserver"]);
            if let Some(before) = before {
                template["spec"]["containers"][0]["env"] =
                    json!([{"name": "A", "value": "1"}, {"name": "GODEBUG", "value": before, "x-new": true}]);
            }
            let template = applied(GO_DEBUG, &template, &context);
            let env = template["spec"]["containers"][0]["env"].as_array().unwrap();
            let variable = env.last().unwrap();
            assert_eq!(variable["value"], after);
            if before.is_some() {
                assert_eq!(variable["x-new"], true);
                assert_eq!(env.len(), 2);
            }
        }
    }

    #[test]
    fn go_debug_from_elsewhere_is_refused() {
        let mut template = apiserver(&["kube-apiserver"]);
        template["spec"]["containers"][0]["env"] =
            json!([{"name": "GODEBUG", "valueFrom": {"fieldRef": {"fieldPath": "x"}}}]);
        let error = refused(GO_DEBUG, &template, &context(Component::KubeApiserver));
        assert_eq!(error.field, "spec.containers[kube-apiserver].env[GODEBUG].valueFrom");
    }

    #[test]
    fn the_role_is_set_once() {
        let mut template = apiserver(&["kube-apiserver"]);
        template["spec"]["containers"][0]["env"] = json!([{"name": ROLE_ENV, "value": "fallback"}]);
        let after = applied(ROLE, &template, &context(Component::KubeApiserver));
        assert_eq!(
            after["spec"]["containers"][0]["env"],
            json!([{"name": ROLE_ENV, "value": "self-hosted"}])
        );
    }
}
