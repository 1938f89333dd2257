//! Every call to the spoke that the agent makes; no decisions here.

use std::collections::BTreeMap;

use k8s_openapi::{
    ByteString,
    api::{
        coordination::v1::Lease,
        core::v1::{Namespace, Secret},
    },
    apimachinery::pkg::apis::meta::v1::ObjectMeta,
};
use kube::{
    Api,
    api::{DeleteParams, Patch, PatchParams, PostParams},
};
use serde_json::json;
use shared::{Error, Result, error::Cause, kube_client::Cluster};

use crate::{
    names::{FIELD_MANAGER, ID_CLAIM},
    resources::{AppliedManifestWork, ClusterClaim},
};

/// Data of a Secret, by key.
pub type Data = BTreeMap<String, Vec<u8>>;

/// The spoke, and the agent's namespace there.
#[derive(Clone, Debug)]
pub struct Spoke {
    /// The connection.
    pub cluster: Cluster,
    /// The agent's namespace.
    pub namespace: String,
}

/// A Secret as it was read.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct StoredSecret {
    /// Its data.
    pub data: Data,
    /// Its annotations.
    pub annotations: BTreeMap<String, String>,
}

pub(crate) fn absent<T>(result: Result<T>) -> Result<Option<T>> {
    match result {
        Ok(value) => Ok(Some(value)),
        Err(error) if error.is_not_found() => Ok(None),
        Err(error) => Err(error),
    }
}

fn manager() -> PostParams {
    PostParams {
        field_manager: Some(FIELD_MANAGER.into()),
        ..PostParams::default()
    }
}

impl Spoke {
    /// Secrets of the agent's namespace.
    #[must_use]
    pub fn secrets(&self) -> Api<Secret> {
        Api::namespaced(self.cluster.client.clone(), &self.namespace)
    }

    /// Leases of the agent's namespace.
    #[must_use]
    pub fn leases(&self) -> Api<Lease> {
        Api::namespaced(self.cluster.client.clone(), &self.namespace)
    }

    fn place(&self, name: &str) -> String {
        format!("{}/{name}", self.namespace)
    }

    /// A Secret; `None` where there is none.
    ///
    /// # Errors
    /// As the API says.
    pub async fn secret(&self, name: &str) -> Result<Option<StoredSecret>> {
        let what = format!("read Secret {} of the spoke", self.place(name));
        let secret = absent(self.cluster.call(&what, self.secrets().get(name)).await)?;
        Ok(secret.map(|secret| StoredSecret {
            data: secret
                .data
                .unwrap_or_default()
                .into_iter()
                .map(|(name, bytes)| (name, bytes.0))
                .collect(),
            annotations: secret.metadata.annotations.unwrap_or_default(),
        }))
    }

    /// Writes keys of a Secret and annotations (`None` removes one); others stay. Creates it, and the namespace, where they
    /// are missing.
    ///
    /// # Errors
    /// As the API says.
    pub async fn write_secret(&self, name: &str, data: &Data, annotations: &[(&str, Option<&str>)]) -> Result<()> {
        let what = format!("write Secret {} of the spoke", self.place(name));
        // Somebody else may write between reading and writing: then it is read again.
        for _ in 0..5 {
            let found = absent(self.cluster.call(&what, self.secrets().get(name)).await)?;
            let is_new = found.is_none();
            let mut secret = found.unwrap_or_else(|| Secret {
                metadata: ObjectMeta {
                    name: Some(name.to_owned()),
                    labels: Some(BTreeMap::from([(
                        "app.kubernetes.io/managed-by".to_owned(),
                        FIELD_MANAGER.to_owned(),
                    )])),
                    ..ObjectMeta::default()
                },
                type_: Some("Opaque".into()),
                ..Secret::default()
            });
            let keys = secret.data.get_or_insert_default();
            for (key, bytes) in data {
                keys.insert(key.clone(), ByteString(bytes.clone()));
            }
            for (key, value) in annotations {
                let all = secret.metadata.annotations.get_or_insert_default();
                match value {
                    Some(value) => all.insert((*key).to_owned(), (*value).to_owned()),
                    None => all.remove(*key),
                };
            }
            let result = if is_new {
                self.cluster
                    .call(&what, self.secrets().create(&manager(), &secret))
                    .await
            } else {
                self.cluster
                    .call(&what, self.secrets().replace(name, &manager(), &secret))
                    .await
            };
            match result {
                Ok(_) => return Ok(()),
                Err(error) if matches!(error.cause(), Cause::Conflict | Cause::AlreadyExists) => {}
                Err(error) if is_new && error.is_not_found() => self.create_namespace().await?,
                Err(error) => return Err(error),
            }
        }
        Err(Error::new(format!("cannot {what}"))
            .because("somebody else changes it all the time")
            .with_cause(Cause::Conflict))
    }

