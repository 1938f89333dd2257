//! The manifest directory, looked at again and again: read only when something in it has changed.

use crate::inventory::take_inventory;
use crate::manifest::read_directory;
use crate::names::Component;
use crate::node::variants::Endpoint;
use shared::atomic_file::Facts;
use std::collections::HashSet;
use std::io;
use std::path::{Path, PathBuf};

/// A component's manifest in the manifest directory.
#[derive(Clone, Debug)]
pub struct FoundManifest {
    /// Whose.
    pub component: Component,
    /// Its path.
    pub path: PathBuf,
    /// SHA-256 of its bytes.
    pub sha256: String,
    /// When it was last changed.
    pub modified: Option<jiff::Timestamp>,
    /// Where the component will listen.
    pub endpoint: Option<Endpoint>,
}

/// What lies in the manifest directory.
#[derive(Clone, Debug, Default)]
pub struct Manifests {
    /// Components' manifests that are not our fallbacks.
    pub found: Vec<FoundManifest>,
    /// Components of which our fallback lies there.
    pub ours: HashSet<Component>,
}

impl Manifests {
    /// That of a component.
    #[must_use]
    pub fn find(&self, component: Component) -> Option<&FoundManifest> {
        self.found.iter().find(|manifest| manifest.component == component)
    }
}

/// Reads a manifest directory.
#[derive(Debug)]
pub struct Scanner {
    directory: PathBuf,
    last: Option<(Vec<Stamp>, Manifests)>,
}

/// What changes when a file is written: name, size, inode and its times, owner and mode.
type Stamp = (PathBuf, u64, Facts);

impl Scanner {
    /// Of that directory.
    #[must_use]
    pub fn new(directory: &Path) -> Self {
        Self {
            directory: directory.to_owned(),
            last: None,
        }
    }

    /// What lies there now.
    ///
    /// # Errors
    /// When the directory, or a file in it, cannot be read.
    pub fn scan(&mut self) -> io::Result<Manifests> {
        let stamps = self.stamps()?;
        if let Some((last, manifests)) = &self.last
            && *last == stamps
        {
            return Ok(manifests.clone());
        }
        let entries = read_directory(&self.directory)
            .map_err(|error| io::Error::other(crate::node::await_port::describe(&error)))?;
        let inventory = take_inventory(entries);
        let found = inventory.originals.into_iter().map(|(component, file)| FoundManifest {
            component,
            modified: modified(&file.path),
            endpoint: Endpoint::of(component, &file.pod).ok(),
            path: file.path,
            sha256: file.sha256,
        });
        let manifests = Manifests {
            found: found.collect(),
            ours: inventory.fallbacks.into_keys().collect(),
        };
        self.last = Some((stamps, manifests.clone()));
        Ok(manifests)
    }

    fn stamps(&self) -> io::Result<Vec<Stamp>> {
        let mut stamps = Vec::new();
        for entry in std::fs::read_dir(&self.directory)? {
            let path = entry?.path();
            // follows symbolic links, as the kubelet does; what has just gone away is not there
            let Ok(metadata) = std::fs::metadata(&path) else {
                continue;
            };
            stamps.push((path, metadata.len(), Facts::of(&metadata)));
        }
        stamps.sort();
        Ok(stamps)
    }
}

fn modified(path: &Path) -> Option<jiff::Timestamp> {
    jiff::Timestamp::try_from(std::fs::metadata(path).ok()?.modified().ok()?).ok()
}
