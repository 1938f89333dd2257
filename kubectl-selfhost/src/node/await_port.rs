//! What a component's Pod does first: wait for the guard's word and for the port, then steer the port and let it start.

use super::ports::{self, PortError};
use super::state::Verdict;
use super::steering::{Steering, own_client_address};
use crate::names::Component;
use std::io::{self, Write};
use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::{Duration, Instant};

/// What to wait for.
#[derive(Clone, Debug)]
pub struct AwaitPort {
    /// Whose Pod this is.
    pub component: Component,
    /// Where the component will listen.
    pub address: SocketAddr,
    /// The guard's [`Verdict`].
    pub verdict: PathBuf,
    /// Whether the port is shared and steered; else it must be free.
    pub steer: bool,
}

/// What keeps the component from being started.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Obstacle {
    Verdict,
    Port,
}

const INTERVAL: Duration = Duration::from_millis(50);
const REPEAT: Duration = Duration::from_secs(60);

/// How a port is steered while a second process of a component starts.
#[must_use]
pub fn hold(component: Component, bound: SocketAddr) -> Steering {
    let own = (component == Component::KubeApiserver).then(|| own_client_address(bound.ip()));
    Steering::Hold { own }
}

/// Waits, says what for, and returns when the component may start.
///
/// There is no deadline: the Pod of a node that is not to be converted now waits here for as long as that is so, which is
/// what keeps it from taking the port of a static Pod that restarts.
///
/// The future may be dropped while it waits: nothing is half done then.
///
/// # Errors
/// When the port cannot be bound for another reason than being taken, or cannot be steered.
pub async fn run(what: &AwaitPort, out: &mut impl Write) -> io::Result<()> {
    let mut said: Option<(Obstacle, Instant)> = None;
    while let Some(obstacle) = obstacle(what)? {
        if said.is_none_or(|(last, at)| last != obstacle || at.elapsed() >= REPEAT) {
            said = Some((obstacle, Instant::now()));
            match obstacle {
                Obstacle::Verdict => writeln!(
                    out,
                    "waiting for the guard of this node to say go in {}",
                    what.verdict.display()
                )?,
                Obstacle::Port if what.steer => writeln!(out, "waiting until {} can be shared", what.address)?,
                Obstacle::Port => writeln!(out, "waiting until {} is free", what.address)?,
            }
        }
        tokio::time::sleep(INTERVAL).await;
    }
    if what.steer {
        steer(what)?;
    }
    writeln!(out, "{} may start on {}", what.component, what.address)
}

fn obstacle(what: &AwaitPort) -> io::Result<Option<Obstacle>> {
    let verdict = std::fs::read_to_string(&what.verdict).unwrap_or_default();
    if Verdict::parse(&verdict) != Verdict::Go {
        return Ok(Some(Obstacle::Verdict));
    }
    match ports::try_bind(what.address, what.steer) {
        Ok(()) => Ok(None),
        Err(error) if error.kind() == io::ErrorKind::AddrInUse => Ok(Some(Obstacle::Port)),
        Err(error) => Err(io::Error::new(
            error.kind(),
            format!("{} cannot be bound: {error}", what.address),
        )),
    }
}

/// Until this process has proved itself, new connections go on meeting the one that serves.
fn steer(what: &AwaitPort) -> io::Result<()> {
    match ports::steer(what.address.port(), |listener| hold(what.component, listener.address)) {
        Ok(_) => Ok(()),
        // it left between the look and the attempt: nobody is there to be protected
        Err(PortError::NoListener(_)) => Ok(()),
        Err(error) => Err(io::Error::other(describe(&error))),
    }
}

/// An error with its causes, on one line.
#[must_use]
pub fn describe(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut source = error.source();
    while let Some(cause) = source {
        text.push_str(": ");
        text.push_str(&cause.to_string());
        source = cause.source();
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::TcpListener;

    fn setup(verdict: &str, steer: bool) -> (tempfile::TempDir, TcpListener, AwaitPort) {
        let directory = tempfile::tempdir().unwrap();
        let file = directory.path().join("verdict");
        std::fs::write(&file, verdict).unwrap();
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let what = AwaitPort {
            component: Component::KubeScheduler,
            address,
            verdict: file,
            steer,
        };
        (directory, listener, what)
    }

    #[test]
    fn without_the_guards_word_a_free_port_is_not_taken() {
        for verdict in ["wait\n", "", "nonsense"] {
            let (_directory, listener, what) = setup(verdict, true);
            drop(listener);
            assert_eq!(obstacle(&what).unwrap(), Some(Obstacle::Verdict));
        }
        let (directory, listener, what) = setup("go\n", true);
        drop(listener);
        drop(directory); // the file is gone
        assert_eq!(obstacle(&what).unwrap(), Some(Obstacle::Verdict));
    }

    #[test]
    fn a_port_that_is_not_shared_is_waited_for() {
        let (_directory, listener, what) = setup("go\n", true);
        assert_eq!(obstacle(&what).unwrap(), Some(Obstacle::Port));
        ports::share(std::process::id(), what.address.port()).unwrap();
        assert_eq!(obstacle(&what).unwrap(), None);
        let alone = AwaitPort {
            steer: false,
            ..what.clone()
        };
        assert_eq!(obstacle(&alone).unwrap(), Some(Obstacle::Port));
        drop(listener);
        assert_eq!(obstacle(&alone).unwrap(), None);
    }

    #[test]
    fn an_address_of_another_host_is_an_error_and_not_a_wait() {
        let (_directory, _listener, what) = setup("go\n", true);
        let what = AwaitPort {
            address: "192.0.2.1:6443".parse().unwrap(),
            ..what
        };
        assert!(obstacle(&what).unwrap_err().to_string().contains("192.0.2.1:6443"));
    }

    #[tokio::test]
    async fn it_says_what_it_waits_for_and_goes_on_at_go() {
        let (_directory, listener, what) = setup("wait\n", true);
        drop(listener);
        let file = what.verdict.clone();
        let later = std::thread::spawn(move || {
            std::thread::sleep(Duration::from_millis(200));
            std::fs::write(file, "go\n").unwrap();
        });
        let mut out = Vec::new();
        run(&what, &mut out).await.unwrap();
        later.join().unwrap();
        let text = String::from_utf8(out).unwrap();
        assert!(text.starts_with("waiting for the guard"), "{text}");
        assert!(
            text.ends_with(&format!("kube-scheduler may start on {}\n", what.address)),
            "{text}"
        );
    }
}
