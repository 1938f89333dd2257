//! For how long a process has listened without being healthy.
//!
//! Who listens is not silent, so that the guard's grace never runs out for an apiserver that starts, answers, and does not get
//! ready, as with a template in which one of its stores is wrong. While a good Pod serves beside it that harms nobody; once it
//! is alone, nobody serves.

use crate::node::steering::Listener;
use std::time::{Duration, Instant};

/// How often a process that serves alone is asked. It costs both sides a TLS handshake.
pub const INTERVAL: Duration = Duration::from_secs(15);
/// How often once it was not healthy.
pub const INTERVAL_UNHEALTHY: Duration = Duration::from_secs(5);
/// After so long without health the fallback is put in beside it. A large apiserver takes its time to start.
pub const DEADLINE: Duration = Duration::from_secs(120);

/// A process, as long as it lives: its id, and when it was started.
pub type Process = (u32, u64);

/// What is known of the process that listens alone.
#[derive(Debug, Default)]
pub struct Unhealthy(Option<Known>);

#[derive(Debug)]
struct Known {
    process: Process,
    /// When it was healthy last, or was seen first.
    since: Instant,
    looked: Option<Instant>,
    /// As which listener it was.
    healthy: Option<Listener>,
}

impl Unhealthy {
    /// For how long it has not been healthy; `alone` is the DaemonSet's process where just one listens, and `ask` asks it and
    /// says as which listener it answered.
    pub fn time(&mut self, now: Instant, alone: Option<Process>, ask: impl FnOnce() -> Option<Listener>) -> Duration {
        let Some(process) = alone else {
            self.0 = None;
            return Duration::ZERO;
        };
        let known = match self.0.take() {
            Some(known) if known.process == process => known,
            _ => Known {
                process,
                since: now,
                looked: None,
                healthy: None,
            },
        };
        let known = self.0.insert(known);
        let interval = if known.healthy.is_some() {
            INTERVAL
        } else {
            INTERVAL_UNHEALTHY
        };
        if known
            .looked
            .is_none_or(|looked| now.saturating_duration_since(looked) >= interval)
        {
            known.healthy = ask();
            known.looked = Some(now);
            if known.healthy.is_some() {
                known.since = now;
            }
        }
        if known.healthy.is_some() {
            Duration::ZERO
        } else {
            now.saturating_duration_since(known.since)
        }
    }

    /// Whether it was healthy when it was asked last, as the oldest listener on the port.
    #[must_use]
    pub fn is_healthy_as_oldest(&self) -> bool {
        self.0
            .as_ref()
            .is_some_and(|known| known.healthy == Some(Listener::Oldest))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ONE: Process = (7, 100);

    fn never() -> Option<Listener> {
        panic!("it was asked too early")
    }

    #[test]
    fn the_time_counts_from_the_last_healthy_answer_of_the_same_process() {
        let begin = Instant::now();
        let at = |seconds| begin + Duration::from_secs(seconds);
        let mut unhealthy = Unhealthy::default();
        let zero = Duration::ZERO;
        assert_eq!(unhealthy.time(at(0), Some(ONE), || None), zero, "it has just been seen");
        assert_eq!(unhealthy.time(at(4), Some(ONE), never), Duration::from_secs(4));
        assert!(!unhealthy.is_healthy_as_oldest());
        assert_eq!(unhealthy.time(at(5), Some(ONE), || Some(Listener::Oldest)), zero);
        assert_eq!(
            unhealthy.time(at(19), Some(ONE), never),
            zero,
            "a healthy one is left alone"
        );
        assert_eq!(unhealthy.time(at(20), Some(ONE), || None), Duration::from_secs(15));
        assert_eq!(unhealthy.time(at(100), Some(ONE), || None), Duration::from_secs(95));
        assert_eq!(
            unhealthy.time(at(102), Some((7, 200)), || None),
            zero,
            "another process"
        );
        assert_eq!(unhealthy.time(at(107), Some((7, 200)), || Some(Listener::Newest)), zero);
        assert!(!unhealthy.is_healthy_as_oldest());
        assert_eq!(unhealthy.time(at(108), None, never), zero, "none, or several");
        assert_eq!(unhealthy.time(at(109), Some((7, 200)), || None), zero);
    }
}
