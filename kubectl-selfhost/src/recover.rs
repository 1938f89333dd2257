//! `kubectl selfhost recover`: brings a control plane back that is gone, from the node's own files, without any API.
//!
//! What the guard does by itself, for a node whose guard is gone too: executable, guard and fallbacks are put back, and the
//! rest is the guard's. [`plan`] decides from facts; the rest looks and acts on this node.

use crate::fallback::fallback_file_name;
use crate::install::{self, GuardSettings, NodeBinary};
use crate::inventory::take_inventory;
use crate::local_node::{self, LocalNode};
use crate::manifest::{read_directory, sha256_hex};
use crate::names::{Component, Role};
use crate::node::await_port::describe;
use crate::node::guard::files::{self, Attributes};
use crate::node::guard::keep;
use crate::node::probe::{self, Probe};
use crate::node::process::Processes;
use crate::node::state::{ComponentFiles, Desired, FallbackReport, MadeOf, Memory, Original};
use crate::node::steering::Listener;
use crate::node::variants::{self, Endpoint};
use crate::survey;
use serde_json::Value;
use shared::progress::{Outcome, Reporter};
use shared::wait::{self, Poll};
use shared::{Context, Error, Printer, Result, prompt};
use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// What is asked for.
#[derive(Clone, Debug)]
pub struct RecoverOptions {
    /// Which components.
    pub components: Vec<Component>,
    /// The fallback of the original manifest, whatever ran well later.
    pub original: bool,
    /// Name of the Node, where the node's files do not say it.
    pub node_name: Option<String>,
    /// Do not ask.
    pub yes: bool,
    /// Change nothing.
    pub dry_run: bool,
    /// The longest wait for the API, and then for the DaemonSets' Pods.
    pub timeout: Duration,
}

/// What lies on the disk of a component.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Saved {
    /// Nothing.
    Nothing,
    /// Something that cannot be used.
    Damaged(String),
    /// All that a fallback needs.
    Whole {
        /// What the guard remembers; `None` where its memory is gone or damaged.
        memory: Option<(Desired, bool)>,
        /// What its fallback is made of.
        made_of: FallbackReport,
    },
}

/// What was seen of a component.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ComponentFacts {
    /// Whether a process of it has answered healthy itself.
    pub serves: bool,
    /// The file of its static Pod in the manifest directory.
    pub manifest: Option<String>,
    /// Whether our fallback lies there.
    pub fallback_in: bool,
    /// What lies on the disk.
    pub saved: Saved,
}

/// What was seen of the node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Facts {
    /// The components that were asked for.
    pub components: BTreeMap<Component, ComponentFacts>,
    /// Whether a process of the guard runs.
    pub guard_runs: bool,
    /// Whether its manifest is in the manifest directory.
    pub guard_manifest: bool,
}

/// What is done about a component.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Step {
    /// Nothing; the words say why.
    Leave(&'static str),
    /// The fallback is put in.
    PutFallback {
        /// What it is made of.
        made_of: String,
        /// The guard's memory is lost, and has to say that the component is converted.
        remember: bool,
    },
}

/// What is done.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Plan {
    /// By component.
    pub steps: BTreeMap<Component, Step>,
    /// Executable and guard are put back.
    pub guard: bool,
}

impl Plan {
    /// Whether there is nothing to do.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        !self.guard && self.steps.values().all(|step| matches!(step, Step::Leave(_)))
    }

    /// For people.
    #[must_use]
    pub fn text(&self) -> String {
        let mut text = String::new();
        for (component, step) in &self.steps {
            let what = match step {
                Step::Leave(why) => (*why).to_owned(),
                Step::PutFallback { made_of, .. } => {
                    format!("nothing serves: the fallback is put in, made of {made_of}")
                }
            };
            text.push_str(&format!("  {component}: {what}\n"));
        }
        let guard = if self.guard {
            "executable and guard are put back"
        } else {
            "runs"
        };
        text.push_str(&format!("  guard: {guard}\n"));
        text
    }
}

