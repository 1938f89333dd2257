//! The executable; everything is in the library.

use std::process::ExitCode;

use clap::Parser;
use kubectl_klusterlet::cli::Cli;

fn main() -> ExitCode {
    let cli = Cli::parse();
    let printer = cli.printer();
    let runtime = match tokio::runtime::Builder::new_current_thread().enable_all().build() {
        Ok(runtime) => runtime,
        Err(error) => {
            printer.error(&shared::Error::new("the runtime cannot be started").because(error));
            return ExitCode::FAILURE;
        }
    };
    match runtime.block_on(cli.run(&printer)) {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => {
            printer.error(&failure.error);
            ExitCode::from(failure.exit_code())
        }
    }
}
