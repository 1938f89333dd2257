//! Every call that the CLI makes to the API, and nothing else: no decisions here.

mod changes;
mod daemon_sets;
mod helpers;

pub use helpers::Outcome;

use crate::daemon_set::self_hosted_component_label_query;
use crate::names::{Component, FIELD_MANAGER, NAMESPACE};
use k8s_openapi::ByteString;
use k8s_openapi::api::admissionregistration::v1::{
    MutatingWebhookConfiguration, ValidatingAdmissionPolicy, ValidatingAdmissionPolicyBinding,
    ValidatingWebhookConfiguration,
};
use k8s_openapi::api::authorization::v1::{ResourceAttributes, SelfSubjectAccessReview, SelfSubjectAccessReviewSpec};
use k8s_openapi::api::coordination::v1::Lease;
use k8s_openapi::api::core::v1::{Endpoints, Namespace, Node, Pod, Secret};
use k8s_openapi::api::discovery::v1::EndpointSlice;
use kube::api::{
    Api, ApiResource, DeleteParams, DynamicObject, ListParams, LogParams, Patch, PatchParams, PostParams, Preconditions,
};
use serde_json::{Value, json};
use shared::kube_client::Cluster;
use shared::{Error, Result};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex};

/// Name of the Secret that keeps a node's original manifests in the cluster.
#[must_use]
pub fn originals_secret(node: &str) -> String {
    format!("selfhost-originals-{node}")
}

/// The API of one cluster.
#[derive(Clone, Debug)]
pub struct ControlPlane {
    /// The connection.
    pub cluster: Cluster,
    /// Helper Pods that this process has made and not removed yet.
    helpers: Arc<Mutex<BTreeSet<String>>>,
}

fn absent<T>(result: Result<T>) -> Result<Option<T>> {
    match result {
        Ok(value) => Ok(Some(value)),
        Err(error) if error.is_not_found() => Ok(None),
        Err(error) => Err(error),
    }
}

impl ControlPlane {
    /// Through that connection.
    #[must_use]
    pub fn new(cluster: Cluster) -> Self {
        Self {
            cluster,
            helpers: Arc::default(),
        }
    }

    fn namespaced<K>(&self) -> Api<K>
    where
        K: kube::Resource<Scope = k8s_openapi::NamespaceResourceScope>,
        K::DynamicType: Default,
    {
        Api::namespaced(self.cluster.client.clone(), NAMESPACE)
    }

    fn all<K>(&self) -> Api<K>
    where
        K: kube::Resource,
        K::DynamicType: Default,
    {
        Api::all(self.cluster.client.clone())
    }

    /// A Node.
    ///
    /// # Errors
    /// As the API says; not found is an error of that cause.
    pub async fn node(&self, name: &str) -> Result<Node> {
        self.cluster
            .call(&format!("read Node {name}"), self.all::<Node>().get(name))
            .await
    }

    /// All Nodes.
    ///
    /// # Errors
    /// As the API says.
    pub async fn nodes(&self) -> Result<Vec<Node>> {
        let all = ListParams::default();
        Ok(self
            .cluster
            .call("list Nodes", self.all::<Node>().list(&all))
            .await?
            .items)
    }

    /// UID of the namespace kube-system: it names the cluster.
    ///
    /// # Errors
    /// As the API says.
    pub async fn cluster_uid(&self) -> Result<String> {
        let namespace = self
            .cluster
            .call("read Namespace kube-system", self.all::<Namespace>().get(NAMESPACE))
            .await?;
        Ok(namespace.metadata.uid.unwrap_or_default())
    }

    /// Version of the API server.
    ///
    /// # Errors
    /// As the API says.
    pub async fn version(&self) -> Result<String> {
        let info = self
            .cluster
            .call(
                "read the version of the API server",
                self.cluster.client.apiserver_version(),
            )
            .await?;
        Ok(info.git_version)
    }

    /// Sets (`Some`) or removes (`None`) annotations and labels of a Node.
    ///
    /// # Errors
    /// As the API says.
    pub async fn patch_node(
        &self,
        name: &str,
        annotations: &[(String, Option<&str>)],
        labels: &[(String, Option<&str>)],
    ) -> Result<()> {
        let map = |pairs: &[(String, Option<&str>)]| {
            pairs
                .iter()
                .map(|(key, value)| (key.clone(), json!(value)))
                .collect::<serde_json::Map<_, _>>()
        };
        let patch = Patch::Merge(json!({"metadata": {"annotations": map(annotations), "labels": map(labels)}}));
        let parameters = PatchParams {
            field_manager: Some(FIELD_MANAGER.into()),
            ..PatchParams::default()
        };
        let nodes = self.all::<Node>();
        self.cluster
            .call(
                &format!("change Node {name}"),
                nodes.patch_metadata(name, &parameters, &patch),
            )
            .await?;
        Ok(())
    }

