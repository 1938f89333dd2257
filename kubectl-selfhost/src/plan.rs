//! What a conversion would do, as a value: computed from a snapshot, printed, compared, and carried out as it stands.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::path::Path;

use serde::Serialize;
use serde_json::Value;

use crate::certs_in_secrets::{self, CertificateSecret, NodeFiles, Projection};
use crate::checks::{MANIFEST_CHECKS, warnings};
use crate::daemon_set::{BuildError, template_of, wrap};
use crate::diff::diff;
use crate::fallback::build_fallback;
use crate::feature_gates::{FeatureGates, Gate, mutators_from_feature_gates};
use crate::fields::FieldError;
use crate::inventory::{Inventory, take_inventory};
use crate::manifest::{Entry, ManifestFile, ReadError, read_directory};
use crate::mutators::{Context, Mode, PodSpecMutator, default_mutators};
use crate::names::Component;
use crate::refusal::Refusal;

/// What everything that we print as JSON or YAML carries as `apiVersion`.
pub const API_VERSION: &str = "selfhost/v1";

/// Everything that a plan is computed from.
#[derive(Clone, Debug, Default)]
pub struct Snapshot {
    /// Where the manifests come from, for messages.
    pub source: String,
    /// The manifest directory.
    pub inventory: Inventory,
    /// Originals that are saved on the node, of components whose manifest is out.
    pub saved: BTreeMap<Component, ManifestFile>,
    /// Components whose DaemonSet is there.
    pub existing: BTreeSet<Component>,
    /// What the components' flags name on the node, as far as it was looked at: for
    /// [`Gate::StoreCertsInSecrets`] alone.
    pub files: NodeFiles,
    /// SHA-256 of the certificates that the DaemonSets' Pods take from Secrets.
    pub certificates: BTreeMap<Component, String>,
    /// How the components run, as far as a live cluster was asked. Where it says nothing, the manifests decide.
    pub states: BTreeMap<Component, ComponentState>,
}

impl Snapshot {
    /// A snapshot of a manifest directory alone.
    #[must_use]
    pub fn of_manifests(source: String, entries: Vec<Entry>) -> Self {
        Self {
            source,
            inventory: take_inventory(entries),
            ..Self::default()
        }
    }

    /// A component's original manifest: that of the directory, else the saved one.
    #[must_use]
    pub fn original(&self, component: Component) -> Option<&ManifestFile> {
        let here = self.inventory.originals.get(&component);
        here.or_else(|| self.saved.get(&component))
    }

    /// The static Pods of these components, as far as they are known.
    #[must_use]
    pub fn pods(&self, components: &[Component]) -> Vec<(Component, &Value)> {
        let pod = |component: &Component| Some((*component, &self.original(*component)?.pod));
        components.iter().filter_map(pod).collect()
    }

    /// How a component runs. Where the cluster was not asked, its manifests tell.
    #[must_use]
    pub fn state(&self, component: Component) -> ComponentState {
        self.states.get(&component).copied().unwrap_or_else(|| {
            if self.inventory.originals.contains_key(&component) {
                ComponentState::Static
            } else if self.inventory.fallbacks.contains_key(&component) {
                ComponentState::Fallback
            } else {
                ComponentState::None
            }
        })
    }
}

/// How a component runs on a node.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum ComponentState {
    /// From its static Pod.
    Static,
    /// From its DaemonSet.
    SelfHosted,
    /// From both at once.
    Both,
    /// From our fallback.
    Fallback,
    /// Not at all.
    None,
}

impl ComponentState {
    /// The word for it.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Static => "static",
            Self::SelfHosted => "self-hosted",
            Self::Both => "both",
            Self::Fallback => "fallback",
            Self::None => "none",
        }
    }
}

/// For how long a component is away during its conversion.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Gap {
    /// Not at all.
    None,
    /// For as long as one start takes: about three seconds for the apiserver.
    OneStart,
}

impl Gap {
    /// The words for it.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::None => "none",
            Self::OneStart => "one start, about 3 s",
        }
    }
}

