//! The guard: a static Pod that does on its node what the CLI asks for, and keeps the control plane there alive.
//!
//! One thread looks at the node and acts ([`machine`] decides); another talks to the API with the kubelet's credentials,
//! whenever there is an API. Neither waits for the other.

pub mod api;
pub mod files;
pub mod health;
pub mod machine;
pub mod scan;
pub mod world;

use crate::names::Component;
use crate::node::state::{Desired, Report};
use machine::{Action, next_action};
use scan::Scanner;
use std::collections::BTreeMap;
use std::io::{self, Write};
use std::path::PathBuf;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use world::{ComponentWorld, Look};

/// What the guard is told by its manifest.
#[derive(Clone, Debug)]
pub struct GuardOptions {
    /// Name of the Node.
    pub node_name: String,
    /// The kubelet's manifest directory.
    pub manifest_directory: PathBuf,
    /// The kubelet's kubeconfig.
    pub kubeconfig: PathBuf,
    /// Our directory on the node.
    pub state_directory: PathBuf,
    /// The build of this executable, which the CLI looks for in the report.
    pub build: String,
}

/// What both threads share.
#[derive(Debug, Default)]
pub struct Exchange {
    inner: Mutex<Inner>,
    changed: Condvar,
}

#[derive(Debug, Default)]
struct Inner {
    /// Absent until the API has answered once.
    desired: Option<BTreeMap<Component, Desired>>,
    reports: BTreeMap<Component, Report>,
    settled: bool,
}

impl Exchange {
    fn lock(&self) -> MutexGuard<'_, Inner> {
        // a thread that panicked while it held the lock left plain values behind: they are still right
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The API side states what components should be. One that is absent stays as the disk says.
    pub fn desire(&self, desired: BTreeMap<Component, Desired>) {
        let mut inner = self.lock();
        if inner.desired.as_ref() != Some(&desired) {
            inner.desired = Some(desired);
            self.changed.notify_all();
        }
    }

    /// What the node side last reported, and whether all of it is settled.
    #[must_use]
    pub fn reports(&self) -> (BTreeMap<Component, Report>, bool) {
        let inner = self.lock();
        (inner.reports.clone(), inner.settled)
    }
}

/// Silence of a component before its fallback goes in. The apiserver's is short, as nothing can be started without it; the
/// others' is longer, as the kubelet starts their Pods by itself once there is an apiserver.
#[must_use]
pub fn grace(component: Component) -> Duration {
    match component {
        Component::KubeApiserver => Duration::from_secs(8),
        _ => Duration::from_secs(45),
    }
}

/// Runs the guard until the process is told to end.
///
/// # Errors
/// When its files on the node cannot be read; the kubelet starts it again.
pub async fn run(options: GuardOptions, stop: impl Future<Output = ()>) -> io::Result<()> {
    let trial = crate::node::trial::run();
    let exchange = Arc::new(Exchange::default());
    let mut node = NodeSide::open(&options, exchange.clone())?;
    std::thread::Builder::new().name("node".into()).spawn(move || {
        loop {
            let pause = node.step();
            node.pause(pause);
        }
    })?;
    tokio::select! {
        () = api::run(&options, &exchange, &trial) => Ok(()),
        () = stop => Ok(()),
    }
}

struct NodeSide {
    exchange: Arc<Exchange>,
    scanner: Scanner,
    worlds: BTreeMap<Component, ComponentWorld>,
    looked: bool,
    failed: BTreeMap<Component, String>,
    said: BTreeMap<Component, String>,
}

const BUSY: Duration = Duration::from_millis(100);
const WAITING: Duration = Duration::from_millis(200);
const IDLE: Duration = Duration::from_secs(2);

impl NodeSide {
    fn open(options: &GuardOptions, exchange: Arc<Exchange>) -> io::Result<Self> {
        let mut worlds = BTreeMap::new();
        for component in Component::ALL {
            let (state, manifests) = (&options.state_directory, &options.manifest_directory);
            worlds.insert(
                component,
                ComponentWorld::open(component, state, manifests, grace(component))?,
            );
        }
        let scanner = Scanner::new(&options.manifest_directory);
        Ok(Self {
            exchange,
            scanner,
            worlds,
            looked: false,
            failed: BTreeMap::new(),
            said: BTreeMap::new(),
        })
    }

