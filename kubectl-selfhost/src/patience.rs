//! Waits and calls that go on while an apiserver is being replaced.
//!
//! For a moment after its start an apiserver refuses everybody who is not a member of system:masters (its authorizer has
//! not read the roles yet), and for a moment nothing answers at all. During a hand-over such answers mean "not yet". They
//! mean what they say only when they last, or when nothing is on its way.

use shared::error::Cause;
use shared::wait::{self, Poll};
use shared::{Error, Result};
use std::time::Duration;

const INTERVAL: Duration = Duration::from_millis(250);
/// How long one call is tried again.
const CALL_DEADLINE: Duration = Duration::from_secs(45);

/// Whether an answer may be another one in a moment.
#[must_use]
pub fn may_pass(error: &Error) -> bool {
    error.is_retryable() || matches!(error.cause(), Cause::Forbidden | Cause::Unauthorized)
}

/// As [`wait::tolerate`], for a wait during a hand-over.
///
/// # Errors
/// What trying again cannot help.
pub fn tolerate<T>(result: Result<Poll<T>>) -> Result<Poll<T>> {
    match result {
        Err(error) if may_pass(&error) => Ok(Poll::Pending(format!("the API, which says: {error}"))),
        other => other,
    }
}

/// Makes a call again until it is answered. It must be one that may be made twice.
///
/// # Errors
/// What trying again cannot help, or the last answer when time is up.
pub async fn call<T>(what: &str, mut request: impl AsyncFnMut() -> Result<T>) -> Result<T> {
    wait::until(
        what,
        CALL_DEADLINE,
        INTERVAL,
        |_| {},
        async || tolerate(request().await.map(Poll::Ready)),
    )
    .await
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn refusals_of_a_starting_apiserver_pass() {
        let mut answers = vec![
            Ok(7),
            Err(Error::new("forbidden").with_cause(Cause::Forbidden)),
            Err(Error::new("refused").with_cause(Cause::Unreachable)),
        ];
        assert_eq!(call("an answer", async || answers.pop().unwrap()).await.unwrap(), 7);
    }

    #[tokio::test(start_paused = true)]
    async fn what_lasts_is_told_with_its_last_answer() {
        let error = call::<()>("an answer", async || {
            Err(Error::new("no rights").with_cause(Cause::Forbidden))
        })
        .await
        .unwrap_err();
        assert!(
            error.to_string().contains("an answer") && error.to_string().contains("no rights"),
            "{error}"
        );
        let error = call::<()>(
            "an answer",
            async || Err(Error::new("gone").with_cause(Cause::NotFound)),
        )
        .await
        .unwrap_err();
        assert_eq!(error.what(), "gone");
    }
}
