//! What each phase of the demo cost clients, whether it was allowed to, and the table of all. Pure functions.

use crate::operate::beside::{Counts, Sent};

/// What a phase may cost clients.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Allowed {
    /// No new connection and no HTTP/2 request; each kept HTTP/1.1 connection may cost one request when its server goes.
    Nothing,
    /// One disturbance, with at most so many seconds without any success.
    OneGap(f64),
    /// It must cost something: otherwise the meters see nothing, and all other figures are worth nothing.
    MustFail,
}

/// A phase that is over.
#[derive(Clone, Debug)]
pub struct Phase {
    /// What was done.
    pub name: &'static str,
    /// What clients noticed.
    pub counts: Counts,
    /// What it may cost.
    pub allowed: Allowed,
}

impl Phase {
    /// Why the phase is not as promised.
    ///
    /// # Errors
    /// It is not.
    pub fn verdict(&self) -> Result<(), String> {
        let c = &self.counts;
        for (sent, over) in [(c.new, "new connections"), (c.http2, "HTTP/2"), (c.http1, "HTTP/1.1")] {
            if sent.sent == 0 {
                return Err(format!("{}: nothing was sent over {over}", self.name));
            }
        }
        let failed = |what: String| Err(format!("{}: {what}", self.name));
        match self.allowed {
            Allowed::Nothing if c.new.failed > 0 => failed(format!("{} new connections failed", c.new.failed)),
            Allowed::Nothing if c.http2.failed > 0 => failed(format!("{} HTTP/2 requests failed", c.http2.failed)),
            Allowed::Nothing if c.http1_worst > 1 => {
                failed(format!("{} requests failed on one HTTP/1.1 connection", c.http1_worst))
            }
            Allowed::Nothing if c.http1_unconnected > 0 => {
                failed(format!("{} HTTP/1.1 requests got no connection", c.http1_unconnected))
            }
            Allowed::OneGap(_) if c.disturbances > 1 => failed(format!("{} gaps instead of one", c.disturbances)),
            Allowed::OneGap(most) if c.longest_gap > most => failed(format!(
                "a gap of {:.1} s, where at most {most:.0} s are allowed",
                c.longest_gap
            )),
            Allowed::MustFail if c.new.failed == 0 => {
                failed("no request failed, where an outage is certain: the meters cannot be trusted".to_owned())
            }
            _ => Ok(()),
        }
    }
}

/// The table of all phases, 80 columns wide.
#[must_use]
pub fn table(phases: &[Phase]) -> String {
    let line = |name: &str, time: &str, [new, http2, http1]: [String; 3], gap: &str| {
        format!("{name:22} {time:>5}  {new:>13} {http2:>13} {http1:>13} {gap:>8}\n")
    };
    let over = ["new connect.", "kept HTTP/2", "kept HTTP/1.1"].map(str::to_owned);
    let mut text = line("", "", over, "longest");
    text.push_str(&line("", "time", [(); 3].map(|()| "sent failed".to_owned()), "gap"));
    for phase in phases {
        let c = &phase.counts;
        let cell = |s: Sent| format!("{} {:>6}", s.sent, s.failed);
        let gap = if c.longest_gap == 0.0 {
            "none".to_owned()
        } else {
            format!("{:.1} s", c.longest_gap)
        };
        let time = format!("{:.0} s", c.seconds);
        text.push_str(&line(phase.name, &time, [c.new, c.http2, c.http1].map(cell), &gap));
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    fn counts() -> Counts {
        let sent = |sent| Sent { sent, failed: 0 };
        Counts {
            seconds: 12.3,
            new: sent(600),
            http2: sent(1200),
            http1: sent(1300),
            ..Counts::default()
        }
    }

    fn verdict(allowed: Allowed, change: impl FnOnce(&mut Counts)) -> Result<(), String> {
        let mut counts = counts();
        change(&mut counts);
        Phase {
            name: "p",
            counts,
            allowed,
        }
        .verdict()
    }

    #[test]
    fn where_nothing_may_fail_one_http1_request_for_each_connection_may() {
        assert_eq!(verdict(Allowed::Nothing, |_| {}), Ok(()));
        assert_eq!(
            verdict(Allowed::Nothing, |c| {
                c.http1.failed = 4;
                c.http1_worst = 1;
            }),
            Ok(())
        );
        for change in [
            (|c| c.new.failed = 1) as fn(&mut Counts),
            |c| c.http2.failed = 1,
            |c| c.http1_worst = 2,
            |c| c.http1_unconnected = 1,
        ] {
            assert!(verdict(Allowed::Nothing, change).is_err());
        }
    }

    #[test]
    fn one_gap_is_one_and_short() {
        let gap = |disturbances, longest| {
            verdict(Allowed::OneGap(5.0), |c| {
                c.new.failed = 100;
                c.disturbances = disturbances;
                c.longest_gap = longest;
            })
        };
        assert_eq!(gap(1, 4.9), Ok(()));
        assert_eq!(gap(0, 0.0), Ok(()));
        assert!(gap(2, 1.0).is_err());
        assert!(gap(1, 5.1).is_err());
    }

    #[test]
    fn a_meter_that_sees_nothing_is_a_failure() {
        assert!(verdict(Allowed::MustFail, |_| {}).unwrap_err().contains("meters"));
        assert_eq!(verdict(Allowed::MustFail, |c| c.new.failed = 1), Ok(()));
        for change in [
            (|c| c.new.sent = 0) as fn(&mut Counts),
            |c| c.http2.sent = 0,
            |c| c.http1.sent = 0,
        ] {
            assert!(
                verdict(Allowed::OneGap(5.0), change)
                    .unwrap_err()
                    .contains("nothing was sent")
            );
        }
    }

    #[test]
    fn the_table_fits_into_80_columns() {
        let mut bad = counts();
        bad.new = Sent {
            sent: 12345,
            failed: 12345,
        };
        bad.longest_gap = 39.64;
        bad.seconds = 123.0;
        let phases = [
            Phase {
                name: "convert",
                counts: counts(),
                allowed: Allowed::Nothing,
            },
            Phase {
                name: "flag, static manifest",
                counts: bad,
                allowed: Allowed::MustFail,
            },
        ];
        assert_eq!(
            table(&phases),
            "                               new connect.   kept HTTP/2 kept HTTP/1.1  longest\n                        \
             time    sent failed   sent failed   sent failed      gap\n\
             convert                 12 s     600      0   1200      0   1300      0     none\n\
             flag, static manifest  123 s   12345  12345   1200      0   1300      0   39.6 s\n"
        );
    }
}
