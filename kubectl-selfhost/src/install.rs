//! Our files on this node: the executable, the directory of the guard's state, the guard's manifest.

use crate::guard_manifest::{GuardPlace, guard_pod, last_known_good_after};
use crate::local_node::LocalNode;
use crate::manifest::sha256_hex;
use crate::names::{BIN_DIR, BIN_NAME, GUARD, STATE_DIR};
use crate::node::guard::files::{self, Attributes};
use shared::{Context, Error, Result};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use std::time::Duration;

/// An executable that nodes can run.
#[derive(Clone, Debug)]
pub struct NodeBinary {
    /// Its bytes.
    pub bytes: Arc<Vec<u8>>,
    /// Start of its SHA-256: the name of its directory.
    pub build: String,
}

impl NodeBinary {
    /// This very executable, on the node itself.
    ///
    /// # Errors
    /// It cannot be read, or it is not statically linked: the images of the components have no libraries.
    pub fn of_this_process() -> Result<Self> {
        // the link leads to the file wherever it lies, also for a process that has changed its root directory
        Self::read(Path::new(OWN_EXECUTABLE), std::env::consts::ARCH)
    }

    /// The executable for a Linux node of that architecture, as the Node names it (`amd64`, `arm64`): the file of
    /// `--node-binary` where one is given; else this executable where it fits; else `kubectl-selfhost-linux-<architecture>`
    /// beside it, as the release archives have it.
    ///
    /// # Errors
    /// There is none, or the one that was named does not fit.
    pub fn for_node(operating_system: &str, architecture: &str, given: Option<&Path>) -> Result<Self> {
        if operating_system != "linux" {
            return Err(Error::refused(format!(
                "there is no executable for nodes that run {operating_system:?}"
            )));
        }
        if let Some(path) = given {
            return Self::read(path, architecture).map_err(|error| error.context("--node-binary"));
        }
        let own = std::env::current_exe().context("this executable cannot be found")?;
        let own_fits = cfg!(target_os = "linux")
            .then(|| Self::of_this_process().ok())
            .flatten();
        if let Some(binary) = own_fits.filter(|_| same_architecture(std::env::consts::ARCH, architecture)) {
            return Ok(binary);
        }
        let beside = own.with_file_name(format!("{BIN_NAME}-linux-{architecture}"));
        Self::read(&beside, architecture).map_err(|error| {
            error
                .context(format!(
                    "there is no executable for nodes of {operating_system}/{architecture}"
                ))
                .hint(
                    "name one by --node-binary; the release archives have one for each architecture beside the plugin",
                )
        })
    }

    fn read(path: &Path, architecture: &str) -> Result<Self> {
        let bytes = std::fs::read(path).with_context(|| format!("{} cannot be read", path.display()))?;
        check_elf(&bytes, architecture).map_err(|why| {
            Error::refused(format!(
                "{} cannot run inside the Pods of the control plane",
                path.display()
            ))
            .because(why)
            .hint("use the release archive, or build it with RUSTFLAGS=\"-C target-feature=+crt-static\" and --target")
        })?;
        let build = sha256_hex(&bytes)[..12].to_owned();
        Ok(Self {
            bytes: Arc::new(bytes),
            build,
        })
    }

    /// SHA-256 of the bytes, in hex.
    #[must_use]
    pub fn sha256(&self) -> String {
        sha256_hex(&self.bytes)
    }

    /// Where it lies on the node.
    #[must_use]
    pub fn path(&self) -> PathBuf {
        Path::new(BIN_DIR).join(&self.build).join(BIN_NAME)
    }
}

const OWN_EXECUTABLE: &str = "/proc/self/exe";

/// Whether two names mean the same kind of processor: Rust and the Go of Kubernetes have their own for each.
fn same_architecture(one: &str, other: &str) -> bool {
    elf_machine(one).is_some() && elf_machine(one) == elf_machine(other)
}

/// What the ELF header calls a kind of processor (`e_machine` of the System V ABI).
fn elf_machine(architecture: &str) -> Option<u16> {
    match architecture {
        "x86_64" | "amd64" => Some(62),
        "aarch64" | "arm64" => Some(183),
        _ => None,
    }
}

