use std::{collections::BTreeMap, fmt, sync::Mutex, time::Duration};

use indicatif::{MultiProgress, ProgressBar, ProgressDrawTarget, ProgressStyle};

use super::{Outcome, Reporter, lock};
use crate::{Printer, printer::printable};

/// How often elapsed times are drawn anew.
const TICK: Duration = Duration::from_millis(100);
/// What a terminal gets redrawn at most, times a second.
const FRAMES_PER_SECOND: u8 = 20;

/// One bar a task on a terminal, with the time it has taken and what it waits for right now.
///
/// While it lives, messages of the printer step in front of the bars; when it is dropped, the bars stay where they are
/// as the record of what was done.
pub struct Bars {
    printer: Printer,
    multi: MultiProgress,
    color: bool,
    tick: bool,
    bars: Mutex<BTreeMap<String, ProgressBar>>,
}

impl fmt::Debug for Bars {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_struct("Bars").finish_non_exhaustive()
    }
}

impl Bars {
    /// Bars on stderr.
    #[must_use]
    pub fn new(printer: Printer) -> Self {
        Self::on(printer, ProgressDrawTarget::stderr_with_hz(FRAMES_PER_SECOND), true)
    }

    fn on(printer: Printer, target: ProgressDrawTarget, tick: bool) -> Self {
        let multi = MultiProgress::with_draw_target(target);
        printer.set_bars(Some(multi.clone()));
        let color = printer.color_stderr();
        Self {
            printer,
            multi,
            color,
            tick,
            bars: Mutex::new(BTreeMap::new()),
        }
    }

    fn bar(&self, task: &str, title: &str, steps: u64) -> ProgressBar {
        let bar = self.multi.add(ProgressBar::new(steps));
        bar.set_style(self.style(Mark::Running));
        bar.set_prefix(printable(title).replace(['\n', '\t'], " "));
        lock(&self.bars).insert(task.to_owned(), bar.clone());
        if self.tick {
            bar.enable_steady_tick(TICK);
        }
        bar
    }

    /// The task's bar; one that never began gets its bar now.
    fn find(&self, task: &str) -> ProgressBar {
        let found = lock(&self.bars).get(task).cloned();
        found.unwrap_or_else(|| self.bar(task, task, 1))
    }

    fn style(&self, mark: Mark) -> ProgressStyle {
        let (sign, color) = match mark {
            Mark::Running => ("{spinner}", "cyan"),
            Mark::Ended(Outcome::Done) => ("✓", "green"),
            Mark::Ended(Outcome::Failed) => ("✗", "red"),
            Mark::Ended(Outcome::Skipped) => ("-", "dim"),
        };
        let template = if self.color {
            format!("{sign} {{prefix:34!}} {{bar:16.{color}}} {{pos}}/{{len}} {{elapsed:>4}}  {{wide_msg}}")
        } else {
            format!("{sign} {{prefix:34!}} {{bar:16}} {{pos}}/{{len}} {{elapsed:>4}}  {{wide_msg}}")
        };
        // The templates are constants and under test; if one were wrong the plain bar is still right.
        ProgressStyle::with_template(&template)
            .unwrap_or_else(|_| ProgressStyle::default_bar())
            .progress_chars("━╸─")
            .tick_chars("⠋⠙⠹⠸⠼⠴⠦⠧⠇⠏ ")
    }
}

#[derive(Clone, Copy)]
enum Mark {
    Running,
    Ended(Outcome),
}

/// A message takes one line, or the bars above it would be drawn at the wrong place.
fn one_line(text: &str) -> String {
    printable(text).replace(['\n', '\t'], " ")
}

impl Reporter for Bars {
    fn begin(&self, task: &str, title: &str, steps: u64) {
        self.bar(task, title, steps).tick();
    }

    fn waiting(&self, task: &str, what: &str) {
        self.find(task).set_message(format!("waiting for {}", one_line(what)));
    }

    fn step(&self, task: &str, done: &str) {
        let bar = self.find(task);
        bar.set_message(one_line(done));
        bar.inc(1);
    }