/// What to do.
///
/// # Errors
/// This is no node whose converted control plane could be brought back, or its files are damaged.
pub fn plan(facts: &Facts) -> Result<Plan> {
    if facts
        .components
        .values()
        .all(|component| component.saved == Saved::Nothing)
    {
        let error = Error::refused("nothing of a converted control plane lies on this node");
        let of_static = facts.components.values().any(|component| component.manifest.is_some());
        return Err(if of_static {
            error
                .because("its manifest directory holds static Pods, which the kubelet starts by itself")
                .hint("look into the kubelet's log, and at the containers: crictl ps -a")
        } else {
            error
                .because("there is neither a saved original nor a static Pod")
                .hint("run it on a control-plane node that was converted")
                .hint("the originals are also in the cluster, as Secret kube-system/selfhost-originals-NODE: in etcd, and in backups of it")
        });
    }
    let mut steps = BTreeMap::new();
    for (component, seen) in &facts.components {
        let step = match &seen.saved {
            _ if seen.serves => Step::Leave("serves"),
            _ if seen.fallback_in => Step::Leave("its fallback is in, and the kubelet starts it"),
            _ if seen.manifest.is_some() => Step::Leave("its static manifest is in, and the kubelet starts it"),
            Saved::Nothing => Step::Leave("nothing of it is saved here"),
            Saved::Damaged(why) => {
                return Err(Error::refused(format!("{component} cannot be brought back from this node's files"))
                    .because(why.clone())
                    .hint("put its static manifest into the manifest directory: from a backup, or from Secret kube-system/selfhost-originals-NODE, which etcd holds")
                    .hint("or leave the component out: --components")
                    .hint("nothing was changed"));
            }
            Saved::Whole {
                memory: Some((desired, _)),
                ..
            } if !desired.is_self_hosted() => {
                Step::Leave("was on its way back: the guard puts its original manifest in")
            }
            Saved::Whole { memory, made_of } => Step::PutFallback {
                made_of: made_of.name(),
                // a hand-over whose note was lost had taken the manifest out all the same
                remember: !matches!(memory, Some((_, true))),
            },
        };
        steps.insert(*component, step);
    }
    Ok(Plan {
        steps,
        guard: !facts.guard_runs || !facts.guard_manifest,
    })
}

/// How often this node is looked at while something is waited for.
const INTERVAL: Duration = Duration::from_millis(500);

/// This node, with what was read of it.
struct Node {
    local: LocalNode,
    /// Manifests to put in.
    fallbacks: BTreeMap<Component, Vec<u8>>,
    endpoints: BTreeMap<Component, Endpoint>,
    images: BTreeMap<Component, String>,
}

impl Node {
    fn look(options: &RecoverOptions) -> Result<(Self, Facts)> {
        if !rustix::process::geteuid().is_root() {
            return Err(
                Error::refused("only root can bring a control plane back").hint("run it with sudo, on the node")
            );
        }
        let local = local_node::find()?.ok_or_else(|| {
            Error::refused("no kubelet runs on this machine")
                .because("it is the kubelet that starts what lies in its manifest directory")
                .hint("start it first (systemctl start kubelet), and run this on the node itself")
        })?;
        let entries = read_directory(&local.manifest_directory).map_err(|error| {
            let directory = local.manifest_directory.display();
            Error::new(format!("the manifest directory {directory} cannot be read")).because(describe(&error))
        })?;
        let inventory = take_inventory(entries);
        let mut node = Self {
            local,
            fallbacks: BTreeMap::new(),
            endpoints: BTreeMap::new(),
            images: BTreeMap::new(),
        };
        let mut components = BTreeMap::new();
        for component in &options.components {
            let saved = node.saved(*component, options.original);
            let facts = ComponentFacts {
                serves: node.serves(*component, None),
                manifest: inventory.originals.get(component).map(|file| file.file_name.clone()),
                fallback_in: inventory.fallbacks.contains_key(component),
                saved,
            };
            components.insert(*component, facts);
        }
        let facts = Facts {
            components,
            guard_runs: survey::guard_runs(),
            guard_manifest: inventory.guard.is_some(),
        };
        Ok((node, facts))
    }

