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
        assert_eq!(
            error.to_string(),
            "cannot ask: Convert 3 components?: stderr is not a terminal"
        );
        assert!(error.hints()[0].contains("--yes"));
        assert_eq!(stderr.text(), "");
    }

    #[test]
    fn yes_asks_nothing() {
        let (printer, _, stderr) = captured(false);
        confirm(&printer, "Convert?", Some("yes-really"), true).unwrap();
        assert_eq!(stderr.text(), "");
    }

    const QUESTION: &str = "SHARED_PROMPT_PHRASE";
    const ANSWER: &str = "SHARED_PROMPT_RESULT";

    /// What the process under the terminal of [`on_a_terminal`] does: asks, and writes down how it ended.
    #[test]
    #[ignore = "runs inside the terminal that the other tests make"]
    fn inside_the_terminal() {
        let phrase = std::env::var(QUESTION).unwrap();
        let phrase = Some(phrase.as_str()).filter(|phrase| !phrase.is_empty());
        let result = confirm(
            &Printer::new(crate::printer::ColorChoice::Never),
            "Convert?",
            phrase,
            false,
        );
        let text = result.map_or_else(
            |error| format!("{:?} {error}", error.kind()),
            |()| "confirmed".to_owned(),
        );
        std::fs::write(std::env::var(ANSWER).unwrap(), text).unwrap();
    }

    /// Runs the question in a real terminal, types `keys`, and returns how it ended.
    fn on_a_terminal(phrase: &str, keys: &str) -> String {
        use std::{
            io::{Read, Write},
            process::{Command, Stdio},
        };
        let directory = tempfile::tempdir().unwrap();
        let answer = directory.path().join("answer");
        let test = std::env::current_exe().unwrap();
        let command = format!(
            "{} --ignored --nocapture --exact prompt::tests::inside_the_terminal",
            test.display()
        );
        let mut child = Command::new("script")
            .args(["-qec", &command, "/dev/null"])
            .env(QUESTION, phrase)
            .env(ANSWER, &answer)
            .env("TERM", "xterm")
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .expect("script (package bsdutils) makes the terminal");
        let mut stdout = child.stdout.take().unwrap();
        let mut shown = Vec::new();
        let mut chunk = [0; 1024];
        // Keys that are typed before the question is there would be taken for input of the terminal itself.
        while !String::from_utf8_lossy(&shown).contains("Convert?") {
            let count = stdout.read(&mut chunk).unwrap();
            assert_ne!(count, 0, "no question: {}", String::from_utf8_lossy(&shown));
            shown.extend_from_slice(&chunk[..count]);
        }
        let mut stdin = child.stdin.take().unwrap();
        stdin.write_all(keys.as_bytes()).unwrap();
        stdin.flush().unwrap();
        stdout.read_to_end(&mut shown).unwrap();
        drop(stdin);
        child.wait().unwrap();
        std::fs::read_to_string(&answer).unwrap_or_else(|_| format!("no answer: {}", String::from_utf8_lossy(&shown)))
    }

    #[test]
    fn on_a_terminal_yes_goes_ahead_and_all_else_changes_nothing() {
        assert_eq!(on_a_terminal("", "y\r"), "confirmed");
        for keys in ["n\r", "\r"] {
            assert_eq!(
                on_a_terminal("", keys),
                "Refused not confirmed; nothing was changed",
                "{keys:?}"
            );
        }
    }

    #[test]
    fn on_a_terminal_a_phrase_has_to_be_typed_whole() {
        assert_eq!(on_a_terminal("yes-really", "yes-really\r"), "confirmed");
        for keys in ["y\r", "\r", "yes-reall\r"] {
            assert_eq!(
                on_a_terminal("yes-really", keys),
                "Refused not confirmed; nothing was changed",
                "{keys:?}"
            );
        }
    }
}
