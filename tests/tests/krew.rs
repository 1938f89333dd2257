//! From archive to command line as a user goes: the real krew and its validator, archives served on loopback, the real
//! kubectl, no cluster.

use std::{
    fs,
    io::{BufRead, BufReader, Write},
    net::{TcpListener, TcpStream},
    os::unix::fs::{PermissionsExt, symlink},
    path::{Path, PathBuf},
    process::Command,
    thread,
    time::{Duration, Instant},
};

use tests::{
    cache,
    command::{self, Output},
    package::{self, PLATFORMS, PackageOptions, Platform},
    settings::{Purpose, Settings},
    static_binary,
};

const MINUTE: Duration = Duration::from_secs(60);
/// From `kubectl krew install` to the first plan on the screen.
const FIRST_USE: Duration = Duration::from_secs(10);

/// What a user's machine has: kubectl and krew on PATH, a home, and nothing else.
struct Machine {
    root: PathBuf,
    path: String,
}

impl Drop for Machine {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.root);
    }
}

impl Machine {
    fn new() -> Self {
        let settings = Settings::from_env(Purpose::Tests).unwrap();
        let krew = cache::ensure_krew(&settings).unwrap();
        let kubernetes = cache::ensure(&settings).unwrap().kubernetes;
        let root = std::env::temp_dir().join(format!("selfhost-krew-{}", std::process::id()));
        let bin = root.join("bin");
        fs::create_dir_all(&bin).unwrap();
        symlink(krew.join("krew"), bin.join("kubectl-krew")).unwrap();
        symlink(krew.join("validate-krew-manifest"), bin.join("validate-krew-manifest")).unwrap();
        symlink(kubernetes.join("kubectl"), bin.join("kubectl")).unwrap();
        // `sh` for the helper of completion, `git` for the index
        let path = format!("{}:{}:/usr/bin:/bin", bin.display(), root.join("krew/bin").display());
        Self { root, path }
    }

    fn run(&self, program: &str, arguments: &[&str]) -> Output {
        let mut command = Command::new(if program.contains('/') {
            program.into()
        } else {
            self.root.join("bin").join(program)
        });
        command
            .args(arguments)
            .env_clear()
            .env("PATH", &self.path)
            .env("HOME", &self.root)
            .env("KREW_ROOT", self.root.join("krew"))
            .env("KREW_NO_UPGRADE_CHECK", "1")
            .env("KREW_DEFAULT_INDEX_URI", self.root.join("index"));
        command::run(&mut command, &format!("{program} {}", arguments.join(" ")), MINUTE).unwrap()
    }

    fn must(&self, program: &str, arguments: &[&str]) -> Output {
        let what = format!("{program} {}", arguments.join(" "));
        self.run(program, arguments).checked(&what).unwrap()
    }

    fn git(&self, arguments: &[&str]) {
        let index = self.root.join("index").display().to_string();
        let fixed = [
            "-C",
            &index,
            "-c",
            "user.name=test",
            "-c",
            "user.email=test@selfhost.test",
        ];
        self.must("/usr/bin/git", &[&fixed, arguments].concat());
    }

    /// Puts the manifests into an index, as a release does.
    fn publish(&self, release: &Path) {
        let plugins = self.root.join("index/plugins");
        fs::create_dir_all(&plugins).unwrap();
        if !self.root.join("index/.git").exists() {
            self.git(&["init", "--quiet", "--initial-branch=master"]);
        }
        for name in ["selfhost.yaml", "klusterlet.yaml"] {
            fs::copy(release.join(name), plugins.join(name)).unwrap();
        }
        self.git(&["add", "--all"]);
        self.git(&["commit", "--quiet", "--message=release"]);
    }
}

/// Serves the files below a directory, each connection one of them, until the test ends.
fn serve(directory: PathBuf) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    thread::spawn(move || {
        for stream in listener.incoming().flatten() {
            let _ = answer(stream, &directory);
        }
    });
    format!("http://{address}")
}