    /// Reads what lies on the disk of a component, whole or not.
    fn saved(&mut self, component: Component, of_original: bool) -> Saved {
        let files = ComponentFiles::new(component);
        let metadata = match std::fs::read(files.original_metadata()) {
            Ok(bytes) => bytes,
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Saved::Nothing,
            Err(error) => return Saved::Damaged(format!("{}: {error}", files.original_metadata().display())),
        };
        match self.whole(component, &files, &metadata, of_original) {
            Ok((made_of, manifest)) => {
                self.fallbacks.insert(component, manifest);
                let memory = std::fs::read(files.memory()).ok();
                let memory = memory.and_then(|bytes| serde_json::from_slice::<Memory>(&bytes).ok());
                Saved::Whole {
                    memory: memory.map(|memory| (memory.desired, memory.handed_over)),
                    made_of,
                }
            }
            Err(why) => Saved::Damaged(why),
        }
    }

    fn whole(
        &mut self,
        component: Component,
        files: &ComponentFiles,
        metadata: &[u8],
        of_original: bool,
    ) -> std::result::Result<(FallbackReport, Vec<u8>), String> {
        let path = files.original();
        let original: Original = serde_json::from_slice(metadata)
            .map_err(|error| format!("{} is damaged: {error}", files.original_metadata().display()))?;
        let bytes = std::fs::read(&path).map_err(|error| format!("{}: {error}", path.display()))?;
        if sha256_hex(&bytes) != original.sha256 {
            return Err(format!(
                "{} is damaged: its SHA-256 is not the saved one",
                path.display()
            ));
        }
        let variants = variants::build(component, &bytes)?;
        self.endpoints.insert(component, variants.endpoint);
        if let Ok(spec) = crate::component_spec::ComponentSpec::new(component, &variants.pod)
            && let Some(image) = spec.container().get("image").and_then(Value::as_str)
        {
            self.images.insert(component, image.to_owned());
        }
        let mut made_of = FallbackReport::of_original();
        if !of_original {
            match keep::load(files) {
                Ok(Some(kept)) if kept.original == original.sha256 => match kept.manifest(files) {
                    Ok(manifest) => {
                        let made_of = FallbackReport {
                            made_of: MadeOf::Template,
                            template: kept.template.clone(),
                            since: Some(kept.since.clone()),
                            refused: None,
                        };
                        return Ok((made_of, manifest.as_bytes().to_vec()));
                    }
                    Err(error) => made_of.refused = Some(error.to_string()),
                },
                Ok(_) => {}
                Err(error) => made_of.refused = Some(error.to_string()),
            }
        }
        Ok((made_of, variants.fallback.into_bytes()))
    }

    /// Whether a process of a component answers healthy itself; of that role, where one is named.
    fn serves(&self, component: Component, role: Option<Role>) -> bool {
        let Some(endpoint) = self.endpoints.get(&component) else {
            return false;
        };
        let found = Processes::new(Path::new("/proc")).find().unwrap_or_default();
        let pids: Vec<u32> = found
            .components
            .iter()
            .filter(|process| process.component == component && role.is_none_or(|role| process.role == role))
            .map(|process| process.pid)
            .collect();
        let probe = Probe {
            address: SocketAddr::new(endpoint.probe_address(), endpoint.port),
            path: endpoint.path.into(),
            pids,
            listener: Listener::Newest,
            timeout: Duration::from_secs(2),
        };
        !probe.pids.is_empty() && probe::run(&probe).is_ok()
    }

    fn fallback_path(&self, component: Component) -> PathBuf {
        self.local.manifest_directory.join(fallback_file_name(component))
    }

