//! Every file that a component needs and that goes into its Secret.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::Value;

use super::Content;
use super::flags::{Kind, kind_of, paths_in};
use crate::component_spec::ComponentSpec;
use crate::fields::{FieldError, at, list_at, string_at};
use crate::names::Component;

/// Trust stores of the system: they stay on the node. Other programs need all of them, their files are links into each
/// other, and they hold nothing secret.
const TRUST_STORES: [&str; 5] = [
    "/etc/ssl",
    "/etc/pki",
    "/etc/ca-certificates",
    "/usr/share/ca-certificates",
    "/usr/local/share/ca-certificates",
];

/// What lies at a path of a node.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum Found {
    /// A file.
    File(Content),
    /// Nothing.
    Absent,
    /// Something that is no file, as it reads after "is".
    NoFile(String),
    /// A file that cannot be read, and why.
    Unreadable(String),
}

/// What lies at the paths of a node that were looked at.
pub type NodeFiles = BTreeMap<String, Found>;

/// One file that goes into the Secret.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Entry {
    /// Path inside the container.
    pub path: String,
    /// Path on the node.
    pub host_path: String,
    /// Who names it: a flag, or another file.
    pub named_by: String,
    /// What is in it.
    pub content: Content,
    /// Index into [`NamedFiles::mounts`].
    pub mount: usize,
}

/// One mount of the component's container that holds such files.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Mount {
    /// Where the container sees it.
    pub mount_path: String,
    /// Name of the hostPath volume.
    pub volume: String,
    /// The path on the node that the container sees there.
    pub host_path: String,
}

/// What the flags of one component come to, with what is known of the node's files.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct NamedFiles {
    /// Paths on the node that have to be looked at before this is complete.
    pub wanted: BTreeSet<String>,
    /// The files, by their path in the container.
    pub entries: BTreeMap<String, Entry>,
    /// The mounts whose content goes into the Secret, in the order of the manifest.
    pub mounts: Vec<Mount>,
    /// Mounts inside those, which go: their files come with the outer mount.
    pub inner: Vec<Mount>,
    /// What forbids it.
    pub errors: Vec<FieldError>,
}

/// Somebody names a path.
#[derive(Clone, Debug)]
struct Named {
    by: String,
    field: String,
    path: String,
    kind: Kind,
}

impl Named {
    /// Whether the file goes into the Secret wherever it lies.
    fn goes(&self) -> bool {
        matches!(self.kind, Kind::Credential | Kind::Authority)
    }
}

/// Finds the files of a component. Call it again with what [`NamedFiles::wanted`] asks for until it asks for nothing more:
/// files name files.
///
/// # Errors
/// No container of the Pod runs the component.
pub fn named_files(component: Component, pod: &Value, files: &NodeFiles) -> Result<NamedFiles, FieldError> {
    let spec = ComponentSpec::new(component, pod)?;
    let mut work = Work {
        mounts: mounts(&spec),
        named: named_by_flags(&spec),
        files,
        replaced: BTreeSet::new(),
        result: NamedFiles::default(),
    };
    work.run();
    Ok(work.finish())
}

struct Work<'a> {
    /// All mounts of the container; those of other volumes than hostPath ones have no host path.
    mounts: Vec<(Mount, bool)>,
    named: Vec<Named>,
    files: &'a NodeFiles,
    replaced: BTreeSet<usize>,
    result: NamedFiles,
}

