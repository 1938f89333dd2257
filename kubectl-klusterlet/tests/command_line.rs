//! The executable as a user meets it: help, version, errors and exit codes.
#![allow(clippy::unwrap_used, reason = "the helpers belong to the tests")]

use std::process::{Command, Output};

const COMMANDS: [&str; 9] = [
    "join",
    "run",
    "validate",
    "status",
    "switch",
    "accept",
    "leave",
    "deploy",
    "completion",
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
    for command in COMMANDS {
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
fn what_is_not_there_yet_says_so() {
    let output = run(&["switch", "--to", "hub-b"]);
    let stderr = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(1), "{stderr}");
    assert!(output.stdout.is_empty());
    assert!(
        stderr.starts_with("error: kubectl klusterlet switch is not implemented yet\n  because: "),
        "{stderr}"
    );
}

#[test]
fn commands_without_a_cluster_name_what_is_missing_and_exit_with_2() {
    for (arguments, expected) in [
        (&["status"][..], "no kubeconfig was found"),
        (&["leave", "--yes"], "no kubeconfig was found"),
        (&["accept", "edge-7"], "no kubeconfig was found"),
        (&["join"], "no kubeconfig was found"),
        (&["run", "--listen=8080"], "--listen"),
        (
            &["join", "--dry-run=server", "--server=https://127.0.0.1:1"],
            "--dry-run=server",
        ),
        (
            &["join", "--server=https://127.0.0.1:1"],
            "bootstrap-kubeconfig is required",
        ),
        (&["deploy", "--image=a"], "cluster name is empty"),
    ] {
        let output = run(arguments);
        let stderr = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(2), "{arguments:?}: {stderr}");
        assert!(stderr.contains(expected), "{arguments:?}: {stderr}");
    }
}

#[test]
fn a_spoke_that_does_not_answer_has_its_own_exit_code() {
    let output = run(&["status", "--server=https://127.0.0.1:1"]);
    assert_eq!(
        output.status.code(),
        Some(5),
        "{}",
        String::from_utf8_lossy(&output.stderr)
    );
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
        &["run", "--max-custom-cluster-claims", "many"],
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
