//! The files that stand around the code: the licences of all dependencies against `deny.toml`, and the krew manifests
//! against what krew expects (its validator accepts misspelt fields, so this does not).
#![allow(clippy::unwrap_used, clippy::panic, reason = "the helpers belong to the tests")]

use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    path::{Path, PathBuf},
    process::Command,
};

use serde_json::Value;

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap().to_owned()
}

fn read(path: &str) -> String {
    fs::read_to_string(root().join(path)).unwrap_or_else(|error| panic!("{path}: {error}"))
}

// ---- licences ----

/// The quoted words of a TOML array that begins with `start` and ends with `]` on a line of its own.
fn words(text: &str, start: &str) -> BTreeSet<String> {
    let array = text.split_once(start).unwrap().1.split_once("\n]").unwrap().0;
    let lines = array.lines().filter(|line| !line.trim_start().starts_with('#'));
    lines
        .flat_map(|line| line.split('"').skip(1).step_by(2))
        .map(str::to_owned)
        .collect()
}

/// The quoted value behind `key = ` in a line.
fn value_of<'a>(line: &'a str, key: &str) -> Option<&'a str> {
    line.split_once(&format!("{key} = "))?.1.split('"').nth(1)
}

/// Whether an SPDX expression (or the old form with a slash) can be met with the allowed licences.
fn is_met(expression: &str, allowed: &dyn Fn(&str) -> bool) -> bool {
    let expression = expression.replace('/', " OR ").replace('(', " ( ").replace(')', " ) ");
    let mut tokens = expression.split_whitespace().peekable();
    let met = any_of(&mut tokens, allowed);
    assert!(tokens.next().is_none(), "{expression}");
    met
}

type Tokens<'a> = std::iter::Peekable<std::str::SplitWhitespace<'a>>;

fn any_of(tokens: &mut Tokens<'_>, allowed: &dyn Fn(&str) -> bool) -> bool {
    let mut met = all_of(tokens, allowed);
    while tokens.next_if_eq(&"OR").is_some() {
        met |= all_of(tokens, allowed);
    }
    met
}

fn all_of(tokens: &mut Tokens<'_>, allowed: &dyn Fn(&str) -> bool) -> bool {
    let mut met = one(tokens, allowed);
    while tokens.next_if_eq(&"AND").is_some() {
        met &= one(tokens, allowed);
    }
    met
}

fn one(tokens: &mut Tokens<'_>, allowed: &dyn Fn(&str) -> bool) -> bool {
    let token = tokens.next().unwrap();
    if token == "(" {
        let met = any_of(tokens, allowed);
        assert_eq!(tokens.next(), Some(")"));
        return met;
    }
    match tokens.next_if_eq(&"WITH") {
        Some(_) => allowed(&format!("{token} WITH {}", tokens.next().unwrap())),
        None => allowed(token),
    }
}

#[test]
fn expressions_are_read_as_spdx_says() {
    let allowed = |licence: &str| ["MIT", "ISC", "Apache-2.0 WITH LLVM-exception"].contains(&licence);
    let cases = [
        ("MIT", true),
        ("GPL-3.0", false),
        ("MIT OR GPL-3.0", true),
        ("GPL-3.0/MIT", true),
        ("MIT AND GPL-3.0", false),
        ("(GPL-3.0 OR MIT) AND ISC", true),
        ("GPL-3.0 OR MIT AND Zlib", false),
        ("Apache-2.0 WITH LLVM-exception", true),
        ("Apache-2.0", false),
    ];
    for (expression, met) in cases {
        assert_eq!(is_met(expression, &allowed), met, "{expression}");
    }
}

