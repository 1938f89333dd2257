//! The guard's hands and eyes: looks at one component of the node, and carries one action out.

use super::files::{self, Attributes};
use super::last_good::{LastGood, Measure, Pods};
use super::machine::{Action, Manifest, Observed, Steered, process_state};
use super::scan::Manifests;
use super::turns::{MOST, Moment, WINDOW};
use super::unhealthy::{self, Unhealthy};
use super::wish::{Wish, wish};
use crate::fallback::fallback_file_name;
use crate::manifest::sha256_hex;
use crate::names::{Component, Role};
use crate::node::await_port::{describe, hold};
use crate::node::net_table::NetTable;
use crate::node::ports;
use crate::node::probe::{self, Probe};
use crate::node::process::{ComponentProcess, Found, Processes};
use crate::node::state::{
    ComponentFiles, Desired, FallbackReport, ForeignManifest, Memory, NOTES_MODE, Original, State, Verdict,
};
use crate::node::steering::{Listener, Steering};
use crate::node::variants::{self, Endpoint};
use serde_json::Value;
use std::collections::{HashMap, HashSet};
use std::io;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// One look at the node, shared by all components.
#[derive(Debug)]
pub struct Look {
    /// When.
    pub at: Instant,
    /// Processes of the control plane.
    pub found: Found,
    /// Sockets.
    pub table: NetTable,
}

impl Look {
    /// Looks.
    ///
    /// # Errors
    /// When `/proc` cannot be read.
    pub fn now() -> io::Result<Self> {
        let table = ports::read_net_table().map_err(|error| io::Error::other(describe(&error)))?;
        Ok(Self {
            at: Instant::now(),
            found: Processes::new(Path::new("/proc")).find()?,
            table,
        })
    }
}

impl Look {
    /// What serves a component, by its processes alone.
    #[must_use]
    pub fn state(&self, component: Component) -> State {
        let has = |role| {
            let mut all = self.found.components.iter();
            all.any(|process| process.component == component && process.role == role)
        };
        process_state(has(Role::Static), has(Role::SelfHosted), has(Role::Fallback))
    }
}

/// One component of this node.
#[derive(Debug)]
pub struct ComponentWorld {
    component: Component,
    manifests: PathBuf,
    files: ComponentFiles,
    /// What is remembered on disk.
    pub memory: Memory,
    original: Option<Original>,
    endpoint: Option<Endpoint>,
    sharing: Option<String>,
    /// The original's Pod.
    original_pod: Option<Value>,
    good: LastGood,
    /// The DaemonSet's process, where it serves alone.
    alone: Option<ComponentProcess>,
    /// How long the next change of mind has to wait.
    too_often: Option<Duration>,
    steered: Option<(Steering, HashSet<u64>, Instant)>,
    heard: Option<Instant>,
    unhealthy: Unhealthy,
    /// The listening socket of each process (id and start) that was seen to have one.
    sockets: HashMap<(u32, u64), u64>,
    handing_since: Option<Instant>,
    fallback_since: Option<Instant>,
    grace: Duration,
    foreign: Option<ForeignManifest>,
    last_manifest: Option<(PathBuf, Manifest)>,
}

impl ComponentWorld {
    /// Reads what the disk remembers. `grace` is how long silence lasts before the fallback goes in, `needed` how long a
    /// template runs well before it becomes the fallback.
    ///
    /// # Errors
    /// When a file of ours is there and cannot be read: it is never taken for absent.
    pub fn open(
        component: Component,
        state: &Path,
        manifests: &Path,
        grace: Duration,
        needed: Duration,
    ) -> io::Result<Self> {
        let files = ComponentFiles::below(state, component);
        files::make_directory(files.directory(), 0o700)?;
        files::make_directory(&files.run(), 0o755)?;
        files::make_directory(&files.notes(), NOTES_MODE)?;
        let memory = read_json(&files.memory())?.unwrap_or_default();
        let mut world = Self {
            component,
            manifests: manifests.to_owned(),
            original: read_json(&files.original_metadata())?,
            good: LastGood::open(component, &files, needed),
            files,
            memory,
            endpoint: None,
            sharing: None,
            original_pod: None,
            alone: None,
            too_often: None,
            steered: None,
            heard: None,
            unhealthy: Unhealthy::default(),
            sockets: HashMap::new(),
            handing_since: None,
            fallback_since: None,
            grace,
            foreign: None,
            last_manifest: None,
        };
        world.load_variants()?;
        world.remove_left_overs();
        if !world.files.verdict().exists() {
            world.give_verdict(Verdict::Wait)?;
        }
        Ok(world)
    }

