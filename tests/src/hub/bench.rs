//! `cargo bench-hub`: the plugin's agent beside Open Cluster Management's own, on the same hub, in the same run.

use std::{
    fs,
    fs::File,
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    thread,
    time::{Duration, Instant, SystemTime},
};

use serde_json::json;

use super::{Api, ApiOptions, AuditEvent, Parts};
use crate::{
    bench::figure::{Figure, Target, Unit},
    cache::say,
    command,
    error::{Context, Error, Result},
    settings::Purpose,
};

pub(super) const DEADLINE: Duration = Duration::from_secs(120);

/// What is measured.
#[derive(Clone, Debug)]
pub struct HubBench {
    /// The plugin, statically linked and optimised.
    pub binary: PathBuf,
    /// Joins of each agent.
    pub joins: u32,
    /// How long both are watched at rest.
    pub idle: Duration,
    /// Whether an agent joins from a spoke with many claims and nodes.
    pub large: bool,
    /// How many agents of ours run on one hub, and how long; none where it is 0.
    pub fleet: (usize, Duration),
}

/// One of the two agents.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Which {
    Ours,
    Peer,
}

/// An agent that runs; ended when it is dropped.
pub(super) struct Running {
    pub(super) child: Child,
    cluster: String,
}

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

pub(super) struct Bench {
    options: HubBench,
    pub(super) parts: Parts,
    pub(super) hub: Api,
    pub(super) spoke: Api,
    bootstrap: PathBuf,
    peer: PathBuf,
}

/// Measures everything.
///
/// # Errors
/// A hub, a spoke or an agent does not come up.
pub fn run(options: HubBench) -> Result<Vec<Figure>> {
    let parts = Parts::ensure(Purpose::Benchmark)?;
    let mut hub = Api::up(&parts, "hub", &ApiOptions::default())?;
    let bootstrap = hub.become_hub()?;
    let spoke = Api::up(&parts, "spoke", &ApiOptions::default())?;
    let peer = spoke.welcome_peer()?;
    let bench = Bench {
        options,
        parts,
        hub,
        spoke,
        bootstrap,
        peer,
    };
    let mut figures = bench.sizes()?;
    if bench.options.joins > 0 {
        figures.extend(bench.joins()?);
    }
    if !bench.options.idle.is_zero() {
        figures.extend(bench.idle()?);
    }
    // Last: what lies on the spoke then would weigh on all others.
    if bench.options.large {
        figures.extend(bench.large_spoke()?);
    }
    let (size, time) = bench.options.fleet;
    if size > 0 {
        figures.extend(bench.fleet(size, time)?);
    }
    Ok(figures)
}

pub(super) fn figure(name: &str, value: f64, unit: Unit, target: Target, note: String) -> Figure {
    Figure {
        measure: "hub".into(),
        run: 1,
        name: name.into(),
        value: Some(value),
        of: None,
        unit,
        target,
        note,
    }
}

/// The middle value.
fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    let middle = values.len() / 2;
    match values.len() {
        0 => f64::NAN,
        length if length % 2 == 1 => values[middle],
        _ => f64::midpoint(values[middle - 1], values[middle]),
    }
}

/// Seconds since midnight of an RFC 3339 time in UTC.
fn seconds(time: &str) -> Option<f64> {
    let clock = time.split_once('T')?.1.trim_end_matches('Z');
    let mut parts = clock.split(':').map(str::parse::<f64>);
    let (hours, minutes, seconds) = (parts.next()?.ok()?, parts.next()?.ok()?, parts.next()?.ok()?);
    Some(hours * 3600.0 + minutes * 60.0 + seconds)
}

/// From one time to another, also over midnight.
pub(super) fn between(from: &str, to: &str) -> Option<f64> {
    Some((seconds(to)? - seconds(from)?).rem_euclid(86_400.0))
}

