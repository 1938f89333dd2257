//! The only owner of stdout and stderr: data on stdout, everything else on stderr.

use std::{
    borrow::Cow,
    fmt,
    io::{self, IsTerminal, Write},
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicBool, Ordering},
    },
};

use indicatif::MultiProgress;

use crate::{Error, Result};

/// When to colour.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, clap::ValueEnum)]
pub enum ColorChoice {
    /// On a terminal, unless `NO_COLOR` or `TERM=dumb` says otherwise.
    #[default]
    Auto,
    /// Even into a pipe or file.
    Always,
    /// Not at all.
    Never,
}

/// Flags about what the command shows, common to all commands.
#[derive(Clone, Copy, Debug, Default, clap::Args)]
pub struct ConsoleFlags {
    /// When to use colour
    #[arg(
        long,
        value_enum,
        value_name = "WHEN",
        default_value_t,
        global = true,
        help_heading = "Global options"
    )]
    pub color: ColorChoice,
    /// How much to tell: 0 the results, 1 also how many requests went to the API server
    #[arg(
        short = 'v',
        long = "v",
        value_name = "LEVEL",
        default_value_t,
        global = true,
        help_heading = "Global options"
    )]
    pub verbosity: u8,
}

/// Writes data to stdout and messages to stderr. Cheap to clone; all clones write through the same locks.
///
/// A reader that went away (`| head`) is no error: later data is dropped, and [`Printer::stdout_closed`] tells a loop
/// that it may stop.
#[derive(Clone)]
pub struct Printer(Arc<Inner>);

struct Inner {
    stdout: Mutex<Box<dyn Write + Send>>,
    stderr: Mutex<Box<dyn Write + Send>>,
    stdout_closed: AtomicBool,
    stdout_is_terminal: bool,
    stderr_is_terminal: bool,
    color_stdout: bool,
    color_stderr: bool,
    /// Bars that are on the screen now: a message steps in front of them instead of tearing them.
    bars: Mutex<Option<MultiProgress>>,
}

impl fmt::Debug for Printer {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter
            .debug_struct("Printer")
            .field("color_stderr", &self.0.color_stderr)
            .finish_non_exhaustive()
    }
}

