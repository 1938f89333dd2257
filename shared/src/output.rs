//! `-o`, `--dry-run` and the printing of a value in the chosen format.

use serde::Serialize;

use crate::{Context, Printer, Result, table::Table, yaml};

/// What `-o` can ask for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, clap::ValueEnum)]
pub enum OutputFormat {
    /// A table for people; its columns may change between versions
    #[default]
    Table,
    /// The table with more columns
    Wide,
    /// JSON, for programs
    Json,
    /// YAML, for programs and files
    Yaml,
}

impl OutputFormat {
    /// Whether a program reads it: then stdout holds nothing but data.
    #[must_use]
    pub fn is_for_programs(self) -> bool {
        matches!(self, Self::Json | Self::Yaml)
    }
}

/// The flag `-o`.
#[derive(Clone, Copy, Debug, Default, clap::Args)]
pub struct OutputFlags {
    /// Output format
    #[arg(short = 'o', long, value_enum, value_name = "FORMAT", default_value_t)]
    pub output: OutputFormat,
}

/// Where the writes of a command go.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, clap::ValueEnum)]
pub enum DryRun {
    /// Everything is written
    #[default]
    None,
    /// Nothing is sent to the API server; what would be written is printed
    Client,
    /// Sent to the API server, which checks it and does not store it
    Server,
}

/// The flag `--dry-run`. Bare, it means `client`, as with kubectl.
#[derive(Clone, Copy, Debug, Default, clap::Args)]
pub struct DryRunFlags {
    /// Change nothing: print what would be written (client), or let the API server check it (server)
    #[arg(
        long,
        value_enum,
        value_name = "STRATEGY",
        num_args = 0..=1,
        require_equals = true,
        default_value_t,
        default_missing_value = "client"
    )]
    pub dry_run: DryRun,
}

/// The value in `format`; `table` makes the table, with more columns when its argument is true.
///
/// # Errors
/// When the value cannot be written in that format.
pub fn render<T: Serialize + ?Sized>(
    format: OutputFormat,
    value: &T,
    width: Option<usize>,
    table: impl FnOnce(bool) -> Table,
) -> Result<String> {
    match format {
        OutputFormat::Table => Ok(table(false).render(width)),
        // Whoever asks for more wants all of it, so nothing is cut.
        OutputFormat::Wide => Ok(table(true).render(None)),
        OutputFormat::Json => serde_json::to_string_pretty(value).context("cannot write the result as JSON"),
        OutputFormat::Yaml => yaml::to_string(value).context("cannot write the result as YAML"),
    }
}

/// Prints the value on stdout in `format`; see [`render`].
///
/// # Errors
/// When the value cannot be written in that format, or stdout cannot be written.
pub fn print<T: Serialize + ?Sized>(
    printer: &Printer,
    format: OutputFormat,
    value: &T,
    table: impl FnOnce(bool) -> Table,
) -> Result<()> {
    printer.data(&render(format, value, printer.stdout_width(), table)?)
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    #[derive(Serialize)]
    struct Item {
        name: &'static str,
        ready: bool,
    }

    fn shown(format: OutputFormat) -> String {
        render(
            format,
            &[Item {
                name: "yes",
                ready: true,
            }],
            None,
            |wide| {
                let mut table = Table::new(if wide { vec!["name", "ready"] } else { vec!["name"] });
                table.row(["yes", "true"]);
                table
            },
        )
        .unwrap()
    }

    #[test]
    fn each_format_shows_the_same_value() {
        assert_eq!(shown(OutputFormat::Table), "NAME\nyes\n");
        assert_eq!(shown(OutputFormat::Wide), "NAME   READY\nyes    true\n");
        assert_eq!(
            shown(OutputFormat::Json),
            "[\n  {\n    \"name\": \"yes\",\n    \"ready\": true\n  }\n]"
        );
        assert_eq!(shown(OutputFormat::Yaml), "- name: \"yes\"\n  ready: true\n");
    }

    #[derive(Debug, Parser)]
    struct Command {
        #[command(flatten)]
        output: OutputFlags,
        #[command(flatten)]
        dry_run: DryRunFlags,
        rest: Vec<String>,
    }

    #[test]
    fn dry_run_is_read_as_kubectl_reads_it() {
        let cases = [
            (vec!["c"], DryRun::None),
            (vec!["c", "--dry-run"], DryRun::Client),
            (vec!["c", "--dry-run", "client"], DryRun::Client),
            (vec!["c", "--dry-run=server"], DryRun::Server),
            (vec!["c", "--dry-run=none"], DryRun::None),
        ];
        for (arguments, expected) in cases {
            let command = Command::try_parse_from(&arguments).unwrap();
            assert_eq!(command.dry_run.dry_run, expected, "{arguments:?}");
        }
        assert_eq!(
            Command::try_parse_from(["c", "--dry-run", "server"]).unwrap().rest,
            ["server"]
        );
        assert!(Command::try_parse_from(["c", "--dry-run=yes"]).is_err());
    }

    #[test]
    fn the_output_flag_takes_the_formats_and_nothing_else() {
        assert_eq!(
            Command::try_parse_from(["c", "-o", "json"]).unwrap().output.output,
            OutputFormat::Json
        );
        assert_eq!(
            Command::try_parse_from(["c", "-oyaml"]).unwrap().output.output,
            OutputFormat::Yaml
        );
        assert_eq!(
            Command::try_parse_from(["c"]).unwrap().output.output,
            OutputFormat::Table
        );
        assert!(Command::try_parse_from(["c", "-o", "xml"]).is_err());
    }
}
