//! Files that are there whole or not at all, also after a power cut.

use std::{
    fs::{self, File, OpenOptions},
    io::{self, Write},
    path::{Path, PathBuf},
    process,
    sync::atomic::{AtomicU32, Ordering},
};

/// Owner of a file, as numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Owner {
    /// User ID.
    pub user: u32,
    /// Group ID.
    pub group: u32,
}

/// Puts `bytes` at `path` in one step: a reader sees the old content or the new one, never a part.
///
/// Written under a name that starts with a dot (the kubelet ignores those in its manifest directory) in the same
/// directory, made durable, renamed, and the directory made durable. `mode` is set exactly, whatever the umask is. A
/// symbolic link at `path` is replaced by a file.
///
/// # Errors
/// Any error of the file system. `path` is then as it was, except where only the last step (making the rename durable)
/// failed; no temporary file stays behind.
pub fn write(path: &Path, bytes: &[u8], mode: u32) -> io::Result<()> {
    write_as(path, bytes, mode, None)
}

/// Like [`write()`], with the owner set too before the file gets its name. Setting another owner needs privileges.
///
/// # Errors
/// See [`write()`].
pub fn write_as(path: &Path, bytes: &[u8], mode: u32, owner: Option<Owner>) -> io::Result<()> {
    replace(path, mode, |file| {
        file.write_all(bytes)?;
        set_owner_and_mode(file, mode, owner)
    })
}

fn replace(path: &Path, mode: u32, fill: impl FnOnce(&mut File) -> io::Result<()>) -> io::Result<()> {
    let directory = match path.parent() {
        Some(parent) if !parent.as_os_str().is_empty() => parent,
        Some(_) => Path::new("."),
        None => return Err(io::Error::new(io::ErrorKind::InvalidInput, "the path names no file")),
    };
    let (mut file, temporary) = create_temporary(directory, path, mode)?;
    fill(&mut file)?;
    file.sync_all()?;
    drop(file);
    fs::rename(&temporary.0, path)?;
    // It has its real name now.
    std::mem::forget(temporary);
    sync_directory(directory)
}

/// Removes the file and makes that durable. A file that is not there is no error.
///
/// # Errors
/// Any other error of the file system.
pub fn remove(path: &Path) -> io::Result<()> {
    match fs::remove_file(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
        other => other?,
    }
    match path.parent() {
        Some(parent) if !parent.as_os_str().is_empty() => sync_directory(parent),
        _ => sync_directory(Path::new(".")),
    }
}

/// A temporary file that is removed unless it got its real name.
struct Temporary(PathBuf);

impl Drop for Temporary {
    fn drop(&mut self) {
        // The error that brought us here is the one to report.
        let _ = fs::remove_file(&self.0);
    }
}

fn create_temporary(directory: &Path, path: &Path, mode: u32) -> io::Result<(File, Temporary)> {
    static COUNTER: AtomicU32 = AtomicU32::new(0);
    let name = path
        .file_name()
        .ok_or_else(|| io::Error::new(io::ErrorKind::InvalidInput, "the path names no file"))?;
    // What a killed process left under the same number is skipped, not overwritten.
    for _ in 0..100 {
        let mut hidden = std::ffi::OsString::from(".");
        hidden.push(name);
        hidden.push(format!(
            ".{}-{}.tmp",
            process::id(),
            COUNTER.fetch_add(1, Ordering::Relaxed)
        ));
        let candidate = directory.join(hidden);
        let mut options = OpenOptions::new();
        options.write(true).create_new(true);
        restrict(&mut options, mode);
        match options.open(&candidate) {
            Ok(file) => return Ok((file, Temporary(candidate))),
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
            Err(error) => return Err(error),
        }
    }
    Err(io::Error::new(
        io::ErrorKind::AlreadyExists,
        "too many temporary files beside it",
    ))
}

/// From the first moment nobody else can read it: the content may be a key.
#[cfg(unix)]
fn restrict(options: &mut OpenOptions, mode: u32) {
    std::os::unix::fs::OpenOptionsExt::mode(options, mode & 0o600);
}

#[cfg(not(unix))]
fn restrict(_: &mut OpenOptions, _: u32) {}

#[cfg(unix)]
fn set_owner_and_mode(file: &File, mode: u32, owner: Option<Owner>) -> io::Result<()> {
    use std::os::unix::fs::{PermissionsExt, fchown};
    // The owner first: changing it clears set-user-ID bits.
    if let Some(owner) = owner {
        fchown(file, Some(owner.user), Some(owner.group))?;
    }
    file.set_permissions(fs::Permissions::from_mode(mode))
}

#[cfg(not(unix))]
fn set_owner_and_mode(_: &File, _: u32, _: Option<Owner>) -> io::Result<()> {
    Ok(())
}

#[cfg(unix)]
fn sync_directory(directory: &Path) -> io::Result<()> {
    File::open(directory)?.sync_all()
}

#[cfg(not(unix))]
fn sync_directory(_: &Path) -> io::Result<()> {
    Ok(())
}

#[cfg(test)]
#[cfg(unix)]
mod tests {
    use std::os::unix::fs::{MetadataExt, PermissionsExt};

    use super::*;

    fn names(directory: &Path) -> Vec<String> {
        let mut names: Vec<String> = fs::read_dir(directory)
            .unwrap()
            .map(|entry| entry.unwrap().file_name().into_string().unwrap())
            .collect();
        names.sort();
        names
    }

