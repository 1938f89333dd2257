//! All meters side by side with something, and what clients noticed of it.

use serde::Serialize;

use crate::{
    error::Result,
    lab::Lab,
    meters::{EndpointsReport, LeadersReport, LoadReport, Meter, ProbeReport},
};

/// Clients of the load: half of them over HTTP/2.
const CLIENTS: u8 = 8;

/// All meters, running. Dropped, they end without a report.
#[derive(Debug)]
pub struct Beside {
    probe: Meter<ProbeReport>,
    load: Meter<LoadReport>,
    endpoints: Meter<EndpointsReport>,
    leaders: Meter<LeadersReport>,
}

impl Beside {
    /// Starts them, as the ordinary user.
    ///
    /// # Errors
    /// One of them cannot be started.
    pub fn start(lab: &Lab) -> Result<Self> {
        Ok(Self {
            endpoints: lab.watch_endpoints()?,
            leaders: lab.watch_leaders()?,
            load: lab.load(CLIENTS)?,
            probe: lab.probe()?,
        })
    }

    /// Ends them.
    ///
    /// # Errors
    /// One of them has ended by itself or gives no report.
    pub fn stop(self) -> Result<Noticed> {
        let probe = self.probe.stop()?;
        let load = self.load.stop()?;
        Ok(Noticed {
            probe,
            load,
            endpoints: self.endpoints.stop()?,
            leaders: self.leaders.stop()?,
        })
    }
}

/// The reports of all meters.
#[derive(Clone, Debug)]
pub struct Noticed {
    /// New connections.
    pub probe: ProbeReport,
    /// Kept connections.
    pub load: LoadReport,
    /// Addresses of `default/kubernetes`.
    pub endpoints: EndpointsReport,
    /// Leases.
    pub leaders: LeadersReport,
}

/// Requests sent, and those that failed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Sent {
    /// All.
    pub sent: u64,
    /// Those that failed.
    pub failed: u64,
}

/// What clients noticed, in numbers.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Counts {
    /// Length of the run in seconds.
    pub seconds: f64,
    /// Over new connections.
    pub new: Sent,
    /// Over kept HTTP/2 connections.
    pub http2: Sent,
    /// Over kept HTTP/1.1 connections.
    pub http1: Sent,
    /// Most failures on one HTTP/1.1 connection. A connection may cost one: see RFC 9112, section 9.3.1.
    pub http1_worst: u64,
    /// HTTP/1.1 requests that got no connection at all.
    pub http1_unconnected: u64,
    /// Number of times without success over new connections.
    pub gaps: usize,
    /// The longest of them in seconds, 0 without any.
    pub longest_gap: f64,
    /// The slowest request that succeeded, over whichever connection, in seconds.
    pub slowest: f64,
    /// What failed, and how often, for people.
    pub kinds: Vec<String>,
}

impl Noticed {
    /// The numbers.
    #[must_use]
    pub fn counts(&self) -> Counts {
        let Self { probe, load, .. } = self;
        let all = [
            ("new", &probe.kinds),
            ("HTTP/2", &load.http2.kinds),
            ("HTTP/1.1", &load.http1.kinds),
        ];
        let kinds = all.into_iter().flat_map(|(over, kinds)| {
            let text = move |(kind, k): (&String, &crate::meters::Kind)| {
                format!("{over}: {} × {kind} from second {:.1} on", k.count, k.first_s)
            };
            kinds.iter().map(text)
        });
        Counts {
            seconds: probe.seconds,
            new: Sent {
                sent: probe.requests,
                failed: probe.failed,
            },
            http2: Sent {
                sent: load.http2.requests,
                failed: load.http2.failed,
            },
            http1: Sent {
                sent: load.http1.requests,
                failed: load.http1.failed,
            },
            http1_worst: load.http1.max_failed_per_connection,
            http1_unconnected: load.http1.failed_unconnected,
            gaps: probe.gaps.len(),
            longest_gap: probe.longest_gap_s,
            slowest: probe.slowest_s.max(load.http2.slowest_s).max(load.http1.slowest_s),
            kinds: kinds.collect(),
        }
    }

    /// Longest time without a leader of a component in seconds; `None` for one without a Lease.
    #[must_use]
    pub fn without_leader(&self, lease: &str) -> Option<f64> {
        self.leaders.leases.get(lease).map(|l| l.longest_without_leader_s)
    }

    /// Longest time without an address in the EndpointSlice `default/kubernetes`, in seconds.
    #[must_use]
    pub fn endpoints_empty(&self) -> f64 {
        self.endpoints.endpointslices.empty_longest_s
    }
}
