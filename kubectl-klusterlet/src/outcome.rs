//! Exit codes beside those of all commands (0 done, 1 failed or refused, 2 wrong command line, 130 interrupted).

use shared::{Error, error::Cause};

use crate::agent::state::{Trouble, TroubleKind};

/// The hub's administrator denied the request or the cluster.
pub const DENIED: u8 = 3;
/// Nobody denied it, and the time ran out.
pub const TIMED_OUT: u8 = 4;
/// Hub or spoke cannot be reached.
pub const UNREACHABLE: u8 = 5;
/// Credentials are not known (401) or have no permission (403).
pub const UNAUTHORIZED: u8 = 6;
/// Another spoke has this name on the hub.
pub const NAME_TAKEN: u8 = 7;

/// A failure, and its exit code.
#[derive(Debug)]
pub struct Failure {
    /// What is shown.
    pub error: Error,
    /// The code; `None` is that of the error's kind.
    pub code: Option<u8>,
}

impl From<Error> for Failure {
    fn from(error: Error) -> Self {
        Self { error, code: None }
    }
}

impl Failure {
    /// A failure with the code of what lies behind it.
    #[must_use]
    pub fn of_cause(error: Error) -> Self {
        let code = match error.cause() {
            Cause::Unreachable | Cause::TimedOut | Cause::Unavailable | Cause::Certificate => Some(UNREACHABLE),
            Cause::Unauthorized | Cause::Forbidden => Some(UNAUTHORIZED),
            _ => None,
        };
        Self { error, code }
    }

    /// A failure with its own code.
    #[must_use]
    pub fn with_code(error: Error, code: u8) -> Self {
        Self {
            error,
            code: Some(code),
        }
    }

    /// The exit code.
    #[must_use]
    pub fn exit_code(&self) -> u8 {
        self.code.unwrap_or_else(|| self.error.exit_code())
    }
}

/// The code of a trouble that ends a wait.
#[must_use]
pub fn code_of(kind: TroubleKind) -> u8 {
    match kind {
        TroubleKind::RequestDenied | TroubleKind::ClusterDenied | TroubleKind::ClusterDeleted => DENIED,
        TroubleKind::NameTaken => NAME_TAKEN,
        TroubleKind::HubUnreachable | TroubleKind::Spoke => UNREACHABLE,
        TroubleKind::Unauthorized | TroubleKind::Forbidden => UNAUTHORIZED,
        TroubleKind::BadBootstrap => 2,
        TroubleKind::OtherAgent | TroubleKind::Other => 1,
    }
}

/// Whether a trouble ends a wait at once: waiting longer would not help, somebody has to do something else first.
#[must_use]
pub fn ends_the_wait(trouble: &Trouble) -> bool {
    matches!(
        trouble.kind,
        TroubleKind::RequestDenied
            | TroubleKind::ClusterDenied
            | TroubleKind::NameTaken
            | TroubleKind::Unauthorized
            | TroubleKind::BadBootstrap
            | TroubleKind::OtherAgent
    )
}
