//! The demo leaves nothing behind when it is interrupted, and the benchmark fails where it cannot measure.

use std::{
    fs,
    io::{BufRead, BufReader},
    process::{Child, Command, Stdio},
    sync::mpsc,
    thread,
    time::{Duration, Instant},
};

use rustix::process::{Pid, Signal, kill_process};
use tests::{
    lab::mounts_below,
    network,
    settings::{Purpose, Settings},
    static_binary,
};

const NAME: &str = "shlab4";
const SUBNET: &str = "10.78.4";

fn settings() -> Settings {
    Settings::from_lookup(Purpose::Demo, &|name| match name {
        "SELFHOST_DEMO_LAB_NAME" => Some(NAME.to_owned()),
        "SELFHOST_DEMO_LAB_SUBNET" => Some(SUBNET.to_owned()),
        other => std::env::var(other).ok().filter(|v| !v.is_empty()),
    })
    .unwrap()
}

/// A demo that is interrupted when the test fails, so that it does not go on alone.
struct Demo(Child);

impl Demo {
    /// By a signal to it alone: at a terminal, Ctrl-C would reach the programs that it has started as well.
    fn interrupt(&self) {
        let pid = Pid::from_raw(i32::try_from(self.0.id()).unwrap()).unwrap();
        kill_process(pid, Signal::INT).unwrap();
    }
}

impl Drop for Demo {
    fn drop(&mut self) {
        if self.0.try_wait().is_ok_and(|ended| ended.is_none()) {
            self.interrupt();
            let _ = self.0.wait();
        }
    }
}

#[test]
fn the_demo_takes_everything_down_when_it_is_interrupted_in_the_middle_of_a_conversion() {
    let binary = static_binary::build_static().unwrap();
    let child = Command::new(env!("CARGO_BIN_EXE_demo"))
        .arg("--binary")
        .arg(&binary)
        .env("SELFHOST_DEMO_LAB_NAME", NAME)
        .env("SELFHOST_DEMO_LAB_SUBNET", SUBNET)
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut demo = Demo(child);
    let (lines, said) = mpsc::channel();
    let stderr = BufReader::new(demo.0.stderr.take().unwrap());
    thread::spawn(move || {
        for line in stderr.lines().map_while(Result::ok) {
            // Nobody listens after a failure.
            let _ = lines.send(line);
        }
    });

    let silence = Duration::from_secs(10);
    let mut all = Vec::new();
    let mut namespace = None;
    // The demo writes something every ten seconds at least; a loaded machine may be late.
    while let Ok(line) = said.recv_timeout(2 * silence) {
        let begun = line.contains("/kube-controller-manager] 1/");
        all.push(line);
        if begun {
            namespace = network::inode(&settings(), 1);
            break;
        }
    }
    let text = || all.join("\n");
    assert!(
        all.last().is_some_and(|l| l.contains("kube-controller-manager")),
        "{}",
        text()
    );
    let namespace = namespace.unwrap();
    assert!(network::processes(namespace).len() > 6, "the cluster runs");
    let meters = mentioning(settings().state.to_str().unwrap());
    assert!(
        meters.iter().any(|l| l.contains(" probe ")),
        "the meters run: {meters:?}"
    );

    demo.interrupt();
    let begin = Instant::now();
    let status = loop {
        if let Some(status) = demo.0.try_wait().unwrap() {
            break status;
        }
        assert!(begin.elapsed() < Duration::from_secs(90), "it has not ended");
        thread::sleep(Duration::from_millis(100));
    };
    let rest: Vec<_> = said.iter().collect();
    assert_eq!(status.code(), Some(130), "{rest:?}");
    assert!(rest.iter().any(|l| l.contains("goes down")), "{rest:?}");
    assert_eq!(network::processes(namespace), [0; 0]);
    let settings = settings();
    assert_eq!(network::namespaces(&settings), [""; 0]);
    assert_eq!(network::interfaces(&settings), [""; 0]);
    assert_eq!(mounts_below(&settings.state), [""; 0]);
    assert!(!settings.state.exists());
    assert_eq!(
        mentioning(settings.state.to_str().unwrap()),
        [""; 0],
        "meters have ended, too"
    );
}

/// Command lines of the processes that name a path.
fn mentioning(path: &str) -> Vec<String> {
    let entries = fs::read_dir("/proc").unwrap().flatten();
    let lines = entries.filter_map(|e| fs::read(e.path().join("cmdline")).ok());
    lines
        .map(|l| String::from_utf8_lossy(&l).replace('\0', " "))
        .filter(|l| l.contains(path))
        .collect()
}

#[test]
fn demo_and_benchmark_tell_who_is_not_root_what_to_do() {
    for program in [env!("CARGO_BIN_EXE_demo"), env!("CARGO_BIN_EXE_bench-lab")] {
        let output = Command::new("setpriv")
            .args(["--reuid=65534", "--regid=65534", "--clear-groups", "--", program])
            .env("SELFHOST_LAB_CACHE", "/tmp/nowhere/at/all")
            .output()
            .unwrap();
        let text = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(1), "{text}");
        assert!(text.contains("only root") && text.contains("hint:"), "{text}");
    }
}

fn bench(args: &[&str]) -> (Option<i32>, String, serde_json::Value) {
    let json = std::env::temp_dir().join(format!("selfhost-bench-{}-{}.json", std::process::id(), args[1]));
    let output = Command::new(env!("CARGO_BIN_EXE_bench-lab"))
        .args(args)
        .arg("--json")
        .arg(&json)
        .output()
        .unwrap();
    let report = serde_json::from_slice(&fs::read(&json).unwrap_or_default()).unwrap_or_default();
    fs::remove_file(&json).unwrap();
    (
        output.status.code(),
        String::from_utf8_lossy(&output.stdout).into_owned(),
        report,
    )
}

#[test]
fn the_benchmark_fails_where_it_cannot_measure() {
    let (code, table, report) = bench(&["--only", "version,offline-plan", "--binary", "/bin/false"]);
    assert_eq!(code, Some(1), "{table}");
    assert_eq!(table.matches("not measured").count(), 2, "{table}");
    assert_eq!(report["passes"], false, "{report}");
    assert_eq!(report["figures"][0]["value"], serde_json::Value::Null, "{report}");
}

#[test]
fn the_benchmark_says_what_each_figure_was_compared_to() {
    let binary = static_binary::build_static().unwrap();
    let (_, table, report) = bench(&["--only", "binary", "--binary", binary.to_str().unwrap()]);
    assert!(table.contains("<= 12.0 MB"), "{table}");
    let figures = report["figures"].as_array().unwrap();
    let size = figures.iter().find(|f| f["name"] == "size").unwrap();
    assert_eq!(size["target"], serde_json::json!({"at-most": 12.0}), "{report}");
    assert_eq!(size["unit"], "megabytes", "{report}");
    let alone = figures.iter().find(|f| f["unit"] == "yes").unwrap();
    assert_eq!(alone["passes"], true, "{report}");
}