    #[test]
    fn a_new_file_has_the_bytes_and_the_mode_whatever_the_umask() {
        let directory = tempfile::tempdir().unwrap();
        for mode in [0o600, 0o644, 0o666, 0o400, 0o755] {
            let path = directory.path().join(format!("{mode:o}"));
            write(&path, b"bytes", mode).unwrap();
            let metadata = fs::metadata(&path).unwrap();
            assert_eq!(fs::read(&path).unwrap(), b"bytes");
            assert_eq!(metadata.permissions().mode() & 0o7777, mode, "{mode:o}");
        }
        assert!(names(directory.path()).iter().all(|name| !name.starts_with('.')));
    }

    #[test]
    fn an_old_file_is_replaced_and_not_written_into() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("a.yaml");
        write(&path, b"a longer first content", 0o644).unwrap();
        let mut old = File::open(&path).unwrap();
        let inode = old.metadata().unwrap().ino();
        write(&path, b"second", 0o600).unwrap();
        assert_eq!(fs::read(&path).unwrap(), b"second");
        assert_ne!(fs::metadata(&path).unwrap().ino(), inode);
        let mut seen = String::new();
        io::Read::read_to_string(&mut old, &mut seen).unwrap();
        assert_eq!(
            seen, "a longer first content",
            "a reader that has it open still sees the old bytes"
        );
        assert_eq!(names(directory.path()), ["a.yaml"]);
    }

    #[test]
    fn a_failed_rename_changes_nothing_and_leaves_nothing() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("a.yaml");
        fs::create_dir(&path).unwrap();
        fs::write(path.join("inside"), "x").unwrap();
        assert!(write(&path, b"bytes", 0o600).is_err());
        assert_eq!(names(directory.path()), ["a.yaml"]);
        assert_eq!(names(&path), ["inside"]);
    }

    #[test]
    fn a_failure_half_way_leaves_the_old_file_and_no_temporary() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("a.yaml");
        fs::write(&path, "old").unwrap();
        let error = replace(&path, 0o600, |file| {
            file.write_all(b"ne")?;
            assert_eq!(
                names(directory.path()).len(),
                2,
                "the new content lies beside the old file"
            );
            Err(io::ErrorKind::StorageFull.into())
        })
        .unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::StorageFull);
        assert_eq!(fs::read(&path).unwrap(), b"old");
        assert_eq!(names(directory.path()), ["a.yaml"]);
    }

    #[test]
    fn while_it_is_written_nobody_else_can_read_it() {
        let directory = tempfile::tempdir().unwrap();
        replace(&directory.path().join("key"), 0o644, |file| {
            let metadata = file.metadata()?;
            assert_eq!(metadata.mode() & 0o077, 0);
            assert!(names(directory.path())[0].starts_with(".key."));
            Ok(())
        })
        .unwrap();
    }

    #[test]
    fn readers_see_the_old_or_the_new_bytes_and_nothing_between() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("a.yaml");
        write(&path, &[b'0'; 100_000], 0o600).unwrap();
        let stop = std::sync::atomic::AtomicBool::new(false);
        std::thread::scope(|scope| {
            let reader = scope.spawn(|| {
                let mut reads = 0;
                while !stop.load(Ordering::Relaxed) {
                    let bytes = fs::read(&path).unwrap();
                    assert_eq!(bytes.len(), 100_000);
                    assert!(bytes.iter().all(|byte| *byte == bytes[0]));
                    reads += 1;
                }
                reads
            });
            for round in 0..20u8 {
                write(&path, &[b'0' + round; 100_000], 0o600).unwrap();
            }
            stop.store(true, Ordering::Relaxed);
            assert!(reader.join().unwrap() > 0);
        });
    }

    #[test]
    fn a_missing_directory_and_a_path_without_a_name_are_errors() {
        let directory = tempfile::tempdir().unwrap();
        let error = write(&directory.path().join("no/a.yaml"), b"x", 0o600).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::NotFound);
        for path in ["/", "..", ""] {
            assert!(write(Path::new(path), b"x", 0o600).is_err(), "{path:?}");
        }
    }

    #[test]
    fn the_owner_is_kept_when_it_is_our_own() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("a");
        let own = fs::metadata(directory.path()).unwrap();
        write_as(
            &path,
            b"x",
            0o640,
            Some(Owner {
                user: own.uid(),
                group: own.gid(),
            }),
        )
        .unwrap();
        let metadata = fs::metadata(&path).unwrap();
        assert_eq!(
            (metadata.uid(), metadata.gid(), metadata.mode() & 0o7777),
            (own.uid(), own.gid(), 0o640)
        );
    }

    #[test]
    fn a_symbolic_link_is_replaced_and_its_target_stays() {
        let directory = tempfile::tempdir().unwrap();
        let (target, link) = (directory.path().join("target"), directory.path().join("link"));
        fs::write(&target, "old").unwrap();
        std::os::unix::fs::symlink(&target, &link).unwrap();
        write(&link, b"new", 0o600).unwrap();
        assert_eq!(fs::read(&target).unwrap(), b"old");
        assert!(!fs::symlink_metadata(&link).unwrap().is_symlink());
    }

    #[test]
    fn removing_twice_is_no_error() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("a");
        write(&path, b"x", 0o600).unwrap();
        remove(&path).unwrap();
        remove(&path).unwrap();
        assert_eq!(names(directory.path()).len(), 0);
    }
}
