//! Files that are there whole or not at all, also after a power cut.

use std::{
    fs::{self, File, OpenOptions},
    io::{self, Write},
    path::{Path, PathBuf},
    process,
    sync::atomic::{AtomicU32, Ordering},
    time::{Duration, SystemTime},
};

/// Owner of a file, as numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Owner {
    /// User ID.
    pub user: u32,
    /// Group ID.
    pub group: u32,
}

/// How a file is to lie there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Attributes {
    /// Permission bits, set exactly, whatever the umask is.
    pub mode: u32,
    /// Its owner; whoever we are when absent. Setting another one needs privileges.
    pub owner: Option<Owner>,
    /// Time of its last change; now when absent.
    pub modified: Option<SystemTime>,
}

impl Attributes {
    /// Ours, changed now, with these permission bits.
    #[must_use]
    pub fn mode(mode: u32) -> Self {
        Self {
            mode,
            owner: None,
            modified: None,
        }
    }
}

/// What a killed process left half written is taken away by the next write of the same file when it is older than this. No
/// write takes so long.
const LEFT_OVER: Duration = Duration::from_secs(600);

/// Puts `bytes` at `path` in one step: a reader sees the old content or the new one, never a part.
///
/// Written under a name that starts with a dot (the kubelet ignores those in its manifest directory) in the same
/// directory, made durable, renamed, and the directory made durable. A symbolic link at `path` is replaced by a file.
///
/// # Errors
/// Any error of the file system. `path` is then as it was, except where only the last step (making the rename durable)
/// failed; no temporary file stays behind.
pub fn write(path: &Path, bytes: &[u8], attributes: Attributes) -> io::Result<()> {
    replace(path, attributes.mode, |file| {
        file.write_all(bytes)?;
        set_owner_and_mode(file, attributes)?;
        match attributes.modified {
            Some(modified) => file.set_times(fs::FileTimes::new().set_modified(modified)),
            None => Ok(()),
        }
    })
}

fn replace(path: &Path, mode: u32, fill: impl FnOnce(&mut File) -> io::Result<()>) -> io::Result<()> {
    let directory = match path.parent() {
        Some(parent) if !parent.as_os_str().is_empty() => parent,
        Some(_) => Path::new("."),
        None => return Err(io::Error::new(io::ErrorKind::InvalidInput, "the path names no file")),
    };
    if let Some(oldest) = SystemTime::now().checked_sub(LEFT_OVER) {
        remove_left_over(directory, path, oldest);
    }
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

/// Removes what writers of `path` that were killed have left beside it, however short ago: for the only writer of `path`, when
/// it starts. What cannot be removed stays; nothing of it has ever had the file's name.
pub fn remove_left_overs(path: &Path) {
    let directory = match path.parent() {
        Some(parent) if !parent.as_os_str().is_empty() => parent,
        _ => Path::new("."),
    };
    // a clock that was set back must not keep one
    remove_left_over(
        directory,
        path,
        SystemTime::now() + Duration::from_secs(u64::from(u32::MAX)),
    );
}

/// A temporary file that is removed unless it got its real name.
struct Temporary(PathBuf);

impl Drop for Temporary {
    fn drop(&mut self) {
        // The error that brought us here is the one to report.
        let _ = fs::remove_file(&self.0);
    }
}

/// Takes away what killed processes left of earlier writes of `path` before `oldest`. It may be a key; that it is still there
/// is no reason to write nothing.
fn remove_left_over(directory: &Path, path: &Path, oldest: SystemTime) {
    let (Some(name), Ok(entries)) = (path.file_name().and_then(|name| name.to_str()), fs::read_dir(directory)) else {
        return;
    };
    for entry in entries.flatten() {
        let is_old = || entry.metadata().is_ok_and(|metadata| changed(&metadata) < oldest);
        if entry
            .file_name()
            .to_str()
            .is_some_and(|found| is_temporary_of(found, name))
            && is_old()
        {
            let _ = fs::remove_file(entry.path());
        }
    }
}

/// How a file lies there, as far as the system knows such things: on Windows all but times and size is 0.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Facts {
    /// Permission bits.
    pub mode: u32,
    /// User who owns it.
    pub user: u32,
    /// Group that owns it.
    pub group: u32,
    /// Number of the inode.
    pub inode: u64,
    /// When its content was last changed, nanoseconds since the epoch.
    pub modified_ns: i128,
    /// When anything about it was last changed, nanoseconds since the epoch.
    pub changed_ns: i128,
}

impl Facts {
    /// What `metadata` says.
    #[cfg(unix)]
    #[must_use]
    pub fn of(metadata: &fs::Metadata) -> Self {
        use std::os::unix::fs::MetadataExt;
        let nanoseconds =
            |seconds: i64, nanoseconds: i64| i128::from(seconds) * 1_000_000_000 + i128::from(nanoseconds);
        Self {
            mode: metadata.mode() & 0o7777,
            user: metadata.uid(),
            group: metadata.gid(),
            inode: metadata.ino(),
            modified_ns: nanoseconds(metadata.mtime(), metadata.mtime_nsec()),
            changed_ns: nanoseconds(metadata.ctime(), metadata.ctime_nsec()),
        }
    }

    /// What `metadata` says.
    #[cfg(not(unix))]
    #[must_use]
    pub fn of(metadata: &fs::Metadata) -> Self {
        let since = metadata
            .modified()
            .ok()
            .and_then(|time| time.duration_since(SystemTime::UNIX_EPOCH).ok());
        let modified_ns = since
            .and_then(|since| i128::try_from(since.as_nanos()).ok())
            .unwrap_or_default();
        Self {
            modified_ns,
            changed_ns: modified_ns,
            ..Self::default()
        }
    }
}

