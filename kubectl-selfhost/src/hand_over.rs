//! One component of one node, from its static Pod to its DaemonSet's Pod: the CLI's side, step by step.
//!
//! Each step looks first and does only what is not done yet, so that a run that was killed at any instant is finished by
//! the next one. What happens on the node is the guard's work; this side states what is wanted and waits.

use crate::cluster::ControlPlane;
use crate::leadership;
use crate::names::Component;
use crate::node::state::{Desired, Report, State};
use crate::observe::{Observation, PodFacts, node_facts, pod_facts};
use crate::own_endpoints;
use crate::patience::{self, tolerate};
use serde_json::Value;
use shared::progress::Reporter;
use shared::wait::{self, Poll};
use shared::{Error, Result};
use std::time::Duration;
use tokio::sync::Notify;

/// How often the API is asked while something is waited for.
const INTERVAL: Duration = Duration::from_millis(250);
/// How long a change of the Node is waited for before it is looked again all the same.
const LOOK_AGAIN: Duration = Duration::from_secs(2);
/// Creation, scheduling, and the start of the init container. The image is on the node already.
const POD_DEADLINE: Duration = Duration::from_secs(90);
/// The guard's own deadline of 120 s, the pause, the old process's grace of 30 s, and some.
const HAND_OVER_DEADLINE: Duration = Duration::from_secs(200);
/// Steps that [`hand_over`] reports.
pub const STEPS: u64 = 4;

/// One hand-over.
#[derive(Clone, Debug)]
pub struct HandOver<'a> {
    /// The API.
    pub control_plane: &'a ControlPlane,
    /// The Node, as it was seen before anything was changed.
    pub observation: &'a Observation,
    /// Name of the task for the reporter.
    pub task: String,
    /// Which component.
    pub component: Component,
    /// Its DaemonSet as planned; absent when it exists and this run only carries on.
    pub daemon_set: Option<&'a Value>,
    /// The DaemonSet's name.
    pub daemon_set_name: String,
    /// A DaemonSet that an earlier run left is there, for another mode, manifest or executable, and none of its Pods serves.
    pub outdated: bool,
    /// With or without a gap.
    pub desired: Desired,
    /// The cluster has no other control-plane node.
    pub alone: bool,
    /// Told when a new apiserver has proved itself and the old one is going: the next node can be looked after.
    pub handed: &'a Notify,
    /// What goes on for a while after it.
    pub afterwards: &'a own_endpoints::Afterwards,
}

