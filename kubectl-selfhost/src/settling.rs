//! What passes by itself: Pods that have just started, and leaders that are about to be elected. Preflight refuses them only
//! when they last.

use crate::component_spec::ComponentSpec;
use crate::component_state::is_converted;
use crate::fleet::Fleet;
use crate::names::{Component, NAMESPACE};
use crate::observe::Observation;
use crate::plan::Snapshot;
use jiff::Timestamp;
use shared::Result;
use shared::error::Cause;
use shared::wait::{self, Poll};
use std::collections::BTreeMap;
use std::time::Duration;

/// A leader renews its Lease every 2 s, and loses it after 15 s without (`--leader-elect-retry-period`,
/// `--leader-elect-lease-duration`: k8s.io/component-base `config/v1alpha1/defaults.go`).
const RENEWED_WITHIN: Duration = Duration::from_secs(20);
/// A startup probe of kubeadm's manifests looks every 10 s, and an apiserver needs about 5 s to start.
const PATIENCE: Duration = Duration::from_secs(30);
const INTERVAL: Duration = Duration::from_secs(1);

/// Why nobody leads, of a component whose static Pods elect a leader by the Lease of its own name.
///
/// Nothing is said of a component that is told by its flags to use another Lease, or by a configuration file, which cannot be
/// seen from here.
#[must_use]
pub fn nobody_leads(
    observation: &Observation,
    snapshot: &Snapshot,
    component: Component,
    now: Timestamp,
) -> Option<String> {
    let pod = &snapshot.inventory.originals.get(&component)?.pod;
    if is_converted(observation, component) || !elects_by_its_own_lease(component, pod) {
        return None;
    }
    let Some(renewed) = observation.renewals.get(&component) else {
        return Some(format!("is not there: no {component} has ever led"));
    };
    let age = age(*renewed, now);
    (age > RENEWED_WITHIN).then(|| {
        let holder = observation.leaders.get(&component).map_or("nobody", String::as_str);
        format!(
            "was last renewed {} ago, by {holder}: no {component} leads",
            wait::short(age)
        )
    })
}

fn elects_by_its_own_lease(component: Component, pod: &serde_json::Value) -> bool {
    let Ok(spec) = ComponentSpec::new(component, pod) else {
        return false;
    };
    let is = |flag: &str, default: &str| spec.flag(flag).is_none_or(|value| value == default);
    // a flag that cannot be read is refused by the checks of the manifest
    spec.leader_elect() == Ok(Some(true))
        && spec.flag("config").is_none()
        && is("leader-elect-resource-lock", "leases")
        && is("leader-elect-resource-name", component.name())
        && is("leader-elect-resource-namespace", NAMESPACE)
}

/// What is worth waiting for on a node before a conversion of these components is refused, as it reads after "waiting for".
#[must_use]
pub fn unsettled(observation: &Observation, components: &[Component], now: Timestamp) -> Vec<String> {
    let mut found = Vec::new();
    if observation.node.not_ready.is_some() {
        // that is refused, and does not pass by looking at its Pods
        return found;
    }
    for component in components {
        let name = format!("{component}-{}", observation.node.name);
        let pods = observation.pods.get(component).map(Vec::as_slice).unwrap_or_default();
        let Some(pod) = pods.iter().find(|pod| pod.mirror && pod.name == name) else {
            continue;
        };
        if is_converted(observation, *component) {
            continue;
        }
        if pod.starting {
            found.push(format!("Pod {NAMESPACE}/{name} to be ready"));
        } else if observation
            .renewals
            .get(component)
            .is_some_and(|renewed| age(*renewed, now) > RENEWED_WITHIN)
        {
            found.push(format!("a {component} to lead"));
        }
    }
    found
}

/// A clock that is ahead of ours renews in our future.
fn age(renewed: Timestamp, now: Timestamp) -> Duration {
    Duration::try_from(now.duration_since(renewed)).unwrap_or_default()
}

/// A Lease that is renewed while we look has a leader, whatever the clocks say: that of a workstation may be far off.
fn count_as_fresh(
    renewals: &mut BTreeMap<Component, Timestamp>,
    first: &BTreeMap<Component, Timestamp>,
    now: Timestamp,
) {
    for (component, renewed) in renewals {
        if first.get(component) != Some(renewed) {
            *renewed = now;
        }
    }
}

/// Looks at the nodes again and again, for half a minute, while something there is about to pass; `waiting` is told what.
///
/// # Errors
/// When the API cannot be asked. That it does not pass is no error: the checks say what it means.
pub async fn settle(fleet: &mut Fleet, components: &[Component], waiting: impl Fn(&str)) -> Result<()> {
    let missing = |fleet: &Fleet| -> Vec<String> {
        let now = Timestamp::now();
        let seen = fleet.selected().into_iter();
        let mut all: Vec<String> = seen.flat_map(|seen| unsettled(seen, components, now)).collect();
        all.dedup();
        all
    };
    let first = fleet
        .observations
        .first()
        .map(|seen| seen.renewals.clone())
        .unwrap_or_default();
    let mut told = missing(fleet);
    if told.is_empty() {
        return Ok(());
    }
    waiting(&format!("waiting for {}", told.join(", ")));
    let waited = wait::until(
        "the control plane to be healthy",
        PATIENCE,
        INTERVAL,
        |_| {},
        async || {
            fleet.observe_again().await?;
            for seen in &mut fleet.observations {
                count_as_fresh(&mut seen.renewals, &first, Timestamp::now());
            }
            let now = missing(fleet);
            if now.is_empty() {
                return Ok(Poll::Ready(()));
            }
            if now != told {
                told = now;
                waiting(&format!("waiting for {}", told.join(", ")));
            }
            Ok(Poll::Pending(told.join(", ")))
        },
    )
    .await;
    match waited {
        Err(error) if error.cause() != Cause::TimedOut => Err(error),
        _ => Ok(()),
    }
}

#[cfg(test)]
#[path = "settling_tests.rs"]
mod tests;
