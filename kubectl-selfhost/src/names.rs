//! Every name that is shared between the CLI, the DaemonSets and what runs on nodes.
//!
//! Changing one of them breaks clusters that are converted already: add a new name and read both instead.

use std::fmt;

/// Namespace of the control plane.
pub const NAMESPACE: &str = "kube-system";
/// Prefix of our node labels and node annotations.
///
/// Admission (NodeRestriction) lets no kubelet set a *label* under a name that ends in
/// `node-restriction.kubernetes.io`, so that a node cannot invite control-plane Pods onto itself.
pub const NODE_PREFIX: &str = "selfhost.node-restriction.kubernetes.io";
/// Field manager of our server-side applies, and the value of `app.kubernetes.io/managed-by` on our objects.
pub const FIELD_MANAGER: &str = "kubectl-selfhost";
/// Environment variable that tells the processes of one component apart; see [`Role`].
pub const ROLE_ENV: &str = "KUBECTL_SELFHOST_ROLE";
/// Directory on the node with our executable, one directory a build (named by the start of its SHA-256).
pub const BIN_DIR: &str = "/opt/selfhost/bin";
/// Directory on the node with originals, fallbacks, verdicts and the guard's state.
pub const STATE_DIR: &str = "/var/lib/selfhost";
/// Where our Pods see [`BIN_DIR`]`/<build>`.
pub const BIN_MOUNT: &str = "/selfhost/bin";
/// Where our init containers see their component's directory `run` under [`STATE_DIR`]; no Pod can write it.
pub const RUN_MOUNT: &str = "/selfhost/run";
/// Where an apiserver's Pods on one node leave notes for each other: directory `notes` under [`STATE_DIR`].
pub const NOTES_MOUNT: &str = "/selfhost/notes";
/// File name of the executable inside [`BIN_DIR`]`/<build>`.
pub const BIN_NAME: &str = "kubectl-selfhost";
/// Name of the static Pod that guards a node, and of its file in the manifest directory (`.yaml` added).
pub const GUARD: &str = "selfhost-guard";
/// Name of the container that waits for the guard's verdict.
pub const AWAIT_CONTAINER: &str = "selfhost-await-port";
/// Names of the volumes that we add to a component's Pod.
pub const BIN_VOLUME: &str = "selfhost-bin";
/// See [`BIN_VOLUME`].
pub const NOTES_VOLUME: &str = "selfhost-notes";
/// See [`BIN_VOLUME`].
pub const RUN_VOLUME: &str = "selfhost-run";

/// The three control-plane components that are converted. etcd and everything else stay as they are.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Component {
    /// kube-scheduler: first to be converted, as nothing depends on its being reachable.
    KubeScheduler,
    /// kube-controller-manager: second.
    KubeControllerManager,
    /// kube-apiserver: last.
    KubeApiserver,
}

impl Component {
    /// All components in the order of a conversion.
    pub const ALL: [Self; 3] = [Self::KubeScheduler, Self::KubeControllerManager, Self::KubeApiserver];

    /// The name that kubeadm gives to Pod, container and label `component`.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::KubeScheduler => "kube-scheduler",
            Self::KubeControllerManager => "kube-controller-manager",
            Self::KubeApiserver => "kube-apiserver",
        }
    }

    /// The component of that name.
    #[must_use]
    pub fn from_name(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|component| component.name() == name)
    }

    /// The secure port where no `--secure-port` is given.
    #[must_use]
    pub fn default_port(self) -> u16 {
        match self {
            Self::KubeScheduler => 10259,
            Self::KubeControllerManager => 10257,
            Self::KubeApiserver => 6443,
        }
    }

    /// Name of the Lease in kube-system that says who leads, for components that elect a leader.
    #[must_use]
    pub fn lease(self) -> Option<&'static str> {
        match self {
            Self::KubeApiserver => None,
            _ => Some(self.name()),
        }
    }

    /// Name of the DaemonSet, and value of its label `k8s-app`.
    #[must_use]
    pub fn daemon_set_name(self) -> String {
        format!("self-hosted-{}", self.name())
    }

    /// Node label that lets the DaemonSet place its Pod; see [`NODE_PREFIX`].
    #[must_use]
    pub fn gate_label(self) -> String {
        format!("{NODE_PREFIX}/{}", self.name())
    }

    /// Node annotation by which the CLI states what the node should be; its value is a [`crate::node::state::Desired`].
    #[must_use]
    pub fn desired_annotation(self) -> String {
        format!("{NODE_PREFIX}/{}.desired", self.name())
    }

    /// Node annotation by which the guard reports; its value is a [`crate::node::state::Report`] as JSON.
    #[must_use]
    pub fn report_annotation(self) -> String {
        format!("{NODE_PREFIX}/{}.report", self.name())
    }
}

impl fmt::Display for Component {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// What a process of a component is there for, told by [`ROLE_ENV`] in its environment.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Role {
    /// Started from the DaemonSet's template.
    SelfHosted,
    /// Started from a manifest that we wrote: the original with port sharing on.
    Fallback,
    /// Anything else: the original static Pod.
    Static,
}

impl Role {
    /// The value of [`ROLE_ENV`]; a process without it is [`Role::Static`].
    #[must_use]
    pub fn env_value(self) -> &'static str {
        match self {
            Self::SelfHosted => "self-hosted",
            Self::Fallback => "fallback",
            Self::Static => "static",
        }
    }
}
