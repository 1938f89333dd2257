//! The one error type of both plugins: what happened, why, and what to do about it.

use std::{error::Error as StdError, fmt};

/// What sort of failure it is. It decides the exit code and nothing else.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Something was tried and did not work. Exit code 1.
    Failure,
    /// Nothing was tried, as a condition does not hold; nothing was changed. Exit code 1.
    Refused,
    /// The command line or an input file is wrong. Exit code 2, the code that clap uses for its own usage errors.
    Usage,
    /// The user stopped it. Exit code 130, a shell's code for SIGINT.
    Interrupted,
}

impl Kind {
    /// Exit code of the process. kubectl hands a plugin's code through unchanged.
    #[must_use]
    pub fn exit_code(self) -> u8 {
        match self {
            Self::Failure | Self::Refused => 1,
            Self::Usage => 2,
            Self::Interrupted => 130,
        }
    }
}

/// What lies behind an error, where the code that handles it has to decide something (try again, create, give up).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Cause {
    /// Nobody answered: refused, reset, no route, no such host.
    Unreachable,
    /// No answer in time. Whether the request took effect is unknown.
    TimedOut,
    /// TLS failed: the certificate of the server or of the client.
    Certificate,
    /// 401: credentials missing, expired or not accepted.
    Unauthorized,
    /// 403: known, but not allowed.
    Forbidden,
    /// 404: no such object or no such kind.
    NotFound,
    /// 409 with reason `AlreadyExists`.
    AlreadyExists,
    /// 409: somebody else changed or owns it.
    Conflict,
    /// 400 or 422: the object is not valid.
    Invalid,
    /// 429 or 5xx: the server cannot now, and may be able to soon.
    Unavailable,
    /// Anything else.
    Other,
}

impl Cause {
    /// Whether the same call may succeed a moment later without anybody's help.
    #[must_use]
    pub fn is_retryable(self) -> bool {
        matches!(self, Self::Unreachable | Self::TimedOut | Self::Unavailable)
    }
}

/// An error made to be read by a person: `what` happened, `why` (from the nearest cause to the deepest) and `hints` that
/// say what to do. One pointer wide, so that `Result` stays small.
pub struct Error(Box<Inner>);

#[derive(Clone, Debug)]
struct Inner {
    kind: Kind,
    cause: Cause,
    what: String,
    why: Vec<String>,
    hints: Vec<String>,
}

/// `Result` with [`Error`] as its usual error.
pub type Result<T, E = Error> = std::result::Result<T, E>;

impl Error {
    fn of(kind: Kind, what: String) -> Self {
        Self(Box::new(Inner {
            kind,
            cause: Cause::Other,
            what,
            why: Vec::new(),
            hints: Vec::new(),
        }))
    }

    /// Something was tried and did not work.
    pub fn new(what: impl Into<String>) -> Self {
        Self::of(Kind::Failure, what.into())
    }

    /// Nothing was tried and nothing was changed.
    pub fn refused(what: impl Into<String>) -> Self {
        Self::of(Kind::Refused, what.into())
    }

    /// The command line or an input file is wrong.
    pub fn usage(what: impl Into<String>) -> Self {
        Self::of(Kind::Usage, what.into())
    }

    /// The user stopped it.
    pub fn interrupted(what: impl Into<String>) -> Self {
        Self::of(Kind::Interrupted, what.into())
    }

    /// An error of another library, with its chain of sources as the reasons.
    ///
    /// Many libraries repeat the text of the source in their own text; a reason that the one before it already contains
    /// is left out.
    #[must_use]
    pub fn from_std(error: &(dyn StdError + 'static)) -> Self {
        let mut converted = Self::new(error.to_string());
        let mut last = converted.0.what.clone();
        let mut source = error.source();
        while let Some(inner) = source {
            let text = inner.to_string();
            if !text.is_empty() && !last.contains(&text) {
                converted.0.why.push(text.clone());
                last = text;
            }
            source = inner.source();
        }
        converted
    }

    /// Adds the next deeper reason.
    #[must_use]
    pub fn because(mut self, why: impl fmt::Display) -> Self {
        self.0.why.push(why.to_string());
        self
    }

    /// Adds what the user can do about it. The same hint is kept once.
    #[must_use]
    pub fn hint(mut self, hint: impl Into<String>) -> Self {
        let hint = hint.into();
        if !self.0.hints.contains(&hint) {
            self.0.hints.push(hint);
        }
        self
    }

    /// Puts a new `what` in front; the old one becomes the first reason. Kind, cause and hints stay.
    #[must_use]
    pub fn context(mut self, what: impl Into<String>) -> Self {
        let old = std::mem::replace(&mut self.0.what, what.into());
        self.0.why.insert(0, old);
        self
    }

    /// Sets what lies behind it.
    #[must_use]
    pub fn with_cause(mut self, cause: Cause) -> Self {
        self.0.cause = cause;
        self
    }

    /// Turns it into another kind, for example a failed check into a refusal.
    #[must_use]
    pub fn with_kind(mut self, kind: Kind) -> Self {
        self.0.kind = kind;
        self
    }

    /// What sort of failure it is.
    #[must_use]
    pub fn kind(&self) -> Kind {
        self.0.kind
    }

    /// What lies behind it.
    #[must_use]
    pub fn cause(&self) -> Cause {
        self.0.cause
    }

    /// Whether the same call may succeed a moment later without anybody's help.
    #[must_use]
    pub fn is_retryable(&self) -> bool {
        self.0.cause.is_retryable()
    }

    /// Whether the object or kind does not exist.
    #[must_use]
    pub fn is_not_found(&self) -> bool {
        self.0.cause == Cause::NotFound
    }

    /// What happened.
    #[must_use]
    pub fn what(&self) -> &str {
        &self.0.what
    }

    /// The reasons, from the nearest to the deepest.
    #[must_use]
    pub fn why(&self) -> &[String] {
        &self.0.why
    }

    /// What the user can do about it.
    #[must_use]
    pub fn hints(&self) -> &[String] {
        &self.0.hints
    }

    /// Exit code of the process.
    #[must_use]
    pub fn exit_code(&self) -> u8 {
        self.0.kind.exit_code()
    }
}

/// `what: why: why`, on one line and without the hints; [`crate::Printer::error`] shows all of it.
impl fmt::Display for Error {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(&self.0.what)?;
        for why in &self.0.why {
            write!(formatter, ": {why}")?;
        }
        Ok(())
    }
}

