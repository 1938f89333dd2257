//! The real executable as the kubelet stops it.
#![cfg(target_os = "linux")]
#![allow(clippy::unwrap_used, reason = "a test fails by panicking, in its helpers too")]

use std::io::{BufRead, BufReader};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};

/// Ends the process when a test fails before it does.
struct Running(Child);

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// A process without a handler would end here as well, by the signal; as process 1 of a container it would not. That it
/// handles the signal shows in its having an exit code.
#[test]
fn a_process_that_waits_for_its_turn_ends_at_once_and_not_as_if_it_had_come() {
    for signal in [Signal::TERM, Signal::INT] {
        let directory = tempfile::tempdir().unwrap();
        let verdict = directory.path().join("verdict");
        std::fs::write(&verdict, "wait\n").unwrap();
        let mut command = Command::new(env!("CARGO_BIN_EXE_kubectl-selfhost"));
        command
            .args(["node", "await-port", "--component", "kube-scheduler", "--port", "10259"])
            .arg("--verdict")
            .arg(&verdict);
        let mut running = Running(command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap());
        let mut line = String::new();
        let mut output = BufReader::new(running.0.stdout.take().unwrap());
        output.read_line(&mut line).unwrap();
        assert!(line.starts_with("waiting for the guard"), "{line}");

        let told = Instant::now();
        kill_process(Pid::from_child(&running.0), signal).unwrap();
        let status = running.0.wait().unwrap();
        assert!(told.elapsed() < Duration::from_secs(2), "{:?}", told.elapsed());
        assert_eq!(status.code(), Some(130), "{signal:?}: {status}");
        // nothing says that the component may start
        line.clear();
        assert_eq!(output.read_line(&mut line).unwrap(), 0, "{line}");
    }
}
