//! The hand-over of leadership: the controller manager keeps its Lease when it exits, and the next one waits 15 s for it to
//! run out. Once the old process is gone, its Lease is released for it.

use crate::cluster::ControlPlane;
use crate::names::Component;
use k8s_openapi::api::coordination::v1::Lease;
use shared::Result;

/// Who leads now.
///
/// # Errors
/// As the API says.
pub async fn holder(control_plane: &ControlPlane, component: Component) -> Result<Option<String>> {
    let Some(name) = component.lease() else { return Ok(None) };
    Ok(control_plane.lease(name).await?.as_ref().and_then(holder_of))
}

fn holder_of(lease: &Lease) -> Option<String> {
    lease
        .spec
        .as_ref()?
        .holder_identity
        .clone()
        .filter(|holder| !holder.is_empty())
}

/// Releases the Lease if the process that held it `before`, and is gone, still stands in it. Returns whether it did.
///
/// The write carries the resource version that was read, so that a process that has taken the Lease meanwhile keeps it.
///
/// # Errors
/// As the API says.
pub async fn release(control_plane: &ControlPlane, component: Component, before: Option<&str>) -> Result<bool> {
    let Some(name) = component.lease() else {
        return Ok(false);
    };
    let Some(lease) = control_plane.lease(name).await? else {
        return Ok(false);
    };
    let Some(released) = released(lease, before) else {
        return Ok(false);
    };
    control_plane.replace_lease(&released).await?;
    Ok(true)
}

/// The Lease without its holder, if that is the one who is gone.
fn released(mut lease: Lease, gone: Option<&str>) -> Option<Lease> {
    if gone.is_none() || holder_of(&lease).as_deref() != gone {
        return None;
    }
    let spec = lease.spec.as_mut()?;
    spec.holder_identity = Some(String::new());
    // as client-go does when it releases: the next one need not wait
    spec.lease_duration_seconds = Some(1);
    Some(lease)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_lease_of_the_one_who_is_gone_is_released() {
        let lease = |holder: &str| -> Lease {
            serde_json::from_value(
                serde_json::json!({"metadata": {"resourceVersion": "7"}, "spec": {"holderIdentity": holder}}),
            )
            .unwrap()
        };
        let after = released(lease("node1_a"), Some("node1_a")).unwrap();
        assert_eq!(holder_of(&after), None);
        assert_eq!(after.metadata.resource_version.as_deref(), Some("7"));
        for (holder, gone) in [
            ("node1_b", Some("node1_a")),
            ("", Some("node1_a")),
            ("node1_a", None),
            ("", None),
        ] {
            assert_eq!(released(lease(holder), gone), None, "{holder} {gone:?}");
        }
    }
}