    /// One look and at most one action a component. Returns how long to pause.
    fn step(&mut self) -> Duration {
        let looked = Look::now().and_then(|look| Ok((look, self.scanner.scan()?)));
        let (look, manifests) = match looked {
            Ok(looked) => looked,
            Err(error) => {
                say(&format!("cannot look at the node: {error}"));
                return IDLE;
            }
        };
        if !self.looked {
            self.looked = true;
            if look.found.components.is_empty() {
                // the node has just started, and without an apiserver the kubelet starts none of the DaemonSets' Pods
                if let Some(apiserver) = self.worlds.get_mut(&Component::KubeApiserver) {
                    apiserver.set_grace(Duration::ZERO);
                }
            }
        }
        let desired = self.exchange.lock().desired.clone();
        let mut pause = IDLE;
        let mut reports = BTreeMap::new();
        for (component, world) in &mut self.worlds {
            let outcome = (|| {
                if let Some(desired) = &desired {
                    world.desire(desired.get(component).copied())?;
                }
                let observed = world.observe(&look, &manifests)?;
                let decision = next_action(&observed);
                if decision.action != Action::Nothing {
                    say(&format!("{component}: {}", decision.step));
                    world.perform(decision.action, &look)?;
                    if decision.action == Action::PutFallback {
                        world.set_grace(grace(*component));
                    }
                    if decision.action == Action::Abort {
                        world.fail(Some(format!(
                            "the hand-over was given up: {}; the static Pod stays",
                            decision.step
                        )))?;
                    }
                }
                Ok::<_, io::Error>(decision)
            })();
            let previous = self.failed.remove(component);
            match outcome {
                Ok(decision) => {
                    let busy = decision.action != Action::Nothing;
                    pause = pause.min(if busy {
                        BUSY
                    } else if decision.settled {
                        IDLE
                    } else {
                        WAITING
                    });
                    let error = decision.error.map(str::to_owned).or_else(|| world.memory.error.clone());
                    if self.said.get(component).is_none_or(|said| said != decision.step) && !busy {
                        let text = if decision.step.is_empty() {
                            "settled"
                        } else {
                            decision.step
                        };
                        say(&format!("{component}: {}: {text}", decision.state));
                        self.said.insert(*component, decision.step.to_owned());
                    }
                    reports.insert(
                        *component,
                        Report {
                            state: decision.state,
                            desired: world.memory.desired,
                            settled: decision.settled,
                            given_up: world.memory.given_up,
                            releasable: decision.releasable,
                            step: decision.step.to_owned(),
                            error,
                            foreign_manifest: world.foreign().cloned(),
                            original: world.original_sha256(),
                            guard: env!("CARGO_PKG_VERSION").to_owned(),
                        },
                    );
                }
                Err(error) => {
                    let error = error.to_string();
                    if previous.as_deref() != Some(&error) {
                        say(&format!("{component}: {error}"));
                    }
                    if let Some(report) = self.exchange.lock().reports.get(component) {
                        let report = Report {
                            settled: false,
                            error: Some(error.clone()),
                            ..report.clone()
                        };
                        reports.insert(*component, report);
                    }
                    self.failed.insert(*component, error);
                }
            }
        }
        let mut inner = self.exchange.lock();
        inner.settled = reports.values().all(|report| report.settled);
        inner.reports.extend(reports);
        pause
    }

    /// Sleeps, or wakes up early when the API side states something new.
    fn pause(&self, pause: Duration) {
        let inner = self.exchange.lock();
        let before = inner.desired.clone();
        let _ = self
            .exchange
            .changed
            .wait_timeout_while(inner, pause, |inner| inner.desired == before);
    }
}

/// One line of the guard's log. That nobody reads it is no reason to end.
fn say(text: &str) {
    let _ = writeln!(io::stderr(), "{text}");
}