    /// What the guard's manifest is to say: as it was, as far as that is known.
    fn guard(&self, options: &RecoverOptions) -> Result<(String, String)> {
        let manifests = [install::guard_manifest_path(&self.local), install::guard_copy_path()];
        let before = manifests.iter().find_map(|path| {
            let text = std::fs::read_to_string(path).ok()?;
            shared::yaml::first_document(&text).ok()
        });
        let container = before.as_ref().and_then(|pod| pod.pointer("/spec/containers/0"));
        let said = container.and_then(|container| {
            let command = container.get("command")?.as_array()?;
            let at = command.iter().position(|word| word == "--node-name")?;
            command.get(at + 1)?.as_str().map(str::to_owned)
        });
        let image = container.and_then(|container| container.get("image")?.as_str().map(str::to_owned));
        let name = options
            .node_name
            .clone()
            .or(said)
            .or_else(|| kubelets_name(&self.local.kubelet_certificates));
        let name = name.ok_or_else(|| {
            Error::refused("the name of this Node is not known")
                .because("neither a copy of the guard's manifest nor the kubelet's certificate says it")
                .hint("give it by --node-name")
        })?;
        let image = image
            .or_else(|| self.images.values().next_back().cloned())
            .ok_or_else(|| {
                Error::refused("no image is known that is on this node").because("no saved manifest names one")
            })?;
        Ok((name, image))
    }
}

/// The name of the Node in the kubelet's client certificate, `system:node:NAME` (k8s.io/kubernetes, node authorization).
fn kubelets_name(certificates: &Path) -> Option<String> {
    let bytes = std::fs::read(certificates.join("kubelet-client-current.pem")).ok()?;
    let pems = x509_parser::pem::Pem::iter_from_buffer(&bytes).flatten();
    let certificate = pems.into_iter().find(|pem| pem.label == "CERTIFICATE")?;
    let certificate = certificate.parse_x509().ok()?;
    let name = certificate.subject().iter_common_name().next()?.as_str().ok()?;
    name.strip_prefix("system:node:").map(str::to_owned)
}

/// Does it.
///
/// # Errors
/// What forbids it, or what went wrong, with what to do. Done twice, it carries on.
pub async fn recover(options: &RecoverOptions, reporter: &dyn Reporter, printer: &Printer) -> Result<()> {
    let (node, facts) = Node::look(options)?;
    let plan = plan(&facts)?;
    printer.data(&format!("This node\n{}", plan.text()))?;
    for seen in facts.components.values() {
        if let Saved::Whole { made_of, .. } = &seen.saved
            && let Some(why) = &made_of.refused
        {
            printer.warning(format!("{why}: the original manifest is taken instead"));
        }
    }
    if plan.is_empty() {
        printer.note(
            "there is nothing to bring back; where the API answers, `kubectl selfhost convert` puts the rest right",
        );
        return Ok(());
    }
    if options.dry_run {
        return Ok(());
    }
    prompt::confirm(printer, "Bring it back?", None, options.yes)?;
    tokio::select! {
        result = apply(&node, &plan, options, reporter, printer) => result,
        _ = tokio::signal::ctrl_c() => Err(Error::interrupted("interrupted")
            .hint("what was put in stays, and the kubelet and the guard go on with it")
            .hint("run the same command again to carry on")),
    }
}

