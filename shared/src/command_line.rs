//! What each plugin's command line has beside its own commands: completion, through kubectl and in a shell, and the
//! texts that are made from it (reference, manual pages).

use std::{
    env,
    ffi::{OsStr, OsString},
    fmt::Write,
};

use clap::{Args, Command, ValueEnum};
use clap_complete::aot::{self, Shell};

use crate::{Context, Error, Result};

/// The hidden first argument by which kubectl's completion asks, through a helper on PATH.
pub const COMPLETE: &str = "__complete";

/// What to print a completion script for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum CompletionFor {
    /// Bash
    Bash,
    /// Zsh
    Zsh,
    /// Fish
    Fish,
    /// PowerShell
    Powershell,
    /// kubectl itself: the helper that it calls
    Kubectl,
}

/// The arguments of the command `completion`.
#[derive(Clone, Copy, Debug, Args)]
pub struct CompletionArgs {
    /// The shell, or kubectl
    #[arg(value_enum, value_name = "SHELL")]
    pub shell: CompletionFor,
}

impl CompletionArgs {
    /// The script. `command` is the whole command line.
    ///
    /// # Errors
    /// It is no text, which does not happen.
    pub fn script(self, mut command: Command) -> Result<String> {
        let name = command.get_name().to_owned();
        let shell = match self.shell {
            CompletionFor::Bash => Shell::Bash,
            CompletionFor::Zsh => Shell::Zsh,
            CompletionFor::Fish => Shell::Fish,
            CompletionFor::Powershell => Shell::PowerShell,
            CompletionFor::Kubectl => return Ok(kubectl_helper(&name)),
        };
        let mut script = Vec::new();
        aot::generate(shell, &mut command, name, &mut script);
        String::from_utf8(script).context("the script is no text")
    }
}

/// The program that kubectl runs to complete `kubectl NAME …`: it has to be called `kubectl_complete-NAME`, and to lie in a
/// directory of PATH (kubectl 1.26 and newer, `pkg/cmd/plugin_completion.go`).
fn kubectl_helper(executable: &str) -> String {
    let plugin = executable.strip_prefix("kubectl-").unwrap_or(executable);
    format!(
        "#!/bin/sh\n# kubectl calls this for `kubectl {plugin} <TAB>`. It has to lie in a directory of PATH, under this \
         name.\nexec {executable} {COMPLETE} \"$@\"\n"
    )
}

/// The answer to kubectl's completion, where `arguments` (with the program's name first) ask for it; else `None`.
///
/// One candidate a line, its help behind a tab; the last line tells the shell what to do with them: 4 is not to add names
/// of files, 2 not to add a space (cobra's `ShellCompDirective`).
///
/// # Errors
/// The candidates cannot be found.
#[must_use]
pub fn completion(mut command: Command, arguments: &[OsString]) -> Option<Result<String>> {
    if arguments.get(1).map(OsString::as_os_str) != Some(OsStr::new(COMPLETE)) {
        return None;
    }
    let mut words = vec![OsString::from(command.get_name())];
    words.extend_from_slice(&arguments[2..]);
    if words.len() == 1 {
        words.push(OsString::new());
    }
    let last = words.len() - 1;
    let prefix = flag_prefix(&words[last]);
    let found = clap_complete::engine::complete(&mut command, words, last, env::current_dir().ok().as_deref());
    Some(match found {
        Ok(candidates) => Ok(answer(&candidates, &prefix)),
        Err(error) => Err(Error::usage("this cannot be completed").because(error)),
    })
}

/// `--flag=` of `--flag=value`: the shell completes the value alone.
fn flag_prefix(word: &OsStr) -> String {
    let word = word.to_string_lossy();
    match word.split_once('=') {
        Some((flag, _)) if flag.starts_with('-') => format!("{flag}="),
        _ => String::new(),
    }
}

fn answer(candidates: &[clap_complete::CompletionCandidate], prefix: &str) -> String {
    let any_shown = candidates.iter().any(|candidate| !candidate.is_hide_set());
    let mut text = String::new();
    let mut directory = false;
    for candidate in candidates.iter().filter(|one| !any_shown || !one.is_hide_set()) {
        let value = candidate.get_value().to_string_lossy();
        let value = value.strip_prefix(prefix).unwrap_or(&value);
        directory |= value.ends_with('/');
        text.push_str(value);
        let help = candidate.get_help().map(ToString::to_string).unwrap_or_default();
        if let Some(line) = help.lines().next().filter(|line| !line.is_empty()) {
            text.push('\t');
            text.push_str(line);
        }
        text.push('\n');
    }
    text.push_str(if directory { ":6\n" } else { ":4\n" });
    text
}

