//! What the guard would put in when nothing serves: the last template that ran well here, or the original.
//!
//! Looks at the DaemonSet's Pod from time to time, and keeps its template when it has proved healthy for long enough
//! ([`soak`]) and is within the original ([`crate::last_known_good`]).

use super::keep::{self, Kept};
use super::soak::{self, Soak, Subject};
use super::volume_files;
use crate::fields::string_at;
use crate::last_known_good::{Template, draft};
use crate::names::Component;
use crate::node::process::{ComponentProcess, PodContainers, Processes};
use crate::node::state::{ComponentFiles, FallbackReport, MadeOf};
use serde_json::Value;
use std::io;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// The DaemonSets' Pods of this node, as the API last showed them.
#[derive(Clone, Debug)]
pub struct Pods {
    /// When that was asked for.
    pub at: Instant,
    /// The Pods.
    pub pods: Arc<Vec<Value>>,
}

/// The original that a template is measured by.
#[derive(Clone, Copy, Debug)]
pub struct Measure<'a> {
    /// Its Pod.
    pub pod: &'a Value,
    /// SHA-256 of its manifest.
    pub sha256: &'a str,
}

/// Which fallback is put in.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Turn {
    /// The last template that ran well, where there is one.
    #[default]
    Usual,
    /// The original, as the template's did not come up.
    Original,
}

/// The fallback of one component.
#[derive(Debug)]
pub struct LastGood {
    component: Component,
    files: ComponentFiles,
    /// How long a Pod has to run well.
    needed: Duration,
    kept: Option<Kept>,
    soak: Soak,
    looked: Option<Instant>,
    /// Which of the two is put in, while they take turns.
    turn: Turn,
    /// Why the template that runs cannot be the fallback, or what was kept cannot be used.
    refused: Option<String>,
}

impl LastGood {
    /// Reads what is kept. What is damaged is told, and not used.
    #[must_use]
    pub fn open(component: Component, files: &ComponentFiles, needed: Duration) -> Self {
        let (kept, refused) = match keep::load(files) {
            Ok(kept) => (kept, None),
            Err(error) => (None, Some(error.to_string())),
        };
        Self {
            component,
            files: files.clone(),
            needed,
            kept,
            soak: Soak::default(),
            looked: None,
            turn: Turn::Usual,
            refused,
        }
    }

    /// What `status` shows.
    #[must_use]
    pub fn report(&self, original: &str) -> FallbackReport {
        let kept = self.kept.as_ref().filter(|kept| kept.original == original);
        FallbackReport {
            made_of: if kept.is_some() {
                MadeOf::Template
            } else {
                MadeOf::Original
            },
            template: kept.map(|kept| kept.template.clone()).unwrap_or_default(),
            since: kept.map(|kept| kept.since.clone()),
            refused: match self.turn {
                Turn::Usual => self.refused.clone(),
                Turn::Original => Some(
                    "the fallback made of it did not come up within three minutes, and that of the original was put in"
                        .to_owned(),
                ),
            },
        }
    }

    /// The manifest to put in. What is kept and cannot be used is told, and the original's is taken.
    ///
    /// # Errors
    /// When the original's cannot be read either.
    pub fn manifest(&mut self, original: Option<&str>) -> io::Result<Vec<u8>> {
        let kept = self
            .kept
            .as_ref()
            .filter(|kept| Some(kept.original.as_str()) == original);
        if let Some(kept) = kept.filter(|_| self.turn == Turn::Usual) {
            match kept.manifest(&self.files) {
                Ok(text) => return Ok(text.as_bytes().to_vec()),
                Err(error) => {
                    self.refused = Some(error.to_string());
                    self.kept = None;
                }
            }
        }
        std::fs::read(self.files.fallback())
    }

    /// Whether there are two different ones.
    #[must_use]
    pub fn has_other(&self, original: Option<&str>) -> bool {
        let kept = self.kept.as_ref();
        kept.is_some_and(|kept| Some(kept.original.as_str()) == original)
    }

    /// The other one is to be put in next.
    pub fn take_turns(&mut self) {
        self.turn = match self.turn {
            Turn::Usual => Turn::Original,
            Turn::Original => Turn::Usual,
        };
    }

    /// The usual one is to be put in next.
    pub fn usual_turn(&mut self) {
        self.turn = Turn::Usual;
    }

    /// Forgets what is kept: it belongs to an earlier conversion.
    ///
    /// # Errors
    /// Names what cannot be removed.
    pub fn forget(&mut self) -> io::Result<()> {
        keep::forget(&self.files)?;
        self.kept = None;
        self.refused = None;
        self.soak.failed();
        Ok(())
    }

