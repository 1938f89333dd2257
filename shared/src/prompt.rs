//! Questions to the person at the terminal. They are asked on stderr, and keys come from the terminal even where stdin is
//! a pipe.

use std::io;

use console::Term;
use dialoguer::{Confirm, Input, theme::SimpleTheme};

use crate::{Error, Printer, Result};

/// The flag `--yes`.
#[derive(Clone, Copy, Debug, Default, clap::Args)]
pub struct YesFlags {
    /// Do not ask: go ahead. For scripts
    #[arg(short = 'y', long)]
    pub yes: bool,
}

/// Asks before something is changed. `phrase` is what the person has to type, where a `y` is given too easily.
///
/// # Errors
/// A refusal where the answer is no, or where nobody can be asked and `yes` is not set; an interruption after Ctrl-C.
pub fn confirm(printer: &Printer, question: &str, phrase: Option<&str>, yes: bool) -> Result<()> {
    if yes {
        return Ok(());
    }
    if !printer.stderr_is_terminal() {
        return Err(Error::refused(format!("cannot ask: {question}"))
            .because("stderr is not a terminal")
            .hint("add --yes to go ahead without being asked"));
    }
    ask(&Term::stderr(), question, phrase)
}

fn ask(terminal: &Term, question: &str, phrase: Option<&str>) -> Result<()> {
    let agreed = match phrase {
        None => Confirm::with_theme(&SimpleTheme)
            .with_prompt(question)
            .default(false)
            .wait_for_newline(true)
            .interact_on(terminal),
        Some(phrase) => Input::<String>::with_theme(&SimpleTheme)
            .with_prompt(format!("{question} Type \"{phrase}\" to go ahead"))
            .allow_empty(true)
            .interact_text_on(terminal)
            .map(|typed| typed.trim() == phrase),
    };
    match agreed {
        Ok(true) => Ok(()),
        Ok(false) => Err(Error::refused("not confirmed; nothing was changed")),
        Err(dialoguer::Error::IO(error)) if error.kind() == io::ErrorKind::Interrupted => {
            Err(Error::interrupted("interrupted at the question; nothing was changed"))
        }
        Err(dialoguer::Error::IO(error)) => Err(Error::refused("cannot ask; nothing was changed")
            .because(error)
            .hint("add --yes to go ahead without being asked")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{error::Kind, printer::tests::captured};

    #[test]
    fn off_a_terminal_it_refuses_and_names_the_flag() {
        let (printer, _, stderr) = captured(false);
        let error = confirm(&printer, "Convert 3 components?", None, false).unwrap_err();
        assert_eq!(error.kind(), Kind::Refused);
        assert_eq!(error.to_string(), "cannot ask: Convert 3 components?: stderr is not a terminal");
        assert!(error.hints()[0].contains("--yes"));
        assert_eq!(stderr.text(), "");
    }

    #[test]
    fn yes_asks_nothing() {
        let (printer, _, stderr) = captured(false);
        confirm(&printer, "Convert?", Some("yes-really"), true).unwrap();
        assert_eq!(stderr.text(), "");
    }
}
