//! From a static Pod to a Pod template that a DaemonSet can run: small named steps, each with its reason.
//!
//! Every step is idempotent, keeps the order of arguments, never touches a repeated flag, and leaves fields that it
//! does not know as they are. What a step cannot carry over it refuses with a reason.

mod carrier;
mod command;
mod placement;
mod probes;
mod succession;

use std::fmt;
use std::net::IpAddr;

use serde_json::Value;

use crate::fields::{FieldError, list_mut};
use crate::names::Component;

pub use crate::feature_gates::mutators_from_feature_gates;
pub use placement::GATE_OPEN;

pub(crate) use carrier::{drop_carrier, merge_go_debug, set_environment};
pub(crate) use command::permit_port_sharing;
pub(crate) use placement::drop_leftovers;
pub(crate) use probes::{drop_container_ports, is_own_probe, number_probe_ports, ready_path};
pub(crate) use succession::drop_pre_stop;

/// Why a step cannot be done, with the field and the remedy.
pub type MutationError = FieldError;

/// How the process of the DaemonSet takes the port over from the static one.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Mode {
    /// Both listen at once, and the kernel is told which of them gets new connections. No gap.
    #[default]
    Steered,
    /// The new process waits until the old one has left the port. One gap of one start.
    Gap,
}

/// What the steps know besides the Pod.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Context {
    /// The component that is converted.
    pub component: Component,
    /// How the port is handed over.
    pub mode: Mode,
    /// Name of the directory of our executable under [`crate::names::BIN_DIR`].
    pub build: String,
    /// The node's address as Pods see it in `status.hostIP`, if it is known.
    pub node_address: Option<IpAddr>,
    /// Name of the Node that the template is for alone, so that its literal address may stay.
    pub only_node: Option<String>,
    /// The cluster has one control-plane node.
    pub single_node: bool,
    /// SHA-256 of the original manifest, in hex; stays with the DaemonSet as an annotation.
    pub original_sha256: Option<String>,
    /// How certificates come from a Secret; for [`crate::feature_gates::Gate::StoreCertsInSecrets`] alone.
    pub certificates: Option<crate::certs_in_secrets::Projection>,
}

/// One named step that changes a Pod template (a map of `metadata` and `spec`).
#[derive(Clone, Copy)]
pub struct PodSpecMutator {
    /// Short name, unique among all steps.
    pub name: &'static str,
    /// Why the step is needed; a sentence without a full stop that stands behind the change in a plan.
    pub reason: &'static str,
    /// The step itself. On an error the template may be half changed and must be thrown away.
    pub apply: fn(&mut Value, &Context) -> Result<(), MutationError>,
}

impl fmt::Debug for PodSpecMutator {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PodSpecMutator")
            .field("name", &self.name)
            .field("reason", &self.reason)
            .finish_non_exhaustive()
    }
}

/// The steps that are always taken, in their order.
///
/// The order matters: probe ports are turned into numbers before the ports that name them go, and the probes' hosts
/// are settled before the start-up probe is replaced.
#[must_use]
pub fn default_mutators(component: Component, mode: &Mode) -> Vec<PodSpecMutator> {
    let mut mutators = vec![
        placement::LEFTOVERS,
        placement::LABELS,
        command::PORT_SHARING,
        probes::NUMERIC_PORTS,
        probes::NO_CONTAINER_PORTS,
        probes::HOST,
        match mode {
            Mode::Steered => probes::STARTUP,
            Mode::Gap => probes::STARTUP_GAP,
        },
        match mode {
            Mode::Steered => carrier::AWAIT_PORT,
            Mode::Gap => carrier::AWAIT_PORT_GAP,
        },
        carrier::CARRIER,
        carrier::ROLE,
        carrier::GO_DEBUG,
    ];
    if component == Component::KubeApiserver {
        mutators.push(command::HOST_IP);
        if *mode == Mode::Steered {
            mutators.push(succession::PRE_STOP);
        }
    }
    mutators.extend([placement::GATE, placement::TOLERATIONS, placement::NO_TOKEN]);
    mutators
}

/// Puts `entry` into a list of named things: in the place of the one of the same name, or at the end.
pub(crate) fn put_named(
    parent: &mut Value,
    key: &str,
    field: &str,
    name_key: &str,
    entry: Value,
) -> Result<(), MutationError> {
    let list = list_mut(parent, key, field)?;
    match list
        .iter_mut()
        .find(|existing| existing.get(name_key) == entry.get(name_key))
    {
        Some(existing) => *existing = entry,
        None => list.push(entry),
    }
    Ok(())
}

/// The main container of a template, changeable, with its path.
pub(crate) fn main_container_mut(
    template: &mut Value,
    component: Component,
) -> Result<(&mut Value, String), MutationError> {
    let index = crate::component_spec::main_container_index(template, component)?;
    let missing = || FieldError::new("spec.containers", "is no list", "write a list of containers");
    let container = template
        .get_mut("spec")
        .and_then(|spec| spec.get_mut("containers"))
        .and_then(|list| list.get_mut(index))
        .ok_or_else(missing)?;
    let path = crate::fields::container_path("containers", index, container);
    Ok((container, path))
}

#[cfg(test)]
pub(crate) mod test_support {
    use super::*;

    /// A context as for the node of the fixtures.
    pub(crate) fn context(component: Component) -> Context {
        Context {
            component,
            mode: Mode::Steered,
            build: "0123456789ab".to_owned(),
            node_address: Some("192.0.2.11".parse().unwrap()),
            only_node: None,
            single_node: true,
            original_sha256: None,
            certificates: None,
        }
    }

    /// `value` after `mutator`, which must change nothing when it is applied a second time.
    pub(crate) fn applied(mutator: PodSpecMutator, value: &Value, context: &Context) -> Value {
        let mut once = value.clone();
        (mutator.apply)(&mut once, context).unwrap();
        let mut twice = once.clone();
        (mutator.apply)(&mut twice, context).unwrap();
        assert_eq!(once, twice, "{} is not idempotent", mutator.name);
        once
    }

    /// The error of `mutator` on `value`.
    pub(crate) fn refused(mutator: PodSpecMutator, value: &Value, context: &Context) -> MutationError {
        (mutator.apply)(&mut value.clone(), context).expect_err("must be refused")
    }

    /// A template with one apiserver container of that command.
    pub(crate) fn apiserver(command: &[&str]) -> Value {
        serde_json::json!({"metadata": {}, "spec": {"containers": [{"name": "kube-apiserver", "command": command}]}})
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_and_reasons_are_there_and_unique() {
        for component in Component::ALL {
            for mode in [Mode::Steered, Mode::Gap] {
                let mutators = default_mutators(component, &mode);
                let names: std::collections::BTreeSet<_> = mutators.iter().map(|mutator| mutator.name).collect();
                assert_eq!(names.len(), mutators.len());
                assert!(
                    mutators
                        .iter()
                        .all(|mutator| mutator.reason.len() > 20 && !mutator.reason.ends_with('.'))
                );
            }
        }
    }
}
