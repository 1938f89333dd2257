//! The addresses behind the Service `default/kubernetes` during a hand-over.
//!
//! An apiserver takes its address out when it is told to go, and the one that took over puts it back at its next
//! reconciliation, up to 10 s later. On a single node the list is empty meanwhile, and clients inside the cluster find no
//! API although one serves. So while a hand-over is on its way the list is looked at, and put back at once.

use crate::cluster::ControlPlane;
use k8s_openapi::api::core::v1::{EndpointAddress, Endpoints};
use k8s_openapi::api::discovery::v1::EndpointSlice;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use shared::{Error, Result};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;
use tokio::task::JoinSet;
use tokio::time::Instant;

/// Pause after a look that nothing told about a change.
const INTERVAL: Duration = Duration::from_millis(100);
/// How long a change is waited for before it is looked again all the same.
const LOOK_AGAIN: Duration = Duration::from_millis(1500);
/// How often an apiserver announces itself (k8s.io/kubernetes `pkg/controlplane`, `DefaultEndpointReconcilerInterval`), and a
/// bit.
const RECONCILIATION: Duration = Duration::from_secs(11);

/// What stood there before.
#[derive(Clone, Debug)]
pub struct Saved {
    slice: EndpointSlice,
    endpoints: Option<Endpoints>,
    /// Addresses that are kept: those of the node that is handed over, which lives.
    addresses: Vec<String>,
}

/// Reads what is to be kept: the addresses of one node. `None` when there is nothing to keep: somebody runs without these
/// objects, or announces other addresses than the node's.
///
/// # Errors
/// As the API says.
pub async fn save(control_plane: &ControlPlane, addresses: &[String]) -> Result<Option<Saved>> {
    let Some(slice) = control_plane.own_endpoint_slice().await? else {
        return Ok(None);
    };
    let listed = addresses_of(&slice);
    // A single address is the node's, whatever it is: behind a translation of addresses it may be another one.
    let addresses: Vec<String> = match listed.as_slice() {
        [only] => vec![only.clone()],
        _ => addresses
            .iter()
            .filter(|address| listed.contains(address))
            .cloned()
            .collect(),
    };
    if addresses.is_empty() {
        return Ok(None);
    }
    Ok(Some(Saved {
        endpoints: control_plane.own_endpoints().await?,
        slice,
        addresses,
    }))
}

/// Addresses that are kept for a while after their nodes' hand-overs, while the next ones are on their way: on a node with
/// neighbours their reconciliations take the address out until the one that took over announces itself.
#[derive(Debug, Default)]
pub struct Afterwards {
    kept: Mutex<JoinSet<()>>,
}

impl Afterwards {
    fn add(&self, control_plane: &ControlPlane, saved: &Saved, missing: Missing) {
        let (control_plane, saved) = (control_plane.clone(), saved.clone());
        let mut kept = self.kept.lock().unwrap_or_else(PoisonError::into_inner);
        kept.spawn(async move {
            while let Some(left) = missing.left() {
                let _ = tokio::time::timeout(left, keep(&control_plane, &saved, &missing)).await;
            }
        });
    }

    /// Waits for all of them, which takes as long as one reconciliation.
    pub async fn end(&self) {
        let kept = std::mem::take(&mut *self.kept.lock().unwrap_or_else(PoisonError::into_inner));
        kept.join_all().await;
    }
}

/// When an address was missing last, or the beginning.
#[derive(Debug)]
struct Missing(Mutex<Instant>);

impl Missing {
    fn now(&self) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = Instant::now();
    }

    /// How long to look yet, until nothing has been missing for the time of one reconciliation.
    fn left(&self) -> Option<Duration> {
        let last = *self.0.lock().unwrap_or_else(PoisonError::into_inner);
        RECONCILIATION
            .checked_sub(last.elapsed())
            .filter(|left| !left.is_zero())
    }
}

