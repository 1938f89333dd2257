//! What the guard tells the cluster as Events on its Node: pure, from one report to the next.

use crate::names::Component;
use crate::node::state::{MadeOf, Report, State};
use std::collections::VecDeque;
use std::time::{Duration, Instant};

/// Something that is worth an Event.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Notice {
    /// `Normal` or `Warning`.
    pub kind: &'static str,
    /// One word for programs.
    pub reason: &'static str,
    /// For people. Nothing in it comes from a file or from somebody else but names of files and templates.
    pub message: String,
}

fn notice(kind: &'static str, reason: &'static str, message: String) -> Notice {
    Notice { kind, reason, message }
}

/// What to tell of a component after `new` has followed `old`. Without an old report nothing is told: a guard that was just
/// started knows of no change.
#[must_use]
pub fn between(component: Component, old: Option<&Report>, new: &Report) -> Vec<Notice> {
    let Some(old) = old else { return Vec::new() };
    let mut notices = Vec::new();
    let mut tell = |kind, reason, message| notices.push(notice(kind, reason, message));
    if !old.fallback_in && new.fallback_in {
        let of = match new.fallback.as_ref().map(|fallback| fallback.made_of) {
            Some(MadeOf::Template) => "the last template that ran well here",
            _ => "the original manifest",
        };
        tell(
            "Warning",
            "SelfHostFallbackIn",
            format!("{component}: nothing served, so the fallback was put in, made of {of}"),
        );
    }
    if old.fallback_in && !new.fallback_in {
        tell(
            "Normal",
            "SelfHostFallbackOut",
            format!("{component}: the fallback was taken out"),
        );
    }
    let was_other = matches!(old.state, State::Static | State::Both | State::Fallback);
    if was_other && new.state == State::SelfHosted && new.desired.is_self_hosted() {
        tell(
            "Normal",
            "SelfHostHandedOver",
            format!("{component}: the DaemonSet's Pod serves alone"),
        );
    }
    if let (None, Some(_)) = (old.given_up, new.given_up) {
        let why = new.error.as_deref().unwrap_or("it did not prove healthy in time");
        tell("Warning", "SelfHostGivenUp", format!("{component}: {why}"));
    }
    if let (None, Some(foreign)) = (&old.foreign_manifest, &new.foreign_manifest) {
        tell(
            "Warning",
            "SelfHostForeignManifest",
            format!(
                "{component}: somebody wrote {} while the DaemonSet serves: move it away",
                foreign.file
            ),
        );
    }
    if let (Some(was), Some(is)) = (&old.fallback, &new.fallback) {
        if is.made_of == MadeOf::Template && (was.made_of, &was.template) != (is.made_of, &is.template) {
            tell(
                "Normal",
                "SelfHostLastKnownGood",
                format!(
                    "{component}: the fallback is made of {} now, which ran well here",
                    is.name()
                ),
            );
        }
        if let (None, Some(why)) = (&was.refused, &is.refused) {
            tell("Warning", "SelfHostFallbackStays", format!("{component}: {why}"));
        }
    }
    notices
}

/// Most Events that are sent at once, and how long it takes until one more may be.
const BURST: u32 = 12;
const REFILL: Duration = Duration::from_secs(60);
/// Most notices that wait for an API.
const LONGEST: usize = 24;

/// Notices on their way to the API, with a limit on how many get there.
#[derive(Debug, Default)]
pub struct Queue {
    waiting: VecDeque<Notice>,
    /// How many were sent and are not forgiven yet, and since when the next one is on its way to be.
    sent: u32,
    since: Option<Instant>,
    /// How many were not sent, for want of room or right.
    untold: u32,
}

impl Queue {
    /// One more.
    pub fn push(&mut self, notice: Notice) {
        if self.waiting.len() < LONGEST {
            self.waiting.push_back(notice);
        } else {
            self.untold += 1;
        }
    }

    /// The next one that may be sent now. One that could not be sent is given back by [`Queue::again`].
    pub fn pop(&mut self, now: Instant) -> Option<Notice> {
        while let Some(since) = self.since
            && self.sent > 0
            && now.saturating_duration_since(since) >= REFILL
        {
            self.sent -= 1;
            self.since = since.checked_add(REFILL);
        }
        if self.sent >= BURST {
            return None;
        }
        let mut notice = self.waiting.pop_front()?;
        if self.sent == 0 {
            self.since = Some(now);
        }
        self.sent += 1;
        if self.untold > 0 {
            notice
                .message
                .push_str(&format!(" ({} more were not told)", self.untold));
            self.untold = 0;
        }
        Some(notice)
    }