/// A thread that panicked while it held a writer leaves nothing half changed that we would read.
fn lock<T: ?Sized>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Printer {
    /// The printer of the process.
    #[must_use]
    pub fn new(choice: ColorChoice) -> Self {
        let (stdout, stderr) = (io::stdout(), io::stderr());
        let colored = |auto: anstream::ColorChoice| match choice {
            ColorChoice::Auto => auto != anstream::ColorChoice::Never,
            ColorChoice::Always => true,
            ColorChoice::Never => false,
        };
        Self(Arc::new(Inner {
            stdout_closed: AtomicBool::new(false),
            stdout_is_terminal: stdout.is_terminal(),
            stderr_is_terminal: stderr.is_terminal(),
            color_stdout: colored(anstream::AutoStream::choice(&stdout)),
            color_stderr: colored(anstream::AutoStream::choice(&stderr)),
            stdout: Mutex::new(Box::new(stdout)),
            stderr: Mutex::new(Box::new(stderr)),
            bars: Mutex::new(None),
        }))
    }

    /// A printer that writes elsewhere, for tests. It is no terminal.
    #[must_use]
    pub fn with_writers(stdout: Box<dyn Write + Send>, stderr: Box<dyn Write + Send>, color: bool) -> Self {
        Self(Arc::new(Inner {
            stdout: Mutex::new(stdout),
            stderr: Mutex::new(stderr),
            stdout_closed: AtomicBool::new(false),
            stdout_is_terminal: false,
            stderr_is_terminal: false,
            color_stdout: color,
            color_stderr: color,
            bars: Mutex::new(None),
        }))
    }

    /// Writes data to stdout and ends it with a newline if it has none.
    ///
    /// # Errors
    /// When stdout cannot be written (full disk, for example). A reader that went away is no error.
    pub fn data(&self, text: &str) -> Result<()> {
        if self.stdout_closed() {
            return Ok(());
        }
        let result = self.around_bars(|| {
            let mut stdout = lock(&self.0.stdout);
            stdout.write_all(text.as_bytes())?;
            if !text.ends_with('\n') {
                stdout.write_all(b"\n")?;
            }
            stdout.flush()
        });
        match result {
            Err(error) if error.kind() == io::ErrorKind::BrokenPipe => {
                self.0.stdout_closed.store(true, Ordering::Relaxed);
                Ok(())
            }
            Err(error) => Err(Error::new("cannot write the output").because(error)),
            Ok(()) => Ok(()),
        }
    }

    /// Whether whoever read stdout went away.
    #[must_use]
    pub fn stdout_closed(&self) -> bool {
        self.0.stdout_closed.load(Ordering::Relaxed)
    }

    /// A plain line on stderr.
    pub fn note(&self, text: impl AsRef<str>) {
        self.message(&printable(text.as_ref()));
    }

    /// `warning: …` on stderr.
    pub fn warning(&self, text: impl AsRef<str>) {
        self.message(&format!(
            "{} {}",
            self.label("warning:", Color::Yellow),
            printable(text.as_ref())
        ));
    }

    /// `hint: …` on stderr.
    pub fn hint(&self, text: impl AsRef<str>) {
        self.message(&format!(
            "{} {}",
            self.label("hint:", Color::Cyan),
            printable(text.as_ref())
        ));
    }

    /// The whole error on stderr: what, why, hints.
    pub fn error(&self, error: &Error) {
        let mut text = format!("{} {}", self.label("error:", Color::Red), printable(error.what()));
        for why in error.why() {
            text.push_str("\n  ");
            text.push_str(&self.label("because:", Color::Dim));
            text.push(' ');
            text.push_str(&printable(why).replace('\n', "\n    "));
        }
        self.message(&text);
        for hint in error.hints() {
            self.hint(hint);
        }
    }

    /// Whether a person reads stdout.
    #[must_use]
    pub fn stdout_is_terminal(&self) -> bool {
        self.0.stdout_is_terminal
    }

    /// Whether a person reads stderr: bars and prompts make sense only then.
    #[must_use]
    pub fn stderr_is_terminal(&self) -> bool {
        self.0.stderr_is_terminal
    }

    /// Whether data on stdout may be coloured.
    #[must_use]
    pub fn color_stdout(&self) -> bool {
        self.0.color_stdout
    }

    /// Whether messages on stderr are coloured.
    #[must_use]
    pub fn color_stderr(&self) -> bool {
        self.0.color_stderr
    }

    /// Columns of the terminal behind stdout, `None` where it is none.
    #[must_use]
    pub fn stdout_width(&self) -> Option<usize> {
        if !self.0.stdout_is_terminal {
            return None;
        }
        console::Term::stdout()
            .size_checked()
            .map(|(_, columns)| usize::from(columns))
    }

    /// Tells the printer which bars are on the screen, so that messages step in front of them. `None` when they are gone.
    pub(crate) fn set_bars(&self, bars: Option<MultiProgress>) {
        *lock(&self.0.bars) = bars;
    }

    fn around_bars<T>(&self, write: impl FnOnce() -> T) -> T {
        let bars = lock(&self.0.bars).clone();
        match bars {
            Some(bars) => bars.suspend(write),
            None => write(),
        }
    }

    /// There is nowhere to report that stderr cannot be written.
    fn message(&self, text: &str) {
        self.around_bars(|| {
            let mut stderr = lock(&self.0.stderr);
            let _ = writeln!(stderr, "{text}");
            let _ = stderr.flush();
        });
    }

    fn label<'a>(&self, text: &'a str, color: Color) -> Cow<'a, str> {
        if !self.0.color_stderr {
            return Cow::Borrowed(text);
        }
        let code = match color {
            Color::Red => "1;31",
            Color::Yellow => "1;33",
            Color::Cyan => "1;36",
            Color::Dim => "2",
        };
        Cow::Owned(format!("\u{1b}[{code}m{text}\u{1b}[0m"))
    }
}

