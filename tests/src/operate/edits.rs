//! Edits of templates and manifests: good ones, and bad ones that must not cost a request. Pure functions.

use std::fmt;

use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use crate::error::{Error, Result};

/// A component of the control plane that is converted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Component {
    /// Listens on loopback only.
    KubeScheduler,
    /// Listens on loopback only.
    KubeControllerManager,
    /// Listens on all addresses.
    KubeApiserver,
}

impl Component {
    /// In the order of a conversion.
    pub const ALL: [Self; 3] = [Self::KubeScheduler, Self::KubeControllerManager, Self::KubeApiserver];

    /// Name of its program, its container and the label `component` of its Pods.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::KubeScheduler => "kube-scheduler",
            Self::KubeControllerManager => "kube-controller-manager",
            Self::KubeApiserver => "kube-apiserver",
        }
    }

    /// Name of its DaemonSet, and value of the label `k8s-app` of the DaemonSet's Pods.
    #[must_use]
    pub fn daemon_set(self) -> String {
        format!("self-hosted-{}", self.name())
    }

    /// The port that kubeadm gives it.
    #[must_use]
    pub fn port(self) -> u16 {
        match self {
            Self::KubeScheduler => 10259,
            Self::KubeControllerManager => 10257,
            Self::KubeApiserver => 6443,
        }
    }

    /// The component of that name.
    ///
    /// # Errors
    /// There is none; the error names all.
    pub fn from_name(name: &str) -> std::result::Result<Self, String> {
        Self::ALL
            .into_iter()
            .find(|c| c.name() == name)
            .ok_or_else(|| format!("no component; choose one of {}", Self::ALL.map(Self::name).join(", ")))
    }
}

impl fmt::Display for Component {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

/// What is wrong with an edit of a component's template.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Mistake {
    /// A flag that the component does not know: it exits at once.
    UnknownFlag,
    /// The wrong `--etcd-servers`, or a `--kubeconfig` that is not there: it exits when it has tried.
    WrongBackend,
    /// A process that takes its port and never answers.
    Hangs,
    /// A process that runs and never takes its port.
    NeverBinds,
}

impl Mistake {
    /// All of them.
    pub const ALL: [Self; 4] = [Self::UnknownFlag, Self::WrongBackend, Self::Hangs, Self::NeverBinds];

    /// Its name.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::UnknownFlag => "unknown-flag",
            Self::WrongBackend => "wrong-backend",
            Self::Hangs => "hangs",
            Self::NeverBinds => "never-binds",
        }
    }

    /// The mistake of that name.
    ///
    /// # Errors
    /// There is none; the error names all.
    pub fn from_name(name: &str) -> std::result::Result<Self, String> {
        Self::ALL
            .into_iter()
            .find(|m| m.name() == name)
            .ok_or_else(|| format!("no mistake; choose one of {}", Self::ALL.map(Self::name).join(", ")))
    }
}

