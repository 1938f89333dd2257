//! Secrets and rolls through the API. No decisions here but "is it there already".

use std::collections::BTreeSet;
use std::time::Duration;

use k8s_openapi::api::apps::v1::DaemonSet;
use k8s_openapi::api::core::v1::Secret;
use kube::api::{Api, DeleteParams, DynamicObject, ListParams, PostParams};
use kube::core::ApiResource;
use shared::error::Cause;
use shared::progress::Reporter;
use shared::wait::{self, Poll};
use shared::{Error, Result};

use super::mutator::store_certs;
use super::{CertificateSecret, Projection, label_query};
use crate::cluster::ControlPlane;
use crate::names::{Component, FIELD_MANAGER, NAMESPACE};
use crate::patience::{self, tolerate};

/// Each node's Pod: a start, the soak time, and the old one's grace.
const ROLL_DEADLINE: Duration = Duration::from_secs(180);
const INTERVAL: Duration = Duration::from_millis(500);

fn secrets(control_plane: &ControlPlane) -> Api<Secret> {
    Api::namespaced(control_plane.cluster.client.clone(), NAMESPACE)
}

/// Makes the Secret, unless it is there. One of its name with another content is not ours to change.
///
/// # Errors
/// As the API says.
pub async fn ensure(control_plane: &ControlPlane, secret: &CertificateSecret, dry_run: bool) -> Result<()> {
    let name = &secret.name;
    let api = secrets(control_plane);
    let object: Secret = serde_json::from_value(secret.object())
        .map_err(|error| Error::new(format!("Secret {name} cannot be sent")).because(error))?;
    let parameters = PostParams {
        dry_run,
        field_manager: Some(FIELD_MANAGER.into()),
    };
    let call = async || {
        let created = control_plane
            .cluster
            .call(&format!("create Secret {name}"), api.create(&parameters, &object))
            .await;
        match created {
            Ok(_) => Ok(()),
            Err(error) if error.cause() == Cause::AlreadyExists => {
                let existing = control_plane
                    .cluster
                    .call(&format!("read Secret {name}"), api.get(name))
                    .await?;
                if secret.is(&existing.data.unwrap_or_default()) {
                    return Ok(());
                }
                Err(Error::refused(format!(
                    "Secret {NAMESPACE}/{name} is there already and holds something else"
                ))
                .hint(format!(
                    "find out whose it is; if nothing uses it: kubectl -n {NAMESPACE} delete secret {name}"
                )))
            }
            Err(error) => Err(error),
        }
    };
    patience::call(&format!("Secret {name} to be created"), call).await
}

/// Removes our Secrets with certificates that no DaemonSet uses. Returns how many went.
///
/// # Errors
/// As the API says; that one is gone already is fine.
pub async fn remove_unused(control_plane: &ControlPlane) -> Result<usize> {
    let api = secrets(control_plane);
    let parameters = ListParams::default().labels(&label_query());
    let (names, used) = patience::call("the Secrets with certificates to be listed", async || {
        let list = control_plane
            .cluster
            .call("list Secrets in kube-system", api.list_metadata(&parameters))
            .await?;
        let names: Vec<String> = list
            .items
            .into_iter()
            .filter_map(|secret| secret.metadata.name)
            .collect();
        let daemon_sets = if names.is_empty() {
            Vec::new()
        } else {
            control_plane.daemon_sets().await?
        };
        Ok((
            names,
            daemon_sets.iter().flat_map(secrets_of).collect::<BTreeSet<String>>(),
        ))
    })
    .await?;
    let mut removed = 0;
    for name in names.iter().filter(|name| !used.contains(*name)) {
        patience::call(&format!("Secret {name} to be deleted"), async || {
            let deleted = control_plane
                .cluster
                .call(
                    &format!("delete Secret {name}"),
                    api.delete(name, &DeleteParams::default()),
                )
                .await;
            match deleted {
                Ok(_) => Ok(()),
                Err(error) if error.is_not_found() => Ok(()),
                Err(error) => Err(error),
            }
        })
        .await?;
        removed += 1;
    }
    Ok(removed)
}

