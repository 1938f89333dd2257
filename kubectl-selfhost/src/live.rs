//! What `plan`, `convert`, `status` and `revert` have in common on a node: who we are, what is there, what it means.

use crate::cluster::ControlPlane;
use crate::local_node::{self, LocalNode};
use crate::manifest::{ManifestFile, read_directory, sha256_hex};
use crate::names::Component;
use crate::node::await_port::describe;
use crate::node::state::{ComponentFiles, Desired, Original, State};
use crate::observe::{NodeFacts, Observation, node_facts, observe};
use crate::patience;
use crate::plan::{ComponentState, Snapshot};
use k8s_openapi::api::authentication::v1::SelfSubjectReview;
use k8s_openapi::api::core::v1::Node;
use kube::api::{Api, PostParams};
use kube::config::{KubeConfigOptions, Kubeconfig};
use shared::kube_client::{Cluster, Defaults, KubeFlags};
use shared::{Error, Result};
use std::path::Path;
use std::time::Duration;

/// The kubeconfig that is used on a node when nothing else is set.
pub const ADMIN_KUBECONFIG: &str = "/etc/kubernetes/admin.conf";

/// Connects as the flags say.
///
/// # Errors
/// As [`KubeFlags::connect`].
pub async fn connect(flags: &KubeFlags) -> Result<ControlPlane> {
    let admin = Path::new(ADMIN_KUBECONFIG);
    let defaults = Defaults {
        fallback_kubeconfig: admin.exists().then(|| admin.to_owned()),
        user_agent: format!("kubectl-selfhost/{}", env!("CARGO_PKG_VERSION")),
    };
    Ok(ControlPlane::new(flags.connect(&defaults).await?))
}

/// This node and its cluster.
#[derive(Debug)]
pub struct Live {
    /// The API.
    pub control_plane: ControlPlane,
    /// Where things lie on the node.
    pub local: LocalNode,
    /// Name of the Node.
    pub node_name: String,
    /// UID of the cluster.
    pub cluster_uid: String,
}

impl Live {
    /// Finds out which Node this machine is, and that the API we talk to is its own.
    ///
    /// # Errors
    /// Not root, no kubelet, an API that does not answer, or one of another cluster.
    pub async fn find(flags: &KubeFlags) -> Result<Self> {
        let local = local_node::find()?;
        let control_plane = connect(flags).await?;
        let cluster_uid = answer(&control_plane).await?;
        let (node_name, node_uid) = if hand_over_may_be_on_its_way() {
            patience::call("the API to say which Node this is", async || {
                kubelet_identity(&local).await
            })
            .await?
        } else {
            kubelet_identity(&local).await?
        };
        match control_plane.node(&node_name).await {
            Ok(node) if node.metadata.uid.as_deref() == Some(&node_uid) => {}
            Err(error) if !error.is_not_found() => return Err(error),
            _ => {
                let server = &control_plane.cluster.server;
                return Err(Error::refused(format!("this node does not belong to the cluster at {server}"))
                    .because(format!("the kubelet of this machine is Node {node_name} with the UID {node_uid}, which that cluster does not have"))
                    .hint("choose the kubeconfig or context of this node's own cluster, usually --kubeconfig /etc/kubernetes/admin.conf"));
            }
        }
        Ok(Self {
            control_plane,
            local,
            node_name,
            cluster_uid,
        })
    }

    /// Looks at the node.
    ///
    /// # Errors
    /// As the API says.
    pub async fn observe(&self) -> Result<Observation> {
        observe(&self.control_plane, &self.node_name).await
    }

    /// Looks at the Node object alone.
    ///
    /// # Errors
    /// As the API says.
    pub async fn observe_node(&self) -> Result<NodeFacts> {
        Ok(node_facts(&self.control_plane.node(&self.node_name).await?))
    }

    /// The manifests of this node, with what the cluster says of the components.
    ///
    /// # Errors
    /// The manifest directory cannot be read.
    pub fn snapshot(&self, observation: &Observation) -> Result<Snapshot> {
        let directory = &self.local.manifest_directory;
        let entries = read_directory(directory).map_err(|error| {
            Error::new(format!("the manifest directory {} cannot be read", directory.display()))
                .because(describe(&error))
        })?;
        let mut snapshot = Snapshot::of_manifests(directory.display().to_string(), entries);
        for component in Component::ALL {
            let has_manifest = snapshot.inventory.originals.contains_key(&component);
            snapshot
                .states
                .insert(component, component_state(observation, component, has_manifest));
            if !has_manifest && let Some(saved) = saved_original(component) {
                snapshot.saved.insert(component, saved);
            }
            if observation.daemon_sets.contains_key(&component) {
                snapshot.existing.insert(component);
            }
        }
        Ok(snapshot)
    }
}

/// The first answer of the API. On a node where a hand-over may be on its way it is waited for: an apiserver that is being put
/// back answers nobody for a moment, and then refuses ordinary users for another.
async fn answer(control_plane: &ControlPlane) -> Result<String> {
    let first = match control_plane.cluster_uid().await {
        Err(error) if error.is_retryable() && hand_over_may_be_on_its_way() => error,
        other => return other,
    };
    let what = "the API of this node, whose apiserver may be on its way back";
    patience::call(what, async || control_plane.cluster_uid().await)
        .await
        .map_err(|error| error.because(format!("the first answer was: {first}")))
}