impl Work<'_> {
    /// Until nothing new is found: each round may find files that name files, and mounts whose other files are needed too.
    fn run(&mut self) {
        let (mut taken, mut moved) = (BTreeSet::new(), BTreeSet::new());
        let mut index = 0;
        loop {
            while let Some(named) = self.named.get(index).cloned() {
                index += 1;
                if named.goes() && taken.insert(named.path.clone()) {
                    self.take(&named);
                }
            }
            let others: Vec<Named> = self.named.iter().filter(|named| !named.goes()).cloned().collect();
            for named in others {
                self.move_along(&named, &mut moved);
                if named.kind == Kind::Configuration {
                    self.scan(&named);
                }
            }
            if index == self.named.len() {
                return;
            }
        }
    }

    /// A file that goes into the Secret, and what it names.
    fn take(&mut self, named: &Named) {
        let Some((index, host_path)) = self.place(named) else {
            return;
        };
        let store = TRUST_STORES.iter().find(|store| is_below(&host_path, store));
        match (store, named.kind) {
            (Some(_), Kind::Authority) => return,
            (Some(store), _) => {
                self.error(
                    named,
                    &format!(
                        "names {}, which lies in the trust store {store} of the node, and that stays on the node",
                        named.path
                    ),
                    "keep keys in a directory of their own, such as /etc/kubernetes/pki",
                );
                return;
            }
            (None, _) => {}
        }
        self.replaced.insert(index);
        let what = match self.files.get(&host_path) {
            None => {
                self.result.wanted.insert(host_path);
                return;
            }
            Some(Found::File(content)) if content.is_empty() => "is empty".to_owned(),
            Some(Found::File(content)) => {
                self.follow(&named.path, content);
                self.result.entries.insert(
                    named.path.clone(),
                    Entry {
                        path: named.path.clone(),
                        host_path,
                        named_by: named.by.clone(),
                        content: content.clone(),
                        mount: index,
                    },
                );
                return;
            }
            Some(Found::Absent) => "is not there".to_owned(),
            Some(Found::NoFile(what)) => format!("is {what} and no file"),
            Some(Found::Unreadable(why)) => format!("cannot be read: {why}"),
        };
        self.error(
            named,
            &format!("names {}, and {host_path} {what}", named.path),
            "put the file there, or remove what names it; with --manifests, files are looked for on this machine",
        );
    }

    /// What a kubeconfig names. Its paths are relative to its own directory (k8s.io/client-go `tools/clientcmd`).
    fn follow(&mut self, path: &str, content: &Content) {
        let Some(value) = document(content) else { return };
        if string_at(&value, &["kind"]) != Some("Config") {
            return;
        }
        let directory = path.rsplit_once('/').map_or("", |(directory, _)| directory);
        let mut refer = |named: Option<&str>, key: &str| {
            if let Some(named) = named.filter(|named| !named.is_empty()) {
                let full = if named.starts_with('/') {
                    named.to_owned()
                } else {
                    format!("{directory}/{named}")
                };
                self.named.push(Named {
                    by: format!("{key} in {path}"),
                    field: path.to_owned(),
                    path: full,
                    kind: Kind::Credential,
                });
            }
        };
        for cluster in list_at(&value, &["clusters"]) {
            refer(
                string_at(cluster, &["cluster", "certificate-authority"]),
                "certificate-authority",
            );
        }
        for user in list_at(&value, &["users"]) {
            for key in ["client-certificate", "client-key", "tokenFile"] {
                refer(string_at(user, &["user", key]), key);
            }
        }
    }

    /// A file that is no credential stays on the node, unless it lies where the Secret's files will be.
    fn move_along(&mut self, named: &Named, moved: &mut BTreeSet<String>) {
        let Some((index, _)) = cover(&self.mounts, &named.path) else {
            return;
        };
        if !self.replaced.contains(&index) || !moved.insert(named.path.clone()) {
            return;
        }
        let place = self.mount_path(index);
        match named.kind {
            Kind::Output => self.error(
                named,
                &format!(
                    "names {}, but {place} becomes a Secret's, which cannot be written",
                    named.path
                ),
                "write to a directory of its own",
            ),
            Kind::Encryption => self.error(
                named,
                &format!(
                    "names {}, but {place} becomes a Secret's, and the key to the Secrets must not be kept in one",
                    named.path
                ),
                "move it into a directory of its own, which stays on the node",
            ),
            _ => self.named.push(Named {
                kind: Kind::Credential,
                ..named.clone()
            }),
        }
    }

    /// The strings of a configuration file may be paths to where the Secret's files will be, such as the webhook's kubeconfig
    /// of `--authorization-config`. What is no file there is no path.
    fn scan(&mut self, named: &Named) {
        let Some((_, Some(host_path))) = cover(&self.mounts, &named.path) else {
            return;
        };
        let content = match self.files.get(&host_path) {
            None => {
                self.result.wanted.insert(host_path);
                return;
            }
            Some(Found::File(content)) => content,
            // that it must be there is checked for every volume
            Some(_) => return,
        };
        let mut paths = Vec::new();
        if let Some(value) = document(content) {
            collect_paths(&value, &mut paths);
        }
        for path in paths {
            let Some((index, Some(host_path))) = cover(&self.mounts, &path) else {
                continue;
            };
            if !self.replaced.contains(&index) || self.named.iter().any(|named| named.path == path) {
                continue;
            }
            match self.files.get(&host_path) {
                None => {
                    self.result.wanted.insert(host_path);
                }
                Some(Found::File(_)) => self.named.push(Named {
                    by: named.path.clone(),
                    field: named.field.clone(),
                    path,
                    kind: Kind::Credential,
                }),
                Some(_) => {}
            }
        }
    }

    fn mount_path(&self, index: usize) -> String {
        self.mounts
            .get(index)
            .map(|(mount, _)| mount.mount_path.clone())
            .unwrap_or_default()
    }

    /// The mount that holds a named path, and the path on the node.
    fn place(&mut self, named: &Named) -> Option<(usize, String)> {
        if !is_plain(&named.path) {
            self.error(
                named,
                &format!("names {:?}, which is no plain absolute path", named.path),
                "write the absolute path of the file, without variables and without ..",
            );
            return None;
        }
        match cover(&self.mounts, &named.path) {
            Some((index, Some(host_path))) => Some((index, host_path)),
            Some((_, None)) => {
                // in a volume that is no hostPath: it comes with the Pod as it is
                None
            }
            None => {
                self.error(
                    named,
                    &format!("names {}, which no volume of the container holds", named.path),
                    "mount it from the node, or remove what names it",
                );
                None
            }
        }
    }

    fn error(&mut self, named: &Named, what: &str, remedy: &str) {
        let error = FieldError::new(named.field.clone(), format!("{} {what}", named.by), remedy);
        if !self.result.errors.contains(&error) {
            self.result.errors.push(error);
        }
    }

    /// Says which mounts are replaced, and by which of them each file is held.
    ///
    /// A mount inside another one needs a directory to be mounted on, which nobody can make in a Secret's volume. So the files
    /// of an inner mount come with the outer one.
    fn finish(mut self) -> NamedFiles {
        let all: Vec<Mount> = self.mounts.iter().map(|(mount, _)| mount.clone()).collect();
        let outer = |inner: &Mount| {
            let holds =
                |mount: &&Mount| mount.mount_path != inner.mount_path && is_below(&inner.mount_path, &mount.mount_path);
            let replaced = self.replaced.iter().filter_map(|index| all.get(*index));
            replaced.filter(holds).min_by_key(|mount| mount.mount_path.len())
        };
        for (index, mount) in all.iter().enumerate() {
            match (outer(mount), self.replaced.contains(&index)) {
                (None, true) => self.result.mounts.push(mount.clone()),
                (Some(_), true) => self.result.inner.push(mount.clone()),
                (Some(outer), false) => self.result.errors.push(FieldError::new(
                    format!("spec.volumes[{}]", mount.volume),
                    format!(
                        "is mounted at {} inside {}, which becomes a Secret's, and nothing can be mounted there",
                        mount.mount_path, outer.mount_path
                    ),
                    "mount it elsewhere",
                )),
                (None, false) => {}
            }
        }
        for entry in self.result.entries.values_mut() {
            let holds = |mount: &Mount| is_below(&entry.path, &mount.mount_path);
            entry.mount = self.result.mounts.iter().position(holds).unwrap_or_default();
        }
        self.result
    }
}

