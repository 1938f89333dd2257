//! How a component runs on a node, judged from what was seen.

use crate::names::Component;
use crate::node::state::{Desired, State};
use crate::observe::Observation;
use crate::plan::ComponentState;

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
