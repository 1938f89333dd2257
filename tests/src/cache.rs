//! What the lab is made of: Kubernetes, etcd, containerd, CNI plugins and images, built from pinned Go modules and kept
//! outside the checkout, under a hash of everything that goes into them.

use std::{
    fs::{self, File},
    io::{BufRead, BufReader, Write},
    path::{Path, PathBuf},
    process::{Command, Stdio},
    sync::{Arc, Mutex, PoisonError},
    thread,
    time::{Duration, Instant},
};

use sha2::{Digest, Sha256};

use crate::{
    command,
    error::{Context, Error, Result},
    interrupt, packages,
    settings::Settings,
};

/// The pause image that kubeadm 1.36 and containerd are told to use.
pub const PAUSE_IMAGE: &str = "registry.k8s.io/pause:3.10.2";
/// The image for helper Pods.
pub const BUSYBOX_IMAGE: &str = "docker.io/library/busybox:1.36";
/// The etcd image that kubeadm 1.36 asks for.
const ETCD_IMAGE: &str = "registry.k8s.io/etcd:3.6.8-0";
/// Applets of busybox that get a name of their own in the image.
const APPLETS: [&str; 18] = [
    "sh",
    "cat",
    "chmod",
    "chown",
    "chroot",
    "cp",
    "grep",
    "head",
    "ln",
    "ls",
    "mkdir",
    "mv",
    "nsenter",
    "rm",
    "sha256sum",
    "sleep",
    "stat",
    "tar",
];

/// Longest time between two lines of progress.
const PROGRESS_EVERY: Duration = Duration::from_secs(5);
const BUILD_DEADLINE: Duration = Duration::from_secs(3600);

/// Where everything is that was built.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Built {
    /// Directory with kubeadm, kubelet, kubectl.
    pub kubernetes: PathBuf,
    /// Directory with containerd, its shim, ctr, and the CNI plugins.
    pub runtime: PathBuf,
    /// The lab's own tool.
    pub labtool: PathBuf,
    /// Directory with one archive for each image.
    pub images: PathBuf,
    /// Version of Kubernetes, such as `v1.36.3`.
    pub version: String,
}

/// Where the parts of a hub of Open Cluster Management are.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BuiltHub {
    /// Its `registration`: the hub's controller, and the agent to compare with.
    pub registration: PathBuf,
    /// Its resource definitions and rules, as they are shipped.
    pub manifests: PathBuf,
}

/// A Go module of the lab: directory name, packages to build, and whether Kubernetes' version is linked in.
struct Module {
    name: &'static str,
    packages: &'static [&'static str],
    versioned: bool,
}

const MODULES: [Module; 3] = [
    Module {
        name: "labtool",
        packages: &[".", "./pause"],
        versioned: false,
    },
    Module {
        name: "kubernetes",
        packages: &["tool"],
        versioned: true,
    },
    Module {
        name: "runtime",
        packages: &["./etcd", "tool"],
        versioned: false,
    },
];

const HUB: Module = Module {
    name: "ocm",
    packages: &["tool"],
    versioned: false,
};

const KREW: Module = Module {
    name: "krew",
    packages: &["tool"],
    versioned: false,
};

/// Builds krew and its validator of manifests: the directory with `krew` and `validate-krew-manifest`.
///
/// # Errors
/// Go is missing on the machine, or the build fails.
pub fn ensure_krew(settings: &Settings) -> Result<PathBuf> {
    let directory = sources().join(KREW.name);
    let (go, go_version) = packages::require_go(std::slice::from_ref(&directory))?;
    let mut hash = Sha256::new();
    hash.update(&go_version);
    hash_directory(&directory, &directory, &mut hash)?;
    let place = settings
        .cache
        .join(format!("{}-{}", KREW.name, short(&hash.finalize())));
    make(&place, &|to| compile(&go, &KREW, &directory, "", to))?;
    Ok(place)
}

/// Directories of Open Cluster Management's modules whose files a hub and a spoke are set up with.
const HUB_FILES: [(&str, &str); 8] = [
    ("api", "cluster/v1"),
    ("api", "cluster/v1beta2"),
    ("api", "work/v1"),
    ("api", "addon/v1alpha1"),
    ("ocm", "manifests/cluster-manager/hub/registration"),
    ("ocm", "deploy/cluster-manager/chart/cluster-manager/templates"),
    ("ocm", "manifests/klusterlet/managed"),
    ("ocm", "manifests/klusterlet/management"),
];

