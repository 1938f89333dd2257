//! The files of a Pod's volumes, as its own processes see them.
//!
//! They are read through `/proc/PID/root`: that needs no mount of the guard's more and no right but `SYS_PTRACE`, which it has.
//! No path leads out of the container, and none out of the volume; what is read is limited in size, number and depth.

use crate::certs_in_secrets::Content;
use crate::last_known_good::FileVolume;
use crate::manifest::sha256_hex;
use crate::node::process::{Owner, PodContainers};
use rustix::fs::{Dir, FileType, Mode, OFlags, ResolveFlags, fstat, open, openat2};
use std::collections::BTreeMap;
use std::fs::File;
use std::io::{self, Read};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};

/// Largest size of all files of a component, in bytes: some Secrets (1 MiB each) and ConfigMaps.
pub const MOST_BYTES: u64 = 4 << 20;
/// Most files of a component.
pub const MOST_FILES: usize = 256;
/// Deepest directory of a volume.
pub const DEEPEST: usize = 8;

/// A file that is to lie on the node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NodeFile {
    /// What is in it. Never printed.
    pub content: Content,
    /// Whether its owner may execute it.
    pub executable: bool,
    /// Whose it is: the user and the group as which the container runs.
    pub owner: Owner,
}

/// Files of a component's volumes by `VOLUME/PATH`, and the owners of the volumes' directories.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct VolumeFiles {
    /// The files.
    pub files: BTreeMap<PathBuf, NodeFile>,
    /// The volumes, with the owner of their directories.
    pub volumes: BTreeMap<String, Owner>,
}

impl VolumeFiles {
    /// SHA-256 over names, owners and contents. Lengths stand between them, so that nothing can move from one to the next.
    #[must_use]
    pub fn digest(&self) -> String {
        let mut bytes = Vec::new();
        for (volume, owner) in &self.volumes {
            bytes.extend(format!("{volume} {} {}\n", owner.user, owner.group).into_bytes());
        }
        for (path, file) in &self.files {
            let path = path.to_string_lossy();
            let (owner, sha256) = (file.owner, file.content.sha256());
            let line = format!(
                "{} {path} {} {} {} {sha256}\n",
                path.len(),
                owner.user,
                owner.group,
                file.executable
            );
            bytes.extend(line.into_bytes());
        }
        sha256_hex(&bytes)
    }
}

/// Reads the files of these volumes in the containers of one Pod.
///
/// # Errors
/// What cannot be read or is too much, with the volume's name.
pub fn read(volumes: &[FileVolume], containers: &PodContainers) -> io::Result<VolumeFiles> {
    let mut reader = Reader::default();
    for volume in volumes {
        reader
            .volume(volume, containers)
            .map_err(|error| io::Error::new(error.kind(), format!("volume {}: {error}", volume.name)))?;
    }
    Ok(reader.found)
}

#[derive(Default)]
struct Reader {
    found: VolumeFiles,
    bytes: u64,
}

fn refused(what: impl Into<String>) -> io::Error {
    io::Error::other(what.into())
}

impl Reader {
    fn volume(&mut self, volume: &FileVolume, containers: &PodContainers) -> io::Result<()> {
        let mut whose: Option<Owner> = None;
        for mount in &volume.mounts {
            // an init container has ended: what it saw the others may see too
            let Some(container) = containers.get(&mount.container) else {
                continue;
            };
            if *whose.get_or_insert(container.owner) != container.owner {
                return Err(refused(
                    "containers of different users see it, and its files can have one owner only",
                ));
            }
            let root = open_root(&container.root)?;
            let place = Place {
                owner: container.owner,
                path: PathBuf::from(&volume.name).join(mount.sub_path.as_deref().unwrap_or_default()),
            };
            let seen = within_root(&root, Path::new(&mount.path))?;
            match FileType::from_raw_mode(fstat(&seen)?.st_mode) {
                FileType::Directory => self.directory(seen.as_fd(), &place, 0)?,
                FileType::RegularFile if mount.sub_path.is_some() => self.file(seen, &place)?,
                _ => return Err(refused("is neither a directory nor a file")),
            }
        }
        let owner = whose.ok_or_else(|| refused("no running container sees it"))?;
        self.found.volumes.insert(volume.name.clone(), owner);
        Ok(())
    }