/// A YAML or JSON document, if it is one.
fn document(content: &Content) -> Option<Value> {
    shared::yaml::first_document(content.text()?).ok()
}

fn collect_paths(value: &Value, into: &mut Vec<String>) {
    match value {
        Value::String(text) if is_plain(text) => into.push(text.clone()),
        Value::Array(list) => list.iter().for_each(|value| collect_paths(value, into)),
        Value::Object(map) => map.values().for_each(|value| collect_paths(value, into)),
        _ => {}
    }
}

/// Every path that the component's flags name, in the order of the command line.
fn named_by_flags(spec: &ComponentSpec<'_>) -> Vec<Named> {
    let mut found = Vec::new();
    for flag in spec.all_flags() {
        let kind = match kind_of(&flag.name) {
            Some(kind) => kind,
            None if flag.value.starts_with('/') => Kind::Unknown,
            None => continue,
        };
        found.extend(paths_in(&flag.name, &flag.value).into_iter().map(|path| Named {
            by: format!("--{}", flag.name),
            field: format!("{}.{}[{}]", spec.container_path(), flag.list, flag.index),
            path: clean(path),
            kind,
        }));
    }
    found
}

/// The mounts of the component's container. The flag says whether it is one of the node's files.
fn mounts(spec: &ComponentSpec<'_>) -> Vec<(Mount, bool)> {
    let host_paths = spec.host_paths();
    list_at(spec.container(), &["volumeMounts"])
        .iter()
        .filter_map(|mount| {
            let volume = string_at(mount, &["name"])?.to_owned();
            let mount_path = clean(string_at(mount, &["mountPath"])?);
            let host_path = host_paths.iter().find(|host_path| host_path.volume == volume);
            // what a variable in the path comes to is not known here
            let on_node = host_path.is_some() && at(mount, &["subPathExpr"]).is_none();
            let host_path = host_path.map(|host_path| match string_at(mount, &["subPath"]) {
                Some(sub_path) if !sub_path.is_empty() => clean(&format!("{}/{sub_path}", host_path.path)),
                _ => clean(&host_path.path),
            });
            Some((
                Mount {
                    mount_path,
                    volume,
                    host_path: host_path.unwrap_or_default(),
                },
                on_node,
            ))
        })
        .collect()
}

