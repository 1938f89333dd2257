//! The DaemonSets of kube-system, and the history of their templates.

use super::{ControlPlane, absent, object};
use crate::names::FIELD_MANAGER;
use k8s_openapi::api::apps::v1::{ControllerRevision, DaemonSet};
use kube::api::{DeleteParams, ListParams, PostParams, PropagationPolicy};
use serde_json::Value;
use shared::error::Cause;
use shared::{Error, Result};

impl ControlPlane {
    /// All DaemonSets in kube-system.
    ///
    /// # Errors
    /// As the API says.
    pub async fn daemon_sets(&self) -> Result<Vec<DaemonSet>> {
        let all = ListParams::default();
        let list = self.namespaced::<DaemonSet>();
        Ok(self
            .cluster
            .call("list DaemonSets in kube-system", list.list(&all))
            .await?
            .items)
    }

    /// A DaemonSet.
    ///
    /// # Errors
    /// As the API says.
    pub async fn daemon_set(&self, name: &str) -> Result<Option<DaemonSet>> {
        absent(
            self.cluster
                .call(
                    &format!("read DaemonSet {name}"),
                    self.namespaced::<DaemonSet>().get(name),
                )
                .await,
        )
    }

    /// Makes a DaemonSet as it is given, unknown fields and all, and gives what the API made of it.
    ///
    /// # Errors
    /// As the API says.
    pub async fn create_daemon_set(&self, daemon_set: &Value, dry_run: bool) -> Result<Value> {
        let object = object(daemon_set)?;
        let name = object.metadata.name.clone().unwrap_or_default();
        let parameters = PostParams {
            dry_run,
            field_manager: Some(FIELD_MANAGER.into()),
        };
        let api = self.dynamic("apps/v1", "DaemonSet", "daemonsets");
        let made = self
            .cluster
            .call(&format!("create DaemonSet {name}"), api.create(&parameters, &object))
            .await?;
        serde_json::to_value(made).map_err(|error| Error::new("an object cannot be read").because(error))
    }

    /// Removes a DaemonSet, with its Pods, and the history of its template. The history goes at once, as nobody else would tell
    /// when it is gone: the garbage collector takes minutes where the controller manager or the apiserver has just started anew.
    ///
    /// # Errors
    /// As the API says; that it is not there is fine, and so is that its history must not be touched.
    pub async fn delete_daemon_set(&self, name: &str) -> Result<()> {
        let parameters = DeleteParams {
            propagation_policy: Some(PropagationPolicy::Background),
            ..DeleteParams::default()
        };
        let api = self.namespaced::<DaemonSet>();
        absent(
            self.cluster
                .call(&format!("delete DaemonSet {name}"), api.delete(name, &parameters))
                .await,
        )?;
        match self.delete_history(name).await {
            // what is left is the garbage collector's work anyway
            Err(error) if error.cause() == Cause::Forbidden => Ok(()),
            other => other,
        }
    }

    async fn delete_history(&self, daemon_set: &str) -> Result<()> {
        let api = self.namespaced::<ControllerRevision>();
        let all = self
            .cluster
            .call("list ControllerRevisions", api.list_metadata(&ListParams::default()))
            .await?;
        for revision in all.items {
            let mut owners = revision.metadata.owner_references.iter().flatten();
            if !owners.any(|owner| owner.kind == "DaemonSet" && owner.name == daemon_set) {
                continue;
            }
            let name = revision.metadata.name.unwrap_or_default();
            let what = format!("delete ControllerRevision {name}");
            absent(
                self.cluster
                    .call(&what, api.delete(&name, &DeleteParams::default()))
                    .await,
            )?;
        }
        Ok(())
    }
}
