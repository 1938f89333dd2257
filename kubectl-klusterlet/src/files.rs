//! The hub's credentials as files: a copy of the Secret in a directory.

use std::{
    fs, io,
    path::{Path, PathBuf},
};

use shared::{Error, Result, atomic_file};

use crate::{names::key, spoke::Data};

/// Names of the files that were written, one a line: only those are ever removed.
const RECORD: &str = ".written-by-kubectl-klusterlet";

/// Whether a key of a Secret can be the name of a file in the directory: no path, nothing hidden.
#[must_use]
pub fn is_file_name(name: &str) -> bool {
    !name.is_empty() && !name.starts_with('.') && !name.contains(['/', '\\', '\0']) && name.len() <= 253
}

fn failed(what: &str, path: &Path, error: &io::Error) -> Error {
    let result = Error::new(format!("cannot {what} {}", path.display())).because(error);
    match error.kind() {
        io::ErrorKind::PermissionDenied | io::ErrorKind::ReadOnlyFilesystem => {
            result.hint("give --hub-kubeconfig-dir a directory that this user may write")
        }
        _ => result,
    }
}

/// Makes the directory (mode 0700) hold exactly these keys (mode 0600), each file whole or not at all. Files whose
/// content is right are left alone; files of keys that are gone are removed; other files stay. Returns whether anything
/// changed, and the keys that cannot be files.
///
/// # Errors
/// The directory cannot be written.
pub fn dump(directory: &Path, data: &Data) -> Result<(bool, Vec<String>)> {
    make_directory(directory)?;
    let mut changed = false;
    let mut refused = Vec::new();
    let mut written = Vec::new();
    // The kubeconfig last: who sees it finds the pair that belongs to it.
    let (kubeconfig, others): (Vec<_>, Vec<_>) = data.iter().partition(|(name, _)| *name == key::KUBECONFIG);
    for (name, bytes) in others.into_iter().chain(kubeconfig) {
        if !is_file_name(name) {
            refused.push(name.clone());
            continue;
        }
        let path = directory.join(name);
        if fs::symlink_metadata(&path).is_ok_and(|metadata| metadata.is_file())
            && fs::read(&path).is_ok_and(|found| found == *bytes)
            && is_private(&path)
        {
            written.push(name.clone());
            continue;
        }
        atomic_file::write(&path, bytes, atomic_file::Attributes::mode(0o600))
            .map_err(|error| failed("write", &path, &error))?;
        written.push(name.clone());
        changed = true;
    }
    for name in recorded(directory) {
        if !data.contains_key(&name) {
            let path = directory.join(&name);
            changed |= path.exists();
            atomic_file::remove(&path).map_err(|error| failed("remove", &path, &error))?;
        }
    }
    written.sort();
    let record = directory.join(RECORD);
    let text = written.join("\n");
    if fs::read_to_string(&record).ok().as_deref() != Some(&text) {
        atomic_file::write(&record, text.as_bytes(), atomic_file::Attributes::mode(0o600))
            .map_err(|error| failed("write", &record, &error))?;
    }
    Ok((changed, refused))
}

/// Removes what [`dump`] wrote, and the directory if nothing else is in it. Whether there was anything.
///
/// # Errors
/// Something cannot be removed.
pub fn clear(directory: &Path) -> Result<bool> {
    let names = recorded(directory);
    for name in names.iter().map(String::as_str).chain([RECORD]) {
        let path = directory.join(name);
        match atomic_file::remove(&path) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(failed("remove", &path, &error)),
            _ => {}
        }
    }
    // Other files of other people keep it.
    let _ = fs::remove_dir(directory);
    Ok(!names.is_empty())
}

/// Files of the directory by the keys that matter; what is not there is left out.
#[must_use]
pub fn read(directory: &Path) -> Data {
    key::ALL
        .iter()
        .filter_map(|name| Some(((*name).to_owned(), fs::read(directory.join(name)).ok()?)))
        .collect()
}

fn recorded(directory: &Path) -> Vec<String> {
    let text = fs::read_to_string(directory.join(RECORD)).unwrap_or_default();
    text.lines()
        .filter(|name| is_file_name(name))
        .map(str::to_owned)
        .collect()
}

#[cfg(unix)]
fn make_directory(directory: &Path) -> Result<()> {
    use std::os::unix::fs::{DirBuilderExt, PermissionsExt};
    if directory.is_dir() {
        let mode = fs::metadata(directory).map(|metadata| metadata.permissions().mode() & 0o777);
        if mode.is_ok_and(|mode| mode == 0o700) {
            return Ok(());
        }
        // A directory of others that we may write (a mounted volume) is used as it is.
        let _ = fs::set_permissions(directory, fs::Permissions::from_mode(0o700));
        return Ok(());
    }
    fs::DirBuilder::new()
        .recursive(true)
        .mode(0o700)
        .create(directory)
        .map_err(|error| failed("make directory", directory, &error))
}

