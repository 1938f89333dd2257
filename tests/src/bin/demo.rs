//! `cargo demo`: watch a real control plane move into DaemonSets and back, while failed requests are counted.

use std::{io::Write, path::PathBuf, process::ExitCode};

use clap::{Parser, ValueEnum};
use tests::{
    Result,
    demo::{self, narrator::Narrator},
    settings::{Purpose, Settings},
};

/// Convert a real kubeadm cluster, roll, break and mend it, revert it, and count what clients notice.
///
/// Takes some 7 minutes after the first build (10 minutes more), as root. Ctrl-C takes everything down.
#[derive(Debug, Parser)]
#[command(
    name = "cargo demo",
    after_help = "Environment:
  SELFHOST_DEMO_LAB_NAME    name of the bridge and prefix of all names (shlab2)
  SELFHOST_DEMO_LAB_SUBNET  first three numbers of the node's network (10.78.2)
  SELFHOST_DEMO_LAB_DIR     files of the running lab
  SELFHOST_LAB_CACHE        what was built
  NO_COLOR                  no colours"
)]
struct Cli {
    /// What to show
    #[arg(value_enum, default_value = "selfhost")]
    plugin: Plugin,
    /// The plugin, statically linked, instead of building it
    #[arg(long, value_name = "FILE")]
    binary: Option<PathBuf>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Plugin {
    /// A control plane moves into DaemonSets and back
    Selfhost,
    /// A spoke joins a hub of Open Cluster Management; takes one or two minutes
    Klusterlet,
}

fn main() -> ExitCode {
    let cli = Cli::parse();
    let narrator = Narrator::new(std::env::var_os("NO_COLOR").is_some_and(|v| !v.is_empty()));
    match show(cli, narrator) {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            narrator.say(&format!("error: {error}"));
            ExitCode::FAILURE
        }
    }
}

fn show(cli: Cli, narrator: Narrator) -> Result<bool> {
    if cli.plugin == Plugin::Klusterlet {
        demo::klusterlet::run(cli.binary, narrator)?;
        narrator.say(&format!(
            "All in {} s; nothing is left of hub and spoke.",
            narrator.seconds()
        ));
        return Ok(true);
    }
    let (table, wrong) = demo::run(Settings::from_env(Purpose::Demo)?, cli.binary, narrator)?;
    let mut out = std::io::stdout();
    let _ = writeln!(out, "\n{table}");
    narrator.say(&format!(
        "All in {} s; nothing is left of the cluster.",
        narrator.seconds()
    ));
    for line in &wrong {
        narrator.say(&format!("NOT AS PROMISED: {line}"));
    }
    Ok(wrong.is_empty())
}