#[derive(Clone, Copy)]
enum Color {
    Red,
    Yellow,
    Cyan,
    Dim,
}

/// The text without control characters other than newline and tab.
///
/// Texts come from clusters and files too, and must not be able to move the cursor or to rename the terminal's window.
#[must_use]
pub fn printable(text: &str) -> Cow<'_, str> {
    let harmless = |character: char| !character.is_control() || character == '\n' || character == '\t';
    if text.chars().all(harmless) {
        return Cow::Borrowed(text);
    }
    Cow::Owned(
        text.chars()
            .map(|character| if harmless(character) { character } else { '\u{fffd}' })
            .collect(),
    )
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    /// A writer whose content a test can read afterwards.
    #[derive(Clone, Default)]
    pub(crate) struct Buffer(Arc<Mutex<Vec<u8>>>);

    impl Buffer {
        pub(crate) fn text(&self) -> String {
            String::from_utf8(lock(&self.0).clone()).unwrap()
        }
    }

    impl Write for Buffer {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            lock(&self.0).extend_from_slice(bytes);
            Ok(bytes.len())
        }
        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    pub(crate) fn captured(color: bool) -> (Printer, Buffer, Buffer) {
        let (stdout, stderr) = (Buffer::default(), Buffer::default());
        (
            Printer::with_writers(Box::new(stdout.clone()), Box::new(stderr.clone()), color),
            stdout,
            stderr,
        )
    }

    struct Failing(io::ErrorKind);
    impl Write for Failing {
        fn write(&mut self, _: &[u8]) -> io::Result<usize> {
            Err(self.0.into())
        }
        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    #[test]
    fn data_goes_to_stdout_and_messages_to_stderr() {
        let (printer, stdout, stderr) = captured(false);
        printer.data("one").unwrap();
        printer.data("two\n").unwrap();
        printer.note("seen");
        printer.warning("careful");
        printer.hint("look");
        assert_eq!(stdout.text(), "one\ntwo\n");
        assert_eq!(stderr.text(), "seen\nwarning: careful\nhint: look\n");
    }

    #[test]
    fn an_error_shows_what_why_and_hints_without_colour() {
        let (printer, stdout, stderr) = captured(false);
        printer.error(
            &Error::new("cannot convert")
                .because("node a is not ready")
                .because("disk\nfull")
                .hint("free it"),
        );
        assert_eq!(stdout.text(), "");
        assert_eq!(
            stderr.text(),
            "error: cannot convert\n  because: node a is not ready\n  because: disk\n    full\nhint: free it\n"
        );
    }

    #[test]
    fn colour_touches_the_labels_only() {
        let (printer, _, stderr) = captured(true);
        printer.warning("careful");
        assert_eq!(stderr.text(), "\u{1b}[1;33mwarning:\u{1b}[0m careful\n");
        assert_eq!(console::strip_ansi_codes(&stderr.text()), "warning: careful\n");
    }

    #[test]
    fn a_reader_that_went_away_is_no_error() {
        let printer = Printer::with_writers(
            Box::new(Failing(io::ErrorKind::BrokenPipe)),
            Box::new(io::sink()),
            false,
        );
        assert!(!printer.stdout_closed());
        printer.data("one").unwrap();
        assert!(printer.stdout_closed());
        printer.data("two").unwrap();
    }

    #[test]
    fn a_full_disk_is_an_error() {
        let printer = Printer::with_writers(
            Box::new(Failing(io::ErrorKind::StorageFull)),
            Box::new(io::sink()),
            false,
        );
        let error = printer.data("one").unwrap_err();
        assert_eq!(error.what(), "cannot write the output");
        assert!(!printer.stdout_closed());
    }

    #[test]
    fn control_characters_from_outside_do_not_reach_the_terminal() {
        let (printer, _, stderr) = captured(false);
        printer.note("a\u{1b}]0;title\u{7}b\tc\nd");
        assert_eq!(stderr.text(), "a\u{fffd}]0;title\u{fffd}b\tc\nd\n");
        assert!(matches!(printable("plain ✓"), Cow::Borrowed(_)));
    }
}