/// Whether an ELF file needs nothing but a kernel and a processor of that kind.
///
/// Reads the ELF header and the program headers (System V ABI, "Object Files"): no interpreter may be asked for.
///
/// # Errors
/// What is wrong with it, in words.
pub fn check_elf(bytes: &[u8], architecture: &str) -> std::result::Result<(), String> {
    let machine = elf_machine(architecture)
        .ok_or_else(|| format!("there is none for processors of the kind {architecture:?}"))?;
    const INTERPRETER: u32 = 3;
    let short = || "the file is cut short".to_owned();
    let half = |at: usize| {
        bytes
            .get(at..at + 2)
            .map(|b| u16::from_le_bytes([b[0], b[1]]))
            .ok_or_else(short)
    };
    if bytes.get(..6) != Some(b"\x7fELF\x02\x01") {
        return Err("it is not a 64-bit Linux executable".into());
    }
    if half(18)? != machine {
        return Err(format!("it is made for another kind of processor than {architecture}"));
    }
    let table = bytes
        .get(32..40)
        .and_then(|b| b.try_into().ok())
        .map(u64::from_le_bytes)
        .ok_or_else(short)?;
    let table = usize::try_from(table).map_err(|_| short())?;
    let (size, count) = (usize::from(half(54)?), usize::from(half(56)?));
    for n in 0..count {
        let at = table.saturating_add(n.saturating_mul(size));
        let kind = bytes
            .get(at..at.saturating_add(4))
            .and_then(|b| b.try_into().ok())
            .map(u32::from_le_bytes);
        if kind.ok_or_else(short)? == INTERPRETER {
            return Err("it is dynamically linked, and the images of the components have no libraries".into());
        }
    }
    Ok(())
}

/// Installs the executable, if it is not there already, and proves that it runs from there.
///
/// # Errors
/// It cannot be written, or the system does not let it run (noexec, an allow-list of executables).
pub fn install_binary(binary: &NodeBinary) -> Result<()> {
    let path = binary.path();
    if std::fs::read(&path).ok().as_deref() != Some(binary.bytes.as_slice()) {
        files::make_directory(Path::new(BIN_DIR), 0o755).context("the executable cannot be installed")?;
        files::make_directory(&Path::new(BIN_DIR).join(&binary.build), 0o755)
            .context("the executable cannot be installed")?;
        files::write(&path, &binary.bytes, Attributes::mode(0o755)).context("the executable cannot be installed")?;
    }
    let output = Command::new(&path).arg("--version").output().map_err(|error| {
        Error::refused(format!(
            "{} was installed, but the system does not let it run",
            path.display()
        ))
        .because(error)
        .hint("look for a noexec mount or an allow-list of executables (fapolicyd) on this node")
    })?;
    if output.status.success() {
        Ok(())
    } else {
        Err(Error::new(format!("{} does not run on this node", path.display()))
            .because(String::from_utf8_lossy(&output.stderr).trim().to_owned()))
    }
}

/// Makes the directories that the Pods of the components mount, so that a Pod that comes early finds them.
///
/// # Errors
/// Names the directory.
pub fn install_state_directory() -> Result<()> {
    files::make_directory(Path::new(STATE_DIR), 0o700).context("the state directory cannot be made")?;
    for component in crate::names::Component::ALL {
        let files = crate::node::state::ComponentFiles::new(component);
        files::make_directory(files.directory(), 0o700).context("the state directory cannot be made")?;
        files::make_directory(&files.run(), 0o755).context("the state directory cannot be made")?;
        files::make_directory(&files.notes(), crate::node::state::NOTES_MODE)
            .context("the state directory cannot be made")?;
    }
    Ok(())
}

/// Path of the guard's manifest.
#[must_use]
pub fn guard_manifest_path(node: &LocalNode) -> PathBuf {
    node.manifest_directory.join(format!("{GUARD}.yaml"))
}

/// What goes into the guard's manifest and is not found on the node.
#[derive(Clone, Copy, Debug)]
pub struct GuardSettings<'a> {
    /// Name of the Node.
    pub node_name: &'a str,
    /// An image that is on the node.
    pub image: &'a str,
    /// Build of the executable.
    pub build: &'a str,
    /// How long a template runs well before it becomes the fallback; as it is set already when absent.
    pub last_known_good_after: Option<Duration>,
}

