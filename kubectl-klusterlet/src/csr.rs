//! Certificate requests: what is asked, what the hub recognises, what an answer means, when to ask anew.
//!
//! The rules are those of Open Cluster Management (`pkg/registration/register/csr`) and of Kubernetes' signer
//! `kubernetes.io/kube-apiserver-client`.

use std::{collections::BTreeMap, time::Duration};

use jiff::{SignedDuration, Timestamp};
use k8s_openapi::{
    ByteString,
    api::certificates::v1::{CertificateSigningRequest, CertificateSigningRequestSpec},
    apimachinery::pkg::apis::meta::v1::ObjectMeta,
};
use rcgen::{CertificateParams, DistinguishedName, DnType, KeyPair};
use sha2::{Digest, Sha256};
use shared::{Error, Result};
use x509_parser::prelude::{FromDer, Pem, X509CertificationRequest};

use crate::{
    certificate::{Chain, Subject, Validity},
    names::{self, ADDON_NAME_LABEL, ALL_CLUSTERS_GROUP, CLUSTER_NAME_LABEL, SIGNER, agent_user, cluster_group},
};

/// What a certificate may be used for; the signer demands all that is asked.
pub const USAGES: [&str; 3] = ["digital signature", "key encipherment", "client auth"];

/// OID of O. The library keeps one value of each kind of attribute, and takes this for another kind than its own name.
const ORGANIZATION: &[u64] = &[2, 5, 4, 10];

/// Whose certificate an agent has.
#[must_use]
pub fn agent_subject(cluster: &str, agent: &str) -> Subject {
    Subject {
        common_name: agent_user(cluster, agent),
        organizations: [cluster_group(cluster), ALL_CLUSTERS_GROUP.to_owned()].into(),
        ..Subject::default()
    }
}

/// The subject as the library wants it: two O and the CN, which may be longer than X.520's 64 characters.
pub(crate) fn distinguished_name(common_name: &str, cluster: &str) -> DistinguishedName {
    let mut name = DistinguishedName::new();
    name.push(DnType::OrganizationName, cluster_group(cluster));
    name.push(DnType::CustomDnType(ORGANIZATION.to_vec()), ALL_CLUSTERS_GROUP);
    name.push(DnType::CommonName, common_name);
    name
}

/// A new key and the request that it signed, both PEM.
#[derive(Clone, PartialEq, Eq)]
pub struct KeyAndRequest {
    /// PKCS#8.
    pub key: String,
    /// PKCS#10.
    pub request: String,
}

impl std::fmt::Debug for KeyAndRequest {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter
            .debug_struct("KeyAndRequest")
            .field("request", &self.request)
            .finish_non_exhaustive()
    }
}

/// Draws a key (EC P-256) and signs the request of this agent with it.
///
/// # Errors
/// The machine has no randomness.
pub fn new_request(cluster: &str, agent: &str) -> Result<KeyAndRequest> {
    let key = KeyPair::generate().map_err(|error| Error::new("cannot make a private key").because(error))?;
    let mut parameters = CertificateParams::default();
    parameters.distinguished_name = distinguished_name(&agent_user(cluster, agent), cluster);
    let request = parameters
        .serialize_request(&key)
        .and_then(|request| request.pem())
        .map_err(|error| Error::new("cannot make the certificate request").because(error))?;
    Ok(KeyAndRequest {
        key: key.serialize_pem(),
        request,
    })
}

/// The object to create. The server appends five characters to the name and cuts what is before them to 58, so the name
/// has to be taken from its answer.
#[must_use]
pub fn request_object(cluster: &str, request_pem: &str, life: Option<Duration>) -> CertificateSigningRequest {
    CertificateSigningRequest {
        metadata: ObjectMeta {
            generate_name: Some(format!("{cluster}-")),
            labels: Some(BTreeMap::from([(CLUSTER_NAME_LABEL.to_owned(), cluster.to_owned())])),
            ..ObjectMeta::default()
        },
        spec: CertificateSigningRequestSpec {
            request: ByteString(request_pem.as_bytes().to_vec()),
            signer_name: SIGNER.to_owned(),
            usages: Some(USAGES.map(str::to_owned).to_vec()),
            expiration_seconds: life.and_then(|life| i32::try_from(life.as_secs()).ok()),
            ..CertificateSigningRequestSpec::default()
        },
        status: None,
    }
}

