//! Guard, kubelet, apiserver and plugin are killed in the middle of conversions, and anything is done in any order. The
//! numbers come from a seed that is shown; `SELFHOST_TEST_FAULTS=all` does everything and not a sample.

use std::{
    collections::BTreeSet,
    sync::atomic::{AtomicBool, AtomicUsize, Ordering},
    thread,
    time::{Duration, Instant},
};

use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;
use tests::operate::edits::{Component, Mistake};

use crate::{
    fault_tools::{Stopper, is_long, times},
    image::Image,
    random::Random,
    running::Running,
    support::{Cluster, flat, say},
    watch::{Before, DEAD_MAN},
};

/// For one run of the plugin.
const DEADLINE: Duration = Duration::from_secs(300);
/// For a node to come to rest after anything.
const REST: u64 = 300;
/// Within this time of its start a conversion of one node is over on a quiet machine.
const CONVERSION: Duration = Duration::from_secs(60);

#[test]
fn whatever_is_killed_in_a_conversion_it_ends_self_hosted_or_static() {
    let cluster = Cluster::up();
    let (before, image) = (Before::of(&cluster), cluster.image());
    before.watch(&cluster, "guard killed at its steps", DEAD_MAN, || {
        guard_killed_at_its_steps(&cluster);
    });
    before.watch(&cluster, "kubelet killed", DEAD_MAN, || {
        kubelet_killed(&cluster, &before);
    });
    let mut random = Random::new();
    before.watch(&cluster, "apiserver killed", DEAD_MAN, || {
        apiserver_killed(&cluster, &image, &mut random);
    });
    anything_in_any_order(&cluster, &before, &image, &mut random);
}

/// Kills the guard each time that it says what no guard before has said, or each `every`th time, until told to stop.
fn kill_guard_at_each_new_step(cluster: &Cluster, every: usize, stop: &AtomicBool) -> usize {
    let (mut seen, mut killed, mut read) = (BTreeSet::new(), 0, 0);
    while !stop.load(Ordering::Relaxed) {
        let lines = cluster.guard_lines();
        for line in lines.iter().skip(read) {
            let is_step = line.starts_with("kube-");
            if is_step && seen.insert(line.clone()) && seen.len().is_multiple_of(every) {
                if let Some(pid) = cluster.guard().and_then(Pid::from_raw) {
                    // it may have ended just now
                    let _ = kill_process(pid, Signal::KILL);
                    killed += 1;
                    say(&format!("guard killed at {line}"));
                }
                break;
            }
        }
        read = lines.len();
        thread::sleep(Duration::from_millis(5));
    }
    killed
}

/// Runs the plugin again and again until it succeeds; how often.
fn until_it_succeeds(cluster: &Cluster, args: &[&str]) -> usize {
    for run in 1..=8 {
        let output = cluster.selfhost(args);
        if output.success() {
            return run;
        }
        say(&format!("{args:?}: {}", flat(&output)));
        at_rest(cluster, "between two runs");
    }
    panic!("{args:?} does not succeed");
}

fn guard_killed_at_its_steps(cluster: &Cluster) {
    cluster.without_back_off();
    let every = times(7, 1);
    for args in [["convert", "--yes"], ["revert", "--yes"]] {
        let (stop, killed) = (AtomicBool::new(false), AtomicUsize::new(0));
        let runs = thread::scope(|scope| {
            let killer = scope.spawn(|| {
                killed.store(kill_guard_at_each_new_step(cluster, every, &stop), Ordering::Relaxed);
            });
            let stopper = Stopper(&stop);
            let runs = until_it_succeeds(cluster, &args);
            drop(stopper);
            killer.join().unwrap();
            runs
        });
        let killed = killed.load(Ordering::Relaxed);
        say(&format!(
            "{args:?}: the guard was killed {killed} times, in {runs} runs"
        ));
        assert!(killed >= times(1, 5), "{killed}");
        at_rest(cluster, "guard killed at its steps");
        if args[0] == "convert" {
            cluster.await_self_hosted("guard killed at its steps", 120);
        }
    }
}

