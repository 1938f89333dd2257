//! What the agent tells while it runs: JSON lines for a service, plain lines for a person.

use std::fmt;

use jiff::Timestamp;
use serde_json::{Map, Value, json};
use shared::Printer;

/// How the lines look.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LogFormat {
    /// One JSON object a line: `time`, `level`, `message`, and what belongs to it.
    Json,
    /// For people.
    Text,
    /// For people who watch bars: warnings and errors only.
    Warnings,
}

/// Writes lines on stderr. Cheap to clone.
#[derive(Clone, Debug)]
pub struct Log {
    printer: Printer,
    format: LogFormat,
}

/// How much a line matters.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Level {
    Info,
    Warning,
    Error,
}

impl Log {
    /// Lines of this form on the printer's stderr.
    #[must_use]
    pub fn new(printer: Printer, format: LogFormat) -> Self {
        Self { printer, format }
    }

    /// Something happened as it should.
    pub fn info(&self, message: &str, fields: &[(&str, &dyn fmt::Display)]) {
        if self.format != LogFormat::Warnings {
            self.write(Level::Info, message, fields);
        }
    }

    /// Somebody should look at it.
    pub fn warning(&self, message: &str, fields: &[(&str, &dyn fmt::Display)]) {
        self.write(Level::Warning, message, fields);
    }

    /// Something that was tried did not work.
    pub fn error(&self, message: &str, error: &shared::Error) {
        self.write(Level::Error, message, &[("error", error)]);
    }

    fn write(&self, level: Level, message: &str, fields: &[(&str, &dyn fmt::Display)]) {
        self.printer
            .note(line(self.format, level, message, fields, Timestamp::now()));
    }
}

fn line(
    format: LogFormat,
    level: Level,
    message: &str,
    fields: &[(&str, &dyn fmt::Display)],
    now: Timestamp,
) -> String {
    match format {
        LogFormat::Json => {
            let level = match level {
                Level::Info => "info",
                Level::Warning => "warning",
                Level::Error => "error",
            };
            let mut object = Map::new();
            object.insert("time".into(), json!(format!("{now:.3}")));
            object.insert("level".into(), json!(level));
            object.insert("message".into(), json!(message));
            for (name, value) in fields {
                object.insert((*name).to_owned(), json!(value.to_string()));
            }
            Value::Object(object).to_string()
        }
        LogFormat::Text | LogFormat::Warnings => {
            let mut text = match level {
                Level::Info => message.to_owned(),
                Level::Warning => format!("warning: {message}"),
                Level::Error => format!("error: {message}"),
            };
            for (name, value) in fields {
                text.push_str(&if *name == "error" {
                    format!(": {value}")
                } else {
                    format!(" ({name} {value})")
                });
            }
            text
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_line_is_one_object_or_one_sentence() {
        let now = "2026-01-02T03:04:05.678Z".parse().unwrap();
        let fields: &[(&str, &dyn fmt::Display)] = &[("cluster", &"a"), ("error", &"two\nlines")];
        assert_eq!(
            line(LogFormat::Json, Level::Error, "cannot renew", fields, now),
            r#"{"time":"2026-01-02T03:04:05.678Z","level":"error","message":"cannot renew","cluster":"a","error":"two\nlines"}"#
        );
        assert_eq!(
            line(LogFormat::Text, Level::Warning, "slow", &fields[..1], now),
            "warning: slow (cluster a)"
        );
    }
}