/// What became of a request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RequestState {
    /// Nobody has decided yet.
    Pending,
    /// Approved, and the signer has not answered yet.
    Approved,
    /// The certificate chain, PEM.
    Issued(Vec<u8>),
    /// Refused, with the reason and message that were given. It stays refused.
    Denied(String),
    /// The signer could not sign.
    Failed(String),
}

/// What became of it. Denied wins over approved, as for the signer.
#[must_use]
pub fn request_state(request: &CertificateSigningRequest) -> RequestState {
    let status = request.status.clone().unwrap_or_default();
    let conditions = status.conditions.unwrap_or_default();
    let find = |kind: &str| {
        conditions
            .iter()
            .find(|condition| condition.type_ == kind)
            .map(|condition| {
                let texts = [condition.reason.as_deref(), condition.message.as_deref()];
                let texts: Vec<_> = texts.into_iter().flatten().filter(|text| !text.is_empty()).collect();
                if texts.is_empty() {
                    "no reason was given".to_owned()
                } else {
                    texts.join(": ")
                }
            })
    };
    if let Some(why) = find("Denied") {
        return RequestState::Denied(why);
    }
    if let Some(why) = find("Failed") {
        return RequestState::Failed(why);
    }
    match (
        find("Approved"),
        status.certificate.filter(|certificate| !certificate.0.is_empty()),
    ) {
        (_, Some(certificate)) => RequestState::Issued(certificate.0),
        (Some(_), None) => RequestState::Approved,
        (None, None) => RequestState::Pending,
    }
}

/// A request that is under way, as it is kept in a Secret so that a restart resumes it.
#[derive(Clone, PartialEq, Eq)]
pub struct PendingRequest {
    /// Key and request.
    pub pair: KeyAndRequest,
    /// Name of the object on the hub; `None` before its creation was answered.
    pub name: Option<String>,
    /// Server of the hub that it was sent to.
    pub server: String,
}

impl std::fmt::Debug for PendingRequest {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter
            .debug_struct("PendingRequest")
            .field("name", &self.name)
            .field("server", &self.server)
            .finish_non_exhaustive()
    }
}

/// What to do next about the request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Step {
    /// Make key and request, keep them, then create the object.
    Create,
    /// Look for an object that carries our request, since the answer to its creation may be lost; create it if there is
    /// none.
    FindOrCreate,
    /// Somebody on the hub has to act.
    Wait(RequestState),
    /// Store the certificate.
    Store(Vec<u8>),
    /// It is refused: tell, and do not ask again by yourself while the refusal stands.
    Refused(String),
    /// It leads nowhere: forget it, and ask anew later.
    Forget(String),
}

/// What to do, from what is kept and what the hub shows (`None`: no such object).
#[must_use]
pub fn next_step(
    pending: Option<&PendingRequest>,
    server: &str,
    subject: &Subject,
    seen: Option<&RequestState>,
    now: Timestamp,
) -> Step {
    let Some(pending) = pending else {
        return Step::Create;
    };
    if pending.server != server {
        return Step::Forget(format!("it was made for the hub at {}", pending.server));
    }
    if pending.name.is_none() {
        return Step::FindOrCreate;
    }
    match seen {
        None => Step::Forget("it is gone from the hub".to_owned()),
        Some(RequestState::Denied(why)) => Step::Refused(why.clone()),
        Some(RequestState::Failed(why)) => Step::Forget(format!("the hub could not sign it: {why}")),
        Some(RequestState::Issued(pem)) => match check_issued(pem, &pending.pair.key, subject, now) {
            Ok(()) => Step::Store(pem.clone()),
            Err(error) => Step::Forget(format!("the certificate that was issued cannot be used: {error}")),
        },
        Some(state) => Step::Wait(state.clone()),
    }
}

