//! When to do what again: leases, retries, and the difference of the clocks.

use std::time::Duration;

use jiff::{SignedDuration, Timestamp};

/// The hub's default for `leaseDurationSeconds`.
const DEFAULT_LEASE: Duration = Duration::from_secs(60);
/// A hub takes a clock for wrong from five lease periods on; from this on it is worth a word.
const NOTABLE_SKEW: SignedDuration = SignedDuration::from_secs(30);

/// Whether clocks differ so much that somebody has to be told.
#[must_use]
pub fn is_notable(skew: SignedDuration) -> bool {
    skew.abs() >= NOTABLE_SKEW
}

/// What is told about clocks that differ; `None` where they agree.
#[must_use]
pub fn skew_warning(skew: Option<SignedDuration>) -> Option<String> {
    let skew = skew.filter(|skew| is_notable(*skew))?;
    let seconds = skew.as_secs().abs();
    let side = if skew.is_positive() { "ahead of" } else { "behind" };
    Some(format!(
        "the hub's clock is {seconds} s {side} this machine's: set one of them right; from five lease periods on the hub takes no status"
    ))
}

/// How often the lease is renewed: what the hub asks for, never more often than once a second.
#[must_use]
pub fn lease_period(lease_duration_seconds: Option<i32>) -> Duration {
    match lease_duration_seconds.map(u64::try_from) {
        Some(Ok(seconds)) if seconds > 0 => Duration::from_secs(seconds),
        _ => DEFAULT_LEASE,
    }
}

/// How long to wait before a failed renewal is tried again: 1, 2, 4, 8 s, and never longer than a quarter of the period.
#[must_use]
pub fn lease_retry(failures: u32, period: Duration) -> Duration {
    backoff(failures, Duration::from_secs(1), period / 4)
}

/// How long to wait after `failures` failures in a row (at least 1): `first`, doubled each time, at most `longest`.
#[must_use]
pub fn backoff(failures: u32, first: Duration, longest: Duration) -> Duration {
    let factor = 1u32.checked_shl(failures.saturating_sub(1).min(20)).unwrap_or(u32::MAX);
    first.saturating_mul(factor).min(longest.max(Duration::from_millis(10)))
}

/// `duration`, up to a tenth shorter, by a random byte: so that many agents spread.
#[must_use]
pub fn jittered(duration: Duration, random: u8) -> Duration {
    duration.mul_f64(1.0 - f64::from(random) / 2560.0)
}

/// How far the hub's clock is ahead of ours, from the `Date` header of an answer and our times of sending and receiving.
/// The header counts in whole seconds. `None` where it is no date.
#[must_use]
pub fn skew(date_header: &str, sent: Timestamp, received: Timestamp) -> Option<SignedDuration> {
    let date = jiff::fmt::rfc2822::parse(date_header).ok()?.timestamp();
    let middle = sent.checked_add(received.duration_since(sent) / 2).ok()?;
    let date = date.checked_add(SignedDuration::from_millis(500)).ok()?;
    Some(date.duration_since(middle))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn the_period_is_that_of_the_hub() {
        for (asked, seconds) in [
            (None, 60),
            (Some(0), 60),
            (Some(-5), 60),
            (Some(60), 60),
            (Some(5), 5),
            (Some(3600), 3600),
        ] {
            assert_eq!(lease_period(asked), Duration::from_secs(seconds), "{asked:?}");
        }
    }

    #[test]
    fn a_failed_renewal_is_tried_again_soon() {
        let minute = Duration::from_secs(60);
        let delays: Vec<_> = (1..=6)
            .map(|failures| lease_retry(failures, minute).as_secs())
            .collect();
        assert_eq!(delays, [1, 2, 4, 8, 15, 15]);
        assert_eq!(lease_retry(9, Duration::from_secs(2)), Duration::from_millis(500));
    }

    #[test]
    fn the_clock_of_the_hub_is_read_from_its_answers() {
        let at = |text: &str| text.parse::<Timestamp>().unwrap();
        let header = "Mon, 30 Nov 2026 21:56:03 GMT";
        let measured = skew(header, at("2026-11-30T21:56:03.4Z"), at("2026-11-30T21:56:03.6Z")).unwrap();
        assert_eq!(measured, SignedDuration::ZERO);
        let ahead = skew(header, at("2026-11-30T21:51:03.5Z"), at("2026-11-30T21:51:03.5Z")).unwrap();
        assert_eq!(ahead, SignedDuration::from_mins(5));
        let behind = skew(header, at("2026-11-30T22:56:03.5Z"), at("2026-11-30T22:56:03.5Z")).unwrap();
        assert_eq!(behind, SignedDuration::from_hours(-1));
        assert_eq!(skew("now", Timestamp::UNIX_EPOCH, Timestamp::UNIX_EPOCH), None);
    }

    #[test]
    fn clocks_that_differ_are_told_with_their_direction() {
        let seconds = SignedDuration::from_secs;
        assert_eq!(skew_warning(None), None);
        assert_eq!(skew_warning(Some(seconds(29))), None);
        assert!(skew_warning(Some(seconds(600))).unwrap().contains("600 s ahead of"));
        assert!(skew_warning(Some(seconds(-30))).unwrap().contains("30 s behind"));
    }

    proptest! {
        #[test]
        fn delays_are_within_their_bounds(failures in 0u32.., first in 1u64..1000, longest in 1u64..100_000, random: u8) {
            let (first, longest) = (Duration::from_millis(first), Duration::from_millis(longest));
            prop_assert!(backoff(failures, first, longest) <= longest.max(Duration::from_millis(10)));
            let spread = jittered(longest, random);
            prop_assert!(spread <= longest && spread >= longest.mul_f64(0.9));
        }
    }
}
