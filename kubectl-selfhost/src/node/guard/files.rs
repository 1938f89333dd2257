//! Files of the guard: every write is whole or not there, and says who may read it.

use crate::node::state::Original;
use std::fs::{self, File, OpenOptions, Permissions};
use std::io::{self, Write};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt, PermissionsExt, fchown};
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

/// How a file is to lie there.
#[derive(Clone, Copy, Debug)]
pub struct Attributes {
    /// Permission bits.
    pub mode: u32,
    /// Owner and group; unchanged (ours) when absent.
    pub owner: Option<(u32, u32)>,
    /// Time of the last change; now when absent.
    pub modified: Option<SystemTime>,
}

impl Attributes {
    /// Ours, with these permission bits.
    #[must_use]
    pub fn mode(mode: u32) -> Self {
        Self {
            mode,
            owner: None,
            modified: None,
        }
    }

    /// As the original was.
    #[must_use]
    pub fn of(original: &Original) -> Self {
        let modified = u64::try_from(original.modified_ns)
            .ok()
            .map(|ns| SystemTime::UNIX_EPOCH + Duration::from_nanos(ns));
        Self {
            mode: original.mode,
            owner: Some((original.uid, original.gid)),
            modified,
        }
    }
}

/// Writes a file: a temporary one beside it, whose name starts with a dot so that the kubelet ignores it, then a rename.
///
/// # Errors
/// Names the path. Nothing is left behind, and an older file of that name is as it was.
pub fn write(path: &Path, bytes: &[u8], attributes: Attributes) -> io::Result<()> {
    let temporary = temporary_path(path)?;
    let result = write_temporary(&temporary, bytes, attributes).and_then(|()| fs::rename(&temporary, path));
    if result.is_err() {
        let _ = fs::remove_file(&temporary);
    }
    result
        .and_then(|()| sync_directory(path))
        .map_err(|error| named(path, "cannot be written", &error))
}

/// Takes a file away; that it is not there is fine.
///
/// # Errors
/// Names the path.
pub fn remove(path: &Path) -> io::Result<()> {
    match fs::remove_file(path) {
        Ok(()) => sync_directory(path).map_err(|error| named(path, "cannot be removed for good", &error)),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        Err(error) => Err(named(path, "cannot be removed", &error)),
    }
}

/// Makes a directory, with its parents, and sets its permission bits.
///
/// # Errors
/// Names the path.
pub fn make_directory(path: &Path, mode: u32) -> io::Result<()> {
    fs::create_dir_all(path)
        .and_then(|()| fs::set_permissions(path, Permissions::from_mode(mode)))
        .map_err(|error| named(path, "cannot be made", &error))
}

/// How a file lies there now.
///
/// # Errors
/// When it cannot be looked at.
pub fn metadata(path: &Path, sha256: String) -> io::Result<Original> {
    let metadata = fs::metadata(path).map_err(|error| named(path, "cannot be read", &error))?;
    let file_name = path
        .file_name()
        .and_then(|name| name.to_str())
        .unwrap_or_default()
        .to_owned();
    Ok(Original {
        file_name,
        mode: metadata.mode() & 0o7777,
        uid: metadata.uid(),
        gid: metadata.gid(),
        modified_ns: i128::from(metadata.mtime()) * 1_000_000_000 + i128::from(metadata.mtime_nsec()),
        sha256,
    })
}

fn write_temporary(path: &Path, bytes: &[u8], attributes: Attributes) -> io::Result<()> {
    let mut file = OpenOptions::new()
        .write(true)
        .create(true)
        .truncate(true)
        .mode(0o600)
        .open(path)?;
    file.write_all(bytes)?;
    if let Some((uid, gid)) = attributes.owner {
        fchown(&file, Some(uid), Some(gid))?;
    }
    file.set_permissions(Permissions::from_mode(attributes.mode))?;
    if let Some(modified) = attributes.modified {
        file.set_times(fs::FileTimes::new().set_modified(modified))?;
    }
    file.sync_all()
}

fn temporary_path(path: &Path) -> io::Result<PathBuf> {
    let name = path.file_name().and_then(|name| name.to_str());
    let name =
        name.ok_or_else(|| io::Error::new(io::ErrorKind::InvalidInput, format!("{} has no name", path.display())))?;
    Ok(path.with_file_name(format!(".{name}.selfhost")))
}

fn sync_directory(path: &Path) -> io::Result<()> {
    match path.parent() {
        Some(parent) => File::open(parent)?.sync_all(),
        None => Ok(()),
    }
}

fn named(path: &Path, what: &str, error: &io::Error) -> io::Error {
    io::Error::new(error.kind(), format!("{} {what}: {error}", path.display()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_saved_and_put_back_is_the_same_to_the_nanosecond() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("kube-apiserver.yaml");
        fs::write(&path, b"apiVersion: v1\n").unwrap();
        fs::set_permissions(&path, Permissions::from_mode(0o640)).unwrap();
        let before = metadata(&path, "x".into()).unwrap();
        remove(&path).unwrap();
        remove(&path).unwrap();
        write(&path, b"apiVersion: v1\n", Attributes::of(&before)).unwrap();
        assert_eq!(metadata(&path, "x".into()).unwrap(), before);
        assert_eq!(
            fs::read_dir(directory.path()).unwrap().count(),
            1,
            "no temporary file is left"
        );
    }

    #[test]
    fn a_failed_write_leaves_the_old_file_and_nothing_else() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("file");
        fs::create_dir(&path).unwrap(); // a rename onto a directory fails
        fs::write(path.join("x"), b"").unwrap();
        let error = write(&path, b"new", Attributes::mode(0o600)).unwrap_err();
        assert!(error.to_string().contains(&path.display().to_string()), "{error}");
        assert_eq!(fs::read_dir(directory.path()).unwrap().count(), 1);
    }
}
