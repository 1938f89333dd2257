//! Waiting with a deadline, for something that has a name.

use std::time::Duration;

use tokio::time::{Instant, sleep_until, timeout_at};

use crate::{Error, Result, error::Cause};

/// What one look at the world found.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Poll<T> {
    /// It is there.
    Ready(T),
    /// Not yet; the text says what is seen right now.
    Pending(String),
}

/// Looks again and again until it is there.
///
/// - `what`: what is waited for, as it reads after "waiting for", for example `Pod kube-system/a to be ready`.
/// - `deadline`: from now on. A look that is still under way when it passes is dropped.
/// - `every`: pause between the start of two looks; a look that takes longer is followed by the next at once.
/// - `on_pending`: told what is seen each time it is not there yet; for progress.
///
/// # Errors
/// The first error of `check` as it is (see [`tolerate`] for errors that pass by themselves), and, once the deadline has
/// passed, an error with [`Cause::TimedOut`] that names what was waited for and what was seen last.
pub async fn until<T>(
    what: &str,
    deadline: Duration,
    every: Duration,
    mut on_pending: impl FnMut(&str),
    mut check: impl AsyncFnMut() -> Result<Poll<T>>,
) -> Result<T> {
    let start = Instant::now();
    // Beyond what the clock can hold there is no deadline; a year is as good.
    let end = start
        .checked_add(deadline)
        .unwrap_or(start + Duration::from_secs(365 * 24 * 3600));
    let mut seen: Option<String> = None;
    loop {
        let looked_at = Instant::now();
        match timeout_at(end, check()).await {
            Ok(Ok(Poll::Ready(value))) => return Ok(value),
            Ok(Ok(Poll::Pending(now))) => {
                on_pending(&now);
                seen = Some(now);
            }
            Ok(Err(error)) => return Err(error),
            Err(_) => {
                seen.get_or_insert_with(|| "no answer".to_owned());
                return Err(timed_out(what, deadline, seen.as_deref()));
            }
        }
        let next = looked_at + every;
        if next >= end {
            // Sleeping up to the end and looking once more finds what came at the last moment.
            if Instant::now() >= end {
                return Err(timed_out(what, deadline, seen.as_deref()));
            }
            sleep_until(end - Duration::from_millis(1).min(every)).await;
            match timeout_at(end, check()).await {
                Ok(Ok(Poll::Ready(value))) => return Ok(value),
                Ok(Ok(Poll::Pending(now))) => seen = Some(now),
                Ok(Err(error)) => return Err(error),
                Err(_) => {}
            }
            return Err(timed_out(what, deadline, seen.as_deref()));
        }
        sleep_until(next).await;
    }
}

fn timed_out(what: &str, deadline: Duration, seen: Option<&str>) -> Error {
    let error = Error::new(format!("gave up after {} waiting for {what}", short(deadline))).with_cause(Cause::TimedOut);
    match seen {
        Some(seen) => error.because(format!("last seen: {seen}")),
        None => error,
    }
}

/// Turns an error that may pass by itself (see [`Error::is_retryable`]) into "not yet", so that a wait survives an API
/// server that is restarted meanwhile. Other errors stay errors.
///
/// # Errors
/// The error of `result` where trying again cannot help.
pub fn tolerate<T>(result: Result<Poll<T>>) -> Result<Poll<T>> {
    match result {
        Err(error) if error.is_retryable() => Ok(Poll::Pending(error.to_string())),
        other => other,
    }
}

/// A duration as people write it: `250ms`, `30s`, `2m05s`, `1h02m`.
#[must_use]
pub fn short(duration: Duration) -> String {
    let seconds = duration.as_secs();
    match seconds {
        0 => format!("{}ms", duration.as_millis()),
        1..60 => {
            let tenths = duration.subsec_millis() / 100;
            if tenths == 0 {
                format!("{seconds}s")
            } else {
                format!("{seconds}.{tenths}s")
            }
        }
        60..3600 if seconds.is_multiple_of(60) => format!("{}m", seconds / 60),
        60..3600 => format!("{}m{:02}s", seconds / 60, seconds % 60),
        _ => format!("{}h{:02}m", seconds / 3600, seconds % 3600 / 60),
    }
}