    /// What a guard that was killed in the middle of a write has left. Nobody else writes these files.
    fn remove_left_overs(&self) {
        let files = &self.files;
        let in_state = [
            files.original(),
            files.original_metadata(),
            files.fallback(),
            files.memory(),
            files.verdict(),
        ];
        let in_manifests = self.original_path().ok().into_iter().chain([self.fallback_path()]);
        in_state
            .into_iter()
            .chain(in_manifests)
            .for_each(|path| files::remove_left_overs(&path));
    }

    /// SHA-256 of the saved original.
    #[must_use]
    pub fn original_sha256(&self) -> Option<String> {
        self.original.as_ref().map(|original| original.sha256.clone())
    }

    /// A manifest that somebody else wrote, as of the last look.
    #[must_use]
    pub fn foreign(&self) -> Option<&ForeignManifest> {
        self.foreign.as_ref()
    }

    /// Takes over what the CLI states (`None`: nothing). The last error belongs to the attempt before.
    ///
    /// # Errors
    /// When it cannot be noted on disk; then nothing changes.
    pub fn desire(&mut self, stated: Option<Desired>) -> io::Result<()> {
        self.too_often = None;
        match wish(&self.memory, stated, &Moment::now()) {
            Wish::Same => Ok(()),
            Wish::TooOften(wait) => {
                self.too_often = Some(wait);
                Ok(())
            }
            Wish::New(memory) => {
                self.handing_since = None;
                self.remember(memory)
            }
        }
    }

    /// What `status` is to say is wrong, besides what has just been decided.
    #[must_use]
    pub fn error(&self) -> Option<String> {
        let too_often = self.too_often.map(|wait| {
            format!(
                "the Node's annotation {} has changed {MOST} times within {} minutes: the next change is made in {} minutes",
                self.component.desired_annotation(),
                WINDOW.as_secs() / 60,
                wait.as_secs().div_ceil(60)
            )
        });
        too_often.or_else(|| self.memory.error.clone())
    }

    /// What the fallback is made of.
    #[must_use]
    pub fn fallback(&self) -> Option<FallbackReport> {
        self.original
            .as_ref()
            .map(|original| self.good.report(&original.sha256))
    }

    /// Looks, where the DaemonSet's process serves alone, whether its template is to be the fallback. Returns a line for the log
    /// when it is one now.
    ///
    /// # Errors
    /// What cannot be read or written; it is tried again.
    pub fn consider(&mut self, look: &Look, pods: Option<&Pods>) -> io::Result<Option<String>> {
        let (Some(process), Some(original), Some(pod)) = (&self.alone, &self.original, &self.original_pod) else {
            return Ok(None);
        };
        let measure = Measure {
            pod,
            sha256: &original.sha256,
        };
        let (pid, port) = (process.pid, self.port());
        let endpoint = self.endpoint;
        let prove = || prove(endpoint, pid, port, Listener::Newest);
        let changed = self.good.consider(look.at, measure, process, pods, prove)?;
        Ok(changed.then(|| {
            let report = self.good.report(&original.sha256);
            format!("the fallback is made of {} now", report.name())
        }))
    }

    /// Notes an error for `status`.
    ///
    /// # Errors
    /// When it cannot be noted on disk.
    pub fn fail(&mut self, error: Option<String>) -> io::Result<()> {
        if self.memory.error == error {
            return Ok(());
        }
        let memory = Memory {
            error,
            ..self.memory.clone()
        };
        self.remember(memory)
    }