/// What is to be planned.
#[derive(Clone, Debug)]
pub struct PlanOptions {
    /// The components to convert.
    pub components: Vec<Component>,
    /// How ports are handed over.
    pub mode: Mode,
    /// Name of the directory of our executable under [`crate::names::BIN_DIR`].
    pub build: String,
    /// The node's address as Pods see it, if it is known.
    pub node_address: Option<IpAddr>,
    /// Name of the Node that the DaemonSets are for alone.
    pub only_node: Option<String>,
    /// What stands for the originals that a DaemonSet was made from, where there is more than one.
    pub originals: BTreeMap<Component, String>,
    /// The cluster has one control-plane node.
    pub single_node: bool,
    /// Feature gates.
    pub feature_gates: FeatureGates,
}

impl PlanOptions {
    /// All components of a single node, without a gap, with our executable of that build.
    #[must_use]
    pub fn new(build: impl Into<String>) -> Self {
        Self {
            components: Component::ALL.to_vec(),
            mode: Mode::Steered,
            build: build.into(),
            node_address: None,
            only_node: None,
            originals: BTreeMap::new(),
            single_node: true,
            feature_gates: FeatureGates::default(),
        }
    }

    /// What the mutators of `component` are told, for that original.
    #[must_use]
    pub fn context(&self, component: Component, original: &ManifestFile) -> Context {
        Context {
            component,
            mode: self.mode,
            build: self.build.clone(),
            node_address: self.node_address,
            only_node: self.only_node.clone(),
            single_node: self.single_node,
            original_sha256: Some(self.originals.get(&component).unwrap_or(&original.sha256).clone()),
            certificates: None,
        }
    }
}

/// One field that the conversion changes.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Change {
    /// Path of the field inside the Pod.
    pub path: String,
    /// The value now; absent where the field is new.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub before: Option<Value>,
    /// The value afterwards; absent where the field goes.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub after: Option<Value>,
    /// Name of the mutator that changes it.
    pub mutator: &'static str,
    /// Why.
    pub reason: &'static str,
}

/// What happens to one component.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct ComponentPlan {
    /// The component.
    pub component: Component,
    /// How it runs now.
    pub state: ComponentState,
    /// The file of its original manifest; absent where the component is converted already.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub manifest: Option<String>,
    /// What changes between the static Pod and the DaemonSet's template, in the order of the mutators.
    pub changes: Vec<Change>,
    /// For how long it is away.
    pub expected_gap: Gap,
    /// What the reader should know.
    pub warnings: Vec<String>,
    /// The DaemonSet; absent where there is nothing to do.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub daemon_set: Option<Value>,
    /// The Secret with its certificates, without what is in it; absent without
    /// [`Gate::StoreCertsInSecrets`].
    #[serde(skip_serializing_if = "Option::is_none")]
    pub secret: Option<CertificateSecret>,
    /// How its template takes them.
    #[serde(skip)]
    pub projection: Option<Projection>,
    /// It serves from its DaemonSet, whose Pods are rolled onto the files of the Secret.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub rolls: bool,
    /// The fallback's static Pod; absent where there is nothing to do.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub fallback: Option<Value>,
}

impl ComponentPlan {
    /// Whether a conversion would do anything for it.
    #[must_use]
    pub fn is_to_do(&self) -> bool {
        self.daemon_set.is_some() || self.state != ComponentState::SelfHosted || self.rolls
    }
}

/// What a conversion would do, and what forbids it.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Plan {
    /// `selfhost/v1`; changes when a field changes its meaning.
    pub api_version: &'static str,
    /// `Plan`.
    pub kind: &'static str,
    /// Where the manifests come from.
    pub source: String,
    /// The components, in the order of the conversion.
    pub components: Vec<ComponentPlan>,
    /// Files of the manifest directory that are left alone.
    pub untouched: Vec<String>,
    /// What forbids the conversion. While there is one, nothing must be changed.
    pub refusals: Vec<Refusal>,
    /// What the reader should know.
    pub warnings: Vec<String>,
}