    /// All Nodes that carry a label.
    ///
    /// # Errors
    /// As the API says.
    pub async fn nodes_with_label(&self, label: &str) -> Result<Vec<String>> {
        let parameters = ListParams::default().labels(label);
        let nodes = self.all::<Node>();
        let list = self
            .cluster
            .call("list Nodes", nodes.list_metadata(&parameters))
            .await?;
        Ok(list.items.into_iter().filter_map(|node| node.metadata.name).collect())
    }

    /// Pods of the whole cluster that a node runs or is to run.
    ///
    /// # Errors
    /// As the API says.
    pub async fn pods_on(&self, node: &str) -> Result<Vec<Pod>> {
        let parameters = ListParams::default().fields(&format!("spec.nodeName={node}"));
        let pods = self.all::<Pod>();
        Ok(self
            .cluster
            .call(&format!("list Pods of Node {node}"), pods.list(&parameters))
            .await?
            .items)
    }

    /// Pods in kube-system with that label query.
    ///
    /// # Errors
    /// As the API says.
    pub async fn pods(&self, labels: &str) -> Result<Vec<Pod>> {
        let parameters = ListParams::default().labels(labels);
        Ok(self
            .cluster
            .call("list Pods in kube-system", self.namespaced::<Pod>().list(&parameters))
            .await?
            .items)
    }

    /// Pods of a component's DaemonSet.
    ///
    /// # Errors
    /// As the API says.
    pub async fn self_hosted_pods(&self, component: Component) -> Result<Vec<Pod>> {
        self.pods(&self_hosted_component_label_query(component)).await
    }

    /// Whether a Pod is there.
    ///
    /// # Errors
    /// As the API says.
    pub async fn pod(&self, name: &str) -> Result<Option<Pod>> {
        absent(
            self.cluster
                .call(&format!("read Pod {name}"), self.namespaced::<Pod>().get(name))
                .await,
        )
    }

    /// The last lines that a container wrote.
    ///
    /// # Errors
    /// As the API says.
    pub async fn last_log_lines(&self, pod: &str, container: &str, previous: bool) -> Result<String> {
        let parameters = LogParams {
            container: Some(container.to_owned()),
            previous,
            tail_lines: Some(5),
            ..LogParams::default()
        };
        self.cluster
            .call(
                &format!("read the log of Pod {pod}"),
                self.namespaced::<Pod>().logs(pod, &parameters),
            )
            .await
    }

    /// Asks whether a Pod would be admitted, without making it.
    ///
    /// # Errors
    /// As the API says: what refuses it.
    pub async fn would_admit_pod(&self, pod: &Value) -> Result<()> {
        let pods = self.dynamic("v1", "Pod", "pods");
        let object = object(pod)?;
        let parameters = PostParams {
            dry_run: true,
            field_manager: Some(FIELD_MANAGER.into()),
        };
        self.cluster
            .call("try a Pod in kube-system", pods.create(&parameters, &object))
            .await?;
        Ok(())
    }

    fn dynamic(&self, version: &str, kind: &str, plural: &str) -> Api<DynamicObject> {
        let (group, version) = version.rsplit_once('/').unwrap_or(("", version));
        let resource = ApiResource {
            group: group.into(),
            version: version.into(),
            api_version: if group.is_empty() {
                version.into()
            } else {
                format!("{group}/{version}")
            },
            kind: kind.into(),
            plural: plural.into(),
        };
        Api::namespaced_with(self.cluster.client.clone(), NAMESPACE, &resource)
    }

    /// A component's Lease.
    ///
    /// # Errors
    /// As the API says.
    pub async fn lease(&self, name: &str) -> Result<Option<Lease>> {
        absent(
            self.cluster
                .call(&format!("read Lease {name}"), self.namespaced::<Lease>().get(name))
                .await,
        )
    }

    /// Makes a Lease in kube-system.
    ///
    /// # Errors
    /// As the API says; that it is there already is a conflict.
    pub async fn create_lease(&self, lease: &Lease) -> Result<()> {
        let name = lease.metadata.name.clone().unwrap_or_default();
        let api = self.namespaced::<Lease>();
        self.cluster
            .call(
                &format!("create Lease {name}"),
                api.create(&PostParams::default(), lease),
            )
            .await?;
        Ok(())
    }