fn answer(mut stream: TcpStream, directory: &Path) -> std::io::Result<()> {
    let mut reader = BufReader::new(stream.try_clone()?);
    let mut first = String::new();
    reader.read_line(&mut first)?;
    let mut line = String::new();
    while reader.read_line(&mut line)? > 2 {
        line.clear();
    }
    let path = first
        .split_whitespace()
        .nth(1)
        .unwrap_or_default()
        .trim_start_matches('/');
    let found = (!path.contains(".."))
        .then(|| fs::read(directory.join(path)).ok())
        .flatten();
    let (status, body) = found.map_or(("404 Not Found", Vec::new()), |body| ("200 OK", body));
    write!(
        stream,
        "HTTP/1.1 {status}\r\nContent-Length: {}\r\nConnection: close\r\n\r\n",
        body.len()
    )?;
    stream.write_all(&body)
}

/// The executables of a release, in a directory: real ones for this machine; for the other kinds of machine something that
/// is only there to be packed.
fn built(to: &Path) -> PathBuf {
    fs::create_dir_all(to).unwrap();
    let here = Platform::here().unwrap();
    for plugin in ["kubectl-selfhost", "kubectl-klusterlet"] {
        let variable = format!("SELFHOST_TEST_{}", plugin.replace("kubectl-", "").to_uppercase());
        let variable = if plugin == "kubectl-selfhost" {
            "SELFHOST_TEST_BINARY".to_owned()
        } else {
            variable
        };
        let own =
            std::env::var_os(variable).map_or_else(|| static_binary::build_static_of(plugin).unwrap(), PathBuf::from);
        for platform in PLATFORMS {
            let path = to.join(format!("{plugin}-{platform}{}", platform.suffix()));
            if platform == here {
                fs::copy(&own, path).unwrap();
            } else if platform.os == "linux" {
                // the header of an ELF file that asks for no dynamic linker
                fs::write(path, [&b"\x7fELF\x02\x01"[..], &[0; 58]].concat()).unwrap();
            } else {
                fs::write(path, format!("{plugin} for {platform}")).unwrap();
            }
        }
    }
    to.to_owned()
}

fn release(version: &str, binaries: &Path, base_url: &str, output: &Path) -> Vec<PathBuf> {
    package::package(&PackageOptions {
        version: version.to_owned(),
        base_url: base_url.to_owned(),
        platforms: PLATFORMS.to_vec(),
        binaries: Some(binaries.to_owned()),
        output: output.to_owned(),
    })
    .unwrap()
}

#[test]
fn a_release_passes_krews_checks_and_is_installed_completed_upgraded_and_removed() {
    let machine = Machine::new();
    let served = machine.root.join("served");
    let url = serve(served.clone());
    let binaries = built(&machine.root.join("built"));
    let first = served.join("v0.1.0");
    let files = release("v0.1.0", &binaries, &url, &first);
    assert_eq!(files.len(), 2 * (2 * PLATFORMS.len() + 1), "{files:#?}");
    the_same_input_gives_the_same_bytes(&machine, &binaries, &url, &first);
    sums_are_right(&machine, &first);
    the_validator_passes_all_platforms(&machine, &first);
    machine.publish(&first);
    installed_it_plans_within_seconds(&machine);
    an_archive_alone_can_be_installed(&machine, &first);
    kubectl_completes(&machine);
    upgraded_and_removed(&machine, &served, &binaries, &url);
}

fn the_same_input_gives_the_same_bytes(machine: &Machine, binaries: &Path, url: &str, first: &Path) {
    // other times of files, another directory
    let copies = machine.root.join("copies");
    fs::create_dir_all(&copies).unwrap();
    for entry in fs::read_dir(binaries).unwrap() {
        let path = entry.unwrap().path();
        let copy = copies.join(path.file_name().unwrap());
        fs::write(&copy, fs::read(&path).unwrap()).unwrap();
        fs::set_permissions(&copy, fs::Permissions::from_mode(0o600)).unwrap();
    }
    for path in release("v0.1.0", &copies, url, &machine.root.join("again")) {
        let name = path.file_name().unwrap();
        assert!(
            fs::read(&path).unwrap() == fs::read(first.join(name)).unwrap(),
            "{name:?} differs"
        );
    }
}

