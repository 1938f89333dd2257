//! When an apiserver that is replaced lets go of its address behind the Service `default/kubernetes`.
//!
//! It takes the address out when it is told to stop, and its successor, which has the same address, puts it back at its next
//! reconciliation: the first is when it gets ready, the next ones 10 s apart (k8s.io/kubernetes
//! `pkg/controlplane/controller/kubernetesservice`). In between the list is empty on a single node. So the successor notes
//! when it got ready, and the one that is replaced waits, before it is told to stop, until just before the next of these
//! instants.

use serde::{Deserialize, Serialize};
use std::path::{Path, PathBuf};
use std::time::Duration;

/// Between two reconciliations.
const PERIOD: Duration = Duration::from_secs(10);
/// How long before a reconciliation the old one is told to stop: the way of the signal, and what the note may be off by.
const LEAD: Duration = Duration::from_millis(600);

/// Written by the process that got ready last.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Ready {
    /// When the process started, in clock ticks since boot: tells processes apart.
    pub started: u64,
    /// When it got ready, in milliseconds of the monotonic clock.
    pub at_ms: u64,
}

/// The file of the note, in the directory that all Pods of a component on a node see.
#[must_use]
pub fn note_path(run: &Path) -> PathBuf {
    run.join("ready.json")
}

/// How long the process that started at `own` waits before it lets itself be told to stop.
#[must_use]
pub fn pause(note: Option<Ready>, own: u64, now_ms: u64) -> Duration {
    let Some(note) = note.filter(|note| note.started > own) else {
        return Duration::ZERO;
    };
    let Some(since) = now_ms.checked_sub(note.at_ms).map(Duration::from_millis) else {
        return Duration::ZERO;
    };
    let mut next = PERIOD.saturating_sub(LEAD);
    while next < since {
        next += PERIOD;
        if next > Duration::from_secs(3600) {
            // a successor that has been there for an hour is not what this wait is for
            return Duration::ZERO;
        }
    }
    next - since
}

/// Reads the note; one that is not there, or not to be understood, is none.
#[must_use]
pub fn read(path: &Path) -> Option<Ready> {
    serde_json::from_slice(&std::fs::read(path).ok()?).ok()
}

/// The monotonic clock in milliseconds.
#[cfg(target_os = "linux")]
#[must_use]
pub fn now_ms() -> u64 {
    let now = rustix::time::clock_gettime(rustix::time::ClockId::Monotonic);
    let milliseconds = i128::from(now.tv_sec) * 1000 + i128::from(now.tv_nsec) / 1_000_000;
    u64::try_from(milliseconds).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_old_one_waits_until_just_before_the_next_reconciliation_of_its_successor() {
        let note = Some(Ready {
            started: 200,
            at_ms: 50_000,
        });
        for (now, expected) in [
            (50_000, 9_400),
            (55_500, 3_900),
            (59_400, 0),
            (59_401, 9_999),
            (60_000, 9_400),
            (73_000, 6_400),
            (49_999, 0), // another clock: no wait
        ] {
            assert_eq!(pause(note, 100, now), Duration::from_millis(expected), "{now}");
        }
    }

    #[test]
    fn without_a_successor_nobody_waits() {
        assert_eq!(pause(None, 100, 55_000), Duration::ZERO);
        for own in [200, 300] {
            assert_eq!(
                pause(
                    Some(Ready {
                        started: 200,
                        at_ms: 50_000
                    }),
                    own,
                    55_000
                ),
                Duration::ZERO
            );
        }
        assert_eq!(
            pause(Some(Ready { started: 200, at_ms: 0 }), 100, 4_000_000),
            Duration::ZERO
        );
    }

    #[test]
    fn a_note_that_is_not_understood_is_none() {
        let directory = tempfile::tempdir().unwrap();
        let path = note_path(directory.path());
        assert_eq!(read(&path), None);
        std::fs::write(&path, "{\"started\":1").unwrap();
        assert_eq!(read(&path), None);
        std::fs::write(&path, "{\"started\":1,\"atMs\":2}").unwrap();
        assert_eq!(read(&path), Some(Ready { started: 1, at_ms: 2 }));
    }
}
