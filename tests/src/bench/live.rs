//! Measures on a cluster, with probe, load and the watches of endpoints and leaders beside.

use std::{
    fs,
    time::{Duration, Instant},
};

use serde_json::Value;

use super::{
    figure::{Figure, Target, Unit},
    order::Action,
};
use crate::{
    error::{Context, Error, Result},
    interrupt,
    operate::{
        Operator, StoppedGuard, Trouble,
        beside::{Beside, Counts, Noticed},
        edits::{self, Component, Mistake},
    },
};

const APISERVER: Component = Component::KubeApiserver;
const FLAG: &str = "event-ttl";
/// Meters run for that long before and after.
const BEFORE: Duration = Duration::from_secs(2);
const AFTER: Duration = Duration::from_secs(3);
/// How long a guard is left alone before it is looked at, and how long it is looked at.
const IDLE: Duration = Duration::from_secs(60);

/// Times that are chosen on the command line.
#[derive(Clone, Copy, Debug)]
pub struct Times {
    /// How long a bad edit is left in place.
    pub hold: Duration,
}

/// Takes one measure. Figures go to `found` as they are known, so that those before an error are not lost.
///
/// # Errors
/// It could not be taken to its end.
pub fn measure(action: Action, operator: &Operator<'_>, times: Times, found: &mut dyn FnMut(Figure)) -> Result<()> {
    let mut to = To::new(&action.name(), found);
    match action {
        Action::Convert(run) => {
            to.run = run;
            convert(operator, &mut to)
        }
        Action::Revert(run) => {
            to.run = run;
            revert(operator, &mut to)
        }
        Action::Guard => guard(operator, &mut to),
        Action::Rolls(runs) => rolls(operator, runs, &mut to),
        Action::BadEdit(component, mistake) => bad_edit(operator, component, mistake, times.hold, &mut to),
        Action::StaticFlag => static_flag(operator, &mut to),
        Action::GapMode => gap_mode(operator, &mut to),
        Action::KeepSharing => keep_sharing(operator, &mut to),
    }
}

/// Where the figures of one measure go.
pub(super) struct To<'a> {
    measure: String,
    run: u32,
    found: &'a mut dyn FnMut(Figure),
}

impl<'a> To<'a> {
    pub(super) fn new(measure: &str, found: &'a mut dyn FnMut(Figure)) -> Self {
        Self {
            measure: measure.to_owned(),
            run: 1,
            found,
        }
    }

    pub(super) fn put(
        &mut self,
        name: &str,
        value: Option<f64>,
        of: Option<u64>,
        unit: Unit,
        target: Target,
        note: &str,
    ) {
        (self.found)(Figure {
            measure: self.measure.clone(),
            run: self.run,
            name: name.to_owned(),
            value,
            of,
            unit,
            target,
            note: note.to_owned(),
        });
    }

    pub(super) fn seconds(&mut self, name: &str, value: f64, target: Target) {
        self.put(name, Some(value), None, Unit::Seconds, target, "");
    }

    fn yes(&mut self, name: &str, is: bool, note: &str) {
        self.put(
            name,
            Some(f64::from(u8::from(is))),
            None,
            Unit::Yes,
            Target::AtLeast(1.0),
            note,
        );
    }

    #[expect(clippy::cast_precision_loss, reason = "nobody sends 2^52 requests")]
    pub(super) fn failed(&mut self, name: &str, failed: u64, of: u64, target: Target, note: &str) {
        self.put(name, Some(failed as f64), Some(of), Unit::Count, target, note);
    }

    /// What clients noticed where nothing may fail but one request for each HTTP/1.1 connection.
    fn nothing_failed(&mut self, counts: &Counts) {
        let none = Target::AtMost(0.0);
        let (new, http2, http1) = (
            counts.kinds_over("new"),
            counts.kinds_over("HTTP/2"),
            counts.kinds_over("HTTP/1.1"),
        );
        self.failed(
            "failed, new connections",
            counts.new.failed,
            counts.new.sent,
            none,
            &new,
        );
        self.failed(
            "failed, kept HTTP/2",
            counts.http2.failed,
            counts.http2.sent,
            none,
            &http2,
        );
        let sent = counts.http1.sent;
        let all = format!("{} failed in all {http1}", counts.http1.failed);
        self.failed(
            "failed, worst HTTP/1.1 connection",
            counts.http1_worst,
            sent,
            Target::AtMost(1.0),
            all.trim_end(),
        );
        self.failed(
            "failed, HTTP/1.1, no connection",
            counts.http1_unconnected,
            sent,
            none,
            "",
        );
        self.seconds("slowest request", counts.slowest, Target::Known);
        self.load();
    }

