//! Reading of certificate chains and keys.

use std::collections::BTreeSet;

use jiff::Timestamp;
use rustls::pki_types::{PrivateKeyDer, pem::PemObject};
use shared::{Error, Result};
use x509_parser::prelude::{FromDer, Pem, X509Certificate};

use crate::names::parse_agent_user;

/// What is looked at of a certificate.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Certificate {
    common_name: String,
    organizations: BTreeSet<String>,
    organizational_units: BTreeSet<String>,
    not_before: Timestamp,
    not_after: Timestamp,
    public_key: Vec<u8>,
}

/// A chain of certificates, that of the client first. There is at least one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Chain(Vec<Certificate>);

/// Whose certificate it is to be. Organizations are compared as sets.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Subject {
    /// CN.
    pub common_name: String,
    /// All O.
    pub organizations: BTreeSet<String>,
    /// All OU.
    pub organizational_units: BTreeSet<String>,
}

/// From when to when all certificates of a chain are valid.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Validity {
    /// The latest beginning.
    pub not_before: Timestamp,
    /// The earliest end.
    pub not_after: Timestamp,
}

fn cannot_parse(why: impl std::fmt::Display) -> Error {
    Error::new("unable to parse certificate").because(why)
}

impl Chain {
    /// Reads all certificates of a PEM text.
    ///
    /// # Errors
    /// There is none, or one of them cannot be read.
    pub fn parse(pem: &[u8]) -> Result<Self> {
        let mut chain = Vec::new();
        for block in Pem::iter_from_buffer(pem) {
            let block = block.map_err(cannot_parse)?;
            if block.label == "CERTIFICATE" {
                chain.push(parse_one(&block.contents)?);
            }
        }
        if chain.is_empty() {
            return Err(cannot_parse("it holds no PEM block CERTIFICATE"));
        }
        Ok(Self(chain))
    }

    /// Cluster and agent in the first certificate whose common name is that of an agent.
    #[must_use]
    pub fn names(&self) -> Option<(&str, &str)> {
        self.0
            .iter()
            .find_map(|certificate| parse_agent_user(&certificate.common_name))
    }

    /// The common name of the client's certificate.
    #[must_use]
    pub fn common_name(&self) -> &str {
        self.0.first().map_or("", |certificate| &certificate.common_name)
    }

    /// Each of them with its end, for messages.
    #[must_use]
    pub fn describe(&self) -> String {
        let all: Vec<_> = self
            .0
            .iter()
            .map(|certificate| format!("{:?} until {}", certificate.common_name, certificate.not_after))
            .collect();
        all.join(", ")
    }

    /// When all of them are valid.
    #[must_use]
    pub fn validity(&self) -> Validity {
        let not_before = self.0.iter().map(|certificate| certificate.not_before).max();
        let not_after = self.0.iter().map(|certificate| certificate.not_after).min();
        Validity {
            not_before: not_before.unwrap_or(Timestamp::MAX),
            not_after: not_after.unwrap_or(Timestamp::MIN),
        }
    }

    /// Whether one of them is for this subject.
    #[must_use]
    pub fn is_for(&self, subject: &Subject) -> bool {
        self.0.iter().any(|certificate| {
            certificate.common_name == subject.common_name
                && certificate.organizations == subject.organizations
                && certificate.organizational_units == subject.organizational_units
        })
    }

    /// Whether the private key (PEM: PKCS#8, SEC1 or PKCS#1) belongs to the client's certificate.
    ///
    /// # Errors
    /// The key cannot be read.
    pub fn has_key(&self, key_pem: &[u8]) -> Result<bool> {
        let key = PrivateKeyDer::from_pem_slice(key_pem)
            .map_err(|error| Error::new("unable to parse the private key").because(error))?;
        let key = rustls::crypto::ring::sign::any_supported_type(&key)
            .map_err(|error| Error::new("unable to use the private key").because(error))?;
        let public = key.public_key();
        Ok(self
            .0
            .first()
            .zip(public)
            .is_some_and(|(certificate, public)| certificate.public_key == public.as_ref()))
    }
}

