//! Steps that change the command line of a component.

use serde_json::{Value, json};

use super::{Context, MutationError, PodSpecMutator, main_container_mut};
use crate::component_spec::{FlagAt, find_flags};
use crate::fields::{at, list_at, list_mut, string_at};
use crate::names::Component;

pub(super) const PORT_SHARING: PodSpecMutator = PodSpecMutator {
    name: "permit-port-sharing",
    reason: "the old and the new process listen on the same port while one hands over to the other",
    apply: |template, context| permit_port_sharing(template, context.component),
};

pub(super) const HOST_IP: PodSpecMutator = PodSpecMutator {
    name: "host-ip",
    reason: "one template serves every node, so each Pod announces the address of its own node",
    apply: substitute_host_ip,
};

/// Sets the value of a flag that was found, in the form in which it was given.
fn set_flag(container: &mut Value, path: &str, flag: &FlagAt, value: &str) -> Result<(), MutationError> {
    let (list, index) = flag.value_at.unwrap_or((flag.list, flag.index));
    let words = list_mut(container, list, &format!("{path}.{list}"))?;
    if let Some(word) = words.get_mut(index) {
        *word = match (flag.value_at, word.as_str().and_then(|word| word.split_once('='))) {
            (None, Some((name, _))) => json!(format!("{name}={value}")),
            (None, None) => json!(format!("{}={value}", word.as_str().unwrap_or_default())),
            (Some(_), _) => json!(value),
        };
    }
    Ok(())
}

/// Appends a flag to the list that holds the flags: `args` where it is used, else `command`.
fn append_flag(container: &mut Value, path: &str, flag: &str) -> Result<(), MutationError> {
    let list = if list_at(container, &["args"]).is_empty() {
        "command"
    } else {
        "args"
    };
    list_mut(container, list, &format!("{path}.{list}"))?.push(json!(flag));
    Ok(())
}

/// Makes the component share its port (SO_REUSEPORT).
pub(crate) fn permit_port_sharing(template: &mut Value, component: Component) -> Result<(), MutationError> {
    let (container, path) = main_container_mut(template, component)?;
    let found = find_flags(container, "permit-port-sharing");
    // Of a repeated boolean the last one counts, so that only this one has to be right.
    match found.last() {
        None => append_flag(container, &path, "--permit-port-sharing=true"),
        Some(flag) if matches!(flag.value.as_str(), "true" | "1" | "t" | "T" | "TRUE" | "True") => Ok(()),
        Some(flag) => set_flag(container, &path, flag, "true"),
    }
}