    /// It could not be sent: it is the next one again.
    pub fn again(&mut self, notice: Notice) {
        self.sent = self.sent.saturating_sub(1);
        self.waiting.push_front(notice);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::last_known_good::Template;
    use crate::node::state::{Desired, FallbackReport, ForeignManifest};

    fn converted() -> Report {
        Report {
            state: State::SelfHosted,
            desired: Desired::SelfHosted,
            settled: true,
            given_up: None,
            releasable: false,
            step: String::new(),
            error: None,
            foreign_manifest: None,
            original: Some("o".into()),
            fallback: Some(FallbackReport::of_original()),
            fallback_in: false,
            guard: "1".into(),
        }
    }

    fn with(change: impl FnOnce(&mut Report)) -> Report {
        let mut report = converted();
        change(&mut report);
        report
    }

    #[test]
    fn each_change_is_told_once_and_nothing_else() {
        let template = |generation| FallbackReport {
            made_of: MadeOf::Template,
            template: Template {
                generation: Some(generation),
                revision: Some("abc".into()),
            },
            since: Some("t".into()),
            refused: None,
        };
        let fallback = with(|r| {
            r.state = State::Fallback;
            r.fallback_in = true;
        });
        let nothing = with(|r| r.state = State::None);
        let both = with(|r| r.state = State::Both);
        let is_static = with(|r| {
            r.state = State::Static;
            r.desired = Desired::Static;
        });
        let given_up = with(|r| {
            r.state = State::Static;
            r.given_up = Some(Desired::SelfHosted);
            r.error = Some("the hand-over was given up".into());
        });
        let foreign = with(|r| {
            r.foreign_manifest = Some(ForeignManifest {
                file: "/etc/kubernetes/manifests/x.yaml".into(),
                modified: String::new(),
            });
        });
        let good = with(|r| r.fallback = Some(template(3)));
        let better = with(|r| r.fallback = Some(template(4)));
        let refused = with(|r| {
            r.fallback = Some(FallbackReport {
                refused: Some("no".into()),
                ..FallbackReport::of_original()
            });
        });
        let rows: [(&str, &Report, &Report, &[&str]); 15] = [
            ("nothing changed", &converted(), &converted(), &[]),
            ("it goes in", &nothing, &fallback, &["SelfHostFallbackIn"]),
            ("it stays in", &fallback, &fallback, &[]),
            ("it leaves", &fallback, &both, &["SelfHostFallbackOut"]),
            ("the Pod serves alone", &both, &converted(), &["SelfHostHandedOver"]),
            (
                "it leaves and the Pod serves",
                &fallback,
                &converted(),
                &["SelfHostFallbackOut", "SelfHostHandedOver"],
            ),
            ("a process was restarted", &nothing, &converted(), &[]),
            ("converted", &is_static, &both, &[]),
            ("reverted", &both, &is_static, &[]),
            ("given up", &both, &given_up, &["SelfHostGivenUp"]),
            ("still given up", &given_up, &given_up, &[]),
            (
                "somebody wrote a manifest",
                &converted(),
                &foreign,
                &["SelfHostForeignManifest"],
            ),
            (
                "the first good template",
                &converted(),
                &good,
                &["SelfHostLastKnownGood"],
            ),
            ("the next one", &good, &better, &["SelfHostLastKnownGood"]),
            ("one that cannot be", &converted(), &refused, &["SelfHostFallbackStays"]),
        ];
        for (about, old, new, expected) in rows {
            let told = between(Component::KubeApiserver, Some(old), new);
            let reasons: Vec<&str> = told.iter().map(|notice| notice.reason).collect();
            assert_eq!(reasons, expected, "{about}");
            assert!(told.iter().all(|notice| notice.message.starts_with("kube-apiserver: ")));
        }
        assert_eq!(between(Component::KubeApiserver, None, &fallback), []);
    }

    #[test]
    fn a_flood_is_held_back_and_told_of() {
        let mut queue = Queue::default();
        let begin = Instant::now();
        for n in 0..40 {
            queue.push(notice("Normal", "R", n.to_string()));
        }
        let sent = |queue: &mut Queue, now: Instant| std::iter::from_fn(|| queue.pop(now)).collect::<Vec<_>>();
        let first = sent(&mut queue, begin);
        assert_eq!(first.len(), 12);
        assert_eq!(first[0].message, "0 (16 more were not told)");
        assert_eq!(first[1].message, "1");
        assert_eq!(sent(&mut queue, begin + REFILL / 2).len(), 0);
        assert_eq!(sent(&mut queue, begin + REFILL).len(), 1);
        assert_eq!(sent(&mut queue, begin + REFILL * 4).len(), 3);
        let mut one = queue.pop(begin + REFILL * 60).unwrap();
        one.message = "again".into();
        queue.again(one.clone());
        assert_eq!(queue.pop(begin + REFILL * 60), Some(one));
    }
}
