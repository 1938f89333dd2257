//! Dependencies point inward: the layers of `docs/architecture.md` against the source.
#![allow(clippy::unwrap_used, clippy::panic, reason = "the helpers belong to the tests")]

use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    path::{Path, PathBuf},
};

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap().to_owned()
}

/// Modules of a plugin by name, with the number of their layer; `a/b` is a part that lies in another layer than the rest
/// of `a`.
fn layers(page: &str, plugin: &str) -> BTreeMap<String, usize> {
    let section = page.split_once(&format!("\n## {plugin}\n")).unwrap().1;
    let section = section.split("\n## ").next().unwrap();
    let rows = section.lines().filter(|line| line.starts_with("| ")).skip(2);
    let mut found = BTreeMap::new();
    for (layer, row) in rows.enumerate() {
        for module in row.split('`').skip(1).step_by(2) {
            let before = found.insert(module.to_owned(), layer);
            assert_eq!(before, None, "{module} is in two layers");
        }
    }
    found
}

/// The source without comments and without its tests at the end.
fn code(text: &str) -> String {
    let text = text.split("#[cfg(test)]").next().unwrap_or_default();
    let lines = text.lines().map(|line| line.split("//").next().unwrap_or_default());
    lines.flat_map(|line| [line, "\n"]).collect()
}

/// The paths behind `crate::`, those of nested lists too, at most two names deep: `a`, `a/b`.
fn used(code: &str) -> BTreeSet<String> {
    let mut found = BTreeSet::new();
    for rest in code.split("crate::").skip(1) {
        for path in paths(rest) {
            let names: Vec<&str> = path.split("::").take(2).collect();
            found.insert(names[0].to_owned());
            found.insert(names.join("/"));
        }
    }
    found
}

/// `a::b`, or each of `{a::b, c}`; what stands in inner braces is left out.
fn paths(rest: &str) -> Vec<String> {
    let name = |text: &str| -> String {
        let end = text
            .find(|c: char| !c.is_ascii_alphanumeric() && c != '_' && c != ':')
            .unwrap_or(text.len());
        text[..end].trim_end_matches(':').to_owned()
    };
    let Some(list) = rest.strip_prefix('{') else {
        return vec![name(rest)];
    };
    let (mut depth, mut flat) = (1, String::new());
    for c in list.chars() {
        match c {
            '{' => depth += 1,
            '}' => depth -= 1,
            _ if depth == 1 => flat.push(c),
            _ => {}
        }
        if depth == 0 {
            break;
        }
    }
    flat.split(',')
        .map(|item| name(item.trim()))
        .filter(|item| !item.is_empty())
        .collect()
}

/// Source files of a plugin, with their path below `src` without the ending.
fn sources(plugin: &str) -> BTreeMap<String, String> {
    fn walk(root: &Path, directory: &Path, found: &mut BTreeMap<String, String>) {
        for entry in fs::read_dir(directory).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                walk(root, &path, found);
            } else if path.extension().is_some_and(|extension| extension == "rs") {
                let name = path.strip_prefix(root).unwrap().with_extension("");
                found.insert(name.display().to_string(), fs::read_to_string(&path).unwrap());
            }
        }
    }
    let source = root().join(plugin).join("src");
    let mut found = BTreeMap::new();
    walk(&source, &source, &mut found);
    let outside = |name: &str| ["main", "lib", "test_support"].contains(&name) || name.ends_with("_tests");
    found.retain(|name, _| !outside(name));
    found
}

/// The layer of a file or of a path that is used: that of its first two names, else of the first.
fn layer_of(layers: &BTreeMap<String, usize>, path: &str) -> Option<usize> {
    let mut names = path.split('/');
    let first = names.next().unwrap_or_default();
    let two = names.next().map(|second| format!("{first}/{second}"));
    two.and_then(|two| layers.get(&two))
        .or_else(|| layers.get(first))
        .copied()
}

