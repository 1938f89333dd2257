//! The addresses behind the Service `default/kubernetes` during a hand-over.
//!
//! An apiserver takes its address out when it is told to go, and the one that took over puts it back at its next
//! reconciliation, up to 10 s later. On a single node the list is empty meanwhile, and clients inside the cluster find no
//! API although one serves. So while a hand-over is on its way the list is looked at, and put back at once.

use crate::cluster::ControlPlane;
use k8s_openapi::api::core::v1::Endpoints;
use k8s_openapi::api::discovery::v1::EndpointSlice;
use shared::Result;
use std::time::Duration;

const INTERVAL: Duration = Duration::from_millis(100);

/// What stood there before.
#[derive(Clone, Debug)]
pub struct Saved {
    slice: EndpointSlice,
    endpoints: Option<Endpoints>,
}

/// Reads what is to be kept. `None` when there is nothing to keep: somebody runs without these objects.
///
/// # Errors
/// As the API says.
pub async fn save(control_plane: &ControlPlane) -> Result<Option<Saved>> {
    let (slice, endpoints) = control_plane.own_endpoints().await?;
    Ok(slice
        .filter(|slice| !is_empty(slice))
        .map(|slice| Saved { slice, endpoints }))
}

/// Keeps it until the returned future is dropped. Never ends by itself, and an API that does not answer for a moment is
/// ordinary here.
pub async fn keep(control_plane: &ControlPlane, saved: Option<&Saved>) {
    let Some(saved) = saved else {
        return std::future::pending().await;
    };
    loop {
        if let Ok(Some(now)) = control_plane.own_endpoint_slice().await
            && is_empty(&now)
        {
            let _ = control_plane
                .restore_own_endpoints(&saved.slice, saved.endpoints.as_ref())
                .await;
        }
        tokio::time::sleep(INTERVAL).await;
    }
}

fn is_empty(slice: &EndpointSlice) -> bool {
    slice
        .endpoints
        .iter()
        .flatten()
        .all(|endpoint| endpoint.addresses.is_empty())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_slice_without_addresses_is_empty() {
        for (endpoints, expected) in [
            (serde_json::json!(null), true),
            (serde_json::json!([]), true),
            (serde_json::json!([{"addresses": ["10.0.0.1"]}]), false),
        ] {
            let slice =
                serde_json::from_value(serde_json::json!({"addressType": "IPv4", "endpoints": endpoints})).unwrap();
            assert_eq!(is_empty(&slice), expected);
        }
    }
}
