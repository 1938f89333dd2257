//! The last-known-good fallback on the node's disk: written whole or not at all, checked when it is used.
//!
//! One file says all: the manifest, its checksum, and the checksum of every file that it mounts. These lie in a directory whose
//! name is their common checksum, and are there before the one file names them. What the guard leaves half done when it dies
//! is in nobody's way, and goes with the next one that is kept.

use super::files::{self, Attributes};
use super::volume_files::VolumeFiles;
use crate::last_known_good::{Draft, Template};
use crate::manifest::sha256_hex;
use crate::node::state::ComponentFiles;
use serde::{Deserialize, Serialize};
use shared::atomic_file;
use std::collections::BTreeMap;
use std::io;
use std::os::unix::fs::{DirBuilderExt, chown};
use std::path::{Path, PathBuf};

/// A template that has run well, as it is remembered.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Kept {
    /// Which template.
    #[serde(flatten)]
    pub template: Template,
    /// Since when it is the fallback, RFC 3339. For people: nothing is decided by it.
    pub since: String,
    /// What it was judged by, as a checksum: manifest and files.
    pub digest: String,
    /// SHA-256 of the original manifest that it was measured by, in hex.
    pub original: String,
    /// SHA-256 of the manifest, in hex.
    pub sha256: String,
    /// The manifest of the static Pod.
    manifest: String,
    /// SHA-256 of every file that it mounts, by path below [`Kept::directory`].
    files: BTreeMap<PathBuf, String>,
    /// The directory of these files below [`ComponentFiles::kept_files`].
    #[serde(default, skip_serializing_if = "Option::is_none")]
    directory: Option<String>,
}

/// What a draft with its files would be, before it is kept.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Prepared {
    /// See [`Kept::digest`].
    pub digest: String,
    manifest: String,
    directory: Option<String>,
    template: Template,
}

/// Length of the names of directories: the start of a SHA-256, in hex.
const NAME: usize = 16;

/// Puts a draft and its files together. Nothing is written.
///
/// # Errors
/// When it cannot be written as YAML.
pub fn prepare(draft: &Draft, volumes: &VolumeFiles, files: &ComponentFiles) -> io::Result<Prepared> {
    let directory = (!draft.volumes.is_empty()).then(|| volumes.digest()[..NAME].to_owned());
    let place = files.kept_files().join(directory.as_deref().unwrap_or_default());
    let manifest = shared::yaml::to_string(&draft.manifest(&place)).map_err(io::Error::other)?;
    // the directory's name stands in the manifest, and is that of all its files
    let digest = sha256_hex(manifest.as_bytes());
    Ok(Prepared {
        digest,
        manifest,
        directory,
        template: draft.template.clone(),
    })
}

/// Keeps it, in the place of what was kept before.
///
/// # Errors
/// Names what cannot be written; then what was kept before is kept still.
pub fn keep(
    prepared: Prepared,
    volumes: &VolumeFiles,
    files: &ComponentFiles,
    original: &str,
    since: String,
) -> io::Result<Kept> {
    if let Some(directory) = &prepared.directory {
        write_directory(&files.kept_files(), directory, volumes)?;
    }
    let kept = Kept {
        template: prepared.template,
        since,
        sha256: sha256_hex(prepared.manifest.as_bytes()),
        digest: prepared.digest,
        original: original.to_owned(),
        manifest: prepared.manifest,
        files: volumes
            .files
            .iter()
            .map(|(path, file)| (path.clone(), file.content.sha256()))
            .collect(),
        directory: prepared.directory,
    };
    let mut bytes = serde_json::to_vec_pretty(&kept).map_err(io::Error::other)?;
    bytes.push(b'\n');
    files::write(&files.kept(), &bytes, Attributes::mode(0o600))?;
    clean(files, kept.directory.as_deref());
    Ok(kept)
}

