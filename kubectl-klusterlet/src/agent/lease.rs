//! Keeps the cluster's lease on the hub alive while the hub accepts the cluster.

use std::{
    sync::atomic::Ordering,
    time::{Duration, Instant},
};

use jiff::Timestamp;
use k8s_openapi::api::coordination::v1::Lease;
use shared::{Result, error::Cause};

use super::{Context, random_byte, state::Seen};
use crate::{
    conditions,
    connection::{HubAccess, is_unauthorized},
    hub::Hub,
    registration::is_accepted,
    timing::{jittered, lease_period, lease_retry},
};

/// Renews for ever.
pub async fn run(context: &Context) {
    let state = &context.state;
    let (mut hub, mut cluster) = (state.hub.subscribe(), state.cluster.subscribe());
    let mut last: Option<Lease> = None;
    let mut failures = 0u32;
    let mut due: Option<Instant> = None;
    loop {
        let access = hub.borrow_and_update().clone();
        let period = match &*cluster.borrow_and_update() {
            // The hub may take its acceptance back: then there is no right to renew.
            Seen::Present(cluster) if is_accepted(cluster) => Some(lease_period(cluster.spec.lease_duration_seconds)),
            _ => None,
        };
        let (Some(access), Some(period)) = (access, period) else {
            due = None;
            last = None;
            tokio::select! { _ = hub.changed() => {} _ = cluster.changed() => {} }
            continue;
        };
        // A shorter period counts from the last renewal on.
        let next = due.unwrap_or_else(Instant::now).min(Instant::now() + period);
        tokio::select! {
            () = tokio::time::sleep_until(next.into()) => {}
            _ = hub.changed() => { last = None; continue }
            _ = cluster.changed() => { due = Some(next); continue }
        }
        let pause = match renew(context, &access, last.take()).await {
            Ok(lease) => {
                if failures > 0 {
                    context
                        .log
                        .info("the lease is renewed again", &[("failures", &failures)]);
                }
                failures = 0;
                last = Some(lease);
                state.metrics.lease_renewals.fetch_add(1, Ordering::Relaxed);
                let _ = state.renewed.send_replace(Some(Instant::now()));
                jittered(period, random_byte())
            }
            Err(error) => {
                failures = failures.saturating_add(1);
                state.metrics.lease_failures.fetch_add(1, Ordering::Relaxed);
                // Rights and the lease itself come a moment after the acceptance.
                let soon = matches!(error.cause(), Cause::NotFound | Cause::Forbidden) && failures <= 20;
                if failures == 1 && !soon || failures.is_multiple_of(10) {
                    context.log.error("cannot renew the lease; trying again", &error);
                }
                if is_unauthorized(&error) {
                    super::cluster::rejected(context, &access);
                } else if matches!(error.cause(), Cause::TimedOut | Cause::Unreachable)
                    || (error.cause() == Cause::Forbidden && failures == 21)
                {
                    state.reconnect.notify_one();
                }
                if soon {
                    Duration::from_millis(100)
                } else {
                    lease_retry(failures, period)
                }
            }
        };
        due = Some(Instant::now() + pause);
    }
}

async fn renew(context: &Context, access: &HubAccess, last: Option<Lease>) -> Result<Lease> {
    let hub = Hub::new(access, &context.options.cluster_name);
    let lease = match last {
        Some(lease) => lease,
        None => hub.lease().await?,
    };
    let answer = match hub.renew(lease, Timestamp::now()).await {
        Err(error) if error.cause() == Cause::Conflict => hub.renew(hub.lease().await?, Timestamp::now()).await?,
        other => other?,
    };
    if let Some(skew) = answer.1 {
        context.clock(skew);
    }
    if let Some(cluster) = context.state.cluster.borrow().cluster()
        && conditions::is_false(cluster, conditions::CLOCK_SYNCED)
    {
        context.log.warning(
            "the hub takes this machine's clock for wrong, and takes no status until it is right",
            &[],
        );
    }
    Ok(answer.0)
}