/// Whether an issued certificate is ours and can be used. A certificate that begins in the future is no error: the clock
/// of this machine may be slow, and the server decides.
///
/// # Errors
/// What is wrong with it.
pub fn check_issued(pem: &[u8], key: &str, subject: &Subject, now: Timestamp) -> Result<()> {
    let chain = Chain::parse(pem)?;
    if !chain.has_key(key.as_bytes())? {
        return Err(Error::new("it belongs to another key"));
    }
    if !chain.is_for(subject) {
        return Err(Error::new(format!("it is for {:?}", chain.common_name())));
    }
    let end = chain.validity().not_after;
    if now >= end {
        return Err(Error::new(format!("it expired at {end}")));
    }
    Ok(())
}

/// When to ask for the next certificate: with 20 to 25 % of its life left. Where between is drawn from the certificate
/// itself, so that the clusters of a hub spread and one cluster always computes the same time.
#[must_use]
pub fn renew_at(validity: Validity, fingerprint: &[u8; 32]) -> Timestamp {
    let life = validity
        .not_after
        .duration_since(validity.not_before)
        .as_secs_f64()
        .max(0.0);
    let drawn = f64::from(u16::from_be_bytes([fingerprint[0], fingerprint[1]])) / f64::from(u16::MAX);
    let left = SignedDuration::try_from_secs_f64(life * (0.20 + 0.05 * drawn)).unwrap_or(SignedDuration::ZERO);
    validity.not_after.checked_sub(left).unwrap_or(validity.not_after)
}

/// SHA-256 of the PEM text: what a certificate is told apart by.
#[must_use]
pub fn fingerprint(pem: &[u8]) -> [u8; 32] {
    Sha256::digest(pem).into()
}

/// A request that the hub's controllers would take for one of an agent.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Recognised {
    /// The cluster.
    pub cluster: String,
    /// The agent.
    pub agent: String,
}

/// Whether the hub recognises it as a request of an agent: the label, the signer, the PEM type, the organizations (without
/// the group of all clusters exactly one: that of the cluster), the common name with the same cluster.
///
/// # Errors
/// Why it does not.
pub fn recognise(request: &CertificateSigningRequest) -> Result<Recognised, String> {
    let labels = request.metadata.labels.clone().unwrap_or_default();
    let cluster = labels
        .get(CLUSTER_NAME_LABEL)
        .filter(|cluster| !cluster.is_empty())
        .ok_or_else(|| format!("it has no label {CLUSTER_NAME_LABEL}"))?;
    if labels.contains_key(ADDON_NAME_LABEL) {
        return Err("it is the request of an addon".to_owned());
    }
    if request.spec.signer_name != SIGNER {
        return Err(format!("its signer is {:?}", request.spec.signer_name));
    }
    let block = Pem::iter_from_buffer(&request.spec.request.0)
        .next()
        .and_then(std::result::Result::ok)
        .filter(|block| block.label == "CERTIFICATE REQUEST")
        .ok_or("it holds no PEM block CERTIFICATE REQUEST")?;
    let (_, parsed) = X509CertificationRequest::from_der(&block.contents).map_err(|error| error.to_string())?;
    let subject = &parsed.certification_request_info.subject;
    let mut organizations: Vec<_> = subject
        .iter_organization()
        .filter_map(|value| value.as_str().ok())
        .collect();
    organizations.retain(|value| *value != ALL_CLUSTERS_GROUP);
    if organizations != [cluster_group(cluster)] {
        return Err(format!("its groups are {organizations:?}"));
    }
    let common_name = subject
        .iter_common_name()
        .find_map(|name| name.as_str().ok())
        .unwrap_or_default();
    match names::parse_agent_user(common_name) {
        Some((named, agent)) if named == cluster => Ok(Recognised {
            cluster: cluster.clone(),
            agent: agent.to_owned(),
        }),
        _ => Err(format!("its user is {common_name:?}")),
    }
}

#[cfg(test)]
#[path = "csr_tests.rs"]
mod tests;
