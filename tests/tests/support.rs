//! What the end-to-end tests have in common: a cluster of one node with the plugin on it, and what is to be true of it.

use std::{
    fs,
    path::{Path, PathBuf},
    sync::OnceLock,
    thread,
    time::{Duration, Instant},
};

use rustix::process::{Pid, Signal, kill_process};
use serde_json::{Value, json};
pub(crate) use tests::cache::say;
use tests::{
    Lab, Options,
    command::{Output, wait_for},
    lanes,
    operate::{
        Operator,
        beside::{Beside, Noticed},
    },
    static_binary,
};

use crate::{image::Image, running::Running};

/// The components in the order of a conversion.
pub(crate) const COMPONENTS: [&str; 3] = ["kube-scheduler", "kube-controller-manager", "kube-apiserver"];
pub(crate) const MANIFESTS: &str = "/etc/kubernetes/manifests";

/// The plugin under test: built from this checkout, or the file named by `SELFHOST_TEST_BINARY`, such as one of a release.
pub(crate) fn binary() -> &'static Path {
    static BINARY: OnceLock<PathBuf> = OnceLock::new();
    BINARY.get_or_init(|| match std::env::var_os("SELFHOST_TEST_BINARY") {
        Some(path) => path.into(),
        None => static_binary::build_static().unwrap(),
    })
}

/// The plugins, built while no cluster is up.
pub(crate) fn built_alone() -> &'static Path {
    static BUILT: OnceLock<()> = OnceLock::new();
    BUILT.get_or_init(|| {
        let _alone = lanes::take_all();
        binary();
        crate::klusterlet::binary();
    });
    binary()
}

/// A cluster of one node.
pub(crate) struct Cluster {
    pub(crate) lab: Lab,
}

impl Cluster {
    pub(crate) fn up() -> Self {
        Self::with(&Options::default())
    }

    pub(crate) fn with(options: &Options) -> Self {
        let binary = built_alone();
        let lab = Lab::up(1, options).unwrap();
        lab.install_selfhost(1, binary).unwrap();
        Self { lab }
    }

    /// Runs the plugin on the node to its end.
    pub(crate) fn selfhost(&self, args: &[&str]) -> Output {
        let begin = Instant::now();
        let output = self.lab.selfhost(1, binary(), args).unwrap();
        let seconds = begin.elapsed().as_secs_f64();
        if args.first() != Some(&"status") {
            say(&format!(
                "kubectl selfhost {}: {}, {seconds:.1} s",
                args.join(" "),
                output.status
            ));
        }
        output
    }

    /// Runs the plugin, which must succeed.
    pub(crate) fn must(&self, args: &[&str]) -> Output {
        let output = self.selfhost(args);
        assert!(
            output.success(),
            "{args:?}: {}\n{}{}",
            output.status,
            output.stdout,
            output.stderr
        );
        output
    }

    /// Starts the plugin with `-o json`, to read its events and perhaps to kill it.
    pub(crate) fn start(&self, args: &[&str]) -> Running {
        let path = self.lab.install_selfhost(1, binary()).unwrap();
        let all = [&[path.as_str()], args, &["-o", "json"]].concat();
        Running::spawn(self.lab.command(1, &all).unwrap())
    }

    /// Runs `kubectl` as administrator, which must succeed.
    pub(crate) fn kubectl(&self, args: &[&str]) -> String {
        let output = self.lab.kubectl(args).unwrap();
        assert!(output.success(), "kubectl {args:?}: {}", output.stderr);
        output.stdout
    }

    pub(crate) fn get(&self, args: &[&str]) -> Value {
        let text = self.kubectl(&[&["get", "-o", "json"], args].concat());
        serde_json::from_str(&text).unwrap()
    }

