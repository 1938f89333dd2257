//! One agent a spoke: a Lease that its holder renews, by the rules of client-go's leader election. Whether it is stale is
//! judged by our own clock since the last change that was seen, never by the times in it.

use std::time::{Duration, Instant};

use jiff::Timestamp;
use k8s_openapi::{
    api::coordination::v1::{Lease, LeaseSpec},
    apimachinery::pkg::apis::meta::v1::{MicroTime, ObjectMeta},
};
use kube::api::PostParams;
use sha2::Digest as _;
use shared::{Error, Result, error::Cause};

use super::{
    Context, random,
    state::{Trouble, TroubleKind, set},
};
use crate::{names::AGENT_LEASE, spoke::absent};

/// How long a holder that is silent keeps the lease.
pub const DURATION: Duration = Duration::from_secs(45);
/// How often the holder renews.
const RENEW: Duration = Duration::from_secs(30);
/// How often the others look, and a failed renewal is tried again.
const RETRY: Duration = Duration::from_secs(3);

/// Who holds a lease, as far as it can be seen now.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Holder {
    /// Nobody, or one that was silent for too long.
    Nobody,
    /// Us.
    Us,
    /// Another.
    Other(String),
}

/// What was seen of a lease, and since when it is unchanged.
#[derive(Clone, Debug, Default)]
pub struct Observed {
    record: Option<(String, Option<Timestamp>)>,
    since: Option<Instant>,
}

impl Observed {
    /// Takes what is seen at `now`, and judges it. `is_dead` tells whether a holder is known to have ended.
    pub fn observe(&mut self, lease: Option<&Lease>, us: &str, now: Instant, is_dead: impl Fn(&str) -> bool) -> Holder {
        let spec = lease.and_then(|lease| lease.spec.clone()).unwrap_or_default();
        let holder = spec.holder_identity.clone().unwrap_or_default();
        if holder.is_empty() {
            return Holder::Nobody;
        }
        if holder == us {
            return Holder::Us;
        }
        if is_dead(&holder) {
            return Holder::Nobody;
        }
        let record = (holder.clone(), spec.renew_time.map(|time| time.0));
        if self.record.as_ref() != Some(&record) {
            self.record = Some(record);
            self.since = Some(now);
        }
        let lasts = spec
            .lease_duration_seconds
            .and_then(|seconds| u64::try_from(seconds).ok())
            .map_or(DURATION, Duration::from_secs);
        if self
            .since
            .is_some_and(|since| now.saturating_duration_since(since) >= lasts)
        {
            Holder::Nobody
        } else {
            Holder::Other(holder)
        }
    }
}

/// Holds the lease for as long as it is polled. Sets `is_leader`.
pub async fn hold(context: &Context) {
    let us = identity();
    let mut observed = Observed::default();
    let mut held_until: Option<Instant> = None;
    loop {
        let pause = match attempt(context, &us, &mut observed).await {
            Ok(Holder::Us | Holder::Nobody) => {
                held_until = Some(Instant::now() + DURATION);
                if set(&context.state.is_leader, true) {
                    context.trouble(None);
                }
                RENEW
            }
            Ok(Holder::Other(other)) => {
                held_until = None;
                set(&context.state.is_leader, false);
                context.trouble(Some(Trouble {
                    kind: TroubleKind::OtherAgent,
                    text: format!(
                        "another agent runs for this spoke ({other} holds Lease {}/{AGENT_LEASE}): this one waits until it ends",
                        context.spoke.namespace
                    ),
                }));
                RETRY
            }
            Err(error) => {
                if held_until.is_none_or(|until| Instant::now() >= until) {
                    // After that somebody else may get it. But a spoke that does not answer gives it to nobody, and the hub has to
                    // be told that it does not answer: then the work goes on until another holder is seen.
                    if !error.is_retryable() {
                        set(&context.state.is_leader, false);
                    }
                    context.trouble(Some(Trouble {
                        kind: TroubleKind::Spoke,
                        text: error.to_string(),
                    }));
                }
                RETRY
            }
        };
        tokio::time::sleep(pause).await;
    }
}

/// Names this process: `HOST_PLACE_PID_RANDOM`. The place is where process numbers are unique: this boot of this machine,
/// and this namespace of processes.
fn identity() -> String {
    let host = shared::machine::host_name().replace('_', "-");
    let random = random::<3>()
        .unwrap_or_default()
        .map(|byte| format!("{byte:02x}"))
        .concat();
    format!("{host}_{}_{}_{random}", place(), std::process::id())
}

fn place() -> String {
    let boot = std::fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap_or_default();
    let namespace = std::fs::read_link("/proc/self/ns/pid")
        .map(|path| path.display().to_string())
        .unwrap_or_default();
    let hash = sha2::Sha256::digest(format!("{boot}{namespace}"));
    hash.iter().take(4).map(|byte| format!("{byte:02x}")).collect()
}

/// Whether a holder is known to have ended, as it was a process beside this one.
#[must_use]
pub fn is_known_dead(holder: &str) -> bool {
    has_ended(holder, &place())
}

/// Whether a holder was a process beside this one and has ended: killed, it could not give the lease back.
fn has_ended(holder: &str, place: &str) -> bool {
    let mut parts = holder.rsplit('_');
    let (_, pid, of) = (parts.next(), parts.next(), parts.next());
    let Some(pid) = pid.and_then(|pid| pid.parse::<u32>().ok()) else {
        return false;
    };
    of == Some(place)
        && std::path::Path::new("/proc/self").exists()
        && !std::path::Path::new(&format!("/proc/{pid}")).exists()
}

