//! A certificate request: made, kept, followed, and its certificate stored.

use std::{
    sync::{Arc, atomic::Ordering},
    time::{Duration, Instant},
};

use jiff::Timestamp;
use k8s_openapi::api::certificates::v1::CertificateSigningRequest;
use shared::wait::short;

use super::{
    super::{
        Context,
        state::{OpenRequest, Snapshot, Trouble, TroubleKind, set},
        trouble_of,
    },
    Memory, Next, of_spoke,
    stored::REPLACES_REJECTED,
};
use crate::{
    certificate::{Chain, Validity},
    connection::HubAccess,
    csr::{PendingRequest, RequestState, Step, agent_subject, new_request, next_step, request_object, request_state},
    hub::Hub,
    names::{ADDON_NAME_LABEL, PEER_REQUEST_LIMIT, key, pending_secret},
    pending,
    spoke::Data,
};

/// Brings the request one step on, and further as long as nobody has to be waited for.
pub(super) async fn request(
    context: &Context,
    memory: &mut Memory,
    access: &Arc<HubAccess>,
    mut kept: Option<PendingRequest>,
    rejected: bool,
) -> Result<Next, Trouble> {
    let options = &context.options;
    let subject = agent_subject(&options.cluster_name, &options.agent_name);
    let hub = Hub::new(access, &options.cluster_name);
    let server = &access.endpoint.server;
    // Each step leads to another state; the number only bounds what somebody's odd answers could make of it.
    for _ in 0..6 {
        let found = match kept
            .as_ref()
            .and_then(|kept| kept.name.as_ref().filter(|_| kept.server == *server))
        {
            Some(name) => hub.request(name).await.map_err(|error| trouble_of(&error))?,
            None => None,
        };
        let seen = found.as_ref().map(request_state);
        match next_step(kept.as_ref(), server, &subject, seen.as_ref(), context.state.hub_now()) {
            Step::Create => {
                let pair =
                    new_request(&options.cluster_name, &options.agent_name).map_err(|error| trouble_of(&error))?;
                let new = PendingRequest {
                    pair,
                    name: None,
                    server: server.clone(),
                };
                keep(context, &new).await?;
                warn_of_limit(context, &hub).await;
                let name = create(context, &hub, &new).await?;
                kept = Some(named(context, memory, new, name).await?);
            }
            Step::FindOrCreate => {
                let Some(old) = kept.take() else { continue };
                let all = hub.list_requests().await.map_err(|error| trouble_of(&error))?;
                let ours = all
                    .into_iter()
                    .find(|request| request.spec.request.0 == old.pair.request.as_bytes());
                let name = match ours.and_then(|request| request.metadata.name) {
                    Some(name) => name,
                    None => create(context, &hub, &old).await?,
                };
                kept = Some(named(context, memory, old, name).await?);
            }
            Step::Wait(state) => {
                let name = kept.and_then(|kept| kept.name).unwrap_or_default();
                let is_approved = state == RequestState::Approved;
                context.state.update(|snapshot| {
                    snapshot.request = Some(OpenRequest {
                        name: name.clone(),
                        is_approved,
                    });
                });
                context.trouble(None);
                return Ok(Next::Decision(Arc::clone(access), name, state));
            }
            Step::Refused(why) => {
                let name = kept.and_then(|kept| kept.name).unwrap_or_default();
                if context.is_join && !memory.made.contains(&name) {
                    context.log.info(
                        "an earlier request was denied; asking anew",
                        &[("request", &name), ("reason", &why)],
                    );
                    forget(context).await?;
                    kept = None;
                    continue;
                }
                context.state.update(|snapshot| {
                    snapshot.request = None;
                    snapshot.trouble = None;
                });
                context.trouble(Some(Trouble {
                    kind: TroubleKind::RequestDenied,
                    text: format!("the hub's administrator denied the certificate request {name}: {why}"),
                }));
                // The hub forgets denials after an hour; then it is asked again.
                return Ok(Next::Decision(Arc::clone(access), name, RequestState::Denied(why)));
            }
            Step::Forget(why) => {
                let name = kept.and_then(|kept| kept.name).unwrap_or_default();
                context.log.info(
                    "the certificate request leads nowhere; asking anew",
                    &[("request", &name), ("because", &why)],
                );
                forget(context).await?;
                kept = None;
            }
            Step::Store(certificate) => {
                let Some(kept) = kept else { continue };
                store(context, access, &kept, &certificate, rejected).await?;
                memory.stored = Some(Instant::now());
                return Ok(Next::After(Duration::ZERO));
            }
        }
    }
    Err(Trouble {
        kind: TroubleKind::Other,
        text: "the hub gives certificates that cannot be used; see the lines before".to_owned(),
    })
}

