//! One run at a time: a Lease in kube-system says who is at work.

use crate::cluster::ControlPlane;
use crate::names::FIELD_MANAGER;
use crate::node::process::Processes;
use k8s_openapi::api::coordination::v1::{Lease, LeaseSpec};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{MicroTime, ObjectMeta};
use shared::error::Cause;
use shared::{Error, Result};
use std::collections::BTreeMap;
use std::path::Path;
use std::time::Duration;
use tokio::sync::watch;
use tokio::task::JoinHandle;
use tokio::time::Instant;

/// Name of the Lease.
pub const LEASE: &str = "kubectl-selfhost";
/// How long a holder that does not renew is respected. Measured by the clock of the one who waits, so that clocks that
/// differ do no harm.
const DURATION: Duration = Duration::from_secs(15);
const RENEW: Duration = Duration::from_secs(3);
const LOOK: Duration = Duration::from_secs(1);

/// Who is at work: machine, process, and when the process started, which tells apart processes that had one id.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Identity {
    host: String,
    process: u32,
    started: u64,
}

impl Identity {
    fn of_this_process() -> Self {
        let process = std::process::id();
        Self {
            host: shared::machine::host_name(),
            process,
            started: started(process),
        }
    }

    fn text(&self) -> String {
        format!("{}/{}/{}", self.host, self.process, self.started)
    }

    fn parse(text: &str) -> Option<Self> {
        let mut parts = text.rsplitn(3, '/');
        let (started, process, host) = (parts.next()?, parts.next()?, parts.next()?);
        Some(Self {
            host: host.to_owned(),
            process: process.parse().ok()?,
            started: started.parse().ok()?,
        })
    }

    /// Whether it is a process of this machine that is gone: it can be followed at once.
    fn is_gone(&self, own: &Self, started: impl Fn(u32) -> u64) -> bool {
        self.host == own.host && started(self.process) != self.started
    }
}

/// Clock ticks since boot; 0 where there is no such process, or no `/proc`.
fn started(process: u32) -> u64 {
    Processes::new(Path::new("/proc")).started(process).unwrap_or_default()
}

fn holder(lease: &Lease) -> Option<&str> {
    let spec = lease.spec.as_ref()?;
    spec.holder_identity.as_deref().filter(|holder| !holder.is_empty())
}

/// What a Lease that somebody holds means.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Standing {
    /// Nobody holds it, or one who is gone, or one who has not renewed it for long enough.
    Free,
    /// It was renewed while we looked.
    Held(String),
    /// Not known yet.
    Unclear,
}

/// What was seen of the holder first, and how long ago.
type Seen<'a> = Option<(&'a Lease, Duration)>;

fn judge(lease: &Lease, own: &Identity, seen: Seen<'_>, started: impl Fn(u32) -> u64) -> Standing {
    let Some(holder) = holder(lease) else {
        return Standing::Free;
    };
    if Identity::parse(holder).is_some_and(|identity| identity.is_gone(own, started)) {
        return Standing::Free;
    }
    match seen {
        Some((before, _)) if before.metadata.resource_version != lease.metadata.resource_version => {
            Standing::Held(holder.to_owned())
        }
        Some((_, since)) if since >= DURATION => Standing::Free,
        _ => Standing::Unclear,
    }
}

/// The lock, held. Dropped, it is not renewed any more; [`RunLock::release`] frees it at once.
#[derive(Debug)]
pub struct RunLock {
    control_plane: ControlPlane,
    own: Identity,
    renewal: JoinHandle<()>,
    lost: watch::Receiver<bool>,
}

impl RunLock {
    /// Takes the lock. A holder that does not renew it is waited for, up to 15 s.
    ///
    /// # Errors
    /// Somebody else is at work, or as the API says.
    pub async fn acquire(control_plane: &ControlPlane, waiting: impl Fn(&str)) -> Result<Self> {
        let own = Identity::of_this_process();
        let mut seen: Option<(Lease, Instant)> = None;
        loop {
            let found = control_plane.lease(LEASE).await?;
            let Some(lease) = found else {
                match control_plane.create_lease(&lease_of(&own, None)).await {
                    Ok(()) => break,
                    Err(error) if error.cause() == Cause::Conflict => continue,
                    Err(error) => return Err(error),
                }
            };
            let before = seen.as_ref().map(|(lease, at)| (lease, at.elapsed()));
            match judge(&lease, &own, before, started) {
                Standing::Free => match control_plane.replace_lease(&lease_of(&own, Some(&lease))).await {
                    Ok(()) => break,
                    Err(error) if error.cause() == Cause::Conflict => seen = None,
                    Err(error) if error.is_not_found() => {}
                    Err(error) => return Err(error),
                },
                Standing::Held(holder) => return Err(held_by(&holder)),
                Standing::Unclear => {
                    let holder = holder(&lease).unwrap_or_default();
                    waiting(&format!(
                        "another run ({}) to end or to show that it lives",
                        describe(holder)
                    ));
                    seen.get_or_insert((lease, Instant::now()));
                    tokio::time::sleep(LOOK).await;
                }
            }
        }
        let (tell, lost) = watch::channel(false);
        let renewal = tokio::spawn(renew(control_plane.clone(), own.clone(), tell));
        Ok(Self {
            control_plane: control_plane.clone(),
            own,
            renewal,
            lost,
        })
    }

