//! All meters side by side with something, and what clients noticed of it.

use std::collections::BTreeMap;

use serde::Serialize;

use crate::{
    error::Result,
    lab::Lab,
    meters::{EndpointsReport, Gap, Kind, LeadersReport, LoadReport, Meter, ProbeReport},
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
    /// The longest time without any success over new connections in seconds, 0 without any.
    pub longest_gap: f64,
    /// Number of times in which new connections failed, where those with less than 2 s between them count as one: an
    /// apiserver that has just started answers some requests and refuses others.
    pub disturbances: usize,
    /// The longest of them in seconds, from its first failure to the success after its last.
    pub longest_disturbance: f64,
    /// The slowest request that succeeded, over whichever connection, in seconds.
    pub slowest: f64,
    /// The commonest failures over each kind of connection, and how often they were, for people.
    pub kinds: Vec<String>,
}

impl Counts {
    /// The commonest failures over one kind of connection, in one line; empty where nothing failed.
    #[must_use]
    pub fn kinds_over(&self, over: &str) -> String {
        let prefix = format!("{over}: ");
        let kinds: Vec<_> = self.kinds.iter().filter_map(|k| k.strip_prefix(&prefix)).collect();
        kinds.join("; ")
    }
}

impl Noticed {
    /// The numbers.
    #[must_use]
    pub fn counts(&self) -> Counts {
        let Self { probe, load, .. } = self;
        let disturbances = disturbances(&probe.gaps);
        let over = [
            ("new", &probe.kinds),
            ("HTTP/2", &load.http2.kinds),
            ("HTTP/1.1", &load.http1.kinds),
        ];
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
            longest_gap: probe.longest_gap_s,
            disturbances: disturbances.len(),
            longest_disturbance: disturbances.iter().copied().fold(0.0, f64::max),
            slowest: probe.slowest_s.max(load.http2.slowest_s).max(load.http1.slowest_s),
            kinds: over
                .into_iter()
                .flat_map(|(over, kinds)| commonest(over, kinds))
                .collect(),
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

/// Lengths of the gaps, where those that follow within 2 s are one.
fn disturbances(gaps: &[Gap]) -> Vec<f64> {
    let mut merged: Vec<(f64, f64)> = Vec::new();
    for gap in gaps {
        let end = gap.start + gap.length;
        match merged.last_mut() {
            Some((_, last)) if gap.start - *last < 2.0 => *last = last.max(end),
            _ => merged.push((gap.start, end)),
        }
    }
    merged.into_iter().map(|(start, end)| end - start).collect()
}

/// Longest text of a failure.
const LONGEST_TEXT: usize = 120;

/// The three commonest kinds of failures, as text.
fn commonest(over: &str, kinds: &BTreeMap<String, Kind>) -> Vec<String> {
    let mut all: Vec<_> = kinds.iter().collect();
    all.sort_by_key(|(_, kind)| std::cmp::Reverse(kind.count));
    let text = |(what, kind): &(&String, &Kind)| {
        let what: String = what.chars().take(LONGEST_TEXT).collect();
        format!("{over}: {} x {what}, first at {:.1} s", kind.count, kind.first_s)
    };
    all.iter().take(3).map(text).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn gaps_close_to_each_other_are_one_disturbance() {
        let gap = |start, length| Gap {
            start,
            length,
            open: false,
        };
        assert_eq!(disturbances(&[]), [0.0; 0]);
        assert_eq!(disturbances(&[gap(1.0, 2.0), gap(4.5, 1.0), gap(9.0, 0.5)]), [4.5, 0.5]);
        // A slow failure may end after a later one.
        assert_eq!(disturbances(&[gap(1.0, 5.0), gap(2.0, 1.0), gap(7.0, 1.0)]), [7.0]);
    }

    #[test]
    fn the_commonest_failures_come_first_and_are_cut() {
        let kind = |count| Kind { count, first_s: 1.25 };
        let kinds = [("a", 1), ("b", 5), ("c", 2), ("d", 3)].map(|(n, c)| (n.to_owned(), kind(c)));
        let text = commonest("new", &BTreeMap::from(kinds));
        assert_eq!(
            text,
            [
                "new: 5 x b, first at 1.2 s",
                "new: 3 x d, first at 1.2 s",
                "new: 2 x c, first at 1.2 s"
            ]
        );
        let long = BTreeMap::from([("x".repeat(500), kind(1))]);
        assert!(commonest("new", &long)[0].len() < 160);
    }
}
