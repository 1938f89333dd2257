//! The certificates of an API server, and kubeconfigs.

use std::{fs, net::IpAddr, path::Path};

use base64::{Engine as _, prelude::BASE64_STANDARD};
use rcgen::{
    BasicConstraints, CertificateParams, CertifiedIssuer, DistinguishedName, DnType, ExtendedKeyUsagePurpose, IsCa,
    KeyPair, KeyUsagePurpose, SanType,
};
use serde_json::{Value, json};

use crate::error::{Context, Result};

/// A certificate authority, in two files `NAME.crt` and `NAME.key`.
pub(super) struct Authority(CertifiedIssuer<'static, KeyPair>);

impl std::fmt::Debug for Authority {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.write_str("Authority")
    }
}

impl Authority {
    /// Makes one.
    pub(super) fn new(directory: &Path, name: &str) -> Result<Self> {
        let what = || format!("make certificate authority {name}");
        let key = KeyPair::generate().what(what)?;
        write(directory, &format!("{name}.key"), &key.serialize_pem())?;
        let mut parameters = CertificateParams::default();
        parameters.distinguished_name.push(DnType::CommonName, name);
        parameters.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        parameters.key_usages = vec![
            KeyUsagePurpose::KeyCertSign,
            KeyUsagePurpose::DigitalSignature,
            KeyUsagePurpose::CrlSign,
        ];
        let issuer = CertifiedIssuer::self_signed(parameters, key).what(what)?;
        write(directory, &format!("{name}.crt"), &issuer.pem())?;
        Ok(Self(issuer))
    }

    /// The certificate, PEM.
    pub(super) fn pem(&self) -> String {
        self.0.pem()
    }

    /// A certificate for the server, in `apiserver.crt` and `.key`.
    pub(super) fn server(&self, directory: &Path, addresses: &[IpAddr], names: &[&str]) -> Result<()> {
        let what = || "make the server's certificate".to_owned();
        let mut parameters = CertificateParams::default();
        parameters.distinguished_name.push(DnType::CommonName, "kube-apiserver");
        parameters.extended_key_usages = vec![ExtendedKeyUsagePurpose::ServerAuth];
        parameters.subject_alt_names = addresses.iter().map(|address| SanType::IpAddress(*address)).collect();
        for name in names {
            parameters
                .subject_alt_names
                .push(SanType::DnsName((*name).try_into().what(what)?));
        }
        let key = KeyPair::generate().what(what)?;
        let certificate = parameters.signed_by(&key, &self.0).what(what)?;
        write(directory, "apiserver.crt", &certificate.pem())?;
        write(directory, "apiserver.key", &key.serialize_pem())
    }

    /// A certificate for a client of this name, in `NAME.crt` and `NAME.key`.
    pub(super) fn client(&self, directory: &Path, name: &str) -> Result<()> {
        let what = || format!("make the certificate of {name}");
        let (certificate, key) = self.issue_client(name, None, what)?;
        write(directory, &format!("{name}.crt"), &certificate)?;
        write(directory, &format!("{name}.key"), &key)
    }

    /// Certificate and key of a client, PEM.
    fn issue_client(&self, name: &str, group: Option<&str>, what: impl Fn() -> String) -> Result<(String, String)> {
        let mut parameters = CertificateParams::default();
        let mut subject = DistinguishedName::new();
        if let Some(group) = group {
            subject.push(DnType::OrganizationName, group);
        }
        subject.push(DnType::CommonName, name);
        parameters.distinguished_name = subject;
        parameters.extended_key_usages = vec![ExtendedKeyUsagePurpose::ClientAuth];
        let key = KeyPair::generate().what(&what)?;
        let certificate = parameters.signed_by(&key, &self.0).what(&what)?;
        Ok((certificate.pem(), key.serialize_pem()))
    }

    /// The user's part of a kubeconfig, with a certificate for this name and group.
    pub(super) fn user(&self, name: &str, group: Option<&str>) -> Result<Value> {
        let (certificate, key) = self.issue_client(name, group, || format!("make the certificate of {name}"))?;
        Ok(json!({
            "client-certificate-data": BASE64_STANDARD.encode(certificate),
            "client-key-data": BASE64_STANDARD.encode(key),
        }))
    }
}

/// A key for the tokens of ServiceAccounts, in `sa.key` and `sa.pub`.
pub(super) fn service_account_key(directory: &Path) -> Result<()> {
    let key = KeyPair::generate().what(|| "make the key of the ServiceAccounts".to_owned())?;
    write(directory, "sa.key", &key.serialize_pem())?;
    write(directory, "sa.pub", &key.public_key_pem())
}

/// A kubeconfig. JSON is YAML.
pub(super) fn kubeconfig(name: &str, server: &str, authority_pem: &str, user: &Value) -> String {
    json!({
        "apiVersion": "v1", "kind": "Config", "current-context": name,
        "contexts": [{"name": name, "context": {"cluster": name, "user": name}}],
        "clusters": [{"name": name, "cluster": {"server": server, "certificate-authority-data": BASE64_STANDARD.encode(authority_pem.as_bytes())}}],
        "users": [{"name": name, "user": user}],
    })
    .to_string()
}

pub(super) fn write(directory: &Path, name: &str, text: &str) -> Result<()> {
    let path = directory.join(name);
    fs::write(&path, text).what(|| format!("write {}", path.display()))
}