    /// What [`super::machine::next_action`] needs to know.
    ///
    /// # Errors
    /// When the manifest directory cannot be read.
    pub fn observe(&mut self, look: &Look, manifests: &Manifests) -> io::Result<Observed> {
        let mine: Vec<&ComponentProcess> = look
            .found
            .components
            .iter()
            .filter(|process| process.component == self.component)
            .collect();
        let count = |role| mine.iter().filter(|process| process.role == role).count();
        let manifest = self.classify(manifests);
        let fallback = manifests.ours.contains(&self.component);
        let fallback_since = fallback.then(|| self.fallback_since.unwrap_or(look.at));
        self.fallback_since = fallback_since;
        if self.endpoint.is_none() {
            self.endpoint = manifests.find(self.component).and_then(|found| found.endpoint);
        }
        let port = self
            .endpoint
            .map_or(self.component.default_port(), |endpoint| endpoint.port);
        let listening: HashSet<u64> = look.table.on_port(port).map(|listener| listener.inode).collect();
        let listeners = self.listeners(&mine, &listening);
        let listens = |process: &ComponentProcess| listeners.contains(&process.pid);

        if mine.iter().any(|process| listens(process)) {
            self.heard = Some(look.at);
        }
        let silent_since = *self.heard.get_or_insert(look.at);
        let steered = self.steered(&listening, look.at);
        let desired = self.memory.desired;
        let known: HashSet<u64> = self.sockets.values().copied().collect();
        let strangers = listening.iter().any(|inode| !known.contains(inode));
        let fallback_process = mine.iter().find(|process| process.role == Role::Fallback);
        let candidate = mine
            .iter()
            .filter(|process| {
                process.role
                    == if desired.is_self_hosted() {
                        Role::SelfHosted
                    } else {
                        Role::Static
                    }
            })
            .max_by_key(|process| process.started);
        // proving costs a TLS handshake, so only where something may have to hand over
        let in_transition = fallback
            || (desired.is_self_hosted() && !self.memory.handed_over)
            || (desired == Desired::StaticSharing && manifest != Manifest::Absent && count(Role::SelfHosted) > 0);
        let proven = |process: &ComponentProcess, listener| prove(self.endpoint, process.pid, port, listener);
        let candidate_proven = in_transition && candidate.is_some_and(|process| proven(process, Listener::Newest));
        let is_theirs = |process: &&&ComponentProcess| process.role == Role::SelfHosted && listens(process);
        let mut theirs = mine.iter().filter(is_theirs);
        let one = match (theirs.next(), theirs.next()) {
            (Some(one), None) if self.memory.handed_over && desired.is_self_hosted() => Some(*one),
            _ => None,
        };
        let unhealthy_for = self
            .unhealthy
            .time(look.at, one.map(|process| (process.pid, process.started)), || {
                let process = one?;
                if candidate_proven {
                    return Some(Listener::Newest);
                }
                // a fallback that was put in beside it, or a stranger, has come later or before
                let others = strangers || fallback_process.is_some();
                [Listener::Oldest, Listener::Newest]
                    .into_iter()
                    .take(if others { 2 } else { 1 })
                    .find(|listener| proven(process, *listener))
            });
        let fallback_proven = (strangers || unhealthy_for >= unhealthy::DEADLINE)
            && fallback_process.is_some_and(|process| proven(process, Listener::Newest));
        self.alone = match mine.as_slice() {
            [process]
                if process.role == Role::SelfHosted && listens(process) && !fallback && self.memory.handed_over =>
            {
                Some((*process).clone())
            }
            _ => None,
        };
        let serving = mine
            .iter()
            .filter(|process| listens(process))
            .min_by_key(|process| process.started);
        let shared =
            in_transition && serving.is_some_and(|process| ports::is_shared(process.pid, port).unwrap_or(false));
        Ok(Observed {
            desired,
            handed_over: self.memory.handed_over,
            saved: self.original.is_some(),
            manifest,
            fallback,
            fallback_for: fallback_since.map_or(Duration::ZERO, |since| look.at.saturating_duration_since(since)),
            other_fallback: self.good.has_other(self.original_sha256().as_deref()),
            verdict: self.verdict(),
            waiting: look.found.waiting.contains(&self.component),
            static_processes: count(Role::Static),
            fallback_processes: count(Role::Fallback),
            self_hosted_processes: count(Role::SelfHosted),
            self_hosted_listens: mine
                .iter()
                .any(|process| process.role == Role::SelfHosted && listens(process)),
            strangers,
            unhealthy_for,
            self_hosted_healthy_before_fallback: fallback_process.is_some_and(|process| listens(process))
                && self.unhealthy.is_healthy_as_oldest(),
            fallback_proven,
            shared,
            steered,
            proven: candidate_proven,
            silent_for: look.at.saturating_duration_since(silent_since),
            handing_for: self
                .handing_since
                .map_or(Duration::ZERO, |since| look.at.saturating_duration_since(since)),
            grace: self.grace,
        })
    }