/// Puts the guard's manifest in, if it is not there just so already, with a copy for `recover`. Returns whether it was changed.
///
/// # Errors
/// It cannot be written.
pub fn install_guard(node: &LocalNode, settings: GuardSettings<'_>) -> Result<bool> {
    let path = guard_manifest_path(node);
    let before = std::fs::read_to_string(&path)
        .or_else(|_| std::fs::read_to_string(guard_copy_path()))
        .ok()
        .and_then(|text| shared::yaml::first_document(&text).ok());
    let pod = guard_pod(GuardPlace {
        node_name: settings.node_name,
        manifest_directory: &node.manifest_directory,
        kubeconfig: &node.kubelet_kubeconfig,
        kubelet_certificates: &node.kubelet_certificates,
        image: settings.image,
        build: settings.build,
        last_known_good_after: settings
            .last_known_good_after
            .or_else(|| last_known_good_after(&before?)),
        executable_directory: directory_number(settings.build),
    });
    let text = shared::yaml::to_string(&pod)?;
    let is_there = |path: &Path| std::fs::read(path).ok().as_deref() == Some(text.as_bytes());
    let copy = guard_copy_path();
    if !is_there(&copy) {
        files::write(&copy, text.as_bytes(), Attributes::mode(0o600)).context("the guard cannot be installed")?;
    }
    if is_there(&path) {
        return Ok(false);
    }
    files::write(&path, text.as_bytes(), Attributes::mode(0o600)).context("the guard cannot be installed")?;
    Ok(true)
}

/// Path of the copy of the guard's manifest, which stays when somebody takes the manifest away.
#[must_use]
pub fn guard_copy_path() -> PathBuf {
    Path::new(STATE_DIR).join(format!("{GUARD}.yaml"))
}

/// The number of the inode of the directory that the guard mounts its executable from; 0 where there is none.
fn directory_number(build: &str) -> u64 {
    use std::os::unix::fs::MetadataExt;
    std::fs::metadata(Path::new(BIN_DIR).join(build)).map_or(0, |metadata| metadata.ino())
}

/// Takes the guard's manifest out; the kubelet ends it.
///
/// # Errors
/// It cannot be removed.
pub fn remove_guard(node: &LocalNode) -> Result<()> {
    files::remove_left_overs(&guard_manifest_path(node));
    files::remove(&guard_manifest_path(node)).context("the guard cannot be removed")
}

/// Removes everything that we installed. The guard must be gone.
///
/// # Errors
/// Names what cannot be removed.
pub fn remove_files() -> Result<()> {
    for directory in [Path::new(BIN_DIR), Path::new(STATE_DIR)] {
        match std::fs::remove_dir_all(directory) {
            Ok(()) => {}
            // a mount point of its own cannot be removed, only emptied
            Err(_) if std::fs::read_dir(directory).is_ok_and(|mut entries| entries.next().is_none()) => {}
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => {}
            Err(error) => return Err(Error::new(format!("{} cannot be removed", directory.display())).because(error)),
        }
    }
    // /opt/selfhost itself, when nothing else is in it
    if let Some(parent) = Path::new(BIN_DIR).parent() {
        let _ = std::fs::remove_dir(parent);
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::env::consts::ARCH;

    #[test]
    fn only_static_executables_of_this_machine_pass() {
        let dynamic = std::fs::read("/bin/sh").unwrap();
        assert!(check_elf(&dynamic, ARCH).unwrap_err().contains("dynamically linked"));
        assert!(check_elf(b"#!/bin/sh\n", ARCH).unwrap_err().contains("not a 64-bit"));
        assert!(check_elf(&dynamic[..60], ARCH).unwrap_err().contains("cut short"));
        let mut other = dynamic.clone();
        other[18] = 243; // RISC-V
        assert!(
            check_elf(&other, ARCH)
                .unwrap_err()
                .contains("another kind of processor")
        );
        let mut fixed = dynamic;
        // the same file without the request for an interpreter passes
        let table = usize::try_from(u64::from_le_bytes(fixed[32..40].try_into().unwrap())).unwrap();
        let (size, count) = (usize::from(fixed[54]), usize::from(fixed[56]));
        for n in 0..count {
            if fixed[table + n * size] == 3 {
                fixed[table + n * size] = 0;
            }
        }
        check_elf(&fixed, ARCH).unwrap();
        assert!(check_elf(&fixed, "riscv64").unwrap_err().contains("riscv64"));
        for (one, other, same) in [
            ("x86_64", "amd64", true),
            ("aarch64", "arm64", true),
            ("x86_64", "arm64", false),
            ("mips", "mips", false),
        ] {
            assert_eq!(same_architecture(one, other), same, "{one} {other}");
        }
    }
}
