//! Waiting for one object to change: it is seen at once, and costs two requests a change instead of some a second.

use super::ControlPlane;
use futures_util::StreamExt;
use k8s_openapi::api::core::v1::Node;
use k8s_openapi::api::discovery::v1::EndpointSlice;
use kube::api::{Api, WatchEvent, WatchParams};
use serde::de::DeserializeOwned;
use std::fmt::Debug;
use std::pin::pin;
use std::time::Duration;

impl ControlPlane {
    /// Waits until a Node is no longer at that version, or so long. `false` when the API does not tell: the caller is to
    /// pause before it looks again.
    pub async fn node_changes(&self, name: &str, version: &str, longest: Duration) -> bool {
        self.changes(
            &self.all::<Node>(),
            &format!("watch Node {name}"),
            name,
            version,
            longest,
        )
        .await
    }

    /// The same for the EndpointSlice `default/kubernetes`.
    pub async fn own_endpoint_slice_changes(&self, version: &str, longest: Duration) -> bool {
        let slices: Api<EndpointSlice> = Api::namespaced(self.cluster.client.clone(), "default");
        let what = "watch EndpointSlice default/kubernetes";
        self.changes(&slices, what, "kubernetes", version, longest).await
    }

    async fn changes<K>(&self, api: &Api<K>, what: &str, name: &str, version: &str, longest: Duration) -> bool
    where
        K: Clone + Debug + DeserializeOwned,
    {
        // the server ends it a moment later than this side, so that an end by the server is one before the time
        let seconds = u32::try_from(longest.as_secs()).unwrap_or(u32::MAX).saturating_add(2);
        let parameters = WatchParams::default()
            .fields(&format!("metadata.name={name}"))
            .timeout(seconds)
            .disable_bookmarks();
        let rang = async {
            let Ok(events) = self.cluster.call(what, api.watch_metadata(&parameters, version)).await else {
                return false;
            };
            matches!(
                pin!(events).next().await,
                Some(Ok(WatchEvent::Added(_)
                    | WatchEvent::Modified(_)
                    | WatchEvent::Deleted(_)))
            )
        };
        tokio::time::timeout(longest, rang).await.unwrap_or(true)
    }
}
