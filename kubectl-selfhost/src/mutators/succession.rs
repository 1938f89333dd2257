//! How an apiserver gives way to its successor on the same node.

use serde_json::{Value, json};

use super::{Context, MutationError, PodSpecMutator, main_container_mut, put_named};
use crate::fields::{FieldError, at, map_mut, remove};
use crate::names::{BIN_MOUNT, BIN_NAME, NOTES_MOUNT, NOTES_VOLUME, STATE_DIR};

/// Below this grace the wait would leave too little of it for what is still being served.
const LEAST_GRACE_SECONDS: u64 = 20;

/// Waits, before the old process is told to stop, for the moment at which its successor puts their address back.
pub(super) const PRE_STOP: PodSpecMutator = PodSpecMutator {
    name: "pre-stop",
    reason: "the Service default/kubernetes must not be without address until the successor's next reconciliation",
    apply: pre_stop,
};

fn pre_stop(template: &mut Value, context: &Context) -> Result<(), MutationError> {
    let grace = at(template, &["spec", "terminationGracePeriodSeconds"])
        .and_then(Value::as_u64)
        .unwrap_or(30);
    let (container, path) = main_container_mut(template, context.component)?;
    // a hook of the user's own is kept: there can be only one
    if grace < LEAST_GRACE_SECONDS || at(container, &["lifecycle", "preStop"]).is_some() {
        return Ok(());
    }
    let command = [
        format!("{BIN_MOUNT}/{BIN_NAME}"),
        "node".into(),
        "pre-stop".into(),
        "--notes".into(),
        NOTES_MOUNT.into(),
    ];
    let field = format!("{path}.lifecycle");
    if !container.is_object() {
        return Err(FieldError::new(path, "is no map", "write the container as a map"));
    }
    map_mut(container, "lifecycle", &field)?.insert("preStop".into(), json!({"exec": {"command": command}}));
    let mount = json!({"name": NOTES_VOLUME, "mountPath": NOTES_MOUNT});
    put_named(
        container,
        "volumeMounts",
        &format!("{path}.volumeMounts"),
        "mountPath",
        mount,
    )?;
    let notes = format!("{STATE_DIR}/{}/notes", context.component);
    let volume = json!({"name": NOTES_VOLUME, "hostPath": {"path": notes, "type": "Directory"}});
    let spec = template
        .get_mut("spec")
        .ok_or_else(|| FieldError::new("spec", "is missing", "write the Pod's spec"))?;
    put_named(spec, "volumes", "spec.volumes", "name", volume)
}

/// Takes from a container what [`PRE_STOP`] put there.
pub(crate) fn drop_pre_stop(container: &mut Value) {
    let program = at(container, &["lifecycle", "preStop", "exec", "command"]).and_then(|command| command.get(0));
    if !program
        .and_then(Value::as_str)
        .is_some_and(|program| program.starts_with(BIN_MOUNT))
    {
        return;
    }
    if let Some(lifecycle) = container.get_mut("lifecycle") {
        remove(lifecycle, "preStop");
        if lifecycle.as_object().is_some_and(serde_json::Map::is_empty) {
            remove(container, "lifecycle");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::test_support::context;
    use super::*;
    use crate::names::Component;

    fn template(extra: &Value) -> Value {
        let mut template = json!({"spec": {"containers": [{"name": "a", "command": ["kube-apiserver"]}]}});
        if let (Some(spec), Some(extra)) = (template["spec"].as_object_mut(), extra.as_object()) {
            spec.extend(extra.clone());
        }
        template
    }

    #[test]
    fn the_hook_is_added_once_and_taken_away_again() {
        let context = context(Component::KubeApiserver);
        let before = template(&json!({}));
        let mut after = before.clone();
        pre_stop(&mut after, &context).unwrap();
        let once = after.clone();
        pre_stop(&mut after, &context).unwrap();
        assert_eq!(after, once);
        assert_eq!(
            once["spec"]["containers"][0]["lifecycle"]["preStop"]["exec"]["command"],
            json!([
                "/selfhost/bin/kubectl-selfhost",
                "node",
                "pre-stop",
                "--notes",
                "/selfhost/notes"
            ])
        );
        crate::mutators::drop_carrier(&mut after);
        assert_eq!(after, before);
    }

    #[test]
    fn a_hook_of_the_users_own_and_a_short_grace_are_kept() {
        let context = context(Component::KubeApiserver);
        let short = template(&json!({"terminationGracePeriodSeconds": 10}));
        let mut own = template(&json!({}));
        own["spec"]["containers"][0]["lifecycle"] = json!({"preStop": {"sleep": {"seconds": 1}}});
        for before in [short, own] {
            let mut after = before.clone();
            pre_stop(&mut after, &context).unwrap();
            assert_eq!(after, before);
            drop_pre_stop(&mut after["spec"]["containers"][0]);
            assert_eq!(after, before);
        }
    }
}