/// The help of all commands that are not hidden, as a page of documentation.
///
/// # Errors
/// Never in practice: writing to a text does not fail.
pub fn reference(command: Command) -> std::result::Result<String, std::fmt::Error> {
    // Help is wrapped to the terminal elsewhere; here to a page.
    let mut command = command.term_width(100).color(clap::ColorChoice::Never);
    command.build();
    let title = display_name(&command);
    let mut page =
        format!("# {title}\n\nMade from the help of the command; `{title} COMMAND --help` prints the same.\n");
    write!(page, "\n```text\n{}```\n", help(&mut command))?;
    for sub in command.get_subcommands_mut() {
        if sub.is_hide_set() || sub.get_name() == "help" {
            continue;
        }
        let name = format!("{title} {}", sub.get_name());
        let text = help(sub);
        write!(page, "\n## {name}\n\n```text\n{text}```\n")?;
    }
    Ok(page)
}

fn display_name(command: &Command) -> String {
    command.get_bin_name().unwrap_or_else(|| command.get_name()).to_owned()
}

fn help(command: &mut Command) -> String {
    let text = command.render_long_help().to_string();
    // no spaces at the end of lines in a file that people edit
    text.lines().flat_map(|line| [line.trim_end(), "\n"]).collect()
}

#[cfg(test)]
mod tests {
    use clap::{CommandFactory, Parser, Subcommand};

    use super::*;
    use crate::{kube_client::KubeFlags, output::OutputFlags};

    /// Does things
    #[derive(Debug, Parser)]
    #[command(name = "kubectl-thing", bin_name = "kubectl thing", version)]
    struct Thing {
        #[command(subcommand)]
        command: Do,
    }

    #[derive(Debug, Subcommand)]
    enum Do {
        /// Show it
        Show(Box<Flags>),
        /// Completion
        Completion(CompletionArgs),
        /// Not for people
        #[command(hide = true)]
        Secret,
    }

    #[derive(Debug, clap::Args)]
    struct Flags {
        #[command(flatten)]
        output: OutputFlags,
        #[command(flatten)]
        kube: KubeFlags,
        /// Where files are
        #[arg(long)]
        directory: Option<std::path::PathBuf>,
    }

    fn completed(words: &[&str]) -> Vec<String> {
        let mut arguments: Vec<OsString> = ["kubectl-thing", COMPLETE].map(OsString::from).into();
        arguments.extend(words.iter().map(OsString::from));
        let text = completion(Thing::command(), &arguments).unwrap().unwrap();
        text.lines().map(str::to_owned).collect()
    }

    #[test]
    fn commands_flags_and_values_are_completed_in_cobras_form() {
        assert_eq!(
            completed(&[""])[..2],
            ["show\tShow it", "completion\tCompletion"].map(str::to_owned)
        );
        assert_eq!(completed(&["sh"]), ["show\tShow it", ":4"]);
        assert_eq!(
            completed(&["se"]),
            ["secret\tNot for people", ":4"],
            "hidden, and asked for"
        );
        let flags = completed(&["show", "--o"]);
        assert_eq!(flags, ["--output\tOutput format", ":4"]);
        let formats = completed(&["show", "-o", ""]);
        assert_eq!(formats.len(), 5, "{formats:?}");
        assert_eq!(
            completed(&["show", "--output", "js"]),
            ["json\tJSON, for programs", ":4"]
        );
        assert_eq!(
            completed(&["show", "--output=js"]),
            ["json\tJSON, for programs", ":4"],
            "the flag is not repeated"
        );
        assert_eq!(completed(&["nothing-like-this"]), [":4"]);
        assert!(!completed(&[]).is_empty());
    }

    #[test]
    fn a_directory_is_completed_without_a_space_behind_it() {
        let directory = tempfile::tempdir().unwrap();
        std::fs::create_dir(directory.path().join("manifests")).unwrap();
        let typed = format!("{}/man", directory.path().display());
        let found = completed(&["show", "--directory", &typed]);
        assert_eq!(
            found,
            [format!("{}/manifests/", directory.path().display()), ":6".into()]
        );
    }

    #[test]
    fn other_command_lines_are_no_completion() {
        for arguments in [&["kubectl-thing"][..], &["kubectl-thing", "show", COMPLETE]] {
            let arguments: Vec<OsString> = arguments.iter().map(OsString::from).collect();
            assert!(completion(Thing::command(), &arguments).is_none());
        }
    }

    #[test]
    fn each_shell_gets_a_script_that_names_the_executable() {
        for shell in CompletionFor::value_variants() {
            let script = CompletionArgs { shell: *shell }.script(Thing::command()).unwrap();
            assert!(script.contains("kubectl-thing"), "{shell:?}");
        }
        let helper = CompletionArgs {
            shell: CompletionFor::Kubectl,
        };
        let helper = helper.script(Thing::command()).unwrap();
        assert!(helper.starts_with("#!/bin/sh\n") && helper.ends_with("exec kubectl-thing __complete \"$@\"\n"));
    }

    #[test]
    fn the_reference_has_what_is_not_hidden() {
        let page = reference(Thing::command()).unwrap();
        assert!(page.starts_with("# kubectl thing\n"), "{page}");
        assert!(
            page.contains("\n## kubectl thing show\n") && page.contains("Usage: kubectl thing show"),
            "{page}"
        );
        assert!(page.contains("--as-group") && !page.contains("secret"), "{page}");
        assert!(page.lines().all(|line| !line.ends_with(' ')));
    }
}
