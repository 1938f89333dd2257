//! The reference and the manual pages are made from the command line, and are up to date.
#![allow(clippy::unwrap_used, clippy::panic, reason = "the helpers belong to the tests")]

use std::{
    collections::BTreeMap,
    env, fs,
    path::{Path, PathBuf},
};

use clap::CommandFactory;
use kubectl_selfhost::cli::Cli;
use shared::command_line;

const NAME: &str = "kubectl-selfhost";

/// The files of this plugin below `docs`, with what they are to hold.
fn expected() -> BTreeMap<PathBuf, String> {
    let docs = Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap().join("docs");
    let reference = command_line::reference(Cli::command()).unwrap();
    let mut files = BTreeMap::from([(docs.join("reference").join(format!("{NAME}.md")), reference)]);
    let directory = tempfile::tempdir().unwrap();
    clap_mangen::generate_to(Cli::command().display_name(NAME), directory.path()).unwrap();
    for entry in fs::read_dir(directory.path()).unwrap() {
        let entry = entry.unwrap();
        let name = entry.file_name().into_string().unwrap();
        // each command has the help of all, which is nothing for a page of its own
        if name.contains("-help") {
            continue;
        }
        let page = fs::read_to_string(entry.path()).unwrap();
        let page: String = page.lines().flat_map(|line| [line.trim_end(), "\n"]).collect();
        files.insert(docs.join("man").join(name), page);
    }
    files
}

/// The files of this plugin that are there.
fn present(directory: &Path) -> Vec<PathBuf> {
    let entries = fs::read_dir(directory).into_iter().flatten();
    entries
        .map(|entry| entry.unwrap().path())
        .filter(|path| path.file_name().unwrap().to_string_lossy().starts_with(NAME))
        .collect()
}

#[test]
fn reference_and_manual_pages_are_those_of_the_command_line() {
    let expected = expected();
    assert!(expected.len() > 5, "{:?}", expected.keys());
    let update = env::var("INSTA_UPDATE").is_ok_and(|value| value == "always");
    let mut wrong = Vec::new();
    for (path, text) in &expected {
        if fs::read_to_string(path).is_ok_and(|found| found == *text) {
            continue;
        }
        wrong.push(path.display().to_string());
        if update {
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        }
    }
    let directories = expected.keys().map(|path| path.parent().unwrap());
    for path in directories
        .collect::<std::collections::BTreeSet<_>>()
        .into_iter()
        .flat_map(present)
    {
        if !expected.contains_key(&path) {
            wrong.push(format!("{} belongs to no command", path.display()));
            if update {
                fs::remove_file(&path).unwrap();
            }
        }
    }
    assert!(
        update || wrong.is_empty(),
        "out of date: {wrong:#?}\nmake them anew with INSTA_UPDATE=always, and read the difference"
    );
}

#[test]
fn every_command_for_people_has_an_example_that_names_it_as_people_type_it() {
    let name = NAME.replacen('-', " ", 1);
    let mut command = Cli::command();
    command.build();
    let shown = command
        .get_subcommands_mut()
        .filter(|sub| !sub.is_hide_set() && sub.get_name() != "help");
    let mut seen = 0;
    for sub in shown {
        let help = sub.render_long_help().to_string();
        let examples = help.split_once("\nExample").map(|(_, rest)| rest).unwrap_or_default();
        assert!(examples.contains(&format!("{name} ")), "{}: {help}", sub.get_name());
        assert!(examples.contains(sub.get_name()), "{}: {help}", sub.get_name());
        seen += 1;
    }
    assert!(seen > 4);
}