fn parse_one(der: &[u8]) -> Result<Certificate> {
    let (_, certificate) = X509Certificate::from_der(der).map_err(cannot_parse)?;
    let texts = |attributes: Vec<&x509_parser::x509::AttributeTypeAndValue<'_>>| {
        attributes
            .into_iter()
            .filter_map(|a| a.as_str().ok().map(str::to_owned))
            .collect::<BTreeSet<_>>()
    };
    let subject = certificate.subject();
    let time = |seconds: i64| Timestamp::from_second(seconds).map_err(cannot_parse);
    Ok(Certificate {
        common_name: subject
            .iter_common_name()
            .find_map(|name| name.as_str().ok())
            .unwrap_or_default()
            .to_owned(),
        organizations: texts(subject.iter_organization().collect()),
        organizational_units: texts(subject.iter_organizational_unit().collect()),
        not_before: time(certificate.validity().not_before.timestamp())?,
        not_after: time(certificate.validity().not_after.timestamp())?,
        public_key: certificate.public_key().raw.to_vec(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{csr::agent_subject, test_support::certificate};

    fn subject(organizations: &[&str], units: &[&str]) -> Subject {
        let set = |texts: &[&str]| texts.iter().map(|text| (*text).to_owned()).collect();
        Subject {
            common_name: "system:open-cluster-management:cluster1:agent1".into(),
            organizations: set(organizations),
            organizational_units: set(units),
        }
    }

    #[test]
    fn garbage_is_an_error_that_says_so() {
        for pem in [
            "",
            "garbage",
            "-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n",
        ] {
            let error = Chain::parse(pem.as_bytes()).unwrap_err();
            assert!(error.to_string().starts_with("unable to parse certificate:"), "{error}");
        }
    }

    #[test]
    fn names_come_from_the_first_common_name_of_an_agent() {
        let (other, _) = certificate("test", "x", -60, 60);
        assert_eq!(Chain::parse(&other).unwrap().names(), None);
        let (ours, _) = certificate("system:open-cluster-management:cluster1:agent1", "cluster1", -60, 60);
        assert_eq!(Chain::parse(&ours).unwrap().names(), Some(("cluster1", "agent1")));
        let both = [other, ours].concat();
        assert_eq!(Chain::parse(&both).unwrap().names(), Some(("cluster1", "agent1")));
    }

    #[test]
    fn the_validity_of_a_chain_is_the_later_beginning_and_the_earlier_end() {
        let (a, _) = certificate("a", "x", -600, 60);
        let (b, _) = certificate("b", "x", -60, 6000);
        let (first, second) = (
            Chain::parse(&a).unwrap().validity(),
            Chain::parse(&b).unwrap().validity(),
        );
        let both = Chain::parse(&[a, b].concat()).unwrap().validity();
        assert_eq!((both.not_before, both.not_after), (second.not_before, first.not_after));
    }

    #[test]
    fn subjects_are_compared_with_organizations_as_sets() {
        let (pem, _) = certificate("system:open-cluster-management:cluster1:agent1", "cluster1", -60, 60);
        let chain = Chain::parse(&pem).unwrap();
        let ours = agent_subject("cluster1", "agent1");
        assert!(chain.is_for(&ours));
        assert!(!chain.is_for(&agent_subject("cluster1", "agent2")));
        assert!(!chain.is_for(&agent_subject("cluster2", "agent1")));
        let (one, two) = (
            "system:open-cluster-management:cluster1",
            "system:open-cluster-management:managed-clusters",
        );
        assert!(chain.is_for(&subject(&[two, one], &[])));
        assert!(!chain.is_for(&subject(&[one], &[])));
        assert!(!chain.is_for(&subject(&[one, two], &["unit"])));
    }

    #[test]
    fn a_key_belongs_to_its_certificate_only() {
        let (pem, key) = certificate("a", "x", -60, 60);
        let (_, other) = certificate("a", "x", -60, 60);
        let chain = Chain::parse(&pem).unwrap();
        assert!(chain.has_key(key.as_bytes()).unwrap());
        assert!(!chain.has_key(other.as_bytes()).unwrap());
        assert!(chain.has_key(b"garbage").is_err());
    }

    #[test]
    fn keys_that_openssl_and_go_write_as_sec1_are_read() {
        // An EC P-256 key as Open Cluster Management's agent stores it ("EC PRIVATE KEY"), from `openssl ecparam -genkey`.
        let key = include_bytes!("../tests/fixtures/sec1.key");
        let certificate = include_bytes!("../tests/fixtures/sec1.crt");
        assert!(Chain::parse(certificate).unwrap().has_key(key).unwrap());
    }
}