/// The Secrets that a DaemonSet's template projects.
fn secrets_of(daemon_set: &DaemonSet) -> Vec<String> {
    let volumes = daemon_set
        .spec
        .template
        .spec
        .iter()
        .flat_map(|pod| pod.volumes.iter().flatten());
    let sources = volumes
        .filter_map(|volume| volume.projected.as_ref())
        .flat_map(|projected| projected.sources.iter().flatten());
    sources
        .filter_map(|source| Some(source.secret.as_ref()?.name.clone()))
        .collect()
}

/// Lets a DaemonSet that serves take its files from another Secret, and waits until its Pods are rolled. Everything else in the
/// template stays as it is: its owner may have edited it.
///
/// Returns whether the Pods were rolled: a DaemonSet in gap mode waits for somebody to delete them.
///
/// # Errors
/// As the API says; a roll that does not end in time, whose old Pods go on serving.
pub async fn roll(
    control_plane: &ControlPlane,
    component: Component,
    name: &str,
    projection: &Projection,
    reporter: &dyn Reporter,
) -> Result<bool> {
    let api: Api<DynamicObject> = Api::namespaced_with(
        control_plane.cluster.client.clone(),
        NAMESPACE,
        &ApiResource::erase::<DaemonSet>(&()),
    );
    patience::call(&format!("DaemonSet {name} to be changed"), async || {
        let read = control_plane
            .cluster
            .call(&format!("read DaemonSet {name}"), api.get(name))
            .await?;
        let Some(changed) = with_certificates(&read, component, projection)? else {
            return Ok(());
        };
        // it carries the resource version: somebody else's change in between is an error
        let replaced = control_plane
            .cluster
            .call(
                &format!("change DaemonSet {name}"),
                api.replace(name, &PostParams::default(), &changed),
            )
            .await;
        match replaced {
            Err(error) if error.cause() == Cause::Conflict => Err(error.with_cause(Cause::Unavailable)),
            other => other.map(drop),
        }
    })
    .await?;
    // those of another node's own DaemonSet carry the same label
    let serves_all = name == component.daemon_set_name();
    let what = format!("the Pods of DaemonSet {name} to be rolled onto the other files");
    wait::until(
        &what,
        ROLL_DEADLINE,
        INTERVAL,
        |what| reporter.waiting(name, what),
        async || {
            tolerate(
                async {
                    let Some(daemon_set) = control_plane.daemon_set(name).await? else {
                        return Err(Error::new(format!("DaemonSet {name} is gone")));
                    };
                    let pods = match serves_all {
                        true => control_plane.self_hosted_pods(component).await?.len(),
                        false => 0,
                    };
                    Ok(rolled(&daemon_set, pods))
                }
                .await,
            )
        },
    )
    .await
    .map_err(|error| {
        error
            .hint("the Pods that served before go on serving, with the files that they were started with")
            .hint(format!(
                "to go back: kubectl -n {NAMESPACE} rollout undo daemonset/{name}"
            ))
    })
}

/// The DaemonSet with the other files; `None` where it has them.
fn with_certificates(
    daemon_set: &DynamicObject,
    component: Component,
    projection: &Projection,
) -> Result<Option<DynamicObject>> {
    let mut changed = daemon_set.clone();
    let Some(template) = changed.data.get_mut("spec").and_then(|spec| spec.get_mut("template")) else {
        return Err(Error::new("the DaemonSet has no template"));
    };
    store_certs(template, component, projection).map_err(|error| {
        let name = daemon_set.metadata.name.clone().unwrap_or_default();
        Error::refused(format!(
            "the template of DaemonSet {name} was edited, and cannot take its files from a Secret"
        ))
        .because(&error)
        .hint(error.remedy.clone())
    })?;
    Ok((changed.data != daemon_set.data).then_some(changed))
}