fn write_directory(above: &Path, name: &str, volumes: &VolumeFiles) -> io::Result<()> {
    let (whole, half) = (above.join(name), above.join(format!(".{name}.new")));
    let named =
        |error: io::Error| io::Error::new(error.kind(), format!("{} cannot be written: {error}", whole.display()));
    if whole.is_dir() && whole_as(&whole, volumes) {
        return Ok(());
    }
    for left_over in [&half, &whole] {
        remove_tree(left_over).map_err(named)?;
    }
    files::make_directory(above, 0o700)?;
    private_directory(&half).map_err(named)?;
    for (volume, owner) in &volumes.volumes {
        let path = half.join(volume);
        private_directory(&path).map_err(named)?;
        chown(&path, Some(owner.user), Some(owner.group)).map_err(named)?;
    }
    for (path, file) in &volumes.files {
        // directories inside the volume, from the outermost one
        let inside: Vec<&Path> = path.ancestors().skip(1).collect();
        for directory in inside.iter().rev().filter(|path| path.components().count() > 1) {
            let path = half.join(directory);
            if !path.is_dir() {
                private_directory(&path).map_err(named)?;
                chown(&path, Some(file.owner.user), Some(file.owner.group)).map_err(named)?;
            }
        }
        let attributes = Attributes {
            owner: Some(atomic_file::Owner {
                user: file.owner.user,
                group: file.owner.group,
            }),
            ..Attributes::mode(if file.executable { 0o700 } else { 0o600 })
        };
        files::write(&half.join(path), file.content.bytes(), attributes)?;
    }
    std::fs::rename(&half, &whole).map_err(named)?;
    std::fs::File::open(above)
        .and_then(|directory| directory.sync_all())
        .map_err(named)
}

fn private_directory(path: &Path) -> io::Result<()> {
    std::fs::DirBuilder::new().mode(0o700).create(path)
}

/// Whether a directory that is there holds just these files.
fn whole_as(directory: &Path, volumes: &VolumeFiles) -> bool {
    volumes
        .files
        .iter()
        .all(|(path, file)| std::fs::read(directory.join(path)).is_ok_and(|bytes| bytes == file.content.bytes()))
}

fn remove_tree(path: &Path) -> io::Result<()> {
    match std::fs::remove_dir_all(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
        _ => Ok(()),
    }
}

/// Takes away what is not kept any more. That it cannot be removed is no reason to fail: it goes with the next one.
fn clean(files: &ComponentFiles, directory: Option<&str>) {
    let above = files.kept_files();
    let Ok(entries) = std::fs::read_dir(&above) else { return };
    for entry in entries.flatten() {
        if entry.file_name().to_str() != directory {
            let _ = remove_tree(&entry.path());
        }
    }
    if directory.is_none() {
        let _ = std::fs::remove_dir(&above);
    }
}

/// Forgets it, with its files: the original is what counts again.
///
/// # Errors
/// Names what cannot be removed.
pub fn forget(files: &ComponentFiles) -> io::Result<()> {
    files::remove(&files.kept())?;
    clean(files, None);
    Ok(())
}

/// What is kept, as it was written; `None` where nothing is.
///
/// # Errors
/// It is there and cannot be read or understood.
pub fn load(files: &ComponentFiles) -> io::Result<Option<Kept>> {
    let path = files.kept();
    let bytes = match std::fs::read(&path) {
        Ok(bytes) => bytes,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(error) => {
            return Err(io::Error::new(
                error.kind(),
                format!("{} cannot be read: {error}", path.display()),
            ));
        }
    };
    serde_json::from_slice(&bytes)
        .map(Some)
        .map_err(|error| damaged(&path, &error.to_string()))
}

fn damaged(path: &Path, why: &str) -> io::Error {
    io::Error::new(
        io::ErrorKind::InvalidData,
        format!("{} is damaged: {why}", path.display()),
    )
}

impl Kept {
    /// The manifest, after everything that it needs has been looked at.
    ///
    /// # Errors
    /// Names what is not as it was kept: then it must not be used.
    pub fn manifest(&self, files: &ComponentFiles) -> io::Result<&str> {
        let path = files.kept();
        if sha256_hex(self.manifest.as_bytes()) != self.sha256 {
            return Err(damaged(&path, "the manifest's SHA-256 is not the one that was kept"));
        }
        let directory = files.kept_files().join(self.directory.as_deref().unwrap_or_default());
        for (name, sha256) in &self.files {
            let path = directory.join(name);
            match std::fs::read(&path) {
                Ok(bytes) if sha256_hex(&bytes) == *sha256 => {}
                Ok(_) => return Err(damaged(&path, "its SHA-256 is not the one that was kept")),
                Err(error) => {
                    return Err(io::Error::new(
                        error.kind(),
                        format!("{} cannot be read: {error}", path.display()),
                    ));
                }
            }
        }
        Ok(&self.manifest)
    }
}

#[cfg(test)]
#[path = "keep_tests.rs"]
mod tests;