fn faults(layers: &BTreeMap<String, usize>, sources: &BTreeMap<String, String>) -> Vec<String> {
    let mut wrong = Vec::new();
    for (file, text) in sources {
        let Some(own) = layer_of(layers, file) else {
            wrong.push(format!("{file} is in no layer"));
            continue;
        };
        for used in used(&code(text)) {
            match layer_of(layers, &used) {
                // a name that is no module, such as one that lib.rs exports
                None => {}
                Some(other) if other > own => wrong.push(format!("{file} uses {used}, which is further out")),
                Some(_) => {}
            }
        }
    }
    for module in layers.keys() {
        if !sources
            .keys()
            .any(|file| file == module || file.starts_with(&format!("{module}/")))
        {
            wrong.push(format!("there is no module {module}"));
        }
    }
    wrong
}

#[test]
fn modules_use_their_own_layer_and_those_further_in() {
    let page = fs::read_to_string(root().join("docs/architecture.md")).unwrap();
    for (plugin, least) in [("kubectl-selfhost", 40), ("kubectl-klusterlet", 25)] {
        let layers = layers(&page, plugin);
        assert!(layers.len() >= least, "{layers:?}");
        assert_eq!(faults(&layers, &sources(plugin)), Vec::<String>::new(), "{plugin}");
    }
}

#[test]
fn what_decides_touches_no_cluster_and_no_clock() {
    let page = fs::read_to_string(root().join("docs/architecture.md")).unwrap();
    for plugin in ["kubectl-selfhost", "kubectl-klusterlet"] {
        let layers = layers(&page, plugin);
        for (file, text) in sources(plugin) {
            if layer_of(&layers, &file) != Some(0) {
                continue;
            }
            for world in [
                "kube::Client",
                "kube::Api",
                "tokio::",
                "std::process",
                "SystemTime::now",
                "Instant::now",
            ] {
                assert!(!code(&text).contains(world), "{plugin}: {file} uses {world}");
            }
        }
    }
}

#[test]
fn the_crates_depend_on_shared_and_never_the_other_way() {
    let manifest = |name: &str| fs::read_to_string(root().join(name).join("Cargo.toml")).unwrap();
    for word in ["kubectl-selfhost", "kubectl-klusterlet"] {
        let own_name = format!("name = \"{word}\"");
        for other in ["shared", "tests", "kubectl-selfhost", "kubectl-klusterlet"] {
            let text = manifest(other).replace(&own_name, "");
            assert!(!text.contains(&format!("\n{word}")), "{other} depends on {word}");
        }
        assert!(manifest(word).contains("\nshared.workspace = true"), "{word}");
    }
    assert!(
        !manifest("tests").contains("\nshared"),
        "tests run the plugins from outside"
    );
}

#[test]
fn a_use_that_points_outward_is_found() {
    let layers =
        BTreeMap::from([("core", 0), ("core/api", 1), ("world", 1), ("cli", 2)].map(|(m, l)| (m.to_owned(), l)));
    let source = |core: &str, cli: &str| {
        let files = [
            ("core", core),
            ("core/api", "use crate::world;"),
            ("world", ""),
            ("cli/mod", cli),
        ];
        BTreeMap::from(files.map(|(name, text)| (name.to_owned(), text.to_owned())))
    };
    let good = source(
        "// use crate::cli;\nuse crate::core::x;",
        "use crate::{core, world::{self, y}};",
    );
    assert_eq!(faults(&layers, &good), Vec::<String>::new());
    for (bad, fault) in [
        ("use crate::world::x;", "core uses world, which is further out"),
        ("fn f() { crate::cli::run() }", "core uses cli, which is further out"),
        (
            "use crate::{core::x, world::{a, b}};",
            "core uses world, which is further out",
        ),
        ("use crate::core::api::x;", "core uses core/api, which is further out"),
    ] {
        assert!(faults(&layers, &source(bad, "")).contains(&fault.to_owned()), "{bad}");
    }
    let mut more = good.clone();
    more.insert("new".into(), String::new());
    assert_eq!(faults(&layers, &more), ["new is in no layer"]);
}