/// Whether a roll is at its end: true when all Pods are of the newest template, false when nobody rolls them.
fn rolled(daemon_set: &DaemonSet, pods: usize) -> Poll<bool> {
    let status = daemon_set.status.clone().unwrap_or_default();
    let strategy = daemon_set.spec.update_strategy.as_ref();
    if strategy.and_then(|strategy| strategy.type_.as_deref()) == Some("OnDelete") {
        return Poll::Ready(false);
    }
    let wanted = status.desired_number_scheduled;
    let updated = status.updated_number_scheduled.unwrap_or_default();
    if status.observed_generation < daemon_set.metadata.generation {
        return Poll::Pending("the controller manager to see the change".into());
    }
    if updated < wanted || status.number_available.unwrap_or_default() < wanted {
        return Poll::Pending(format!(
            "{updated} of {wanted} Pods to be of the newest template and available"
        ));
    }
    if usize::try_from(wanted).is_ok_and(|wanted| pods > wanted) {
        return Poll::Pending("the Pod of the older template to go".into());
    }
    Poll::Ready(true)
}

/// The SHA-256 of the files that a DaemonSet's Pods are started with, if they come from a Secret.
#[must_use]
pub fn certificates_of(daemon_set: &DaemonSet) -> Option<String> {
    let metadata = daemon_set.spec.template.metadata.as_ref()?;
    metadata
        .annotations
        .as_ref()?
        .get(super::CERTIFICATES_SHA256_ANNOTATION)
        .cloned()
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{Value, json};

    fn daemon_set(strategy: &str, status: &Value) -> DaemonSet {
        serde_json::from_value(json!({
            "metadata": {"generation": 2},
            "spec": {"selector": {}, "template": {}, "updateStrategy": {"type": strategy}},
            "status": status,
        }))
        .unwrap()
    }

    #[test]
    fn a_roll_ends_when_only_new_pods_are_left() {
        let status = |observed: i64, updated: i32, available: i32| {
            json!({"observedGeneration": observed, "desiredNumberScheduled": 2, "updatedNumberScheduled": updated,
                "numberAvailable": available, "currentNumberScheduled": 2, "numberMisscheduled": 0, "numberReady": 2})
        };
        for (status, pods, expected) in [
            (status(1, 2, 2), 2, false),
            (status(2, 1, 2), 2, false),
            (status(2, 2, 1), 2, false),
            (status(2, 2, 2), 3, false),
            (status(2, 2, 2), 2, true),
        ] {
            let found = rolled(&daemon_set("RollingUpdate", &status), pods);
            assert_eq!(found == Poll::Ready(true), expected, "{status} {pods}: {found:?}");
        }
        assert_eq!(rolled(&daemon_set("OnDelete", &status(1, 0, 2)), 2), Poll::Ready(false));
    }

    #[test]
    fn the_secrets_in_use_are_those_of_projected_volumes() {
        let mut daemon_set = daemon_set("RollingUpdate", &json!(null));
        daemon_set.spec.template.spec = serde_json::from_value(json!({"containers": [], "volumes": [
            {"name": "a", "projected": {"sources": [{"secret": {"name": "one"}}, {"configMap": {"name": "no"}}]}},
            {"name": "b", "hostPath": {"path": "/x"}},
            {"name": "c", "projected": {"sources": [{"secret": {"name": "two"}}]}},
        ]}))
        .unwrap();
        assert_eq!(secrets_of(&daemon_set), ["one", "two"]);
    }

    #[test]
    fn the_checksum_is_read_from_the_template() {
        let mut daemon_set = daemon_set("RollingUpdate", &json!(null));
        assert_eq!(certificates_of(&daemon_set), None);
        let annotations = json!({"annotations": {(super::super::CERTIFICATES_SHA256_ANNOTATION): "abc"}});
        daemon_set.spec.template.metadata = serde_json::from_value(annotations).unwrap();
        assert_eq!(certificates_of(&daemon_set).as_deref(), Some("abc"));
    }
}