/// Builds what a hub needs beside Kubernetes, with progress on standard error. It takes 10 minutes the first time.
///
/// # Errors
/// Something is missing on the machine, or the build fails.
pub fn ensure_hub(settings: &Settings) -> Result<BuiltHub> {
    let directory = sources().join(HUB.name);
    let (go, go_version) = packages::require_go(std::slice::from_ref(&directory))?;
    let mut hash = Sha256::new();
    hash.update(&go_version);
    hash.update(format!("{HUB_FILES:?}"));
    hash_directory(&directory, &directory, &mut hash)?;
    let place = settings.cache.join(format!("{}-{}", HUB.name, short(&hash.finalize())));
    make(&place, &|to| {
        compile(&go, &HUB, &directory, "", to)?;
        copy_hub_files(&go, &directory, to)
    })?;
    Ok(BuiltHub {
        registration: place.join("registration"),
        manifests: place,
    })
}

fn copy_hub_files(go: &Path, directory: &Path, to: &Path) -> Result<()> {
    for (module, path) in HUB_FILES {
        let what = format!("copy {path} of open-cluster-management.io/{module}");
        let mut list = Command::new(go);
        list.current_dir(directory)
            .env("GOWORK", "off")
            .args(["list", "-m", "-f", "{{.Dir}}"]);
        list.arg(format!("open-cluster-management.io/{module}"));
        let root = command::run(&mut list, &what, Duration::from_secs(60))?
            .checked(&what)?
            .stdout;
        let target = to.join(path);
        fs::create_dir_all(&target).what(|| what.clone())?;
        for entry in fs::read_dir(Path::new(root.trim()).join(path)).what(|| what.clone())? {
            let file = entry.what(|| what.clone())?.path();
            if file.extension().is_some_and(|extension| extension == "yaml") {
                // Modules are read-only; the copy is not.
                let text = fs::read(&file).what(|| what.clone())?;
                fs::write(target.join(file.file_name().unwrap_or_default()), text).what(|| what.clone())?;
            }
        }
    }
    Ok(())
}

fn sources() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("lab")
}

/// Builds what is not built yet, with progress on standard error.
///
/// # Errors
/// Something is missing on the machine, or a build fails.
pub fn ensure(settings: &Settings) -> Result<Built> {
    packages::ensure()?;
    let busybox = packages::static_busybox()?;
    let directories: Vec<_> = MODULES.iter().map(|m| sources().join(m.name)).collect();
    let (go, go_version) = packages::require_go(&directories)?;
    let go_mod = sources().join("kubernetes/go.mod");
    let version = required(
        &fs::read_to_string(&go_mod).what(|| format!("read {}", go_mod.display()))?,
        "k8s.io/kubernetes",
    )
    .ok_or_else(|| {
        Error::new(
            format!("read {}", go_mod.display()),
            "it does not require k8s.io/kubernetes",
        )
    })?;

    let mut all = Sha256::new();
    let mut places = Vec::new();
    for (module, directory) in MODULES.iter().zip(&directories) {
        let mut hash = Sha256::new();
        hash.update(&go_version);
        hash_directory(directory, directory, &mut hash)?;
        let digest = hash.finalize();
        all.update(digest);
        let place = settings.cache.join(format!("{}-{}", module.name, short(&digest)));
        make(&place, &|to| compile(&go, module, directory, &version, to))?;
        places.push(place);
    }
    let [labtool, kubernetes, runtime] = <[PathBuf; 3]>::try_from(places).unwrap_or_default();
    let labtool = labtool.join("labtool");
    all.update(fs::read(&busybox).what(|| format!("read {}", busybox.display()))?);
    all.update(format!("{PAUSE_IMAGE} {BUSYBOX_IMAGE} {ETCD_IMAGE} {APPLETS:?}"));
    let images = settings.cache.join(format!("images-{}", short(&all.finalize())));
    make(&images, &|to| {
        pack(&labtool, &kubernetes, &runtime, &busybox, &version, to)
    })?;
    Ok(Built {
        kubernetes,
        runtime,
        labtool,
        images,
        version,
    })
}

/// The version of a module that a `go.mod` requires.
fn required(go_mod: &str, module: &str) -> Option<String> {
    go_mod.lines().find_map(|line| {
        let mut words = line.trim().trim_start_matches("require ").split_whitespace();
        (words.next()? == module).then(|| words.next().map(str::to_owned))?
    })
}

fn short(digest: &[u8]) -> String {
    digest.iter().take(8).map(|b| format!("{b:02x}")).collect()
}