/// The innermost mount that holds `path`, and the path on the node where it is one of the node's.
fn cover(mounts: &[(Mount, bool)], path: &str) -> Option<(usize, Option<String>)> {
    let (index, (mount, on_node)) = mounts
        .iter()
        .enumerate()
        .filter(|(_, (mount, _))| is_below(path, &mount.mount_path))
        .max_by_key(|(_, (mount, _))| mount.mount_path.len())?;
    let rest = path.strip_prefix(&mount.mount_path).unwrap_or_default();
    Some((index, on_node.then(|| format!("{}{rest}", mount.host_path))))
}

/// Whether `path` lies in `directory`, or is it.
fn is_below(path: &str, directory: &str) -> bool {
    path.strip_prefix(directory)
        .is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
}

/// An absolute path that means the same wherever it is read.
fn is_plain(path: &str) -> bool {
    path.starts_with('/')
        && path.len() > 1
        && !path.contains("$(")
        && !path.chars().any(char::is_control)
        && !path.split('/').any(|part| part == "..")
}

/// Without doubled slashes, `.` and a slash at the end.
fn clean(path: &str) -> String {
    let parts: Vec<&str> = path
        .split('/')
        .filter(|part| !part.is_empty() && *part != ".")
        .collect();
    if path.starts_with('/') {
        format!("/{}", parts.join("/"))
    } else {
        parts.join("/")
    }
}
