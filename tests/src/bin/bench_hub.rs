//! `cargo bench-hub`: what is promised about the agent, measured beside Open Cluster Management's own.

use std::{io::Write, path::PathBuf, process::ExitCode, time::Duration};

use clap::Parser;
use tests::{
    Result,
    bench::figure,
    hub::bench::{HubBench, run},
    static_binary::build_static_of,
};

/// Measure the agent beside Open Cluster Management's own, on one hub and in one run, as root.
///
/// Takes 8 minutes after the builds. Exit code 1 when a figure misses its target.
#[derive(Debug, Parser)]
#[command(name = "cargo bench-hub")]
struct Cli {
    /// Joins of each agent
    #[arg(long, value_name = "N", default_value_t = 10, value_parser = clap::value_parser!(u32).range(0..=1000))]
    joins: u32,
    /// How long both are watched at rest; 0 leaves it out
    #[arg(long, value_name = "SECONDS", default_value_t = 300)]
    idle: u64,
    /// Also join from a spoke with 10,000 claims and 1,000 nodes; 3 minutes more
    #[arg(long)]
    large: bool,
    /// Also run so many agents on one hub, such as 200; 15 minutes more, and 12 MB of memory each
    #[arg(long, value_name = "N", default_value_t = 0)]
    fleet: usize,
    /// How long they are watched
    #[arg(long, value_name = "SECONDS", default_value_t = 600)]
    fleet_time: u64,
    /// A kubectl-klusterlet to measure, instead of building one statically linked and optimised
    #[arg(long, value_name = "FILE")]
    binary: Option<PathBuf>,
}

fn main() -> ExitCode {
    match measure(Cli::parse()) {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            let _ = writeln!(std::io::stderr(), "error: {error}");
            ExitCode::FAILURE
        }
    }
}

fn measure(cli: Cli) -> Result<bool> {
    let binary = match cli.binary {
        Some(binary) => binary,
        None => build_static_of("kubectl-klusterlet")?,
    };
    let figures = run(HubBench {
        binary,
        joins: cli.joins,
        idle: Duration::from_secs(cli.idle),
        large: cli.large,
        fleet: (cli.fleet, Duration::from_secs(cli.fleet_time)),
    })?;
    let _ = writeln!(std::io::stdout(), "{}", figure::table(&figures));
    Ok(figures.iter().all(figure::Figure::passes))
}
