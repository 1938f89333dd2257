//! `leave`: takes the spoke out of its hub.

use jiff::Timestamp;
use k8s_openapi::api::{
    apps::v1::Deployment,
    authorization::v1::ResourceAttributes,
    coordination::v1::Lease,
    core::v1::ServiceAccount,
    rbac::v1::{ClusterRole, ClusterRoleBinding, Role, RoleBinding},
};
use kube::{
    Api, Resource,
    api::{DeleteParams, Preconditions},
};
use serde::de::DeserializeOwned;
use shared::{Error, Printer, Result, kube_client::Cluster, prompt};

use crate::{
    agent::lock::{DURATION, is_known_dead},
    certificate::Chain,
    connection::HubAccess,
    files,
    hub::{Hub, may},
    hub_kubeconfig::endpoint_of_text,
    names::{AGENT_LEASE, DEPLOYMENT, FIELD_MANAGER, key, pending_secret},
    options::FailoverAgentOptions,
    outcome::Failure,
    pending,
    run::pod_namespace,
    spoke::{Spoke, absent},
};

/// How `leave` goes about it.
#[derive(Clone, Debug)]
pub struct LeaveOptions {
    /// Do not ask.
    pub yes: bool,
    /// Leave although work of the hub is still there.
    pub keep_works: bool,
}

/// Leaves.
///
/// # Errors
/// Work of the hub or an agent is still there, or an API refuses.
pub async fn leave(
    options: &FailoverAgentOptions,
    spoke: Cluster,
    how: &LeaveOptions,
    printer: &Printer,
) -> Result<(), Failure> {
    let spoke = Spoke {
        namespace: options.namespace(pod_namespace().as_deref()),
        cluster: spoke,
    };
    let stored = spoke
        .secret(&options.hub_kubeconfig_secret)
        .await
        .map_err(Failure::of_cause)?;
    let open = spoke
        .secret(&pending_secret(&options.hub_kubeconfig_secret))
        .await
        .map_err(Failure::of_cause)?;
    let lease = absent(
        spoke
            .cluster
            .call("read the agent's Lease", spoke.leases().get(AGENT_LEASE))
            .await,
    )
    .map_err(Failure::of_cause)?;
    let deployed = get::<Deployment>(&spoke.cluster, Some(&spoke.namespace))
        .await
        .map_err(Failure::of_cause)?;
    if stored.is_none()
        && open.is_none()
        && lease.is_none()
        && deployed.is_none()
        && files::read(&options.hub_kubeconfig_dir).is_empty()
    {
        printer.note("this spoke is in no hub; nothing was changed");
        return Ok(());
    }
    let works = spoke.applied_works().await.map_err(Failure::of_cause)?;
    if !works.is_empty() && !how.keep_works {
        let error = Error::refused(format!("work of the hub is still on this spoke: {}", works.join(", ")))
            .because("once the spoke has left, nobody removes it")
            .hint("delete the ManifestWorks on the hub first, or add --keep-works to leave it here");
        return Err(error.into());
    }
    if let Some(holder) = lease.as_ref().and_then(living_holder)
        && deployed.is_none()
    {
        let error = Error::refused(format!("an agent still runs for this spoke: {holder}"))
            .because("it would register again")
            .hint("end it first (systemctl stop ..., or Ctrl-C where it runs)");
        return Err(error.into());
    }
    let data = stored.unwrap_or_default().data;
    let names = identity(&data).or_else(|| open.as_ref().and_then(|open| pending::names(&open.data)));
    let cluster = names.map(|(cluster, _)| cluster).unwrap_or_default();
    let request = open.as_ref().and_then(|open| pending::request_name(&open.data));
    printer.note(format!("spoke    {}", spoke.cluster.server));
    let access = endpoint_of_text(data.get(key::KUBECONFIG).map(Vec::as_slice).unwrap_or_default());
    if let Ok(endpoint) = &access {
        printer.note(format!("hub      {}", endpoint.server));
    }
    printer.note(format!("cluster  {cluster}"));
    prompt::confirm(printer, "Take this spoke out of its hub?", None, how.yes)?;

    // The agent first: it would write again what is removed.
    remove_deployment(&spoke, printer).await.map_err(Failure::of_cause)?;
    let hub = access.and_then(|endpoint| {
        let get = |name: &str| data.get(name).map(Vec::as_slice).unwrap_or_default();
        HubAccess::certificate(&endpoint, get(key::CERTIFICATE), get(key::KEY))
    });
    let rest = match hub {
        Ok(access) => leave_hub(&access, &cluster, request.as_deref(), printer).await,
        Err(_) => advice(&cluster, request.as_deref()),
    };
    for (what, removed) in [
        (&pending_secret(&options.hub_kubeconfig_secret), open.is_some()),
        (&options.hub_kubeconfig_secret, !data.is_empty()),
    ] {
        spoke.delete_secret(what).await.map_err(Failure::of_cause)?;
        if removed {
            printer.note(format!("removed Secret {}/{what}", spoke.namespace));
        }
    }
    if files::clear(&options.hub_kubeconfig_dir)? {
        printer.note(format!("removed the files in {}", options.hub_kubeconfig_dir.display()));
    }
    let deleted = spoke
        .cluster
        .call(
            "delete the agent's Lease",
            spoke.leases().delete(AGENT_LEASE, &DeleteParams::default()),
        )
        .await;
    absent(deleted).map_err(Failure::of_cause)?;
    printer.note("the spoke has left its hub");
    if !rest.is_empty() {
        printer.note("what only the hub's administrator can remove:");
        for command in rest {
            printer.data(&command)?;
        }
    }
    Ok(())
}