    /// Removes a Secret. Whether there was one.
    ///
    /// # Errors
    /// As the API says.
    pub async fn delete_secret(&self, name: &str) -> Result<bool> {
        let what = format!("delete Secret {} of the spoke", self.place(name));
        Ok(absent(
            self.cluster
                .call(&what, self.secrets().delete(name, &DeleteParams::default()))
                .await,
        )?
        .is_some())
    }

    /// Makes the agent's namespace where it is missing.
    ///
    /// # Errors
    /// As the API says.
    pub async fn create_namespace(&self) -> Result<()> {
        let namespaces: Api<Namespace> = Api::all(self.cluster.client.clone());
        let namespace = Namespace {
            metadata: ObjectMeta {
                name: Some(self.namespace.clone()),
                ..ObjectMeta::default()
            },
            ..Namespace::default()
        };
        let what = format!("create Namespace {} on the spoke", self.namespace);
        match self
            .cluster
            .call(&what, namespaces.create(&manager(), &namespace))
            .await
        {
            Err(error) if error.cause() != Cause::AlreadyExists => Err(error),
            _ => Ok(()),
        }
    }

    /// UID of the namespace `kube-system`: it names the cluster.
    ///
    /// # Errors
    /// As the API says.
    pub async fn uid(&self) -> Result<String> {
        cluster_uid(&self.cluster).await
    }

    /// The claim that identifies the spoke.
    ///
    /// # Errors
    /// As the API says.
    pub async fn id_claim(&self) -> Result<Option<String>> {
        let claims: Api<ClusterClaim> = Api::all(self.cluster.client.clone());
        let claim = absent(
            self.cluster
                .call(
                    &format!("read ClusterClaim {ID_CLAIM} of the spoke"),
                    claims.get(ID_CLAIM),
                )
                .await,
        )?;
        Ok(claim.map(|claim| claim.spec.value).filter(|value| !value.is_empty()))
    }

    /// Makes a namespace that the hub wants, with its label; or sets the label.
    ///
    /// # Errors
    /// As the API says.
    pub async fn apply_namespace(&self, name: &str, label: &str, value: &str) -> Result<()> {
        let namespaces: Api<Namespace> = Api::all(self.cluster.client.clone());
        let what = format!("apply Namespace {name} on the spoke");
        let object =
            json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name, "labels": {label: value}}});
        let parameters = PatchParams::apply(FIELD_MANAGER).force();
        self.cluster
            .call(&what, namespaces.patch(name, &parameters, &Patch::Apply(&object)))
            .await?;
        Ok(())
    }

    /// Names of the namespaces with this label.
    ///
    /// # Errors
    /// As the API says.
    pub async fn namespaces_with(&self, label: &str, value: &str) -> Result<Vec<String>> {
        let namespaces: Api<Namespace> = Api::all(self.cluster.client.clone());
        let parameters = kube::api::ListParams::default().labels(&format!("{label}={value}"));
        let list = self
            .cluster
            .call("list Namespaces of the spoke", namespaces.list_metadata(&parameters))
            .await?;
        Ok(list.items.into_iter().filter_map(|item| item.metadata.name).collect())
    }

    /// Names of the AppliedManifestWorks: work of a hub that is still there.
    ///
    /// # Errors
    /// As the API says; a spoke that does not know the kind has none.
    pub async fn applied_works(&self) -> Result<Vec<String>> {
        let works: Api<AppliedManifestWork> = Api::all(self.cluster.client.clone());
        let list = self
            .cluster
            .call(
                "list AppliedManifestWorks of the spoke",
                works.list(&kube::api::ListParams::default()),
            )
            .await;
        let list = absent(list)?;
        Ok(list
            .into_iter()
            .flat_map(|list| list.items)
            .filter_map(|item| item.metadata.name)
            .collect())
    }
}

/// UID of the namespace `kube-system` of any cluster.
///
/// # Errors
/// As the API says.
pub async fn cluster_uid(cluster: &Cluster) -> Result<String> {
    let namespaces: Api<Namespace> = Api::all(cluster.client.clone());
    let namespace = cluster
        .call("read Namespace kube-system", namespaces.get("kube-system"))
        .await?;
    Ok(namespace.metadata.uid.unwrap_or_default())
}
