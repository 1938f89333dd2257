//! The documentation against the code: links lead somewhere, commands and flags exist, tables that mirror the source are
//! complete.
#![allow(clippy::unwrap_used, clippy::panic, reason = "the helpers belong to the tests")]

use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    path::{Path, PathBuf},
};

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap().to_owned()
}

fn read(path: impl AsRef<Path>) -> String {
    let path = root().join(path);
    fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

/// All files below the workspace with this ending, but for what is built or hidden.
fn files(ending: &str) -> Vec<PathBuf> {
    fn walk(directory: &Path, ending: &str, found: &mut Vec<PathBuf>) {
        for entry in fs::read_dir(directory).unwrap() {
            let path = entry.unwrap().path();
            let name = path.file_name().unwrap().to_string_lossy().into_owned();
            if path.is_dir() {
                if !name.starts_with('.') && name != "target" && name != "snapshots" {
                    walk(&path, ending, found);
                }
            } else if name.ends_with(ending) {
                found.push(path);
            }
        }
    }
    let mut found = Vec::new();
    walk(&root(), ending, &mut found);
    found.sort();
    found
}

/// All pages of documentation, by their path inside the repository.
fn pages() -> BTreeMap<PathBuf, String> {
    let pages: BTreeMap<_, _> = files(".md")
        .into_iter()
        .map(|path| (path.strip_prefix(root()).unwrap().to_owned(), read(&path)))
        .collect();
    assert!(
        pages.contains_key(Path::new("README.md")) && pages.len() > 8,
        "{:?}",
        pages.keys()
    );
    pages
}

/// A page without its blocks of code.
fn prose(page: &str) -> String {
    let parts = page.split("\n```").enumerate();
    parts.filter(|(n, _)| n % 2 == 0).map(|(_, text)| text).collect()
}

/// The lines of a page's blocks of code.
fn code(page: &str) -> Vec<&str> {
    let parts = page.split("\n```").enumerate();
    // the first line of a block is the name of its language
    parts
        .filter(|(n, _)| n % 2 == 1)
        .flat_map(|(_, block)| block.lines().skip(1))
        .collect()
}

/// What stands between single backticks.
fn spans(prose: &str) -> Vec<&str> {
    prose
        .lines()
        .flat_map(|line| line.split('`').skip(1).step_by(2))
        .collect()
}

// ---- links ----

/// Targets of inline links: what stands between `](` and `)`.
fn links(prose: &str) -> Vec<&str> {
    prose
        .split("](")
        .skip(1)
        .filter_map(|rest| rest.split_once(')'))
        .map(|(target, _)| target)
        .collect()
}

/// The anchors of a page's headings, as GitHub makes them.
fn anchors(page: &str) -> BTreeSet<String> {
    let text = prose(page);
    let headings = text.lines().filter(|line| line.starts_with('#'));
    headings
        .map(|line| {
            let kept = line.trim_start_matches('#').trim().to_lowercase();
            let kept = kept
                .chars()
                .filter(|c| c.is_alphanumeric() || matches!(c, ' ' | '-' | '_'));
            kept.map(|c| if c == ' ' { '-' } else { c }).collect()
        })
        .collect()
}

/// Links that lead nowhere.
fn dead_links(pages: &BTreeMap<PathBuf, String>) -> Vec<String> {
    let mut dead = Vec::new();
    for (path, page) in pages {
        let prose = prose(page);
        for link in links(&prose) {
            if link.starts_with("https://") {
                continue;
            }
            let (file, anchor) = link
                .split_once('#')
                .map_or((link, None), |(file, anchor)| (file, Some(anchor)));
            let target = if file.is_empty() {
                path.clone()
            } else {
                path.parent().unwrap().join(file)
            };
            let good = match anchor {
                None => root().join(&target).exists(),
                Some(anchor) => {
                    let text = if file.is_empty() {
                        Ok(page.clone())
                    } else {
                        fs::read_to_string(root().join(&target))
                    };
                    text.is_ok_and(|text| anchors(&text).contains(anchor))
                }
            };
            if !good {
                dead.push(format!("{}: {link}", path.display()));
            }
        }
    }
    dead
}

#[test]
fn every_link_leads_somewhere() {
    assert_eq!(dead_links(&pages()), Vec::<String>::new());
}

#[test]
fn links_that_lead_nowhere_are_found() {
    let page = "# Some title, with `code`\n[a](README.md) [b](#some-title-with-code) [c](https://example.test/)\n\
                [d](nowhere.md) [e](#nowhere) [f](LICENSE#nowhere)\n```\n[g](in-code.md)\n```\n";
    let dead = dead_links(&BTreeMap::from([("x.md".into(), page.to_owned())]));
    assert_eq!(dead, ["x.md: nowhere.md", "x.md: #nowhere", "x.md: LICENSE#nowhere"]);
}

// ---- commands of cargo ----

/// Subcommands that cargo has, or that the page says how to get.
const CARGO: [&str; 9] = [
    "build", "clippy", "deny", "doc", "fetch", "fmt", "install", "run", "test",
];

/// The subcommands of cargo in a page, with their packages.
fn cargo_commands(page: &str) -> BTreeSet<String> {
    let prose = prose(page);
    let commands = code(page).into_iter().chain(spans(&prose));
    commands
        .flat_map(|line| line.split("cargo ").skip(1))
        .filter_map(|rest| rest.split_whitespace().next())
        .map(|word| word.trim_end_matches(['`', ',', ';', '.', ':', ')']).to_owned())
        .filter(|word| word.starts_with(|c: char| c.is_ascii_lowercase()))
        .collect()
}

/// The aliases of `.cargo/config.toml`, with what they stand for.
fn aliases() -> BTreeMap<String, String> {
    let text = read(".cargo/config.toml");
    let section = text.split_once("[alias]\n").unwrap().1;
    let lines = section.lines().take_while(|line| !line.starts_with('['));
    lines
        .filter_map(|line| line.split_once(" = "))
        .map(|(name, value)| (name.to_owned(), value.trim_matches('"').to_owned()))
        .collect()
}

#[test]
fn every_cargo_command_of_the_documentation_exists() {
    let aliases = aliases();
    let mut unknown = Vec::new();
    for (path, page) in pages() {
        for command in cargo_commands(&page) {
            if !aliases.contains_key(&command) && !CARGO.contains(&command.as_str()) {
                unknown.push(format!("{}: cargo {command}", path.display()));
            }
        }
    }
    assert_eq!(unknown, Vec::<String>::new());
    assert_eq!(
        cargo_commands("`cargo lab up 1`, `cargo demo`\n```sh\ncargo tset; cargo fmt\n```\ncargo is no command"),
        ["demo", "fmt", "lab", "tset"].map(str::to_owned).into()
    );
}

#[test]
fn every_alias_runs_a_program_that_exists() {
    let manifest = read("tests/Cargo.toml");
    for (name, command) in aliases() {
        let program = command.split_once("--bin ").unwrap().1.split(' ').next().unwrap();
        let section = manifest
            .split("[[bin]]")
            .find(|section| section.contains(&format!("name = \"{program}\"")));
        let path = section
            .and_then(|section| section.split_once("path = \""))
            .unwrap()
            .1
            .split('"')
            .next()
            .unwrap();
        assert!(root().join("tests").join(path).is_file(), "cargo {name}: {path}");
    }
}

#[test]
fn the_readme_begins_with_two_commands_and_the_second_is_what_the_checks_run() {
    let readme = read("README.md");
    let commands = code(&readme)[..2].to_vec();
    let words: Vec<&str> = commands
        .iter()
        .map(|line| line.split('#').next().unwrap().trim())
        .collect();
    assert_eq!(words, ["cargo demo", "cargo test"]);
    // a workspace without a package of its own at its root: `cargo test` tests all of it
    let workspace = read("Cargo.toml");
    assert!(workspace.starts_with("[workspace]") && !workspace.contains("\n[package]"));
    assert!(!workspace.contains("default-members"));
    let checks = read(".ci/run");
    assert!(checks.contains("cargo test \"$@\"") && checks.contains("'tests --workspace'"));
    for command in [
        "cargo fmt --all --check",
        "cargo clippy --workspace --all-targets --locked -- -D warnings",
    ] {
        assert!(checks.contains(command), "{command}");
    }
}

#[test]
fn the_readme_asks_for_the_versions_that_are_needed() {
    let readme = read("README.md");
    let workspace = read("Cargo.toml");
    let rust = workspace
        .split_once("rust-version = \"")
        .unwrap()
        .1
        .split('"')
        .next()
        .unwrap();
    let numbers = |version: &str| -> Vec<u32> { version.split('.').map(|number| number.parse().unwrap()).collect() };
    let modules = files("go.mod");
    let go = modules
        .iter()
        .map(|path| {
            let text = read(path);
            let line = text.lines().find_map(|line| line.strip_prefix("go ")).unwrap();
            line.to_owned()
        })
        .max_by_key(|version| numbers(version))
        .unwrap();
    let wanted = format!("[Rust](https://rustup.rs) {rust} and [Go](https://go.dev/dl/) {go} or newer");
    assert!(readme.replace('\n', " ").contains(&wanted), "{wanted}");
}

// ---- the plugins ----

/// The source of the command line.
fn command_line_source() -> String {
    let mut text = String::new();
    for directory in ["kubectl-selfhost/src/cli", "shared/src", "kubectl-klusterlet/src"] {
        for path in files(".rs") {
            if path.starts_with(root().join(directory)) {
                text.push_str(&read(&path));
            }
        }
    }
    text
}

/// The long flags behind one of our commands, in code and in backticks.
fn flags(page: &str) -> BTreeSet<String> {
    let prose = prose(page);
    let commands = code(page).into_iter().chain(spans(&prose));
    let mut flags = BTreeSet::new();
    for line in commands {
        let ours = line
            .split(['|', ';', '#'])
            .filter(|part| part.contains("kubectl selfhost") || part.contains("kubectl-selfhost "));
        let words = ours
            .flat_map(str::split_whitespace)
            .filter_map(|word| word.strip_prefix("--"));
        flags.extend(words.map(|word| word.split('=').next().unwrap_or(word).to_owned()));
        // a flag alone between backticks, which prose speaks of
        if let Some(flag) = line.strip_prefix("--").filter(|flag| !flag.contains(' ')) {
            flags.insert(flag.split('=').next().unwrap_or(flag).to_owned());
        }
    }
    flags
}

/// Flags of others of which the documentation speaks.
const FOREIGN_FLAGS: [&str; 3] = ["permit-port-sharing", "bind-address", "locked"];

#[test]
fn every_flag_of_the_documentation_exists() {
    let source = command_line_source();
    let known = |flag: &str| {
        let field = flag.replace('-', "_");
        source.contains(&format!("{field}: ")) || source.contains(&format!("\"{flag}\""))
    };
    assert!(known("exit-code") && known("keep-sharing") && !known("keep-shraing"));
    let mut unknown = Vec::new();
    for (path, page) in pages() {
        if path.ends_with("CHANGELOG.md") || path.starts_with("docs/decisions") {
            continue; // they tell of other times, and of flags of the components
        }
        for flag in flags(&page) {
            if !known(&flag) && !FOREIGN_FLAGS.contains(&flag.as_str()) {
                unknown.push(format!("{}: --{flag}", path.display()));
            }
        }
    }
    assert_eq!(unknown, Vec::<String>::new());
}

#[test]
fn every_environment_variable_of_the_documentation_is_read_somewhere() {
    let source: String = files(".rs")
        .iter()
        .filter(|path| !path.ends_with("docs.rs"))
        .map(read)
        .collect();
    let mut unknown = Vec::new();
    for (path, page) in pages() {
        for word in page.split(|c: char| !c.is_ascii_alphanumeric() && c != '_') {
            // the prefix of a lab's variables is put together with their end
            let end = word.rsplit('_').next().unwrap_or_default();
            if word.starts_with("SELFHOST_") && !source.contains(word) && !source.contains(&format!("{{prefix}}_{end}"))
            {
                unknown.push(format!("{}: {word}", path.display()));
            }
        }
    }
    assert_eq!(unknown, Vec::<String>::new());
}

// ---- tables that mirror the source ----

/// Every text in the guard's decisions: the arguments of `act`, `wait` and `stuck`.
fn words_of_the_guard() -> BTreeSet<String> {
    let source = read("kubectl-selfhost/src/node/guard/machine.rs");
    let source = source.split_once("/// Towards the DaemonSet").unwrap().1;
    // a piece between quotes, after everything that is a comment has gone
    let code: Vec<&str> = source
        .lines()
        .map(|line| line.split("//").next().unwrap_or(line))
        .collect();
    let code = code.join("\n");
    let texts = code.split('"').skip(1).step_by(2);
    texts.filter(|text| text.contains(' ')).map(str::to_owned).collect()
}

#[test]
fn the_table_of_the_guards_decisions_is_that_of_the_source() {
    let words = words_of_the_guard();
    assert!(
        words.len() > 25 && words.contains("saving the original manifest"),
        "{words:#?}"
    );
    let page = read("docs/how-it-works.md");
    let section = page
        .split_once("## The guard's decisions")
        .unwrap()
        .1
        .split("\n## ")
        .next()
        .unwrap();
    let rows: BTreeSet<String> = section
        .lines()
        .filter_map(|line| line.strip_prefix("| "))
        .filter_map(|line| line.split(" |").next())
        .map(str::to_owned)
        .filter(|cell| cell != "words" && !cell.starts_with("---"))
        .collect();
    let missing: Vec<_> = words.difference(&rows).collect();
    let surplus: Vec<_> = rows.difference(&words).collect();
    assert!(
        missing.is_empty() && surplus.is_empty(),
        "missing {missing:?}, surplus {surplus:?}"
    );
    let source = read("kubectl-selfhost/src/node/guard/machine.rs");
    let actions = source
        .split_once("pub enum Action {")
        .unwrap()
        .1
        .split("\n}")
        .next()
        .unwrap();
    let actions = actions
        .lines()
        .map(str::trim)
        .filter(|line| line.ends_with(',') && !line.starts_with("//"));
    for action in actions
        .map(|line| line.trim_end_matches(','))
        .filter(|action| *action != "Nothing")
    {
        assert!(section.contains(&format!("`{action}`")), "{action}");
    }
}

/// Names of all fields of a JSON text.
fn field_names(value: &serde_json::Value, names: &mut BTreeSet<String>) {
    match value {
        serde_json::Value::Object(map) => {
            for (name, value) in map {
                names.insert(name.clone());
                field_names(value, names);
            }
        }
        serde_json::Value::Array(list) => list.iter().for_each(|value| field_names(value, names)),
        _ => {}
    }
}

#[test]
fn every_field_of_the_status_is_documented() {
    let snapshot = read("kubectl-selfhost/src/snapshots/kubectl_selfhost__status__tests__json.snap");
    let json = snapshot.splitn(3, "---\n").nth(2).unwrap();
    let mut names = BTreeSet::new();
    field_names(&serde_json::from_str(json).unwrap(), &mut names);
    assert!(names.contains("lastLogLine") && names.len() > 15, "{names:?}");
    let page = read("docs/json.md");
    let section = page
        .split_once("## `status -o json`")
        .unwrap()
        .1
        .split("\n## ")
        .next()
        .unwrap();
    let documented: BTreeSet<&str> = spans(section)
        .into_iter()
        .flat_map(|span| span.split('.'))
        .map(|name| name.trim_end_matches("[]"))
        .collect();
    let missing: Vec<&String> = names
        .iter()
        .filter(|name| !documented.contains(name.as_str()))
        .collect();
    assert!(missing.is_empty(), "{missing:?}");
}

#[test]
fn every_exit_code_is_documented() {
    let readme = read("README.md");
    let section = readme
        .split_once("## Exit codes")
        .unwrap()
        .1
        .split("\n## ")
        .next()
        .unwrap();
    let cli = read("kubectl-selfhost/src/cli/convert.rs");
    for (name, code) in [("EXIT_CHANGES", 3), ("EXIT_FORBIDDEN", 4)] {
        assert!(cli.contains(&format!("pub const {name}: u8 = {code};")), "{name}");
        assert!(section.contains(&format!("| {code} |")), "{code}");
    }
    for kind in [
        shared::error::Kind::Failure,
        shared::error::Kind::Usage,
        shared::error::Kind::Interrupted,
    ] {
        assert!(section.contains(&format!("| {} |", kind.exit_code())), "{kind:?}");
    }
}
