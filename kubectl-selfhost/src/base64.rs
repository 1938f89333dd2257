//! Bytes inside JSON, as base64.

use k8s_openapi::ByteString;
use serde::{Deserialize, Deserializer, Serialize, Serializer};

/// For `#[serde(with = "…")]`.
///
/// # Errors
/// The serializer's.
pub fn serialize<S: Serializer>(bytes: &[u8], serializer: S) -> Result<S::Ok, S::Error> {
    ByteString(bytes.to_vec()).serialize(serializer)
}

/// For `#[serde(with = "…")]`.
///
/// # Errors
/// The text is no base64.
pub fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Vec<u8>, D::Error> {
    ByteString::deserialize(deserializer).map(|bytes| bytes.0)
}
