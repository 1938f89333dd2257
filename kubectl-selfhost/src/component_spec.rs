//! A typed, cheap view of the Pod of one control-plane component.

use std::net::IpAddr;

use serde_json::Value;

use crate::fields::{self, FieldError, containers, list_at, string_at};
use crate::names::Component;

/// Flags that are boolean: for these `--flag` alone means true, and the next element is no value of theirs.
const BOOLEAN_FLAGS: [&str; 3] = ["permit-port-sharing", "leader-elect", "anonymous-auth"];

/// How a container starts a component.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Start {
    /// The component's executable is the first word of the command.
    Direct,
    /// Another program starts it; holds that program's name.
    Wrapped(String),
    /// A command line in one string, which only a shell can take apart.
    ShellString,
    /// Flags without an executable: the image's entry point decides.
    EntryPoint,
    /// Something else runs here.
    Other,
}

/// Where a component listens.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BindAddress {
    /// On every address of the node.
    Unspecified,
    /// On a loopback address only.
    Loopback(IpAddr),
    /// On one other address.
    Specific(IpAddr),
}

/// One hostPath volume.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HostPath {
    /// Name of the volume.
    pub volume: String,
    /// Path on the node.
    pub path: String,
    /// The volume's `type`; empty where the manifest has none, which means that nothing is checked.
    pub kind: String,
}

/// A flag found in a container, with its place.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FlagAt {
    /// `command` or `args`.
    pub list: &'static str,
    /// Index of the element with the flag's name.
    pub index: usize,
    /// Where the value stands when it is an element of its own: list and index.
    pub value_at: Option<(&'static str, usize)>,
    /// The value; `true` for a boolean flag that stands alone.
    pub value: String,
}

/// The words of a container's command line with their places: `command`, then `args`.
fn words(container: &Value) -> Vec<(&'static str, usize, &str)> {
    ["command", "args"]
        .into_iter()
        .flat_map(|list| {
            list_at(container, &[list])
                .iter()
                .enumerate()
                .filter_map(move |(index, word)| word.as_str().map(|word| (list, index, word)))
        })
        .collect()
}

/// Last part of a path.
fn base_name(path: &str) -> &str {
    path.rsplit('/').next().unwrap_or(path)
}

/// How `container` starts `component`.
#[must_use]
pub fn start_of(container: &Value, component: Component) -> Start {
    let words = words(container);
    let name = component.name();
    let Some((_, _, first)) = words.first() else {
        return if string_at(container, &["name"]) == Some(name) {
            Start::EntryPoint
        } else {
            Start::Other
        };
    };
    if base_name(first) == name {
        return Start::Direct;
    }
    let named_in_string =
        |word: &str| word.contains(char::is_whitespace) && word.split_whitespace().any(|part| base_name(part) == name);
    if words.iter().any(|(_, _, word)| named_in_string(word)) {
        return Start::ShellString;
    }
    if words
        .iter()
        .any(|(_, _, word)| !word.starts_with('-') && base_name(word) == name)
    {
        return Start::Wrapped(base_name(first).to_owned());
    }
    if first.starts_with('-') && string_at(container, &["name"]) == Some(name) {
        return Start::EntryPoint;
    }
    Start::Other
}

/// Index in `spec.containers` of the container that runs `component`.
///
/// # Errors
/// No container does.
pub fn main_container_index(pod: &Value, component: Component) -> Result<usize, FieldError> {
    let list = list_at(pod, &["spec", "containers"]);
    list.iter()
        .position(|container| start_of(container, component) == Start::Direct)
        .or_else(|| {
            list.iter()
                .position(|container| string_at(container, &["name"]) == Some(component.name()))
        })
        .ok_or_else(|| {
            FieldError::new(
                "spec.containers",
                format!("no container runs {component}"),
                format!("the manifest of {component} needs a container whose command starts with {component}"),
            )
        })
}

