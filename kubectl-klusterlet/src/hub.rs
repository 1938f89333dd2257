//! Every call to the hub that the agent makes; no decisions here.

use jiff::{SignedDuration, Timestamp};
use k8s_openapi::{
    api::{
        authorization::v1::{ResourceAttributes, SelfSubjectAccessReview, SelfSubjectAccessReviewSpec},
        certificates::v1::CertificateSigningRequest,
        coordination::v1::Lease,
        core::v1::ObjectReference,
        events::v1::Event,
    },
    apimachinery::pkg::apis::meta::v1::{MicroTime, ObjectMeta},
};
use kube::{
    Api,
    api::{ListParams, Patch, PatchParams, PostParams},
    core::Request,
};
use serde_json::Value;
use shared::{Context as _, Result, kube_client::Cluster};

use crate::{
    connection::{HubAccess, send},
    names::{CLUSTER_LEASE, CLUSTER_NAME_LABEL, FIELD_MANAGER},
    resources::ManagedCluster,
    spoke::absent,
};

/// A hub, as the agent of one cluster.
#[derive(Clone, Debug)]
pub struct Hub<'a> {
    access: &'a Cluster,
    name: &'a str,
}

/// Whether we may do this on a cluster.
///
/// # Errors
/// As the API says.
pub async fn may(cluster: &Cluster, attributes: ResourceAttributes) -> Result<bool> {
    let reviews: Api<SelfSubjectAccessReview> = Api::all(cluster.client.clone());
    let review = SelfSubjectAccessReview {
        spec: SelfSubjectAccessReviewSpec {
            resource_attributes: Some(attributes),
            ..SelfSubjectAccessReviewSpec::default()
        },
        ..SelfSubjectAccessReview::default()
    };
    let answer = cluster
        .call("ask for permissions", reviews.create(&PostParams::default(), &review))
        .await?;
    Ok(answer.status.is_some_and(|status| status.allowed))
}

impl<'a> Hub<'a> {
    /// Through this connection, as the agent of the cluster `name`.
    #[must_use]
    pub fn new(access: &'a HubAccess, name: &'a str) -> Self {
        Self {
            access: &access.cluster,
            name,
        }
    }

    /// Through any connection.
    #[must_use]
    pub fn through(cluster: &'a Cluster, name: &'a str) -> Self {
        Self { access: cluster, name }
    }

    /// All ManagedClusters.
    #[must_use]
    pub fn clusters(&self) -> Api<ManagedCluster> {
        Api::all(self.access.client.clone())
    }

    /// All certificate requests.
    #[must_use]
    pub fn requests(&self) -> Api<CertificateSigningRequest> {
        Api::all(self.access.client.clone())
    }

    /// Our ManagedCluster.
    ///
    /// # Errors
    /// As the API says.
    pub async fn cluster(&self) -> Result<Option<ManagedCluster>> {
        let what = format!("read ManagedCluster {} of the hub", self.name);
        absent(self.access.call(&what, self.clusters().get(self.name)).await)
    }

    /// Registers it.
    ///
    /// # Errors
    /// As the API says.
    pub async fn create_cluster(&self, cluster: &ManagedCluster) -> Result<ManagedCluster> {
        let what = format!("create ManagedCluster {} on the hub", self.name);
        let parameters = PostParams {
            field_manager: Some(FIELD_MANAGER.into()),
            ..PostParams::default()
        };
        self.access
            .call(&what, self.clusters().create(&parameters, cluster))
            .await
    }

    /// Writes it back whole: the agent may not patch it.
    ///
    /// # Errors
    /// As the API says.
    pub async fn replace_cluster(&self, cluster: &ManagedCluster) -> Result<ManagedCluster> {
        let what = format!("change ManagedCluster {} on the hub", self.name);
        self.access
            .call(
                &what,
                self.clusters().replace(self.name, &PostParams::default(), cluster),
            )
            .await
    }

    /// Patches its status.
    ///
    /// # Errors
    /// As the API says.
    pub async fn patch_status(&self, patch: &Value) -> Result<ManagedCluster> {
        let what = format!("report the status of ManagedCluster {}", self.name);
        let clusters = self.clusters();
        self.access
            .call(
                &what,
                clusters.patch_status(self.name, &PatchParams::default(), &Patch::Merge(patch)),
            )
            .await
    }

