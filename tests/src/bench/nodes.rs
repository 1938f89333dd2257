//! What a whole cluster costs: conversions of one, three and five nodes from this machine, which is none of them.

use std::{
    fs,
    path::Path,
    process::{Command, Stdio},
    thread,
    time::{Duration, Instant},
};

use super::{
    figure::{Figure, Target, Unit},
    live::To,
};
use crate::{
    error::{Context, Error, Result},
    interrupt,
    lab::{Lab, Options},
    meters::{EndpointsReport, LoadReport, Meter, ProbeReport},
    settings::Settings,
};

const DEADLINE: Duration = Duration::from_secs(900);
/// Clients of the load at each apiserver.
const CLIENTS: u8 = 4;
/// Seconds of a conversion for each of its nodes, where there are several.
const A_NODE: f64 = 45.0;
/// Millions of bytes of the plugin at most.
const MEMORY: f64 = 60.0;

/// A finished run of the plugin.
struct Run {
    seconds: f64,
    /// Millions of bytes, the most it ever had.
    peak: f64,
    requests: f64,
}

/// Takes the measure for one number of nodes, on a cluster of its own. Figures go to `found` as they are known. Returns the
/// number of requests for each node.
///
/// # Errors
/// It could not be taken to its end.
pub fn measure(settings: &Settings, binary: &Path, nodes: u8, found: &mut dyn FnMut(Figure)) -> Result<f64> {
    let lab = Lab::guarded(settings.clone(), nodes, &Options::default())?;
    let mut to = To::new(&format!("nodes {nodes}"), found);
    let converted = beside(&lab, &mut to, "convert", || run(&lab, binary, &["convert", "--yes"]))?;
    let each = f64::from(nodes);
    let a_node = Target::AtMost(A_NODE);
    let target = if nodes == 1 { Target::Known } else { a_node };
    to.seconds("convert, each node", converted.seconds / each, target);
    to.put(
        "convert, peak memory of the plugin",
        Some(converted.peak),
        None,
        Unit::Megabytes,
        Target::AtMost(MEMORY),
        "",
    );
    to.put(
        "convert, requests",
        Some(converted.requests),
        None,
        Unit::Count,
        Target::Known,
        "",
    );
    let status = run(&lab, binary, &["status"])?;
    to.put(
        "status, requests",
        Some(status.requests),
        None,
        Unit::Count,
        Target::AtMost(10.0),
        "",
    );
    if nodes > 1 {
        let probe = lab.probe_with_failover()?;
        interrupt::pause(Duration::from_secs(2));
        let reverted = run(&lab, binary, &["revert", "--yes"])?;
        interrupt::pause(Duration::from_secs(3));
        let probe = probe.stop()?;
        let none = Target::AtMost(0.0);
        to.failed(
            "revert, failed at all addresses",
            probe.failed,
            probe.requests,
            none,
            &format!("{:?}", probe.kinds),
        );
        to.seconds("revert, each node", reverted.seconds / each, Target::Known);
        run(&lab, binary, &["convert", "--yes"])?;
        let back = beside(&lab, &mut to, "revert --keep-sharing", || {
            run(&lab, binary, &["revert", "--yes", "--keep-sharing"])
        })?;
        to.seconds("revert --keep-sharing, each node", back.seconds / each, Target::Known);
    }
    Ok(converted.requests / each)
}

