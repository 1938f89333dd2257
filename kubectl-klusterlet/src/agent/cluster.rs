//! Watches our ManagedCluster: with the certificate once the hub has accepted, before that with the bootstrap credentials,
//! which may read it earlier.

use std::{sync::Arc, time::Duration};

use shared::error::Cause;
use tokio::sync::watch;

use super::{
    Context,
    state::{Seen, Trouble, TroubleKind, set},
    trouble_at,
};
use crate::{
    connection::{Credentials, HubAccess, is_unauthorized},
    follow::{Change, follow},
    hub::Hub,
    registration::{is_accepted, is_denied, stage},
    resources::ManagedCluster,
    timing::backoff,
};

/// Watches for ever.
pub async fn run(context: &Context) {
    let state = &context.state;
    let (mut hub, mut bootstrap) = (state.hub.subscribe(), state.bootstrap.subscribe());
    let mut certificate_is_refused = false;
    let mut failures = 0u32;
    loop {
        let (with_certificate, with_bootstrap) =
            (hub.borrow_and_update().clone(), bootstrap.borrow_and_update().clone());
        let accepted = state
            .cluster
            .borrow()
            .cluster()
            .is_some_and(|cluster| is_accepted(cluster));
        let access = match (with_certificate, with_bootstrap) {
            (Some(certificate), None) => certificate,
            (Some(certificate), Some(_)) if accepted && !certificate_is_refused => certificate,
            (_, Some(bootstrap)) => bootstrap,
            (None, None) => {
                tokio::select! { _ = hub.changed() => {} _ = bootstrap.changed() => {} }
                certificate_is_refused = false;
                continue;
            }
        };
        let is_bootstrap = access.credentials == Credentials::Bootstrap;
        let waits = is_bootstrap && hub.borrow().is_some();
        let mut cluster = state.cluster.subscribe();
        tokio::select! {
            // Unless something changes, it ends with an error only.
            error = watch_one(context, &access) => {
                failures = failures.saturating_add(1);
                if is_unauthorized(&error) {
                    if is_bootstrap { state.bootstrap.send_if_modified(|old| old.take().is_some()); } else { rejected(context, &access); }
                    context.cluster_trouble(Some(trouble_at(&error, &access.endpoint)));
                } else if error.cause() == Cause::Forbidden && !is_bootstrap {
                    known(context, &access);
                    if !accepted && bootstrap.borrow().is_none() {
                        super::credentials::offer_bootstrap(context);
                    }
                    // Its rights come a moment after the acceptance; later it means that there are none any more.
                    if failures > 20 {
                        certificate_is_refused = true;
                        let told = match bootstrap.borrow().as_ref() {
                            Some(bootstrap) => Hub::new(bootstrap, &context.options.cluster_name).cluster().await.ok(),
                            None => None,
                        };
                        match told {
                            Some(Some(cluster)) => see(context, Some(cluster)),
                            Some(None) => see(context, None),
                            None => {
                                set(&state.cluster, Seen::Unknown);
                                context.cluster_trouble(Some(Trouble {
                                    kind: TroubleKind::Forbidden,
                                    text: format!(
                                        "the hub lets this agent not even read ManagedCluster {0}: it is not accepted yet, or was deleted; \
                                         the hub's administrator sees which: kubectl get managedcluster {0}",
                                        context.options.cluster_name
                                    ),
                                }));
                            }
                        }
                    }
                } else {
                    context.cluster_trouble(Some(trouble_at(&error, &access.endpoint)));
                }
                let soon = error.cause() == Cause::Forbidden && failures <= 20;
                let pause = if soon { Duration::from_millis(50) } else { backoff(failures.min(6), Duration::from_secs(1), Duration::from_secs(30)) };
                tokio::select! {
                    () = tokio::time::sleep(pause) => {}
                    _ = hub.changed() => { certificate_is_refused = false; }
                    _ = bootstrap.changed() => {}
                    () = state.reconnect.notified() => {}
                }
            }
            () = acceptance(&mut cluster, waits) => { failures = 0; certificate_is_refused = false; }
            _ = hub.changed() => { failures = 0; certificate_is_refused = false; }
            _ = bootstrap.changed(), if is_bootstrap => { failures = 0; }
            () = state.reconnect.notified() => {}
        }
    }
}

