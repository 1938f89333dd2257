//! `cargo package-plugins`: the archives of a release with their sums, and the krew manifests for them.

pub mod archive;
pub mod manifest;

use std::{
    collections::BTreeMap,
    fmt, fs,
    path::{Path, PathBuf},
};

use archive::{Entry, sha256, tar_gz};

use crate::{
    cache::say,
    error::{Context, Error, Result},
    static_binary,
};

/// Where a plugin runs, in krew's words.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Platform {
    /// `linux`, `darwin` or `windows`.
    pub os: &'static str,
    /// `amd64` or `arm64`.
    pub arch: &'static str,
}

/// What is released. The order is that of the templates.
pub const PLATFORMS: [Platform; 5] = [
    Platform {
        os: "linux",
        arch: "amd64",
    },
    Platform {
        os: "linux",
        arch: "arm64",
    },
    Platform {
        os: "darwin",
        arch: "amd64",
    },
    Platform {
        os: "darwin",
        arch: "arm64",
    },
    Platform {
        os: "windows",
        arch: "amd64",
    },
];

impl fmt::Display for Platform {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}-{}", self.os, self.arch)
    }
}

impl Platform {
    /// A platform by its name, such as `linux-amd64`.
    ///
    /// # Errors
    /// Names those that there are.
    pub fn from_name(name: &str) -> std::result::Result<Self, String> {
        PLATFORMS
            .into_iter()
            .find(|platform| platform.to_string() == name)
            .ok_or_else(|| {
                let known: Vec<String> = PLATFORMS.iter().map(ToString::to_string).collect();
                format!("there is no platform {name:?}: choose one of {}", known.join(", "))
            })
    }

    /// Of this machine; `None` where nothing is released for it.
    #[must_use]
    pub fn here() -> Option<Self> {
        let arch = match std::env::consts::ARCH {
            "x86_64" => "amd64",
            "aarch64" => "arm64",
            other => other,
        };
        let os = match std::env::consts::OS {
            "macos" => "darwin",
            other => other,
        };
        PLATFORMS.into_iter().find(|one| one.os == os && one.arch == arch)
    }

    /// The end of an executable's name.
    #[must_use]
    pub fn suffix(self) -> &'static str {
        if self.os == "windows" { ".exe" } else { "" }
    }
}

/// A plugin, and whether its archives carry executables for nodes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Plugin {
    /// The name behind `kubectl`.
    pub name: &'static str,
    /// Whether it brings its own executable onto Linux nodes.
    pub for_nodes: bool,
}

/// Both plugins.
pub const PLUGINS: [Plugin; 2] = [
    Plugin {
        name: "selfhost",
        for_nodes: true,
    },
    Plugin {
        name: "klusterlet",
        for_nodes: false,
    },
];

impl Plugin {
    fn executable(self) -> String {
        format!("kubectl-{}", self.name)
    }
}

/// What to make.
#[derive(Clone, Debug)]
pub struct PackageOptions {
    /// Version of the release, with its `v`.
    pub version: String,
    /// The URL in front of `/VERSION/ARCHIVE`.
    pub base_url: String,
    /// Platforms to make archives for.
    pub platforms: Vec<Platform>,
    /// Directory with the executables, each named `PLUGIN-OS-ARCH` (`.exe` on Windows). Without it, those for this
    /// machine are built.
    pub binaries: Option<PathBuf>,
    /// Where everything goes.
    pub output: PathBuf,
}

