//! What the CLI and the guard tell each other, and what the guard keeps on the node's disk.

use crate::last_known_good::Template;
use crate::names::{Component, STATE_DIR};
use crate::node::guard::turns::Turns;
use serde::{Deserialize, Serialize};
use std::fmt;
use std::path::{Path, PathBuf};

/// What a component on a node should be. The CLI writes it into a Node annotation, the guard makes it so.
///
/// It is an enum and nothing else: whoever may patch Nodes can choose between these, and has no other say.
/// An absent annotation means "as the node's disk says".
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Desired {
    /// The original static Pod.
    Static,
    /// The original static Pod with port sharing on: a way back without a gap.
    StaticSharing,
    /// The DaemonSet's Pod, handed over with a shared and steered port.
    SelfHosted,
    /// The DaemonSet's Pod, handed over with one gap, where ports cannot be shared and steered.
    SelfHostedGap,
}

impl Desired {
    /// All values.
    pub const ALL: [Self; 4] = [Self::Static, Self::StaticSharing, Self::SelfHosted, Self::SelfHostedGap];

    /// The value in the annotation.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Static => "static",
            Self::StaticSharing => "static-sharing",
            Self::SelfHosted => "self-hosted",
            Self::SelfHostedGap => "self-hosted-gap",
        }
    }

    /// Reads the value of an annotation; anything unknown is `None`, to be reported and not acted on.
    #[must_use]
    pub fn parse(text: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|desired| desired.as_str() == text)
    }

    /// Whether the DaemonSet's Pod is to serve.
    #[must_use]
    pub fn is_self_hosted(self) -> bool {
        matches!(self, Self::SelfHosted | Self::SelfHostedGap)
    }
}

/// Whether a waiting Pod may start its component. Lives in a file that the Pod sees and cannot write.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Verdict {
    /// No: else a waiting Pod would steal the port when the static Pod restarts.
    #[default]
    Wait,
    /// Yes, as soon as the port can be bound.
    Go,
}

impl Verdict {
    /// Content of the file, with a line end.
    #[must_use]
    pub fn file_content(self) -> &'static str {
        match self {
            Self::Wait => "wait\n",
            Self::Go => "go\n",
        }
    }

    /// Reads the file's content: all but a clear "go" is "wait".
    #[must_use]
    pub fn parse(text: &str) -> Self {
        if text.trim() == "go" { Self::Go } else { Self::Wait }
    }
}

/// What serves a component on a node, as `status` shows it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum State {
    /// The original static Pod, and nothing else.
    Static,
    /// The DaemonSet's Pod, and nothing else.
    SelfHosted,
    /// Two of them: a hand-over is on its way, or somebody wrote a manifest.
    Both,
    /// The guard's fallback serves, as the DaemonSet's Pod is not there.
    Fallback,
    /// Nothing.
    None,
}

impl fmt::Display for State {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Static => "static",
            Self::SelfHosted => "self-hosted",
            Self::Both => "both",
            Self::Fallback => "fallback",
            Self::None => "none",
        })
    }
}

/// What the guard reports about one component.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Report {
    /// What serves now.
    pub state: State,
    /// What the guard works towards.
    pub desired: Desired,
    /// Whether `state` is what `desired` asks for, and nothing is left to do.
    pub settled: bool,
    /// A wish that was given up; see [`Memory::given_up`].
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub given_up: Option<Desired>,
    /// The static Pod has proved itself beside the DaemonSet's Pod, which may go now.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub releasable: bool,
    /// What the guard waits for or does right now, in words; empty when settled.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub step: String,
    /// What went wrong last, in words, with what to do; absent after success.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error: Option<String>,
    /// A manifest of this component that somebody wrote while the DaemonSet serves.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub foreign_manifest: Option<ForeignManifest>,
    /// SHA-256 of the saved original, in hex.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub original: Option<String>,
    /// What the fallback is made of; absent where nothing is saved.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub fallback: Option<FallbackReport>,
    /// Whether the fallback lies in the manifest directory.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub fallback_in: bool,
    /// Version of the guard.
    pub guard: String,
}

/// What a fallback is made of.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum MadeOf {
    /// The manifest that was there before the conversion.
    Original,
    /// The last template of the DaemonSet that ran well on this node.
    Template,
}

/// What the fallback of a component is made of, as `status` shows it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct FallbackReport {
    /// The original, or a template.
    pub made_of: MadeOf,
    /// Which template.
    #[serde(flatten)]
    pub template: Template,
    /// Since when, RFC 3339; absent for the original.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub since: Option<String>,
    /// Why the template that runs now cannot be the fallback, with what to do; absent when it can.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub refused: Option<String>,
}

impl FallbackReport {
    /// Of the original manifest.
    #[must_use]
    pub fn of_original() -> Self {
        Self {
            made_of: MadeOf::Original,
            template: Template::default(),
            since: None,
            refused: None,
        }
    }

    /// What it is made of, for people.
    #[must_use]
    pub fn name(&self) -> String {
        let revision = self
            .template
            .revision
            .as_ref()
            .map(|hash| format!(" ({hash})"))
            .unwrap_or_default();
        match (self.made_of, self.template.generation) {
            (MadeOf::Original, _) => "the original manifest".to_owned(),
            (MadeOf::Template, Some(generation)) => format!("the template of generation {generation}{revision}"),
            (MadeOf::Template, None) => format!("a template{revision}"),
        }
    }
}