    /// Removes a Lease as it was read before.
    ///
    /// # Errors
    /// As the API says; a change in between is a conflict.
    pub async fn delete_lease(&self, lease: &Lease) -> Result<()> {
        let name = lease.metadata.name.clone().unwrap_or_default();
        let parameters = DeleteParams {
            preconditions: Some(Preconditions {
                resource_version: lease.metadata.resource_version.clone(),
                uid: lease.metadata.uid.clone(),
            }),
            ..DeleteParams::default()
        };
        let api = self.namespaced::<Lease>();
        absent(
            self.cluster
                .call(&format!("delete Lease {name}"), api.delete(&name, &parameters))
                .await,
        )
        .map(drop)
    }

    /// Writes a Lease that was read before; a change in between is an error (409).
    ///
    /// # Errors
    /// As the API says.
    pub async fn replace_lease(&self, lease: &Lease) -> Result<()> {
        let name = lease.metadata.name.clone().unwrap_or_default();
        let api = self.namespaced::<Lease>();
        self.cluster
            .call(
                &format!("write Lease {name}"),
                api.replace(&name, &PostParams::default(), lease),
            )
            .await?;
        Ok(())
    }

    /// The EndpointSlice `default/kubernetes`.
    ///
    /// # Errors
    /// As the API says.
    pub async fn own_endpoint_slice(&self) -> Result<Option<EndpointSlice>> {
        let slices: Api<EndpointSlice> = Api::namespaced(self.cluster.client.clone(), "default");
        absent(
            self.cluster
                .call("read EndpointSlice default/kubernetes", slices.get("kubernetes"))
                .await,
        )
    }

    /// The Endpoints `default/kubernetes`.
    ///
    /// # Errors
    /// As the API says.
    pub async fn own_endpoints(&self) -> Result<Option<Endpoints>> {
        let endpoints: Api<Endpoints> = Api::namespaced(self.cluster.client.clone(), "default");
        absent(
            self.cluster
                .call("read Endpoints default/kubernetes", endpoints.get("kubernetes"))
                .await,
        )
    }

    /// Makes the EndpointSlice `default/kubernetes`.
    ///
    /// # Errors
    /// As the API says; that it is there already is a conflict.
    pub async fn create_own_endpoint_slice(&self, slice: &EndpointSlice) -> Result<()> {
        let slices: Api<EndpointSlice> = Api::namespaced(self.cluster.client.clone(), "default");
        self.cluster
            .call(
                "create EndpointSlice default/kubernetes",
                slices.create(&PostParams::default(), slice),
            )
            .await?;
        Ok(())
    }

    /// Removes the EndpointSlice `default/kubernetes` as it was read before.
    ///
    /// # Errors
    /// As the API says; a change in between is a conflict.
    pub async fn delete_own_endpoint_slice(&self, slice: &EndpointSlice) -> Result<()> {
        let slices: Api<EndpointSlice> = Api::namespaced(self.cluster.client.clone(), "default");
        let parameters = DeleteParams {
            preconditions: Some(Preconditions {
                resource_version: slice.metadata.resource_version.clone(),
                uid: slice.metadata.uid.clone(),
            }),
            ..DeleteParams::default()
        };
        let request = slices.delete("kubernetes", &parameters);
        absent(
            self.cluster
                .call("delete EndpointSlice default/kubernetes", request)
                .await,
        )
        .map(drop)
    }

    /// Writes the addresses in an EndpointSlice that was read before.
    ///
    /// # Errors
    /// As the API says; a change in between is a conflict.
    pub async fn write_own_endpoint_slice(&self, slice: &EndpointSlice) -> Result<()> {
        let slices: Api<EndpointSlice> = Api::namespaced(self.cluster.client.clone(), "default");
        let version = &slice.metadata.resource_version;
        let patch =
            json!({"metadata": {"resourceVersion": version}, "endpoints": slice.endpoints, "ports": slice.ports});
        self.cluster
            .call(
                "write EndpointSlice default/kubernetes",
                slices.patch("kubernetes", &PatchParams::default(), &Patch::Merge(patch)),
            )
            .await?;
        Ok(())
    }

    /// Writes the addresses in an Endpoints object that was read before.
    ///
    /// # Errors
    /// As the API says; a change in between is a conflict.
    pub async fn write_own_endpoints(&self, endpoints: &Endpoints) -> Result<()> {
        let api: Api<Endpoints> = Api::namespaced(self.cluster.client.clone(), "default");
        let version = &endpoints.metadata.resource_version;
        let patch = json!({"metadata": {"resourceVersion": version}, "subsets": endpoints.subsets});
        self.cluster
            .call(
                "write Endpoints default/kubernetes",
                api.patch("kubernetes", &PatchParams::default(), &Patch::Merge(patch)),
            )
            .await?;
        Ok(())
    }

