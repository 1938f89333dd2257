//! The plugin is killed, at every step and at random instants, and run again: it comes to the same end.

use std::{
    collections::BTreeSet,
    thread,
    time::{Duration, Instant},
};

use serde_json::Value;

use crate::{
    image::Image,
    random::Random,
    running::Running,
    support::{Cluster, assert_no_failure, assert_one_gap, say},
};

/// For one run; a run ends or has something to say long before.
const DEADLINE: Duration = Duration::from_secs(240);

#[test]
fn killed_after_every_step_and_run_again_it_comes_to_the_same_end() {
    let cluster = Cluster::up();
    let before = cluster.image();
    killed_after_every_step_of_a_conversion(&cluster);
    killed_after_every_step_of_a_revert(&cluster, &before);
}

#[test]
fn killed_at_random_and_run_again_it_comes_to_the_same_end() {
    let cluster = Cluster::up();
    let before = cluster.image();
    killed_at_random_while_it_converts(&cluster);
    turned_round_on_the_way(&cluster);
    killed_at_random_while_it_reverts(&cluster, &before);
    with_a_gap(&cluster);
    another_mode_on_the_way(&cluster, &before);
}

/// Runs the plugin again and again, and kills it right after each step that no run before has reported, until one run comes
/// to its end. Returns how often it was killed.
fn kill_after_every_step(cluster: &Cluster, args: &[&str]) -> usize {
    let mut seen = BTreeSet::new();
    for killed in 0..40 {
        let run = cluster.start(args);
        if ended(&run, &mut seen) {
            finish(run);
            return killed;
        }
        run.kill();
    }
    panic!("no run of {args:?} ends: {seen:#?}");
}

/// Waits for the end of a run, which must be a good one.
fn finish(run: Running) {
    let (success, events, stderr) = run.wait(DEADLINE);
    assert!(success, "{stderr}\n{events:#?}");
}

/// Reads until the end, or a step that is not in `seen`.
fn ended(run: &Running, seen: &mut BTreeSet<String>) -> bool {
    loop {
        match run.event_within(DEADLINE) {
            Ok(Some(event)) if event["event"] == "step" => {
                let step = format!("{}: {}", event["task"], event["message"]);
                if seen.insert(step.clone()) {
                    say(&format!("killed after {step}"));
                    return false;
                }
            }
            Ok(Some(_)) => {}
            Ok(None) => return true,
            Err(_) => panic!("no event within {} s", DEADLINE.as_secs()),
        }
    }
}

fn killed_after_every_step_of_a_conversion(cluster: &Cluster) {
    let begin = Instant::now();
    let (killed, noticed) = cluster.beside(|| kill_after_every_step(cluster, &["convert", "--yes"]));
    say(&format!(
        "converted with {killed} kills in {:.0} s",
        begin.elapsed().as_secs_f64()
    ));
    assert!(killed >= 9, "node 3, and each component at least 2 of its 4: {killed}");
    assert_no_failure("convert, killed after every step", &noticed);
    cluster.assert_self_hosted();
}

fn killed_after_every_step_of_a_revert(cluster: &Cluster, before: &Image) {
    let begin = Instant::now();
    let killed = kill_after_every_step(cluster, &["revert", "--yes"]);
    say(&format!(
        "reverted with {killed} kills in {:.0} s",
        begin.elapsed().as_secs_f64()
    ));
    assert!(killed >= 8, "{killed}");
    cluster.assert_untouched(before);
}

fn with_a_gap(cluster: &Cluster) {
    let plan: Value = serde_json::from_str(&cluster.must(&["plan", "--mode", "gap", "-o", "json"]).stdout).unwrap();
    for component in plan["nodes"][0]["plan"]["components"].as_array().unwrap() {
        assert_eq!(component["expectedGap"], "one-start", "{}", component["component"]);
    }
    let (converted, noticed) = cluster.beside(|| cluster.must(&["convert", "--yes", "--mode", "gap"]));
    assert!(
        converted.stdout.contains("about 3 s"),
        "the gap is announced: {}",
        converted.stdout
    );
    assert_one_gap("convert --mode gap", &noticed);
    cluster.assert_self_hosted();
}

/// Kills the plugin `kills` times, each a random moment after a random one of its first events (while it waits there is one
/// each quarter of a second), and then lets it run to its end.
fn kill_at_random(cluster: &Cluster, args: &[&str], kills: u32) {
    let mut random = Random::new();
    for _ in 0..kills {
        let run = cluster.start(args);
        let mut last = Value::Null;
        for _ in 0..random.below(40) {
            match run.event_within(DEADLINE) {
                Ok(Some(event)) => last = event,
                Ok(None) => break,
                Err(_) => panic!("no event within {} s, last: {last}", DEADLINE.as_secs()),
            }
        }
        thread::sleep(Duration::from_millis(random.below(400)));
        say(&format!(
            "killed at {}: {}: {}",
            last["task"], last["event"], last["message"]
        ));
        run.kill();
    }
    finish(cluster.start(args));
}

fn killed_at_random_while_it_reverts(cluster: &Cluster, before: &Image) {
    kill_at_random(cluster, &["revert", "--yes"], 6);
    cluster.assert_untouched(before);
}

fn killed_at_random_while_it_converts(cluster: &Cluster) {
    let ((), noticed) = cluster.beside(|| kill_at_random(cluster, &["convert", "--yes"], 6));
    assert_no_failure("convert, killed at random", &noticed);
    cluster.assert_self_hosted();
}

/// A revert that is killed on its way may be followed by a conversion.
fn turned_round_on_the_way(cluster: &Cluster) {
    revert_the_scheduler_only(cluster);
    finish(cluster.start(&["convert", "--yes"]));
    cluster.assert_self_hosted();
}

/// The DaemonSet that the gap's conversion made is still there, and no Pod of it serves.
fn another_mode_on_the_way(cluster: &Cluster, before: &Image) {
    revert_the_scheduler_only(cluster);
    finish(cluster.start(&["convert", "--yes"]));
    cluster.assert_self_hosted();
    finish(cluster.start(&["revert", "--yes"]));
    cluster.assert_untouched(before);
}

/// Kills a revert when it has begun with the second component.
fn revert_the_scheduler_only(cluster: &Cluster) {
    let run = cluster.start(&["revert", "--yes"]);
    let reached = |event: &Value| event["event"] == "step" && event["task"] == "node1/kube-controller-manager";
    while let Ok(Some(event)) = run.event_within(DEADLINE) {
        if reached(&event) {
            break;
        }
    }
    run.kill();
    // A conversion begins with static Pods that are Ready only.
    cluster.lab.wait_ready(DEADLINE).unwrap();
    let status = cluster.component("kube-scheduler");
    assert_eq!(status["state"], "static", "{status:#}");
}