impl Plan {
    /// Whether the plan would change anything.
    #[must_use]
    pub fn has_changes(&self) -> bool {
        self.components.iter().any(ComponentPlan::is_to_do)
    }

    /// The longest gap of all components.
    #[must_use]
    pub fn expected_gap(&self) -> Gap {
        self.components
            .iter()
            .map(|component| component.expected_gap)
            .max()
            .unwrap_or(Gap::None)
    }
}

/// The plan for a snapshot. Pure: the same snapshot and options give the same plan.
#[must_use]
pub fn plan(snapshot: &Snapshot, options: &PlanOptions) -> Plan {
    let mut plan = Plan {
        api_version: API_VERSION,
        kind: "Plan",
        source: snapshot.source.clone(),
        untouched: snapshot
            .inventory
            .others
            .iter()
            .map(|file| file.file_name.clone())
            .collect(),
        refusals: snapshot.inventory.refusals.clone(),
        warnings: snapshot.inventory.warnings.clone(),
        ..Plan::default()
    };
    let gate_mutators = mutators_from_feature_gates(&options.feature_gates);
    // The order of the conversion is fixed, whatever order was asked for.
    for component in Component::ALL
        .into_iter()
        .filter(|component| options.components.contains(component))
    {
        let missing = !snapshot.existing.contains(&component);
        let saved = snapshot.saved.get(&component);
        // a DaemonSet that somebody deleted is made anew from the saved original
        let original = snapshot
            .inventory
            .originals
            .get(&component)
            .or(saved.filter(|_| missing));
        match (original, snapshot.state(component)) {
            (Some(original), state) => {
                let mutators = [default_mutators(component, &options.mode), gate_mutators.clone()].concat();
                let (component_plan, refusals) =
                    plan_component(component, original, state, &mutators, (snapshot, options));
                plan.refusals.extend(refusals);
                plan.components.extend(component_plan);
            }
            // on its way, or at its end
            (None, state)
                if saved.is_some() || state == ComponentState::SelfHosted || state == ComponentState::Fallback =>
            {
                let certificates = match saved {
                    Some(saved) => certificates(component, saved, snapshot, options).unwrap_or_else(|found| {
                        let refusals = found.into_iter().map(|error| Refusal::in_file(&saved.file_name, error));
                        plan.refusals.extend(refusals);
                        None
                    }),
                    None => None,
                };
                let (secret, projection) = certificates.unzip();
                let rolls = secret.as_ref().is_some_and(|secret: &CertificateSecret| {
                    state == ComponentState::SelfHosted && snapshot.certificates.get(&component) != Some(&secret.sha256)
                });
                plan.components.push(ComponentPlan {
                    component,
                    state,
                    manifest: None,
                    changes: Vec::new(),
                    expected_gap: Gap::None,
                    warnings: Vec::new(),
                    daemon_set: None,
                    secret,
                    projection,
                    rolls,
                    fallback: None,
                });
            }
            (None, _) => {
                let name = component.name();
                if !plan
                    .refusals
                    .iter()
                    .any(|refusal| refusal.object.contains(name) || refusal.what.contains(name))
                {
                    plan.refusals.push(Refusal::new(
                        snapshot.source.clone(),
                        format!("no manifest there runs {component}"),
                        "look whether this is the kubelet's staticPodPath; choose other components by --components",
                    ));
                }
            }
        }
    }
    let secrets: Vec<&CertificateSecret> = plan.components.iter().filter_map(|plan| plan.secret.as_ref()).collect();
    plan.refusals
        .extend(secrets.iter().filter_map(|secret| certs_in_secrets::too_large(secret)));
    if !secrets.is_empty() {
        let apiserver = snapshot.original(Component::KubeApiserver);
        plan.warnings
            .extend(apiserver.and_then(|file| certs_in_secrets::not_encrypted(&file.pod)));
    }
    let mut seen = Vec::new();
    plan.refusals.retain(|refusal| {
        let new = !seen.contains(refusal);
        seen.push(refusal.clone());
        new
    });
    plan
}