/// Who holds the agent's Lease, if it was renewed lately. A clock that is off errs on the side of asking.
fn living_holder(lease: &Lease) -> Option<String> {
    let spec = lease.spec.clone()?;
    let age = Timestamp::now().duration_since(spec.renew_time?.0).as_secs();
    spec.holder_identity
        .filter(|holder| !holder.is_empty() && age.unsigned_abs() < DURATION.as_secs() && !is_known_dead(holder))
}

fn identity(data: &crate::spoke::Data) -> Option<(String, String)> {
    let chain = Chain::parse(data.get(key::CERTIFICATE)?).ok()?;
    chain
        .names()
        .map(|(cluster, agent)| (cluster.to_owned(), agent.to_owned()))
}

/// The commands for what cannot be removed from here.
#[must_use]
pub fn advice(cluster: &str, request: Option<&str>) -> Vec<String> {
    let mut commands = vec![
        format!("kubectl --context HUB delete managedcluster {cluster}"),
        format!("kubectl --context HUB delete namespace {cluster}"),
    ];
    commands.extend(request.map(|request| format!("kubectl --context HUB delete csr {request}")));
    commands
}

/// Removes on the hub what may be removed; returns the commands for the rest.
async fn leave_hub(access: &HubAccess, cluster: &str, request: Option<&str>, printer: &Printer) -> Vec<String> {
    let hub = Hub::new(access, cluster);
    let attributes = ResourceAttributes {
        group: Some("cluster.open-cluster-management.io".into()),
        resource: Some("managedclusters".into()),
        verb: Some("delete".into()),
        name: Some(cluster.to_owned()),
        ..ResourceAttributes::default()
    };
    let allowed = match may(&access.cluster, attributes).await {
        Ok(allowed) => allowed,
        Err(error) => {
            printer.warning(format!("the hub was not asked: {error}"));
            false
        }
    };
    let mut rest = advice(cluster, request);
    if allowed {
        let deleted = access
            .cluster
            .call(
                "delete the ManagedCluster",
                hub.clusters().delete(cluster, &DeleteParams::default()),
            )
            .await;
        match absent(deleted) {
            Ok(_) => {
                printer.note(format!("deleted ManagedCluster {cluster} on the hub"));
                rest.remove(0);
            }
            Err(error) => printer.warning(format!("the hub keeps the ManagedCluster: {error}")),
        }
    } else if let Ok(None) = hub.cluster().await {
        rest.remove(0);
    }
    rest
}

async fn get<K>(cluster: &Cluster, namespace: Option<&str>) -> Result<Option<K>>
where
    K: Resource<DynamicType = ()> + Clone + DeserializeOwned + std::fmt::Debug,
    K: NamedPlace,
{
    let api = K::api(cluster, namespace);
    absent(
        cluster
            .call(
                &format!("read {} {DEPLOYMENT} of the spoke", K::kind(&())),
                api.get(DEPLOYMENT),
            )
            .await,
    )
}

/// Where objects of a kind live.
trait NamedPlace: Sized {
    fn api(cluster: &Cluster, namespace: Option<&str>) -> Api<Self>;
}

macro_rules! place {
    ($($kind:ident)*, $build:expr) => {
        $(impl NamedPlace for $kind {
            fn api(cluster: &Cluster, namespace: Option<&str>) -> Api<Self> {
                let build: fn(kube::Client, &str) -> Api<Self> = $build;
                build(cluster.client.clone(), namespace.unwrap_or_default())
            }
        })*
    };
}
place!(Deployment ServiceAccount Role RoleBinding, |client, namespace| Api::namespaced(client, namespace));
place!(ClusterRole ClusterRoleBinding, |client, _| Api::all(client));

/// Removes what `deploy` prints, where it carries its label.
async fn remove_deployment(spoke: &Spoke, printer: &Printer) -> Result<()> {
    async fn remove<K>(spoke: &Spoke, printer: &Printer) -> Result<()>
    where
        K: Resource<DynamicType = ()> + Clone + DeserializeOwned + std::fmt::Debug + NamedPlace,
    {
        let Some(found) = get::<K>(&spoke.cluster, Some(&spoke.namespace)).await? else {
            return Ok(());
        };
        let ours = found
            .meta()
            .labels
            .as_ref()
            .and_then(|labels| labels.get("app.kubernetes.io/managed-by"));
        if ours.is_none_or(|by| by != FIELD_MANAGER) {
            return Ok(());
        }
        let parameters = DeleteParams {
            preconditions: Some(Preconditions {
                uid: found.meta().uid.clone(),
                resource_version: None,
            }),
            ..DeleteParams::foreground()
        };
        let api = K::api(&spoke.cluster, Some(&spoke.namespace));
        let kind = K::kind(&());
        absent(
            spoke
                .cluster
                .call(
                    &format!("delete {kind} {DEPLOYMENT}"),
                    api.delete(DEPLOYMENT, &parameters),
                )
                .await,
        )?;
        printer.note(format!("removed {kind} {DEPLOYMENT}"));
        Ok(())
    }
    remove::<Deployment>(spoke, printer).await?;
    remove::<RoleBinding>(spoke, printer).await?;
    remove::<Role>(spoke, printer).await?;
    remove::<ClusterRoleBinding>(spoke, printer).await?;
    remove::<ClusterRole>(spoke, printer).await?;
    remove::<ServiceAccount>(spoke, printer).await
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn advice_names_what_is_left() {
        assert_eq!(advice("c", None).len(), 2);
        assert_eq!(advice("c", Some("c-x"))[2], "kubectl --context HUB delete csr c-x");
    }
}