async fn apply(
    node: &Node,
    plan: &Plan,
    options: &RecoverOptions,
    reporter: &dyn Reporter,
    printer: &Printer,
) -> Result<()> {
    const TASK: &str = "recover";
    let began = Instant::now();
    reporter.begin(TASK, "recover", 3);
    let put: Vec<Component> = plan
        .steps
        .iter()
        .filter(|(_, step)| matches!(step, Step::PutFallback { .. }))
        .map(|(component, _)| *component)
        .collect();
    let work = async {
        reporter.waiting(TASK, "fallbacks, executable and guard to be put back");
        put_back(node, plan, options)?;
        reporter.step(TASK, "fallbacks, executable and guard are in place");
        if node.endpoints.contains_key(&Component::KubeApiserver) {
            wait_for(
                "the apiserver of this node to answer /readyz",
                options.timeout,
                TASK,
                reporter,
                || {
                    node.serves(Component::KubeApiserver, None)
                        .then_some(())
                        .ok_or_else(|| "the kubelet to start its Pod, and it to get ready".to_owned())
                },
            )
            .await
            .map_err(|error| {
                error
                    .hint("look at its container: crictl ps -a, crictl logs ID; and at etcd, which it needs")
                    .hint("--original puts in what ran before the conversion")
            })?;
            reporter.step(TASK, "the API answers");
        }
        Ok(())
    };
    if let Err(error) = work.await {
        reporter.finish(TASK, Outcome::Failed, Error::what(&error));
        return Err(error);
    }
    let what = "the DaemonSets' Pods to take over";
    let taken_over = wait_for(what, options.timeout.min(TAKE_OVER), TASK, reporter, || {
        match put.iter().find(|component| {
            node.fallback_path(**component).exists() || !node.serves(**component, Some(Role::SelfHosted))
        }) {
            None => Ok(()),
            Some(component) => Err(format!("the guard to hand {component} over to its DaemonSet's Pod")),
        }
    })
    .await;
    let seconds = began.elapsed().as_secs_f64();
    match taken_over {
        Ok(()) => {
            reporter.step(TASK, "the DaemonSets' Pods serve");
            reporter.finish(TASK, Outcome::Done, &format!("self-hosted again after {seconds:.0} s"));
        }
        Err(error) if error.cause() == shared::error::Cause::TimedOut => {
            reporter.finish(
                TASK,
                Outcome::Done,
                &format!("the API is back after {seconds:.0} s; fallbacks serve"),
            );
            printer.note("the fallbacks serve, which is healthy and lasts: the DaemonSets' Pods have not taken over. `kubectl selfhost status` tells why, and `kubectl selfhost convert` puts the DaemonSets right");
        }
        Err(error) => {
            reporter.finish(TASK, Outcome::Failed, Error::what(&error));
            return Err(error);
        }
    }
    Ok(())
}

/// A start of the Pods, their proof, and the pause.
const TAKE_OVER: Duration = Duration::from_secs(180);

fn put_back(node: &Node, plan: &Plan, options: &RecoverOptions) -> Result<()> {
    let binary = NodeBinary::of_this_process()?;
    let guard = plan.guard.then(|| node.guard(options)).transpose()?;
    install::install_state_directory()?;
    for (component, step) in &plan.steps {
        let Step::PutFallback { remember, .. } = step else {
            continue;
        };
        if *remember {
            let memory = Memory {
                desired: Desired::SelfHosted,
                handed_over: true,
                ..Memory::default()
            };
            let bytes = serde_json::to_vec_pretty(&memory).context("the guard's memory cannot be written")?;
            files::write(
                &ComponentFiles::new(*component).memory(),
                &bytes,
                Attributes::mode(0o600),
            )
            .context("the guard's memory cannot be written")?;
        }
    }
    // the API first: the executable may take its time
    for component in Component::ALL.into_iter().rev() {
        if let (Some(Step::PutFallback { .. }), Some(manifest)) =
            (plan.steps.get(&component), node.fallbacks.get(&component))
        {
            files::write(&node.fallback_path(component), manifest, Attributes::mode(0o600))
                .with_context(|| format!("the fallback of {component} cannot be put in"))?;
        }
    }
    if let Some((node_name, image)) = guard {
        install::install_binary(&binary)?;
        let settings = GuardSettings {
            node_name: &node_name,
            image: &image,
            build: &binary.build,
            last_known_good_after: None,
        };
        install::install_guard(&node.local, settings)?;
    }
    Ok(())
}

async fn wait_for(
    what: &str,
    deadline: Duration,
    task: &str,
    reporter: &dyn Reporter,
    reached: impl Fn() -> std::result::Result<(), String>,
) -> Result<()> {
    wait::until(
        what,
        deadline,
        INTERVAL,
        |what| reporter.waiting(task, what),
        async || {
            Ok(match reached() {
                Ok(()) => Poll::Ready(()),
                Err(awaited) => Poll::Pending(awaited),
            })
        },
    )
    .await
}

#[cfg(test)]
#[path = "recover_tests.rs"]
mod tests;