fn substitute_host_ip(template: &mut Value, context: &Context) -> Result<(), MutationError> {
    let Some(address) = context.node_address.filter(|_| context.only_node.is_none()) else {
        return Ok(());
    };
    let (container, path) = main_container_mut(template, context.component)?;
    let same = |flag: &FlagAt| {
        flag.value
            .parse::<std::net::IpAddr>()
            .is_ok_and(|given| given == address)
    };
    let flags: Vec<_> = find_flags(container, "advertise-address")
        .into_iter()
        .filter(same)
        .collect();
    if flags.is_empty() {
        return Ok(());
    }
    let host_ip = json!({"name": "HOST_IP", "valueFrom": {"fieldRef": {"fieldPath": "status.hostIP"}}});
    let existing = list_at(container, &["env"])
        .iter()
        .rfind(|variable| string_at(variable, &["name"]) == Some("HOST_IP"));
    match existing {
        None => list_mut(container, "env", &format!("{path}.env"))?.push(host_ip),
        Some(variable) if at(variable, &["valueFrom", "fieldRef", "fieldPath"]) == Some(&json!("status.hostIP")) => {}
        // Somebody else's variable: the literal address is right on its own node.
        Some(_) => return Ok(()),
    }
    for flag in &flags {
        set_flag(container, &path, flag, "$(HOST_IP)")?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::super::test_support::{apiserver, applied, context};
    use super::*;

    fn with_args(command: &[&str], args: &[&str]) -> Value {
        let mut template = apiserver(command);
        template["spec"]["containers"][0]["args"] = json!(args);
        template
    }

    fn words(template: &Value, list: &str) -> Vec<String> {
        serde_json::from_value(template["spec"]["containers"][0][list].clone()).unwrap()
    }

    #[test]
    fn sharing_is_appended_where_the_flags_are() {
        let context = context(Component::KubeApiserver);
        for (before, after) in [
            (
                vec!["kube-apiserver"],
                vec!["kube-apiserver", "--permit-port-sharing=true"],
            ),
            (
                vec!["kube-apiserver", "--z", "--a=1"],
                vec!["kube-apiserver", "--z", "--a=1", "--permit-port-sharing=true"],
            ),
            (
                vec!["kube-apiserver", "--permit-port-sharing=false", "--a=1"],
                vec!["kube-apiserver", "--permit-port-sharing=true", "--a=1"],
            ),
            (
                vec!["kube-apiserver", "--permit_port_sharing=0"],
                vec!["kube-apiserver", "--permit_port_sharing=true"],
            ),
            (
                vec!["kube-apiserver", "--permit-port-sharing"],
                vec!["kube-apiserver", "--permit-port-sharing"],
            ),
            (
                vec!["kube-apiserver", "--permit-port-sharing", "--a=1"],
                vec!["kube-apiserver", "--permit-port-sharing", "--a=1"],
            ),
            (
                vec![
                    "kube-apiserver",
                    "--permit-port-sharing=false",
                    "--permit-port-sharing=true",
                ],
                vec![
                    "kube-apiserver",
                    "--permit-port-sharing=false",
                    "--permit-port-sharing=true",
                ],
            ),
        ] {
            assert_eq!(
                words(&applied(PORT_SHARING, &apiserver(&before), &context), "command"),
                after
            );
        }
        let split = applied(PORT_SHARING, &with_args(&["kube-apiserver"], &["--a=1"]), &context);
        assert_eq!(words(&split, "command"), ["kube-apiserver"]);
        assert_eq!(words(&split, "args"), ["--a=1", "--permit-port-sharing=true"]);
        let in_command = applied(
            PORT_SHARING,
            &with_args(&["kube-apiserver", "--permit-port-sharing=false"], &["--a"]),
            &context,
        );
        assert_eq!(
            words(&in_command, "command"),
            ["kube-apiserver", "--permit-port-sharing=true"]
        );
        assert_eq!(words(&in_command, "args"), ["--a"]);
    }

    #[test]
    fn host_ip_replaces_the_address_of_this_node_only() {
        let node = context(Component::KubeApiserver);
        let before = apiserver(&["kube-apiserver", "--advertise-address=192.0.2.11", "--x=1"]);
        let after = applied(HOST_IP, &before, &node);
        assert_eq!(
            words(&after, "command"),
            ["kube-apiserver", "--advertise-address=$(HOST_IP)", "--x=1"]
        );
        assert_eq!(
            after["spec"]["containers"][0]["env"],
            json!([{"name": "HOST_IP", "valueFrom": {"fieldRef": {"fieldPath": "status.hostIP"}}}])
        );
        let two = applied(
            HOST_IP,
            &apiserver(&["kube-apiserver", "--advertise-address", "192.0.2.11"]),
            &node,
        );
        assert_eq!(
            words(&two, "command"),
            ["kube-apiserver", "--advertise-address", "$(HOST_IP)"]
        );

        let unchanged = |before: &Value, context: &Context| assert_eq!(&applied(HOST_IP, before, context), before);
        unchanged(
            &before,
            &Context {
                node_address: None,
                ..node.clone()
            },
        );
        unchanged(
            &before,
            &Context {
                only_node: Some("cp-1".into()),
                ..node.clone()
            },
        );
        unchanged(
            &before,
            &Context {
                node_address: "192.0.2.12".parse().ok(),
                ..node.clone()
            },
        );
        unchanged(&apiserver(&["kube-apiserver", "--x=1"]), &node);
        // A flag that only ends in the same words is another flag.
        unchanged(
            &apiserver(&["kube-apiserver", "--etcd-advertise-address=192.0.2.11"]),
            &node,
        );
        let mut foreign = before.clone();
        foreign["spec"]["containers"][0]["env"] = json!([{"name": "HOST_IP", "value": "x"}]);
        unchanged(&foreign, &node);
    }

    #[test]
    fn host_ip_compares_addresses_and_not_text() {
        let node = Context {
            node_address: "2001:db8::1".parse().ok(),
            ..context(Component::KubeApiserver)
        };
        let after = applied(
            HOST_IP,
            &apiserver(&["kube-apiserver", "--advertise-address=2001:DB8:0::1"]),
            &node,
        );
        assert_eq!(
            words(&after, "command"),
            ["kube-apiserver", "--advertise-address=$(HOST_IP)"]
        );
    }
}
