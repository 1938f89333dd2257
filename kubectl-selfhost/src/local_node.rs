//! The node that the command runs on, as its files and processes show it.

use crate::names::{BIN_DIR, STATE_DIR};
use crate::node::process::Processes;
use serde_json::Value;
use shared::{Context, Error, Result};
use std::path::{Path, PathBuf};

/// Where things lie on this node.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct LocalNode {
    /// The kubelet's manifest directory.
    pub manifest_directory: PathBuf,
    /// The kubelet's kubeconfig.
    pub kubelet_kubeconfig: PathBuf,
    /// Directory of the kubelet's certificates.
    pub kubelet_certificates: PathBuf,
}

const KUBEADM_KUBELET_CONFIG: &str = "/var/lib/kubelet/config.yaml";
const KUBEADM_KUBELET_KUBECONFIG: &str = "/etc/kubernetes/kubelet.conf";

/// Finds the kubelet of this node and reads where its manifests lie. `None` where no kubelet runs, or where this process
/// is not root and could do nothing about it.
///
/// # Errors
/// The kubelet's configuration cannot be read or names no manifest directory.
pub fn find() -> Result<Option<LocalNode>> {
    if !is_root() {
        return Ok(None);
    }
    let processes = Processes::new(Path::new("/proc"));
    let ids = processes.ids().context("/proc cannot be listed")?;
    let kubelet = ids
        .into_iter()
        .filter(|pid| is_kubelet(&processes.arguments(*pid)))
        .find(|pid| processes.shares_pid_namespace(*pid));
    let Some(arguments) = kubelet.map(|pid| processes.arguments(pid)) else {
        return Ok(None);
    };
    let config_path = flag(&arguments, "config").unwrap_or_else(|| KUBEADM_KUBELET_CONFIG.to_owned());
    let config = match std::fs::read_to_string(&config_path) {
        Ok(text) => shared::yaml::first_document(&text)
            .map_err(|error| Error::refused(format!("{config_path} cannot be read")).because(error))?,
        Err(error) => {
            return Err(
                Error::refused(format!("the kubelet's configuration {config_path} cannot be read")).because(error),
            );
        }
    };
    locate(&arguments, &config, &config_path).map(Some)
}

/// Nodes run Linux: elsewhere nobody is at home on one.
#[cfg(target_os = "linux")]
fn is_root() -> bool {
    rustix::process::geteuid().is_root()
}

#[cfg(not(target_os = "linux"))]
fn is_root() -> bool {
    false
}

fn is_kubelet(arguments: &[String]) -> bool {
    arguments
        .first()
        .is_some_and(|first| first.rsplit('/').next() == Some("kubelet"))
}

fn flag(arguments: &[String], name: &str) -> Option<String> {
    let long = format!("--{name}");
    let mut found = None;
    let mut rest = arguments.iter().peekable();
    while let Some(argument) = rest.next() {
        if let Some(value) = argument.strip_prefix(&long) {
            match value.strip_prefix('=') {
                Some(value) => found = Some(value.to_owned()),
                None if value.is_empty() => found = rest.peek().map(|value| (*value).clone()),
                None => {}
            }
        }
    }
    found
}

fn locate(arguments: &[String], config: &Value, config_path: &str) -> Result<LocalNode> {
    let manifest_directory = flag(arguments, "pod-manifest-path")
        .or_else(|| config.get("staticPodPath").and_then(Value::as_str).map(str::to_owned))
        .filter(|path| !path.is_empty())
        .ok_or_else(|| {
            Error::refused("the kubelet of this node has no manifest directory")
                .because(format!("{config_path} sets no staticPodPath"))
                .hint("this node does not run its control plane as static Pods from files: there is nothing to convert")
        })?;
    let kubelet_kubeconfig = flag(arguments, "kubeconfig").unwrap_or_else(|| KUBEADM_KUBELET_KUBECONFIG.to_owned());
    let root = flag(arguments, "root-dir").unwrap_or_else(|| "/var/lib/kubelet".to_owned());
    let certificates = flag(arguments, "cert-dir").map_or_else(|| Path::new(&root).join("pki"), PathBuf::from);
    Ok(LocalNode {
        manifest_directory: manifest_directory.into(),
        kubelet_kubeconfig: kubelet_kubeconfig.into(),
        kubelet_certificates: certificates,
    })
}

/// Whether a file on the file system that will hold `path` may be executed. `None` when that cannot be told.
#[cfg(target_os = "linux")]
#[must_use]
pub fn may_execute(path: &Path) -> Option<bool> {
    let existing = path.ancestors().find(|ancestor| ancestor.exists())?;
    let statistics = rustix::fs::statvfs(existing).ok()?;
    Some(!statistics.f_flag.contains(rustix::fs::StatVfsMountFlags::NOEXEC))
}

/// See the function of the same name for Linux.
#[cfg(not(target_os = "linux"))]
#[must_use]
pub fn may_execute(_: &Path) -> Option<bool> {
    None
}

/// Our own directories on the node.
#[must_use]
pub fn own_directories() -> [&'static Path; 2] {
    [Path::new(BIN_DIR), Path::new(STATE_DIR)]
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn words(text: &str) -> Vec<String> {
        text.split(' ').map(str::to_owned).collect()
    }

    #[test]
    fn flags_of_the_kubelet_win_over_its_file() {
        let arguments = words("/usr/bin/kubelet --config=/c --kubeconfig /k.conf --pod-manifest-path=/m --v=2");
        let found = locate(&arguments, &json!({"staticPodPath": "/other"}), "/c").unwrap();
        assert_eq!(found.manifest_directory, Path::new("/m"));
        assert_eq!(found.kubelet_kubeconfig, Path::new("/k.conf"));
        assert_eq!(found.kubelet_certificates, Path::new("/var/lib/kubelet/pki"));
    }

    #[test]
    fn a_kubelet_without_manifest_directory_is_refused() {
        let error = locate(&words("kubelet"), &json!({}), "/var/lib/kubelet/config.yaml").unwrap_err();
        assert!(error.to_string().contains("staticPodPath"), "{error}");
    }

    #[test]
    fn a_flag_is_found_in_both_forms_and_the_last_one_counts() {
        let arguments = words("kubelet --config a --config=b --configuration=c");
        assert_eq!(flag(&arguments, "config").as_deref(), Some("b"));
        assert_eq!(flag(&arguments, "root-dir"), None);
    }
}