impl Bench {
    pub(super) fn start(&self, which: Which, cluster: &str) -> Result<Running> {
        let directory = self.spoke.directory();
        let what = || format!("start the agent of {cluster}");
        let log = File::create(directory.join(format!("{cluster}.log"))).what(what)?;
        let files = directory.join(format!("{cluster}.files")).display().to_string();
        let bootstrap = self.bootstrap.display();
        let mut command = match which {
            Which::Ours => {
                let mut command = Command::new(&self.options.binary);
                command.env_clear().args(["run", "--listen=none"]).args([
                    format!("--kubeconfig={}", self.spoke.admin().display()),
                    format!("--cluster-name={cluster}"),
                    // an agent of its own for each cluster
                    format!("--component-namespace={cluster}"),
                    format!("--bootstrap-kubeconfig={bootstrap}"),
                    format!("--hub-kubeconfig-dir={files}"),
                ]);
                command
            }
            Which::Peer => {
                let mut command = Command::new(self.parts.registration());
                command.args(["agent", "--disable-leader-election"]).args([
                    format!("--kubeconfig={}", self.peer.display()),
                    format!("--namespace={}", super::PEER_NAMESPACE),
                    format!("--spoke-cluster-name={cluster}"),
                    format!("--bootstrap-kubeconfig={bootstrap}"),
                    format!("--hub-kubeconfig-dir={files}"),
                    format!("--hub-kubeconfig-secret={cluster}"),
                    format!(
                        "--listen={}:{}",
                        self.spoke
                            .server()
                            .trim_start_matches("https://")
                            .trim_end_matches(":6443"),
                        port(cluster)
                    ),
                ]);
                command
            }
        };
        let child = command
            .stdin(Stdio::null())
            .stdout(log.try_clone().what(what)?)
            .stderr(log)
            .spawn()
            .what(what)?;
        Ok(Running {
            child,
            cluster: cluster.to_owned(),
        })
    }

    /// Approves and accepts as soon as it asks. Returns the time from the acceptance to the agent's first report.
    pub(super) fn accept(&self, agent: &Running) -> Result<f64> {
        let cluster = &agent.cluster;
        let label = format!("open-cluster-management.io/cluster-name={cluster}");
        let request = self.hub.eventually("a certificate request", DEADLINE, |hub| {
            let all = hub.get(&["csr", "-l", &label])?;
            Ok(all["items"][0]["metadata"]["name"].as_str().map(str::to_owned))
        })?;
        self.hub.must(&["certificate", "approve", &request])?;
        let accept = json!({"spec": {"hubAcceptsClient": true}}).to_string();
        self.hub
            .must(&["patch", "managedcluster", cluster, "--type=merge", "-p", &accept])?;
        let user = format!("system:open-cluster-management:{cluster}:");
        self.hub.eventually("the first report", DEADLINE, |hub| {
            let events = hub.requests("")?;
            let of = |event: &&AuditEvent| event.name == *cluster && event.code == 200 && event.verb == "patch";
            // the hub's controllers patch it, too
            let accepted = events
                .iter()
                .filter(of)
                .find(|event| event.resource == "managedclusters" && event.user == "kubernetes-admin");
            let joined = events
                .iter()
                .filter(of)
                .find(|event| event.resource == "managedclusters/status" && event.user.starts_with(&user));
            Ok(accepted
                .zip(joined)
                .and_then(|(accepted, joined)| between(&accepted.time, &joined.time)))
        })
    }

    fn sizes(&self) -> Result<Vec<Figure>> {
        let size = |path: &Path| {
            let length = fs::metadata(path).what(|| format!("look at {}", path.display()))?.len();
            Ok::<_, Error>(length as f64 / 1e6)
        };
        let (ours, peer) = (size(&self.options.binary)?, size(self.parts.registration())?);
        Ok(vec![figure(
            "executable",
            ours,
            Unit::Megabytes,
            Target::AtMost(peer / 6.0),
            format!("the peer's: {peer:.1} MB"),
        )])
    }