/// What the guard reports about itself.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct GuardReport {
    /// Its version.
    pub version: String,
    /// The build of its executable; see [`crate::names::BIN_DIR`].
    pub build: String,
    /// Its process id: a new one after a restart, so that a new report can be told from one that was left behind.
    pub process: u32,
    /// Why ports cannot be shared and steered on this node, from a trial in the guard's own Pod; absent when they can.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub steering_refused: Option<String>,
    /// What will keep the guard from its work when it is needed, in words with what to do; see
    /// [`crate::node::guard::health`].
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub troubles: Vec<String>,
}

/// A manifest in the manifest directory that is not ours.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ForeignManifest {
    /// Its path on the node.
    pub file: String,
    /// When it was last changed, RFC 3339.
    pub modified: String,
}

/// How the original manifest lay on the node, so that it can be put back just so.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Original {
    /// File name in the manifest directory.
    pub file_name: String,
    /// Permission bits.
    pub mode: u32,
    /// Owner.
    pub uid: u32,
    /// Group.
    pub gid: u32,
    /// Last change, nanoseconds since the epoch.
    pub modified_ns: i128,
    /// SHA-256 of its bytes, in hex.
    pub sha256: String,
}

/// What the guard remembers of a component over its own restarts and the node's.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Memory {
    /// What the component should be.
    pub desired: Desired,
    /// Whether the original manifest has left the manifest directory by our hand: what appears there later is foreign.
    pub handed_over: bool,
    /// A wish that was given up. It is not tried again until the annotation has said something else, or nothing.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub given_up: Option<Desired>,
    /// What went wrong last.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error: Option<String>,
    /// When `desired` changed last, so that it cannot be changed without end.
    #[serde(default, skip_serializing_if = "Turns::is_empty")]
    pub turns: Turns,
}

impl Default for Memory {
    fn default() -> Self {
        Self {
            desired: Desired::Static,
            handed_over: false,
            given_up: None,
            error: None,
            turns: Turns::default(),
        }
    }
}

/// Mode of the directory of notes: the apiserver may run as any user. Nobody else on the node gets there, as the directory
/// above is root's alone.
pub const NOTES_MODE: u32 = 0o1777;

/// Where the files of one component lie on the node.
#[derive(Clone, Debug)]
pub struct ComponentFiles {
    directory: PathBuf,
}

impl ComponentFiles {
    /// Below the usual directory.
    #[must_use]
    pub fn new(component: Component) -> Self {
        Self::below(Path::new(STATE_DIR), component)
    }

    /// Below another directory.
    #[must_use]
    pub fn below(state: &Path, component: Component) -> Self {
        Self {
            directory: state.join(component.name()),
        }
    }

    /// The component's directory, mode 0700.
    #[must_use]
    pub fn directory(&self) -> &Path {
        &self.directory
    }

    /// What the component's Pods see; see [`crate::names::RUN_MOUNT`].
    #[must_use]
    pub fn run(&self) -> PathBuf {
        self.directory.join("run")
    }

    /// What an apiserver's Pods can write; see [`crate::names::NOTES_MOUNT`].
    #[must_use]
    pub fn notes(&self) -> PathBuf {
        self.directory.join("notes")
    }

    /// The [`Verdict`].
    #[must_use]
    pub fn verdict(&self) -> PathBuf {
        self.run().join("verdict")
    }

    /// The original manifest's bytes.
    #[must_use]
    pub fn original(&self) -> PathBuf {
        self.directory.join("original.manifest")
    }

    /// The [`Original`] that belongs to them. Written after the bytes: while it is absent, nothing is saved.
    #[must_use]
    pub fn original_metadata(&self) -> PathBuf {
        self.directory.join("original.json")
    }

    /// The manifest that the guard puts in when nothing else serves, made of the original.
    #[must_use]
    pub fn fallback(&self) -> PathBuf {
        self.directory.join("fallback.yaml")
    }

    /// The last template that ran well, as the manifest to put in instead of [`ComponentFiles::fallback`]; see
    /// [`crate::node::guard::keep`].
    #[must_use]
    pub fn kept(&self) -> PathBuf {
        self.directory.join("last-known-good.json")
    }

    /// Directory of the files that it mounts in the place of Secrets and ConfigMaps.
    #[must_use]
    pub fn kept_files(&self) -> PathBuf {
        self.directory.join("files")
    }

    /// The [`Memory`].
    #[must_use]
    pub fn memory(&self) -> PathBuf {
        self.directory.join("memory.json")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn annotations_are_an_enum_and_nothing_else() {
        for desired in Desired::ALL {
            assert_eq!(Desired::parse(desired.as_str()), Some(desired));
            assert_eq!(serde_json::to_value(desired).unwrap(), desired.as_str());
        }
        for text in ["", "Static", "self-hosted ", "{\"desired\":\"static\"}", "/etc/passwd"] {
            assert_eq!(Desired::parse(text), None, "{text}");
        }
    }

    #[test]
    fn only_a_clear_go_is_go() {
        assert_eq!(Verdict::parse(Verdict::Go.file_content()), Verdict::Go);
        for text in ["", "wait\n", "got", "go go", "GO"] {
            assert_eq!(Verdict::parse(text), Verdict::Wait, "{text}");
        }
    }
}