    /// What clients noticed where one gap is allowed, of at most so many seconds.
    fn one_gap(&mut self, counts: &Counts, most: f64) {
        let note = counts.kinds_over("new");
        self.failed(
            "failed, new connections",
            counts.new.failed,
            counts.new.sent,
            Target::Known,
            &note,
        );
        self.seconds("longest gap", counts.longest_gap, Target::AtMost(most));
        self.seconds(
            "first to last failure",
            counts.longest_disturbance,
            Target::AtMost(most),
        );
        #[expect(clippy::cast_precision_loss, reason = "nobody sees 2^52 gaps")]
        let disturbances = counts.disturbances as f64;
        self.put("gaps", Some(disturbances), None, Unit::Count, Target::AtMost(1.0), "");
        self.load();
    }

    /// How busy the machine was: times are worth little where more processes want to run than there are cores.
    pub(super) fn load(&mut self) {
        let text = fs::read_to_string("/proc/loadavg").unwrap_or_default();
        let load = text.split(' ').next().and_then(|first| first.parse().ok());
        self.put(
            "load average of the machine",
            load,
            None,
            Unit::Count,
            Target::Known,
            "over a minute",
        );
    }

    fn endpoints(&mut self, noticed: &Noticed, target: Target) {
        self.seconds("default/kubernetes empty, longest", noticed.endpoints_empty(), target);
    }

    fn leaders(&mut self, noticed: &Noticed, target: Target) {
        for component in [Component::KubeScheduler, Component::KubeControllerManager] {
            let value = noticed.without_leader(component.name());
            self.put(
                &format!("without leader, {component}"),
                value,
                None,
                Unit::Seconds,
                target,
                "",
            );
        }
    }
}

/// Does something with all meters beside.
fn beside<T>(operator: &Operator<'_>, work: impl FnOnce() -> Result<T>) -> Result<(T, Noticed)> {
    let beside = Beside::start(operator.lab())?;
    interrupt::pause(BEFORE);
    let done = work()?;
    interrupt::pause(AFTER);
    Ok((done, beside.stop()?))
}

fn must_be(operator: &Operator<'_>, state: &str) -> Result<()> {
    let states = operator.states()?;
    if states.iter().all(|s| s == state) {
        return Ok(());
    }
    Err(Error::new(
        format!("see that all components are {state}"),
        format!("kubectl selfhost status says {}", states.join(", ")),
    ))
}

fn convert(operator: &Operator<'_>, to: &mut To<'_>) -> Result<()> {
    let ((_, took), noticed) = beside(operator, || {
        let done = operator.selfhost(&["convert", "--yes"])?;
        // What the old apiserver took out of the list on its end belongs to the conversion.
        operator.await_endpoints()?;
        Ok(done)
    })?;
    must_be(operator, "self-hosted")?;
    to.nothing_failed(&noticed.counts());
    to.seconds("total", took.as_secs_f64(), Target::AtMost(75.0));
    to.leaders(&noticed, Target::AtMost(3.0));
    to.endpoints(&noticed, Target::AtMost(1.0));
    Ok(())
}

/// Bytes of all manifests, to see that a revert brings the same back.
fn manifests(operator: &Operator<'_>) -> Result<Vec<String>> {
    Component::ALL.into_iter().map(|c| operator.read_manifest(c)).collect()
}

fn revert(operator: &Operator<'_>, to: &mut To<'_>) -> Result<()> {
    let ((output, took), noticed) = beside(operator, || {
        let done = operator.selfhost(&["revert", "--yes"])?;
        operator.await_endpoints()?;
        Ok(done)
    })?;
    must_be(operator, "static")?;
    manifests(operator)?;
    to.one_gap(&noticed.counts(), 5.0);
    to.yes(
        "gap announced",
        announces_gap(&output.stdout),
        announcement(&output.stdout),
    );
    to.seconds("total", took.as_secs_f64(), Target::Known);
    to.leaders(&noticed, Target::Known);
    Ok(())
}