/// Keeps it while `work` is done, and, where other nodes' apiservers write the list too, until nothing
/// has been missing for as long as an apiserver may take to announce itself again: `afterwards`, which the caller ends.
///
/// # Errors
/// That of the work.
pub async fn kept<T>(
    control_plane: &ControlPlane,
    saved: Option<&Saved>,
    alone: bool,
    afterwards: &Afterwards,
    work: impl Future<Output = Result<T>>,
) -> Result<T> {
    let Some(saved) = saved else { return work.await };
    let missing = Missing(Mutex::new(Instant::now()));
    let result = tokio::select! {
        result = work => result,
        () = keep(control_plane, saved, &missing) => return Err(Error::new("keeping the addresses has ended")),
    };
    if alone {
        // the one who went took it out before, and nobody else does
        put_back(control_plane, saved, &missing).await;
    } else {
        afterwards.add(control_plane, saved, missing);
    }
    result
}

/// Never ends by itself, and an API that does not answer for a moment is ordinary here.
async fn keep(control_plane: &ControlPlane, saved: &Saved, missing: &Missing) {
    loop {
        let version = put_back(control_plane, saved, missing).await;
        let rang = match version {
            Some(version) => control_plane.own_endpoint_slice_changes(&version, LOOK_AGAIN).await,
            None => false,
        };
        if !rang {
            tokio::time::sleep(INTERVAL).await;
        }
    }
}

/// Looks once. Somebody who writes in between wins, and is looked at again the next time. Returns the version in which
/// nothing was missing.
async fn put_back(control_plane: &ControlPlane, saved: &Saved, missing: &Missing) -> Option<String> {
    let now = control_plane.own_endpoint_slice().await.ok()?;
    let written = match now {
        None => control_plane.create_own_endpoint_slice(&anew(saved)).await,
        // Without any address the apiserver takes it for one of IPv4 addresses, and the kind cannot be changed.
        Some(other) if other.address_type != saved.slice.address_type => {
            match control_plane.delete_own_endpoint_slice(&other).await {
                Ok(()) => control_plane.create_own_endpoint_slice(&anew(saved)).await,
                Err(error) => Err(error),
            }
        }
        Some(now) => match restored(saved, &now) {
            None => return now.metadata.resource_version,
            Some(restored) => control_plane.write_own_endpoint_slice(&restored).await,
        },
    };
    missing.now();
    if written.is_ok()
        && let Ok(Some(endpoints)) = control_plane.own_endpoints().await
    {
        let _ = control_plane
            .write_own_endpoints(&with_addresses(endpoints, saved))
            .await;
    }
    None
}

/// The list as it is made where there is none.
fn anew(saved: &Saved) -> EndpointSlice {
    let mut slice = saved.slice.clone();
    slice.metadata = ObjectMeta {
        name: slice.metadata.name,
        namespace: slice.metadata.namespace,
        labels: slice.metadata.labels,
        ..ObjectMeta::default()
    };
    if let Some(list) = &mut slice.endpoints {
        list.retain(|endpoint| {
            endpoint
                .addresses
                .iter()
                .any(|address| saved.addresses.contains(address))
        });
    }
    slice
}

fn addresses_of(slice: &EndpointSlice) -> Vec<String> {
    slice
        .endpoints
        .iter()
        .flatten()
        .flat_map(|endpoint| endpoint.addresses.iter().cloned())
        .collect()
}

/// The list with what is missing of the saved addresses; `None` when nothing is.
fn restored(saved: &Saved, now: &EndpointSlice) -> Option<EndpointSlice> {
    let there = addresses_of(now);
    let missing: Vec<_> = saved
        .slice
        .endpoints
        .iter()
        .flatten()
        .filter(|endpoint| {
            endpoint
                .addresses
                .iter()
                .any(|address| saved.addresses.contains(address) && !there.contains(address))
        })
        .cloned()
        .collect();
    if missing.is_empty() {
        return None;
    }
    let mut restored = now.clone();
    restored.endpoints.get_or_insert_default().extend(missing);
    if restored.ports.as_ref().is_none_or(Vec::is_empty) {
        restored.ports.clone_from(&saved.slice.ports);
    }
    Some(restored)
}