impl HandOver<'_> {
    fn node(&self) -> &str {
        &self.observation.node.name
    }

    fn waiting_for<'a>(&'a self, reporter: &'a dyn Reporter) -> impl FnMut(&str) + 'a {
        move |what| reporter.waiting(&self.task, what)
    }

    async fn report(&self) -> Result<Option<Report>> {
        Ok(self.versioned_report().await?.0)
    }

    /// With the version of the Node that it was read from.
    async fn versioned_report(&self) -> Result<(Option<Report>, Option<String>)> {
        let node = self.control_plane.node(self.node()).await?;
        let report = node_facts(&node).reports.get(&self.component).cloned();
        Ok((report, node.metadata.resource_version))
    }

    /// The Pod of the DaemonSet on this node; of two, the newer one.
    async fn pod(&self) -> Result<Option<PodFacts>> {
        let mut pods = self.control_plane.self_hosted_pods(self.component).await?;
        pods.retain(|pod| {
            pod.spec
                .as_ref()
                .and_then(|spec| spec.node_name.as_deref())
                .is_none_or(|name| name == self.node())
        });
        pods.sort_by_key(|pod| pod.metadata.creation_timestamp.clone());
        Ok(pods.last().map(|pod| pod_facts(pod, self.component.name())))
    }

    /// Makes the DaemonSet and gates the Node, until its Pod waits there. What serves does not notice.
    ///
    /// # Errors
    /// What went wrong, after it has been taken back.
    pub async fn stage(&self, reporter: &dyn Reporter) -> Result<()> {
        match self.until_it_waits(reporter).await {
            Ok(()) => Ok(()),
            Err(error) => Err(self.roll_back(error, reporter).await),
        }
    }

    /// Hands over to the Pod that waits.
    ///
    /// # Errors
    /// What went wrong, after the component has been put back to its static Pod where that was still possible.
    pub async fn run(&self, reporter: &dyn Reporter) -> Result<()> {
        match self.forward(reporter).await {
            Ok(()) => Ok(()),
            Err(error) => Err(self.roll_back(error, reporter).await),
        }
    }

    async fn until_it_waits(&self, reporter: &dyn Reporter) -> Result<()> {
        if self.outdated {
            self.take_away(reporter).await?;
        }
        if let Some(daemon_set) = self.daemon_set {
            reporter.waiting(&self.task, "the DaemonSet to be applied");
            self.create(daemon_set).await?;
        }
        self.patch(&[], &[(self.component.gate_label(), Some("enabled"))])
            .await?;
        reporter.step(
            &self.task,
            &format!("DaemonSet {} applied, Node gated", self.daemon_set_name),
        );
        self.await_pod(reporter).await?;
        reporter.step(&self.task, "its Pod waits on the node");
        Ok(())
    }

    async fn forward(&self, reporter: &dyn Reporter) -> Result<()> {
        let (control_plane, component) = (self.control_plane, self.component);
        // where its Pod serves already, the one who leads is to stay: nothing is handed over any more
        let leader = patience::call("the Lease to be read", async || match self.report().await? {
            Some(report) if report.state == State::SelfHosted => Ok(None),
            _ => leadership::holder(control_plane, component).await,
        })
        .await?
        .filter(|holder| self.alone || self.observation.is_holder(holder));
        let saved = match component {
            Component::KubeApiserver => {
                patience::call("the Service's addresses to be read", async || {
                    own_endpoints::save(control_plane, &self.observation.node.addresses).await
                })
                .await?
            }
            _ => None,
        };
        self.ask_guard().await?;
        own_endpoints::kept(control_plane, saved.as_ref(), self.alone, self.afterwards, async {
            self.await_guard(reporter).await?;
            self.release_lease(leader.as_deref(), reporter).await?;
            self.await_mirror(reporter).await
        })
        .await?;
        reporter.step(&self.task, "the old process is gone");
        Ok(())
    }

    /// Takes an outdated DaemonSet away, with its Pods, which only wait.
    async fn take_away(&self, reporter: &dyn Reporter) -> Result<()> {
        let component = self.component;
        self.patch(&[], &[(component.gate_label(), None)]).await?;
        let name = self.daemon_set_name.as_str();
        patience::call(&format!("DaemonSet {name} to be deleted"), async || {
            self.control_plane.delete_daemon_set(name).await
        })
        .await?;
        let what = format!("DaemonSet {name}, which an earlier run left, to go");
        wait::until(
            &what,
            Duration::from_secs(60),
            INTERVAL,
            self.waiting_for(reporter),
            async || {
                tolerate(
                    async {
                        let pods = self.control_plane.self_hosted_pods(component).await?.len();
                        Ok(match self.control_plane.daemon_set(name).await? {
                            None if pods == 0 => Poll::Ready(()),
                            _ => Poll::Pending(format!(
                                "DaemonSet {name} of an earlier run and {pods} Pods of it to go"
                            )),
                        })
                    }
                    .await,
                )
            },
        )
        .await
    }

    /// Makes the DaemonSet. One that is there meanwhile, as an answer was lost, is as good.
    async fn create(&self, daemon_set: &Value) -> Result<()> {
        let what = format!("DaemonSet {} to be made", self.daemon_set_name);
        patience::call(&what, async || {
            match self.control_plane.create_daemon_set(daemon_set, false).await {
                Err(error) if error.cause() == shared::error::Cause::Conflict => {
                    let there = self.control_plane.daemon_set(&self.daemon_set_name).await?;
                    match there.filter(|there| crate::observe::is_ours(&there.metadata)) {
                        Some(_) => Ok(()),
                        None => Err(error),
                    }
                }
                other => other.map(drop),
            }
        })
        .await
    }

    async fn await_pod(&self, reporter: &dyn Reporter) -> Result<()> {
        let what = format!(
            "the Pod of DaemonSet {} to wait on Node {}",
            self.daemon_set_name,
            self.node()
        );
        wait::until(&what, POD_DEADLINE, INTERVAL, self.waiting_for(reporter), async || {
            tolerate(self.pod().await.map(|pod| {
                match pod {
                    None => Poll::Pending("the controller manager to create its Pod".into()),
                    Some(pod) if pod.awaiting || pod.ready => Poll::Ready(()),
                    // it came up in an earlier run
                    Some(pod)
                        if pod
                            .trouble
                            .as_deref()
                            .is_some_and(|trouble| trouble.starts_with("running")) =>
                    {
                        Poll::Ready(())
                    }
                    Some(pod) => match pod.trouble {
                        Some(trouble) => Poll::Pending(format!("Pod {}: {trouble}", pod.name)),
                        None => Poll::Pending(format!("Pod {} to start its init container", pod.name)),
                    },
                }
            }))
        })
        .await
    }

    /// States what is wanted. A wish that the guard gave up before is withdrawn first: only then it is tried again.
    async fn ask_guard(&self) -> Result<()> {
        let name = self.component.desired_annotation();
        if self
            .report()
            .await?
            .is_some_and(|report| report.given_up == Some(self.desired))
        {
            self.patch(&[(name.clone(), None)], &[]).await?;
            let what = format!("the guard of Node {} to forget the earlier attempt", self.node());
            wait::until(
                &what,
                Duration::from_secs(20),
                INTERVAL,
                |_| {},
                async || {
                    tolerate(self.report().await.map(|report| match report {
                        Some(report) if report.given_up.is_none() => Poll::Ready(()),
                        _ => Poll::Pending("its report still names it".into()),
                    }))
                },
            )
            .await?;
        }
        self.patch(&[(name, Some(self.desired.as_str()))], &[]).await
    }

    async fn patch(&self, annotations: &[(String, Option<&str>)], labels: &[(String, Option<&str>)]) -> Result<()> {
        let what = format!("Node {} to be changed", self.node());
        patience::call(&what, async || {
            self.control_plane.patch_node(self.node(), annotations, labels).await
        })
        .await
    }

    async fn await_guard(&self, reporter: &dyn Reporter) -> Result<()> {
        let what = format!("{} to be self-hosted on Node {}", self.component, self.node());
        let mut handed = false;
        let mut seen: Option<String> = None;
        wait::until(
            &what,
            HAND_OVER_DEADLINE,
            INTERVAL,
            self.waiting_for(reporter),
            async || {
                if let Some(version) = seen.take() {
                    self.control_plane.node_changes(self.node(), &version, LOOK_AGAIN).await;
                }
                tolerate(
                    async {
                        let (report, version) = self.versioned_report().await?;
                        seen = version;
                        let Some(report) = report else {
                            return Ok(Poll::Pending("the guard to report".into()));
                        };
                        if report.given_up == Some(self.desired) {
                            return Err(self.given_up(&report).await);
                        }
                        if !handed
                            && report.state == State::Both
                            && report.step.starts_with("waiting for the old process to")
                        {
                            handed = true;
                            if self.component == Component::KubeApiserver {
                                self.handed.notify_one();
                            }
                            reporter.step(&self.task, "proved healthy, static manifest taken out");
                        }
                        if report.desired == self.desired && report.settled && report.state == State::SelfHosted {
                            return Ok(Poll::Ready(()));
                        }
                        Ok(Poll::Pending(awaited(&report)))
                    }
                    .await,
                )
            },
        )
        .await?;
        if !handed {
            reporter.step(&self.task, "proved healthy, static manifest taken out");
        }
        Ok(())
    }

    /// The Pod that stood for the static one must be gone too: until then the cluster counts it.
    async fn await_mirror(&self, reporter: &dyn Reporter) -> Result<()> {
        let name = format!("{}-{}", self.component, self.node());
        let what = format!("the mirror Pod {name} to go");
        wait::until(
            &what,
            Duration::from_secs(60),
            INTERVAL,
            self.waiting_for(reporter),
            async || {
                tolerate(self.control_plane.pod(&name).await.map(|pod| match pod {
                    Some(_) => Poll::Pending(format!("the mirror Pod {name} to go")),
                    None => Poll::Ready(()),
                }))
            },
        )
        .await
    }

    async fn given_up(&self, report: &Report) -> Error {
        let why = report
            .error
            .clone()
            .unwrap_or_else(|| "the guard gave the hand-over up".into());
        let mut error = Error::new(format!(
            "{} was not converted; its static Pod serves as before",
            self.component
        ))
        .because(why);
        if let Ok(Some(pod)) = self.pod().await {
            error = error.because(describe_pod(self.control_plane, &pod).await);
        }
        error
    }

    /// Leadership must not wait for the old holder's Lease to run out.
    async fn release_lease(&self, before: Option<&str>, reporter: &dyn Reporter) -> Result<()> {
        if before.is_none() {
            return Ok(());
        }
        let what = format!("another {} to lead", self.component);
        wait::until(
            &what,
            Duration::from_secs(30),
            INTERVAL,
            self.waiting_for(reporter),
            async || {
                tolerate(
                    async {
                        match leadership::holder(self.control_plane, self.component).await? {
                            Some(now) if Some(now.as_str()) != before => Ok(Poll::Ready(())),
                            _ => match leadership::release(self.control_plane, self.component, before).await {
                                Ok(_) => Ok(Poll::Pending("the new process to take the Lease".into())),
                                // somebody else wrote it in between
                                Err(error) if error.cause() == shared::error::Cause::Conflict => {
                                    Ok(Poll::Pending("the Lease to be free".into()))
                                }
                                Err(error) => Err(error),
                            },
                        }
                    }
                    .await,
                )
            },
        )
        .await
    }

    /// After a failure: back to the static Pod, if it has not been taken out.
    async fn roll_back(&self, error: Error, reporter: &dyn Reporter) -> Error {
        let resume = "run the same command again: it carries on from here";
        match self.report().await {
            Ok(Some(report)) if report.state == State::SelfHosted || report.state == State::Fallback => {
                return error.hint(resume);
            }
            Ok(_) => {}
            Err(_) => return error.hint(resume),
        }
        reporter.waiting(&self.task, "the static Pod to be alone again");
        match self.take_back(reporter).await {
            Ok(()) => error.hint("nothing was changed for good; mend the cause and run the same command again"),
            Err(second) => error
                .because(format!("and taking it back failed: {second}"))
                .hint(resume),
        }
    }

    async fn take_back(&self, reporter: &dyn Reporter) -> Result<()> {
        let component = self.component;
        let name = component.desired_annotation();
        self.patch(&[(name, Some(Desired::Static.as_str()))], &[]).await?;
        let what = format!("the guard of Node {} to hold {component} back", self.node());
        wait::until(
            &what,
            Duration::from_secs(30),
            INTERVAL,
            self.waiting_for(reporter),
            async || {
                tolerate(self.report().await.map(|report| match report {
                    Some(report) if report.desired == Desired::Static => Poll::Ready(()),
                    _ => Poll::Pending("its report".into()),
                }))
            },
        )
        .await?;
        self.patch(&[], &[(component.gate_label(), None)]).await?;
        if self
            .control_plane
            .nodes_with_label(&component.gate_label())
            .await?
            .is_empty()
        {
            self.control_plane.delete_daemon_set(&self.daemon_set_name).await?;
        }
        Ok(())
    }
}