/// The kubelet starts anew when the apiserver's Pod waits for its port, or in the long run at every step of every component.
fn kubelet_killed(cluster: &Cluster, before: &Before) {
    let run = cluster.start(&["convert", "--yes"]);
    let mut killed = 0;
    while let Ok(Some(event)) = run.event_within(DEADLINE) {
        let message = event["message"].as_str().unwrap_or_default();
        let is_handing = event["task"] == "node1/kube-apiserver" && message.contains("its Pod waits");
        if event["event"] == "step" && (is_handing || is_long()) {
            say(&format!("kubelet killed after {}: {message}", event["task"]));
            cluster.restart_kubelet();
            killed += 1;
        }
    }
    assert!(killed > 0);
    let (success, _, stderr) = run.wait(DEADLINE);
    say(&format!(
        "convert with {killed} starts of the kubelet: {success} {stderr}"
    ));
    at_rest(cluster, "kubelet killed");
    until_it_succeeds(cluster, &["convert", "--yes"]);
    cluster.await_self_hosted("kubelet killed", 120);
    before.assert_safe_in_the_cluster(cluster);
}

/// Waits until all components are static or self-hosted, one process of each, and nothing is on its way. What they are.
fn at_rest(cluster: &Cluster, what: &str) -> Vec<String> {
    at_rest_with(cluster, what, false)
}

/// As [`at_rest`]; while a bad edit is in force, a Pod more may be tried, and the fallback may serve.
fn at_rest_with(cluster: &Cluster, what: &str, bad_edit: bool) -> Vec<String> {
    let mut states = Vec::new();
    cluster.wait(&format!("all to be static or self-hosted: {what}"), REST, || {
        cluster.api()?;
        let status = cluster.try_status()?;
        states.clear();
        for found in status["components"].as_array().unwrap() {
            let (state, component) = (&found["state"], found["component"].as_str().unwrap());
            states.push(state.as_str().unwrap_or_default().to_owned());
            let running = cluster.processes(component).len();
            let settled = (state == "static" || state == "self-hosted") && found.get("step").is_none() && running == 1;
            if found["ready"] != true || !(settled || bad_edit && running > 0) {
                return Err(format!("{component}: {running} processes, {found}"));
            }
        }
        Ok(())
    });
    states
}

/// In each round a conversion, in which the apiserver is killed at random moments, and the way back.
fn apiserver_killed(cluster: &Cluster, image: &Image, random: &mut Random) {
    revert(cluster);
    image.assert_same(&cluster.image());
    let rounds: Vec<usize> = if is_long() { vec![1; 50] } else { vec![3, 2] };
    let last = rounds.len() - 1;
    for (round, kills) in rounds.into_iter().enumerate() {
        let run = cluster.start(&["convert", "--yes"]);
        let begin = Instant::now();
        let mut moments: Vec<_> = (0..kills).map(|_| random.time(CONVERSION)).collect();
        moments.sort_unstable();
        for moment in moments {
            while begin.elapsed() < moment {
                thread::sleep(Duration::from_millis(5));
            }
            let running = cluster.processes("kube-apiserver");
            if running.is_empty() {
                say(&format!("{moment:?}: no apiserver is there to be killed"));
                continue;
            }
            let pid = random.choose(&running);
            let _ = kill_process(Pid::from_raw(pid).unwrap(), Signal::KILL);
            say(&format!("{moment:?}: killed apiserver {pid} of {running:?}"));
        }
        let (success, events, stderr) = run.wait(DEADLINE);
        let last_event = events.last().cloned().unwrap_or_default();
        say(&format!("round {round}: {success}, {last_event} {stderr}"));
        let states = at_rest(cluster, "apiserver killed");
        say(&format!("round {round}: {states:?}"));
        if success {
            assert_eq!(states, ["self-hosted"; 3]);
        }
        until_it_succeeds(cluster, &["convert", "--yes"]);
        cluster.await_self_hosted("apiserver killed", 120);
        if round < last {
            revert(cluster);
            cluster.assert_untouched(image);
        }
    }
}

/// Reverts, when nothing is on its way any more.
fn revert(cluster: &Cluster) {
    at_rest(cluster, "before a revert");
    until_it_succeeds(cluster, &["revert", "--yes"]);
    cluster.lab.wait_ready(DEADLINE).unwrap();
    cluster.operator().await_leaders().unwrap();
}

/// One thing that is done to the node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Step {
    Convert,
    Revert,
    /// The plugin is killed after so many milliseconds.
    KilledConvert(u64),
    KilledRevert(u64),
    PowerOff,
    Kill(&'static str),
    GoodEdit(Component),
    BadEdit(Component, Mistake),
    /// The last edit is taken back.
    Undo(Component),
}