/// Resolves when the hub accepts, if that is waited for: then the certificate may watch by itself.
async fn acceptance(cluster: &mut watch::Receiver<Seen>, waits: bool) {
    if !waits
        || cluster
            .wait_for(|seen| seen.cluster().is_some_and(|cluster| is_accepted(cluster)))
            .await
            .is_err()
    {
        std::future::pending::<()>().await;
    }
    // Its rights are there in a moment, while this watch still tells what is new.
    tokio::time::sleep(Duration::from_secs(2)).await;
}

async fn watch_one(context: &Context, access: &HubAccess) -> shared::Error {
    let name = &context.options.cluster_name;
    let hub = Hub::new(access, name);
    let mut listed: Option<ManagedCluster> = None;
    let mut complete = false;
    let what = format!("ManagedCluster {name} of the hub");
    follow(
        &access.cluster,
        &hub.clusters(),
        &what,
        Some(&format!("metadata.name={name}")),
        |change| match change {
            Change::Begin => {
                listed = None;
                complete = false;
            }
            Change::Set(cluster) if complete => see(context, Some(cluster)),
            Change::Set(cluster) => listed = Some(cluster),
            Change::Gone(_) => see(context, None),
            Change::Complete => {
                complete = true;
                known(context, access);
                see(context, listed.take());
            }
        },
    )
    .await
}

/// The hub knows this certificate.
fn known(context: &Context, access: &HubAccess) {
    if let Credentials::Certificate(fingerprint) = access.credentials {
        set(&context.state.known, Some(fingerprint));
    }
}

/// The hub said 401 to this certificate.
pub fn rejected(context: &Context, access: &HubAccess) {
    if let Credentials::Certificate(fingerprint) = access.credentials
        && set(&context.state.rejected, Some(fingerprint))
    {
        context.state.look_again.notify_one();
    }
}

/// Takes what was seen, and tells what it means. An older version than the one known changes nothing.
pub fn see(context: &Context, cluster: Option<ManagedCluster>) {
    let state = &context.state;
    let name = &context.options.cluster_name;
    let Some(cluster) = cluster else {
        // Before the registration there is nothing to miss.
        let was_there = state.snapshot.borrow().registered;
        set(&state.cluster, Seen::Absent);
        state.update(|snapshot| snapshot.stage = None);
        if was_there || state.hub.borrow().is_some() {
            context.cluster_trouble(Some(Trouble {
                kind: TroubleKind::ClusterDeleted,
                text: format!(
                    "ManagedCluster {name} is not on the hub any more: its administrator deleted it; to register again run: kubectl klusterlet join"
                ),
            }));
        }
        return;
    };
    let version = |cluster: &ManagedCluster| {
        cluster
            .metadata
            .resource_version
            .as_deref()
            .and_then(|text| text.parse::<u64>().ok())
    };
    if let Some(old) = state.cluster.borrow().cluster()
        && old.metadata.uid == cluster.metadata.uid
        && version(old) > version(&cluster)
    {
        return;
    }
    let now = stage(&cluster);
    let denied = is_denied(&cluster);
    if state.update(|snapshot| {
        snapshot.registered = true;
        snapshot.stage = Some(now);
    }) {
        context.log.info(
            "the hub shows the cluster",
            &[("cluster", name), ("stage", &format!("{now:?}").to_lowercase())],
        );
    }
    context.cluster_trouble(denied.then(|| Trouble {
        kind: TroubleKind::ClusterDenied,
        text: format!(
            "the hub's administrator does not accept ManagedCluster {name} any more (hubAcceptsClient is false); to accept it again: kubectl klusterlet --context HUB accept {name}"
        ),
    }));
    set(&state.cluster, Seen::Present(Arc::new(cluster)));
}