    fn directory(&mut self, directory: BorrowedFd<'_>, place: &Place, depth: usize) -> io::Result<()> {
        if depth > DEEPEST {
            return Err(refused(format!("is deeper than {DEEPEST} directories")));
        }
        for entry in Dir::read_from(directory)? {
            let entry = entry?;
            let Ok(name) = entry.file_name().to_str() else {
                return Err(refused("has a name that is not UTF-8"));
            };
            // the kubelet's own, behind which the present version lies (k8s.io/kubernetes `pkg/volume/util/atomic_writer.go`)
            if name.starts_with("..") || name == "." {
                continue;
            }
            let found = within_volume(directory, Path::new(name))?;
            let place = Place {
                path: place.path.join(name),
                ..*place
            };
            match FileType::from_raw_mode(fstat(&found)?.st_mode) {
                FileType::Directory => self.directory(found.as_fd(), &place, depth + 1)?,
                FileType::RegularFile => self.file(found, &place)?,
                _ => return Err(refused(format!("{name} is neither a directory nor a file"))),
            }
        }
        Ok(())
    }

    fn file(&mut self, file: OwnedFd, place: &Place) -> io::Result<()> {
        let executable = fstat(&file)?.st_mode & 0o100 != 0;
        let room = MOST_BYTES - self.bytes.min(MOST_BYTES);
        let mut content = Vec::new();
        File::from(file).take(room + 1).read_to_end(&mut content)?;
        self.bytes += content.len() as u64;
        if self.bytes > MOST_BYTES || self.found.files.len() >= MOST_FILES {
            return Err(refused(format!(
                "the volumes hold more than {MOST_BYTES} bytes, or more than {MOST_FILES} files"
            )));
        }
        let file = NodeFile {
            content: Content::new(content),
            executable,
            owner: place.owner,
        };
        self.found.files.insert(place.path.clone(), file);
        Ok(())
    }
}

/// Where something is to lie, and whose.
struct Place {
    owner: Owner,
    path: PathBuf,
}

/// The root directory of a container. `/proc/PID/root` is a link that the kernel itself follows.
fn open_root(root: &Path) -> io::Result<OwnedFd> {
    Ok(open(
        root,
        OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC,
        Mode::empty(),
    )?)
}

/// Opens a path inside a container: links lead nowhere but inside it.
fn within_root(root: &OwnedFd, path: &Path) -> io::Result<OwnedFd> {
    let resolve = ResolveFlags::IN_ROOT | ResolveFlags::NO_MAGICLINKS;
    Ok(openat2(root, path, OPEN, Mode::empty(), resolve)?)
}

/// Opens a path inside a volume: links lead nowhere but inside it, and no other mount is entered.
fn within_volume(directory: BorrowedFd<'_>, path: &Path) -> io::Result<OwnedFd> {
    let resolve = ResolveFlags::BENEATH | ResolveFlags::NO_MAGICLINKS | ResolveFlags::NO_XDEV;
    Ok(openat2(directory, path, OPEN, Mode::empty(), resolve)?)
}

/// A pipe that nobody writes must not hold the guard up.
const OPEN: OFlags = OFlags::RDONLY
    .union(OFlags::CLOEXEC)
    .union(OFlags::NONBLOCK)
    .union(OFlags::NOCTTY);

#[cfg(test)]
mod tests {
    use super::*;
    use crate::last_known_good::FileMount;
    use crate::node::process::PodContainer;
    use std::fs;
    use std::os::unix::fs::symlink;

    const OWNER: Owner = Owner { user: 999, group: 998 };

    fn mount(path: &str, sub_path: Option<&str>) -> FileVolume {
        FileVolume {
            name: "v".into(),
            mounts: vec![FileMount {
                container: "c".into(),
                path: path.into(),
                sub_path: sub_path.map(str::to_owned),
            }],
        }
    }

    fn containers(root: &Path) -> PodContainers {
        let container = PodContainer {
            root: root.to_owned(),
            owner: OWNER,
        };
        PodContainers::from([("c".to_owned(), container)])
    }

    /// A container's root with a Secret's volume as the kubelet lays it out.
    fn root() -> tempfile::TempDir {
        let root = tempfile::tempdir().unwrap();
        let volume = root.path().join("etc/v");
        fs::create_dir_all(volume.join("..2026_1/dir")).unwrap();
        fs::write(volume.join("..2026_1/key"), b"secret").unwrap();
        fs::write(volume.join("..2026_1/dir/deep"), b"deep").unwrap();
        symlink("..2026_1", volume.join("..data")).unwrap();
        symlink("..data/key", volume.join("key")).unwrap();
        symlink("..data/dir", volume.join("dir")).unwrap();
        root
    }

