//! The guard's talk with the API: reads what the CLI states of its own Node, and reports back, with the kubelet's credentials.

use super::health::Health;
use super::{Exchange, GuardOptions, say};
use crate::names::{Component, NODE_PREFIX};
use crate::node::state::{Desired, GuardReport, Report};
use k8s_openapi::api::core::v1::Node;
use kube::api::{Api, Patch, PatchParams};
use kube::config::{KubeConfigOptions, Kubeconfig};
use kube::{Client, Config};
use serde_json::{Map, Value, json};
use std::collections::BTreeMap;
use std::path::Path;
use std::time::{Duration, Instant};

const CALL: Duration = Duration::from_secs(5);
const BUSY: Duration = Duration::from_millis(300);
const IDLE: Duration = Duration::from_secs(2);
/// The kubelet's certificate rotates: a client is not kept for longer than this.
const CLIENT_LIFE: Duration = Duration::from_secs(600);

/// Name of the Node annotation with the [`GuardReport`].
#[must_use]
pub fn guard_annotation() -> String {
    format!("{NODE_PREFIX}/guard")
}

/// Talks for ever. An API that is not there is the ordinary case here, not an error.
pub async fn run(options: &GuardOptions, exchange: &Exchange, trial: &Result<(), String>) {
    let mut health = Health::new(options);
    let mut guard = GuardReport {
        version: env!("CARGO_PKG_VERSION").to_owned(),
        build: options.build.clone(),
        process: std::process::id(),
        steering_refused: trial.as_ref().err().cloned(),
        troubles: Vec::new(),
    };
    let mut client: Option<(Api<Node>, Instant)> = None;
    let mut last_error = String::new();
    loop {
        let troubles = health.troubles();
        if troubles != guard.troubles {
            say(&format!(
                "guard: {}",
                if troubles.is_empty() {
                    "all is well again".to_owned()
                } else {
                    troubles.join("; ")
                }
            ));
            guard.troubles = troubles;
        }
        let settled = match talk(options, exchange, &guard, &mut client).await {
            Ok(settled) => {
                last_error.clear();
                settled
            }
            Err(error) => {
                client = None;
                if error != last_error {
                    say(&format!("no talk with the API: {error}"));
                    last_error = error;
                }
                false
            }
        };
        tokio::time::sleep(if settled { IDLE } else { BUSY }).await;
    }
}

async fn talk(
    options: &GuardOptions,
    exchange: &Exchange,
    guard: &GuardReport,
    client: &mut Option<(Api<Node>, Instant)>,
) -> Result<bool, String> {
    if client.as_ref().is_none_or(|(_, made)| made.elapsed() > CLIENT_LIFE) {
        *client = Some((connect(&options.kubeconfig).await?, Instant::now()));
    }
    let Some((nodes, _)) = client else { return Ok(false) };
    let node = within(nodes.get_metadata(&options.node_name)).await?;
    let annotations = node.metadata.annotations.unwrap_or_default();
    let (desired, unknown) = desired(&annotations);
    exchange.desire(desired);
    let (reports, settled) = exchange.reports();
    let changes = changes(&annotations, &reports, &unknown, guard);
    if !changes.is_empty() {
        let patch = Patch::Merge(json!({ "metadata": { "annotations": changes } }));
        within(nodes.patch_metadata(&options.node_name, &PatchParams::default(), &patch)).await?;
        return Ok(false);
    }
    Ok(settled)
}

async fn within<T>(call: impl Future<Output = kube::Result<T>>) -> Result<T, String> {
    match tokio::time::timeout(CALL, call).await {
        Ok(Ok(value)) => Ok(value),
        Ok(Err(error)) => Err(shared::kube_client::explain(&error).to_string()),
        Err(_) => Err(format!("no answer within {} s", CALL.as_secs())),
    }
}

async fn connect(kubeconfig: &Path) -> Result<Api<Node>, String> {
    let file = Kubeconfig::read_from(kubeconfig).map_err(|error| format!("{}: {error}", kubeconfig.display()))?;
    let mut config = Config::from_custom_kubeconfig(file, &KubeConfigOptions::default())
        .await
        .map_err(|error| format!("{}: {error}", kubeconfig.display()))?;
    config.default_retry = false;
    // the kubelet does not use a proxy that its Pod's environment might name
    config.proxy_url = None;
    let client = Client::try_from(config).map_err(|error| format!("{}: {error}", kubeconfig.display()))?;
    Ok(Api::all(client))
}

/// What the annotations ask for, and what in them is not understood.
fn desired(annotations: &BTreeMap<String, String>) -> (BTreeMap<Component, Desired>, BTreeMap<Component, String>) {
    let (mut desired, mut unknown) = (BTreeMap::new(), BTreeMap::new());
    for component in Component::ALL {
        let name = component.desired_annotation();
        let Some(text) = annotations.get(&name) else { continue };
        match Desired::parse(text) {
            Some(value) => {
                desired.insert(component, value);
            }
            None => {
                unknown.insert(
                    component,
                    format!("the Node annotation {name} has an unknown value, which is not acted on"),
                );
            }
        }
    }
    (desired, unknown)
}

/// The annotations that differ from what is to be reported.
fn changes(
    annotations: &BTreeMap<String, String>,
    reports: &BTreeMap<Component, Report>,
    unknown: &BTreeMap<Component, String>,
    guard: &GuardReport,
) -> Map<String, Value> {
    let mut changes = Map::new();
    let mut set = |name: String, value: Option<String>| {
        if let Some(value) = value
            && annotations.get(&name) != Some(&value)
        {
            changes.insert(name, value.into());
        }
    };
    set(guard_annotation(), serde_json::to_string(guard).ok());
    for (component, report) in reports {
        let mut report = report.clone();
        if let Some(error) = unknown.get(component) {
            report.error = Some(error.clone());
        }
        set(component.report_annotation(), serde_json::to_string(&report).ok());
    }
    changes
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn unknown_wishes_are_reported_and_not_acted_on() {
        let annotations = BTreeMap::from([
            (Component::KubeScheduler.desired_annotation(), "self-hosted".to_owned()),
            (Component::KubeApiserver.desired_annotation(), "rm -rf /".to_owned()),
        ]);
        let (desired, unknown) = desired(&annotations);
        assert_eq!(
            desired,
            BTreeMap::from([(Component::KubeScheduler, Desired::SelfHosted)])
        );
        assert_eq!(unknown.keys().copied().collect::<Vec<_>>(), [Component::KubeApiserver]);
        assert!(
            !unknown[&Component::KubeApiserver].contains("rm -rf"),
            "what others wrote is not repeated"
        );
    }

    #[test]
    fn only_what_differs_is_written() {
        let guard = GuardReport {
            version: "1".into(),
            build: "b".into(),
            process: 7,
            steering_refused: None,
            troubles: Vec::new(),
        };
        let first = changes(&BTreeMap::new(), &BTreeMap::new(), &BTreeMap::new(), &guard);
        assert_eq!(first.len(), 1);
        let written: BTreeMap<String, String> = first
            .iter()
            .map(|(k, v)| (k.clone(), v.as_str().unwrap_or_default().to_owned()))
            .collect();
        assert!(changes(&written, &BTreeMap::new(), &BTreeMap::new(), &guard).is_empty());
    }
}
