use std::fmt;

use serde::Serialize;

use super::{Outcome, Reporter};
use crate::Printer;

type Clock = Box<dyn Fn() -> String + Send + Sync>;

/// One JSON object a line on stdout.
///
/// | field | in | holds |
/// | --- | --- | --- |
/// | `time` | all | RFC 3339, UTC |
/// | `event` | all | `begin`, `waiting`, `step`, `finish` or `note` |
/// | `task` | all but `note` | name of the task, unique within the run |
/// | `title` | `begin` | what the task is, for people |
/// | `steps` | `begin` | how many `step` events will follow if all goes well |
/// | `message` | `waiting`, `step`, `finish`, `note` | what is waited for, what was done, how it ended, the note |
/// | `outcome` | `finish` | `done`, `failed` or `skipped` |
///
/// `waiting` comes each time somebody looks, so that a reader sees that the run is alive. Readers must ignore fields and
/// events that they do not know.
pub struct JsonLines {
    printer: Printer,
    clock: Clock,
}

impl fmt::Debug for JsonLines {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_struct("JsonLines").finish_non_exhaustive()
    }
}

#[derive(Serialize)]
struct Line<'a> {
    time: String,
    event: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    task: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    title: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    steps: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    outcome: Option<Outcome>,
    #[serde(skip_serializing_if = "Option::is_none")]
    message: Option<&'a str>,
}

impl JsonLines {
    /// Events on the stdout of `printer`.
    #[must_use]
    pub fn new(printer: Printer) -> Self {
        Self::with_clock(printer, Box::new(|| jiff::Timestamp::now().to_string()))
    }

    /// With another clock, which tells the time as RFC 3339.
    #[must_use]
    pub fn with_clock(printer: Printer, clock: Box<dyn Fn() -> String + Send + Sync>) -> Self {
        Self { printer, clock }
    }

    fn emit<'a>(&self, event: &'static str, task: Option<&'a str>, fill: impl FnOnce(Line<'a>) -> Line<'a>) {
        let time = (self.clock)();
        let line = fill(Line {
            time,
            event,
            task,
            title: None,
            steps: None,
            outcome: None,
            message: None,
        });
        if let Ok(text) = serde_json::to_string(&line) {
            // A stdout that cannot be written fails again, and is reported, when the result is printed.
            let _ = self.printer.data(&text);
        }
    }
}

impl Reporter for JsonLines {
    fn begin(&self, task: &str, title: &str, steps: u64) {
        self.emit("begin", Some(task), |line| Line {
            title: Some(title),
            steps: Some(steps),
            ..line
        });
    }
    fn waiting(&self, task: &str, what: &str) {
        self.emit("waiting", Some(task), |line| Line {
            message: Some(what),
            ..line
        });
    }
    fn step(&self, task: &str, done: &str) {
        self.emit("step", Some(task), |line| Line {
            message: Some(done),
            ..line
        });
    }
    fn finish(&self, task: &str, outcome: Outcome, message: &str) {
        self.emit("finish", Some(task), |line| Line {
            outcome: Some(outcome),
            message: Some(message),
            ..line
        });
    }
    fn note(&self, message: &str) {
        self.emit("note", None, |line| Line {
            message: Some(message),
            ..line
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::printer::tests::captured;

    #[test]
    fn each_event_is_one_object_on_stdout_with_the_documented_fields() {
        let (printer, stdout, stderr) = captured(false);
        let json = JsonLines::with_clock(printer, Box::new(|| "2026-01-02T03:04:05Z".to_owned()));
        json.begin("a", "Convert a", 2);
        json.waiting("a", "a \"Pod\"");
        json.step("a", "two\nlines");
        json.finish("a", Outcome::Failed, "no");
        json.note("b");
        assert_eq!(stderr.text(), "");
        let time = r#""time":"2026-01-02T03:04:05Z""#;
        assert_eq!(
            stdout.text().lines().collect::<Vec<_>>(),
            [
                format!(r#"{{{time},"event":"begin","task":"a","title":"Convert a","steps":2}}"#),
                format!(r#"{{{time},"event":"waiting","task":"a","message":"a \"Pod\""}}"#),
                format!(r#"{{{time},"event":"step","task":"a","message":"two\nlines"}}"#),
                format!(r#"{{{time},"event":"finish","task":"a","outcome":"failed","message":"no"}}"#),
                format!(r#"{{{time},"event":"note","message":"b"}}"#),
            ]
        );
    }

    #[test]
    fn the_clock_of_the_process_tells_rfc_3339() {
        let (printer, stdout, _) = captured(false);
        JsonLines::new(printer).note("x");
        let line: serde_json::Value = serde_json::from_str(&stdout.text()).unwrap();
        let time: jiff::Timestamp = line["time"].as_str().unwrap().parse().unwrap();
        assert!(time.as_second() > 1_700_000_000);
    }
}
