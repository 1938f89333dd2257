//! Running programs: every run has a deadline, and its error says what the program wrote.

use std::{
    io::Read,
    process::{Command, ExitStatus, Stdio},
    sync::mpsc,
    thread,
    time::{Duration, Instant},
};

use crate::{
    error::{Context, Error, Result},
    interrupt,
};

/// What a program wrote, and how it ended.
#[derive(Clone, Debug)]
pub struct Output {
    /// How it ended.
    pub status: ExitStatus,
    /// Standard output, as UTF-8 (other bytes replaced).
    pub stdout: String,
    /// Standard error, as UTF-8 (other bytes replaced).
    pub stderr: String,
}

impl Output {
    /// Whether it ended with code 0.
    #[must_use]
    pub fn success(&self) -> bool {
        self.status.success()
    }

    /// The output, where the program ended with code 0.
    ///
    /// # Errors
    /// The program failed: the error holds the end of what it wrote.
    pub fn checked(self, what: &str) -> Result<Self> {
        if self.success() {
            return Ok(self);
        }
        let text = if self.stderr.trim().is_empty() {
            &self.stdout
        } else {
            &self.stderr
        };
        Err(Error::new(what, format!("{}: {}", self.status, tail(text, 20))))
    }
}

/// The last `lines` lines of a text.
#[must_use]
pub fn tail(text: &str, lines: usize) -> String {
    let all: Vec<_> = text.trim_end().lines().collect();
    all[all.len().saturating_sub(lines)..].join("\n")
}

/// Runs a program to its end, or kills it at the deadline. A program that fails is no error here: see [`Output::checked`].
///
/// # Errors
/// The program cannot be started, or does not end in time.
pub fn run(command: &mut Command, what: &str, deadline: Duration) -> Result<Output> {
    interrupt::stop_here_when_interrupted();
    let program = command.get_program().to_string_lossy().into_owned();
    let mut child = command
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .map_err(|e| Error::new(what, format!("{program} cannot be started: {e}")))?;
    let stdout = collect(child.stdout.take());
    let stderr = collect(child.stderr.take());
    let begin = Instant::now();
    let status = loop {
        if let Some(status) = child.try_wait().what(|| what.to_owned())? {
            break status;
        }
        if begin.elapsed() > deadline {
            let _ = child.kill();
            let _ = child.wait();
            let said = stderr.recv_timeout(Duration::from_millis(200)).unwrap_or_default();
            return Err(Error::new(
                what,
                format!(
                    "{program} has not ended after {} s\n{}",
                    deadline.as_secs(),
                    tail(&said, 20)
                ),
            ));
        }
        thread::sleep(Duration::from_millis(10));
    };
    interrupt::stop_here_when_interrupted();
    // Something left in the background may hold the pipes open: its output is not waited for.
    let patience = Duration::from_secs(2);
    Ok(Output {
        status,
        stdout: stdout.recv_timeout(patience).unwrap_or_default(),
        stderr: stderr.recv_timeout(patience).unwrap_or_default(),
    })
}

fn collect(from: Option<impl Read + Send + 'static>) -> mpsc::Receiver<String> {
    let (sender, receiver) = mpsc::channel();
    thread::spawn(move || {
        let mut bytes = Vec::new();
        if let Some(mut from) = from {
            let _ = from.read_to_end(&mut bytes);
        }
        let _ = sender.send(String::from_utf8_lossy(&bytes).into_owned());
    });
    receiver
}

/// Runs a short program that must succeed.
///
/// # Errors
/// It cannot be started, fails, or takes longer than 30 s.
pub fn must(program: &str, args: &[&str]) -> Result<Output> {
    let what = format!("{program} {}", args.join(" "));
    run(Command::new(program).args(args), &what, Duration::from_secs(30))?.checked(&what)
}

/// Tries something until it says it is done.
///
/// # Errors
/// The deadline has passed: the error names what was waited for and the last state, or `try_once` gave up.
pub fn wait_for<T>(
    what: &str,
    deadline: Duration,
    every: Duration,
    mut try_once: impl FnMut() -> Result<std::result::Result<T, String>>,
) -> Result<T> {
    let begin = Instant::now();
    loop {
        match try_once()? {
            Ok(done) => return Ok(done),
            Err(state) if begin.elapsed() > deadline => {
                return Err(Error::new(
                    format!("wait for {what}"),
                    format!("not after {} s: {state}", deadline.as_secs()),
                ));
            }
            Err(_) => thread::sleep(every),
        }
        interrupt::stop_here_when_interrupted();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_failure_says_what_the_program_wrote() {
        let error = must("sh", &["-c", "echo some reason >&2; exit 3"])
            .unwrap_err()
            .to_string();
        assert!(error.contains("some reason") && error.contains('3'), "{error}");
    }

    #[test]
    fn a_program_that_does_not_end_is_killed_at_the_deadline() {
        let begin = Instant::now();
        let error = run(Command::new("sleep").arg("60"), "sleep", Duration::from_millis(100)).unwrap_err();
        assert!(error.why.contains("has not ended"), "{error}");
        assert!(begin.elapsed() < Duration::from_secs(10));
    }

    #[test]
    fn a_program_that_is_missing_is_named() {
        let error = must("no-such-program", &[]).unwrap_err();
        assert!(error.why.contains("no-such-program"), "{error}");
    }

    #[test]
    fn a_wait_ends_with_the_last_state() {
        let error = wait_for::<()>("the moon", Duration::ZERO, Duration::ZERO, || {
            Ok(Err("still day".to_owned()))
        })
        .unwrap_err();
        assert!(
            error.to_string().contains("the moon") && error.to_string().contains("still day"),
            "{error}"
        );
    }

    #[test]
    fn tail_keeps_the_end() {
        assert_eq!(tail("a\nb\nc\n", 2), "b\nc");
        assert_eq!(tail("a", 5), "a");
    }
}
