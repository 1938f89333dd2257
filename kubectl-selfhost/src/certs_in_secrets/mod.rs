//! `StoreCertsInSecrets`: certificates, keys and kubeconfigs of a converted component come from a Secret.
//!
//! `files` finds every file that the flags of a component name, and what these files name in turn; `secrets` makes a Secret
//! and projected volumes of them; `mutator` puts these into the template, in the place of the hostPath volumes, so that no flag
//! changes; `checks` says what forbids it. All of it is pure: what lies on a node is a value, [`NodeFiles`].
//!
//! Fallback and guard keep to the files of the node: they have to start without an API.

pub mod api;
mod checks;
mod files;
mod flags;
mod mutator;
mod read;
mod secrets;

use std::fmt;

use serde_json::Value;

use crate::fields::FieldError;
use crate::manifest::sha256_hex;
use crate::names::Component;

pub use checks::{PerNode, differences, not_encrypted, too_large};
pub use files::{Entry, Found, NamedFiles, NodeFiles, named_files};
pub use mutator::{CERTIFICATES_SHA256_ANNOTATION, STORE_CERTS};
pub use read::{ROUNDS, read_all, read_local, wanted};
pub use secrets::{CertificateSecret, Projection, SecretFile, label_query, project};

/// The bytes of a file. They may be a key, so that nothing ever prints them.
#[derive(Clone, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct Content(#[serde(with = "crate::base64")] Vec<u8>);

impl Content {
    /// These bytes.
    #[must_use]
    pub fn new(bytes: Vec<u8>) -> Self {
        Self(bytes)
    }

    /// The bytes themselves: for the API and for parsers.
    #[must_use]
    pub fn bytes(&self) -> &[u8] {
        &self.0
    }

    /// How many.
    #[must_use]
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// Whether there are none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Their SHA-256, in hex.
    #[must_use]
    pub fn sha256(&self) -> String {
        sha256_hex(&self.0)
    }

    /// The text, where it is text.
    #[must_use]
    fn text(&self) -> Option<&str> {
        std::str::from_utf8(&self.0).ok()
    }

    /// Whether anybody may read it: nothing but certificates and public keys in PEM.
    fn is_public(&self) -> bool {
        let labels = |text: &str| -> Vec<String> {
            text.lines()
                .filter_map(|line| line.trim().strip_prefix("-----BEGIN ")?.strip_suffix("-----"))
                .map(str::to_owned)
                .collect()
        };
        let found = self.text().map(labels).unwrap_or_default();
        let public = |label: &String| {
            matches!(label.as_str(), "CERTIFICATE" | "TRUSTED CERTIFICATE") || label.ends_with("PUBLIC KEY")
        };
        !found.is_empty() && found.iter().all(public)
    }
}

impl fmt::Debug for Content {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "Content({} bytes, sha256 {})",
            self.len(),
            short_sha256(&self.sha256())
        )
    }
}

/// The Secret of a component and how its template uses it, from the component's static Pod and the files of its node; `None`
/// where no flag names a file.
///
/// # Errors
/// Everything that forbids it.
pub fn plan(
    component: Component,
    pod: &Value,
    files: &NodeFiles,
) -> Result<Option<(CertificateSecret, Projection)>, Vec<FieldError>> {
    let named = named_files(component, pod, files).map_err(|error| vec![error])?;
    let mut errors = named.errors.clone();
    errors.extend(named.wanted.iter().map(|path| {
        FieldError::new(
            path.clone(),
            format!("is needed by {component} and was not looked at"),
            "run the command on the node, where it can be read",
        )
    }));
    if errors.is_empty() {
        project(component, pod, &named).map_err(|error| vec![error])
    } else {
        Err(errors)
    }
}

/// Enough of a checksum for people to compare.
fn short_sha256(sha256: &str) -> String {
    sha256.chars().take(12).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_is_never_printed() {
        let content = Content::new(b"-----BEGIN PRIVATE KEY-----\nMC4CAQ\n-----END PRIVATE KEY-----\n".to_vec());
        let text = format!("{content:?} {:#?}", Found::File(content.clone()));
        assert!(!text.contains("MC4CAQ") && !text.contains("PRIVATE"), "{text}");
        assert!(text.contains("61 bytes"), "{text}");
    }

    #[test]
    fn only_certificates_and_public_keys_are_public() {
        let pem = |labels: &[&str]| -> Content {
            let block = |label: &&str| format!("-----BEGIN {label}-----\nAA==\n-----END {label}-----\n");
            Content::new(labels.iter().map(block).collect::<String>().into_bytes())
        };
        for (content, public) in [
            (pem(&["CERTIFICATE"]), true),
            (pem(&["CERTIFICATE", "CERTIFICATE"]), true),
            (pem(&["PUBLIC KEY"]), true),
            (pem(&["RSA PUBLIC KEY"]), true),
            (pem(&["CERTIFICATE", "PRIVATE KEY"]), false),
            (pem(&["EC PRIVATE KEY"]), false),
            (pem(&["SOMETHING NEW"]), false),
            (pem(&[]), false),
            (Content::new(b"token,user,1".to_vec()), false),
            (Content::new(vec![0xff, 0x30]), false),
        ] {
            assert_eq!(content.is_public(), public, "{content:?}");
        }
    }
}