fn announcement(text: &str) -> &str {
    text.lines()
        .rfind(|line| line.contains("expected gap"))
        .unwrap_or_default()
        .trim()
}

/// Whether a plan's text says that there will be a gap.
fn announces_gap(text: &str) -> bool {
    announcement(text).split_once(':').is_some_and(|(_, gap)| {
        let gap = gap.trim().trim_end_matches('.');
        !gap.is_empty() && gap != "none"
    })
}

fn keep_sharing(operator: &Operator<'_>, to: &mut To<'_>) -> Result<()> {
    let ((_, took), noticed) = beside(operator, || operator.selfhost(&["revert", "--yes", "--keep-sharing"]))?;
    must_be(operator, "static")?;
    to.nothing_failed(&noticed.counts());
    to.seconds("total", took.as_secs_f64(), Target::Known);
    to.leaders(&noticed, Target::Known);
    to.endpoints(&noticed, Target::Known);
    Ok(())
}

fn gap_mode(operator: &Operator<'_>, to: &mut To<'_>) -> Result<()> {
    let (plan, _) = operator.selfhost(&["plan", "--mode", "gap"])?;
    to.yes(
        "gap announced by the plan",
        announces_gap(&plan.stdout),
        announcement(&plan.stdout),
    );
    let ((_, took), noticed) = beside(operator, || {
        let done = operator.selfhost(&["convert", "--yes", "--mode", "gap"])?;
        operator.await_endpoints()?;
        Ok(done)
    })?;
    must_be(operator, "self-hosted")?;
    to.one_gap(&noticed.counts(), 5.0);
    to.seconds("total", took.as_secs_f64(), Target::Known);
    to.leaders(&noticed, Target::Known);
    Ok(())
}

fn rolls(operator: &Operator<'_>, runs: u32, to: &mut To<'_>) -> Result<()> {
    let stopped = operator.stop_guard()?;
    let mut result = Ok(());
    for run in 1..=runs {
        to.run = run;
        result = one_roll(operator, &stopped, &format!("2h{run}m0s"), to);
        if result.is_err() {
            break;
        }
    }
    let started = stopped.start();
    result.and(started)
}

fn one_roll(operator: &Operator<'_>, guard: &StoppedGuard<'_>, value: &str, to: &mut To<'_>) -> Result<()> {
    let begin = Instant::now();
    let (_, noticed) = beside(operator, || operator.roll(APISERVER, FLAG, value))?;
    guard.must_be_stopped()?;
    to.nothing_failed(&noticed.counts());
    to.endpoints(&noticed, Target::Known);
    to.seconds("total", begin.elapsed().as_secs_f64(), Target::Known);
    Ok(())
}

/// The twin of a roll. Its gap must be seen: else the meters are blind. The manifest is put back afterwards.
fn static_flag(operator: &Operator<'_>, to: &mut To<'_>) -> Result<()> {
    let text = operator.read_manifest(APISERVER)?;
    let value = "2h0m0s";
    let edited = edits::set_flag_in_manifest(&text, APISERVER, FLAG, value)?;
    let (_, noticed) = beside(operator, || {
        operator.edit_manifest(APISERVER, &edited, FLAG, Some(value))
    })?;
    let counts = noticed.counts();
    let note = "for comparison with roll";
    to.failed(
        "failed, new connections",
        counts.new.failed,
        counts.new.sent,
        Target::AtLeast(1.0),
        note,
    );
    to.failed(
        "failed, kept HTTP/2",
        counts.http2.failed,
        counts.http2.sent,
        Target::Known,
        "",
    );
    to.failed(
        "failed, kept HTTP/1.1",
        counts.http1.failed,
        counts.http1.sent,
        Target::Known,
        "",
    );
    to.seconds("longest gap", counts.longest_gap, Target::Known);
    to.seconds("first to last failure", counts.longest_disturbance, Target::Known);
    to.endpoints(&noticed, Target::Known);
    operator.edit_manifest(APISERVER, &text, FLAG, None)
}