    /// Keeps a node's original manifests in the cluster.
    ///
    /// # Errors
    /// As the API says.
    pub async fn save_originals(&self, node: &str, files: &BTreeMap<String, Vec<u8>>) -> Result<()> {
        let name = originals_secret(node);
        let data: BTreeMap<String, ByteString> = files
            .iter()
            .map(|(name, bytes)| (name.clone(), ByteString(bytes.clone())))
            .collect();
        let object = json!({
            "apiVersion": "v1",
            "kind": "Secret",
            "metadata": {"name": name, "labels": {"app.kubernetes.io/managed-by": FIELD_MANAGER}},
            "type": "Opaque",
            "data": data,
        });
        let parameters = PatchParams::apply(FIELD_MANAGER).force();
        let api = self.namespaced::<Secret>();
        self.cluster
            .call(
                &format!("write Secret {name}"),
                api.patch(&name, &parameters, &Patch::Apply(object)),
            )
            .await?;
        Ok(())
    }

    /// A node's original manifests as the cluster keeps them.
    ///
    /// # Errors
    /// As the API says.
    pub async fn originals(&self, node: &str) -> Result<Option<BTreeMap<String, Vec<u8>>>> {
        let name = originals_secret(node);
        let secret = absent(
            self.cluster
                .call(&format!("read Secret {name}"), self.namespaced::<Secret>().get(&name))
                .await,
        )?;
        Ok(secret.map(|secret| {
            secret
                .data
                .unwrap_or_default()
                .into_iter()
                .map(|(name, bytes)| (name, bytes.0))
                .collect()
        }))
    }

    /// Removes them.
    ///
    /// # Errors
    /// As the API says; that they are not there is fine.
    pub async fn delete_originals(&self, node: &str) -> Result<()> {
        let name = originals_secret(node);
        let api = self.namespaced::<Secret>();
        absent(
            self.cluster
                .call(
                    &format!("delete Secret {name}"),
                    api.delete(&name, &DeleteParams::default()),
                )
                .await,
        )
        .map(drop)
    }

    /// Removes the policy for our marks on Nodes, and its binding, where we made them.
    ///
    /// # Errors
    /// As the API says; that they are not there, or that the API knows no policies, is fine.
    pub async fn delete_policy(&self) -> Result<()> {
        let name = crate::policy::NAME;
        let parameters = DeleteParams::default();
        let bindings = self.all::<ValidatingAdmissionPolicyBinding>();
        let binding = self.cluster.call("read the policy's binding", bindings.get(name)).await;
        if absent(binding)?.is_some_and(|binding| crate::observe::is_ours(&binding.metadata)) {
            let request = bindings.delete(name, &parameters);
            absent(self.cluster.call("delete the policy's binding", request).await)?;
        }
        let policies = self.all::<ValidatingAdmissionPolicy>();
        let policy = self.cluster.call("read the policy", policies.get(name)).await;
        if absent(policy)?.is_some_and(|policy| crate::observe::is_ours(&policy.metadata)) {
            let request = policies.delete(name, &parameters);
            absent(self.cluster.call("delete the policy", request).await)?;
        }
        Ok(())
    }

    /// All admission webhooks.
    ///
    /// # Errors
    /// As the API says.
    pub async fn webhooks(&self) -> Result<(Vec<ValidatingWebhookConfiguration>, Vec<MutatingWebhookConfiguration>)> {
        let all = ListParams::default();
        let validating = self.all::<ValidatingWebhookConfiguration>();
        let mutating = self.all::<MutatingWebhookConfiguration>();
        Ok((
            self.cluster
                .call("list ValidatingWebhookConfigurations", validating.list(&all))
                .await?
                .items,
            self.cluster
                .call("list MutatingWebhookConfigurations", mutating.list(&all))
                .await?
                .items,
        ))
    }

    /// Whether the user may do that.
    ///
    /// # Errors
    /// As the API says.
    pub async fn may(&self, verb: &str, group: &str, resource: &str, namespace: &str) -> Result<bool> {
        let review = SelfSubjectAccessReview {
            spec: SelfSubjectAccessReviewSpec {
                resource_attributes: Some(ResourceAttributes {
                    verb: Some(verb.into()),
                    group: Some(group.into()),
                    resource: Some(resource.into()),
                    namespace: Some(namespace.into()),
                    ..ResourceAttributes::default()
                }),
                ..SelfSubjectAccessReviewSpec::default()
            },
            ..SelfSubjectAccessReview::default()
        };
        let api = self.all::<SelfSubjectAccessReview>();
        let review = self
            .cluster
            .call("ask for your permissions", api.create(&PostParams::default(), &review))
            .await?;
        Ok(review.status.is_some_and(|status| status.allowed))
    }
}

fn object(value: &Value) -> Result<DynamicObject> {
    serde_json::from_value(value.clone()).map_err(|error| Error::new("an object cannot be sent").because(error))
}
