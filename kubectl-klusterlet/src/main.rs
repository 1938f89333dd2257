//! The executable; everything is in the library.

use std::{ffi::OsString, process::ExitCode};

use clap::{CommandFactory, Parser};
use kubectl_klusterlet::cli::Cli;
use shared::{Error, Printer, command_line, printer::ColorChoice};

fn main() -> ExitCode {
    let arguments: Vec<OsString> = std::env::args_os().collect();
    if let Some(answer) = command_line::completion(Cli::command(), &arguments) {
        let printer = Printer::new(ColorChoice::Auto);
        return match answer.and_then(|text| printer.data(&text)) {
            Ok(()) => ExitCode::SUCCESS,
            Err(error) => failed(&printer, &error, error.exit_code()),
        };
    }
    let cli = Cli::parse_from(arguments);
    let printer = cli.printer();
    let runtime = match tokio::runtime::Builder::new_current_thread().enable_all().build() {
        Ok(runtime) => runtime,
        Err(error) => {
            let error = Error::new("the runtime cannot be started").because(error);
            return failed(&printer, &error, error.exit_code());
        }
    };
    match runtime.block_on(cli.run(&printer)) {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => failed(&printer, &failure.error, failure.exit_code()),
    }
}

fn failed(printer: &Printer, error: &Error, code: u8) -> ExitCode {
    printer.error(error);
    ExitCode::from(code)
}
