//! What keeps the guard from doing its work when it will be needed: a disk without room, a directory that has become read-only,
//! an executable that is gone. Nothing of it harms what runs, so that nobody would notice before the next power cut.

use super::GuardOptions;
use crate::manifest::sha256_hex;
use crate::names::{BIN_DIR, BIN_MOUNT, BIN_NAME};
use std::fs::Metadata;
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

/// Room that a directory must have: a manifest has some kilobytes, and is written beside the old one.
const ROOM: u64 = 64 * 1024;

/// What a file system says of itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FileSystem {
    /// Bytes that root can write.
    pub free: u64,
    /// Files that can be made; `None` where the file system does not count them.
    pub free_files: Option<u64>,
    /// Whether nothing can be written.
    pub read_only: bool,
}

impl FileSystem {
    /// That of a path, by `statvfs`.
    ///
    /// # Errors
    /// When it cannot be asked.
    pub fn of(path: &Path) -> io::Result<Self> {
        let found = rustix::fs::statvfs(path)?;
        Ok(Self {
            free: found.f_bfree.saturating_mul(found.f_frsize),
            // some file systems make what they need, and say that they have none at all
            free_files: (found.f_files > 0).then_some(found.f_ffree),
            read_only: found.f_flag.contains(rustix::fs::StatVfsMountFlags::RDONLY),
        })
    }
}

/// What is wrong with a directory that the guard has to write, in words with what to do.
#[must_use]
pub fn directory_trouble(path: &Path, found: &Result<FileSystem, String>) -> Option<String> {
    let path = path.display();
    match found {
        Err(error) => Some(format!("{path} cannot be looked at: {error}")),
        Ok(found) if found.read_only => Some(format!(
            "{path} is read-only: no manifest can be put in or taken out there; look for errors of the disk, and make it writable"
        )),
        Ok(found) if found.free < ROOM => Some(format!(
            "{path} has no room left ({} bytes): make room on its disk",
            found.free
        )),
        Ok(found) if found.free_files == Some(0) => Some(format!(
            "{path} has no room for another file: remove some from its disk"
        )),
        Ok(_) => None,
    }
}

/// What is wrong with the executable, of which the file should have a SHA-256 that begins with `build`; `found` is its
/// SHA-256, or why it cannot be read.
#[must_use]
pub fn executable_trouble(build: &str, found: &Result<String, String>) -> Option<String> {
    let path = format!("{BIN_DIR}/{build}/{BIN_NAME}");
    match found {
        Ok(sha256) if sha256.starts_with(build) => None,
        Ok(_) => Some(format!(
            "{path} is not the executable that was installed: find out who changed it, and run `kubectl selfhost convert`"
        )),
        Err(error) => Some(format!(
            "{path} cannot be read ({error}), and neither this guard nor Pods of the control plane start again without it: \
             run `kubectl selfhost convert`"
        )),
    }
}

/// What the executable's bytes were when it was last read, and by what it is seen that they may be others now.
type Read = (Stamp, Result<String, String>);
/// Inode, size, and times of change of content and inode.
type Stamp = (u64, u64, i64, i64);

/// Looks at what the guard needs.
#[derive(Debug)]
pub struct Health {
    directories: Vec<PathBuf>,
    executable: PathBuf,
    build: String,
    read: Option<Read>,
}

impl Health {
    /// Of a guard with these options.
    #[must_use]
    pub fn new(options: &GuardOptions) -> Self {
        Self {
            directories: vec![options.state_directory.clone(), options.manifest_directory.clone()],
            executable: Path::new(BIN_MOUNT).join(BIN_NAME),
            build: options.build.clone(),
            read: None,
        }
    }

