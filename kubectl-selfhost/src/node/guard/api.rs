//! The guard's talk with the API: reads what the CLI states of its own Node, and reports back, with the kubelet's credentials.

use super::events::Notice;
use super::health::Health;
use super::last_good::Pods;
use super::{Exchange, GuardOptions, say, soak};
use crate::daemon_set::SELECTOR_LABEL;
use crate::names::{Component, GUARD, NAMESPACE, NODE_PREFIX};
use crate::node::state::{Desired, GuardReport, Report};
use futures_util::StreamExt;
use k8s_openapi::api::core::v1::{Event, EventSource, Node, ObjectReference, Pod};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{ObjectMeta, Time};
use kube::api::{Api, ApiResource, DynamicObject, ListParams, Patch, PatchParams, PostParams, WatchEvent, WatchParams};
use kube::config::{KubeConfigOptions, Kubeconfig};
use kube::{Client, Config};
use serde_json::{Map, Value, json};
use std::collections::BTreeMap;
use std::path::Path;
use std::pin::pin;
use std::sync::Arc;
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
    let mut health = Health::new(options);
    let mut guard = GuardReport {
        version: env!("CARGO_PKG_VERSION").to_owned(),
        build: options.build.clone(),
        process: std::process::id(),
        steering_refused: trial.as_ref().err().cloned(),
        troubles: Vec::new(),
    };
    let mut client: Option<(Api<Node>, Instant)> = None;
    let mut looked = None;
    let longest = LOOK_AGAIN.min(soak::interval(options.last_known_good_after));
    let mut said = String::new();
    let mut complain = |error: Option<&str>| {
        let error = error.unwrap_or_default();
        if error != said && !error.is_empty() {
            say(&format!("no talk with the API: {error}"));
        }
        error.clone_into(&mut said);
    };
    // after a power cut the disk has better things to do first than to read an executable for its sum
    let mut answered = false;
    loop {
        let troubles = if answered { health.troubles() } else { Vec::new() };
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
        match talk(options, exchange, &guard, &mut client).await {
            Ok(_) if !answered => answered = true,
            Ok(talked) => {
                // what cannot be looked at or told now, can be in the next round
                let also = beside(options, exchange, &talked, &mut looked).await;
                complain(also.err().as_deref());
                tokio::select! {
                    () = exchange.reported() => {}
                    () = changed(&talked.nodes, &options.node_name, &talked.version) => {}
                    () = tokio::time::sleep(longest) => {}
                }
                tokio::time::sleep(PAUSE).await;
            }
            Err(error) => {
                client = None;
                complain(Some(&error));
                tokio::time::sleep(AGAIN).await;
            }
        }
    }
}

/// What one round came to.
struct Talked {
    nodes: Api<Node>,
    /// The version of the Node that was read or written last.
    version: String,
    /// Who the Node is.
    node: ObjectReference,
}

/// One round: reads what is wanted, reports where something has changed.
async fn talk(
    options: &GuardOptions,
    exchange: &Exchange,
    guard: &GuardReport,
    client: &mut Option<(Api<Node>, Instant)>,
) -> Result<Talked, String> {
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
    let reference = ObjectReference {
        kind: Some("Node".to_owned()),
        name: Some(options.node_name.clone()),
        uid: node.metadata.uid,
        ..ObjectReference::default()
    };
    Ok(Talked {
        nodes,
        version: node.metadata.resource_version.unwrap_or_default(),
        node: reference,
    })
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

/// What is read and told besides: the DaemonSets' Pods now and then, and Events.
async fn beside(
    options: &GuardOptions,
    exchange: &Exchange,
    talked: &Talked,
    looked: &mut Option<Instant>,
) -> Result<(), String> {
    let client = talked.nodes.clone().into_client();
    let interval = soak::interval(options.last_known_good_after);
    if looked.is_none_or(|last| last.elapsed() >= interval) {
        let at = Instant::now();
        let pods = own_pods(&client, &options.node_name).await?;
        *looked = Some(at);
        exchange.show(Pods {
            at,
            pods: Arc::new(pods),
        });
    }
    while let Some(notice) = exchange.notice() {
        let events: Api<Event> = Api::namespaced(client.clone(), EVENT_NAMESPACE);
        let event = event(&notice, &talked.node, &options.node_name);
        if let Err(error) = within(events.create(&PostParams::default(), &event)).await {
            exchange.unsent(notice);
            return Err(format!("an Event cannot be written: {error}"));
        }
    }
    Ok(())
}

/// Events about a Node, which has no namespace, lie here, as the kubelet's do.
const EVENT_NAMESPACE: &str = "default";

/// The DaemonSets' Pods of this node: the kubelet may list the Pods that are bound to its Node, and no others. As they are,
/// with fields that are newer than this program.
async fn own_pods(client: &Client, node: &str) -> Result<Vec<Value>, String> {
    let names: Vec<String> = Component::ALL
        .iter()
        .map(|component| component.daemon_set_name())
        .collect();
    let parameters = ListParams::default()
        .fields(&format!("spec.nodeName={node}"))
        .labels(&format!("{SELECTOR_LABEL} in ({})", names.join(",")));
    let pods: Api<DynamicObject> = Api::namespaced_with(client.clone(), NAMESPACE, &ApiResource::erase::<Pod>(&()));
    let list = within(pods.list(&parameters)).await?;
    Ok(list
        .items
        .iter()
        .filter_map(|pod| serde_json::to_value(pod).ok())
        .collect())
}

fn event(notice: &Notice, node: &ObjectReference, host: &str) -> Event {
    let now = Time(jiff::Timestamp::now());
    Event {
        metadata: ObjectMeta {
            generate_name: Some(format!("{GUARD}-")),
            namespace: Some(EVENT_NAMESPACE.to_owned()),
            ..ObjectMeta::default()
        },
        involved_object: node.clone(),
        type_: Some(notice.kind.to_owned()),
        reason: Some(notice.reason.to_owned()),
        // no longer than the API takes
        message: Some(notice.message.chars().take(1000).collect()),
        source: Some(EventSource {
            component: Some(GUARD.to_owned()),
            host: Some(host.to_owned()),
        }),
        first_timestamp: Some(now.clone()),
        last_timestamp: Some(now),
        count: Some(1),
        ..Event::default()
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