fn sums_are_right(machine: &Machine, release: &Path) {
    let sums: Vec<String> = fs::read_dir(release)
        .unwrap()
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .filter(|name| name.ends_with(".sha256"))
        .collect();
    assert_eq!(sums.len(), 2 * PLATFORMS.len());
    let script = format!("cd {} && sha256sum --check --strict *.sha256", release.display());
    machine.must("/bin/sh", &["-c", &script]);
}

fn the_validator_passes_all_platforms(machine: &Machine, release: &Path) {
    for name in ["selfhost", "klusterlet"] {
        let manifest = release.join(format!("{name}.yaml"));
        // it installs the archive of each platform, from its URL
        let manifest_text = manifest.display().to_string();
        machine.must("validate-krew-manifest", &["-manifest", &manifest_text]);
        // the check is able to fail
        let text = fs::read_to_string(&manifest).unwrap();
        let broken = machine.root.join(format!("broken/{name}.yaml"));
        fs::create_dir_all(broken.parent().unwrap()).unwrap();
        fs::write(
            &broken,
            text.replacen(&format!("bin: kubectl-{name}"), "bin: nothing", 1),
        )
        .unwrap();
        let output = machine.run("validate-krew-manifest", &["-manifest", &broken.display().to_string()]);
        assert!(!output.success(), "{output:?}");
    }
}

/// Manifests that kubeadm wrote.
fn manifests() -> String {
    let directory = static_binary::workspace().join("kubectl-selfhost/tests/fixtures/kubeadm/v1.36");
    directory.display().to_string()
}

fn installed_it_plans_within_seconds(machine: &Machine) {
    machine.must("kubectl", &["krew", "update"]);
    let began = Instant::now();
    let installed = machine.must("kubectl", &["krew", "install", "selfhost"]);
    let plan = machine.must("kubectl", &["selfhost", "plan", "--manifests", &manifests()]);
    let took = began.elapsed();
    cache::say(&format!("krew install to the first plan: {:.2} s", took.as_secs_f64()));
    assert!(took < FIRST_USE, "{took:?}");
    assert!(
        installed.stderr.contains("kubectl_complete-selfhost"),
        "caveats: {installed:?}"
    );
    for component in ["kube-apiserver", "kube-controller-manager", "kube-scheduler"] {
        assert!(plan.stdout.contains(component), "{plan:?}");
    }
    let version = machine.must("kubectl", &["selfhost", "--version"]).stdout;
    assert_eq!(version, format!("kubectl selfhost {}\n", env!("CARGO_PKG_VERSION")));
    // exit codes pass through kubectl
    let nothing = machine.run("kubectl", &["selfhost", "paln"]);
    assert_eq!(nothing.status.code(), Some(2), "{nothing:?}");
    assert!(nothing.stderr.contains("'plan'"), "{nothing:?}");
    let code = machine.run(
        "kubectl",
        &["selfhost", "plan", "--manifests", &manifests(), "--exit-code"],
    );
    assert_eq!(code.status.code(), Some(3), "{code:?}");
    let store = machine.root.join("krew/store/selfhost/v0.1.0");
    let other = if cfg!(target_arch = "x86_64") { "arm64" } else { "amd64" };
    for file in [
        "LICENSE",
        "README.md",
        "kubectl_complete-selfhost",
        "man/kubectl-selfhost.1",
        &format!("kubectl-selfhost-linux-{other}"),
    ] {
        assert!(store.join(file).is_file(), "{file}");
    }
}

fn an_archive_alone_can_be_installed(machine: &Machine, release: &Path) {
    let manifest = release.join("klusterlet.yaml").display().to_string();
    let here = Platform::here().unwrap();
    let archive = release.join(format!("kubectl-klusterlet-{here}.tar.gz"));
    let archive = format!("--archive={}", archive.display());
    machine.must(
        "kubectl",
        &["krew", "install", &format!("--manifest={manifest}"), &archive],
    );
    let help = machine.must("kubectl", &["klusterlet", "--help"]).stdout;
    assert!(help.contains("Usage: kubectl klusterlet"), "{help}");
}