    /// Creates objects; dropped, the value removes them.
    pub(crate) fn with_object(&self, object: &Value) -> Object<'_> {
        let file = self.lab.settings().state.join("object.json");
        fs::write(&file, object.to_string()).unwrap();
        self.kubectl(&["create", "-f", &file.display().to_string()]);
        let field = |name: &str| object["metadata"][name].as_str().unwrap_or("default").to_owned();
        Object {
            cluster: self,
            kind: object["kind"].as_str().unwrap().to_owned(),
            namespace: field("namespace"),
            name: field("name"),
        }
    }

    /// `status` of the only node.
    pub(crate) fn status(&self) -> Value {
        let output = self.must(&["status", "-o", "json"]);
        let status: Value =
            serde_json::from_str(&output.stdout).unwrap_or_else(|error| panic!("{error}: {}", output.stdout));
        assert_eq!(
            (&status["apiVersion"], &status["kind"]),
            (&json!("selfhost/v1"), &json!("ClusterStatus")),
            "{status:#}"
        );
        assert_eq!(status["nodes"].as_array().map(Vec::len), Some(1), "{status:#}");
        status["nodes"][0].clone()
    }

    /// `status` of one component.
    pub(crate) fn component(&self, component: &str) -> Value {
        let status = self.status();
        let all = status["components"].as_array().unwrap();
        all.iter()
            .find(|c| c["component"] == component)
            .cloned()
            .unwrap_or_else(|| panic!("{status:#}"))
    }

    /// Path on this machine of a file on the node.
    pub(crate) fn file(&self, path: &str) -> PathBuf {
        self.lab.file(1, path).unwrap()
    }

    pub(crate) fn manifest(&self, component: &str) -> PathBuf {
        self.file(&format!("{MANIFESTS}/{component}.yaml"))
    }

    pub(crate) fn pods(&self, component: &str) -> Vec<Value> {
        let pods = self.get(&["pods", "-n", "kube-system", "-l", &format!("component={component}")]);
        pods["items"].as_array().unwrap().clone()
    }

    /// Everything that the plugin may change.
    pub(crate) fn image(&self) -> Image {
        Image::of(self)
    }

    /// All three run from their DaemonSets, one Pod and one process of each, with the guard and without any fallback.
    pub(crate) fn assert_self_hosted(&self) {
        let status = self.status();
        assert_eq!(status["node"], "node1", "{status:#}");
        assert_eq!(status["guard"]["running"], true, "{status:#}");
        for (component, found) in COMPONENTS.iter().zip(status["components"].as_array().unwrap()) {
            assert_eq!(found["component"], *component, "{status:#}");
            self.assert_one_self_hosted(component, found);
        }
        assert_eq!(
            self.manifest_names(),
            ["etcd.yaml", "selfhost-guard.yaml"],
            "nothing else is left of the static Pods, and no fallback"
        );
    }

    pub(crate) fn assert_one_self_hosted(&self, component: &str, status: &Value) {
        assert_eq!(status["state"], "self-hosted", "{status:#}");
        assert_eq!(status["ready"], true, "{status:#}");
        assert!(status["version"].as_str().unwrap().starts_with("v1."), "{status:#}");
        assert!(
            status.get("troubles").is_none() && status.get("error").is_none(),
            "{status:#}"
        );
        let elects = component != "kube-apiserver";
        assert_eq!(status.get("leader").is_some(), elects, "{status:#}");
        let pods = self.pods(component);
        assert_eq!(pods.len(), 1, "{}", owners(&pods));
        assert_eq!(
            owners(&pods),
            format!(
                "{} of DaemonSet self-hosted-{component}",
                status["pod"].as_str().unwrap()
            )
        );
        let processes = self.lab.pids(1, component).unwrap();
        assert_eq!(processes.len(), 1, "{component}: {processes:?}");
    }

    /// All three are static, one process of each; nothing of the plugin is left, wherever it could be.
    pub(crate) fn assert_untouched(&self, before: &Image) {
        self.lab.wait_ready(Duration::from_secs(60)).unwrap();
        before.assert_same(&self.image());
        assert_eq!(before.marks(), 0, "{before:#?}");
        for directory in ["/opt/selfhost/bin", "/var/lib/selfhost"] {
            let entries = fs::read_dir(self.file(directory))
                .map(Iterator::count)
                .unwrap_or_default();
            assert_eq!(entries, 0, "{directory} is empty or gone");
        }
        for component in COMPONENTS {
            assert_eq!(self.lab.pids(1, component).unwrap().len(), 1, "{component}");
            let pods = self.pods(component);
            assert_eq!(owners(&pods), format!("{component}-node1 of Node node1"));
        }
        assert_eq!(
            self.lab.pids(1, "kubectl-selfhost").unwrap(),
            [0; 0],
            "no process of the plugin"
        );
        let status = self.status();
        assert_eq!(status["guard"]["running"], false, "{status:#}");
        for found in status["components"].as_array().unwrap() {
            assert_eq!(
                (&found["state"], &found["ready"]),
                (&json!("static"), &json!(true)),
                "{status:#}"
            );
        }
    }

    pub(crate) fn manifest_names(&self) -> Vec<String> {
        let entries = fs::read_dir(self.file(MANIFESTS)).unwrap().flatten();
        let mut names: Vec<_> = entries.map(|e| e.file_name().to_string_lossy().into_owned()).collect();
        names.sort();
        names
    }

    /// Stops the kubelet, which heeds nothing until the value is dropped; what runs goes on running.
    pub(crate) fn freeze_kubelet(&self) -> Frozen {
        let pids = self.lab.pids(1, "kubelet").unwrap();
        assert_eq!(pids.len(), 1, "{pids:?}");
        signal(pids[0], Signal::STOP);
        Frozen(pids[0])
    }

    /// What clients notice while something is done, and a moment before and after.
    pub(crate) fn beside<T>(&self, work: impl FnOnce() -> T) -> (T, Noticed) {
        let meters = Beside::start(&self.lab).unwrap();
        thread::sleep(Duration::from_secs(2));
        let done = work();
        thread::sleep(Duration::from_secs(3));
        (done, meters.stop().unwrap())
    }

    /// Somebody at work on it.
    pub(crate) fn operator(&self) -> Operator<'_> {
        Operator::new(&self.lab, binary())
    }

    /// Waits until something holds.
    pub(crate) fn wait(&self, what: &str, seconds: u64, mut holds: impl FnMut() -> Result<(), String>) {
        wait_for(what, Duration::from_secs(seconds), Duration::from_millis(250), || {
            Ok(holds())
        })
        .unwrap();
    }
}

