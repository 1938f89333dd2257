//! Writes what the hub is told about the spoke.

use std::{
    collections::BTreeMap,
    sync::{Arc, atomic::Ordering},
    time::{Duration, Instant},
};

use jiff::Timestamp;
use sha2::{Digest, Sha256};
use shared::{Result, error::Cause};

use super::{
    Context,
    cluster::{rejected, see},
    spoke_watch::known_or_late,
};
use crate::{
    conditions::{self, AVAILABLE},
    connection::{HubAccess, is_unauthorized},
    hub::Hub,
    names::CLUSTER_SET_LABEL_PREFIX,
    registration::{Report, is_accepted, status_patch, with_urls},
    resources::ManagedCluster,
    timing::backoff,
};

/// When the hub takes back at once what was written, it is written again ever more slowly. After this long it was no such
/// case.
const FIGHT: Duration = Duration::from_secs(60);

/// The label that namespaces of this hub carry.
#[must_use]
pub fn cluster_set_label(server: &str) -> String {
    let hash: String = Sha256::digest(server)
        .iter()
        .map(|byte| format!("{byte:02x}"))
        .collect();
    format!("{CLUSTER_SET_LABEL_PREFIX}{}", hash.get(..63).unwrap_or(&hash))
}

/// Writes for ever.
pub async fn run(context: &Context) {
    let state = &context.state;
    let mut hub = state.hub.subscribe();
    let mut cluster = state.cluster.subscribe();
    let mut facts = state.facts.subscribe();
    let mut rotation = state.rotation.subscribe();
    let mut failures = 0u32;
    let mut spoken: Option<Instant> = None;
    let mut repeats = 0u32;
    // The availability that we wrote last.
    let mut said: Option<String> = None;
    let mut namespaces = BTreeMap::new();
    // Gathered meanwhile: the first write says all.
    known_or_late(context).await;
    loop {
        let access = hub.borrow_and_update().clone();
        let seen = cluster.borrow_and_update().cluster().cloned();
        let report = Report {
            facts: facts.borrow_and_update().clone(),
            rotation: rotation.borrow_and_update().clone(),
            namespaces: std::mem::take(&mut namespaces),
        };
        let work = access.zip(seen.filter(|cluster| is_accepted(cluster)));
        let mut pause = Duration::MAX;
        if let Some((access, seen)) = work {
            // Somebody wrote something else since. The hub says Unknown where its view of the lease is old; another agent of this
            // spoke says True where only we cannot reach it.
            let contradicts = said.as_ref().is_some_and(|said| *said != availability(&seen));
            let too_soon = spoken.filter(|spoken| {
                contradicts && repeats > 0 && spoken.elapsed() < backoff(repeats, Duration::from_secs(1), FIGHT / 2)
            });
            if let Some(spoken) = too_soon {
                pause = backoff(repeats, Duration::from_secs(1), FIGHT / 2).saturating_sub(spoken.elapsed());
            } else {
                let report = Report {
                    namespaces: apply_namespaces(context, &access, &seen).await,
                    ..report
                };
                namespaces.clone_from(&report.namespaces);
                match write(context, &access, &seen, &report).await {
                    Ok(wrote) => {
                        failures = 0;
                        if wrote.is_some() {
                            said = wrote;
                            repeats = if spoken.is_some_and(|spoken| spoken.elapsed() < FIGHT) && contradicts {
                                repeats + 1
                            } else {
                                u32::from(contradicts)
                            };
                            spoken = Some(Instant::now());
                        }
                    }
                    Err(error) => {
                        failures = failures.saturating_add(1);
                        if is_unauthorized(&error) {
                            rejected(context, &access);
                        }
                        // The agent's rights come a moment after the acceptance.
                        pause = match error.cause() {
                            Cause::Forbidden if failures <= 50 => Duration::from_millis(20),
                            Cause::Conflict => Duration::ZERO,
                            _ => {
                                context.log.error("cannot report to the hub; trying again", &error);
                                backoff(failures.min(6), Duration::from_secs(1), Duration::from_secs(30))
                            }
                        };
                        if error.cause() == Cause::Conflict
                            && let Ok(found) = Hub::new(&access, &context.options.cluster_name).cluster().await
                        {
                            see(context, found);
                        }
                    }
                }
            }
        }
        let wait = async {
            if pause == Duration::MAX {
                std::future::pending::<()>().await;
            } else {
                tokio::time::sleep(pause).await;
            }
        };
        tokio::select! {
            () = wait => {}
            _ = hub.changed() => {}
            _ = cluster.changed() => {}
            _ = facts.changed() => {}
            _ = rotation.changed() => {}
        }
    }
}