    #[test]
    fn a_volume_is_read_as_the_container_sees_it() {
        let root = root();
        let found = read(&[mount("/etc/v", None)], &containers(root.path())).unwrap();
        let paths: Vec<&str> = found.files.keys().map(|path| path.to_str().unwrap()).collect();
        assert_eq!(paths, ["v/dir/deep", "v/key"]);
        assert_eq!(found.files[Path::new("v/key")].content.bytes(), b"secret");
        assert_eq!(found.files[Path::new("v/key")].owner, OWNER);
        assert_eq!(found.volumes["v"], OWNER);
        assert!(!format!("{found:?}").contains("secret"));
        let one = read(&[mount("/etc/v/key", Some("key"))], &containers(root.path())).unwrap();
        assert_eq!(one.files.keys().collect::<Vec<_>>(), [Path::new("v/key")]);
        assert_ne!(one.digest(), found.digest());
        assert_eq!(
            found.digest(),
            read(&[mount("/etc/v", None)], &containers(root.path()))
                .unwrap()
                .digest()
        );
    }

    #[test]
    fn no_link_leads_out_of_the_volume() {
        let outside = tempfile::tempdir().unwrap();
        fs::write(outside.path().join("shadow"), b"x").unwrap();
        for target in [
            outside.path().join("shadow").to_str().unwrap(),
            "../../../../../../../../etc/passwd",
            "/etc/passwd",
            "../other",
            "/proc/self/root/etc/passwd",
        ] {
            let root = root();
            fs::write(root.path().join("etc/other"), b"x").unwrap();
            symlink(target, root.path().join("etc/v/link")).unwrap();
            let error = read(&[mount("/etc/v", None)], &containers(root.path())).expect_err(target);
            assert!(error.to_string().starts_with("volume v: "), "{error}");
        }
        // the path of the mount itself stays inside the container
        let root = root();
        symlink("/etc/v", root.path().join("way")).unwrap();
        assert_eq!(
            read(&[mount("/way", None)], &containers(root.path()))
                .unwrap()
                .files
                .len(),
            2
        );
        read(&[mount("/../../../etc/passwd", Some("p"))], &containers(root.path())).unwrap_err();
    }

    #[test]
    fn too_much_and_too_deep_is_refused() {
        let root = root();
        let volume = root.path().join("etc/v");
        fs::write(volume.join("big"), vec![0; usize::try_from(MOST_BYTES).unwrap()]).unwrap();
        read(&[mount("/etc/v", None)], &containers(root.path())).unwrap_err();
        fs::remove_file(volume.join("big")).unwrap();
        for n in 0..MOST_FILES {
            fs::write(volume.join(n.to_string()), b"").unwrap();
        }
        read(&[mount("/etc/v", None)], &containers(root.path())).unwrap_err();
        let root = self::root();
        fs::create_dir_all(root.path().join("etc/v/1/2/3/4/5/6/7/8/9")).unwrap();
        read(&[mount("/etc/v", None)], &containers(root.path())).unwrap_err();
        let root = self::root();
        rustix::fs::mknodat(
            rustix::fs::CWD,
            root.path().join("etc/v/pipe"),
            FileType::Fifo,
            Mode::RUSR,
            0,
        )
        .unwrap();
        read(&[mount("/etc/v", None)], &containers(root.path())).unwrap_err();
    }

    #[test]
    fn a_volume_that_nobody_or_different_users_see_is_refused() {
        let root = root();
        read(&[mount("/etc/v", None)], &PodContainers::new()).unwrap_err();
        let mut volume = mount("/etc/v", None);
        volume.mounts.push(FileMount {
            container: "d".into(),
            ..volume.mounts[0].clone()
        });
        let mut both = containers(root.path());
        both.insert(
            "d".into(),
            PodContainer {
                root: root.path().to_owned(),
                owner: Owner { user: 0, group: 0 },
            },
        );
        let error = read(&[volume], &both).unwrap_err();
        assert!(error.to_string().contains("different users"), "{error}");
    }
}
