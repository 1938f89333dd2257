//! The guard's talk with the API: reads what the CLI states of its own Node, and reports back, with the kubelet's credentials.

use super::{Exchange, GuardOptions, say};
use crate::names::{Component, NODE_PREFIX};
use crate::node::state::{Desired, GuardReport, Report};
use futures_util::StreamExt;
use k8s_openapi::api::core::v1::Node;
use kube::api::{Api, Patch, PatchParams, WatchEvent, WatchParams};
use kube::config::{KubeConfigOptions, Kubeconfig};
use kube::{Client, Config};
use serde_json::{Map, Value, json};
use std::collections::BTreeMap;
use std::path::Path;
use std::pin::pin;
use std::time::{Duration, Instant};

const CALL: Duration = Duration::from_secs(5);
/// Least time between two rounds of talk.
const PAUSE: Duration = Duration::from_millis(100);
/// After a talk that failed, or a watch that ended at once.
const AGAIN: Duration = Duration::from_millis(300);
/// A watch may be dead without a sign: so often the Node is read all the same.
const LOOK_AGAIN: Duration = Duration::from_secs(10);
/// The kubelet's certificate rotates: a client is not kept for longer than this.
const CLIENT_LIFE: Duration = Duration::from_secs(600);

/// Name of the Node annotation with the [`GuardReport`].
#[must_use]
pub fn guard_annotation() -> String {
    format!("{NODE_PREFIX}/guard")
}

/// Talks for ever. An API that is not there is the ordinary case here, not an error.
pub async fn run(options: &GuardOptions, exchange: &Exchange, trial: &Result<(), String>) {
    let guard = GuardReport {
        version: env!("CARGO_PKG_VERSION").to_owned(),
        build: options.build.clone(),
        process: std::process::id(),
        steering_refused: trial.as_ref().err().cloned(),
    };
    let mut client: Option<(Api<Node>, Instant)> = None;
    let mut last_error = String::new();
    loop {
        match talk(options, exchange, &guard, &mut client).await {
            Ok((nodes, version)) => {
                last_error.clear();
                tokio::select! {
                    () = exchange.reported() => {}
                    () = changed(&nodes, &options.node_name, &version) => {}
                    () = tokio::time::sleep(LOOK_AGAIN) => {}
                }
                tokio::time::sleep(PAUSE).await;
            }
            Err(error) => {
                client = None;
                if error != last_error {
                    say(&format!("no talk with the API: {error}"));
                    last_error = error;
                }
                tokio::time::sleep(AGAIN).await;
            }
        }
    }
}

/// One round: reads what is wanted, reports where something has changed. Returns the version of the Node that was read or
/// written last.
async fn talk(
    options: &GuardOptions,
    exchange: &Exchange,
    guard: &GuardReport,
    client: &mut Option<(Api<Node>, Instant)>,
) -> Result<(Api<Node>, String), String> {
    let nodes = match client {
        Some((nodes, made)) if made.elapsed() <= CLIENT_LIFE => nodes.clone(),
        _ => {
            let nodes = connect(&options.kubeconfig).await?;
            *client = Some((nodes.clone(), Instant::now()));
            nodes
        }
    };
    let mut node = within(nodes.get_metadata(&options.node_name)).await?;
    let annotations = node.metadata.annotations.take().unwrap_or_default();
    let (wanted, unknown) = desired(&annotations);
    exchange.desire(wanted);
    let changes = changes(&annotations, &exchange.reports(), &unknown, guard);
    if !changes.is_empty() {
        let patch = Patch::Merge(json!({ "metadata": { "annotations": changes } }));
        node = within(nodes.patch_metadata(&options.node_name, &PatchParams::default(), &patch)).await?;
        exchange.desire(desired(&node.metadata.annotations.unwrap_or_default()).0);
    }
    Ok((nodes, node.metadata.resource_version.unwrap_or_default()))
}

/// Waits until the Node is no longer at that version, or the API does not tell any more.
async fn changed(nodes: &Api<Node>, name: &str, version: &str) {
    let parameters = WatchParams::default()
        .fields(&format!("metadata.name={name}"))
        .disable_bookmarks();
    let rang = async {
        let events = within(nodes.watch_metadata(&parameters, version)).await.ok()?;
        let first = pin!(events).next().await?.ok()?;
        (!matches!(first, WatchEvent::Error(_))).then_some(())
    };
    if rang.await.is_none() {
        tokio::time::sleep(AGAIN).await;
    }
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