fn guard(operator: &Operator<'_>, to: &mut To<'_>) -> Result<()> {
    interrupt::pause(IDLE);
    let pid = operator.guard()?;
    let before = processor_seconds(pid)?;
    let begin = Instant::now();
    interrupt::pause(IDLE);
    let used = processor_seconds(pid)? - before;
    let share = 100.0 * used / begin.elapsed().as_secs_f64();
    let path = format!("/proc/{pid}/smaps_rollup");
    let rollup = fs::read_to_string(&path).what(|| format!("read {path}"))?;
    for (name, field, target) in [
        ("resident memory (RSS)", "Rss", Target::AtMost(20.0)),
        ("its share of memory (PSS)", "Pss", Target::Known),
    ] {
        to.put(
            name,
            megabytes(&rollup, field),
            None,
            Unit::Megabytes,
            target,
            "after two idle minutes",
        );
    }
    to.put(
        "processor time",
        Some(share),
        None,
        Unit::Percent,
        Target::AtMost(1.0),
        "of one core, over a minute",
    );
    Ok(())
}

/// A field of `smaps_rollup`, see proc_pid_smaps(5), in millions of bytes.
fn megabytes(rollup: &str, field: &str) -> Option<f64> {
    let line = rollup.lines().find_map(|l| l.strip_prefix(field)?.strip_prefix(':'))?;
    let kibibytes: f64 = line.trim().strip_suffix(" kB")?.parse().ok()?;
    Some(kibibytes * 1024.0 / 1e6)
}

/// Processor time that a process has used, in seconds.
fn processor_seconds(pid: i32) -> Result<f64> {
    let path = format!("/proc/{pid}/stat");
    let what = || format!("read {path}");
    let stat = fs::read_to_string(&path).what(what)?;
    let ticks = ticks(&stat).ok_or_else(|| Error::new(what(), "it has no times"))?;
    #[expect(clippy::cast_precision_loss, reason = "there are 100 a second")]
    let seconds = ticks as f64 / rustix::param::clock_ticks_per_second() as f64;
    Ok(seconds)
}

/// Fields 14 and 15 of `/proc/PID/stat`, user and system time in clock ticks, see proc_pid_stat(5).
fn ticks(stat: &str) -> Option<u64> {
    let mut fields = stat.rsplit_once(')')?.1.split_whitespace().skip(11);
    let user: u64 = fields.next()?.parse().ok()?;
    let system: u64 = fields.next()?.parse().ok()?;
    Some(user + system)
}

fn bad_edit(
    operator: &Operator<'_>,
    component: Component,
    mistake: Mistake,
    hold: Duration,
    to: &mut To<'_>,
) -> Result<()> {
    let before = operator.settle(component)?;
    let (seen, noticed) = beside(operator, || {
        operator.make_mistake(component, mistake)?;
        let begin = Instant::now();
        let mut named = None;
        // An operator looks every now and then.
        while begin.elapsed() < hold {
            interrupt::pause(Duration::from_secs(5).min(hold.saturating_sub(begin.elapsed())));
            if named.is_none() && named_trouble(&operator.troubles(component)?, &before.name).is_some() {
                named = Some(begin.elapsed());
            }
        }
        let troubles = operator.troubles(component)?;
        let pods = operator.pods(component)?.map_err(|e| Error::new("list Pods", e))?;
        operator.undo(component)?;
        let after = operator.settle(component)?;
        Ok((named, troubles, pods, after))
    })?;
    let (named, troubles, pods, after) = seen;
    to.nothing_failed(&noticed.counts());
    let serving = pods
        .iter()
        .any(|p| p.uid == before.uid && p.ready && !p.deleting && p.restarts == before.restarts);
    let wrong = pods.iter().any(|p| p.uid != before.uid);
    to.yes(
        &format!("old Pod serves after {} s", hold.as_secs()),
        serving,
        &format!("Pod {}", before.name),
    );
    to.yes("the wrong Pod was there", wrong, "");
    let trouble = named_trouble(&troubles, &before.name);
    let note = trouble
        .map(|t| format!("Pod {}: {}; {}", t.pod, t.reason, t.last_log_line))
        .unwrap_or_default();
    to.yes("status names Pod, reason, last line", trouble.is_some(), &note);
    if let Some(words) = expected_words(component, mistake) {
        let right = trouble.is_some_and(|t| t.last_log_line.contains(words));
        to.yes("the last line is the wrong Pod's", right, words);
    }
    let named = named.map(|n| n.as_secs_f64());
    to.put(
        "named after",
        named,
        None,
        Unit::Seconds,
        Target::AtMost(hold.as_secs_f64()),
        "",
    );
    to.yes(
        "old Pod serves after the undo",
        after.uid == before.uid && after.restarts == before.restarts,
        &after.name,
    );
    let leaders = noticed.without_leader(component.name());
    if component != APISERVER {
        to.put("without leader", leaders, None, Unit::Seconds, Target::AtMost(3.0), "");
    }
    Ok(())
}