    /// After this the usual grace counts: the shorter one is for a node that has just started.
    pub fn set_grace(&mut self, grace: Duration) {
        self.grace = grace;
    }

    fn classify(&mut self, manifests: &Manifests) -> Manifest {
        self.foreign = None;
        self.last_manifest = None;
        let Some(found) = manifests.find(self.component) else {
            return Manifest::Absent;
        };
        let manifest = match &self.original {
            None => Manifest::Original,
            Some(original) if original.sha256 == found.sha256 => Manifest::Original,
            Some(_) if self.sharing.as_deref() == Some(found.sha256.as_str()) => Manifest::Sharing,
            Some(_) => Manifest::Foreign,
        };
        let foreign = self.memory.handed_over && manifest != Manifest::Sharing;
        if foreign {
            self.foreign = Some(ForeignManifest {
                file: found.path.display().to_string(),
                modified: found.modified.map(|at| at.to_string()).unwrap_or_default(),
            });
        }
        self.last_manifest = Some((found.path.clone(), manifest));
        manifest
    }

    /// Which of the processes listen. An apiserver has a descriptor for each connection, so they are not gone through again
    /// while the socket that a process was seen with is still there.
    fn listeners(&mut self, mine: &[&ComponentProcess], listening: &HashSet<u64>) -> HashSet<u32> {
        let before = std::mem::take(&mut self.sockets);
        for process in mine {
            let key = (process.pid, process.started);
            let known = before.get(&key).copied().filter(|inode| listening.contains(inode));
            let found = known.or_else(|| {
                if listening.is_empty() {
                    None
                } else {
                    listening_socket(process.pid, listening)
                }
            });
            if let Some(inode) = found {
                self.sockets.insert(key, inode);
            }
        }
        self.sockets.keys().map(|(pid, _)| *pid).collect()
    }

    fn steered(&mut self, listening: &HashSet<u64>, now: Instant) -> Steered {
        let Some((steering, group, since)) = &mut self.steered else {
            return Steered::No;
        };
        if group.is_disjoint(listening) {
            // the group is gone, and the program with it
            self.steered = None;
            return Steered::No;
        }
        group.clone_from(listening);
        match steering {
            Steering::Hold { .. } => Steered::Hold,
            Steering::Switch => Steered::Switch(now.saturating_duration_since(*since)),
        }
    }

    fn verdict(&self) -> Verdict {
        Verdict::parse(&std::fs::read_to_string(self.files.verdict()).unwrap_or_default())
    }

    /// Carries an action out.
    ///
    /// # Errors
    /// Says what could not be done; the world is as it was, or the same action finishes it.
    pub fn perform(&mut self, action: Action, look: &Look) -> io::Result<()> {
        match action {
            Action::Nothing => Ok(()),
            Action::SaveOriginal => self.save_original(),
            Action::Share => self.share(),
            Action::Hold => self.steer(look, None),
            Action::Switch => self.steer(look, Some(Steering::Switch)),
            Action::Go => {
                self.handing_since = Some(look.at);
                self.give_verdict(Verdict::Go)
            }
            Action::Wait => self.give_verdict(Verdict::Wait),
            Action::RemoveManifest => self.remove_manifest(look),
            Action::NoteHandedOver => self.remember(Memory {
                handed_over: true,
                ..self.memory.clone()
            }),
            Action::PutFallback => self.put_fallback(look),
            Action::PutOtherFallback => {
                self.good.take_turns();
                self.put_fallback(look)
            }
            Action::RemoveFallback => {
                files::remove(&self.fallback_path())?;
                self.good.usual_turn();
                Ok(())
            }
            Action::PutOriginal => self.put_original(look),
            Action::PutOriginalAgain => {
                files::remove(&self.original_path()?)?;
                // the kubelet must see that it is away: it forgets the Pod that it refused
                std::thread::sleep(Duration::from_secs(2));
                self.put_original(look)
            }
            Action::PutSharing => self.put_sharing(look),
            Action::Abort => {
                self.give_verdict(Verdict::Wait)?;
                let given_up = Some(self.memory.desired);
                self.remember(Memory {
                    desired: Desired::Static,
                    given_up,
                    ..self.memory.clone()
                })
            }
        }
    }

