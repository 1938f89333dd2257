//! The error of the lab: what happened, why, and what to do.

use std::fmt;

/// Result of everything in this crate.
pub type Result<T> = std::result::Result<T, Error>;

/// What happened, why, and what to do about it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Error {
    /// What was tried.
    pub what: String,
    /// Why it did not work.
    pub why: String,
    /// What to do. Empty where nothing useful can be said.
    pub hint: String,
}

impl Error {
    /// An error without a hint.
    pub fn new(what: impl Into<String>, why: impl fmt::Display) -> Self {
        Self {
            what: what.into(),
            why: why.to_string(),
            hint: String::new(),
        }
    }

    /// The same error with a hint.
    #[must_use]
    pub fn hint(mut self, hint: impl Into<String>) -> Self {
        self.hint = hint.into();
        self
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.what, self.why.trim_end())?;
        if self.hint.is_empty() {
            Ok(())
        } else {
            write!(f, "\nhint: {}", self.hint)
        }
    }
}

impl std::error::Error for Error {}

/// Says what was tried when it fails.
pub trait Context<T> {
    /// Turns the error into one that says `what` was tried.
    ///
    /// # Errors
    /// The error of `self`, as [`Error`].
    fn what(self, what: impl FnOnce() -> String) -> Result<T>;
}

impl<T, E: fmt::Display> Context<T> for std::result::Result<T, E> {
    fn what(self, what: impl FnOnce() -> String) -> Result<T> {
        self.map_err(|e| Error::new(what(), e))
    }
}
