//! Files of the guard: every write is whole or not there, and says who may read it.

use crate::node::state::Original;
use shared::atomic_file::{self, Facts, Owner};
use std::fs;
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::time::{Duration, SystemTime};

pub use shared::atomic_file::{Attributes, remove_left_overs};

/// How a file is to lie there for it to be as the original was.
#[must_use]
pub fn as_original(original: &Original) -> Attributes {
    let modified = u64::try_from(original.modified_ns)
        .ok()
        .map(|ns| SystemTime::UNIX_EPOCH + Duration::from_nanos(ns));
    Attributes {
        mode: original.mode,
        owner: Some(Owner {
            user: original.uid,
            group: original.gid,
        }),
        modified,
    }
}

/// As [`atomic_file::write`].
///
/// # Errors
/// Names the path. Nothing is left behind, and an older file of that name is as it was.
pub fn write(path: &Path, bytes: &[u8], attributes: Attributes) -> io::Result<()> {
    atomic_file::write(path, bytes, attributes).map_err(|error| named(path, "cannot be written", &error))
}

/// Takes a file away for good; that it is not there is fine.
///
/// # Errors
/// Names the path.
pub fn remove(path: &Path) -> io::Result<()> {
    atomic_file::remove(path).map_err(|error| named(path, "cannot be removed", &error))
}

/// Makes a directory, with its parents, and sets its permission bits. One that is there with these bits is left alone: it may
/// lie on a file system that cannot be written.
///
/// # Errors
/// Names the path.
pub fn make_directory(path: &Path, mode: u32) -> io::Result<()> {
    if fs::metadata(path).is_ok_and(|found| found.is_dir() && found.mode() & 0o7777 == mode) {
        return Ok(());
    }
    fs::create_dir_all(path)
        .and_then(|()| set_mode(path, mode))
        .map_err(|error| named(path, "cannot be made", &error))
}

#[cfg(unix)]
fn set_mode(path: &Path, mode: u32) -> io::Result<()> {
    use std::os::unix::fs::PermissionsExt;
    fs::set_permissions(path, fs::Permissions::from_mode(mode))
}

#[cfg(not(unix))]
fn set_mode(_: &Path, _: u32) -> io::Result<()> {
    Ok(())
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
    let facts = Facts::of(&metadata);
    Ok(Original {
        file_name,
        mode: facts.mode,
        uid: facts.user,
        gid: facts.group,
        modified_ns: facts.modified_ns,
        sha256,
    })
}

fn named(path: &Path, what: &str, error: &io::Error) -> io::Error {
    io::Error::new(error.kind(), format!("{} {what}: {error}", path.display()))
}

#[cfg(all(test, unix))]
mod tests {
    use super::*;
    use std::fs::Permissions;
    use std::os::unix::fs::PermissionsExt;

    #[test]
    fn what_is_saved_and_put_back_is_the_same_to_the_nanosecond() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("kube-apiserver.yaml");
        fs::write(&path, b"apiVersion: v1\n").unwrap();
        fs::set_permissions(&path, Permissions::from_mode(0o640)).unwrap();
        let before = metadata(&path, "x".into()).unwrap();
        remove(&path).unwrap();
        remove(&path).unwrap();
        write(&path, b"apiVersion: v1\n", as_original(&before)).unwrap();
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
