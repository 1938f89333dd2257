//! How often a component may change its mind: whoever may patch Nodes can state what he likes as often as he likes, and each
//! change costs a hand-over, or a gap.

use serde::{Deserialize, Serialize};
use std::time::Duration;

/// So many changes are made within [`WINDOW`]. A conversion that fails and is tried again takes two; nobody in his right mind
/// gets there by hand.
pub const MOST: usize = 10;
/// See [`MOST`].
pub const WINDOW: Duration = Duration::from_secs(1800);

/// A moment that outlives the guard's process, but not the node's boot: the clock that a change of the time of day does not
/// touch.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Moment {
    /// Which boot.
    pub boot: String,
    /// Milliseconds since then.
    pub milliseconds: u64,
}

impl Moment {
    /// Now.
    #[must_use]
    pub fn now() -> Self {
        let boot = std::fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap_or_default();
        Self {
            boot: boot.trim().to_owned(),
            milliseconds: crate::node::phase::now_ms(),
        }
    }

    /// How long ago another moment of this boot was.
    fn since(&self, earlier: &Self) -> Option<Duration> {
        let passed = self.milliseconds.checked_sub(earlier.milliseconds)?;
        (self.boot == earlier.boot).then(|| Duration::from_millis(passed))
    }
}

/// The last changes, oldest first.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Turns(Vec<Moment>);

impl Turns {
    /// With one more change now. What is no longer of interest is forgotten.
    ///
    /// # Errors
    /// How long the next change has to wait, as there were enough of them.
    pub fn take(&self, now: &Moment) -> Result<Self, Duration> {
        let mut recent: Vec<(Duration, &Moment)> = self
            .0
            .iter()
            .filter_map(|turn| Some((now.since(turn)?, turn)))
            .filter(|(ago, _)| *ago < WINDOW)
            .collect();
        recent.sort_by_key(|(ago, _)| std::cmp::Reverse(*ago));
        if recent.len() >= MOST {
            let oldest = recent[recent.len() - MOST].0;
            return Err(WINDOW.saturating_sub(oldest));
        }
        let mut turns: Vec<Moment> = recent.into_iter().map(|(_, turn)| turn.clone()).collect();
        turns.push(now.clone());
        Ok(Self(turns))
    }

    /// Whether nothing is remembered.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn at(seconds: u64) -> Moment {
        Moment {
            boot: "b".into(),
            milliseconds: seconds * 1000,
        }
    }

    #[test]
    fn the_eleventh_change_within_half_an_hour_waits() {
        let mut turns = Turns::default();
        for n in 0..10 {
            turns = turns.take(&at(n * 60)).unwrap();
        }
        assert_eq!(turns.take(&at(600)), Err(Duration::from_secs(1200)));
        assert_eq!(turns.take(&at(1799)), Err(Duration::from_secs(1)));
        let turns = turns.take(&at(1800)).unwrap();
        assert_eq!(
            turns.take(&at(1801)),
            Err(Duration::from_secs(59)),
            "the second one is next"
        );
    }

    #[test]
    fn another_boot_and_another_clock_are_forgotten() {
        let mut turns = Turns::default();
        for n in 0..10 {
            turns = turns.take(&at(1000 + n)).unwrap();
        }
        let other = Moment {
            boot: "c".into(),
            ..at(1010)
        };
        assert_eq!(turns.take(&other).unwrap().0.len(), 1);
        assert_eq!(
            turns.take(&at(5)).unwrap().0.len(),
            1,
            "a clock that went back has no say"
        );
        let text = serde_json::to_string(&turns).unwrap();
        assert_eq!(serde_json::from_str::<Turns>(&text).unwrap(), turns);
    }

    proptest! {
        /// However often somebody tries: never more than so many within any window, and the memory stays small.
        #[test]
        fn no_window_has_more(pauses in prop::collection::vec(0..400u64, 1..200)) {
            let (mut turns, mut now, mut made) = (Turns::default(), 0, Vec::new());
            for pause in pauses {
                now += pause;
                if let Ok(next) = turns.take(&at(now)) {
                    turns = next;
                    made.push(now);
                }
                prop_assert!(turns.0.len() <= MOST);
                prop_assert!(made.iter().filter(|turn| now - **turn < WINDOW.as_secs()).count() <= MOST);
            }
        }
    }
}