#[test]
fn all_dependencies_have_an_allowed_licence_and_source_and_none_is_banned() {
    let deny = read("deny.toml");
    let allowed = words(&deny, "\nallow = [");
    assert!(allowed.contains("MIT") && allowed.len() < 12, "{allowed:?}");
    let exceptions: BTreeMap<&str, &str> = deny
        .lines()
        .filter_map(|line| Some((value_of(line, "name")?, value_of(line, "allow")?)))
        .collect();
    let banned: BTreeSet<&str> = deny
        .lines()
        .filter(|line| line.contains("reason = "))
        .filter_map(|line| value_of(line, "name"))
        .collect();
    assert!(banned.contains("openssl-sys") && exceptions.contains_key("webpki-root-certs"));

    let output = Command::new(env!("CARGO"))
        .args(["metadata", "--format-version", "1", "--locked", "--all-features"])
        .current_dir(root())
        .output()
        .unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let metadata: Value = serde_json::from_slice(&output.stdout).unwrap();
    let packages = metadata["packages"].as_array().unwrap();
    assert!(packages.len() > 100);

    let mut wrong = Vec::new();
    for package in packages {
        let name = package["name"].as_str().unwrap();
        let Some(source) = package["source"].as_str() else {
            continue;
        };
        if !source.starts_with("registry+") {
            wrong.push(format!("{name} comes from {source}"));
        }
        if banned.contains(name) {
            wrong.push(format!("{name} is banned"));
        }
        let licence = package["license"].as_str().unwrap_or("none");
        let exception = exceptions.get(name).copied();
        if !is_met(licence, &|one| allowed.contains(one) || exception == Some(one)) {
            wrong.push(format!("{name} has the licence {licence}"));
        }
    }
    assert!(wrong.is_empty(), "{wrong:#?}");
}

#[test]
fn the_licence_is_the_one_that_the_packages_name() {
    let licence = read("LICENSE");
    assert!(licence.contains("Apache License") && licence.contains("Version 2.0, January 2004"));
    assert!(licence.contains("END OF TERMS AND CONDITIONS"));
    assert!(read("Cargo.toml").contains("license = \"Apache-2.0\""));
}

// ---- krew ----

/// Fields of a manifest by the types of krew (`pkg/index/types.go`), with whether they are required.
const PLUGIN: &[(&str, bool)] = &[("apiVersion", true), ("kind", true), ("metadata", true), ("spec", true)];
const SPEC: &[(&str, bool)] = &[
    ("version", true),
    ("shortDescription", true),
    ("description", false),
    ("caveats", false),
    ("homepage", true),
    ("platforms", true),
];
const PLATFORM: &[(&str, bool)] = &[
    ("uri", true),
    ("sha256", true),
    ("selector", true),
    ("files", false),
    ("bin", true),
];
const SYSTEMS: [(&str, &str); 8] = [
    ("windows", "386"),
    ("windows", "amd64"),
    ("linux", "amd64"),
    ("linux", "arm64"),
    ("linux", "arm"),
    ("linux", "ppc64le"),
    ("darwin", "amd64"),
    ("darwin", "arm64"),
];

fn check_fields(value: &Value, known: &[(&str, bool)], wrong: &mut Vec<String>) {
    let Some(map) = value.as_object() else {
        wrong.push(format!("{value} is no mapping"));
        return;
    };
    for key in map.keys() {
        if !known.iter().any(|(name, _)| name == key) {
            wrong.push(format!("unknown field {key}"));
        }
    }
    for (name, required) in known {
        if *required && !map.contains_key(*name) {
            wrong.push(format!("missing field {name}"));
        }
    }
}