    /// Certificate requests with the cluster's label.
    ///
    /// # Errors
    /// As the API says.
    pub async fn list_requests(&self) -> Result<Vec<CertificateSigningRequest>> {
        let parameters = ListParams::default().labels(&format!("{CLUSTER_NAME_LABEL}={}", self.name));
        let what = format!("list the certificate requests of cluster {}", self.name);
        Ok(self.access.call(&what, self.requests().list(&parameters)).await?.items)
    }

    /// A certificate request.
    ///
    /// # Errors
    /// As the API says.
    pub async fn request(&self, name: &str) -> Result<Option<CertificateSigningRequest>> {
        absent(
            self.access
                .call(
                    &format!("read CertificateSigningRequest {name} of the hub"),
                    self.requests().get(name),
                )
                .await,
        )
    }

    /// Creates a certificate request.
    ///
    /// # Errors
    /// As the API says.
    pub async fn create_request(&self, request: &CertificateSigningRequest) -> Result<CertificateSigningRequest> {
        let parameters = PostParams {
            field_manager: Some(FIELD_MANAGER.into()),
            ..PostParams::default()
        };
        self.access
            .call(
                "create a CertificateSigningRequest on the hub",
                self.requests().create(&parameters, request),
            )
            .await
    }

    /// The cluster's lease.
    ///
    /// # Errors
    /// As the API says.
    pub async fn lease(&self) -> Result<Lease> {
        let leases: Api<Lease> = Api::namespaced(self.access.client.clone(), self.name);
        self.access
            .call(
                &format!("read Lease {}/{CLUSTER_LEASE} of the hub", self.name),
                leases.get(CLUSTER_LEASE),
            )
            .await
    }

    /// Renews the lease as it was read or written last. Returns what the hub made of it, and how far its clock is ahead.
    ///
    /// # Errors
    /// As the API says.
    pub async fn renew(&self, mut lease: Lease, now: Timestamp) -> Result<(Lease, Option<SignedDuration>)> {
        lease.spec.get_or_insert_default().renew_time = Some(MicroTime(now));
        let leases: Api<Lease> = Api::namespaced(self.access.client.clone(), self.name);
        let body = serde_json::to_vec(&lease).context("cannot write the Lease as JSON")?;
        let request = Request::new(leases.resource_url())
            .replace(CLUSTER_LEASE, &PostParams::default(), body)
            .context("cannot make the request that renews the Lease")?;
        let what = format!("renew Lease {}/{CLUSTER_LEASE} on the hub", self.name);
        let answer = send::<Lease>(self.access, &what, request).await?;
        Ok((answer.body, answer.skew))
    }

    /// Records a change of the spoke's availability where the hub's users look.
    ///
    /// # Errors
    /// As the API says.
    pub async fn record(
        &self,
        cluster: &ManagedCluster,
        reason: &str,
        note: &str,
        is_good: bool,
        now: Timestamp,
    ) -> Result<()> {
        let events: Api<Event> = Api::namespaced(self.access.client.clone(), self.name);
        let event = Event {
            metadata: ObjectMeta {
                generate_name: Some(format!("{}-", self.name.get(..50).unwrap_or(self.name))),
                ..ObjectMeta::default()
            },
            event_time: Some(MicroTime(now)),
            action: Some("Reported".into()),
            reason: Some(reason.to_owned()),
            note: Some(note.chars().take(1000).collect()),
            type_: Some(if is_good { "Normal" } else { "Warning" }.into()),
            reporting_controller: Some(FIELD_MANAGER.into()),
            reporting_instance: Some(FIELD_MANAGER.into()),
            regarding: Some(ObjectReference {
                api_version: Some(cluster.api_version.clone()),
                kind: Some(cluster.kind.clone()),
                name: Some(self.name.to_owned()),
                namespace: Some(self.name.to_owned()),
                uid: cluster.metadata.uid.clone(),
                ..ObjectReference::default()
            }),
            ..Event::default()
        };
        self.access
            .call(
                "record an Event on the hub",
                events.create(&PostParams::default(), &event),
            )
            .await?;
        Ok(())
    }
}