fn hand_over_may_be_on_its_way() -> bool {
    ComponentFiles::new(Component::KubeApiserver).memory().exists()
}

/// The original of a component as the guard saved it on this node; `None` when there is none that is whole.
fn saved_original(component: Component) -> Option<ManifestFile> {
    let files = ComponentFiles::new(component);
    let metadata: Original = serde_json::from_slice(&std::fs::read(files.original_metadata()).ok()?).ok()?;
    let bytes = std::fs::read(files.original()).ok()?;
    let sha256 = sha256_hex(&bytes);
    if sha256 != metadata.sha256 {
        return None;
    }
    Some(ManifestFile {
        pod: crate::manifest::parse(&bytes).ok()?,
        path: files.original(),
        file_name: metadata.file_name,
        mode: metadata.mode,
        uid: metadata.uid,
        gid: metadata.gid,
        symlink: false,
        bytes,
        sha256,
    })
}

/// How a component runs: the guard knows best; without one, the Pods tell.
#[must_use]
pub fn component_state(observation: &Observation, component: Component, has_manifest: bool) -> ComponentState {
    let guarded = observation.guard_pod.as_ref().is_some_and(|pod| pod.ready);
    if guarded && let Some(report) = observation.node.reports.get(&component) {
        return match report.state {
            State::Static => ComponentState::Static,
            State::SelfHosted => ComponentState::SelfHosted,
            State::Both => ComponentState::Both,
            State::Fallback => ComponentState::Fallback,
            State::None => ComponentState::None,
        };
    }
    let pods = observation.pods.get(&component).map(Vec::as_slice).unwrap_or_default();
    let fallback_name = format!(
        "{}-{}",
        crate::fallback::fallback_name(component),
        observation.node.name
    );
    let fallback = pods.iter().any(|pod| pod.mirror && pod.name == fallback_name);
    let static_pod = has_manifest || pods.iter().any(|pod| pod.mirror && pod.name != fallback_name);
    let self_hosted = pods.iter().any(|pod| !pod.mirror && !pod.terminating && pod.ready);
    match (static_pod, self_hosted, fallback) {
        (true, false, false) => ComponentState::Static,
        (false, true, false) => ComponentState::SelfHosted,
        (false, false, true) => ComponentState::Fallback,
        (false, false, false) => ComponentState::None,
        _ => ComponentState::Both,
    }
}

/// Whether a component is converted, with nothing left to do.
#[must_use]
pub fn is_converted(observation: &Observation, component: Component) -> bool {
    let node = &observation.node;
    node.gated.contains(&component)
        && observation
            .daemon_sets
            .get(&component)
            .is_some_and(|daemon_set| daemon_set.ours)
        && node
            .desired
            .get(&component)
            .is_some_and(|desired| desired.is_self_hosted())
        && node.reports.get(&component).is_some_and(|report| {
            report.settled && report.state == State::SelfHosted && report.foreign_manifest.is_none()
        })
        && observation.guard_pod.as_ref().is_some_and(|pod| pod.ready)
}

/// Whether nothing of ours is left of a component on a node.
#[must_use]
pub fn is_untouched(observation: &Observation, component: Component) -> bool {
    let node = &observation.node;
    !node.gated.contains(&component)
        && node
            .desired
            .get(&component)
            .is_none_or(|desired| *desired == Desired::Static)
        && node
            .reports
            .get(&component)
            .is_none_or(|report| report.settled && report.state == State::Static)
}

/// Name and UID of this machine's Node, asked with the kubelet's own credentials.
async fn kubelet_identity(local: &LocalNode) -> Result<(String, String)> {
    let path = &local.kubelet_kubeconfig;
    let what = || {
        format!(
            "this machine's Node cannot be found with the kubelet's credentials in {}",
            path.display()
        )
    };
    let file = Kubeconfig::read_from(path).map_err(|error| Error::new(what()).because(describe(&error)))?;
    let mut config = kube::Config::from_custom_kubeconfig(file, &KubeConfigOptions::default())
        .await
        .map_err(|error| Error::new(what()).because(describe(&error)))?;
    config.default_retry = false;
    config.proxy_url = None;
    let server = config.cluster_url.to_string();
    let client =
        kube::Client::try_from(config).map_err(|error| shared::kube_client::explain(&error).context(what()))?;
    let kubelet = Cluster::from_client(client, server, Duration::from_secs(10));
    let reviews: Api<SelfSubjectReview> = Api::all(kubelet.client.clone());
    let review = kubelet
        .call(
            "ask who the kubelet is",
            reviews.create(&PostParams::default(), &SelfSubjectReview::default()),
        )
        .await
        .map_err(|error| error.context(what()))?;
    let user = review
        .status
        .and_then(|status| status.user_info)
        .and_then(|user| user.username)
        .unwrap_or_default();
    let name = user
        .strip_prefix("system:node:")
        .ok_or_else(|| Error::new(what()).because(format!("they belong to {user:?}, which is no Node")))?
        .to_owned();
    let nodes: Api<Node> = Api::all(kubelet.client.clone());
    let node = kubelet
        .call(&format!("read Node {name}"), nodes.get(&name))
        .await
        .map_err(|error| error.context(what()))?;
    let uid = node
        .metadata
        .uid
        .ok_or_else(|| Error::new(what()).because("its Node has no UID"))?;
    Ok((name, uid))
}