async fn keep(context: &Context, pending: &PendingRequest) -> Result<(), Trouble> {
    let options = &context.options;
    let data = pending::to_data(pending, &options.cluster_name, &options.agent_name);
    context
        .spoke
        .write_secret(&pending_secret(&options.hub_kubeconfig_secret), &data, &[])
        .await
        .map_err(of_spoke)
}

/// Removes what is kept of a request.
pub(super) async fn forget(context: &Context) -> Result<(), Trouble> {
    let name = pending_secret(&context.options.hub_kubeconfig_secret);
    context.spoke.delete_secret(&name).await.map_err(of_spoke)?;
    Ok(())
}

async fn create(context: &Context, hub: &Hub<'_>, pending: &PendingRequest) -> Result<String, Trouble> {
    let object = request_object(
        &context.options.cluster_name,
        &pending.pair.request,
        context.options.client_cert_expiration,
    );
    let created = hub.create_request(&object).await.map_err(|error| trouble_of(&error))?;
    context.state.metrics.requests_created.fetch_add(1, Ordering::Relaxed);
    Ok(created.metadata.name.unwrap_or_default())
}

async fn named(
    context: &Context,
    memory: &mut Memory,
    pending: PendingRequest,
    name: String,
) -> Result<PendingRequest, Trouble> {
    context
        .log
        .info("the certificate request waits on the hub", &[("request", &name)]);
    memory.made.insert(name.clone());
    context.state.update(|snapshot: &mut Snapshot| {
        snapshot.request = Some(OpenRequest {
            name: name.clone(),
            is_approved: false,
        });
    });
    let pending = PendingRequest {
        name: Some(name),
        ..pending
    };
    keep(context, &pending).await?;
    Ok(pending)
}

/// Others' requests may have piled up: it is worth a word, as Open Cluster Management's own agent stops then.
async fn warn_of_limit(context: &Context, hub: &Hub<'_>) {
    if let Ok(all) = hub.list_requests().await {
        let is_ours = |request: &CertificateSigningRequest| {
            !request
                .metadata
                .labels
                .as_ref()
                .is_some_and(|labels| labels.contains_key(ADDON_NAME_LABEL))
        };
        let count = all.into_iter().filter(is_ours).count();
        if count >= PEER_REQUEST_LIMIT {
            context.log.warning(
                "many certificate requests of this cluster lie on the hub; Open Cluster Management's own agent would ask for no more. They go by themselves within a day, or: kubectl delete csr -l open-cluster-management.io/cluster-name=CLUSTER",
                &[("requests", &count)],
            );
        }
    }
}

async fn store(
    context: &Context,
    access: &HubAccess,
    pending: &PendingRequest,
    certificate: &[u8],
    rejected: bool,
) -> Result<(), Trouble> {
    let options = &context.options;
    let kubeconfig = access.endpoint.hub_kubeconfig().map_err(|error| trouble_of(&error))?;
    let data: Data = [
        (key::KUBECONFIG, kubeconfig.into_bytes()),
        (key::CERTIFICATE, certificate.to_vec()),
        (key::KEY, pending.pair.key.clone().into_bytes()),
        (key::CLUSTER_NAME, options.cluster_name.clone().into_bytes()),
        (key::AGENT_NAME, options.agent_name.clone().into_bytes()),
    ]
    .into_iter()
    .map(|(name, bytes)| (name.to_owned(), bytes))
    .collect();
    let mark = (REPLACES_REJECTED, rejected.then_some("true"));
    context
        .spoke
        .write_secret(&options.hub_kubeconfig_secret, &data, &[mark])
        .await
        .map_err(of_spoke)?;
    context
        .state
        .metrics
        .certificates_issued
        .fetch_add(1, Ordering::Relaxed);
    let validity = Chain::parse(certificate)
        .map_err(|error| trouble_of(&error))?
        .validity();
    let Validity { not_before, not_after } = validity;
    set(
        &context.state.rotation,
        Some(Ok(format!(
            "client certificate rotated starting from {not_before} to {not_after}"
        ))),
    );
    let life = Duration::try_from(not_after.duration_since(Timestamp::now())).unwrap_or_default();
    context.log.info(
        "stored the certificate for the hub",
        &[("valid for", &short(life)), ("until", &not_after)],
    );
    context.state.update(|snapshot| snapshot.request = None);
    forget(context).await
}