/// The executables by plugin and platform.
type Binaries = BTreeMap<(&'static str, Platform), Vec<u8>>;

/// Makes archives, sums and manifests. Returns the paths that were written.
///
/// # Errors
/// An executable is missing or cannot be built, or something cannot be written. Nothing is written before all executables
/// are there.
pub fn package(options: &PackageOptions) -> Result<Vec<PathBuf>> {
    let binaries = match &options.binaries {
        Some(directory) => read_binaries(directory, &options.platforms)?,
        None => build_binaries(&options.platforms)?,
    };
    let mut files = BTreeMap::new();
    let root = static_binary::workspace();
    for plugin in PLUGINS {
        let common = common_files(&root, plugin)?;
        let mut sums = BTreeMap::new();
        for platform in &options.platforms {
            let entries = entries(plugin, *platform, &common, &binaries)?;
            let bytes =
                tar_gz(&entries).what(|| format!("make the archive of {} for {platform}", plugin.executable()))?;
            let sum = sha256(&bytes);
            let name = format!("{}-{platform}.tar.gz", plugin.executable());
            files.insert(format!("{name}.sha256"), format!("{sum}  {name}\n").into_bytes());
            files.insert(name, bytes);
            sums.insert(*platform, sum);
        }
        let template = root.join("krew").join(format!("{}.yaml", plugin.name));
        let text = fs::read_to_string(&template).what(|| format!("read {}", template.display()))?;
        let text = manifest::manifest(&text, &options.version, &options.base_url, &sums)?;
        files.insert(format!("{}.yaml", plugin.name), text.into_bytes());
    }
    let what = || format!("write into {}", options.output.display());
    fs::create_dir_all(&options.output).what(what)?;
    let mut written = Vec::new();
    for (name, bytes) in files {
        let path = options.output.join(name);
        fs::write(&path, bytes).what(|| format!("write {}", path.display()))?;
        written.push(path);
    }
    Ok(written)
}

/// The name of an executable among those that were built elsewhere.
fn built_name(plugin: Plugin, platform: Platform) -> String {
    format!("{}-{platform}{}", plugin.executable(), platform.suffix())
}

/// The platforms whose executables the archives of a plugin for `platform` need.
fn needed(plugin: Plugin, platform: Platform) -> Vec<Platform> {
    let linux = PLATFORMS
        .into_iter()
        .filter(|one| plugin.for_nodes && one.os == "linux");
    std::iter::once(platform)
        .chain(linux.filter(|one| *one != platform))
        .collect()
}

fn read_binaries(directory: &Path, platforms: &[Platform]) -> Result<Binaries> {
    let mut binaries = Binaries::new();
    for plugin in PLUGINS {
        for platform in platforms.iter().flat_map(|platform| needed(plugin, *platform)) {
            let path = directory.join(built_name(plugin, platform));
            let bytes = fs::read(&path)
                .what(|| format!("read {}", path.display()))
                .map_err(|error| {
                    error.hint(
                        "build it on that platform and give it this name; .github/workflows/release.yml shows how",
                    )
                })?;
            if platform.os == "linux"
                && let Some(linker) = static_binary::interpreter(&path)?
            {
                return Err(Error::new(
                    format!("use {}", path.display()),
                    format!("it asks for the dynamic linker {linker}"),
                )
                .hint("build it with RUSTFLAGS=\"-C target-feature=+crt-static\" and --target"));
            }
            binaries.insert((plugin.name, platform), bytes);
        }
    }
    Ok(binaries)
}

fn build_binaries(platforms: &[Platform]) -> Result<Binaries> {
    let mut binaries = Binaries::new();
    let here = Platform::here().filter(|platform| platform.os == "linux");
    if let Some(foreign) = platforms.iter().find(|platform| Some(**platform) != here) {
        return Err(Error::new(
            format!("build for {foreign}"),
            "this machine builds for Linux and its own kind of processor only",
        )
        .hint("build the others where they run, and name the directory of all of them by --binaries"));
    }
    for plugin in PLUGINS {
        let path = static_binary::build_static_of(&plugin.executable())?;
        let bytes = fs::read(&path).what(|| format!("read {}", path.display()))?;
        for platform in platforms {
            binaries.insert((plugin.name, *platform), bytes.clone());
        }
    }
    Ok(binaries)
}

/// What is the same in all archives of a plugin.
fn common_files(root: &Path, plugin: Plugin) -> Result<Vec<Entry>> {
    let read = |from: &Path, to: String, executable: bool| {
        let bytes = fs::read(from).what(|| format!("read {}", from.display()))?;
        Ok(Entry {
            path: to,
            bytes,
            executable,
        })
    };
    let mut files = vec![
        read(&root.join("LICENSE"), "LICENSE".to_owned(), false)?,
        read(&root.join("README.md"), "README.md".to_owned(), false)?,
    ];
    let manual = root.join("docs/man");
    let mut pages: Vec<PathBuf> = fs::read_dir(&manual)
        .and_then(|entries| entries.map(|entry| entry.map(|entry| entry.path())).collect())
        .what(|| format!("read {}", manual.display()))?;
    pages.sort();
    for page in pages {
        let name = page.file_name().unwrap_or_default().to_string_lossy().into_owned();
        if name.starts_with(&plugin.executable()) {
            files.push(read(&page, format!("man/{name}"), false)?);
        }
    }
    Ok(files)
}

fn entries(plugin: Plugin, platform: Platform, common: &[Entry], binaries: &Binaries) -> Result<Vec<Entry>> {
    let mut entries = common.to_vec();
    let (helper, suffix) = match platform.os {
        "windows" => (format!("kubectl_complete-{}.cmd", plugin.name), ".exe"),
        _ => (format!("kubectl_complete-{}", plugin.name), ""),
    };
    let path = static_binary::workspace().join("krew").join(&helper);
    entries.push(Entry {
        bytes: fs::read(&path).what(|| format!("read {}", path.display()))?,
        path: helper,
        executable: true,
    });
    for needed in needed(plugin, platform) {
        let Some(bytes) = binaries.get(&(plugin.name, needed)) else {
            say(&format!(
                "{}: no executable for {needed} nodes goes into the archive for {platform}; such nodes need --node-binary",
                plugin.executable()
            ));
            continue;
        };
        let name = if needed == platform {
            format!("{}{suffix}", plugin.executable())
        } else {
            built_name(plugin, needed)
        };
        entries.push(Entry {
            path: name,
            bytes: bytes.clone(),
            executable: true,
        });
    }
    Ok(entries)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_archive_has_executables_for_all_linux_nodes_and_no_other() {
        let binaries: Binaries = PLUGINS
            .iter()
            .flat_map(|plugin| PLATFORMS.map(|platform| ((plugin.name, platform), platform.to_string().into_bytes())))
            .collect();
        let names = |plugin: usize, platform: usize| -> Vec<String> {
            let entries = entries(PLUGINS[plugin], PLATFORMS[platform], &[], &binaries).unwrap();
            assert!(entries.iter().all(|entry| entry.executable));
            entries.into_iter().map(|entry| entry.path).collect()
        };
        assert_eq!(
            names(0, 0),
            [
                "kubectl_complete-selfhost",
                "kubectl-selfhost",
                "kubectl-selfhost-linux-arm64"
            ]
        );
        assert_eq!(
            names(0, 1),
            [
                "kubectl_complete-selfhost",
                "kubectl-selfhost",
                "kubectl-selfhost-linux-amd64"
            ]
        );
        assert_eq!(
            names(0, 4),
            [
                "kubectl_complete-selfhost.cmd",
                "kubectl-selfhost.exe",
                "kubectl-selfhost-linux-amd64",
                "kubectl-selfhost-linux-arm64"
            ]
        );
        assert_eq!(names(1, 3), ["kubectl_complete-klusterlet", "kubectl-klusterlet"]);
    }

    #[test]
    fn an_executable_that_is_missing_or_dynamic_is_named_and_nothing_is_written() {
        let directory = std::env::temp_dir().join(format!("selfhost-package-{}", std::process::id()));
        let options = PackageOptions {
            version: "v1.2.3".to_owned(),
            base_url: "https://a.test".to_owned(),
            platforms: vec![PLATFORMS[0]],
            binaries: Some(directory.join("in")),
            output: directory.join("out"),
        };
        fs::create_dir_all(directory.join("in")).unwrap();
        let missing = package(&options).unwrap_err();
        // this test itself is dynamically linked
        let amd64 = directory.join("in/kubectl-selfhost-linux-amd64");
        fs::copy(std::env::current_exe().unwrap(), amd64).unwrap();
        let dynamic = package(&options).unwrap_err();
        let written = options.output.exists();
        fs::remove_dir_all(&directory).unwrap();
        assert!(missing.what.contains("kubectl-selfhost-linux-amd64"), "{missing}");
        assert!(dynamic.why.contains("dynamic linker"), "{dynamic}");
        assert!(!written);
    }

    #[test]
    fn platforms_have_names() {
        for platform in PLATFORMS {
            assert_eq!(Platform::from_name(&platform.to_string()), Ok(platform));
        }
        assert!(Platform::from_name("linux-386").unwrap_err().contains("windows-amd64"));
    }
}