    /// Looks at the Pod whose process serves alone, when it is time to. Returns whether another template is kept now.
    ///
    /// # Errors
    /// What cannot be read or written; it is tried again.
    pub fn consider(
        &mut self,
        now: Instant,
        measure: Measure<'_>,
        process: &ComponentProcess,
        pods: Option<&Pods>,
        prove: impl FnOnce() -> bool,
    ) -> io::Result<bool> {
        let interval = soak::interval(self.needed);
        if self
            .looked
            .is_some_and(|last| now.saturating_duration_since(last) < interval)
        {
            return Ok(false);
        }
        // what the API has shown must be about the process that is looked at; without an API nothing new is kept
        let Some(pods) = pods.filter(|pods| now.saturating_duration_since(pods.at) <= interval * 3) else {
            return Ok(false);
        };
        self.looked = Some(now);
        let processes = Processes::new(Path::new("/proc"));
        let Some((uid, _)) = processes.pod_of(process.pid) else {
            return Ok(self.broken("the Pod of the component's process cannot be told from its mounts"));
        };
        let Some(pod) = pods.pods.iter().find(|pod| is_candidate(pod, &uid)) else {
            self.soak.failed();
            return Ok(false);
        };
        let draft = match draft(self.component, pod, measure.pod) {
            Ok(draft) => draft,
            Err(error) => {
                return Ok(self.broken(&format!(
                    "the template that runs cannot be the fallback: {error}; {}",
                    error.remedy
                )));
            }
        };
        // all processes are looked at for it: only where a volume has to be read
        let containers = if draft.volumes.is_empty() {
            PodContainers::new()
        } else {
            processes.containers_of(&uid)?
        };
        let volumes = match volume_files::read(&draft.volumes, &containers) {
            Ok(volumes) => volumes,
            Err(error) => return Ok(self.broken(&format!("the template that runs cannot be the fallback: {error}"))),
        };
        let prepared = keep::prepare(&draft, &volumes, &self.files)?;
        self.refused = None;
        let known = self.kept.as_ref().filter(|kept| kept.original == measure.sha256);
        if known.is_some_and(|kept| kept.digest == prepared.digest && kept.template == draft.template) {
            return Ok(false);
        }
        if !prove() {
            self.soak.failed();
            return Ok(false);
        }
        let subject = Subject {
            process: (process.pid, process.started),
            pod: uid,
            digest: prepared.digest.clone(),
        };
        if !self.soak.proved(subject, now, self.needed) {
            return Ok(false);
        }
        let since = jiff::Timestamp::now().to_string();
        let kept = keep::keep(prepared, &volumes, &self.files, measure.sha256, since)?;
        self.kept = Some(kept);
        Ok(true)
    }

    fn broken(&mut self, why: &str) -> bool {
        self.soak.failed();
        self.refused = Some(why.to_owned());
        false
    }

    /// The template that is kept.
    #[must_use]
    pub fn template(&self) -> Option<&Template> {
        self.kept.as_ref().map(|kept| &kept.template)
    }
}

/// Whether a Pod is the one of that UID, a DaemonSet's, and is to stay.
fn is_candidate(pod: &Value, uid: &str) -> bool {
    let owner = pod.pointer("/metadata/ownerReferences/0/kind").and_then(Value::as_str);
    string_at(pod, &["metadata", "uid"]) == Some(uid)
        && owner == Some("DaemonSet")
        && pod.pointer("/metadata/deletionTimestamp").is_none_or(Value::is_null)
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn only_the_daemon_sets_pod_that_is_to_stay_is_looked_at() {
        let pod = json!({"metadata": {"uid": "u", "ownerReferences": [{"kind": "DaemonSet"}]}});
        assert!(is_candidate(&pod, "u"));
        assert!(!is_candidate(&pod, "v"));
        let mut other = pod.clone();
        other["metadata"]["deletionTimestamp"] = json!("2026-01-01T00:00:00Z");
        assert!(!is_candidate(&other, "u"), "it is on its way out");
        let mut other = pod;
        other["metadata"]["ownerReferences"] = json!([{"kind": "Node"}]);
        assert!(!is_candidate(&other, "u"), "a mirror of a static Pod");
    }

    #[test]
    fn what_is_kept_of_another_original_or_is_damaged_is_not_used() {
        let state = tempfile::tempdir().unwrap();
        let files = ComponentFiles::below(state.path(), Component::KubeScheduler);
        std::fs::create_dir_all(files.directory()).unwrap();
        std::fs::write(files.fallback(), "of the original").unwrap();
        std::fs::write(files.kept(), "{ half").unwrap();
        let mut good = LastGood::open(Component::KubeScheduler, &files, soak::USUAL);
        let report = good.report("o");
        assert_eq!(report.made_of, MadeOf::Original);
        assert!(report.refused.unwrap().contains("is damaged"));
        assert_eq!(good.manifest(Some("o")).unwrap(), b"of the original");
    }
}