fn hash_directory(root: &Path, directory: &Path, hash: &mut Sha256) -> Result<()> {
    let what = || format!("read {}", directory.display());
    let mut paths = fs::read_dir(directory)
        .what(what)?
        .map(|e| Ok(e?.path()))
        .collect::<std::io::Result<Vec<_>>>()
        .what(what)?;
    paths.sort();
    for path in paths {
        if path.is_dir() {
            hash_directory(root, &path, hash)?;
        } else {
            hash.update(path.strip_prefix(root).unwrap_or(&path).as_os_str().as_encoded_bytes());
            let content = fs::read(&path).what(|| format!("read {}", path.display()))?;
            hash.update(content.len().to_le_bytes());
            hash.update(content);
        }
    }
    Ok(())
}

/// Fills a directory of the cache. It appears under its name only when it is whole, and one process at a time builds it.
fn make(place: &Path, fill: &dyn Fn(&Path) -> Result<()>) -> Result<()> {
    if place.is_dir() {
        return Ok(());
    }
    let beside = |suffix: &str| {
        place.with_file_name(format!(
            "{}{suffix}",
            place.file_name().unwrap_or_default().to_string_lossy()
        ))
    };
    let what = || format!("build {}", place.display());
    fs::create_dir_all(place.parent().unwrap_or(place)).what(what)?;
    let lock = File::create(beside(".lock")).what(what)?;
    if lock.try_lock().is_err() {
        say(&format!("waiting for another process that builds {}", place.display()));
        lock.lock().what(what)?;
    }
    if place.is_dir() {
        return Ok(());
    }
    let unfinished = beside(".unfinished");
    if unfinished.exists() {
        fs::remove_dir_all(&unfinished).what(what)?;
    }
    fs::create_dir_all(&unfinished).what(what)?;
    fill(&unfinished)?;
    fs::rename(&unfinished, place).what(what)
}

fn compile(go: &Path, module: &Module, directory: &Path, version: &str, to: &Path) -> Result<()> {
    let go_command = |args: &[&str]| {
        let mut command = Command::new(go);
        command
            .current_dir(directory)
            .env("CGO_ENABLED", "0")
            .env("GOWORK", "off")
            .args(args);
        command
    };
    let list = go_command(
        &[
            &["list", "-mod=readonly", "-deps", "-f", "{{.ImportPath}}"],
            module.packages,
        ]
        .concat(),
    );
    let packages = watched(list, &format!("{}: fetching modules", module.name), None)?;
    let mut flags = "-s -w".to_owned();
    if module.versioned {
        let mut numbers = version.trim_start_matches('v').split('.');
        let (major, minor) = (numbers.next().unwrap_or_default(), numbers.next().unwrap_or_default());
        for (name, value) in [
            ("gitVersion", version),
            ("gitMajor", major),
            ("gitMinor", minor),
            ("gitTreeState", "clean"),
        ] {
            flags.push_str(&format!(" -X k8s.io/component-base/version.{name}={value}"));
        }
    }
    let mut build = go_command(&[
        "build",
        "-mod=readonly",
        "-buildvcs=false",
        "-trimpath",
        "-v",
        "-ldflags",
        &flags,
        "-o",
    ]);
    build.arg(format!("{}/", to.display())).args(module.packages);
    watched(build, &format!("{}: compiling", module.name), Some(packages))?;
    Ok(())
}

/// Runs `go`, whose standard error names one package or module in a line, and says how far it is. Returns how many lines
/// its standard output had.
fn watched(mut command: Command, what: &str, total: Option<usize>) -> Result<usize> {
    interrupt::stop_here_when_interrupted();
    say(what);
    let begin = Instant::now();
    let mut child = command
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .what(|| what.to_owned())?;
    let said = Arc::new(Mutex::new(Vec::new()));
    let readers = (child.stderr.take(), Arc::clone(&said));
    let errors = thread::spawn(move || {
        for line in readers
            .0
            .into_iter()
            .flat_map(|e| BufReader::new(e).lines().map_while(std::io::Result::ok))
        {
            readers.1.lock().unwrap_or_else(PoisonError::into_inner).push(line);
        }
    });
    let stdout = child.stdout.take();
    let lines = thread::spawn(move || {
        stdout
            .into_iter()
            .flat_map(|o| BufReader::new(o).lines().map_while(std::io::Result::ok))
            .count()
    });
    let mut next = PROGRESS_EVERY;
    let status = loop {
        if let Some(status) = child.try_wait().what(|| what.to_owned())? {
            break status;
        }
        if begin.elapsed() > BUILD_DEADLINE {
            let _ = child.kill();
            let _ = child.wait();
            return Err(Error::new(
                what,
                format!("not done after {} minutes", BUILD_DEADLINE.as_secs() / 60),
            ));
        }
        if begin.elapsed() > next {
            next += PROGRESS_EVERY;
            let said = said.lock().unwrap_or_else(PoisonError::into_inner);
            say(&progress(what, &said, total, begin.elapsed()));
        }
        thread::sleep(Duration::from_millis(100));
    };
    interrupt::stop_here_when_interrupted();
    let _ = errors.join();
    if !status.success() {
        let said = said.lock().unwrap_or_else(PoisonError::into_inner).join("\n");
        return Err(
            Error::new(what, format!("go failed ({status}): {}", command::tail(&said, 20))).hint(
                "modules come from GOPROXY: check the network, `go env GOPROXY`, and that the disk has 5 GB of space",
            ),
        );
    }
    let lines = lines.join().unwrap_or_default();
    if begin.elapsed() > PROGRESS_EVERY {
        say(&format!("{what}: done in {}", elapsed(begin.elapsed())));
    }
    Ok(lines)
}

