//! `kubectl klusterlet`: registers the current cluster with Open Cluster Management hubs and fails over between them.

mod cli;

use std::process::ExitCode;

use clap::Parser;

fn main() -> ExitCode {
    let cli = cli::Cli::parse();
    let printer = cli.printer();
    match cli.run() {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            printer.error(&error);
            ExitCode::from(error.exit_code())
        }
    }
}