    fn put_fallback(&mut self, look: &Look) -> io::Result<()> {
        self.handing_since = Some(look.at);
        let original = self.original_sha256();
        let bytes = self.good.manifest(original.as_deref())?;
        files::write(&self.fallback_path(), &bytes, Attributes::mode(0o600))?;
        self.fallback_since = Some(look.at);
        Ok(())
    }

    fn save_original(&mut self) -> io::Result<()> {
        let (path, _) = self
            .last_manifest
            .clone()
            .ok_or_else(|| io::Error::other("there is no manifest to save"))?;
        let bytes = std::fs::read(&path)?;
        let variants = variants::build(self.component, &bytes).map_err(io::Error::other)?;
        let original = files::metadata(&path, sha256_hex(&bytes))?;
        self.good.forget()?;
        // the metadata comes last: only with it the original counts as saved
        files::remove(&self.files.original_metadata())?;
        files::write(
            &self.files.fallback(),
            variants.fallback.as_bytes(),
            Attributes::mode(0o600),
        )?;
        files::write(&self.files.original(), &bytes, Attributes::mode(0o600))?;
        write_json(&self.files.original_metadata(), &original)?;
        self.original = Some(original);
        self.sharing = Some(sha256_hex(variants.sharing.as_bytes()));
        self.endpoint = Some(variants.endpoint);
        self.original_pod = Some(variants.pod);
        Ok(())
    }

    fn load_variants(&mut self) -> io::Result<()> {
        if self.original.is_some() {
            let bytes = std::fs::read(self.files.original())?;
            let variants = variants::build(self.component, &bytes).map_err(io::Error::other)?;
            self.sharing = Some(sha256_hex(variants.sharing.as_bytes()));
            self.endpoint = Some(variants.endpoint);
            self.original_pod = Some(variants.pod);
        }
        Ok(())
    }

    fn port(&self) -> u16 {
        self.endpoint
            .map_or(self.component.default_port(), |endpoint| endpoint.port)
    }

    fn share(&self) -> io::Result<()> {
        // those that were seen to listen: one that drains has no listener any more
        for (pid, _) in self.sockets.keys() {
            ports::share(*pid, self.port()).map_err(|error| io::Error::other(describe(&error)))?;
        }
        Ok(())
    }

    fn steer(&mut self, look: &Look, steering: Option<Steering>) -> io::Result<()> {
        let component = self.component;
        ports::steer(self.port(), |listener| {
            steering.unwrap_or_else(|| hold(component, listener.address))
        })
        .map_err(|error| io::Error::other(describe(&error)))?;
        let group = look.table.on_port(self.port()).map(|listener| listener.inode).collect();
        self.steered = Some((steering.unwrap_or(Steering::Hold { own: None }), group, look.at));
        Ok(())
    }

    fn give_verdict(&self, verdict: Verdict) -> io::Result<()> {
        files::write(
            &self.files.verdict(),
            verdict.file_content().as_bytes(),
            Attributes::mode(0o644),
        )
    }

    fn remove_manifest(&mut self, look: &Look) -> io::Result<()> {
        let path = self.original_path()?;
        let saved = self.original_sha256().unwrap_or_default();
        // somebody may have written it since the last look: what is not saved is not removed
        if sha256_hex(&std::fs::read(&path)?) != saved || sha256_hex(&std::fs::read(self.files.original())?) != saved {
            return Err(io::Error::other(format!(
                "{} has just been changed by somebody else",
                path.display()
            )));
        }
        // what ran well before the last way back is not what is handed over to now
        self.good.forget()?;
        files::remove(&path)?;
        self.handing_since = Some(look.at);
        self.remember(Memory {
            handed_over: true,
            error: None,
            ..self.memory.clone()
        })
    }

    fn put_original(&mut self, look: &Look) -> io::Result<()> {
        let original = self
            .original
            .clone()
            .ok_or_else(|| io::Error::other("no original manifest is saved"))?;
        let bytes = std::fs::read(self.files.original())?;
        if sha256_hex(&bytes) != original.sha256 {
            return Err(io::Error::other(format!(
                "{} is damaged: its SHA-256 is not the saved one",
                self.files.original().display()
            )));
        }
        files::write(&self.original_path()?, &bytes, files::as_original(&original))?;
        self.handing_since = Some(look.at);
        self.remember(Memory {
            handed_over: false,
            ..self.memory.clone()
        })
    }