/// The older object, which clients of old read, with the saved addresses.
fn with_addresses(mut endpoints: Endpoints, saved: &Saved) -> Endpoints {
    if endpoints.subsets.iter().flatten().next().is_none() {
        endpoints.subsets = saved.endpoints.as_ref().and_then(|saved| saved.subsets.clone());
        for subset in endpoints.subsets.iter_mut().flatten() {
            subset
                .addresses
                .iter_mut()
                .for_each(|list| list.retain(|address| saved.addresses.contains(&address.ip)));
        }
        return endpoints;
    }
    if let Some(subset) = endpoints.subsets.iter_mut().flatten().next() {
        let list = subset.addresses.get_or_insert_default();
        for address in &saved.addresses {
            if !list.iter().any(|there| there.ip == *address) {
                list.push(EndpointAddress {
                    ip: address.clone(),
                    ..EndpointAddress::default()
                });
            }
        }
    }
    endpoints
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{Value, from_value, json};

    fn slice(addresses: &[&str]) -> EndpointSlice {
        let endpoints: Vec<Value> = addresses
            .iter()
            .map(|address| json!({"addresses": [address]}))
            .collect();
        from_value(json!({"addressType": "IPv4", "endpoints": endpoints, "ports": [{"port": 6443}]})).unwrap()
    }

    #[test]
    fn only_the_addresses_of_the_node_that_is_handed_over_are_put_back() {
        let saved = Saved {
            slice: slice(&["10.0.0.1", "10.0.0.2", "10.0.0.3"]),
            endpoints: None,
            addresses: vec!["10.0.0.2".into()],
        };
        for (now, expected) in [
            (slice(&["10.0.0.1", "10.0.0.2", "10.0.0.3"]), None),
            (
                slice(&["10.0.0.1", "10.0.0.3"]),
                Some(vec!["10.0.0.1", "10.0.0.3", "10.0.0.2"]),
            ),
            // a node that died meanwhile stays out
            (slice(&["10.0.0.2"]), None),
            (slice(&["10.0.0.1"]), Some(vec!["10.0.0.1", "10.0.0.2"])),
            (
                from_value(json!({"addressType": "IPv4", "endpoints": null})).unwrap(),
                Some(vec!["10.0.0.2"]),
            ),
        ] {
            let restored = restored(&saved, &now);
            assert_eq!(
                restored.as_ref().map(addresses_of),
                expected.map(|list| list.into_iter().map(str::to_owned).collect())
            );
            if let Some(restored) = restored {
                assert_eq!(restored.ports, saved.slice.ports);
            }
        }
    }

    #[test]
    fn a_list_that_is_gone_is_made_anew_with_the_nodes_addresses() {
        let mut all = slice(&["fd00::1", "fd00::2"]);
        all.metadata.name = Some("kubernetes".into());
        all.metadata.resource_version = Some("7".into());
        let saved = Saved {
            slice: all,
            endpoints: None,
            addresses: vec!["fd00::2".into()],
        };
        let made = anew(&saved);
        assert_eq!(addresses_of(&made), ["fd00::2"]);
        assert_eq!(made.metadata.name.as_deref(), Some("kubernetes"));
        assert_eq!(made.metadata.resource_version, None);
    }

    #[test]
    fn the_older_object_gets_them_too() {
        let endpoints = |addresses: &[&str]| -> Endpoints {
            let list: Vec<Value> = addresses.iter().map(|ip| json!({"ip": ip})).collect();
            from_value(json!({"subsets": [{"addresses": list, "ports": [{"port": 6443}]}]})).unwrap()
        };
        let saved = Saved {
            slice: slice(&["10.0.0.1", "10.0.0.2"]),
            endpoints: Some(endpoints(&["10.0.0.1", "10.0.0.2"])),
            addresses: vec!["10.0.0.2".into()],
        };
        assert_eq!(
            with_addresses(endpoints(&["10.0.0.1"]), &saved),
            endpoints(&["10.0.0.1", "10.0.0.2"])
        );
        assert_eq!(
            with_addresses(Endpoints::default(), &saved).subsets,
            endpoints(&["10.0.0.2"]).subsets
        );
    }
}
