//! `kubectl selfhost status`: what serves each component on each node.

use crate::cluster::ControlPlane;
use crate::component_state::component_state;
use crate::hand_over::last_log_line;
use crate::names::{Component, GUARD};
use crate::node::state::{FallbackReport, ForeignManifest, MadeOf};
use crate::observe::{Observation, PodFacts};
use crate::plan::{API_VERSION, ComponentState};
use serde::Serialize;
use shared::table::Table;

/// Everything that `status -o json` prints; `apiVersion` changes when a field changes its meaning.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct ClusterStatus {
    /// `selfhost/v1`.
    pub api_version: &'static str,
    /// `ClusterStatus`.
    pub kind: &'static str,
    /// The control-plane nodes, by name.
    pub nodes: Vec<Status>,
}

/// One node.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Status {
    /// The Node.
    pub node: String,
    /// The components, in the order of a conversion.
    pub components: Vec<ComponentStatus>,
    /// The guard.
    pub guard: GuardStatus,
}

/// One component.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct ComponentStatus {
    /// Its name.
    pub component: Component,
    /// `static`, `self-hosted`, `both`, `fallback` or `none`.
    pub state: ComponentState,
    /// Version of the Pod that serves: the tag of its image.
    pub version: String,
    /// Whether a Pod that serves is Ready.
    pub ready: bool,
    /// Who leads, for components that elect a leader.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub leader: Option<String>,
    /// The Pod that serves.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub pod: Option<String>,
    /// Pods that do not run as they should.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub troubles: Vec<Trouble>,
    /// A manifest that somebody wrote while the DaemonSet serves.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub foreign_manifest: Option<ForeignManifest>,
    /// What the fallback is made of, on a node that is converted.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub fallback: Option<FallbackReport>,
    /// The component is to be self-hosted, and its Node does not let its DaemonSet's Pod in, as after it was registered anew.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub ungated: bool,
    /// What the guard does right now.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub step: Option<String>,
    /// What went wrong last.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub error: Option<String>,
}

/// A Pod that does not run as it should.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Trouble {
    /// Its name.
    pub pod: String,
    /// Why, in the cluster's words.
    pub reason: String,
    /// The last line that it wrote.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub last_log_line: Option<String>,
}

/// The guard.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct GuardStatus {
    /// Whether its Pod runs.
    pub running: bool,
    /// Its version, as it reported.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub version: Option<String>,
    /// The build of its executable.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub build: Option<String>,
    /// Why it does not run as it should, or will not when it is needed.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub trouble: Option<String>,
}

/// The status of all nodes, without the logs of Pods.
#[must_use]
pub fn cluster_status(observations: &[&Observation]) -> ClusterStatus {
    ClusterStatus {
        api_version: API_VERSION,
        kind: "ClusterStatus",
        nodes: observations.iter().map(|observation| status(observation)).collect(),
    }
}

/// The status of one node, without the logs of Pods.
#[must_use]
pub fn status(observation: &Observation) -> Status {
    let components = Component::ALL
        .into_iter()
        .map(|component| component_status(observation, component))
        .collect();
    let guard = observation.node.guard.as_ref();
    Status {
        node: observation.node.name.clone(),
        components,
        guard: GuardStatus {
            running: observation.guard_pod.as_ref().is_some_and(|pod| pod.ready),
            version: guard.map(|guard| guard.version.clone()),
            build: guard.map(|guard| guard.build.clone()),
            trouble: guard_trouble(observation),
        },
    }
}