/// Status of the condition that tells the spoke's availability; empty where there is none.
fn availability(cluster: &ManagedCluster) -> String {
    conditions::get(cluster, AVAILABLE).map_or_else(String::new, |condition| condition.status.clone())
}

/// Writes what is to be written. Returns the availability that the hub shows afterwards; `None` where there was nothing to
/// write.
async fn write(
    context: &Context,
    access: &Arc<HubAccess>,
    seen: &ManagedCluster,
    report: &Report,
) -> Result<Option<String>> {
    let hub = Hub::new(access, &context.options.cluster_name);
    let mut wrote = None;
    if let Some(patch) = status_patch(seen, report, Timestamp::now()) {
        let after = hub.patch_status(&patch).await?;
        context.state.metrics.status_patches.fetch_add(1, Ordering::Relaxed);
        wrote = Some(availability(&after));
        if availability(seen) != availability(&after)
            && let Some(condition) = conditions::get(&after, AVAILABLE)
        {
            // A record for people; that it cannot be made stops nothing.
            let (reason, message, good) = (&condition.reason, &condition.message, condition.status == "True");
            if let Err(error) = hub.record(&after, reason, message, good, Timestamp::now()).await {
                context.log.error("cannot record an event on the hub", &error);
            }
        }
        see(context, Some(after));
    }
    let current = context.state.cluster.borrow().cluster().cloned();
    if let Some(changed) =
        current.and_then(|cluster| with_urls(&cluster, &context.identity.urls, context.ca_bundle.as_deref()))
    {
        match hub.replace_cluster(&changed).await {
            Ok(after) => {
                context.log.info(
                    "external addresses were added",
                    &[("addresses", &context.identity.urls.join(", "))],
                );
                see(context, Some(after));
            }
            Err(error) if error.cause() == Cause::Forbidden => {
                context
                    .log
                    .error("the hub does not let this agent add its external addresses", &error);
            }
            Err(error) => return Err(error),
        }
    }
    Ok(wrote)
}

/// Makes the namespaces that the hub wants, and unmarks those that it does not want any more.
async fn apply_namespaces(
    context: &Context,
    access: &HubAccess,
    seen: &ManagedCluster,
) -> BTreeMap<String, Result<(), String>> {
    let mut results = BTreeMap::new();
    let wanted = &seen.status.managed_namespaces;
    let label = cluster_set_label(&access.endpoint.server);
    let is_applied = |namespace: &crate::resources::ManagedNamespace| {
        namespace
            .conditions
            .iter()
            .any(|condition| condition.type_ == conditions::NAMESPACE_AVAILABLE && condition.status == "True")
    };
    for namespace in wanted {
        let result = if is_applied(namespace) {
            Ok(())
        } else {
            context
                .spoke
                .apply_namespace(&namespace.name, &label, "true")
                .await
                .map_err(|error| error.to_string())
        };
        results.insert(namespace.name.clone(), result);
    }
    let before = context.state.managed_namespaces.load(Ordering::Relaxed);
    if before == wanted.len() {
        return results;
    }
    context.state.managed_namespaces.store(wanted.len(), Ordering::Relaxed);
    if let Ok(marked) = context.spoke.namespaces_with(&label, "true").await {
        for name in marked
            .into_iter()
            .filter(|name| !wanted.iter().any(|namespace| namespace.name == *name))
        {
            if let Err(error) = context.spoke.apply_namespace(&name, &label, "false").await {
                context
                    .log
                    .error("cannot unmark a namespace that the hub does not want any more", &error);
            }
        }
    }
    results
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_label_is_as_long_as_labels_may_be() {
        let label = cluster_set_label("https://127.0.0.1:6443");
        let name = label.strip_prefix(CLUSTER_SET_LABEL_PREFIX).unwrap();
        assert_eq!(name.len(), 63);
        assert!(name.bytes().all(|byte| byte.is_ascii_hexdigit()));
        assert_ne!(label, cluster_set_label("https://127.0.0.2:6443"));
    }
}
