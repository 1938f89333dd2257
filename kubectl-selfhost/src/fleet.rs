//! The cluster as the command finds it: its control-plane nodes, and which of them this machine is.

use crate::cluster::ControlPlane;
use crate::install::NodeBinary;
use crate::local_node::{self, LocalNode};
use crate::names::Component;
use crate::node::await_port::describe;
use crate::node::state::ComponentFiles;
use crate::observe::{Observation, observe_cluster};
use crate::patience;
use crate::target::{Place, Target};
use k8s_openapi::api::authentication::v1::SelfSubjectReview;
use k8s_openapi::api::core::v1::Node;
use kube::api::{Api, PostParams};
use kube::config::{KubeConfigOptions, Kubeconfig};
use shared::kube_client::{Cluster, Defaults, KubeFlags};
use shared::{Error, Result};
use std::path::{Path, PathBuf};
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

/// How nodes are reached, and which.
#[derive(Clone, Debug, Default)]
pub struct Reach {
    /// Names of the nodes that were asked for; all when empty.
    pub nodes: Vec<String>,
    /// Image of the helper Pod.
    pub helper_image: String,
    /// Our executable for the nodes, where it is not the usual one.
    pub node_binary: Option<PathBuf>,
}

/// The node that this machine is.
#[derive(Clone, Debug)]
pub struct Here {
    /// Name of the Node.
    pub node_name: String,
    /// Where things lie.
    pub local: LocalNode,
}

/// A cluster.
#[derive(Debug)]
pub struct Fleet {
    /// The API.
    pub control_plane: ControlPlane,
    /// How nodes are reached.
    pub reach: Reach,
    /// The node that this machine is, if it is one, and this process may change it.
    pub here: Option<Here>,
    /// All control-plane nodes, sorted by name.
    pub observations: Vec<Observation>,
}

impl Fleet {
    /// Finds the control-plane nodes, and out whether this machine is one of them.
    ///
    /// # Errors
    /// An API that does not answer, or, where this machine is a node and no nodes were named, one of another cluster;
    /// a name that no control-plane node has.
    pub async fn find(flags: &KubeFlags, reach: Reach) -> Result<Self> {
        let local = local_node::find()?;
        let control_plane = connect(flags).await?;
        answer(&control_plane, local.is_some()).await?;
        let mut fleet = Self {
            observations: observe_cluster(&control_plane).await?,
            control_plane,
            here: None,
            reach,
        };
        if let Some(local) = local {
            let (node_name, uid) = if hand_over_may_be_on_its_way() {
                patience::call("the API to say which Node this is", async || {
                    kubelet_identity(&local).await
                })
                .await?
            } else {
                kubelet_identity(&local).await?
            };
            let known = fleet.observations.iter().any(|seen| seen.node.uid == uid);
            if known {
                fleet.here = Some(Here { node_name, local });
            } else if fleet.reach.nodes.is_empty() {
                fleet.must_have(&node_name, &uid).await?;
            }
        }
        fleet.must_know_all_names()?;
        Ok(fleet)
    }

    /// This machine is a node: that the API belongs to another cluster is a mistake, unless nodes were named.
    async fn must_have(&self, node_name: &str, uid: &str) -> Result<()> {
        match self.control_plane.node(node_name).await {
            // a worker of this cluster
            Ok(node) if node.metadata.uid.as_deref() == Some(uid) => return Ok(()),
            Err(error) if !error.is_not_found() => return Err(error),
            _ => {}
        }
        let server = &self.control_plane.cluster.server;
        Err(Error::refused(format!("this node does not belong to the cluster at {server}"))
            .because(format!("the kubelet of this machine is Node {node_name} with the UID {uid}, which that cluster does not have"))
            .hint("choose the kubeconfig or context of this node's own cluster, usually --kubeconfig /etc/kubernetes/admin.conf")
            .hint("or, if another cluster is meant, name its nodes by --nodes"))
    }

    fn must_know_all_names(&self) -> Result<()> {
        let known: Vec<&str> = self.observations.iter().map(|seen| seen.node.name.as_str()).collect();
        let unknown: Vec<&str> = self
            .reach
            .nodes
            .iter()
            .map(String::as_str)
            .filter(|name| !known.contains(name))
            .collect();
        if unknown.is_empty() {
            return Ok(());
        }
        Err(Error::usage(format!(
            "--nodes: no control-plane node is named {}",
            unknown.join(", ")
        ))
        .because(format!(
            "the nodes with static Pods of the control plane are: {}",
            known.join(", ")
        )))
    }

    /// Looks at all nodes again.
    ///
    /// # Errors
    /// As the API says.
    pub async fn observe_again(&mut self) -> Result<()> {
        self.observations = observe_cluster(&self.control_plane).await?;
        Ok(())
    }

    /// The nodes that were asked for.
    #[must_use]
    pub fn selected(&self) -> Vec<&Observation> {
        let asked = |seen: &&Observation| self.reach.nodes.is_empty() || self.reach.nodes.contains(&seen.node.name);
        self.observations.iter().filter(asked).collect()
    }

    /// How to reach a node.
    ///
    /// # Errors
    /// There is no executable for it.
    pub fn target(&self, observation: &Observation) -> Result<Target> {
        let node = &observation.node;
        let here = self.here.as_ref().filter(|here| here.node_name == node.name);
        let place = match here {
            Some(here) => Place::Here(here.local.clone()),
            None => Place::Away {
                image: self.reach.helper_image.clone(),
            },
        };
        let binary = match (here, &self.reach.node_binary) {
            (Some(_), None) => NodeBinary::of_this_process()?,
            (_, given) => NodeBinary::for_node(&node.operating_system, &node.architecture, given.as_deref())
                .map_err(|error| error.context(format!("Node {} cannot be reached", node.name)))?,
        };
        Ok(Target {
            control_plane: self.control_plane.clone(),
            node_name: node.name.clone(),
            place,
            binary,
        })
    }
}

/// The first answer of the API. On a node where a hand-over may be on its way it is waited for: an apiserver that is being put
/// back answers nobody for a moment, and then refuses ordinary users for another.
async fn answer(control_plane: &ControlPlane, on_node: bool) -> Result<String> {
    let first = match control_plane.cluster_uid().await {
        Err(error) if error.is_retryable() && on_node && hand_over_may_be_on_its_way() => error,
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
