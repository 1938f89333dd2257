//! Progress of several tasks at once, told to whoever watches: bars on a terminal, lines in a log, JSON for a program,
//! records in a test.

mod bars;
mod json;
mod lines;
mod recording;

use std::sync::{Mutex, MutexGuard, PoisonError};

pub use bars::Bars;
pub use json::JsonLines;
pub use lines::Lines;
pub use recording::{Event, Recording};

use crate::{Printer, output::OutputFormat};

/// How a task ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Outcome {
    /// All steps were done.
    Done,
    /// It did not reach its end.
    Failed,
    /// There was nothing to do.
    Skipped,
}

/// Told about progress. A task is named by `task`, short and unique within a run, for example `cp-1/kube-apiserver`.
///
/// The order is `begin`, any number of `waiting` and `step`, `finish`. A call for a task that never began is shown as
/// well as it can be; it is not lost.
pub trait Reporter: Send + Sync {
    /// A task begins; `steps` is how many calls of [`Reporter::step`] will follow if all goes well.
    fn begin(&self, task: &str, title: &str, steps: u64);
    /// What the task waits for right now. May be called as often as one looks.
    fn waiting(&self, task: &str, what: &str);
    /// A step is done; `done` says which.
    fn step(&self, task: &str, done: &str);
    /// The task ended.
    fn finish(&self, task: &str, outcome: Outcome, message: &str);
    /// Something worth knowing that belongs to no task.
    fn note(&self, message: &str);
}

/// The reporter that fits: JSON on stdout for `-o json`, bars where a person watches stderr, lines elsewhere.
#[must_use]
pub fn reporter(printer: &Printer, format: OutputFormat) -> Box<dyn Reporter> {
    if format == OutputFormat::Json {
        Box::new(JsonLines::new(printer.clone()))
    } else if printer.stderr_is_terminal() {
        Box::new(Bars::new(printer.clone()))
    } else {
        Box::new(Lines::new(printer.clone()))
    }
}

/// A thread that panicked while it reported leaves nothing half changed that matters.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