    fn joins(&self) -> Result<Vec<Figure>> {
        let mut times = [Vec::new(), Vec::new()];
        let mut asked = Vec::new();
        for number in 1..=self.options.joins {
            for (index, which) in [Which::Ours, Which::Peer].into_iter().enumerate() {
                let cluster = format!("{}-{number}", if which == Which::Ours { "ours" } else { "peer" });
                let begin = Instant::now();
                let agent = self.start(which, &cluster)?;
                let time = self.accept(&agent)?;
                say(&format!(
                    "{cluster}: joined {time:.3} s after its acceptance, {:.1} s after its start",
                    begin.elapsed().as_secs_f64()
                ));
                times[index].push(time);
            }
            asked.push(self.time_to_ask(number)?);
        }
        let list = |times: &[f64]| {
            times
                .iter()
                .map(|time| format!("{time:.2}"))
                .collect::<Vec<_>>()
                .join(" ")
        };
        let note = format!("ours {}; the peer's {}", list(&times[0]), list(&times[1]));
        let [ours, peer] = times.map(median);
        let status = self.status()?;
        Ok(vec![
            figure(
                "acceptance to Joined",
                ours,
                Unit::Seconds,
                Target::AtMost(peer / 2.0),
                note,
            ),
            figure(
                "join to the command that approves",
                median(asked),
                Unit::Seconds,
                Target::AtMost(1.0),
                String::new(),
            ),
            figure(
                "status",
                status * 1000.0,
                Unit::Milliseconds,
                Target::AtMost(100.0),
                String::new(),
            ),
        ])
    }

    /// Time from the start of `join` to its line that says who has to approve what.
    fn time_to_ask(&self, number: u32) -> Result<f64> {
        let cluster = format!("asks-{number}");
        let mut join = Command::new(&self.options.binary);
        join.env_clear()
            .args(["join", "--yes", "--detach", "--timeout=60s"])
            .args([
                format!("--kubeconfig={}", self.spoke.admin().display()),
                format!("--cluster-name={cluster}"),
                format!("--component-namespace={cluster}"),
                format!("--bootstrap-kubeconfig={}", self.bootstrap.display()),
                format!(
                    "--hub-kubeconfig-dir={}",
                    self.spoke.directory().join(&cluster).display()
                ),
            ]);
        let begin = Instant::now();
        let mut child = join
            .stdin(Stdio::null())
            .stderr(Stdio::piped())
            .spawn()
            .what(|| "start join".to_owned())?;
        let lines = child
            .stderr
            .take()
            .map(|stderr| std::io::BufRead::lines(std::io::BufReader::new(stderr)));
        let found = lines
            .into_iter()
            .flatten()
            .map_while(std::io::Result::ok)
            .any(|line| line.contains(&format!("accept {cluster}")));
        let took = begin.elapsed().as_secs_f64();
        let _ = child.kill();
        let _ = child.wait();
        if found {
            Ok(took)
        } else {
            Err(Error::new("time join", "it does not say who has to approve what"))
        }
    }

    fn status(&self) -> Result<f64> {
        let mut times = Vec::new();
        for _ in 0..20 {
            let mut command = Command::new(&self.options.binary);
            command
                .env_clear()
                .args(["status", "--component-namespace=ours-1"])
                .arg(format!("--kubeconfig={}", self.spoke.admin().display()));
            let begin = Instant::now();
            command::run(&mut command, "status", DEADLINE)?.checked("status")?;
            times.push(begin.elapsed().as_secs_f64());
        }
        Ok(median(times))
    }