/// When the file was last touched in any way. The time of its content may be one that was set: see [`Attributes`].
#[cfg(unix)]
fn changed(metadata: &fs::Metadata) -> SystemTime {
    let seconds = u64::try_from(std::os::unix::fs::MetadataExt::ctime(metadata)).unwrap_or_default();
    SystemTime::UNIX_EPOCH + Duration::from_secs(seconds)
}

#[cfg(not(unix))]
fn changed(metadata: &fs::Metadata) -> SystemTime {
    metadata.modified().unwrap_or_else(|_| SystemTime::now())
}

/// Whether `found` is a name that [`create_temporary`] gives to a file that will be `name`.
fn is_temporary_of(found: &str, name: &str) -> bool {
    let numbers = found
        .strip_prefix('.')
        .and_then(|rest| rest.strip_prefix(name))
        .and_then(|rest| rest.strip_prefix('.'))
        .and_then(|rest| rest.strip_suffix(".tmp"))
        .and_then(|rest| rest.split_once('-'));
    let is_number = |text: &str| !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
    numbers.is_some_and(|(process, count)| is_number(process) && is_number(count))
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
fn set_owner_and_mode(file: &File, attributes: Attributes) -> io::Result<()> {
    use std::os::unix::fs::{PermissionsExt, fchown};
    // The owner first: changing it clears set-user-ID bits.
    if let Some(owner) = attributes.owner {
        fchown(file, Some(owner.user), Some(owner.group))?;
    }
    file.set_permissions(fs::Permissions::from_mode(attributes.mode))
}

#[cfg(not(unix))]
fn set_owner_and_mode(_: &File, _: Attributes) -> io::Result<()> {
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
            write(&path, b"bytes", Attributes::mode(mode)).unwrap();
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
        write(&path, b"a longer first content", Attributes::mode(0o644)).unwrap();
        let mut old = File::open(&path).unwrap();
        let inode = old.metadata().unwrap().ino();
        write(&path, b"second", Attributes::mode(0o600)).unwrap();
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
        assert!(write(&path, b"bytes", Attributes::mode(0o600)).is_err());
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
        write(&path, &[b'0'; 100_000], Attributes::mode(0o600)).unwrap();
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
                write(&path, &[b'0' + round; 100_000], Attributes::mode(0o600)).unwrap();
            }
            stop.store(true, Ordering::Relaxed);
            assert!(reader.join().unwrap() > 0);
        });
    }

    #[test]
    fn a_missing_directory_and_a_path_without_a_name_are_errors() {
        let directory = tempfile::tempdir().unwrap();
        let error = write(&directory.path().join("no/a.yaml"), b"x", Attributes::mode(0o600)).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::NotFound);
        for path in ["/", "..", ""] {
            assert!(
                write(Path::new(path), b"x", Attributes::mode(0o600)).is_err(),
                "{path:?}"
            );
        }
    }

    #[test]
    fn the_owner_is_kept_when_it_is_our_own() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("a");
        let own = fs::metadata(directory.path()).unwrap();
        let owner = Owner {
            user: own.uid(),
            group: own.gid(),
        };
        let attributes = Attributes {
            owner: Some(owner),
            ..Attributes::mode(0o640)
        };
        write(&path, b"x", attributes).unwrap();
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
        write(&link, b"new", Attributes::mode(0o600)).unwrap();
        assert_eq!(fs::read(&target).unwrap(), b"old");
        assert!(!fs::symlink_metadata(&link).unwrap().is_symlink());
    }

    #[test]
    fn the_time_of_the_change_is_kept_to_the_nanosecond() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("a");
        let modified = SystemTime::UNIX_EPOCH + Duration::new(1_700_000_000, 123_456_789);
        let attributes = Attributes {
            modified: Some(modified),
            ..Attributes::mode(0o600)
        };
        write(&path, b"x", attributes).unwrap();
        assert_eq!(fs::metadata(&path).unwrap().modified().unwrap(), modified);
        write(&path, b"x", Attributes::mode(0o600)).unwrap();
        assert!(fs::metadata(&path).unwrap().modified().unwrap() > modified);
    }

    #[test]
    fn what_a_killed_process_left_goes_with_time_and_nothing_else_does() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("a");
        let others = [
            ".a.1-x.tmp",
            ".a.1-2.tmpx",
            ".a.-2.tmp",
            ".a.yaml.1-2.tmp",
            ".b.1-2.tmp",
            "a",
            "a.1-2.tmp",
        ];
        for name in others.iter().chain(&[".a.1-2.tmp", ".a.2-1.tmp"]) {
            fs::write(directory.path().join(name), "x").unwrap();
        }
        write(&path, b"x", Attributes::mode(0o600)).unwrap();
        assert_eq!(names(directory.path()).len(), 9, "they are young");
        remove_left_over(directory.path(), &path, SystemTime::now() + LEFT_OVER);
        let mut expected = others;
        expected.sort_unstable();
        assert_eq!(names(directory.path()), expected);
        fs::write(directory.path().join(".a.3-4.tmp"), "x").unwrap();
        remove_left_overs(&path);
        assert_eq!(names(directory.path()), expected, "the only writer does not wait");
    }

    #[test]
    fn removing_twice_is_no_error() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("a");
        write(&path, b"x", Attributes::mode(0o600)).unwrap();
        remove(&path).unwrap();
        remove(&path).unwrap();
        assert_eq!(names(directory.path()).len(), 0);
    }
}