/// Work with the probe at all addresses and a load at each, of which nothing may fail.
fn beside<T>(lab: &Lab, to: &mut To<'_>, what: &str, work: impl FnOnce() -> Result<T>) -> Result<T> {
    let loads: Vec<Meter<LoadReport>> = (1..=lab.nodes())
        .map(|number| lab.load_at(number, CLIENTS))
        .collect::<Result<_>>()?;
    let probe: Meter<ProbeReport> = lab.probe()?;
    let endpoints: Meter<EndpointsReport> = lab.watch_endpoints()?;
    interrupt::pause(Duration::from_secs(2));
    let done = work()?;
    interrupt::pause(Duration::from_secs(3));
    let (probe, endpoints) = (probe.stop()?, endpoints.stop()?.endpointslices);
    let none = Target::AtMost(0.0);
    let kinds = format!("{:?}", probe.kinds);
    to.failed(
        &format!("{what}, failed, new connections"),
        probe.failed,
        probe.requests,
        none,
        &kinds,
    );
    for (load, number) in loads.into_iter().zip(1..) {
        let load = load.stop()?;
        let at = format!("{what}, node {number}, failed");
        to.failed(
            &format!("{at}, kept HTTP/2"),
            load.http2.failed,
            load.http2.requests,
            none,
            &format!("{:?}", load.http2.kinds),
        );
        let worst = load.http1.max_failed_per_connection;
        to.failed(
            &format!("{at}, worst HTTP/1.1 connection"),
            worst,
            load.http1.requests,
            Target::AtMost(1.0),
            "",
        );
    }
    // one apiserver alone takes its own address out and puts it back
    let empty = if lab.nodes() == 1 { 1.0 } else { 0.0 };
    to.seconds(
        &format!("{what}, default/kubernetes empty, longest"),
        endpoints.empty_longest_s,
        Target::AtMost(empty),
    );
    to.seconds(
        &format!("{what}, an address missing, longest"),
        endpoints.fewer_longest_s,
        Target::AtMost(2.0),
    );
    to.load();
    Ok(done)
}

fn run(lab: &Lab, binary: &Path, args: &[&str]) -> Result<Run> {
    let what = || format!("kubectl selfhost {}", args.join(" "));
    let state = &lab.settings().state;
    let (out, err) = (state.join("selfhost.out"), state.join("selfhost.err"));
    let mut command: Command = lab.selfhost_from_here_command(binary, &[args, &["-v1"]].concat());
    let begin = Instant::now();
    let mut child = command
        .stdin(Stdio::null())
        .stdout(fs::File::create(&out).what(what)?)
        .stderr(fs::File::create(&err).what(what)?)
        .spawn()
        .what(what)?;
    let mut peak = 0.0;
    let status = loop {
        if let Some(status) = child.try_wait().what(what)? {
            break status;
        }
        if let Some(now) = peak_memory(child.id()) {
            peak = now;
        }
        if begin.elapsed() > DEADLINE {
            let _ = child.kill();
            let _ = child.wait();
            return Err(Error::new(
                what(),
                format!("it has not ended after {} s", DEADLINE.as_secs()),
            ));
        }
        interrupt::stop_here_when_interrupted();
        thread::sleep(Duration::from_millis(10));
    };
    let seconds = begin.elapsed().as_secs_f64();
    let text = fs::read_to_string(&err).what(what)?;
    if !status.success() {
        return Err(Error::new(what(), format!("{status}: {}", text.trim_end())));
    }
    let requests = requests(&text).ok_or_else(|| Error::new(what(), "it does not tell how many requests it sent"))?;
    Ok(Run {
        seconds,
        peak,
        requests,
    })
}

/// Millions of bytes that a process ever had at once.
fn peak_memory(pid: u32) -> Option<f64> {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).ok()?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:"))?;
    let kilobytes: f64 = line.trim().trim_end_matches("kB").trim().parse().ok()?;
    Some(kilobytes * 1024.0 / 1e6)
}

/// The number that `-v1` tells.
fn requests(stderr: &str) -> Option<f64> {
    let before = stderr
        .split(" requests to the API server")
        .next()
        .filter(|before| before.len() < stderr.len())?;
    before.rsplit([' ', '\n']).next()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_number_of_requests_is_read() {
        assert_eq!(requests("next: look\n880 requests to the API server\n"), Some(880.0));
        assert_eq!(requests("5 requests to the API server"), Some(5.0));
        assert_eq!(requests("nothing of it"), None);
    }

    #[test]
    fn the_memory_of_this_process_is_read() {
        assert!(peak_memory(std::process::id()).is_some_and(|peak| peak > 1.0));
    }
}