/// Every place where `container` gives the flag `name` (without its dashes), in order.
///
/// `--name=value` and `--name value` are understood. `_` in a flag's name counts as `-`, as the components do
/// (`k8s.io/component-base/cli/flag`, `WordSepNormalizeFunc`).
#[must_use]
pub fn find_flags(container: &Value, name: &str) -> Vec<FlagAt> {
    let words = words(container);
    let mut found = Vec::new();
    for (position, (list, index, word)) in words.iter().enumerate().skip(1) {
        let Some(flag) = word.strip_prefix("--") else { continue };
        let (flag, value) = match flag.split_once('=') {
            Some((flag, value)) => (flag, Some(value)),
            None => (flag, None),
        };
        if flag.replace('_', "-") != name {
            continue;
        }
        let (value, value_at) = match value {
            Some(value) => (value.to_owned(), None),
            None if BOOLEAN_FLAGS.contains(&name) => ("true".to_owned(), None),
            None => match words.get(position + 1) {
                Some((list, index, value)) => ((*value).to_owned(), Some((*list, *index))),
                None => (String::new(), None),
            },
        };
        found.push(FlagAt {
            list,
            index: *index,
            value_at,
            value,
        });
    }
    found
}

/// A flag as it stands in a command line.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Flag {
    /// Its name, without dashes in front and with dashes inside.
    pub name: String,
    /// `command` or `args`.
    pub list: &'static str,
    /// Index of the element with the flag's name.
    pub index: usize,
    /// Its value; empty where it stands alone.
    pub value: String,
}

/// Every flag of `container`, in order; see [`find_flags`]. A word behind a flag that stands alone is its value, unless it is
/// a flag: the components take nothing else.
fn all_flags(container: &Value) -> Vec<Flag> {
    let words = words(container);
    let mut found = Vec::new();
    for (position, (list, index, word)) in words.iter().enumerate().skip(1) {
        let Some(flag) = word.strip_prefix("--").filter(|flag| !flag.is_empty()) else {
            continue;
        };
        let (name, value) = match flag.split_once('=') {
            Some((name, value)) => (name, value),
            None => {
                let next = words.get(position + 1).map(|(_, _, next)| *next);
                (flag, next.filter(|next| !next.starts_with("--")).unwrap_or_default())
            }
        };
        found.push(Flag {
            name: name.replace('_', "-"),
            list,
            index: *index,
            value: value.to_owned(),
        });
    }
    found
}

/// A boolean as Go's `strconv.ParseBool` reads it.
pub(crate) fn parse_bool(text: &str) -> Option<bool> {
    match text {
        "1" | "t" | "T" | "TRUE" | "true" | "True" => Some(true),
        "0" | "f" | "F" | "FALSE" | "false" | "False" => Some(false),
        _ => None,
    }
}

/// A view of one component's Pod. The Pod may be a static Pod or a DaemonSet's template.
#[derive(Clone, Copy, Debug)]
pub struct ComponentSpec<'a> {
    component: Component,
    pod: &'a Value,
    container: &'a Value,
    container_index: usize,
}

impl<'a> ComponentSpec<'a> {
    /// The view of `pod` as `component`.
    ///
    /// # Errors
    /// No container runs the component.
    pub fn new(component: Component, pod: &'a Value) -> Result<Self, FieldError> {
        let container_index = main_container_index(pod, component)?;
        let container = list_at(pod, &["spec", "containers"])
            .get(container_index)
            .unwrap_or(&Value::Null);
        Ok(Self {
            component,
            pod,
            container,
            container_index,
        })
    }

