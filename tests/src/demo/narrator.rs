//! What the demo says while it goes on: a line for each step and why it matters, and a sign of life all the time.

use std::{
    io::{IsTerminal, Write, stderr},
    sync::mpsc,
    thread,
    time::{Duration, Instant},
};

/// Columns of everything that is written.
pub const WIDTH: usize = 80;
/// Longest silence.
const SIGN_OF_LIFE: Duration = Duration::from_secs(5);

/// Writes to standard error.
#[derive(Clone, Copy, Debug)]
pub struct Narrator {
    terminal: bool,
    color: bool,
    begin: Instant,
}

impl Narrator {
    /// For this process: colours on a terminal only, and none where `no_color` says so.
    #[must_use]
    pub fn new(no_color: bool) -> Self {
        let terminal = stderr().is_terminal();
        Self {
            terminal,
            color: terminal && !no_color,
            begin: Instant::now(),
        }
    }

    fn line(self, text: &str) {
        let _ = writeln!(stderr(), "{text}");
    }

    /// Begins a step: what happens, and why it matters.
    pub fn step(self, number: usize, what: &str, why: &str) {
        let title = format!("[{number}/{}] {what}", super::STEPS);
        self.line("");
        self.line(&if self.color {
            format!("\x1b[1m{title}\x1b[0m")
        } else {
            title
        });
        self.say(why);
    }

    /// Says something.
    pub fn say(self, text: &str) {
        for line in wrap(text, WIDTH, 2) {
            self.line(&line);
        }
    }

    /// Does something that writes nothing by itself. A line says every 5 seconds that it goes on.
    pub fn during<T>(self, what: &str, work: impl FnOnce() -> T) -> T {
        let (done, ended) = mpsc::channel::<()>();
        let begin = Instant::now();
        thread::scope(|scope| {
            scope.spawn(move || {
                while ended.recv_timeout(SIGN_OF_LIFE) == Err(mpsc::RecvTimeoutError::Timeout) {
                    self.say(&format!("... {what}: {} s", begin.elapsed().as_secs()));
                }
            });
            let result = work();
            drop(done);
            result
        })
    }

    /// Does something that shows bars by itself on a terminal, but may be silent elsewhere.
    pub fn during_bars<T>(self, what: &str, work: impl FnOnce() -> T) -> T {
        if self.terminal { work() } else { self.during(what, work) }
    }

    /// Whole seconds since the start of the demo.
    #[must_use]
    pub fn seconds(self) -> u64 {
        self.begin.elapsed().as_secs()
    }
}

/// Lines of at most `width` characters, each begun by `indent` spaces; those that follow the first one of a line of the
/// text are indented twice. Spaces within a line that fits are kept: tables stay as they are. A longer word is cut.
#[must_use]
pub fn wrap(text: &str, width: usize, indent: usize) -> Vec<String> {
    let mut lines = Vec::new();
    for whole in text.trim_end().lines() {
        if indent + whole.chars().count() <= width {
            lines.push(format!("{:indent$}{whole}", "").trim_end().to_owned());
            continue;
        }
        let mut line = " ".repeat(indent);
        let mut empty = true;
        for word in whole.split_whitespace() {
            let mut word: Vec<char> = word.chars().collect();
            let used = line.chars().count();
            if !empty && used + 1 + word.len() > width {
                lines.push(line);
                line = " ".repeat(2 * indent);
                empty = true;
            }
            if !empty {
                line.push(' ');
            }
            while line.chars().count() + word.len() > width {
                let room = width.saturating_sub(line.chars().count()).max(1);
                line.extend(word.drain(..room.min(word.len())));
                lines.push(line);
                line = " ".repeat(2 * indent);
            }
            line.extend(word);
            empty = false;
        }
        lines.push(line);
    }
    lines
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_fits_stays_as_it_is() {
        assert_eq!(wrap("a   b\n\nc", 10, 2), ["  a   b", "", "  c"]);
    }

    #[test]
    fn what_does_not_fit_is_broken_at_spaces_and_long_words_are_cut() {
        assert_eq!(wrap("one two three four", 10, 1), [" one two", "  three", "  four"]);
        let lines = wrap("x 0123456789012345678901234567890123456789 y", 16, 2);
        assert_eq!(
            lines,
            [
                "  x",
                "    012345678901",
                "    234567890123",
                "    456789012345",
                "    6789 y"
            ]
        );
        assert!(lines.iter().all(|l| l.chars().count() <= 16), "{lines:?}");
    }
}