    fn put_sharing(&mut self, look: &Look) -> io::Result<()> {
        let original = self
            .original
            .clone()
            .ok_or_else(|| io::Error::other("no original manifest is saved"))?;
        let bytes = std::fs::read(self.files.original())?;
        let variants = variants::build(self.component, &bytes).map_err(io::Error::other)?;
        let attributes = Attributes {
            modified: None,
            ..files::as_original(&original)
        };
        files::write(&self.original_path()?, variants.sharing.as_bytes(), attributes)?;
        self.handing_since = Some(look.at);
        self.remember(Memory {
            handed_over: false,
            ..self.memory.clone()
        })
    }

    fn original_path(&self) -> io::Result<PathBuf> {
        let original = self
            .original
            .as_ref()
            .ok_or_else(|| io::Error::other("no original manifest is saved"))?;
        Ok(self.manifests.join(&original.file_name))
    }

    fn fallback_path(&self) -> PathBuf {
        self.manifests.join(fallback_file_name(self.component))
    }

    fn remember(&mut self, memory: Memory) -> io::Result<()> {
        write_json(&self.files.memory(), &memory)?;
        self.memory = memory;
        Ok(())
    }
}

/// Whether a process is healthy, and it is itself that says so.
fn prove(endpoint: Option<Endpoint>, pid: u32, port: u16, listener: Listener) -> bool {
    let Some(endpoint) = endpoint else { return false };
    let probe = Probe {
        address: SocketAddr::new(endpoint.probe_address(), port),
        path: endpoint.path.into(),
        pids: vec![pid],
        listener,
        timeout: Duration::from_secs(2),
    };
    probe::run(&probe).is_ok()
}

/// The socket by which a process listens, if it is one of these.
fn listening_socket(pid: u32, inodes: &HashSet<u64>) -> Option<u64> {
    let sockets = Processes::new(Path::new("/proc")).sockets(pid).ok()?;
    sockets
        .into_iter()
        .map(|(_, inode)| inode)
        .find(|inode| inodes.contains(inode))
}

fn read_json<T: serde::de::DeserializeOwned>(path: &Path) -> io::Result<Option<T>> {
    match std::fs::read(path) {
        Ok(bytes) => serde_json::from_slice(&bytes).map(Some).map_err(|error| {
            io::Error::new(
                io::ErrorKind::InvalidData,
                format!("{} is damaged: {error}", path.display()),
            )
        }),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(io::Error::new(
            error.kind(),
            format!("{} cannot be read: {error}", path.display()),
        )),
    }
}

fn write_json(path: &Path, value: &impl serde::Serialize) -> io::Result<()> {
    let mut bytes = serde_json::to_vec_pretty(value).map_err(io::Error::other)?;
    bytes.push(b'\n');
    files::write(path, &bytes, Attributes::mode(0o600))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_killed_guard_left_in_the_manifest_directory_goes_when_the_next_one_starts() {
        let (state, manifests) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        let component = Component::KubeScheduler;
        let open = || {
            ComponentWorld::open(
                component,
                state.path(),
                manifests.path(),
                Duration::ZERO,
                Duration::ZERO,
            )
            .unwrap()
        };
        let original = include_str!("../../../tests/fixtures/kubeadm/v1.36/kube-scheduler.yaml");
        let path = manifests.path().join("kube-scheduler.yaml");
        std::fs::write(&path, original).unwrap();
        let mut world = open();
        world.last_manifest = Some((path, Manifest::Original));
        world.save_original().unwrap();
        for name in [
            ".kube-scheduler.yaml.7-1.tmp",
            ".selfhost-fallback-kube-scheduler.yaml.7-2.tmp",
            ".of-somebody-else.yaml.7-3.tmp",
        ] {
            std::fs::write(manifests.path().join(name), "x").unwrap();
        }
        open();
        let names = std::fs::read_dir(manifests.path()).unwrap().flatten();
        let mut names: Vec<_> = names.map(|entry| entry.file_name().into_string().unwrap()).collect();
        names.sort();
        assert_eq!(names, [".of-somebody-else.yaml.7-3.tmp", "kube-scheduler.yaml"]);
    }
}