/// What is wrong with the guard: with its Pod, with what it needs, or that it is not there and should be.
fn guard_trouble(observation: &Observation) -> Option<String> {
    let node = &observation.node;
    let Some(pod) = &observation.guard_pod else {
        let converted = Component::ALL.into_iter().any(|component| {
            let wanted = node.desired.get(&component);
            node.gated.contains(&component) || wanted.is_some_and(|wanted| wanted.is_self_hosted())
        });
        return converted.then(|| {
            "it is not there: what runs goes on, and does not survive a reboot; `kubectl selfhost convert` installs it again"
                .to_owned()
        });
    };
    let reported = node.guard.iter().flat_map(|guard| guard.troubles.iter().cloned());
    let all: Vec<String> = pod.trouble.iter().cloned().chain(reported).collect();
    (!all.is_empty()).then(|| all.join("; "))
}

fn component_status(observation: &Observation, component: Component) -> ComponentStatus {
    let state = component_state(observation, component, false);
    let pods = observation.pods.get(&component).map(Vec::as_slice).unwrap_or_default();
    let report = observation.node.reports.get(&component);
    let serving = serving(pods, state);
    // a Pod that waits on a node that is static by design is as it should be
    let waits = |pod: &PodFacts| pod.awaiting && state == ComponentState::Static;
    let troubles = pods
        .iter()
        .filter(|pod| !pod.ready && !pod.terminating && !waits(pod))
        .map(|pod| Trouble {
            pod: pod.name.clone(),
            reason: pod.trouble.clone().unwrap_or_else(|| {
                if pod.awaiting {
                    "waits for its port"
                } else {
                    "not ready"
                }
                .into()
            }),
            last_log_line: None,
        })
        .collect();
    ComponentStatus {
        component,
        state,
        version: serving.map(|pod| version(&pod.image)).unwrap_or_default(),
        ready: serving.is_some_and(|pod| pod.ready),
        leader: observation.leaders.get(&component).cloned(),
        pod: serving.map(|pod| pod.name.clone()),
        troubles,
        foreign_manifest: report.and_then(|report| report.foreign_manifest.clone()),
        fallback: report
            .filter(|report| report.desired.is_self_hosted())
            .and_then(|report| report.fallback.clone()),
        ungated: state == ComponentState::Fallback && !observation.node.gated.contains(&component),
        step: report.map(|report| report.step.clone()).filter(|step| !step.is_empty()),
        error: report.and_then(|report| report.error.clone()),
    }
}

fn serving(pods: &[PodFacts], state: ComponentState) -> Option<&PodFacts> {
    let wanted = |pod: &&PodFacts| match state {
        ComponentState::Static | ComponentState::Fallback => pod.mirror,
        ComponentState::SelfHosted => !pod.mirror,
        ComponentState::Both | ComponentState::None => true,
    };
    pods.iter()
        .filter(wanted)
        .max_by_key(|pod| (pod.ready, !pod.terminating))
}

/// The tag of an image, without its digest.
fn version(image: &str) -> String {
    let name = image.split('@').next().unwrap_or(image);
    let last = name.rsplit('/').next().unwrap_or(name);
    last.split_once(':').map(|(_, tag)| tag.to_owned()).unwrap_or_default()
}

/// Most requests for logs: a status is to cost little, whatever is wrong.
const MOST_LOG_REQUESTS: u32 = 4;

/// Adds the last line of Pods that are in trouble, as far as a few requests go.
pub async fn add_log_lines(status: &mut ClusterStatus, observations: &[&Observation], control_plane: &ControlPlane) {
    let mut requests = 0;
    for (node, observation) in status.nodes.iter_mut().zip(observations) {
        for component in &mut node.components {
            let pods = observation
                .pods
                .get(&component.component)
                .map(Vec::as_slice)
                .unwrap_or_default();
            for trouble in &mut component.troubles {
                let Some(pod) = pods.iter().find(|pod| pod.name == trouble.pod) else {
                    continue;
                };
                requests += if pod.ended { 2 } else { 1 };
                if requests > MOST_LOG_REQUESTS {
                    return;
                }
                trouble.last_log_line = last_log_line(control_plane, pod).await;
            }
        }
    }
}