    /// What is wrong now, in words with what to do.
    pub fn troubles(&mut self) -> Vec<String> {
        let mut troubles: Vec<String> = self
            .directories
            .iter()
            .filter_map(|path| directory_trouble(path, &FileSystem::of(path).map_err(|error| error.to_string())))
            .collect();
        // a guard that was started by hand was not installed
        if !self.build.is_empty() {
            let found = self.sha256();
            troubles.extend(executable_trouble(&self.build, &found));
        }
        troubles
    }

    /// SHA-256 of the executable, which is read again only when something about the file has changed.
    fn sha256(&mut self) -> Result<String, String> {
        let metadata = std::fs::metadata(&self.executable).map_err(|error| error.to_string())?;
        let stamp = stamp(&metadata);
        match &self.read {
            Some((before, sha256)) if *before == stamp => sha256.clone(),
            _ => {
                let sha256 = std::fs::read(&self.executable)
                    .map(|bytes| sha256_hex(&bytes))
                    .map_err(|error| error.to_string());
                self.read = Some((stamp, sha256.clone()));
                sha256
            }
        }
    }
}

fn stamp(metadata: &Metadata) -> Stamp {
    (
        metadata.ino(),
        metadata.len(),
        metadata.mtime() * 1_000_000_000 + metadata.mtime_nsec(),
        metadata.ctime() * 1_000_000_000 + metadata.ctime_nsec(),
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_directory_that_cannot_be_written_is_named_with_the_reason() {
        let good = FileSystem {
            free: ROOM,
            free_files: Some(1),
            read_only: false,
        };
        for (found, words) in [
            (Ok(good), None),
            (
                Ok(FileSystem {
                    free_files: None,
                    ..good
                }),
                None,
            ),
            (
                Ok(FileSystem {
                    read_only: true,
                    ..good
                }),
                Some("is read-only"),
            ),
            (
                Ok(FileSystem { free: ROOM - 1, ..good }),
                Some("no room left (65535 bytes)"),
            ),
            (
                Ok(FileSystem {
                    free_files: Some(0),
                    ..good
                }),
                Some("no room for another file"),
            ),
            (Err("Input/output error".to_owned()), Some("Input/output error")),
        ] {
            let trouble = directory_trouble(Path::new("/var/lib/selfhost"), &found);
            assert_eq!(trouble.is_some(), words.is_some(), "{found:?}: {trouble:?}");
            if let (Some(trouble), Some(words)) = (trouble, words) {
                assert!(
                    trouble.starts_with("/var/lib/selfhost ") && trouble.contains(words),
                    "{trouble}"
                );
            }
        }
    }

    #[test]
    fn an_executable_that_is_gone_or_another_one_is_named_with_its_place_on_the_node() {
        assert_eq!(executable_trouble("0123", &Ok("0123456789".to_owned())), None);
        for found in [Ok("9876543210".to_owned()), Err("No such file".to_owned())] {
            let trouble = executable_trouble("0123", &found).unwrap();
            assert!(
                trouble.starts_with("/opt/selfhost/bin/0123/kubectl-selfhost ")
                    && trouble.contains("kubectl selfhost convert"),
                "{trouble}"
            );
        }
    }

    #[test]
    fn what_has_changed_is_read_again() {
        let directory = tempfile::tempdir().unwrap();
        let executable = directory.path().join(BIN_NAME);
        std::fs::write(&executable, "one").unwrap();
        let mut health = Health {
            directories: vec![directory.path().to_owned()],
            executable: executable.clone(),
            build: sha256_hex(b"one")[..12].to_owned(),
            read: None,
        };
        assert_eq!(health.troubles(), [""; 0]);
        std::fs::write(&executable, "another").unwrap();
        assert_eq!(health.troubles().len(), 1);
        std::fs::remove_file(&executable).unwrap();
        assert_eq!(health.troubles().len(), 1);
        std::fs::write(&executable, "one").unwrap();
        assert_eq!(health.troubles(), [""; 0]);
        health.directories.push(directory.path().join("nowhere"));
        assert_eq!(health.troubles().len(), 1);
    }
}
