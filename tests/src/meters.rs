//! What clients of the API noticed: the reports of `labtool`, and the running meter that makes one.

use std::{
    collections::BTreeMap,
    io::{BufRead, BufReader, Read},
    marker::PhantomData,
    process::{Child, Command, Stdio},
    sync::mpsc,
    thread,
    time::{Duration, Instant},
};

use rustix::process::{Pid, Signal, kill_process};
use serde::{Deserialize, de::DeserializeOwned};

use crate::{
    error::{Context, Error, Result},
    interrupt,
};

/// Failures of one kind.
#[derive(Clone, Debug, PartialEq, Deserialize)]
pub struct Kind {
    /// How many there were.
    pub count: u64,
    /// When the first was, in seconds since the start.
    pub first_s: f64,
}

/// A time without success.
#[derive(Clone, Debug, PartialEq, Deserialize)]
pub struct Gap {
    /// Start of the first request that failed, in seconds since the start of the run.
    pub start: f64,
    /// Seconds to the start of the next request that succeeded.
    pub length: f64,
    /// Whether requests still failed at the end of the run.
    #[serde(default)]
    pub open: bool,
}

/// A new connection for every request.
#[derive(Clone, Debug, Deserialize)]
pub struct ProbeReport {
    /// Length of the run.
    pub seconds: f64,
    /// Requests sent.
    pub requests: u64,
    /// Those that failed.
    pub failed: u64,
    /// Why they failed.
    pub kinds: BTreeMap<String, Kind>,
    /// Failures by the address asked.
    pub failed_by_server: BTreeMap<String, u64>,
    /// Times without success.
    pub gaps: Vec<Gap>,
    /// The longest of them in seconds, 0 without any.
    pub longest_gap_s: f64,
    /// The slowest request that succeeded, in seconds.
    pub slowest_s: f64,
}

/// The clients of one protocol.
#[derive(Clone, Debug, Deserialize)]
pub struct ProtocolReport {
    /// Clients.
    pub clients: u64,
    /// Requests sent.
    pub requests: u64,
    /// Those that failed.
    pub failed: u64,
    /// Why they failed.
    pub kinds: BTreeMap<String, Kind>,
    /// The slowest request that succeeded, in seconds.
    pub slowest_s: f64,
    /// Answers by the protocol that they really came over, such as `HTTP/2.0`.
    pub protocols: BTreeMap<String, u64>,
    /// Answers after which client-go tries again by itself: 429 and 5xx with `Retry-After`.
    pub retried_answers: u64,
    /// Connections opened.
    pub connections: u64,
    /// Failures by the connection that the request was sent on.
    pub failed_per_connection: BTreeMap<String, u64>,
    /// Failures of requests that got no connection.
    pub failed_unconnected: u64,
    /// Most failures on one connection.
    pub max_failed_per_connection: u64,
}

/// The watches of a load.
#[derive(Clone, Debug, Deserialize)]
pub struct WatchReport {
    /// Watches.
    pub watches: u64,
    /// Events they brought.
    pub events: u64,
    /// How often one was cut and opened again at once.
    pub reopened: u64,
    /// How often one could not be opened.
    pub failed_to_open: u64,
    /// Why not.
    pub kinds: BTreeMap<String, Kind>,
    /// Longest time without an event, of an object that changes all the time, in seconds.
    pub longest_silence_s: f64,
}

/// Clients that keep their connections.
#[derive(Clone, Debug, Deserialize)]
pub struct LoadReport {
    /// Length of the run.
    pub seconds: f64,
    /// Clients over HTTP/2.
    pub http2: ProtocolReport,
    /// Clients over HTTP/1.1.
    pub http1: ProtocolReport,
    /// Watches over both.
    pub watches: WatchReport,
}

/// A number of addresses, and since when.
#[derive(Clone, Debug, PartialEq, Deserialize)]
pub struct Addresses {
    /// Seconds since the start of the run.
    pub at: f64,
    /// How many there were from then on.
    pub addresses: u64,
}

/// Addresses of `default/kubernetes` in one kind of object.
#[derive(Clone, Debug, Deserialize)]
pub struct AddressesReport {
    /// How many there were at the start.
    pub initial: u64,
    /// Seconds without any.
    pub empty_total_s: f64,
    /// The longest time without any.
    pub empty_longest_s: f64,
    /// Seconds with fewer than at the start.
    pub fewer_total_s: f64,
    /// The longest time with fewer than at the start.
    pub fewer_longest_s: f64,
    /// All changes.
    pub changes: Vec<Addresses>,
    /// How often the watch was cut and opened again.
    pub reopened: u64,
    /// How often it could not be opened.
    pub failed_to_open: u64,
}