impl fmt::Display for Mistake {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

/// Where a component's command is in a DaemonSet: its path for a JSON patch, and its words.
fn command(daemon_set: &Value, component: Component) -> Result<(String, Vec<String>)> {
    let what = || format!("edit DaemonSet {}", component.daemon_set());
    let containers = daemon_set
        .pointer("/spec/template/spec/containers")
        .and_then(Value::as_array)
        .ok_or_else(|| Error::new(what(), "it has no containers"))?;
    let (index, container) = containers
        .iter()
        .enumerate()
        .find(|(_, c)| c.get("name").and_then(Value::as_str) == Some(component.name()))
        .ok_or_else(|| Error::new(what(), format!("it has no container {component}")))?;
    let words = container
        .get("command")
        .and_then(Value::as_array)
        .ok_or_else(|| Error::new(what(), "its container has no command"))?;
    let words = words
        .iter()
        .map(|w| w.as_str().unwrap_or_default().to_owned())
        .collect();
    Ok((format!("/spec/template/spec/containers/{index}/command"), words))
}

/// A JSON patch (RFC 6902) that gives a flag a value, whether it was there before or not.
///
/// # Errors
/// The DaemonSet has no such container, or the container no command.
pub fn set_flag(daemon_set: &Value, component: Component, flag: &str, value: &str) -> Result<Value> {
    let (path, words) = command(daemon_set, component)?;
    let word = format!("--{flag}={value}");
    let prefix = format!("--{flag}=");
    Ok(match words.iter().position(|w| w.starts_with(&prefix)) {
        Some(index) => json!([{"op": "replace", "path": format!("{path}/{index}"), "value": word}]),
        None => json!([{"op": "add", "path": format!("{path}/-"), "value": word}]),
    })
}

/// A JSON patch that makes a mistake.
///
/// # Errors
/// As [`set_flag`].
pub fn make_mistake(daemon_set: &Value, component: Component, mistake: Mistake) -> Result<Value> {
    let program = "/selfhost/bin/kubectl-selfhost";
    let mut misbehave = vec![program.to_owned(), "node".to_owned(), "misbehave".to_owned()];
    match mistake {
        Mistake::UnknownFlag => return set_flag(daemon_set, component, "no-such-flag", "1"),
        Mistake::WrongBackend if component == Component::KubeApiserver => {
            // Nothing listens there.
            return set_flag(daemon_set, component, "etcd-servers", "https://127.0.0.1:1");
        }
        Mistake::WrongBackend => {
            return set_flag(daemon_set, component, "kubeconfig", "/etc/kubernetes/no-such.conf");
        }
        Mistake::Hangs => {
            misbehave.push(format!("--port={}", component.port()));
            if component != Component::KubeApiserver {
                misbehave.push("--bind-address=127.0.0.1".to_owned());
            }
        }
        Mistake::NeverBinds => {}
    }
    let (path, _) = command(daemon_set, component)?;
    Ok(json!([{"op": "replace", "path": path, "value": misbehave}]))
}

/// The text of a manifest as kubeadm writes it with a flag added, at the end of the component's command.
///
/// # Errors
/// The text has no such command.
pub fn set_flag_in_manifest(text: &str, component: Component, flag: &str, value: &str) -> Result<String> {
    let line = format!("    - {component}\n");
    let (before, after) = text.split_once(&line).ok_or_else(|| {
        Error::new(
            format!("edit the manifest of {component}"),
            format!("it has no line \"{}\"", line.trim_end()),
        )
    })?;
    Ok(format!("{before}{line}    - --{flag}={value}\n{after}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn daemon_set() -> Value {
        json!({"spec": {"template": {"spec": {"containers": [
            {"name": "side-car", "command": ["x"]},
            {"name": "kube-apiserver", "command": ["kube-apiserver", "--etcd-servers=https://127.0.0.1:2379", "--v=2"]},
        ]}}}})
    }

    #[test]
    fn a_flag_is_replaced_where_it_is_and_added_where_it_is_not() {
        let set = |flag, value| set_flag(&daemon_set(), Component::KubeApiserver, flag, value).unwrap();
        assert_eq!(
            set("v", "3"),
            json!([{"op": "replace", "path": "/spec/template/spec/containers/1/command/2", "value": "--v=3"}])
        );
        assert_eq!(
            set("event-ttl", "2h"),
            json!([{"op": "add", "path": "/spec/template/spec/containers/1/command/-", "value": "--event-ttl=2h"}])
        );
        let error = set_flag(&daemon_set(), Component::KubeScheduler, "v", "3").unwrap_err();
        assert!(error.why.contains("kube-scheduler"), "{error}");
        assert!(set_flag(&json!({}), Component::KubeScheduler, "v", "3").is_err());
    }

    #[test]
    fn each_mistake_changes_the_command_in_its_own_way() {
        let value = |mistake| {
            let patch = make_mistake(&daemon_set(), Component::KubeApiserver, mistake).unwrap();
            (patch[0]["path"].as_str().unwrap().to_owned(), patch[0]["value"].clone())
        };
        let command = "/spec/template/spec/containers/1/command";
        assert_eq!(
            value(Mistake::UnknownFlag),
            (format!("{command}/-"), json!("--no-such-flag=1"))
        );
        assert_eq!(
            value(Mistake::WrongBackend),
            (format!("{command}/1"), json!("--etcd-servers=https://127.0.0.1:1"))
        );
        let program = "/selfhost/bin/kubectl-selfhost";
        assert_eq!(
            value(Mistake::Hangs),
            (command.to_owned(), json!([program, "node", "misbehave", "--port=6443"]))
        );
        assert_eq!(
            value(Mistake::NeverBinds),
            (command.to_owned(), json!([program, "node", "misbehave"]))
        );
    }

    #[test]
    fn names_are_read_back() {
        for component in Component::ALL {
            assert_eq!(Component::from_name(component.name()), Ok(component));
        }
        for mistake in Mistake::ALL {
            assert_eq!(Mistake::from_name(mistake.name()), Ok(mistake));
        }
        assert!(Component::from_name("etcd").unwrap_err().contains("kube-scheduler"));
        assert!(Mistake::from_name("").unwrap_err().contains("never-binds"));
    }

    #[test]
    fn a_manifest_gets_one_line_more() {
        let text = "spec:\n  containers:\n  - command:\n    - kube-apiserver\n    - --v=2\n    image: x\n";
        let edited = set_flag_in_manifest(text, Component::KubeApiserver, "event-ttl", "2h").unwrap();
        assert_eq!(
            edited,
            "spec:\n  containers:\n  - command:\n    - kube-apiserver\n    - --event-ttl=2h\n    - --v=2\n    image: x\n"
        );
        assert!(set_flag_in_manifest("", Component::KubeApiserver, "v", "1").is_err());
    }
}
