use std::sync::Mutex;

use super::{Outcome, Reporter, lock};

/// One call of a [`Reporter`].
#[derive(Clone, Debug, PartialEq, Eq)]
#[allow(missing_docs, reason = "the fields are the arguments of the calls of the same name")]
pub enum Event {
    /// [`Reporter::begin`].
    Begin { task: String, title: String, steps: u64 },
    /// [`Reporter::waiting`].
    Waiting { task: String, what: String },
    /// [`Reporter::step`].
    Step { task: String, done: String },
    /// [`Reporter::finish`].
    Finish {
        task: String,
        outcome: Outcome,
        message: String,
    },
    /// [`Reporter::note`].
    Note { message: String },
}

/// Keeps all calls in their order, for tests.
#[derive(Debug, Default)]
pub struct Recording(Mutex<Vec<Event>>);

impl Recording {
    /// Nothing recorded yet.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// All calls so far.
    #[must_use]
    pub fn events(&self) -> Vec<Event> {
        lock(&self.0).clone()
    }

    fn push(&self, event: Event) {
        lock(&self.0).push(event);
    }
}

impl Reporter for Recording {
    fn begin(&self, task: &str, title: &str, steps: u64) {
        self.push(Event::Begin {
            task: task.to_owned(),
            title: title.to_owned(),
            steps,
        });
    }
    fn waiting(&self, task: &str, what: &str) {
        self.push(Event::Waiting {
            task: task.to_owned(),
            what: what.to_owned(),
        });
    }
    fn step(&self, task: &str, done: &str) {
        self.push(Event::Step {
            task: task.to_owned(),
            done: done.to_owned(),
        });
    }
    fn finish(&self, task: &str, outcome: Outcome, message: &str) {
        self.push(Event::Finish {
            task: task.to_owned(),
            outcome,
            message: message.to_owned(),
        });
    }
    fn note(&self, message: &str) {
        self.push(Event::Note {
            message: message.to_owned(),
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn calls_are_kept_in_their_order() {
        let recording = Recording::new();
        let reporter: &dyn Reporter = &recording;
        reporter.begin("a", "Convert a", 1);
        reporter.waiting("a", "b");
        reporter.step("a", "c");
        reporter.finish("a", Outcome::Done, "d");
        reporter.note("e");
        let a = || "a".to_owned();
        assert_eq!(
            recording.events(),
            [
                Event::Begin {
                    task: a(),
                    title: "Convert a".into(),
                    steps: 1
                },
                Event::Waiting {
                    task: a(),
                    what: "b".into()
                },
                Event::Step {
                    task: a(),
                    done: "c".into()
                },
                Event::Finish {
                    task: a(),
                    outcome: Outcome::Done,
                    message: "d".into()
                },
                Event::Note { message: "e".into() },
            ]
        );
    }
}
