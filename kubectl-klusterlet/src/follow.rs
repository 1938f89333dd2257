//! Lists, then watches, for as long as it works.

use std::{fmt::Debug, time::Duration};

use futures_util::{StreamExt as _, pin_mut};
use kube::{
    Api, Resource,
    api::{ListParams, WatchParams},
    core::WatchEvent,
};
use serde::de::DeserializeOwned;
use shared::{Error, Result, error::Cause, kube_client::Cluster};

/// Seconds after which the server ends a watch; it is opened anew where it ended.
const WATCH_SECONDS: u32 = 290;

/// What is seen.
#[derive(Clone, Debug)]
pub enum Change<K> {
    /// A list begins: what was seen before is void once it is complete.
    Begin,
    /// It is there, or has changed.
    Set(K),
    /// It was removed.
    Gone(K),
    /// The list is complete.
    Complete,
}

/// Lists page by page and watches. Ends only with an error, whose cause tells what to do about it.
pub async fn follow<K>(
    cluster: &Cluster,
    api: &Api<K>,
    what: &str,
    fields: Option<&str>,
    mut each: impl FnMut(Change<K>),
) -> Error
where
    K: Resource + Clone + DeserializeOwned + Debug,
{
    loop {
        if let Err(error) = list_and_watch(cluster, api, what, fields, &mut each).await {
            return error;
        }
    }
}

/// Returns without an error when the list has to be read again.
async fn list_and_watch<K>(
    cluster: &Cluster,
    api: &Api<K>,
    what: &str,
    fields: Option<&str>,
    each: &mut impl FnMut(Change<K>),
) -> Result<()>
where
    K: Resource + Clone + DeserializeOwned + Debug,
{
    let mut parameters = ListParams::default().limit(200);
    parameters.field_selector = fields.map(str::to_owned);
    each(Change::Begin);
    let mut version = loop {
        let page = cluster.call(&format!("list {what}"), api.list(&parameters)).await?;
        for item in page.items {
            each(Change::Set(item));
        }
        match page.metadata.continue_.filter(|token| !token.is_empty()) {
            Some(token) => parameters.continue_token = Some(token),
            None => break page.metadata.resource_version.unwrap_or_default(),
        }
    };
    each(Change::Complete);
    let mut parameters = WatchParams::default().timeout(WATCH_SECONDS);
    parameters.field_selector = fields.map(str::to_owned);
    loop {
        let stream = cluster
            .call(&format!("watch {what}"), api.watch(&parameters, &version))
            .await?;
        pin_mut!(stream);
        loop {
            let silence = Duration::from_secs(u64::from(WATCH_SECONDS) + 10);
            let event = match tokio::time::timeout(silence, stream.next()).await {
                Err(_) => return Err(Error::new(format!("the watch of {what} is silent")).with_cause(Cause::TimedOut)),
                Ok(None) => break,
                Ok(Some(Err(error))) => return Err(Error::from(error).context(format!("the watch of {what} broke"))),
                Ok(Some(Ok(event))) => event,
            };
            let seen = |item: &K, version: &mut String| {
                if let Some(now) = &item.meta().resource_version {
                    version.clone_from(now);
                }
            };
            match event {
                WatchEvent::Added(item) | WatchEvent::Modified(item) => {
                    seen(&item, &mut version);
                    each(Change::Set(item));
                }
                WatchEvent::Deleted(item) => {
                    seen(&item, &mut version);
                    each(Change::Gone(item));
                }
                WatchEvent::Bookmark(mark) => version = mark.metadata.resource_version,
                // Too old: the list has to be read again.
                WatchEvent::Error(status) if status.code == 410 => return Ok(()),
                WatchEvent::Error(status) => {
                    return Err(Error::from(kube::Error::Api(status)).context(format!("the watch of {what} broke")));
                }
            }
        }
    }
}
