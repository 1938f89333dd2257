//! The executable as a user meets it: help, version, errors and exit codes.
#![allow(clippy::unwrap_used, reason = "the helpers belong to the tests")]

use std::process::{Command, Output};

const COMMANDS: [(&str, &[&str]); 7] = [
    (
        "join",
        &[
            "join",
            "--bootstrap-kubeconfig",
            "a",
            "--bootstrap-kubeconfig",
            "b",
            "--wait=joined",
            "--detach",
            "--dry-run",
        ],
    ),
    (
        "run",
        &["run", "--cluster-name", "a", "--cluster-healthcheck-period", "30s"],
    ),
    ("validate", &["validate", "--config", "failover.yaml"]),
    ("status", &["status", "-o", "json"]),
    ("switch", &["switch", "--to", "hub-b"]),
    ("accept", &["--context", "hub", "accept", "edge-7"]),
    ("leave", &["leave", "--yes"]),
];

/// Runs it without any environment, so that nothing of the machine shows in what it prints.
fn run(arguments: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_kubectl-klusterlet"))
        .args(arguments)
        .env_clear()
        .env("COLUMNS", "100")
        .output()
        .unwrap()
}

fn shown(arguments: &[&str]) -> String {
    let output = run(arguments);
    assert_eq!(output.status.code(), Some(0), "{arguments:?}");
    assert!(output.stderr.is_empty(), "{arguments:?}");
    String::from_utf8(output.stdout).unwrap()
}

#[test]
fn help_of_all_commands() {
    let mut text = shown(&["--help"]);
    for (command, _) in COMMANDS {
        text.push_str(&format!("\n======== {command} -h\n\n{}", shown(&[command, "-h"])));
    }
    insta::assert_snapshot!("help", text);
}

#[test]
fn version_is_that_of_the_package() {
    assert_eq!(
        shown(&["--version"]),
        format!("kubectl klusterlet {}\n", env!("CARGO_PKG_VERSION"))
    );
}

#[test]
fn each_command_says_that_it_is_not_there_yet() {
    for (command, arguments) in COMMANDS {
        let output = run(arguments);
        let stderr = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(1), "{command}: {stderr}");
        assert!(output.stdout.is_empty());
        assert!(
            stderr.starts_with(&format!(
                "error: kubectl klusterlet {command} is not implemented yet\n  because: "
            )),
            "{stderr}"
        );
    }
}

#[test]
fn wrong_command_lines_exit_with_2_and_help_along() {
    for arguments in [
        &["jion"][..],
        &["switch"],
        &["accept"],
        &["join", "--wait=never"],
        &["run", "--cluster-healthcheck-period", "soon"],
        &["status", "-o", "xml"],
        &[],
    ] {
        let output = run(arguments);
        let stderr = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(2), "{arguments:?}: {stderr}");
        assert!(stderr.contains("--help"), "{arguments:?}: {stderr}");
    }
    let output = run(&["jion"]);
    assert!(String::from_utf8(output.stderr).unwrap().contains("'join'"));
}