fn progress(what: &str, said: &[String], total: Option<usize>, took: Duration) -> String {
    let fetched = |line: &&String| line.starts_with("go: ");
    let last = said.last().map(|l| l.trim_start_matches("go: ")).unwrap_or("starting");
    let count = match total {
        // Packages that Go has in its own cache are not named.
        Some(total) => format!(
            "{} of at most {total} packages",
            said.iter().filter(|l| !fetched(l)).count()
        ),
        None => format!("{} modules", said.iter().filter(fetched).count()),
    };
    format!("{what}: {}, {count}, last {last}", elapsed(took))
}

fn elapsed(took: Duration) -> String {
    format!("{}:{:02} min", took.as_secs() / 60, took.as_secs() % 60)
}

fn pack(labtool: &Path, kubernetes: &Path, runtime: &Path, busybox: &Path, version: &str, to: &Path) -> Result<()> {
    let image = |name: &str, reference: &str, entries: &[String]| {
        say(&format!("images: packing {reference}"));
        let what = format!("pack image {reference}");
        let mut tool = Command::new(labtool);
        tool.arg("image")
            .arg(to.join(format!("{name}.tar")))
            .arg(reference)
            .args(entries);
        command::run(&mut tool, &what, Duration::from_secs(120))?.checked(&what)
    };
    for component in ["kube-apiserver", "kube-controller-manager", "kube-scheduler"] {
        let entry = format!("usr/local/bin/{component}={}", kubernetes.join(component).display());
        image(component, &format!("registry.k8s.io/{component}:{version}"), &[entry])?;
    }
    image(
        "etcd",
        ETCD_IMAGE,
        &[format!("usr/local/bin/etcd={}", runtime.join("etcd").display())],
    )?;
    let pause = labtool.with_file_name("pause");
    image("pause", PAUSE_IMAGE, &[format!("pause={}", pause.display())])?;
    let mut entries = vec![format!("bin/busybox={}", busybox.display())];
    entries.extend(APPLETS.iter().map(|applet| format!("bin/{applet}=>busybox")));
    image("busybox", BUSYBOX_IMAGE, &entries)?;
    Ok(())
}

/// One line about what goes on.
pub fn say(text: &str) {
    let _ = writeln!(std::io::stderr(), "lab: {text}");
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_version_comes_from_go_mod() {
        let text = "module x\n\nrequire k8s.io/kubernetes v1.36.3\n";
        assert_eq!(required(text, "k8s.io/kubernetes").as_deref(), Some("v1.36.3"));
        assert_eq!(
            required("require (\n\tk8s.io/api v0.1.0 // indirect\n)\n", "k8s.io/api").as_deref(),
            Some("v0.1.0")
        );
        assert_eq!(required(text, "k8s.io/api"), None);
    }

    #[test]
    fn progress_counts_packages_and_names_the_last() {
        let said = vec!["go: downloading a v1".to_owned(), "b/c".to_owned(), "d/e".to_owned()];
        let line = progress("compiling", &said, Some(9), Duration::from_secs(65));
        assert_eq!(line, "compiling: 1:05 min, 2 of at most 9 packages, last d/e");
    }

    #[test]
    fn a_build_that_fails_leaves_no_directory_under_the_final_name() {
        let root = std::env::temp_dir().join(format!("selfhost-lab-cache-{}", std::process::id()));
        let place = root.join("thing-1");
        let failed = make(&place, &|to| {
            fs::write(to.join("half"), "").unwrap();
            Err(Error::new("compile", "no space"))
        });
        assert!(failed.is_err());
        assert!(!place.exists());
        make(&place, &|to| fs::write(to.join("whole"), "").what(String::new)).unwrap();
        assert!(place.join("whole").exists());
        assert!(!place.join("half").exists(), "leftovers of the failed build");
        fs::remove_dir_all(&root).unwrap();
    }
}
