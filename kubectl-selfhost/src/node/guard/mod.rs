//! The guard: a static Pod that does on its node what the CLI asks for, and keeps the control plane there alive.
//!
//! One thread looks at the node and acts ([`machine`] decides); another talks to the API with the kubelet's credentials,
//! whenever there is an API. Neither waits for the other.

pub mod api;
pub mod events;
pub mod files;
pub mod health;
pub mod keep;
pub mod last_good;
pub mod machine;
pub mod scan;
pub mod soak;
pub mod turns;
pub mod unhealthy;
pub mod volume_files;
pub mod wish;
pub mod world;

use crate::names::Component;
use crate::node::state::{Desired, Report, State};
use events::{Notice, Queue};
use last_good::Pods;
use machine::{Action, next_action};
use scan::Scanner;
use std::collections::BTreeMap;
use std::io::{self, Write};
use std::path::PathBuf;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};
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
    /// How long a template runs well before it becomes the fallback.
    pub last_known_good_after: Duration,
}

/// What both threads share.
#[derive(Debug, Default)]
pub struct Exchange {
    inner: Mutex<Inner>,
    changed: Condvar,
    reported: tokio::sync::Notify,
}

#[derive(Debug, Default)]
struct Inner {
    /// Absent until the API has answered once.
    desired: Option<BTreeMap<Component, Desired>>,
    reports: BTreeMap<Component, Report>,
    /// Absent until the API has shown them once.
    pods: Option<Pods>,
    notices: Queue,
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

    /// The API side shows the DaemonSets' Pods of this node.
    pub fn show(&self, pods: Pods) {
        self.lock().pods = Some(pods);
    }

    /// The next notice for the API, if one may be sent now.
    #[must_use]
    pub fn notice(&self) -> Option<Notice> {
        self.lock().notices.pop(Instant::now())
    }

    /// A notice that could not be sent: it is the next one again.
    pub fn unsent(&self, notice: Notice) {
        self.lock().notices.again(notice);
    }

    /// What the node side last reported.
    #[must_use]
    pub fn reports(&self) -> BTreeMap<Component, Report> {
        self.lock().reports.clone()
    }

    /// Waits until the node side has reported something new.
    pub async fn reported(&self) {
        self.reported.notified().await;
    }

    /// The node side reports: what differs is told, and what is worth an Event.
    fn report(&self, reports: BTreeMap<Component, Report>) {
        let mut inner = self.lock();
        let mut new = false;
        for (component, report) in reports {
            let before = inner.reports.get(&component);
            new |= before != Some(&report);
            for notice in events::between(component, before, &report) {
                inner.notices.push(notice);
            }
            inner.reports.insert(component, report);
        }
        if new {
            self.reported.notify_one();
        }
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
    let mut node = NodeSide::new(&options, exchange.clone());
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
    options: GuardOptions,
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
    fn new(options: &GuardOptions, exchange: Arc<Exchange>) -> Self {
        Self {
            options: options.clone(),
            exchange,
            scanner: Scanner::new(&options.manifest_directory),
            worlds: BTreeMap::new(),
            looked: false,
            failed: BTreeMap::new(),
            said: BTreeMap::new(),
        }
    }

    /// Opens what is not open yet. A state directory that cannot be read or written may be so again: it is tried each time.
    fn open(&mut self) -> BTreeMap<Component, String> {
        let mut failed = BTreeMap::new();
        for component in Component::ALL {
            if self.worlds.contains_key(&component) {
                continue;
            }
            let (state, manifests) = (&self.options.state_directory, &self.options.manifest_directory);
            let needed = self.options.last_known_good_after;
            match ComponentWorld::open(component, state, manifests, grace(component), needed) {
                Ok(world) => {
                    self.worlds.insert(component, world);
                }
                Err(error) => {
                    failed.insert(component, error.to_string());
                }
            }
        }
        failed
    }

    /// One look and at most one action a component. Returns how long to pause.
    fn step(&mut self) -> Duration {
        let mut broken = self.open();
        let look = match Look::now() {
            Ok(look) => look,
            Err(error) => {
                say(&format!("cannot look at the node: {error}"));
                return IDLE;
            }
        };
        let manifests = match self.scanner.scan() {
            Ok(manifests) => manifests,
            Err(error) => {
                let error = format!("{} cannot be read: {error}", self.options.manifest_directory.display());
                for component in Component::ALL {
                    broken.insert(component, error.clone());
                }
                self.tell_broken(&look, &broken);
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
        let (desired, pods) = {
            let inner = self.exchange.lock();
            (inner.desired.clone(), inner.pods.clone())
        };
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
                let considered = if decision.settled && decision.state == State::SelfHosted {
                    world.consider(&look, pods.as_ref())
                } else {
                    Ok(None)
                };
                Ok::<_, io::Error>((decision, observed.fallback, considered))
            })();
            let previous = self.failed.remove(component);
            match outcome {
                Ok((decision, fallback_in, considered)) => {
                    let considered = match considered {
                        Ok(Some(text)) => {
                            say(&format!("{component}: {text}"));
                            None
                        }
                        Ok(None) => None,
                        // what serves is as it should be, and the earlier fallback is there
                        Err(error) => Some(format!("the last template that ran well cannot be kept: {error}")),
                    };
                    let busy = decision.action != Action::Nothing;
                    pause = pause.min(if busy {
                        BUSY
                    } else if decision.settled {
                        IDLE
                    } else {
                        WAITING
                    });
                    let error = decision
                        .error
                        .map(str::to_owned)
                        .or(considered)
                        .or_else(|| world.error());
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
                            fallback: world.fallback(),
                            fallback_in,
                            guard: env!("CARGO_PKG_VERSION").to_owned(),
                        },
                    );
                }
                Err(error) => {
                    self.failed.extend(previous.map(|previous| (*component, previous)));
                    broken.insert(*component, error.to_string());
                }
            }
        }
        self.tell(reports);
        self.tell_broken(&look, &broken);
        pause
    }

    fn tell(&self, reports: BTreeMap<Component, Report>) {
        self.exchange.report(reports);
    }

    /// Reports what could not be looked at or done: what else was reported stays, with what serves now.
    fn tell_broken(&mut self, look: &Look, broken: &BTreeMap<Component, String>) {
        let mut reports = BTreeMap::new();
        for (component, error) in broken {
            if self.failed.get(component) != Some(error) {
                say(&format!("{component}: {error}"));
                self.failed.insert(*component, error.clone());
            }
            let known = self.exchange.lock().reports.get(component).cloned();
            let known = known.unwrap_or_else(|| Report {
                state: look.state(*component),
                desired: Desired::Static,
                settled: false,
                given_up: None,
                releasable: false,
                step: String::new(),
                error: None,
                foreign_manifest: None,
                original: None,
                fallback: None,
                fallback_in: false,
                guard: env!("CARGO_PKG_VERSION").to_owned(),
            });
            let report = Report {
                settled: false,
                error: Some(error.clone()),
                ..known
            };
            reports.insert(*component, report);
        }
        if !reports.is_empty() {
            self.tell(reports);
        }
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
