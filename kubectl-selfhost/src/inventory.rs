//! Which file of a manifest directory is which component: told by content, never by file name.

use std::collections::BTreeMap;

use serde_json::Value;

use crate::component_spec::{Start, start_of};
use crate::fallback::{fallback_name, role_of};
use crate::fields::{FieldError, container_path, list_at, string_at};
use crate::manifest::{Entry, ManifestFile, namespace_of};
use crate::names::{Component, GUARD, NAMESPACE, Role};
use crate::refusal::Refusal;

/// What a Pod of the manifest directory is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Identity {
    /// A component; the role tells the original from our fallback.
    Component(Component, Role),
    /// Our guard.
    Guard,
    /// Something that is never touched: etcd, a virtual-IP keeper and the like.
    Other,
}

/// The files of a manifest directory, sorted out.
#[derive(Clone, Debug, Default)]
pub struct Inventory {
    /// The static Pod of each component.
    pub originals: BTreeMap<Component, ManifestFile>,
    /// Our fallback of each component.
    pub fallbacks: BTreeMap<Component, ManifestFile>,
    /// Our guard.
    pub guard: Option<ManifestFile>,
    /// Everything that is not touched.
    pub others: Vec<ManifestFile>,
    /// What forbids a conversion.
    pub refusals: Vec<Refusal>,
    /// What the reader should know.
    pub warnings: Vec<String>,
}

/// What `pod` is.
///
/// # Errors
/// The Pod seems to be a component, but runs it in a way that cannot be taken over: through a shell or another program,
/// by the image's entry point, in another namespace, or not at all.
pub fn identify(pod: &Value) -> Result<Identity, FieldError> {
    let name = string_at(pod, &["metadata", "name"]).unwrap_or_default();
    let namespace = namespace_of(pod);
    if name == GUARD && namespace == NAMESPACE {
        return Ok(Identity::Guard);
    }
    for component in Component::ALL {
        let named = name == component.name() || name == fallback_name(component);
        let labelled = string_at(pod, &["metadata", "labels", "component"]) == Some(component.name());
        if !named && !labelled {
            continue;
        }
        let containers = list_at(pod, &["spec", "containers"]);
        let direct = containers
            .iter()
            .find(|container| start_of(container, component) == Start::Direct);
        if let Some(container) = direct {
            if namespace == NAMESPACE {
                return Ok(Identity::Component(component, role_of(container)));
            }
            if named {
                return Err(FieldError::new(
                    "metadata.namespace",
                    format!("{component} runs in the namespace {namespace:?}, which is where Pods land that name none"),
                    format!("write `namespace: {NAMESPACE}`"),
                ));
            }
            continue;
        }
        if namespace != NAMESPACE {
            continue;
        }
        for (index, container) in containers.iter().enumerate() {
            let own = named || string_at(container, &["name"]) == Some(component.name());
            if let Some(error) = unusable_start(container, component, index).filter(|_| own) {
                return Err(error);
            }
        }
        if named {
            return Err(FieldError::new(
                "spec.containers",
                format!("the Pod is named {name}, but no container runs {component}"),
                format!("start {component} as the first word of a container's command, or give the Pod another name"),
            ));
        }
    }
    Ok(Identity::Other)
}

fn unusable_start(container: &Value, component: Component, index: usize) -> Option<FieldError> {
    let field = format!("{}.command", container_path("containers", index, container));
    let remedy = format!("write the command as a list that starts with {component}, one element for each flag");
    match start_of(container, component) {
        Start::Direct | Start::Other => None,
        Start::ShellString => Some(FieldError::new(
            field,
            format!("starts {component} from one string, whose flags only a shell can tell apart"),
            remedy,
        )),
        Start::Wrapped(program) => Some(FieldError::new(
            field,
            format!("starts {component} through {program:?}, so that it is not the container's first process"),
            remedy,
        )),
        Start::EntryPoint => Some(FieldError::new(
            field,
            format!("leaves it to the image to start {component}"),
            remedy,
        )),
    }
}

/// Sorts out the files of a manifest directory.
#[must_use]
pub fn take_inventory(entries: Vec<Entry>) -> Inventory {
    let mut inventory = Inventory::default();
    let mut found: BTreeMap<(Component, Role), Vec<ManifestFile>> = BTreeMap::new();
    for entry in entries {
        match entry {
            Entry::Broken {
                file_name,
                bytes,
                error,
            } => inventory.add_broken(&file_name, &bytes, error),
            Entry::Pod(file) => match identify(&file.pod) {
                Ok(Identity::Component(component, role)) => found.entry((component, role)).or_default().push(file),
                Ok(Identity::Guard) => inventory.guard = Some(file),
                Ok(Identity::Other) => inventory.others.push(file),
                Err(error) => inventory.refusals.push(Refusal::in_file(&file.file_name, error)),
            },
        }
    }
    for ((component, role), mut files) in found {
        if files.len() > 1 {
            let names: Vec<_> = files.iter().map(|file| file.file_name.as_str()).collect();
            inventory.refusals.push(Refusal::new(
                names.join(", "),
                format!(
                    "{} files run {component}: the kubelet reads every file, whatever its extension",
                    files.len()
                ),
                "keep one of them, and move the others out of the manifest directory",
            ));
        }
        let Some(file) = files.drain(..).next() else { continue };
        match role {
            Role::Fallback => inventory.fallbacks.insert(component, file),
            Role::Static => inventory.originals.insert(component, file),
            Role::SelfHosted => {
                inventory.refusals.push(Refusal::new(
                    file.file_name,
                    format!("holds the self-hosted Pod of {component}, which belongs into a DaemonSet"),
                    "move the file out of the manifest directory",
                ));
                None
            }
        };
    }
    inventory
}

impl Inventory {
    /// A broken file forbids the conversion where it may be a component's; else the kubelet ignores it, and so do we.
    fn add_broken(&mut self, file_name: &str, bytes: &[u8], error: FieldError) {
        let text = String::from_utf8_lossy(bytes);
        let concerns = |component: Component| file_name.contains(component.name()) || text.contains(component.name());
        if Component::ALL.into_iter().any(concerns) {
            self.refusals.push(Refusal::in_file(file_name, error));
        } else {
            self.warnings.push(format!(
                "{file_name}: {}: {}; the kubelet ignores this file",
                error.field, error.what
            ));
        }
    }
}
