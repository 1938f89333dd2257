//! What several tests need.

use std::time::Duration;

use rcgen::{CertificateParams, KeyPair, date_time_ymd};

use crate::csr::distinguished_name;

/// A certificate with this common name and the groups of the cluster's agents, valid from `begin` seconds after now for
/// `life` seconds; and its key.
pub(crate) fn certificate(common_name: &str, cluster: &str, begin: i64, life: u64) -> (Vec<u8>, String) {
    let key = KeyPair::generate().unwrap();
    let mut parameters = CertificateParams::default();
    parameters.distinguished_name = distinguished_name(common_name, cluster);
    let now = jiff::Timestamp::now().as_second();
    parameters.not_before = date_time_ymd(1970, 1, 1) + Duration::from_secs(u64::try_from(now + begin).unwrap());
    parameters.not_after = parameters.not_before + Duration::from_secs(life);
    let certificate = parameters.self_signed(&key).unwrap();
    (certificate.pem().into_bytes(), key.serialize_pem())
}
