//! The Secret that keeps a certificate request which is under way, so that a restart goes on with it.

use crate::{
    csr::{KeyAndRequest, PendingRequest},
    spoke::Data,
};

const KEY: &str = "tls.key";
const REQUEST: &str = "tls.csr";
const NAME: &str = "request-name";
const SERVER: &str = "server";
const CLUSTER: &str = "cluster-name";
const AGENT: &str = "agent-name";

/// As data of the Secret.
#[must_use]
pub fn to_data(pending: &PendingRequest, cluster: &str, agent: &str) -> Data {
    [
        (KEY, pending.pair.key.as_str()),
        (REQUEST, &pending.pair.request),
        (NAME, pending.name.as_deref().unwrap_or_default()),
        (SERVER, &pending.server),
        (CLUSTER, cluster),
        (AGENT, agent),
    ]
    .into_iter()
    .map(|(name, text)| (name.to_owned(), text.as_bytes().to_vec()))
    .collect()
}

/// From data of the Secret; `None` where it holds no request of this cluster and agent.
#[must_use]
pub fn from_data(data: &Data, cluster: &str, agent: &str) -> Option<PendingRequest> {
    let get = |name: &str| {
        String::from_utf8(data.get(name)?.clone())
            .ok()
            .filter(|text| !text.is_empty())
    };
    if get(CLUSTER)? != cluster || get(AGENT)? != agent {
        return None;
    }
    Some(PendingRequest {
        pair: KeyAndRequest {
            key: get(KEY)?,
            request: get(REQUEST)?,
        },
        name: get(NAME),
        server: get(SERVER)?,
    })
}

/// Cluster and agent that a request is kept for: they are this spoke's names where nothing else is stored.
#[must_use]
pub fn names(data: &Data) -> Option<(String, String)> {
    let get = |name: &str| {
        String::from_utf8(data.get(name)?.clone())
            .ok()
            .filter(|text| !text.is_empty())
    };
    Some((get(CLUSTER)?, get(AGENT)?))
}

/// The request's name on the hub.
#[must_use]
pub fn request_name(data: &Data) -> Option<String> {
    String::from_utf8(data.get(NAME)?.clone())
        .ok()
        .filter(|text| !text.is_empty())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_request_is_kept_for_its_cluster_and_agent() {
        let mut pending = PendingRequest {
            pair: KeyAndRequest {
                key: "k".into(),
                request: "r".into(),
            },
            name: None,
            server: "https://h".into(),
        };
        assert_eq!(from_data(&to_data(&pending, "c", "a"), "c", "a"), Some(pending.clone()));
        pending.name = Some("c-abcde".into());
        let data = to_data(&pending, "c", "a");
        assert_eq!(from_data(&data, "c", "a"), Some(pending));
        assert_eq!(from_data(&data, "c", "b"), None);
        assert_eq!(from_data(&data, "d", "a"), None);
        assert_eq!(names(&data), Some(("c".into(), "a".into())));
        assert_eq!(request_name(&data), Some("c-abcde".into()));
        assert_eq!(from_data(&Data::new(), "c", "a"), None);
        for key in ["tls.key", "tls.csr", "server"] {
            let mut data = data.clone();
            data.insert(key.into(), Vec::new());
            assert_eq!(from_data(&data, "c", "a"), None, "{key}");
        }
    }
}
