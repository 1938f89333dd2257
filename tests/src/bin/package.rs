//! `cargo package-plugins`: archives, sums and krew manifests of a release.

use std::{io::Write, path::PathBuf, process::ExitCode};

use clap::Parser;
use tests::{
    Result,
    error::Error,
    package::{self, PLATFORMS, PackageOptions, Platform},
};

/// Make the archives of a release, their SHA-256 files and the krew manifests; the same input gives the same bytes.
///
/// Without --binaries, the plugins are built here, statically linked and optimised, for this machine alone.
#[derive(Debug, Parser)]
#[command(
    name = "cargo package-plugins",
    after_help = "Examples:
  cargo package-plugins
  cargo package-plugins --version v0.1.0 --binaries built --platform all --output dist"
)]
struct Cli {
    /// Version of the release, with a v (default: that of the workspace)
    #[arg(long, value_name = "VERSION")]
    version: Option<String>,
    /// Platforms to make archives for, or all (default: this machine's)
    #[arg(long, value_delimiter = ',', value_name = "OS-ARCH")]
    platform: Vec<String>,
    /// Directory with the executables, each named kubectl-PLUGIN-OS-ARCH
    #[arg(long, value_name = "DIRECTORY")]
    binaries: Option<PathBuf>,
    /// URL in front of /VERSION/ARCHIVE in the manifests
    #[arg(long, value_name = "URL", default_value = concat!(env!("CARGO_PKG_REPOSITORY"), "/releases/download"))]
    base_url: String,
    /// Where everything goes
    #[arg(long, value_name = "DIRECTORY", default_value = "target/dist")]
    output: PathBuf,
}

fn main() -> ExitCode {
    match run(Cli::parse()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            let _ = writeln!(std::io::stderr(), "error: {error}");
            ExitCode::FAILURE
        }
    }
}

fn run(cli: Cli) -> Result<()> {
    let platforms = if cli.platform.is_empty() {
        let here = Platform::here()
            .ok_or_else(|| Error::new("find the platform", "nothing is released for this machine's kind"))?;
        vec![here]
    } else if cli.platform == ["all"] {
        PLATFORMS.to_vec()
    } else {
        let named = cli.platform.iter().map(|name| Platform::from_name(name));
        named
            .collect::<std::result::Result<_, _>>()
            .map_err(|why| Error::new("--platform", why))?
    };
    let written = package::package(&PackageOptions {
        version: cli.version.unwrap_or_else(|| format!("v{}", env!("CARGO_PKG_VERSION"))),
        base_url: cli.base_url,
        platforms,
        binaries: cli.binaries,
        output: cli.output,
    })?;
    for path in written {
        let _ = writeln!(std::io::stdout(), "{}", path.display());
    }
    Ok(())
}