#[cfg(test)]
mod tests {
    use std::cell::{Cell, RefCell};

    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    #[tokio::test(start_paused = true)]
    async fn what_is_there_is_returned_at_once() {
        let start = Instant::now();
        let value = until("x", SECOND, SECOND, |_| {}, async || Ok(Poll::Ready(7)))
            .await
            .unwrap();
        assert_eq!((value, start.elapsed()), (7, Duration::ZERO));
    }

    #[tokio::test(start_paused = true)]
    async fn it_looks_again_and_tells_what_it_sees() {
        let (looks, seen, start) = (Cell::new(0), RefCell::new(Vec::new()), Instant::now());
        let value = until(
            "x",
            10 * SECOND,
            SECOND,
            |now| seen.borrow_mut().push(now.to_owned()),
            async || {
                looks.set(looks.get() + 1);
                Ok(if looks.get() < 4 {
                    Poll::Pending(format!("look {}", looks.get()))
                } else {
                    Poll::Ready(())
                })
            },
        )
        .await;
        assert!(value.is_ok());
        assert_eq!(*seen.borrow(), ["look 1", "look 2", "look 3"]);
        assert_eq!(start.elapsed(), 3 * SECOND);
    }

    #[tokio::test(start_paused = true)]
    async fn the_deadline_names_what_was_waited_for_and_what_was_seen() {
        let start = Instant::now();
        let error = until::<()>(
            "Pod a to be ready",
            90 * SECOND,
            SECOND,
            |_| {},
            async || Ok(Poll::Pending("ImagePullBackOff".into())),
        )
        .await
        .unwrap_err();
        assert_eq!(
            error.to_string(),
            "gave up after 1m30s waiting for Pod a to be ready: last seen: ImagePullBackOff"
        );
        assert_eq!(error.cause(), Cause::TimedOut);
        assert!(
            start.elapsed() <= 90 * SECOND && start.elapsed() > 89 * SECOND,
            "{:?}",
            start.elapsed()
        );
    }

    #[tokio::test(start_paused = true)]
    async fn a_look_that_hangs_does_not_outlive_the_deadline() {
        let start = Instant::now();
        let error = until::<()>("x", 5 * SECOND, SECOND, |_| {}, async || std::future::pending().await)
            .await
            .unwrap_err();
        assert_eq!(
            error.to_string(),
            "gave up after 5s waiting for x: last seen: no answer"
        );
        assert_eq!(start.elapsed(), 5 * SECOND);
    }

    #[tokio::test(start_paused = true)]
    async fn what_comes_at_the_last_moment_is_found() {
        let start = Instant::now();
        let value = until(
            "x",
            10 * SECOND,
            7 * SECOND,
            |_| {},
            async || {
                Ok(if start.elapsed() > 9 * SECOND {
                    Poll::Ready(1)
                } else {
                    Poll::Pending("no".into())
                })
            },
        )
        .await
        .unwrap();
        assert_eq!(value, 1);
    }

    #[tokio::test(start_paused = true)]
    async fn an_error_ends_the_wait_unless_it_is_tolerated() {
        let refused = || Error::new("connection refused").with_cause(Cause::Unreachable);
        let error = until::<()>("x", SECOND, SECOND, |_| {}, async || Err(refused()))
            .await
            .unwrap_err();
        assert_eq!(error.to_string(), "connection refused");

        let looks = Cell::new(0);
        let value = until(
            "x",
            10 * SECOND,
            SECOND,
            |_| {},
            async || {
                looks.set(looks.get() + 1);
                tolerate(if looks.get() < 3 {
                    Err(refused())
                } else {
                    Ok(Poll::Ready(looks.get()))
                })
            },
        )
        .await
        .unwrap();
        assert_eq!(value, 3);
        assert!(tolerate::<()>(Err(Error::new("no").with_cause(Cause::Forbidden))).is_err());
    }

    #[tokio::test(start_paused = true)]
    async fn no_deadline_is_too_long_for_the_clock() {
        let value = until("x", Duration::MAX, SECOND, |_| {}, async || Ok(Poll::Ready(1)))
            .await
            .unwrap();
        assert_eq!(value, 1);
    }

    #[test]
    fn durations_are_short() {
        let cases = [
            (Duration::from_millis(250), "250ms"),
            (Duration::from_millis(3070), "3s"),
            (Duration::from_millis(39_600), "39.6s"),
            (60 * SECOND, "1m"),
            (125 * SECOND, "2m05s"),
            (3720 * SECOND, "1h02m"),
        ];
        for (duration, text) in cases {
            assert_eq!(short(duration), text);
        }
    }
}