const KILLED: [&str; 5] = [
    "kubectl-selfhost",
    "kubelet",
    "kube-scheduler",
    "kube-controller-manager",
    "kube-apiserver",
];

fn draw(random: &mut Random, converted: bool, bad: Option<Component>) -> Step {
    // a template that does not come up is put right before anything else is asked of the plugin
    if let Some(component) = bad {
        return match random.below(3) {
            0 => Step::PowerOff,
            _ => Step::Undo(component),
        };
    }
    let component = random.choose(&Component::ALL);
    match (random.below(8), converted) {
        (0, _) | (1, false) => Step::Convert,
        (1, true) => Step::Revert,
        (2, false) => Step::KilledConvert(random.below(60_000)),
        (2, true) => Step::KilledRevert(random.below(25_000)),
        (3 | 4, _) => Step::PowerOff,
        (5, _) | (_, false) => Step::Kill(random.choose(&KILLED)),
        (6, true) => Step::GoodEdit(component),
        (_, true) => Step::BadEdit(component, random.choose(&Mistake::ALL)),
    }
}

/// Sequences of anything; after each step everything has to hold, and after each sequence nothing may be left.
fn anything_in_any_order(cluster: &Cluster, before: &Before, image: &Image, random: &mut Random) {
    let sequences = times(5, 100);
    let mut bad = None;
    for sequence in 0..sequences {
        for step in 0..times(1, 5) {
            let states = at_rest_with(cluster, "before a step", bad.is_some());
            let converted = states.iter().all(|state| state == "self-hosted") || bad.is_some();
            let step_ = draw(random, converted, bad);
            let what = format!("sequence {sequence}, step {step}: {step_:?}");
            say(&what);
            before.watch(cluster, &what, DEAD_MAN, || {
                take(cluster, step_, &mut bad);
                let states = at_rest_with(cluster, &what, bad.is_some());
                say(&format!("{what}: {states:?}"));
            });
            before.assert_safe_in_the_cluster(cluster);
        }
        let is_last = sequence + 1 == sequences;
        if is_long() || is_last {
            if let Some(component) = bad.take() {
                cluster.operator().undo(component).unwrap();
                cluster.operator().settle(component).unwrap();
            }
            before.watch(cluster, "the way back", DEAD_MAN, || revert(cluster));
            cluster.assert_untouched(image);
        }
    }
}

fn take(cluster: &Cluster, step: Step, bad: &mut Option<Component>) {
    let operator = cluster.operator();
    match step {
        Step::Convert => {
            until_it_succeeds(cluster, &["convert", "--yes"]);
            cluster.await_self_hosted("convert", 120);
        }
        Step::Revert => revert(cluster),
        Step::KilledConvert(after) => kill_plugin(cluster.start(&["convert", "--yes"]), after),
        Step::KilledRevert(after) => kill_plugin(cluster.start(&["revert", "--yes"]), after),
        Step::PowerOff => {
            cluster.power_cycle("power off and on");
        }
        Step::Kill(program) => {
            // what is not there cannot be killed: the guard of a static node
            if let Err(error) = cluster.lab.kill(1, program) {
                say(&error.to_string());
            }
        }
        Step::GoodEdit(component) => {
            let level = if has_level_three(cluster, component) { "2" } else { "3" };
            operator.roll(component, "v", level).unwrap();
        }
        Step::BadEdit(component, mistake) => {
            operator.settle(component).unwrap();
            operator.make_mistake(component, mistake).unwrap();
            *bad = Some(component);
            thread::sleep(Duration::from_secs(10));
        }
        Step::Undo(component) => {
            operator.undo(component).unwrap();
            *bad = None;
            operator.settle(component).unwrap();
            cluster.await_self_hosted("the edit was taken back", 180);
        }
    }
}

fn has_level_three(cluster: &Cluster, component: Component) -> bool {
    let daemon_set: Value = cluster.operator().daemon_set(component).unwrap();
    daemon_set.to_string().contains("\"--v=3\"")
}

fn kill_plugin(run: Running, after: u64) {
    let begin = Instant::now();
    let limit = Duration::from_millis(after);
    while let Some(left) = limit.checked_sub(begin.elapsed()) {
        if let Ok(None) = run.event_within(left) {
            say("the plugin had ended before it was killed");
            break;
        }
    }
    run.kill();
}