#[cfg(not(unix))]
fn make_directory(directory: &Path) -> Result<()> {
    fs::create_dir_all(directory).map_err(|error| failed("make directory", directory, &error))
}

#[cfg(unix)]
fn is_private(path: &Path) -> bool {
    use std::os::unix::fs::PermissionsExt;
    fs::metadata(path).is_ok_and(|metadata| metadata.permissions().mode() & 0o777 == 0o600)
}

#[cfg(not(unix))]
fn is_private(_: &Path) -> bool {
    true
}

/// Content of a small file, `None` where it cannot be read; and what tells two of its states apart without reading it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct FileMark(Option<(std::time::SystemTime, u64, PathBuf)>);

impl FileMark {
    /// Looks at it. Mounted Secrets are symbolic links whose target changes.
    #[must_use]
    pub fn of(path: &Path) -> Self {
        let look = || {
            let metadata = fs::metadata(path).ok()?;
            Some((metadata.modified().ok()?, metadata.len(), fs::canonicalize(path).ok()?))
        };
        Self(look())
    }
}

#[cfg(test)]
#[cfg(unix)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    fn data(pairs: &[(&str, &str)]) -> Data {
        pairs
            .iter()
            .map(|(name, text)| ((*name).to_owned(), text.as_bytes().to_vec()))
            .collect()
    }

    fn mode(path: &Path) -> u32 {
        fs::metadata(path).unwrap().permissions().mode() & 0o777
    }

    #[test]
    fn the_directory_holds_the_keys_and_nobody_else_may_read_them() {
        let root = tempfile::tempdir().unwrap();
        let directory = root.path().join("spoke/hub");
        let five = data(&key::ALL.map(|name| (name, name)));
        assert_eq!(dump(&directory, &five).unwrap(), (true, vec![]));
        assert_eq!(mode(&directory), 0o700);
        for name in key::ALL {
            assert_eq!(fs::read_to_string(directory.join(name)).unwrap(), name);
            assert_eq!(mode(&directory.join(name)), 0o600);
        }
        assert_eq!(
            dump(&directory, &five).unwrap(),
            (false, vec![]),
            "nothing is written when nothing changed"
        );
        assert_eq!(read(&directory), five);

        fs::set_permissions(directory.join("tls.key"), fs::Permissions::from_mode(0o644)).unwrap();
        assert!(dump(&directory, &five).unwrap().0);
        assert_eq!(mode(&directory.join("tls.key")), 0o600);
    }

    #[test]
    fn keys_that_are_gone_are_removed_and_files_of_others_stay() {
        let root = tempfile::tempdir().unwrap();
        let directory = root.path();
        fs::write(directory.join("mine"), "x").unwrap();
        dump(directory, &data(&[("a", "1"), ("b", "2")])).unwrap();
        dump(directory, &data(&[("b", "3")])).unwrap();
        assert!(!directory.join("a").exists());
        assert_eq!(fs::read_to_string(directory.join("b")).unwrap(), "3");
        assert!(directory.join("mine").exists());
        assert!(clear(directory).unwrap());
        assert!(!directory.join("b").exists() && directory.join("mine").exists());
        assert!(!clear(directory).unwrap());
    }

    #[test]
    fn no_key_leaves_the_directory() {
        let root = tempfile::tempdir().unwrap();
        let directory = root.path().join("d");
        let bad = ["../evil", "..", ".hidden", "a/b", "", "a\\b"];
        let (_, refused) = dump(&directory, &data(&bad.map(|name| (name, "x")))).unwrap();
        assert_eq!(refused.len(), bad.len());
        assert!(!root.path().join("evil").exists());
        let names: Vec<_> = fs::read_dir(&directory)
            .unwrap()
            .map(|entry| entry.unwrap().file_name())
            .collect();
        assert_eq!(names, [RECORD]);
    }

    #[test]
    fn a_symbolic_link_is_replaced_and_not_followed() {
        let root = tempfile::tempdir().unwrap();
        let target = root.path().join("target");
        fs::write(&target, "old").unwrap();
        let directory = root.path().join("d");
        fs::create_dir(&directory).unwrap();
        std::os::unix::fs::symlink(&target, directory.join("tls.key")).unwrap();
        dump(&directory, &data(&[("tls.key", "old")])).unwrap();
        assert_eq!(fs::read_to_string(&target).unwrap(), "old");
        assert!(fs::symlink_metadata(directory.join("tls.key")).unwrap().is_file());
    }

    #[test]
    fn a_changed_file_is_noticed() {
        let root = tempfile::tempdir().unwrap();
        let path = root.path().join("f");
        let absent = FileMark::of(&path);
        assert_eq!(absent, FileMark::default());
        fs::write(&path, "a").unwrap();
        let first = FileMark::of(&path);
        assert_ne!(first, absent);
        assert_eq!(first, FileMark::of(&path));
        fs::write(&path, "bb").unwrap();
        assert_ne!(FileMark::of(&path), first);
    }
}