    /// Ends when somebody else has taken the lock, with the error to end with.
    pub async fn lost(&self) -> Error {
        let mut lost = self.lost.clone();
        if lost.wait_for(|lost| *lost).await.is_err() {
            std::future::pending::<()>().await;
        }
        Error::new("another run has taken over")
            .because(format!(
                "the Lease kube-system/{LEASE} was not renewed in time, and somebody else holds it now"
            ))
            .hint("see `kubectl selfhost status`, and run the command again when the other one has ended")
    }

    /// Frees it. At worst it runs out by itself.
    pub async fn release(self) {
        self.renewal.abort();
        if let Ok(Some(lease)) = self.control_plane.lease(LEASE).await
            && holder(&lease) == Some(&self.own.text())
        {
            let _ = self.control_plane.delete_lease(&lease).await;
        }
    }
}

fn held_by(holder: &str) -> Error {
    Error::refused("another run of this program is at work on this cluster")
        .because(format!(
            "the Lease kube-system/{LEASE} is held, and renewed, by {}",
            describe(holder)
        ))
        .hint("wait until it has ended; nothing was changed by this one")
}

/// A holder for people.
fn describe(holder: &str) -> String {
    match Identity::parse(holder) {
        Some(identity) => format!("process {} on {}", identity.process, identity.host),
        None => shared::printer::printable(holder).into_owned(),
    }
}

async fn renew(control_plane: ControlPlane, own: Identity, lost: watch::Sender<bool>) {
    loop {
        tokio::time::sleep(RENEW).await;
        match control_plane.lease(LEASE).await {
            Ok(Some(lease)) if holder(&lease) == Some(&own.text()) => {
                // an API that is away for a moment is ordinary here; a conflict is looked at the next time
                let _ = control_plane.replace_lease(&lease_of(&own, Some(&lease))).await;
            }
            Ok(_) => {
                let _ = lost.send(true);
                return;
            }
            Err(_) => {}
        }
    }
}

fn lease_of(own: &Identity, before: Option<&Lease>) -> Lease {
    let now = MicroTime(jiff::Timestamp::now());
    let kept = before
        .filter(|lease| holder(lease) == Some(&own.text()))
        .and_then(|lease| lease.spec.clone());
    Lease {
        metadata: before.map_or_else(
            || ObjectMeta {
                name: Some(LEASE.to_owned()),
                labels: Some(BTreeMap::from([(
                    "app.kubernetes.io/managed-by".to_owned(),
                    FIELD_MANAGER.to_owned(),
                )])),
                ..ObjectMeta::default()
            },
            |lease| lease.metadata.clone(),
        ),
        spec: Some(LeaseSpec {
            holder_identity: Some(own.text()),
            lease_duration_seconds: i32::try_from(DURATION.as_secs()).ok(),
            acquire_time: kept.and_then(|spec| spec.acquire_time).or_else(|| Some(now.clone())),
            renew_time: Some(now),
            ..LeaseSpec::default()
        }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn identity(host: &str, process: u32, started: u64) -> Identity {
        Identity {
            host: host.into(),
            process,
            started,
        }
    }

    fn lease(holder: &str, version: &str) -> Lease {
        serde_json::from_value(
            serde_json::json!({"metadata": {"resourceVersion": version}, "spec": {"holderIdentity": holder}}),
        )
        .unwrap()
    }

    #[test]
    fn one_who_is_gone_or_silent_is_followed_and_one_who_renews_is_respected() {
        let own = identity("here", 1, 10);
        let running = |process| if process == 7 { 70 } else { 0 };
        let (short, long) = (Duration::from_secs(3), DURATION);
        let old = |holder: &str| lease(holder, "1");
        for (holder, seen, expected) in [
            ("", None, Standing::Free),
            ("here/8/80", None, Standing::Free),
            ("here/7/71", None, Standing::Free),
            ("here/7/70", None, Standing::Unclear),
            ("there/8/80", None, Standing::Unclear),
            ("somebody", None, Standing::Unclear),
            ("there/8/80", Some(("1", short)), Standing::Unclear),
            ("there/8/80", Some(("1", long)), Standing::Free),
            ("there/8/80", Some(("0", short)), Standing::Held("there/8/80".into())),
            ("there/8/80", Some(("0", long)), Standing::Held("there/8/80".into())),
        ] {
            let before = seen.map(|(version, since)| (lease(holder, version), since));
            let before = before.as_ref().map(|(lease, since)| (lease, *since));
            assert_eq!(
                judge(&old(holder), &own, before, running),
                expected,
                "{holder} {seen:?}"
            );
        }
    }

    #[test]
    fn identities_are_read_back() {
        let one = identity("a/b", 7, 70);
        assert_eq!(Identity::parse(&one.text()), Some(one));
        assert_eq!(Identity::parse("node1_c0ffee"), None);
        assert_eq!(describe("host/7/70"), "process 7 on host");
    }
}