/// What a guard that has not settled is waited for, as it reads after "waiting for".
#[must_use]
pub fn awaited(report: &Report) -> String {
    let step = match (report.step.strip_prefix("waiting for "), report.step.as_str()) {
        (Some(awaited), _) => awaited.to_owned(),
        (None, "") => "the guard to see it".to_owned(),
        (None, doing) => format!("the guard ({doing})"),
    };
    match &report.error {
        Some(error) => format!("{step}; {error}"),
        None => step,
    }
}

/// A Pod's name, why it does not run, and the last line that it wrote.
pub async fn describe_pod(control_plane: &ControlPlane, pod: &PodFacts) -> String {
    let trouble = pod
        .trouble
        .clone()
        .unwrap_or_else(|| if pod.ready { "ready".into() } else { "not ready".into() });
    let mut text = format!("Pod {}: {trouble}", pod.name);
    if let Some(line) = last_log_line(control_plane, pod).await {
        text.push_str(&format!("; it last wrote: {line}"));
    }
    text
}

/// The last line that a Pod's component wrote: of the running container, else of the one before.
pub async fn last_log_line(control_plane: &ControlPlane, pod: &PodFacts) -> Option<String> {
    for previous in [false, true] {
        if previous && !pod.ended {
            break;
        }
        if let Ok(text) = control_plane.last_log_lines(&pod.name, &pod.container, previous).await
            && let Some(line) = text.lines().rev().map(str::trim).find(|line| !line.is_empty())
        {
            let line = shared::printer::printable(line).into_owned();
            return Some(line.chars().take(300).collect());
        }
    }
    None
}