/// Takes or renews it if it is ours to take.
async fn attempt(context: &Context, us: &str, observed: &mut Observed) -> Result<Holder> {
    let (spoke, leases) = (&context.spoke, context.spoke.leases());
    let what = format!("hold Lease {}/{AGENT_LEASE} of the spoke", spoke.namespace);
    let found = absent(spoke.cluster.call(&what, leases.get(AGENT_LEASE)).await)?;
    let place = place();
    let holder = observed.observe(found.as_ref(), us, Instant::now(), |holder| has_ended(holder, &place));
    if let Holder::Other(_) = holder {
        return Ok(holder);
    }
    let now = MicroTime(Timestamp::now());
    let mut spec = found.as_ref().and_then(|lease| lease.spec.clone()).unwrap_or_default();
    if holder == Holder::Nobody {
        spec.acquire_time = Some(now.clone());
        spec.lease_transitions = Some(spec.lease_transitions.unwrap_or(0).saturating_add(1));
    }
    spec.holder_identity = Some(us.to_owned());
    spec.renew_time = Some(now);
    spec.lease_duration_seconds = i32::try_from(DURATION.as_secs()).ok();
    let result = match found {
        Some(mut lease) => {
            lease.spec = Some(spec);
            spoke
                .cluster
                .call(&what, leases.replace(AGENT_LEASE, &PostParams::default(), &lease))
                .await
        }
        None => {
            let lease = new_lease(spec);
            let created = spoke
                .cluster
                .call(&what, leases.create(&PostParams::default(), &lease))
                .await;
            match created {
                Err(error) if error.is_not_found() => {
                    spoke.create_namespace().await?;
                    spoke
                        .cluster
                        .call(&what, leases.create(&PostParams::default(), &lease))
                        .await
                }
                other => other,
            }
        }
    };
    match result {
        Ok(_) => Ok(Holder::Us),
        Err(error) if matches!(error.cause(), Cause::Conflict | Cause::AlreadyExists) => {
            Ok(Holder::Other("somebody who was faster".into()))
        }
        Err(error) => Err(error),
    }
}

fn new_lease(spec: LeaseSpec) -> Lease {
    Lease {
        metadata: ObjectMeta {
            name: Some(AGENT_LEASE.to_owned()),
            ..ObjectMeta::default()
        },
        spec: Some(spec),
    }
}

/// Gives it back, so that the next agent need not wait.
///
/// # Errors
/// As the API says.
pub async fn release(context: &Context) -> Result<()> {
    let (spoke, leases) = (&context.spoke, context.spoke.leases());
    let what = format!("give back Lease {}/{AGENT_LEASE} of the spoke", spoke.namespace);
    let mut lease = spoke.cluster.call(&what, leases.get(AGENT_LEASE)).await?;
    let spec = lease.spec.get_or_insert_default();
    let ours = format!("_{}_{}_", place(), std::process::id());
    if !spec
        .holder_identity
        .as_ref()
        .is_some_and(|holder| holder.contains(&ours))
    {
        return Err(Error::new("the Lease is another's"));
    }
    spec.holder_identity = Some(String::new());
    spoke
        .cluster
        .call(&what, leases.replace(AGENT_LEASE, &PostParams::default(), &lease))
        .await?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lease(holder: &str, renewed: i64) -> Lease {
        new_lease(LeaseSpec {
            holder_identity: Some(holder.into()),
            renew_time: Some(MicroTime(Timestamp::from_second(renewed).unwrap())),
            lease_duration_seconds: Some(45),
            ..LeaseSpec::default()
        })
    }

    #[test]
    fn a_holder_is_stale_by_our_clock_and_since_its_last_change() {
        let alive = |_: &str| false;
        let mut observed = Observed::default();
        let start = Instant::now();
        let at = |seconds| start + Duration::from_secs(seconds);
        assert_eq!(observed.observe(None, "us", at(0), alive), Holder::Nobody);
        assert_eq!(
            observed.observe(Some(&lease("", 0)), "us", at(0), alive),
            Holder::Nobody
        );
        assert_eq!(observed.observe(Some(&lease("us", 0)), "us", at(0), alive), Holder::Us);
        let other = Holder::Other("other".into());
        assert_eq!(
            observed.observe(Some(&lease("other", 1)), "us", at(0), |_| true),
            Holder::Nobody,
            "it was killed"
        );
        assert_eq!(
            observed.observe(Some(&lease("other", 1)), "us", at(0), alive),
            other,
            "however old its time is"
        );
        assert_eq!(observed.observe(Some(&lease("other", 1)), "us", at(44), alive), other);
        assert_eq!(
            observed.observe(Some(&lease("other", 2)), "us", at(44), alive),
            other,
            "it renewed"
        );
        assert_eq!(observed.observe(Some(&lease("other", 2)), "us", at(88), alive), other);
        assert_eq!(
            observed.observe(Some(&lease("other", 2)), "us", at(89), alive),
            Holder::Nobody
        );
    }

    #[test]
    fn only_a_process_beside_this_one_is_known_to_have_ended() {
        let us = identity();
        assert!(!has_ended(&us, &place()), "{us}");
        let here = place();
        assert!(
            has_ended(&format!("host_{here}_4194305_abcdef"), &here),
            "no process has so large a number"
        );
        assert!(!has_ended("host_00000000_4194305_abcdef", &here));
        assert!(!has_ended("somebody", &here) && !has_ended("", &here));
    }
}