/// For people.
#[must_use]
pub fn table(status: &ClusterStatus, wide: bool) -> Table {
    let mut headers = vec!["NODE", "COMPONENT", "STATE", "VERSION", "READY", "LEADER", "GUARD"];
    if wide {
        headers.extend(["POD", "FALLBACK", "BUILD"]);
    }
    let mut table = Table::new(headers);
    for node in &status.nodes {
        let guard = if node.guard.running { "running" } else { "none" };
        for component in &node.components {
            let mut row = vec![
                node.node.clone(),
                component.component.name().to_owned(),
                component.state.name().to_owned(),
                component.version.clone(),
                component.ready.to_string(),
                component.leader.clone().map_or("-".into(), |leader| {
                    leader
                        .rsplit_once('_')
                        .map_or(leader.as_str(), |(host, _)| host)
                        .to_owned()
                }),
                guard.to_owned(),
            ];
            if wide {
                row.push(component.pod.clone().unwrap_or_else(|| "-".into()));
                row.push(component.fallback.as_ref().map_or("-".into(), short_fallback));
                row.push(node.guard.build.clone().unwrap_or_else(|| "-".into()));
            }
            table.row(row);
        }
    }
    table
}

/// What a fallback is made of, in a word or two.
fn short_fallback(fallback: &FallbackReport) -> String {
    match (fallback.made_of, fallback.template.generation) {
        (MadeOf::Original, _) => "original".to_owned(),
        (MadeOf::Template, Some(generation)) => format!("generation {generation}"),
        (MadeOf::Template, None) => "template".to_owned(),
    }
}

/// What the table has no place for, a line each.
#[must_use]
pub fn cluster_remarks(status: &ClusterStatus) -> Vec<String> {
    let several = status.nodes.len() > 1;
    let of_node = |node: &Status| {
        let name = node.node.clone();
        let remarks = remarks(node).into_iter();
        remarks
            .map(move |remark| if several { format!("{name}: {remark}") } else { remark })
            .collect::<Vec<_>>()
    };
    status.nodes.iter().flat_map(of_node).collect()
}

/// What the table has no place for of one node, a line each.
#[must_use]
pub fn remarks(status: &Status) -> Vec<String> {
    let mut remarks = Vec::new();
    for component in &status.components {
        let name = component.component;
        for trouble in &component.troubles {
            let line = trouble
                .last_log_line
                .as_ref()
                .map(|line| format!("; it last wrote: {line}"))
                .unwrap_or_default();
            remarks.push(format!("{name}: Pod {}: {}{line}", trouble.pod, trouble.reason));
        }
        if let Some(manifest) = &component.foreign_manifest {
            remarks.push(format!(
                "{name}: somebody wrote {} at {} while the DaemonSet serves: move it away, or revert",
                manifest.file, manifest.modified
            ));
        }
        if let Some(step) = &component.step {
            remarks.push(format!("{name}: {step}"));
        }
        if let Some(error) = &component.error {
            remarks.push(format!("{name}: {error}"));
        }
        if let Some(fallback) = &component.fallback
            && let Some(why) = &fallback.refused
        {
            remarks.push(format!(
                "{name}: the fallback is still made of {}: {why}",
                fallback.name()
            ));
        }
        if component.state == ComponentState::Fallback {
            let made_of = component
                .fallback
                .as_ref()
                .map_or_else(String::new, |fallback| format!(", made of {}", fallback.name()));
            let ungated = if component.ungated {
                ": its Node has lost the label that lets its DaemonSet's Pod in"
            } else {
                ""
            };
            remarks.push(format!(
                "{name}: the guard's fallback serves{made_of}{ungated}; `kubectl selfhost convert` puts the DaemonSet right"
            ));
        }
    }
    if let Some(trouble) = &status.guard.trouble {
        remarks.push(format!("Pod {GUARD}-{}: {trouble}", status.node));
    }
    remarks
}

#[cfg(test)]
#[path = "status_tests.rs"]
mod tests;