/// What `status` says about a Pod that is not the old one, where it says all three.
fn named_trouble<'a>(troubles: &'a [Trouble], old: &str) -> Option<&'a Trouble> {
    troubles
        .iter()
        .find(|t| t.pod != old && !t.pod.is_empty() && !t.reason.is_empty() && !t.last_log_line.is_empty())
}

/// Words that the last line of a wrong process has; `None` where it tries again and again and ends at last, each with words
/// of its own.
fn expected_words(component: Component, mistake: Mistake) -> Option<&'static str> {
    match mistake {
        Mistake::UnknownFlag => Some("no-such-flag"),
        Mistake::WrongBackend if component == APISERVER => None,
        Mistake::WrongBackend => Some("no-such.conf"),
        Mistake::Hangs | Mistake::NeverBinds => Some("misbehaving on purpose"),
    }
}

/// What a machine is, for the report.
#[must_use]
pub fn machine() -> Value {
    let read = |path: &str| fs::read_to_string(path).unwrap_or_default().trim().to_owned();
    serde_json::json!({
        "kernel": read("/proc/sys/kernel/osrelease"),
        "cores": std::thread::available_parallelism().map_or(0, std::num::NonZero::get),
        "load": read("/proc/loadavg"),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_gap_is_announced_by_a_plan_that_expects_one() {
        for (text, announced) in [
            ("expected gap of the API: one, of about 3 s\n", true),
            ("expected gap of the API: none\n", false),
            ("x\n3 components to convert, expected gap: about 3 s.\n", true),
            ("3 components to convert, expected gap: none.\n", false),
            (
                "  expected gap: about 3 s\n1 component to convert, expected gap: none.\n",
                false,
            ),
            ("", false),
        ] {
            assert_eq!(announces_gap(text), announced, "{text}");
        }
    }

    #[test]
    fn memory_and_times_are_read_as_proc_writes_them() {
        let rollup = "55 - 7f [rollup]\nRss:               12500 kB\nPss:                9000 kB\nPss_Dirty: 1 kB\n";
        assert_eq!(megabytes(rollup, "Rss"), Some(12.8));
        assert_eq!(megabytes(rollup, "Pss"), Some(9.216));
        assert_eq!(megabytes(rollup, "Swap"), None);
        let stat = "12 (a b) c) S 1 2 3 4 5 6 7 8 9 10 30 12 0 0 20 0 1 0 99";
        assert_eq!(ticks(stat), Some(42));
        assert_eq!(ticks("12 (x) S 1"), None);
    }

    #[test]
    fn a_trouble_is_named_when_it_is_named_whole_and_of_the_new_pod() {
        let trouble = |pod: &str, reason: &str, line: &str| Trouble {
            pod: pod.into(),
            reason: reason.into(),
            last_log_line: line.into(),
        };
        let whole = trouble("new", "CrashLoopBackOff", "unknown flag");
        assert_eq!(named_trouble(std::slice::from_ref(&whole), "old"), Some(&whole));
        for bad in [
            trouble("old", "r", "l"),
            trouble("new", "", "l"),
            trouble("new", "r", ""),
        ] {
            assert_eq!(named_trouble(&[bad], "old"), None);
        }
    }
}