    /// The container that runs the component.
    #[must_use]
    pub fn container(&self) -> &'a Value {
        self.container
    }

    /// Path of that container, for messages.
    #[must_use]
    pub fn container_path(&self) -> String {
        fields::container_path("containers", self.container_index, self.container)
    }

    /// How the component is started.
    #[must_use]
    pub fn start(&self) -> Start {
        start_of(self.container, self.component)
    }

    /// All values of a flag, in order.
    #[must_use]
    pub fn flags(&self, name: &str) -> Vec<String> {
        find_flags(self.container, name)
            .into_iter()
            .map(|flag| flag.value)
            .collect()
    }

    /// Every flag, in order.
    #[must_use]
    pub fn all_flags(&self) -> Vec<Flag> {
        all_flags(self.container)
    }

    /// The value of a flag; the last one where it is repeated, as it is for flags that hold one value.
    #[must_use]
    pub fn flag(&self, name: &str) -> Option<String> {
        self.flags(name).pop()
    }

    /// The value of a boolean flag.
    ///
    /// # Errors
    /// The value is no boolean.
    pub fn switch(&self, name: &str) -> Result<Option<bool>, FieldError> {
        self.flag(name)
            .map(|value| {
                parse_bool(&value).ok_or_else(|| {
                    self.bad_flag(
                        name,
                        &format!("--{name}={value} is neither true nor false"),
                        "write true or false",
                    )
                })
            })
            .transpose()
    }

    /// The secure port, with the component's default where no flag gives it.
    ///
    /// # Errors
    /// The flag is no port, or 0, which switches the port off.
    pub fn secure_port(&self) -> Result<u16, FieldError> {
        let Some(value) = self.flag("secure-port") else {
            return Ok(self.component.default_port());
        };
        match value.parse::<u16>() {
            Ok(0) => Err(self.bad_flag(
                "secure-port",
                "--secure-port=0 switches the secure port off, so that nobody can tell whether the process is healthy",
                &format!("give it a port, usually {}", self.component.default_port()),
            )),
            Ok(port) => Ok(port),
            Err(_) => Err(self.bad_flag(
                "secure-port",
                &format!("--secure-port={value} is no port"),
                "give it a number from 1 to 65535",
            )),
        }
    }

    /// Where the component listens; everywhere, if no flag says it.
    ///
    /// # Errors
    /// The flag is no IP address.
    pub fn bind_address(&self) -> Result<BindAddress, FieldError> {
        let Some(value) = self.flag("bind-address") else {
            return Ok(BindAddress::Unspecified);
        };
        match value.parse::<IpAddr>() {
            Ok(address) if address.is_unspecified() => Ok(BindAddress::Unspecified),
            Ok(address) if address.is_loopback() => Ok(BindAddress::Loopback(address)),
            Ok(address) => Ok(BindAddress::Specific(address)),
            Err(_) => Err(self.bad_flag(
                "bind-address",
                &format!("--bind-address={value} is no IP address"),
                "give it an IP address",
            )),
        }
    }

    /// The address under which the apiserver announces itself.
    #[must_use]
    pub fn advertise_address(&self) -> Option<String> {
        self.flag("advertise-address")
    }

    /// Whether the component elects a leader: `None` for the apiserver, true by default for the other two.
    ///
    /// # Errors
    /// The flag is no boolean.
    pub fn leader_elect(&self) -> Result<Option<bool>, FieldError> {
        match self.component.lease() {
            None => Ok(None),
            Some(_) => Ok(Some(self.switch("leader-elect")?.unwrap_or(true))),
        }
    }

    /// Whether requests without credentials are let in, as far as the flags say; true by default.
    ///
    /// # Errors
    /// The flag is no boolean.
    pub fn anonymous_auth(&self) -> Result<bool, FieldError> {
        Ok(self.switch("anonymous-auth")?.unwrap_or(true))
    }

    /// Path of the kubeconfig that the component uses.
    #[must_use]
    pub fn kubeconfig(&self) -> Option<String> {
        self.flag("kubeconfig")
    }

    /// The etcd servers of the apiserver.
    #[must_use]
    pub fn etcd_servers(&self) -> Vec<String> {
        let split = |value: String| value.split(',').map(str::to_owned).collect::<Vec<_>>();
        self.flags("etcd-servers")
            .into_iter()
            .flat_map(split)
            .filter(|server| !server.is_empty())
            .collect()
    }

    /// The audit log file of the apiserver; nothing where it goes to standard output.
    #[must_use]
    pub fn audit_log_path(&self) -> Option<String> {
        self.flag("audit-log-path")
            .filter(|path| !path.is_empty() && path != "-")
    }

    /// All hostPath volumes.
    #[must_use]
    pub fn host_paths(&self) -> Vec<HostPath> {
        list_at(self.pod, &["spec", "volumes"])
            .iter()
            .filter_map(|volume| {
                Some(HostPath {
                    volume: string_at(volume, &["name"]).unwrap_or_default().to_owned(),
                    path: string_at(volume, &["hostPath", "path"])?.to_owned(),
                    kind: string_at(volume, &["hostPath", "type"]).unwrap_or_default().to_owned(),
                })
            })
            .collect()
    }

    /// The containers that run beside the component for as long as it does, with their paths: everything in
    /// `containers` but the component's own, and init containers that are restarted always.
    #[must_use]
    pub fn side_cars(&self) -> Vec<(String, &'a Value)> {
        containers(self.pod)
            .filter(|(path, container)| {
                let stays = path.starts_with("spec.containers[")
                    || (path.starts_with("spec.initContainers[")
                        && string_at(container, &["restartPolicy"]) == Some("Always"));
                stays && !std::ptr::eq(*container, self.container)
            })
            .collect()
    }

    /// The hostPath volumes that `container` mounts: volume, mount path, and whether it may write there.
    #[must_use]
    pub fn host_mounts(&self, container: &Value) -> Vec<(HostPath, String, bool)> {
        let host_paths = self.host_paths();
        list_at(container, &["volumeMounts"])
            .iter()
            .filter_map(|mount| {
                let volume = string_at(mount, &["name"])?;
                let host_path = host_paths.iter().find(|host_path| host_path.volume == volume)?;
                let read_only = mount.get("readOnly").and_then(Value::as_bool).unwrap_or(false);
                let mount_path = string_at(mount, &["mountPath"])?.to_owned();
                Some((host_path.clone(), mount_path, !read_only))
            })
            .collect()
    }

    /// The Unix sockets that `container` names in its command line or environment, as paths inside the container.
    ///
    /// A word counts as a socket when it starts with `unix:` or ends in `.sock` or `.socket`. That finds the usual
    /// key-management plugins and the konnectivity server; a socket named in a configuration file is not seen.
    #[must_use]
    pub fn unix_sockets(container: &Value) -> Vec<String> {
        let environment = list_at(container, &["env"])
            .iter()
            .filter_map(|variable| string_at(variable, &["value"]));
        words(container)
            .into_iter()
            .map(|(_, _, word)| word)
            .chain(environment)
            .filter_map(|word| {
                let word = if word.starts_with('-') {
                    word.split_once('=').map_or(word, |(_, value)| value)
                } else {
                    word
                };
                let path = word.strip_prefix("unix:").map(|path| path.trim_start_matches('/'));
                match path {
                    Some(path) => Some(format!("/{path}")),
                    None if word.starts_with('/') && (word.ends_with(".sock") || word.ends_with(".socket")) => {
                        Some(word.to_owned())
                    }
                    None => None,
                }
            })
            .collect()
    }

    /// The path that one of the component's HTTP probes asks for, without its query.
    #[must_use]
    pub fn probe_path(&self, probe: &str) -> Option<&'a str> {
        string_at(self.container, &[probe, "httpGet", "path"]).map(|path| path.split('?').next().unwrap_or(path))
    }

    fn bad_flag(&self, name: &str, what: &str, remedy: &str) -> FieldError {
        let field = find_flags(self.container, name).last().map_or_else(
            || self.container_path(),
            |flag| format!("{}.{}[{}]", self.container_path(), flag.list, flag.index),
        );
        FieldError::new(field, what, remedy)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn pod(command: &[&str], args: &[&str]) -> Value {
        json!({"spec": {"containers": [
            {"name": "side-car", "command": ["x", "--secure-port=1"]},
            {"name": "main", "command": command, "args": args},
        ]}})
    }

    fn spec(pod: &Value) -> ComponentSpec<'_> {
        ComponentSpec::new(Component::KubeApiserver, pod).unwrap()
    }

    #[test]
    fn flags_in_every_form() {
        let pod = pod(
            &[
                "/usr/bin/kube-apiserver",
                "--a=1",
                "--b",
                "2",
                "--a=x=y,z",
                "--leader-elect",
                "--empty=",
            ],
            &["--bind_address=::1", "--b", "3", "--last"],
        );
        let spec = spec(&pod);
        assert_eq!(spec.container()["name"], "main");
        assert_eq!(spec.flags("a"), ["1", "x=y,z"]);
        assert_eq!(spec.flags("b"), ["2", "3"]);
        assert_eq!(spec.flag("b").as_deref(), Some("3"));
        assert_eq!(spec.flag("empty").as_deref(), Some(""));
        assert_eq!(spec.flag("last").as_deref(), Some(""));
        assert_eq!(spec.flag("leader-elect").as_deref(), Some("true"));
        assert_eq!(spec.flag("bind-address").as_deref(), Some("::1"));
        assert_eq!(spec.flag("secure-port"), None);
        assert_eq!(spec.flag("usr/bin/kube-apiserver"), None);
        let all: Vec<String> = spec
            .all_flags()
            .iter()
            .map(|flag| format!("{}[{}] {}={}", flag.list, flag.index, flag.name, flag.value))
            .collect();
        assert_eq!(
            all,
            [
                "command[1] a=1",
                "command[2] b=2",
                "command[4] a=x=y,z",
                "command[5] leader-elect=",
                "command[6] empty=",
                "args[0] bind-address=::1",
                "args[1] b=3",
                "args[3] last=",
            ]
        );
    }

    #[test]
    fn a_value_may_stand_at_the_border_of_command_and_args() {
        let pod = pod(&["kube-apiserver", "--secure-port"], &["7443", "--x"]);
        let flags = find_flags(spec(&pod).container(), "secure-port");
        let expected = FlagAt {
            list: "command",
            index: 1,
            value_at: Some(("args", 0)),
            value: "7443".to_owned(),
        };
        assert_eq!(flags, [expected]);
        assert_eq!(spec(&pod).secure_port(), Ok(7443));
    }

    #[test]
    fn addresses() {
        let bind = |flag: &str| spec(&pod(&["kube-apiserver", flag], &[])).bind_address();
        let loopback = |text: &str| Ok(BindAddress::Loopback(text.parse().unwrap()));
        assert_eq!(bind("--x"), Ok(BindAddress::Unspecified));
        assert_eq!(bind("--bind-address=0.0.0.0"), Ok(BindAddress::Unspecified));
        assert_eq!(bind("--bind-address=::"), Ok(BindAddress::Unspecified));
        assert_eq!(bind("--bind-address=127.0.0.1"), loopback("127.0.0.1"));
        assert_eq!(bind("--bind-address=::1"), loopback("::1"));
        assert_eq!(
            bind("--bind-address=192.0.2.1"),
            Ok(BindAddress::Specific("192.0.2.1".parse().unwrap()))
        );
        assert_eq!(
            bind("--bind-address=node1").unwrap_err().field,
            "spec.containers[main].command[1]"
        );
    }

    #[test]
    fn defaults() {
        let pod = pod(&["kube-apiserver"], &[]);
        let spec = spec(&pod);
        assert_eq!(spec.secure_port(), Ok(6443));
        assert_eq!(spec.leader_elect(), Ok(None));
        assert_eq!(spec.anonymous_auth(), Ok(true));
        assert_eq!(spec.etcd_servers(), [""; 0]);
        assert_eq!(spec.audit_log_path(), None);
        assert_eq!(spec.advertise_address(), None);
        assert_eq!(spec.kubeconfig(), None);
        let scheduler = json!({"spec": {"containers": [{"name": "s", "command": ["kube-scheduler"]}]}});
        let scheduler = ComponentSpec::new(Component::KubeScheduler, &scheduler).unwrap();
        assert_eq!(scheduler.leader_elect(), Ok(Some(true)));
        assert_eq!(scheduler.secure_port(), Ok(10259));
    }

    #[test]
    fn lists_of_etcd_servers() {
        let pod = pod(
            &[
                "kube-apiserver",
                "--etcd-servers=https://a:2379,https://b:2379",
                "--etcd-servers",
                "https://c:2379",
            ],
            &[],
        );
        assert_eq!(
            spec(&pod).etcd_servers(),
            ["https://a:2379", "https://b:2379", "https://c:2379"]
        );
    }

    #[test]
    fn how_it_is_started() {
        let start = |command: Value, args: Value| {
            start_of(
                &json!({"name": "kube-apiserver", "command": command, "args": args}),
                Component::KubeApiserver,
            )
        };
        assert_eq!(start(json!(["kube-apiserver"]), json!(null)), Start::Direct);
        assert_eq!(start(json!(null), json!(["/bin/kube-apiserver", "--x"])), Start::Direct);
        assert_eq!(
            start(json!(["sh", "-c", "kube-apiserver --x"]), json!(null)),
            Start::ShellString
        );
        assert_eq!(
            start(json!(["tini", "--", "kube-apiserver"]), json!(null)),
            Start::Wrapped("tini".to_owned())
        );
        assert_eq!(start(json!(["--x"]), json!(null)), Start::EntryPoint);
        assert_eq!(start(json!(null), json!(null)), Start::EntryPoint);
        assert_eq!(start(json!(["sleep"]), json!(null)), Start::Other);
        // A path that merely contains the name.
        assert_eq!(
            start(json!(["cat", "/var/log/kube-apiserver/audit.log"]), json!(null)),
            Start::Other
        );
    }

    #[test]
    fn sockets() {
        let container = json!({
            "command": ["kms", "--listen=unix:///run/a", "/run/b.sock", "--x", "unix:c", "relative.sock", "/run/d.sock.log"],
            "env": [{"name": "E", "value": "/run/e.socket"}],
        });
        assert_eq!(
            ComponentSpec::unix_sockets(&container),
            ["/run/a", "/run/b.sock", "/c", "/run/e.socket"]
        );
    }
}