/// What is wrong with a manifest whose words between @ signs were replaced.
fn faults(manifest: &str, name: &str) -> Vec<String> {
    let mut wrong = Vec::new();
    let plugin = match shared::yaml::first_document(manifest) {
        Ok(plugin) => plugin,
        Err(error) => return vec![error.to_string()],
    };
    let mut check = |holds: bool, what: String| {
        if !holds {
            wrong.push(what);
        }
    };
    check(
        plugin["apiVersion"] == "krew.googlecontainertools.github.com/v1alpha2",
        "apiVersion".into(),
    );
    check(plugin["kind"] == "Plugin", "kind".into());
    check(
        plugin["metadata"] == serde_json::json!({ "name": name }),
        "metadata.name is not the name of the file".into(),
    );
    let spec = &plugin["spec"];
    let version = spec["version"].as_str().unwrap_or_default();
    let numbers: Vec<&str> = version.strip_prefix('v').unwrap_or_default().split('.').collect();
    check(
        numbers.len() == 3 && numbers.iter().all(|number| number.parse::<u32>().is_ok()),
        format!("version {version}"),
    );
    let short = spec["shortDescription"].as_str().unwrap_or_default();
    check(
        (1..=50).contains(&short.len()) && !short.contains('\n'),
        format!("shortDescription {short}"),
    );
    let platforms = spec["platforms"].as_array().cloned().unwrap_or_default();
    check(!platforms.is_empty(), "no platform".into());
    let mut selected = BTreeSet::new();
    for platform in &platforms {
        let labels = &platform["selector"]["matchLabels"];
        let system = (
            labels["os"].as_str().unwrap_or_default(),
            labels["arch"].as_str().unwrap_or_default(),
        );
        check(SYSTEMS.contains(&system), format!("selector {system:?}"));
        check(selected.insert(system), format!("two platforms for {system:?}"));
        let sum = platform["sha256"].as_str().unwrap_or_default();
        let hexadecimal = |byte: u8| byte.is_ascii_digit() || (b'a'..=b'f').contains(&byte);
        check(sum.len() == 64 && sum.bytes().all(hexadecimal), format!("sha256 {sum}"));
        let uri = platform["uri"].as_str().unwrap_or_default();
        check(
            uri.starts_with("https://") && (uri.ends_with(".tar.gz") || uri.ends_with(".zip")),
            format!("uri {uri}"),
        );
        check(
            uri.contains(&format!("/{version}/")),
            format!("uri {uri} is of another version"),
        );
        let suffix = if system.0 == "windows" { ".exe" } else { "" };
        check(platform["bin"] == format!("kubectl-{name}{suffix}"), "bin".into());
        check(
            platform["files"].as_array().is_none_or(|files| !files.is_empty()),
            "files is empty".into(),
        );
    }
    check_fields(&plugin, PLUGIN, &mut wrong);
    check_fields(spec, SPEC, &mut wrong);
    for platform in &platforms {
        check_fields(platform, PLATFORM, &mut wrong);
    }
    wrong
}

fn released(name: &str) -> String {
    let mut manifest = read(&format!("krew/{name}.yaml"))
        .replace("@VERSION@", "v1.2.3")
        .replace(
            "@BASE_URL@",
            "https://github.com/kubectl-selfhost/kubectl-selfhost/releases/download",
        );
    for system in [
        "LINUX_AMD64",
        "LINUX_ARM64",
        "DARWIN_AMD64",
        "DARWIN_ARM64",
        "WINDOWS_AMD64",
    ] {
        manifest = manifest.replace(&format!("@SHA256_{system}@"), &"0123456789abcdef".repeat(4));
    }
    manifest
}

#[test]
fn the_krew_manifests_are_what_krew_expects() {
    for name in ["selfhost", "klusterlet"] {
        let manifest = released(name);
        assert_eq!(faults(&manifest, name), Vec::<String>::new(), "krew/{name}.yaml");
        let rest: Vec<&str> = manifest.lines().skip(2).filter(|line| line.contains('@')).collect();
        assert!(
            rest.is_empty(),
            "krew/{name}.yaml has words that nothing replaces: {rest:?}"
        );
    }
}

#[test]
fn faults_of_a_krew_manifest_are_found() {
    let good = released("selfhost");
    let cases = [
        ("homepage:", "homePage:", "unknown field homePage"),
        (
            "name: selfhost",
            "name: other",
            "metadata.name is not the name of the file",
        ),
        ("version: \"v1.2.3\"", "version: \"1.2.3\"", "version 1.2.3"),
        ("arch: amd64", "arch: x86_64", "selector (\"linux\", \"x86_64\")"),
        ("bin: kubectl-selfhost", "bin: selfhost", "bin"),
        ("0123456789abcdef", "0123456789ABCDEF", "sha256"),
        (
            "https://github.com/kubectl-selfhost/kubectl-selfhost/releases",
            "http://github.com",
            "uri",
        ),
        ("      bin: kubectl-selfhost\n", "", "missing field bin"),
    ];
    for (from, to, fault) in cases {
        assert!(good.contains(from), "{from}");
        let found = faults(&good.replace(from, to), "selfhost");
        assert!(
            found.iter().any(|found| found.starts_with(fault)),
            "{from} -> {to}: {found:?}"
        );
    }
}