/// Addresses of `default/kubernetes`.
#[derive(Clone, Debug, Deserialize)]
pub struct EndpointsReport {
    /// Length of the run.
    pub seconds: f64,
    /// In EndpointSlices.
    pub endpointslices: AddressesReport,
    /// In Endpoints.
    pub endpoints: AddressesReport,
}

/// One Lease.
#[derive(Clone, Debug, Deserialize)]
pub struct LeaderReport {
    /// Longest time without a leader that is certain: from a release, or else from 2 s after the last renewal (when the next
    /// was due), to the first renewal by the next leader.
    pub longest_without_leader_s: f64,
    /// Longest time between two renewals: what a leader may have been missing at most.
    pub longest_between_renewals_s: f64,
    /// The times without a leader.
    pub gaps: Vec<Gap>,
    /// Leaders in their order.
    pub holders: Vec<String>,
    /// Renewals seen.
    pub renewals: u64,
}

/// Leases of kube-scheduler and kube-controller-manager.
#[derive(Clone, Debug, Deserialize)]
pub struct LeadersReport {
    /// Length of the run.
    pub seconds: f64,
    /// By name of the Lease.
    pub leases: BTreeMap<String, LeaderReport>,
}

/// A meter that runs. Dropped, it is killed without a report.
#[derive(Debug)]
pub struct Meter<R> {
    name: String,
    child: Child,
    stdout: mpsc::Receiver<String>,
    report: PhantomData<R>,
}

impl<R: DeserializeOwned> Meter<R> {
    /// Starts a meter and waits until it measures.
    ///
    /// # Errors
    /// It cannot be started, or does not measure within 30 s.
    pub fn start(name: &str, mut command: Command) -> Result<Self> {
        let what = || format!("start {name}");
        let mut child = command
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .what(what)?;
        i32::try_from(child.id()).into_iter().for_each(interrupt::ends_with_us);
        let (lines, said) = mpsc::channel();
        let stderr = child.stderr.take();
        thread::spawn(move || {
            for line in stderr
                .into_iter()
                .flat_map(|e| BufReader::new(e).lines().map_while(std::io::Result::ok))
            {
                // Nobody listens once it measures.
                let _ = lines.send(line);
            }
        });
        let (report, stdout) = mpsc::channel();
        let mut pipe = child.stdout.take();
        thread::spawn(move || {
            let mut text = String::new();
            if let Some(pipe) = &mut pipe {
                let _ = pipe.read_to_string(&mut text);
            }
            let _ = report.send(text);
        });
        let meter = Self {
            name: name.to_owned(),
            child,
            stdout,
            report: PhantomData,
        };
        let end = Instant::now() + Duration::from_secs(30);
        let mut text = String::new();
        loop {
            match said.recv_timeout(end.saturating_duration_since(Instant::now())) {
                Ok(line) if line == "ready" => return Ok(meter),
                Ok(line) => text.push_str(&line),
                Err(mpsc::RecvTimeoutError::Timeout) => {
                    return Err(Error::new(what(), format!("it does not measure after 30 s: {text}")));
                }
                Err(mpsc::RecvTimeoutError::Disconnected) => {
                    return Err(Error::new(what(), format!("it has ended: {text}")));
                }
            }
        }
    }

    /// Ends the meter and gives its report.
    ///
    /// # Errors
    /// It has ended by itself, or gives no report within 30 s.
    pub fn stop(mut self) -> Result<R> {
        let what = || format!("stop {}", self.name);
        if let Some(status) = self.child.try_wait().what(what)? {
            return Err(Error::new(what(), format!("it has ended by itself: {status}")));
        }
        let pid = i32::try_from(self.child.id())
            .ok()
            .and_then(Pid::from_raw)
            .ok_or_else(|| Error::new(what(), "bad PID"))?;
        kill_process(pid, Signal::TERM).what(what)?;
        let text = self
            .stdout
            .recv_timeout(Duration::from_secs(30))
            .map_err(|_| Error::new(what(), "no report after 30 s"))?;
        serde_json::from_str(&text)
            .map_err(|e| Error::new(format!("read the report of {}", self.name), format!("{e}: {text}")))
    }
}

impl<R> Drop for Meter<R> {
    fn drop(&mut self) {
        i32::try_from(self.child.id())
            .into_iter()
            .for_each(interrupt::ends_by_itself);
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
