//! Numbers that look random, from a seed that is shown, so that what was seen can be done again.

use std::time::{Duration, SystemTime};

use crate::support::say;

/// A source of numbers (xorshift).
pub(crate) struct Random(u64);

impl Random {
    /// From `SELFHOST_TEST_SEED`, or else from the clock.
    pub(crate) fn new() -> Self {
        let seed = std::env::var("SELFHOST_TEST_SEED").map_or_else(
            |_| {
                SystemTime::now()
                    .duration_since(SystemTime::UNIX_EPOCH)
                    .unwrap()
                    .as_nanos() as u64
            },
            |text| text.parse().unwrap(),
        );
        say(&format!("SELFHOST_TEST_SEED={seed}"));
        Self(seed | 1)
    }

    /// A number from 0 to `limit` - 1.
    pub(crate) fn below(&mut self, limit: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 >> 11) % limit
    }

    /// One of these.
    pub(crate) fn choose<T: Copy>(&mut self, among: &[T]) -> T {
        let count = u64::try_from(among.len()).unwrap();
        among[usize::try_from(self.below(count)).unwrap()]
    }

    /// A time of at most that length.
    pub(crate) fn time(&mut self, longest: Duration) -> Duration {
        Duration::from_millis(self.below(u64::try_from(longest.as_millis()).unwrap() + 1))
    }
}
