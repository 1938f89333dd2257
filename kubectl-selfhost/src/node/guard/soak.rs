//! When a template counts as good on this node: pure, from proofs to a judgement.

use std::time::{Duration, Instant};

/// How long a Pod runs healthy before its template becomes the fallback.
///
/// Longer than the mistakes that show late take to show: leader election and its time-outs (15 s), caches that are refilled
/// (minutes), the kubelet's back-off of a process that crashes again and again (5 minutes). Short enough that an edit is
/// safe before the one who made it has turned to something else.
pub const USUAL: Duration = Duration::from_secs(600);

/// How often a Pod is looked at that has to run well for so long. Not more often than the API is talked with at rest.
#[must_use]
pub fn interval(needed: Duration) -> Duration {
    (needed / 20).clamp(Duration::from_secs(2), Duration::from_secs(30))
}

/// What has to stay the same meanwhile.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Subject {
    /// The component's process: its id and its start. A restart begins anew.
    pub process: (u32, u64),
    /// UID of its Pod.
    pub pod: String,
    /// What the fallback would be, as a checksum: its manifest and its files.
    pub digest: String,
}

/// The trial that is on its way.
#[derive(Clone, Debug, Default)]
pub struct Soak {
    trial: Option<Trial>,
}

#[derive(Clone, Debug)]
struct Trial {
    subject: Subject,
    since: Instant,
    last: Instant,
}

impl Soak {
    /// It was not healthy, or could not be looked at: what was counted counts no more.
    pub fn failed(&mut self) {
        self.trial = None;
    }

    /// The subject has just proved healthy itself. Returns whether it has done so for long enough.
    ///
    /// A time in which nobody looked does not count: a guard that was stopped knows nothing of it.
    pub fn proved(&mut self, subject: Subject, now: Instant, needed: Duration) -> bool {
        let longest_pause = interval(needed) * 4;
        let trial = match self.trial.take() {
            Some(trial) if trial.subject == subject && now.saturating_duration_since(trial.last) <= longest_pause => {
                Trial { last: now, ..trial }
            }
            _ => Trial {
                subject,
                since: now,
                last: now,
            },
        };
        let good = now.saturating_duration_since(trial.since) >= needed;
        self.trial = Some(trial);
        good
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn subject(start: u64, digest: &str) -> Subject {
        Subject {
            process: (7, start),
            pod: "uid".into(),
            digest: digest.into(),
        }
    }

    const NEEDED: Duration = Duration::from_secs(100);

    #[test]
    fn only_what_stays_the_same_and_proves_itself_all_the_time_is_good() {
        /// What happens at a second: a proof of that process and that template, or a failure.
        type Step = (u64, Option<(u64, &'static str)>);
        let rows: [(&str, &[Step], bool); 7] = [
            ("not long enough", &[(0, Some((1, "a"))), (15, Some((1, "a")))], false),
            (
                "long enough",
                &[
                    (0, Some((1, "a"))),
                    (20, Some((1, "a"))),
                    (40, Some((1, "a"))),
                    (60, Some((1, "a"))),
                    (80, Some((1, "a"))),
                    (100, Some((1, "a"))),
                ],
                true,
            ),
            (
                "it failed in between",
                &[
                    (0, Some((1, "a"))),
                    (20, Some((1, "a"))),
                    (40, None),
                    (60, Some((1, "a"))),
                    (80, Some((1, "a"))),
                    (100, Some((1, "a"))),
                ],
                false,
            ),
            (
                "it was restarted",
                &[
                    (0, Some((1, "a"))),
                    (20, Some((1, "a"))),
                    (40, Some((2, "a"))),
                    (60, Some((2, "a"))),
                    (80, Some((2, "a"))),
                    (100, Some((2, "a"))),
                ],
                false,
            ),
            (
                "its files changed",
                &[
                    (0, Some((1, "a"))),
                    (20, Some((1, "a"))),
                    (40, Some((1, "b"))),
                    (60, Some((1, "b"))),
                    (80, Some((1, "b"))),
                    (100, Some((1, "b"))),
                ],
                false,
            ),
            ("nobody looked", &[(0, Some((1, "a"))), (100, Some((1, "a")))], false),
            ("the first proof is not the last", &[(100, Some((1, "a")))], false),
        ];
        for (about, steps, expected) in rows {
            let begin = Instant::now();
            let mut soak = Soak::default();
            let mut good = false;
            for (second, what) in steps {
                let now = begin + Duration::from_secs(*second);
                good = match what {
                    Some((start, digest)) => soak.proved(subject(*start, digest), now, NEEDED),
                    None => {
                        soak.failed();
                        false
                    }
                };
            }
            assert_eq!(good, expected, "{about}");
        }
    }

    proptest! {
        /// Whatever comes in whatever order: good is said only after proofs of the same thing, none further from the next than
        /// is allowed, that span the time needed.
        #[test]
        fn good_is_never_said_too_early(steps in prop::collection::vec((0..40u64, 0..12u8), 1..60)) {
            let begin = Instant::now();
            let (mut soak, mut now) = (Soak::default(), begin);
            let mut run: Vec<Instant> = Vec::new();
            let mut of = None;
            for (pause, what) in steps {
                now += Duration::from_secs(pause);
                if what == 0 {
                    soak.failed();
                    run.clear();
                    continue;
                }
                // mostly the same one
                let this = subject(u64::from(what == 1), "a");
                let broken = of.as_ref() != Some(&this) || run.last().is_some_and(|last| now - *last > interval(NEEDED) * 4);
                if broken {
                    run.clear();
                }
                of = Some(this.clone());
                run.push(now);
                prop_assert_eq!(soak.proved(this, now, NEEDED), now - run[0] >= NEEDED);
            }
        }
    }
}
