use std::{
    collections::BTreeMap,
    fmt,
    sync::Mutex,
    time::{Duration, Instant},
};

use super::{Outcome, Reporter, lock};
use crate::{Printer, wait::short};

/// A log is not filled faster than this with what one task waits for.
const PAUSE: Duration = Duration::from_secs(3);

type Clock = Box<dyn Fn() -> Duration + Send + Sync>;

/// Plain lines on stderr, for logs: one a step; what a task waits for only when that changed, and at most every three
/// seconds.
pub struct Lines {
    printer: Printer,
    clock: Clock,
    tasks: Mutex<BTreeMap<String, Task>>,
}

impl fmt::Debug for Lines {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter
            .debug_struct("Lines")
            .field("tasks", &self.tasks)
            .finish_non_exhaustive()
    }
}

#[derive(Debug, Default)]
struct Task {
    begun: Duration,
    done: u64,
    steps: u64,
    /// What was last shown as waited for, and when.
    shown: Option<(Duration, String)>,
}

impl Task {
    /// Whether to show `what` now; remembers it if so.
    fn admit(&mut self, now: Duration, what: &str) -> bool {
        let admitted = match &self.shown {
            None => true,
            Some((at, shown)) => shown != what && now.saturating_sub(*at) >= PAUSE,
        };
        if admitted {
            self.shown = Some((now, what.to_owned()));
        }
        admitted
    }
}

impl Lines {
    /// Lines on the stderr of `printer`.
    #[must_use]
    pub fn new(printer: Printer) -> Self {
        let start = Instant::now();
        Self::with_clock(printer, Box::new(move || start.elapsed()))
    }

    /// With another clock, which tells the time since any fixed moment and never goes back.
    #[must_use]
    pub fn with_clock(printer: Printer, clock: Box<dyn Fn() -> Duration + Send + Sync>) -> Self {
        Self {
            printer,
            clock,
            tasks: Mutex::new(BTreeMap::new()),
        }
    }

    fn line(&self, task: &str, text: &str) {
        self.printer.note(format!("[{task}] {text}"));
    }
}

impl Reporter for Lines {
    fn begin(&self, task: &str, title: &str, steps: u64) {
        let begun = (self.clock)();
        lock(&self.tasks).insert(
            task.to_owned(),
            Task {
                begun,
                steps,
                ..Task::default()
            },
        );
        // a title that is the task's name would say it twice
        self.line(task, if title == task { "begins" } else { title });
    }

    fn waiting(&self, task: &str, what: &str) {
        let now = (self.clock)();
        if lock(&self.tasks).entry(task.to_owned()).or_default().admit(now, what) {
            self.line(task, &format!("waiting for {what}"));
        }
    }

    fn step(&self, task: &str, done: &str) {
        let count = {
            let mut tasks = lock(&self.tasks);
            let entry = tasks.entry(task.to_owned()).or_default();
            entry.done += 1;
            // The next wait is a new one, so that it is shown at once.
            entry.shown = None;
            if entry.steps == 0 {
                entry.done.to_string()
            } else {
                format!("{}/{}", entry.done, entry.steps)
            }
        };
        self.line(task, &format!("{count} {done}"));
    }

    fn finish(&self, task: &str, outcome: Outcome, message: &str) {
        let took = lock(&self.tasks)
            .remove(task)
            .map(|entry| (self.clock)().saturating_sub(entry.begun));
        let word = match outcome {
            Outcome::Done => "done",
            Outcome::Failed => "failed",
            Outcome::Skipped => "skipped",
        };
        let took = took
            .filter(|took| !took.is_zero())
            .map_or_else(String::new, |took| format!(" after {}", short(took)));
        let message = if message.is_empty() {
            String::new()
        } else {
            format!(": {message}")
        };
        self.line(task, &format!("{word}{took}{message}"));
    }

    fn note(&self, message: &str) {
        self.printer.note(message);
    }
}

#[cfg(test)]
mod tests {
    use std::sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    };

    use super::*;
    use crate::printer::tests::captured;

    #[test]
    fn one_line_a_step_and_waits_only_when_they_change_and_not_too_often() {
        let (printer, stdout, stderr) = captured(false);
        let now = Arc::new(AtomicU64::new(0));
        let clock = Arc::clone(&now);
        let lines = Lines::with_clock(
            printer,
            Box::new(move || Duration::from_millis(clock.load(Ordering::Relaxed))),
        );
        let at = |milliseconds| now.store(milliseconds, Ordering::Relaxed);

        lines.begin("cp-1/kube-scheduler", "Convert kube-scheduler on cp-1", 2);
        lines.waiting("cp-1/kube-scheduler", "the Pod to be bound");
        at(1000);
        lines.waiting("cp-1/kube-scheduler", "the Pod to start");
        at(2900);
        lines.waiting("cp-1/kube-scheduler", "the Pod to start");
        at(3100);
        lines.waiting("cp-1/kube-scheduler", "the Pod to start");
        at(9000);
        lines.waiting("cp-1/kube-scheduler", "the Pod to start");
        lines.step("cp-1/kube-scheduler", "Pod is bound");
        lines.waiting("cp-1/kube-scheduler", "the lease");
        lines.note("the port is shared");
        at(12_000);
        lines.step("cp-1/kube-scheduler", "lease is held");
        lines.finish("cp-1/kube-scheduler", Outcome::Done, "");

        assert_eq!(stdout.text(), "");
        assert_eq!(
            stderr.text(),
            "[cp-1/kube-scheduler] Convert kube-scheduler on cp-1\n\
             [cp-1/kube-scheduler] waiting for the Pod to be bound\n\
             [cp-1/kube-scheduler] waiting for the Pod to start\n\
             [cp-1/kube-scheduler] 1/2 Pod is bound\n\
             [cp-1/kube-scheduler] waiting for the lease\n\
             the port is shared\n\
             [cp-1/kube-scheduler] 2/2 lease is held\n\
             [cp-1/kube-scheduler] done after 12s\n"
        );
    }

    #[test]
    fn a_task_that_never_began_is_not_lost() {
        let (printer, _, stderr) = captured(false);
        let lines = Lines::with_clock(printer, Box::new(|| Duration::ZERO));
        lines.step("a", "something");
        lines.finish("b", Outcome::Failed, "no such node");
        lines.finish("c", Outcome::Skipped, "already self-hosted");
        assert_eq!(
            stderr.text(),
            "[a] 1 something\n[b] failed: no such node\n[c] skipped: already self-hosted\n"
        );
    }
}
