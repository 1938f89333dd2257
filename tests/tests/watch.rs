//! What is to hold at every instant, whatever is done to a node: looked at several times a second beside the work.

use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    path::PathBuf,
    sync::atomic::{AtomicBool, Ordering},
    thread,
    time::{Duration, Instant},
};

use base64::{Engine, engine::general_purpose::STANDARD};
use serde_json::Value;
use tests::Lab;

use crate::fault_tools::Stopper;
use crate::support::{COMPONENTS, Cluster, MANIFESTS, say};

const EVERY: Duration = Duration::from_millis(150);
const STATE: &str = "/var/lib/selfhost";
/// Longest time that a component may be without any process while its node is on: the guard gives a hand-over up after 120 s,
/// and the fallback of a component that is silent goes in after 45 s at most. A process starts within some seconds then.
pub(crate) const DEAD_MAN: Duration = Duration::from_secs(130);

/// What the node was like before anything was done to it.
pub(crate) struct Before {
    /// The manifests of the components.
    originals: BTreeMap<&'static str, Vec<u8>>,
    /// All other files in the manifest directory, with their bytes.
    others: BTreeMap<String, Vec<u8>>,
}

/// What was seen.
#[derive(Default)]
struct Seen {
    looks: u32,
    /// The longest time without a process.
    without: BTreeMap<&'static str, Duration>,
    wrong: BTreeSet<String>,
}

impl Before {
    pub(crate) fn of(cluster: &Cluster) -> Self {
        let originals = COMPONENTS.map(|component| (component, fs::read(cluster.manifest(component)).unwrap()));
        let names = cluster.manifest_names().into_iter();
        let others = names.filter(|name| !COMPONENTS.iter().any(|component| *name == format!("{component}.yaml")));
        Self {
            originals: originals.into(),
            others: others
                .map(|name| {
                    let bytes = fs::read(cluster.file(&format!("{MANIFESTS}/{name}"))).unwrap();
                    (name, bytes)
                })
                .collect(),
        }
    }

    /// Does something, and fails if meanwhile a component was without a process for longer than `longest`, etcd was another
    /// process without a power cut, a manifest was out of the directory and not safe on the disk, or a file was touched that is
    /// none of the plugin's.
    pub(crate) fn watch<T>(&self, cluster: &Cluster, what: &str, longest: Duration, work: impl FnOnce() -> T) -> T {
        let stop = AtomicBool::new(false);
        let (done, seen) = thread::scope(|scope| {
            let watcher = scope.spawn(|| self.look_until(&cluster.lab, &stop));
            // also when the work panics
            let stopper = Stopper(&stop);
            let done = work();
            drop(stopper);
            (done, watcher.join().unwrap())
        });
        let text: Vec<_> = (seen.without.iter())
            .map(|(component, time)| format!("{component} {:.1} s", time.as_secs_f64()))
            .collect();
        say(&format!(
            "{what}: {} looks; longest time without a process: {}",
            seen.looks,
            text.join(", ")
        ));
        assert!(seen.looks > 0, "{what}: nothing was looked at");
        assert!(seen.wrong.is_empty(), "{what}: {:#?}", seen.wrong);
        for (component, time) in &seen.without {
            assert!(
                *time <= longest,
                "{what}: {component} was without a process for {time:?}"
            );
        }
        done
    }

    fn look_until(&self, lab: &Lab, stop: &AtomicBool) -> Seen {
        let mut seen = Seen::default();
        let mut since: BTreeMap<&'static str, Instant> = BTreeMap::new();
        let (mut containerd, mut etcd) = (None, None);
        while !stop.load(Ordering::Relaxed) {
            let began = Instant::now();
            seen.looks += 1;
            // a power cut may begin and end between two looks, so that another one is known by its process as well
            let now = lab.pids(1, "containerd").unwrap().into_iter().min();
            let is_on = now.is_some();
            if now != containerd {
                since.clear();
                etcd = None;
            }
            containerd = now;
            for component in COMPONENTS {
                if !is_on || !lab.pids(1, component).unwrap().is_empty() {
                    since.remove(component);
                    continue;
                }
                let time = since.entry(component).or_insert(began).elapsed();
                let longest = seen.without.entry(component).or_default();
                *longest = time.max(*longest);
            }
            if is_on && let [now] = lab.pids(1, "etcd").unwrap()[..] {
                if etcd.is_some_and(|before| before != now) {
                    seen.wrong.insert("etcd is another process".to_owned());
                }
                etcd = Some(now);
            }
            seen.wrong.extend(self.look_at_files(lab));
            thread::sleep(EVERY.saturating_sub(began.elapsed()));
        }
        seen
    }

    fn look_at_files(&self, lab: &Lab) -> Vec<String> {
        let file = |path: String| -> PathBuf { lab.file(1, path).unwrap() };
        let mut wrong = Vec::new();
        for (name, bytes) in &self.others {
            if fs::read(file(format!("{MANIFESTS}/{name}"))).ok().as_ref() != Some(bytes) {
                wrong.push(format!("{name} was touched"));
            }
        }
        for entry in fs::read_dir(file(MANIFESTS.to_owned())).into_iter().flatten().flatten() {
            let name = entry.file_name().to_string_lossy().into_owned();
            // zz-: written by a test
            let ours = ["selfhost-", ".", "zz-"].iter().any(|start| name.starts_with(start));
            let component = name
                .strip_suffix(".yaml")
                .is_some_and(|stem| COMPONENTS.contains(&stem));
            if !ours && !component && !self.others.contains_key(&name) {
                wrong.push(format!("{name} came into the manifest directory"));
            }
        }
        for (component, bytes) in &self.originals {
            let is_there =
                || fs::read(file(format!("{MANIFESTS}/{component}.yaml"))).is_ok_and(|found| found == *bytes);
            let is_saved =
                || fs::read(file(format!("{STATE}/{component}/original.manifest"))).is_ok_and(|found| found == *bytes);
            // it may have been put back, and what was saved removed, between the looks
            if !is_there() && !is_saved() && !is_there() {
                wrong.push(format!("the manifest of {component} is neither there nor saved"));
            }
        }
        wrong
    }

    /// A manifest that is out is also safe in the cluster.
    pub(crate) fn assert_safe_in_the_cluster(&self, cluster: &Cluster) {
        let out: Vec<_> = COMPONENTS
            .into_iter()
            .filter(|component| fs::read(cluster.manifest(component)).ok().as_ref() != self.originals.get(component))
            .collect();
        if out.is_empty() {
            return;
        }
        let secret = cluster.get(&["secret", "selfhost-originals-node1", "-n", "kube-system"]);
        for component in out {
            let saved = secret["data"]
                .get(component)
                .and_then(Value::as_str)
                .unwrap_or_default();
            assert_eq!(
                STANDARD.decode(saved).unwrap(),
                self.originals[component],
                "the copy of {component} in the cluster"
            );
        }
    }
}
