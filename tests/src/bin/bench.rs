//! `cargo bench-lab`: every figure that is promised, measured on real clusters and compared to its target.

use std::{fs, io::Write, path::PathBuf, process::ExitCode, time::Duration};

use clap::Parser;
use tests::{
    Result,
    bench::{
        self, BenchOptions, figure,
        live::{self, Times},
        order::{Choice, Measure},
    },
    error::Context,
    operate::edits::{Component, Mistake},
    settings::{Purpose, Settings},
};

/// Measure everything that is promised, as root, on real clusters, and compare it to its target.
///
/// All of it takes some two hours. Exit code 1 when a figure misses its target or could not be measured.
#[derive(Debug, Parser)]
#[command(
    name = "cargo bench-lab",
    after_help = "Environment:
  SELFHOST_BENCH_LAB_NAME    name of the bridge and prefix of all names (shlab3)
  SELFHOST_BENCH_LAB_SUBNET  first three numbers of the node's network (10.78.3)
  SELFHOST_BENCH_LAB_DIR     files of the running lab
  SELFHOST_LAB_CACHE         what was built"
)]
struct Cli {
    /// Measures to take (default: all)
    #[arg(long, value_enum, value_delimiter = ',', value_name = "MEASURE")]
    only: Vec<Measure>,
    /// Runs in a row of each measure that has several (default: 3 conversions and reverts, 10 rolls)
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=1000))]
    runs: Option<u32>,
    /// How long a bad edit stays before it is undone
    #[arg(long, value_name = "SECONDS", default_value_t = 180)]
    hold: u64,
    /// Components whose templates get bad edits (default: all)
    #[arg(long, value_delimiter = ',', value_name = "COMPONENT", value_parser = Component::from_name)]
    components: Vec<Component>,
    /// Bad edits to make (default: all)
    #[arg(long, value_delimiter = ',', value_name = "MISTAKE", value_parser = Mistake::from_name)]
    mistakes: Vec<Mistake>,
    /// Sizes of the clusters that are converted as a whole from a workstation
    #[arg(long, value_delimiter = ',', value_name = "N", default_values_t = [1, 3, 5], value_parser = clap::value_parser!(u8).range(1..=9))]
    nodes: Vec<u8>,
    /// Write everything there as JSON
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
    /// A kubectl-selfhost to measure, instead of building one statically linked and optimised
    #[arg(long, value_name = "FILE")]
    binary: Option<PathBuf>,
}

fn main() -> ExitCode {
    match run(Cli::parse()) {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            let _ = writeln!(std::io::stderr(), "error: {error}");
            ExitCode::FAILURE
        }
    }
}

fn run(cli: Cli) -> Result<bool> {
    let or_all = |chosen: Vec<Component>| {
        if chosen.is_empty() {
            Component::ALL.to_vec()
        } else {
            chosen
        }
    };
    let mistakes = if cli.mistakes.is_empty() {
        Mistake::ALL.to_vec()
    } else {
        cli.mistakes
    };
    let edits = or_all(cli.components)
        .into_iter()
        .flat_map(|c| mistakes.iter().map(move |m| (c, *m)))
        .collect();
    let options = BenchOptions {
        choice: Choice {
            only: cli.only,
            conversions: cli.runs.unwrap_or(3),
            rolls: cli.runs.unwrap_or(10),
            edits,
            nodes: cli.nodes,
        },
        times: Times {
            hold: Duration::from_secs(cli.hold),
        },
        binary: cli.binary,
    };
    // Before the measures, as the load of the machine is part of it.
    let machine = live::machine();
    let figures = bench::run(&Settings::from_env(Purpose::Benchmark)?, &options)?;
    if let Some(path) = &cli.json {
        let text = format!("{:#}\n", bench::report(&figures, &machine));
        fs::write(path, text).what(|| format!("write {}", path.display()))?;
    }
    let _ = write!(std::io::stdout(), "\n{}", figure::table(&figures));
    Ok(figure::all_pass(&figures))
}