/// Names of Pods, and to whom they belong.
pub(crate) fn owners(pods: &[Value]) -> String {
    let one = |pod: &Value| {
        let (metadata, owner) = (&pod["metadata"], &pod["metadata"]["ownerReferences"][0]);
        format!("{} of {} {}", metadata["name"], owner["kind"], owner["name"]).replace('"', "")
    };
    pods.iter().map(one).collect::<Vec<_>>().join(", ")
}

/// All that a run wrote, without line ends: the plan's text is folded.
pub(crate) fn flat(output: &Output) -> String {
    let all = format!("{} {}", output.stdout, output.stderr);
    all.split_whitespace().collect::<Vec<_>>().join(" ")
}

pub(crate) fn signal(pid: i32, signal: Signal) {
    kill_process(Pid::from_raw(pid).unwrap(), signal).unwrap();
}

/// An object that is removed again.
pub(crate) struct Object<'a> {
    cluster: &'a Cluster,
    kind: String,
    namespace: String,
    name: String,
}

impl Drop for Object<'_> {
    fn drop(&mut self) {
        let args = [
            "delete",
            &self.kind,
            &self.name,
            "-n",
            &self.namespace,
            "--grace-period=0",
            "--force",
        ];
        let output = self.cluster.lab.kubectl(&args).unwrap();
        assert!(output.success() || thread::panicking(), "{output:?}");
    }
}

/// A process that was stopped, and goes on when this is dropped.
pub(crate) struct Frozen(i32);

impl Drop for Frozen {
    fn drop(&mut self) {
        signal(self.0, Signal::CONT);
    }
}

/// No new connection failed, and no request over HTTP/2; over HTTP/1.1 at most one for each connection.
pub(crate) fn assert_no_failure(what: &str, noticed: &Noticed) {
    let counts = noticed.counts();
    say(&format!(
        "{what}: {:.0} s; new connections {:?}, HTTP/2 {:?}, HTTP/1.1 {:?}, slowest {:.2} s; default/kubernetes empty for {:.2} s",
        counts.seconds,
        counts.new,
        counts.http2,
        counts.http1,
        counts.slowest,
        noticed.endpoints_empty()
    ));
    for sent in [counts.new, counts.http2, counts.http1] {
        #[expect(clippy::cast_precision_loss, reason = "there are some thousands")]
        let each_second = sent.sent as f64 / counts.seconds;
        assert!(each_second > 5.0, "{what}: they did measure: {noticed:#?}");
    }
    assert_eq!(
        (counts.new.failed, counts.http2.failed),
        (0, 0),
        "{what}: {counts:#?}\n{:#?}",
        noticed.probe
    );
    assert!(
        counts.http1_worst <= 1 && counts.http1_unconnected == 0,
        "{what}: {counts:#?}"
    );
}

/// New connections failed for one short time, from the first failure to the last: one start of a component. How long it is
/// on a machine with nothing else to do is the benchmark's affair; here others may be at work.
pub(crate) fn assert_one_gap(what: &str, noticed: &Noticed) {
    let (probe, gaps) = (&noticed.probe, &noticed.probe.gaps);
    let ends = gaps.first().zip(gaps.last());
    let (first, last) = ends.unwrap_or_else(|| panic!("{what}: the gap is announced, and none was seen: {probe:#?}"));
    let length = last.start + last.length - first.start;
    say(&format!(
        "{what}: {} of {} new connections failed within {length:.2} s",
        probe.failed, probe.requests
    ));
    assert!(length <= 15.0 && !last.open, "{what}: {probe:#?}");
}
