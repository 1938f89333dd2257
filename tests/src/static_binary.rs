//! The plugin as it lies on nodes: one statically linked file.

use std::{
    env, fs,
    path::{Path, PathBuf},
    process::Command,
    time::Duration,
};

use crate::{
    cache::say,
    command,
    error::{Context, Error, Result},
};

/// The workspace's directory.
#[must_use]
pub fn workspace() -> PathBuf {
    let here = Path::new(env!("CARGO_MANIFEST_DIR"));
    here.parent().unwrap_or(here).to_owned()
}

/// Builds `kubectl-selfhost` statically linked and optimised, and returns its path. Quick when nothing has changed.
///
/// # Errors
/// It does not build, or the file asks for a dynamic linker.
pub fn build_static() -> Result<PathBuf> {
    build_static_of("kubectl-selfhost")
}

/// The same for any of the plugins.
///
/// # Errors
/// As [`build_static`].
pub fn build_static_of(package: &str) -> Result<PathBuf> {
    let triple = format!("{}-unknown-linux-gnu", env::consts::ARCH);
    let target =
        env::var_os("CARGO_TARGET_DIR").map_or_else(|| workspace().join("target"), |dir| workspace().join(dir));
    // A directory of its own: other flags for the compiler would make cargo build everything anew each time.
    let target = target.join("static");
    let what = format!("build a static {package}");
    let what = what.as_str();
    let mut cargo = Command::new(env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    cargo
        .current_dir(workspace())
        .args([
            "build",
            "--release",
            "--quiet",
            "--package",
            package,
            "--target",
            &triple,
        ])
        .arg("--target-dir")
        .arg(&target)
        .env("RUSTFLAGS", "-C target-feature=+crt-static");
    if !target.exists() {
        say("building the plugin statically linked and optimised: some minutes the first time");
    }
    command::run(&mut cargo, what, Duration::from_secs(1800))?.checked(what)?;
    let binary = target.join(triple).join("release").join(package);
    match interpreter(&binary)? {
        None => Ok(binary),
        Some(linker) => Err(Error::new(what, format!("{} asks for the dynamic linker {linker}", binary.display()))
            .hint("check that RUSTFLAGS has an effect: a `build.rustflags` or `target.*.rustflags` of cargo's configuration may be in its way")),
    }
}

/// The dynamic linker that an ELF file asks for; `None` for one that is statically linked.
///
/// # Errors
/// The file cannot be read, or is no 64-bit little-endian ELF file.
pub fn interpreter(file: &Path) -> Result<Option<String>> {
    let bytes = fs::read(file).what(|| format!("read {}", file.display()))?;
    interpreter_of(&bytes).ok_or_else(|| {
        Error::new(
            format!("read {}", file.display()),
            "this is no 64-bit little-endian ELF file",
        )
    })
}

/// Field offsets are those of `Elf64_Ehdr` and `Elf64_Phdr`, see elf(5).
fn interpreter_of(bytes: &[u8]) -> Option<Option<String>> {
    const INTERPRETER: u64 = 3;
    let number = |at: usize, width: usize| -> Option<u64> {
        Some(
            bytes
                .get(at..at.checked_add(width)?)?
                .iter()
                .rev()
                .fold(0, |n, b| n << 8 | u64::from(*b)),
        )
    };
    let index = |at: usize| usize::try_from(number(at, 8)?).ok();
    if bytes.get(..6)? != b"\x7fELF\x02\x01" {
        return None;
    }
    let (table, size, count) = (index(32)?, number(54, 2)?, number(56, 2)?);
    for entry in 0..count {
        let header = table.checked_add(usize::try_from(entry * size).ok()?)?;
        if number(header, 4)? == INTERPRETER {
            let (from, length) = (index(header + 8)?, index(header + 32)?);
            let name = bytes.get(from..from.checked_add(length)?)?;
            return Some(Some(String::from_utf8_lossy(name).trim_end_matches('\0').to_owned()));
        }
    }
    Some(None)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_dynamically_linked_program_names_its_linker() {
        // The test itself is one, as everything is that cargo builds for a GNU target by default.
        let linker = interpreter(&env::current_exe().unwrap()).unwrap().unwrap();
        assert!(linker.contains("ld-linux"), "{linker}");
    }

    #[test]
    fn what_is_no_program_is_an_error() {
        assert!(
            interpreter(
                Path::new(file!())
                    .file_name()
                    .map(|f| Path::new(env!("CARGO_MANIFEST_DIR")).join("src").join(f))
                    .as_deref()
                    .unwrap()
            )
            .is_err()
        );
        assert_eq!(interpreter_of(b"\x7fELF\x02\x01"), None, "cut");
        assert_eq!(interpreter_of(b""), None);
    }
}
