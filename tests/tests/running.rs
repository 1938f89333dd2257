//! The plugin while it runs: its events, its end, and its death.

use std::{
    fs,
    io::{BufRead, BufReader, Read},
    process::{Child, Stdio},
    sync::mpsc,
    thread,
    time::{Duration, Instant},
};

use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;

/// The plugin while it runs.
pub(crate) struct Running {
    child: Child,
    stdout: mpsc::Receiver<String>,
    stderr: mpsc::Receiver<String>,
}

impl Running {
    pub(crate) fn spawn(mut command: std::process::Command) -> Self {
        let mut child = command
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let (lines, stdout) = mpsc::channel();
        let pipe = child.stdout.take().unwrap();
        thread::spawn(move || {
            for line in BufReader::new(pipe).lines().map_while(std::io::Result::ok) {
                let _ = lines.send(line);
            }
        });
        let (text, stderr) = mpsc::channel();
        let mut pipe = child.stderr.take().unwrap();
        thread::spawn(move || {
            let mut all = String::new();
            let _ = pipe.read_to_string(&mut all);
            let _ = text.send(all);
        });
        Self { child, stdout, stderr }
    }

    /// The next event; `None` when the plugin has ended, or when the deadline has passed without one.
    pub(crate) fn event_within(&self, deadline: Duration) -> Result<Option<Value>, mpsc::RecvTimeoutError> {
        match self.stdout.recv_timeout(deadline) {
            Ok(line) => {
                let event: Value = serde_json::from_str(&line).unwrap_or_else(|error| panic!("{error}: {line}"));
                assert!(event["time"].is_string() && event["event"].is_string(), "{line}");
                Ok(Some(event))
            }
            Err(mpsc::RecvTimeoutError::Disconnected) => Ok(None),
            Err(timeout) => Err(timeout),
        }
    }

    /// Kills it by SIGKILL. The process that the harness started only stands for it: it runs in the node's namespaces.
    pub(crate) fn kill(mut self) {
        let child = self.child.id();
        let mut found = children(child);
        if found.is_empty() && self.child.try_wait().unwrap().is_none() {
            // on this machine it is the plugin itself
            found.push(i32::try_from(child).unwrap());
        }
        for pid in found {
            // It may have ended just now.
            let _ = kill_process(Pid::from_raw(pid).unwrap(), Signal::KILL);
        }
        self.child.wait().unwrap();
    }

    /// Waits for its end: whether it succeeded, its events, and what it wrote to stderr.
    pub(crate) fn wait(mut self, deadline: Duration) -> (bool, Vec<Value>, String) {
        let end = Instant::now() + deadline;
        let mut events = Vec::new();
        loop {
            match self.event_within(end.saturating_duration_since(Instant::now())) {
                Ok(Some(event)) => events.push(event),
                Ok(None) => break,
                Err(_) => {
                    let last = events.last().cloned();
                    self.kill();
                    panic!("not ended after {} s, last: {last:?}", deadline.as_secs());
                }
            }
        }
        let status = self.child.wait().unwrap();
        let stderr = self.stderr.recv_timeout(Duration::from_secs(5)).unwrap_or_default();
        (status.success(), events, stderr)
    }
}

/// PIDs of the children of a process: field 4 of `/proc/PID/stat`, see proc(5).
pub(crate) fn children(parent: u32) -> Vec<i32> {
    let entries = fs::read_dir("/proc").unwrap().flatten();
    let pids = entries.filter_map(|e| e.file_name().to_str()?.parse::<i32>().ok());
    pids.filter(|pid| {
        let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
        let fields = stat.rsplit_once(')').map(|(_, rest)| rest.split_whitespace());
        fields
            .and_then(|mut f| f.nth(1).map(|p| p == parent.to_string()))
            .unwrap_or_default()
    })
    .collect()
}
