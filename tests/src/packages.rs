//! What the lab needs from the machine: root, Go, and some packages, which it installs itself on Debian and Ubuntu.

use std::{
    env, fs,
    io::Write,
    path::{Path, PathBuf},
    process::Command,
    time::Duration,
};

use crate::{
    command,
    error::{Context, Error, Result},
    static_binary,
};

/// Programs, and the Debian package that holds each.
const PROGRAMS: [(&str, &str); 8] = [
    ("runc", "runc"),
    ("ip", "iproute2"),
    ("iptables", "iptables"),
    ("conntrack", "conntrack"),
    ("busybox", "busybox-static"),
    ("nsenter", "util-linux"),
    ("unshare", "util-linux"),
    ("setsid", "util-linux"),
];

/// Where programs are looked for: administrators' directories too, which a user's `PATH` may lack.
pub const SYSTEM_PATH: &str = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";

/// The program's path.
#[must_use]
pub fn find(program: &str) -> Option<PathBuf> {
    let path = env::var("PATH").unwrap_or_default();
    path.split(':')
        .chain(SYSTEM_PATH.split(':'))
        .filter(|dir| !dir.is_empty())
        .map(|dir| Path::new(dir).join(program))
        .find(|file| file.is_file())
}

/// Fails where the process is not root.
///
/// # Errors
/// It is not root.
pub fn require_root(what: &str) -> Result<()> {
    if rustix::process::geteuid().is_root() {
        return Ok(());
    }
    Err(Error::new(
        what,
        "nodes are made of namespaces and mounts, which only root may make",
    )
    .hint("run it as root, for example in a root shell (sudo -i), or in a throw-away virtual machine"))
}

/// The statically linked busybox, from which the image of that name is made.
///
/// # Errors
/// There is none.
pub fn static_busybox() -> Result<PathBuf> {
    let candidates = SYSTEM_PATH.split(':').map(|dir| Path::new(dir).join("busybox"));
    candidates
        .filter(|file| file.is_file())
        .find(|file| matches!(static_binary::interpreter(file), Ok(None)))
        .ok_or_else(|| {
            Error::new("find a statically linked busybox", "there is none on this machine")
                .hint("install the package busybox-static")
        })
}

fn missing() -> Vec<&'static str> {
    let mut packages: Vec<_> = PROGRAMS
        .iter()
        .filter(|(program, _)| find(program).is_none() || (*program == "busybox" && static_busybox().is_err()))
        .map(|(_, package)| *package)
        .collect();
    packages.dedup();
    packages
}

/// Makes sure that the programs are there. Installs what is missing where `apt-get` can.
///
/// # Errors
/// Something is missing and cannot be installed.
pub fn ensure() -> Result<()> {
    let packages = missing();
    if packages.is_empty() {
        return Ok(());
    }
    let list = packages.join(" ");
    let Some(apt) = find("apt-get") else {
        return Err(Error::new(
            "prepare the machine",
            format!("these packages are missing: {list} (Debian's names)"),
        )
        .hint("install them with your system's package manager; busybox must be statically linked"));
    };
    let remedy = format!("install them by hand: apt-get install --no-install-recommends {list}");
    let _ = writeln!(std::io::stderr(), "lab: installing packages that are missing: {list}");
    let apt_get = |args: &[&str]| {
        let mut command = Command::new(&apt);
        command
            .env("DEBIAN_FRONTEND", "noninteractive")
            .args(args)
            .args(if args[0] == "install" { &packages[..] } else { &[] });
        command::run(&mut command, &format!("apt-get {}", args[0]), Duration::from_secs(600))
            .and_then(|o| o.checked(&format!("apt-get {}", args[0])))
            .map_err(|e| e.hint(&remedy))
    };
    apt_get(&["update", "-q"])?;
    apt_get(&["install", "-yq", "--no-install-recommends"])?;
    let still = missing();
    if still.is_empty() {
        return Ok(());
    }
    Err(Error::new(
        "prepare the machine",
        format!("still missing after their installation: {}", still.join(" ")),
    )
    .hint(remedy))
}

/// `go`, new enough for every module under `modules`. Returns its path and what `go version` says.
///
/// # Errors
/// Go is missing or too old.
pub fn require_go(modules: &[PathBuf]) -> Result<(PathBuf, String)> {
    let mut needed = (0, 0, 0);
    for module in modules {
        let file = module.join("go.mod");
        let text = fs::read_to_string(&file).what(|| format!("read {}", file.display()))?;
        let line = text.lines().find_map(|l| l.strip_prefix("go ")).unwrap_or_default();
        needed = needed
            .max(version(line).ok_or_else(|| Error::new(format!("read {}", file.display()), "no line `go X.Y.Z`"))?);
    }
    let remedy = format!(
        "install Go {}.{}.{} or newer from https://go.dev/dl/ and put it into PATH (Debian's own may be too old)",
        needed.0, needed.1, needed.2
    );
    let Some(go) = find("go").or_else(|| Some(PathBuf::from("/usr/local/go/bin/go")).filter(|g| g.is_file())) else {
        return Err(Error::new("build the lab", "there is no Go on this machine").hint(remedy));
    };
    let what = format!("{} version", go.display());
    let said = command::run(
        Command::new(&go).arg("version").env("GOTOOLCHAIN", "local"),
        &what,
        Duration::from_secs(30),
    )?
    .checked(&what)?;
    let text = said.stdout.trim().to_owned();
    let found = text
        .split_whitespace()
        .find_map(|word| version(word.strip_prefix("go")?));
    match found {
        Some(found) if found >= needed => Ok((go, text)),
        _ => Err(Error::new("build the lab", format!("Go is too old: {text}")).hint(remedy)),
    }
}

fn version(text: &str) -> Option<(u32, u32, u32)> {
    let mut numbers = text
        .trim()
        .split('.')
        .map(|n| n.chars().take_while(char::is_ascii_digit).collect::<String>());
    let mut next = || numbers.next().and_then(|n| n.parse().ok());
    Some((next()?, next()?, next().unwrap_or(0)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_of_go_compare_by_number() {
        assert_eq!(version("1.26.8"), Some((1, 26, 8)));
        assert_eq!(version("1.27rc1"), Some((1, 27, 0)));
        assert_eq!(version("1.26"), Some((1, 26, 0)));
        assert!(version("1.9.7") < version("1.26.0"));
        assert_eq!(version("devel"), None);
    }

    #[test]
    fn go_that_is_too_old_is_an_error_with_a_remedy() {
        let dir = env::temp_dir().join(format!("selfhost-lab-go-{}", std::process::id()));
        fs::create_dir_all(&dir).unwrap();
        fs::write(dir.join("go.mod"), "module x\n\ngo 9.99.0\n").unwrap();
        let error = require_go(std::slice::from_ref(&dir)).unwrap_err();
        fs::write(dir.join("go.mod"), "module x\n\ngo 1.21.0\n").unwrap();
        let good = require_go(std::slice::from_ref(&dir));
        fs::remove_dir_all(&dir).unwrap();
        assert!(error.hint.contains("9.99.0"), "{error}");
        assert!(good.unwrap().1.starts_with("go version"));
    }
}
