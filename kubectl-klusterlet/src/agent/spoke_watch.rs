//! What the spoke is and how it is: health, version, nodes, claims.

use std::{
    collections::BTreeMap,
    time::{Duration, Instant},
};

use kube::Api;
use serde_json::Value;
use shared::error::Cause;
use tokio::sync::Notify;

use super::Context;
use crate::{
    connection::get_path,
    facts::{Availability, Health, NodeShare, SpokeFacts, claim_value, falls_back, totals},
    follow::{Change, follow},
    resources::{ClusterClaim, SlimNode},
};

/// Changes that come in a row are reported together.
const TOGETHER: Duration = Duration::from_millis(200);
/// How often it is looked whether a kind that is missing or forbidden has come.
const MISSING_KIND_RETRY: Duration = Duration::from_secs(30);

fn change(context: &Context, change: impl FnOnce(&mut SpokeFacts)) {
    context.state.facts.send_if_modified(|facts| {
        let before = facts.clone();
        change(facts);
        *facts != before
    });
}

/// Looks at health and version for ever.
pub async fn health(context: &Context) {
    let period = context.options.cluster_health_check_period;
    let mut availability = Availability::default();
    loop {
        let (health, version) = tokio::join!(look(context), version(context));
        let pause = availability.observe(&health, context.started.elapsed(), period);
        change(context, |facts| {
            facts.availability = availability.verdict().map(|verdict| verdict.map(str::to_owned));
            if version.is_some() {
                facts.version = version;
            }
        });
        tokio::time::sleep(pause).await;
    }
}

async fn look(context: &Context) -> Health {
    let cluster = &context.spoke.cluster;
    let mut answer = get_path(cluster, "/livez").await;
    if let Ok((status, _)) = &answer
        && falls_back(*status)
    {
        answer = get_path(cluster, "/healthz").await;
    }
    match answer {
        Ok((200, _)) => Health::Ok,
        Ok((status, body)) => Health::Failing(format!("status code: {status}, {body}")),
        Err(error) => Health::Failing(format!("status code: 0, {error}")),
    }
}

async fn version(context: &Context) -> Option<String> {
    let (status, body) = get_path(&context.spoke.cluster, "/version").await.ok()?;
    let info: Value = serde_json::from_str(&body).ok().filter(|_| status == 200)?;
    info["gitVersion"].as_str().map(str::to_owned)
}

/// Follows a kind and reports for ever: `fold` takes what is seen into a map by name, `report` makes facts of it.
async fn keep_up<K, V>(
    context: &Context,
    what: &str,
    fold: impl Fn(K) -> Option<V>,
    report: impl Fn(&mut SpokeFacts, &BTreeMap<String, V>),
) where
    K: kube::Resource<DynamicType = ()> + Clone + serde::de::DeserializeOwned + std::fmt::Debug,
{
    let api: Api<K> = Api::all(context.spoke.cluster.client.clone());
    let all = std::sync::Mutex::new((BTreeMap::<String, V>::new(), false));
    let lock = || all.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
    let changed = Notify::new();
    let reports = async {
        loop {
            changed.notified().await;
            let known = context.state.facts.borrow().are_complete();
            if known {
                tokio::time::sleep(TOGETHER).await;
            }
            change(context, |facts| report(facts, &lock().0));
        }
    };
    let watches = async {
        let mut told = false;
        loop {
            let error = follow(&context.spoke.cluster, &api, what, None, |change| {
                let mut all = lock();
                match change {
                    Change::Begin => {
                        all.0.clear();
                        all.1 = false;
                    }
                    Change::Set(item) => {
                        let name = item.meta().name.clone().unwrap_or_default();
                        match fold(item) {
                            Some(value) => all.0.insert(name, value),
                            None => all.0.remove(&name),
                        };
                    }
                    Change::Gone(item) => {
                        all.0.remove(item.meta().name.as_deref().unwrap_or_default());
                    }
                    Change::Complete => all.1 = true,
                }
                if all.1 {
                    changed.notify_one();
                }
            })
            .await;
            let pause = match error.cause() {
                // A spoke without this kind has none of it.
                Cause::NotFound | Cause::Forbidden => {
                    lock().0.clear();
                    changed.notify_one();
                    if !told {
                        let because = if error.is_not_found() {
                            "the spoke does not know them"
                        } else {
                            "the agent may not read them"
                        };
                        context
                            .log
                            .warning(&format!("{what} are not reported"), &[("because", &because)]);
                        told = true;
                    }
                    MISSING_KIND_RETRY
                }
                _ => Duration::from_secs(5),
            };
            tokio::time::sleep(pause).await;
        }
    };
    tokio::join!(reports, watches);
}

/// Follows the nodes.
pub async fn nodes(context: &Context) {
    keep_up::<SlimNode, NodeShare>(
        context,
        "nodes of the spoke",
        |node| Some(node.into()),
        |facts, nodes| {
            facts.totals = Some(totals(nodes.values()));
        },
    )
    .await;
}

/// Follows the claims.
pub async fn claims(context: &Context) {
    let rules = context.claim_rules();
    let told = std::sync::atomic::AtomicUsize::new(0);
    keep_up::<ClusterClaim, String>(
        context,
        "claims of the spoke",
        |claim| claim_value(&claim).map(str::to_owned),
        |facts, claims| {
            let sent = rules.select(claims);
            if told.swap(sent.cut.len(), std::sync::atomic::Ordering::Relaxed) != sent.cut.len() && !sent.cut.is_empty()
            {
                let first: Vec<_> = sent.cut.iter().take(3).map(String::as_str).collect();
                context.log.warning(
                    "more claims than --max-custom-cluster-claims allows: the last ones by name are not sent",
                    &[("not sent", &sent.cut.len()), ("the first of them", &first.join(", "))],
                );
            }
            facts.claims = Some(sent);
        },
    )
    .await;
}

/// Waits until all facts are known, and at most as long as a failing spoke needs to be called so.
pub async fn known_or_late(context: &Context) {
    let mut facts = context.state.facts.subscribe();
    let rest = (crate::facts::FAILURE_THRESHOLD + Duration::from_secs(6))
        .saturating_sub(Instant::now().saturating_duration_since(context.started));
    let _ = tokio::time::timeout(rest, facts.wait_for(SpokeFacts::are_complete)).await;
}
