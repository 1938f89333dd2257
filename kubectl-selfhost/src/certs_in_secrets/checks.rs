//! What forbids to keep certificates in Secrets, and what should be known before.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::Value;
use x509_parser::extensions::{GeneralName, ParsedExtension};
use x509_parser::pem::Pem;

use super::secrets::CertificateSecret;
use super::{Content, short_sha256};
use crate::component_spec::ComponentSpec;
use crate::fields::{list_at, string_at};
use crate::names::{Component, NAMESPACE};
use crate::refusal::Refusal;

/// Bytes that the values of a Secret may have together (k8s.io/api `core/v1`, `MaxSecretSize`).
pub(super) const LARGEST_SECRET: usize = 1024 * 1024;

/// The files of a component on several nodes: name of the node, path in the container, content.
pub type PerNode = BTreeMap<String, BTreeMap<String, Content>>;

/// A Secret that the API would not take.
#[must_use]
pub fn too_large(secret: &CertificateSecret) -> Option<Refusal> {
    let size = secret.size();
    let largest = secret.files.iter().max_by_key(|file| file.size)?;
    (size > LARGEST_SECRET).then(|| {
        Refusal::new(
            format!("Secret {NAMESPACE}/{}", secret.name),
            format!(
                "would hold {size} bytes, and a Secret holds {LARGEST_SECRET}; the largest file is {} with {}",
                largest.path, largest.size
            ),
            "make the bundles smaller, or leave --feature-gates=StoreCertsInSecrets=true out",
        )
    })
}

/// A warning where the apiserver writes Secrets to etcd as they are.
#[must_use]
pub fn not_encrypted(apiserver: &Value) -> Option<String> {
    let spec = ComponentSpec::new(Component::KubeApiserver, apiserver).ok()?;
    let configured = spec
        .flag("encryption-provider-config")
        .is_some_and(|path| !path.is_empty());
    (!configured).then(|| {
        "keys of the control plane go into Secrets, and kube-apiserver has no --encryption-provider-config: whoever reads etcd, \
         its disk or its backups reads them"
            .to_owned()
    })
}

/// Files that are not the same on all nodes. The Pods of a DaemonSet get the same files everywhere.
#[must_use]
pub fn differences(component: Component, nodes: &PerNode) -> Vec<Refusal> {
    let paths: BTreeSet<&String> = nodes.values().flat_map(BTreeMap::keys).collect();
    paths
        .into_iter()
        .filter_map(|path| {
            let contents: Vec<(&String, Option<&Content>)> =
                nodes.iter().map(|(node, files)| (node, files.get(path))).collect();
            let first = contents.first()?.1;
            if contents.iter().all(|(_, content)| *content == first) {
                return None;
            }
            Some(Refusal::new(
                path.clone(),
                format!(
                    "differs between the nodes, and every Pod of {} would get the same: {}",
                    component.daemon_set_name(),
                    describe(&contents)
                ),
                "give --per-node, which makes a DaemonSet and a Secret for each node; or put one certificate with the names of \
                 all nodes, and its key, onto each of them",
            ))
        })
        .collect()
}

/// In what the contents differ: names that not all have, else checksums.
fn describe(contents: &[(&String, Option<&Content>)]) -> String {
    let names: Vec<Option<BTreeSet<String>>> = contents
        .iter()
        .map(|(_, content)| (*content).and_then(names_in))
        .collect();
    let common: BTreeSet<String> = names
        .iter()
        .cloned()
        .map(Option::unwrap_or_default)
        .reduce(|left, right| left.intersection(&right).cloned().collect())
        .unwrap_or_default();
    let known = names.iter().all(Option::is_some);
    let own = |names: &Option<BTreeSet<String>>| -> Vec<String> {
        names
            .iter()
            .flatten()
            .filter(|name| !common.contains(*name))
            .cloned()
            .collect()
    };
    if known && names.iter().any(|names| !own(names).is_empty()) {
        let only = |((node, _), names): (&(&String, Option<&Content>), &Option<BTreeSet<String>>)| match own(names) {
            own if own.is_empty() => format!("{node} has none of its own"),
            own => format!("only {node} has {}", own.join(", ")),
        };
        return contents.iter().zip(&names).map(only).collect::<Vec<_>>().join("; ");
    }
    let sum = |(node, content): &(&String, Option<&Content>)| match content {
        Some(content) => format!("its SHA-256 begins with {} on {node}", short_sha256(&content.sha256())),
        None => format!("{node} has none"),
    };
    contents.iter().map(sum).collect::<Vec<_>>().join(", ")
}

/// The names in a certificate, or the servers and users in a kubeconfig. Nothing secret is among them.
fn names_in(content: &Content) -> Option<BTreeSet<String>> {
    certificate_names(content.bytes()).or_else(|| kubeconfig_names(content))
}

/// Subject and subject alternative names of the first certificate in a PEM file.
fn certificate_names(bytes: &[u8]) -> Option<BTreeSet<String>> {
    let block = Pem::iter_from_buffer(bytes)
        .flatten()
        .find(|block| block.label == "CERTIFICATE")?;
    let certificate = block.parse_x509().ok()?;
    let mut names = BTreeSet::from([format!("subject {}", certificate.subject())]);
    for extension in certificate.extensions() {
        if let ParsedExtension::SubjectAlternativeName(alternative) = extension.parsed_extension() {
            names.extend(alternative.general_names.iter().map(general_name));
        }
    }
    Some(names)
}

fn general_name(name: &GeneralName<'_>) -> String {
    match name {
        GeneralName::DNSName(name) => format!("DNS {name}"),
        GeneralName::RFC822Name(name) => format!("e-mail {name}"),
        GeneralName::URI(name) => format!("URI {name}"),
        GeneralName::IPAddress(bytes) => match (<[u8; 4]>::try_from(*bytes), <[u8; 16]>::try_from(*bytes)) {
            (Ok(octets), _) => format!("IP {}", std::net::Ipv4Addr::from(octets)),
            (_, Ok(octets)) => format!("IP {}", std::net::Ipv6Addr::from(octets)),
            _ => "IP of an unknown kind".to_owned(),
        },
        other => other.to_string(),
    }
}

fn kubeconfig_names(content: &Content) -> Option<BTreeSet<String>> {
    let value = shared::yaml::first_document(content.text()?).ok()?;
    if string_at(&value, &["kind"]) != Some("Config") {
        return None;
    }
    let servers = list_at(&value, &["clusters"])
        .iter()
        .filter_map(|cluster| string_at(cluster, &["cluster", "server"]))
        .map(|server| format!("server {server}"));
    let users = list_at(&value, &["users"])
        .iter()
        .filter_map(|user| string_at(user, &["name"]))
        .map(|user| format!("user {user}"));
    Some(servers.chain(users).collect())
}