fn kubectl_completes(machine: &Machine) {
    // without the helper kubectl knows the name of the plugin, and nothing behind it
    let name = machine.must("kubectl", &["__complete", "self"]).stdout;
    assert!(name.lines().any(|line| line.starts_with("selfhost")), "{name}");
    let nothing = machine.run("kubectl", &["__complete", "selfhost", "pl"]).stdout;
    assert!(!nothing.contains("plan"), "{nothing}");
    for plugin in ["selfhost", "klusterlet"] {
        // as the caveats say
        let helper = machine.must("kubectl", &[plugin, "completion", "kubectl"]).stdout;
        let shipped = static_binary::workspace().join(format!("krew/kubectl_complete-{plugin}"));
        assert_eq!(helper, fs::read_to_string(shipped).unwrap());
        let path = machine.root.join(format!("bin/kubectl_complete-{plugin}"));
        fs::write(&path, helper).unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).unwrap();
    }
    let kubeconfig = machine.root.join("kubeconfig");
    let text = "contexts: [{name: edge, context: {cluster: far, user: me}}, {name: hub, context: {cluster: near}}]";
    fs::write(&kubeconfig, text).unwrap();
    let kubeconfig = kubeconfig.display().to_string();
    let manifests = format!("{}/kube", manifests());
    let cases: [(&[&str], &str); 9] = [
        (
            &["selfhost", ""],
            "plan\tShow what convert would do, and what forbids it",
        ),
        (
            &["selfhost", "pl"],
            "plan\tShow what convert would do, and what forbids it",
        ),
        (&["selfhost", "plan", "--fea"], "--feature-gates"),
        (&["selfhost", "plan", "-o", ""], "yaml\tYAML, for programs and files"),
        (&["selfhost", "convert", "--components", "kube-s"], ""),
        (
            &["selfhost", "status", "--kubeconfig", &kubeconfig, "--context", ""],
            "edge\tfar",
        ),
        (
            &["selfhost", "status", "--kubeconfig", &kubeconfig, "--context=h"],
            "hub\tnear",
        ),
        (
            &["klusterlet", "join", "--wait", ""],
            "joined\tThe agent has its own credentials and has joined",
        ),
        (&["selfhost", "plan", "--manifests", &manifests], "kube"),
    ];
    for (words, expected) in cases {
        let output = machine.must("kubectl", &[&["__complete"], words].concat());
        let mut lines = output.stdout.lines();
        if !expected.is_empty() && !words.contains(&"--manifests") {
            assert!(
                lines.by_ref().any(|line| line.starts_with(expected)),
                "{words:?}: {output:?}"
            );
        }
        assert!(
            output.stdout.lines().last().is_some_and(|line| line.starts_with(':')),
            "{output:?}"
        );
    }
}

fn upgraded_and_removed(machine: &Machine, served: &Path, binaries: &Path, url: &str) {
    let second = served.join("v0.1.1");
    release("v0.1.1", binaries, url, &second);
    machine.publish(&second);
    machine.must("kubectl", &["krew", "upgrade", "selfhost"]);
    assert!(
        machine
            .root
            .join("krew/store/selfhost/v0.1.1/kubectl-selfhost")
            .is_file()
    );
    machine.must("kubectl", &["selfhost", "--version"]);
    assert!(
        !machine.root.join("krew/store/selfhost/v0.1.0").exists(),
        "the old one is gone"
    );
    machine.must("kubectl", &["krew", "uninstall", "selfhost", "klusterlet"]);
    let gone = machine.run("kubectl", &["selfhost", "--version"]);
    assert!(!gone.success(), "{gone:?}");
    let left: Vec<_> = fs::read_dir(machine.root.join("krew/store")).unwrap().collect();
    assert!(left.is_empty(), "{left:?}");
}
