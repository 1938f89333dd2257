//! Completion of the names in the kubeconfig. Reads files only; what cannot be read completes to nothing.

use clap_complete::CompletionCandidate;
use kube::config::Kubeconfig;

use super::config::{Environment, read_for_completion};

/// Names of contexts, with the cluster behind each.
pub(super) fn contexts() -> Vec<CompletionCandidate> {
    let entries = kubeconfig().contexts.into_iter();
    entries
        .map(|entry| {
            let cluster = entry.context.map(|context| context.cluster).unwrap_or_default();
            CompletionCandidate::new(entry.name).help(Some(cluster.into()))
        })
        .collect()
}

/// Names of clusters, with their servers.
pub(super) fn clusters() -> Vec<CompletionCandidate> {
    let entries = kubeconfig().clusters.into_iter();
    entries
        .map(|entry| {
            let server = entry.cluster.and_then(|cluster| cluster.server).unwrap_or_default();
            CompletionCandidate::new(entry.name).help(Some(server.into()))
        })
        .collect()
}

/// Names of users.
pub(super) fn users() -> Vec<CompletionCandidate> {
    let entries = kubeconfig().auth_infos.into_iter();
    entries.map(|entry| CompletionCandidate::new(entry.name)).collect()
}

/// The kubeconfig of a `--kubeconfig` on the line that is completed, else of the environment.
fn kubeconfig() -> Kubeconfig {
    let words: Vec<String> = std::env::args().collect();
    read_for_completion(flag_of(&words), &Environment::of_process()).unwrap_or_default()
}

fn flag_of(words: &[String]) -> Option<&str> {
    words.iter().enumerate().rev().find_map(|(index, word)| {
        let value = word.strip_prefix("--kubeconfig")?;
        match value.strip_prefix('=') {
            Some(value) => Some(value),
            None if value.is_empty() => words.get(index + 1).map(String::as_str),
            None => None,
        }
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_kubeconfig_on_the_line_is_found_in_both_forms() {
        let words = |text: &str| -> Vec<String> { text.split(' ').map(str::to_owned).collect() };
        let cases = [
            ("k plan --kubeconfig a --context", Some("a")),
            ("k --kubeconfig=a plan --kubeconfig=b", Some("b")),
            ("k plan --kubeconfigs=a", None),
            ("k plan", None),
        ];
        for (line, expected) in cases {
            assert_eq!(flag_of(&words(line)), expected, "{line}");
        }
    }
}