impl fmt::Debug for Error {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(&self.0, formatter)
    }
}

impl StdError for Error {}

impl From<kube::Error> for Error {
    fn from(error: kube::Error) -> Self {
        crate::kube_client::explain(&error)
    }
}

/// Adds what was being done to the error of any library.
pub trait Context<T> {
    /// Puts `what` in front of the error; see [`Error::context`].
    ///
    /// # Errors
    /// The error of `self`, converted.
    fn context(self, what: impl Into<String>) -> Result<T>;

    /// Like [`Context::context`], with a text that is made only when needed.
    ///
    /// # Errors
    /// The error of `self`, converted.
    fn with_context(self, what: impl FnOnce() -> String) -> Result<T>;
}

impl<T, E: StdError + Send + Sync + 'static> Context<T> for std::result::Result<T, E> {
    fn context(self, what: impl Into<String>) -> Result<T> {
        self.map_err(|error| convert(error).context(what))
    }

    fn with_context(self, what: impl FnOnce() -> String) -> Result<T> {
        self.map_err(|error| convert(error).context(what()))
    }
}

/// Keeps kind, cause and hints of our own errors, explains kube's, and takes any other error's chain of sources.
fn convert<E: StdError + Send + Sync + 'static>(error: E) -> Error {
    let boxed: Box<dyn StdError + Send + Sync> = Box::new(error);
    match boxed.downcast::<Error>() {
        Ok(ours) => *ours,
        Err(other) => match other.downcast_ref::<kube::Error>() {
            Some(kube_error) => crate::kube_client::explain(kube_error),
            None => Error::from_std(other.as_ref()),
        },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Debug)]
    struct Outer(std::io::Error);
    impl fmt::Display for Outer {
        fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
            write!(formatter, "cannot read state")
        }
    }
    impl StdError for Outer {
        fn source(&self) -> Option<&(dyn StdError + 'static)> {
            Some(&self.0)
        }
    }

    #[test]
    fn exit_codes_follow_the_kind() {
        let cases = [
            (Error::new("a"), 1),
            (Error::refused("a"), 1),
            (Error::usage("a"), 2),
            (Error::interrupted("a"), 130),
        ];
        for (error, code) in cases {
            assert_eq!(error.exit_code(), code, "{:?}", error.kind());
        }
    }

    #[test]
    fn context_pushes_the_old_what_in_front_of_the_reasons() {
        let error = Error::usage("bad field")
            .because("not a number")
            .hint("write 1")
            .context("cannot read a.yaml");
        assert_eq!(error.what(), "cannot read a.yaml");
        assert_eq!(error.why(), ["bad field", "not a number"]);
        assert_eq!(error.hints(), ["write 1"]);
        assert_eq!(error.kind(), Kind::Usage);
        assert_eq!(error.to_string(), "cannot read a.yaml: bad field: not a number");
    }

    #[test]
    fn context_on_our_own_error_keeps_kind_cause_and_hints() {
        let result: Result<()> = Err(Error::refused("no").hint("do").with_cause(Cause::NotFound));
        let error = Context::context(result, "cannot start").unwrap_err();
        assert_eq!((error.kind(), error.cause()), (Kind::Refused, Cause::NotFound));
        assert_eq!(error.hints(), ["do"]);
        assert_eq!(error.to_string(), "cannot start: no");
    }

    #[test]
    fn context_walks_the_sources_of_a_foreign_error() {
        let result: Result<(), Outer> = Err(Outer(std::io::Error::other("disk on fire")));
        let error = result.with_context(|| "cannot start".to_owned()).unwrap_err();
        assert_eq!(error.why(), ["cannot read state", "disk on fire"]);
    }

    #[test]
    fn context_explains_errors_of_the_client() {
        let status = kube::core::Status::failure("pods \"a\" not found", "NotFound")
            .with_code(404)
            .boxed();
        let error = Context::context(Err::<(), _>(kube::Error::Api(status)), "cannot get Pod a").unwrap_err();
        assert!(error.is_not_found());
        assert!(!error.to_string().contains("Status {"), "{error}");
    }

    #[test]
    fn the_same_hint_is_kept_once() {
        assert_eq!(Error::new("a").hint("x").hint("x").hints().len(), 1);
    }

    #[test]
    fn an_error_is_one_pointer_wide() {
        assert_eq!(size_of::<Error>(), size_of::<usize>());
    }
}