/// The plan of one component, if one can be made, and all that forbids it.
fn plan_component(
    component: Component,
    original: &ManifestFile,
    state: ComponentState,
    mutators: &[PodSpecMutator],
    (snapshot, options): (&Snapshot, &PlanOptions),
) -> (Option<ComponentPlan>, Vec<Refusal>) {
    let mut errors: Vec<FieldError> = Vec::new();
    for check in MANIFEST_CHECKS {
        match check(component, &original.pod, options.mode) {
            Ok(found) => errors.extend(found),
            Err(error) => errors.push(error),
        }
    }
    let mut context = options.context(component, original);
    let mut secret = None;
    match certificates(component, original, snapshot, options) {
        Ok(found) => (secret, context.certificates) = found.unzip(),
        Err(found) => errors.extend(found),
    }
    let built = changes(&original.pod, mutators, &context);
    let fallback = build_fallback(component, &original.pod);
    let warnings = warnings(component, &original.pod, options.node_address);
    let component_plan = match (built, fallback, warnings) {
        (Ok((changes, template)), Ok(fallback), Ok(warnings)) => Some(ComponentPlan {
            component,
            state,
            manifest: Some(original.file_name.clone()),
            changes,
            expected_gap: match options.mode {
                Mode::Steered => Gap::None,
                Mode::Gap => Gap::OneStart,
            },
            warnings,
            daemon_set: Some(wrap(component, &template, &context)),
            secret,
            projection: context.certificates,
            rolls: false,
            fallback: Some(fallback),
        }),
        (built, fallback, warnings) => {
            errors.extend(built.err().map(|error| error.source));
            errors.extend(fallback.err());
            errors.extend(warnings.err());
            None
        }
    };
    (
        component_plan,
        errors
            .into_iter()
            .map(|error| Refusal::in_file(&original.file_name, error))
            .collect(),
    )
}

/// The Secret of a component and how its template uses it, where the gate asks for it.
fn certificates(
    component: Component,
    original: &ManifestFile,
    snapshot: &Snapshot,
    options: &PlanOptions,
) -> Result<Option<(CertificateSecret, Projection)>, Vec<FieldError>> {
    if options.feature_gates.enabled(Gate::StoreCertsInSecrets) {
        certs_in_secrets::plan(component, &original.pod, &snapshot.files)
    } else {
        Ok(None)
    }
}

/// Applies the mutators one by one and notes what each of them changes, so that nothing is changed without a reason.
///
/// # Errors
/// The first mutator that refuses.
pub fn changes(
    pod: &Value,
    mutators: &[PodSpecMutator],
    context: &Context,
) -> Result<(Vec<Change>, Value), BuildError> {
    let mut template = template_of(pod).map_err(|source| BuildError {
        mutator: "template",
        source,
    })?;
    // Two copies, of which one is a step behind: a step is a pure function, and doing it twice costs less than a new copy
    // for each step.
    let mut before = template.clone();
    let mut changes = Vec::new();
    for mutator in mutators {
        let apply = |template: &mut Value| {
            (mutator.apply)(template, context).map_err(|source| BuildError {
                mutator: mutator.name,
                source,
            })
        };
        apply(&mut template)?;
        changes.extend(diff(&before, &template).into_iter().map(|difference| Change {
            path: difference.path,
            before: difference.before,
            after: difference.after,
            mutator: mutator.name,
            reason: mutator.reason,
        }));
        apply(&mut before)?;
    }
    Ok((changes, template))
}

/// The plan for a manifest directory, without any cluster.
///
/// # Errors
/// The directory cannot be listed.
pub fn offline_plan(directory: &Path, options: &PlanOptions) -> Result<Plan, ReadError> {
    let entries = read_directory(directory)?;
    let mut snapshot = Snapshot::of_manifests(directory.display().to_string(), entries);
    if options.feature_gates.enabled(Gate::StoreCertsInSecrets) {
        snapshot.files = certs_in_secrets::read_all(&snapshot.pods(&options.components), certs_in_secrets::read_local);
    }
    Ok(plan(&snapshot, options))
}
