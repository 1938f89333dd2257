//! What forbids a conversion.

use std::fmt;

use crate::fields::FieldError;

/// One thing that forbids the conversion, found before anything was changed.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, serde::Serialize, serde::Deserialize)]
pub struct Refusal {
    /// The file or object, with the field where one is to blame.
    pub object: String,
    /// What is wrong.
    pub what: String,
    /// What to do about it.
    pub remedy: String,
}

impl Refusal {
    /// A refusal about `object`.
    pub fn new(object: impl Into<String>, what: impl Into<String>, remedy: impl Into<String>) -> Self {
        Self {
            object: object.into(),
            what: what.into(),
            remedy: remedy.into(),
        }
    }

    /// The refusal for a field of the file `file`.
    #[must_use]
    pub fn in_file(file: &str, error: FieldError) -> Self {
        Self {
            object: format!("{file}: {}", error.field),
            what: error.what,
            remedy: error.remedy,
        }
    }
}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.object, self.what)
    }
}
