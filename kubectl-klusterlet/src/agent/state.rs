//! What the tasks of an agent tell each other, and what others may see of it.

use std::{
    sync::{
        Arc,
        atomic::{AtomicI64, AtomicU64, AtomicUsize, Ordering},
    },
    time::Instant,
};

use jiff::{SignedDuration, Timestamp};
use tokio::sync::{Notify, watch};

use crate::{
    certificate::Validity, connection::HubAccess, facts::SpokeFacts, registration::Stage, resources::ManagedCluster,
};

/// The ManagedCluster as it was seen last.
#[derive(Clone, Debug, Default, PartialEq)]
pub enum Seen {
    /// Not looked at yet, or not allowed to.
    #[default]
    Unknown,
    /// It is not there.
    Absent,
    /// It is there.
    Present(Arc<ManagedCluster>),
}

impl Seen {
    /// The object.
    #[must_use]
    pub fn cluster(&self) -> Option<&Arc<ManagedCluster>> {
        match self {
            Self::Present(cluster) => Some(cluster),
            _ => None,
        }
    }
}

/// What keeps the agent from getting on, of the kinds that somebody has to act upon.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum TroubleKind {
    /// The hub's administrator denied the certificate request.
    RequestDenied,
    /// The hub's administrator does not accept the cluster any more.
    ClusterDenied,
    /// The ManagedCluster was deleted on the hub.
    ClusterDeleted,
    /// Another spoke has this name on the hub.
    NameTaken,
    /// The hub cannot be reached.
    HubUnreachable,
    /// The hub does not know the credentials (401).
    Unauthorized,
    /// The hub does not allow it (403).
    Forbidden,
    /// The bootstrap kubeconfig cannot be used.
    BadBootstrap,
    /// The spoke cannot be reached or does not allow it.
    Spoke,
    /// Another agent holds this spoke.
    OtherAgent,
    /// Something else.
    Other,
}

/// A trouble, in words.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Trouble {
    /// Its kind.
    pub kind: TroubleKind,
    /// What happened and what to do.
    pub text: String,
}

/// The open certificate request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OpenRequest {
    /// Its name on the hub.
    pub name: String,
    /// Whether it was approved already.
    pub is_approved: bool,
}

/// What can be seen of an agent.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Snapshot {
    /// Whether the ManagedCluster is known to be there.
    pub registered: bool,
    /// The open request.
    pub request: Option<OpenRequest>,
    /// The life of the certificate in use.
    pub certificate: Option<Validity>,
    /// How far the hub says the cluster is.
    pub stage: Option<Stage>,
    /// What keeps it from getting on; credentials.
    pub trouble: Option<Trouble>,
    /// What keeps it from getting on; the ManagedCluster.
    pub cluster_trouble: Option<Trouble>,
}

/// Counters and gauges for `/metrics`.
#[derive(Debug, Default)]
pub struct Metrics {
    /// Renewals of the lease that worked.
    pub lease_renewals: AtomicU64,
    /// Renewals that did not.
    pub lease_failures: AtomicU64,
    /// Patches of the status.
    pub status_patches: AtomicU64,
    /// Certificate requests that were created.
    pub requests_created: AtomicU64,
    /// Certificates that were stored.
    pub certificates_issued: AtomicU64,
    /// How far the hub's clock is ahead, in milliseconds.
    pub skew_milliseconds: AtomicI64,
}

/// Everything shared by the tasks.
#[derive(Debug)]
pub struct State {
    /// The hub with our certificate; `None` while there is none that can be used.
    pub hub: watch::Sender<Option<Arc<HubAccess>>>,
    /// The hub with the bootstrap credentials.
    pub bootstrap: watch::Sender<Option<Arc<HubAccess>>>,
    /// Our ManagedCluster.
    pub cluster: watch::Sender<Seen>,
    /// About the spoke.
    pub facts: watch::Sender<SpokeFacts>,
    /// The last rotation, as the hub is to be told.
    pub rotation: watch::Sender<Option<Result<String, String>>>,
    /// When the lease was renewed last.
    pub renewed: watch::Sender<Option<Instant>>,
    /// A fingerprint of a certificate that the hub said 401 to.
    pub rejected: watch::Sender<Option<[u8; 32]>>,
    /// A fingerprint of a certificate that the hub knew.
    pub known: watch::Sender<Option<[u8; 32]>>,
    /// For `join`, `/healthz` and the like.
    pub snapshot: watch::Sender<Snapshot>,
    /// Whether this process holds the spoke's lease.
    pub is_leader: watch::Sender<bool>,
    /// Tells the task of the credentials to look again.
    pub look_again: Notify,
    /// Tells the watch of the ManagedCluster to begin anew.
    pub reconnect: Notify,
    /// How many namespaces the hub wanted at the last look.
    pub managed_namespaces: AtomicUsize,
    /// Counters.
    pub metrics: Metrics,
}

impl Default for State {
    fn default() -> Self {
        Self {
            hub: watch::Sender::new(None),
            bootstrap: watch::Sender::new(None),
            cluster: watch::Sender::default(),
            facts: watch::Sender::default(),
            rotation: watch::Sender::new(None),
            renewed: watch::Sender::new(None),
            rejected: watch::Sender::new(None),
            known: watch::Sender::new(None),
            snapshot: watch::Sender::default(),
            is_leader: watch::Sender::new(false),
            look_again: Notify::new(),
            reconnect: Notify::new(),
            managed_namespaces: AtomicUsize::new(usize::MAX),
            metrics: Metrics::default(),
        }
    }
}

/// Sets a value and tells others only if it differs.
pub fn set<T: PartialEq>(sender: &watch::Sender<T>, value: T) -> bool {
    sender.send_if_modified(|old| {
        let changed = *old != value;
        if changed {
            *old = value;
        }
        changed
    })
}

impl State {
    /// Changes the snapshot; others are told only if it differs afterwards.
    pub fn update(&self, change: impl FnOnce(&mut Snapshot)) -> bool {
        self.snapshot.send_if_modified(|snapshot| {
            let before = snapshot.clone();
            change(snapshot);
            *snapshot != before
        })
    }

    /// Remembers how far the hub's clock is ahead.
    pub fn set_skew(&self, skew: SignedDuration) {
        let milliseconds = i64::try_from(skew.as_millis()).unwrap_or(i64::MAX);
        self.metrics.skew_milliseconds.store(milliseconds, Ordering::Relaxed);
    }

    /// How far the hub's clock is ahead, as measured last.
    #[must_use]
    pub fn skew(&self) -> SignedDuration {
        SignedDuration::from_millis(self.metrics.skew_milliseconds.load(Ordering::Relaxed))
    }

    /// The time at the hub. Certificates are judged by it: a clock that jumps here expires nothing.
    #[must_use]
    pub fn hub_now(&self) -> Timestamp {
        let now = Timestamp::now();
        now.checked_add(self.skew()).unwrap_or(now)
    }
}