    fn finish(&self, task: &str, outcome: Outcome, message: &str) {
        let bar = self.find(task);
        bar.set_style(self.style(Mark::Ended(outcome)));
        match outcome {
            Outcome::Done => bar.finish_with_message(one_line(message)),
            Outcome::Failed | Outcome::Skipped => bar.abandon_with_message(one_line(message)),
        }
        lock(&self.bars).remove(task);
    }

    fn note(&self, message: &str) {
        self.printer.note(message);
    }
}

impl Drop for Bars {
    fn drop(&mut self) {
        for bar in lock(&self.bars).values() {
            // Stops the threads that redraw, and leaves the bar as it was when the work ended.
            bar.abandon();
        }
        self.printer.set_bars(None);
    }
}

#[cfg(test)]
mod tests {
    use indicatif::InMemoryTerm;

    use super::*;
    use crate::printer::tests::captured;

    fn on_terminal(columns: u16) -> (Bars, InMemoryTerm, Printer) {
        let terminal = InMemoryTerm::new(10, columns);
        let (printer, _, _) = captured(false);
        let target = ProgressDrawTarget::term_like_with_hz(Box::new(terminal.clone()), 250);
        (Bars::on(printer.clone(), target, false), terminal, printer)
    }

    #[test]
    fn a_bar_shows_title_steps_time_and_what_it_waits_for() {
        let (bars, terminal, _) = on_terminal(110);
        bars.begin("a", "kube-scheduler on cp-1", 3);
        bars.step("a", "Pod is bound");
        bars.waiting("a", "the Pod to be\nready");
        bars.multi.suspend(|| {});
        let line = terminal.contents();
        assert!(line.contains("kube-scheduler on cp-1"), "{line}");
        assert!(line.contains("1/3   0s  waiting for the Pod to be ready"), "{line}");
        assert_eq!(line.lines().count(), 1, "{line}");
    }

    #[test]
    fn each_outcome_has_its_sign_and_bars_stay_in_their_order() {
        let (bars, terminal, _) = on_terminal(110);
        for (task, outcome) in [("a", Outcome::Done), ("b", Outcome::Failed), ("c", Outcome::Skipped)] {
            bars.begin(task, task, 2);
            bars.step(task, "one");
            bars.finish(task, outcome, "message");
        }
        drop(bars);
        let contents = terminal.contents();
        let lines: Vec<&str> = contents.lines().collect();
        assert_eq!(lines.len(), 3, "{contents}");
        for (line, (sign, name, position)) in
            lines
                .iter()
                .zip([("✓", "a", "2/2"), ("✗", "b", "1/2"), ("-", "c", "1/2")])
        {
            assert!(line.starts_with(&format!("{sign} {name} ")), "{line}");
            assert!(line.contains(position) && line.ends_with("message"), "{line}");
        }
    }

    #[test]
    fn a_narrow_terminal_cuts_the_message_and_nothing_wraps() {
        let (bars, terminal, _) = on_terminal(80);
        bars.begin("a", "a title that is far longer than its column of thirty-four", 3);
        bars.waiting("a", &"very long ".repeat(20));
        bars.multi.suspend(|| {});
        assert_eq!(terminal.contents().lines().count(), 1, "{}", terminal.contents());
    }

    #[test]
    fn a_task_that_never_began_gets_its_bar() {
        let (bars, terminal, _) = on_terminal(110);
        bars.finish("lost", Outcome::Failed, "no such node");
        assert!(terminal.contents().contains("✗ lost"), "{}", terminal.contents());
    }

    #[test]
    fn messages_of_the_printer_step_in_front_of_the_bars_while_they_live() {
        let (bars, terminal, printer) = on_terminal(110);
        bars.begin("a", "a", 1);
        printer.note("hello");
        bars.multi.suspend(|| {});
        assert!(terminal.contents().contains("a "), "{}", terminal.contents());
        drop(bars);
        printer.note("after");
    }
}