    fn idle(&self) -> Result<Vec<Figure>> {
        let agents = [
            self.start(Which::Ours, "rests-ours")?,
            self.start(Which::Peer, "rests-peer")?,
        ];
        for agent in &agents {
            self.accept(agent)?;
        }
        // caches fill, and what follows a join is over
        thread::sleep(Duration::from_secs(30));
        let before = [Usage::of(&agents[0])?, Usage::of(&agents[1])?];
        let from = self.hub.requests("")?.len();
        let begin = SystemTime::now();
        say(&format!("watching both at rest for {} s", self.options.idle.as_secs()));
        thread::sleep(self.options.idle);
        let after = [Usage::of(&agents[0])?, Usage::of(&agents[1])?];
        let minutes = begin.elapsed().unwrap_or_default().as_secs_f64() / 60.0;
        let events = self.hub.requests("")?;
        let count = |agent: &Running| {
            let user = format!("system:open-cluster-management:{}:", agent.cluster);
            events
                .iter()
                .skip(from)
                .filter(|event| event.user.starts_with(&user))
                .count() as f64
                / minutes
        };
        let cpu = |index: usize| (after[index].cpu - before[index].cpu) / minutes;
        let pair = |ours: f64, peer: f64, name: &str, unit: Unit, share: f64| {
            figure(
                name,
                ours,
                unit,
                Target::AtMost(peer * share),
                format!("the peer's: {}", unit.text(peer)),
            )
        };
        Ok(vec![
            pair(after[0].peak, after[1].peak, "memory, peak", Unit::Megabytes, 0.2),
            pair(
                after[0].resident,
                after[1].resident,
                "memory, at rest",
                Unit::Megabytes,
                0.2,
            ),
            pair(
                cpu(0),
                cpu(1),
                "processor time a minute, at rest",
                Unit::Seconds,
                1.0 / 3.0,
            ),
            pair(
                count(&agents[0]),
                count(&agents[1]),
                "requests to the hub a minute",
                Unit::Count,
                1.0,
            ),
        ])
    }
}

/// What a process uses.
pub(super) struct Usage {
    pub(super) resident: f64,
    pub(super) peak: f64,
    cpu: f64,
}

impl Usage {
    pub(super) fn of(agent: &Running) -> Result<Self> {
        let what = || format!("measure the agent of {}", agent.cluster);
        let read = |file: &str| fs::read_to_string(format!("/proc/{}/{file}", agent.child.id())).what(what);
        let status = read("status")?;
        let megabytes = |key: &str| {
            let line = status.lines().find_map(|line| line.strip_prefix(key));
            let kilobytes = line.and_then(|line| line.split_whitespace().next()?.parse::<f64>().ok());
            kilobytes
                .map(|kilobytes| kilobytes * 1024.0 / 1e6)
                .ok_or_else(|| Error::new(what(), "it has ended"))
        };
        let stat = read("stat")?;
        let fields: Vec<f64> = stat
            .rsplit(')')
            .next()
            .unwrap_or_default()
            .split_whitespace()
            .filter_map(|field| field.parse().ok())
            .collect();
        // fields 14 and 15 of proc(5); the letter before them is no number
        let ticks = fields.get(10).zip(fields.get(11)).map(|(user, system)| user + system);
        let per_second = rustix::param::clock_ticks_per_second() as f64;
        Ok(Self {
            resident: megabytes("VmRSS:")?,
            peak: megabytes("VmHWM:")?,
            cpu: ticks.ok_or_else(|| Error::new(what(), "it has ended"))? / per_second,
        })
    }
}

/// A port for the peer's own server.
fn port(cluster: &str) -> u32 {
    20_000
        + cluster
            .bytes()
            .fold(7u32, |hash, byte| hash.wrapping_mul(31).wrapping_add(u32::from(byte)))
            % 10_000
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_and_medians() {
        let close = |time: Option<f64>, expected: f64| (time.unwrap() - expected).abs() < 1e-6;
        assert!(close(
            between("2026-01-01T10:00:00.250000Z", "2026-01-01T10:00:01.000000Z"),
            0.75
        ));
        assert!(close(
            between("2026-01-01T23:59:59.500000Z", "2026-01-02T00:00:00.500000Z"),
            1.0
        ));
        assert_eq!(between("now", "then"), None);
        assert!((median(vec![3.0, 1.0, 2.0]) - 2.0).abs() < 1e-9);
        assert!((median(vec![4.0, 1.0, 2.0, 3.0]) - 2.5).abs() < 1e-9);
        assert!(median(vec![]).is_nan());
    }
}
