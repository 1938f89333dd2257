//! The executable; everything is in the library.

use clap::Parser;
use kubectl_selfhost::cli::Cli;
use std::process::ExitCode;

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
        Ok(code) => ExitCode::from(code),
        Err(error) => {
            printer.error(&error);
            ExitCode::from(error.exit_code())
        }
    }
}
