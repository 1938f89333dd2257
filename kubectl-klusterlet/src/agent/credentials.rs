//! From the bootstrap kubeconfig to a certificate, and from one certificate to the next.
//!
//! [`reconcile`] looks at everything, does what can be done, and says what to wait for. It keeps nothing in memory that a
//! restart would need: key and name of an open request lie in a Secret before they are used.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::{Arc, atomic::Ordering},
    time::{Duration, Instant},
};

use jiff::Timestamp;
use k8s_openapi::api::certificates::v1::CertificateSigningRequest;
use shared::{Error, error::Cause, wait::short};

use super::{
    Context,
    state::{OpenRequest, Snapshot, Trouble, TroubleKind, set},
    trouble_of,
};
use crate::{
    certificate::{Chain, Validity},
    connection::{HubAccess, is_unauthorized},
    csr::{
        PendingRequest, RequestState, Step, agent_subject, fingerprint, new_request, next_step, renew_at,
        request_object, request_state,
    },
    files::{self, FileMark},
    follow::{Change, follow},
    hub::Hub,
    hub_kubeconfig::{HubEndpoint, Problem, assess, endpoint_of_text},
    names::{ADDON_NAME_LABEL, PEER_REQUEST_LIMIT, key, pending_secret},
    pending,
    registration::{Ownership, is_accepted, new_managed_cluster, ownership},
    spoke::{Data, StoredSecret},
    timing::backoff,
};

/// On the hub Secret while its certificate replaces one that the hub had said 401 to, and the hub has not known it yet: if
/// it is refused, too, a third would be no better.
const REPLACES_REJECTED: &str = "kubectl-klusterlet/replaces-rejected-certificate";
/// Times are looked at again this often, as clocks can be set.
const LONGEST_SLEEP: Duration = Duration::from_secs(300);
/// A certificate is used for at least this long.
const SHORTEST_LIFE: Duration = Duration::from_secs(10);
/// A pair that the hub refuses is tried again this often.
const RETRY_REFUSED: Duration = Duration::from_secs(30);

/// What the next look waits for.
enum Next {
    /// Time.
    After(Duration),
    /// That this request is decided.
    Decision(Arc<HubAccess>, String, RequestState),
}

/// What one process remembers; a restart only repeats a question.
#[derive(Default)]
struct Memory {
    /// Requests that this process made: a denial of one of them is the answer to what was asked.
    made: BTreeSet<String>,
    /// Server at which the ManagedCluster is known to be there, and ours.
    registered: Option<String>,
    /// The problem that was told last.
    told: Option<String>,
    /// When a certificate was stored last.
    stored: Option<Instant>,
}

/// Keeps the credentials in order for ever.
pub async fn run(context: &Context) {
    let mut memory = Memory::default();
    let mut failures = 0u32;
    loop {
        let next = match reconcile(context, &mut memory).await {
            Ok(next) => {
                failures = 0;
                next
            }
            Err(trouble) => {
                failures = failures.saturating_add(1);
                context.trouble(Some(trouble));
                Next::After(backoff(failures.min(6), Duration::from_secs(1), RETRY_REFUSED))
            }
        };
        let decision = async {
            match next {
                Next::After(pause) => tokio::time::sleep(pause).await,
                Next::Decision(access, name, seen) => decided(context, &access, &name, &seen).await,
            }
        };
        tokio::select! {
            () = decision => {}
            () = context.state.look_again.notified() => {}
        }
    }
}

#[allow(clippy::needless_pass_by_value, reason = "for map_err")]
fn of_spoke(error: Error) -> Trouble {
    Trouble {
        kind: TroubleKind::Spoke,
        text: error.to_string(),
    }
}

async fn reconcile(context: &Context, memory: &mut Memory) -> Result<Next, Trouble> {
    let options = &context.options;
    let (cluster, agent) = (&options.cluster_name, &options.agent_name);
    let endpoint = HubEndpoint::read(&context.bootstrap_file());
    let stored = context
        .spoke
        .secret(&options.hub_kubeconfig_secret)
        .await
        .map_err(of_spoke)?
        .unwrap_or_default();
    if !stored.data.is_empty() {
        files::dump(&options.hub_kubeconfig_dir, &stored.data).map_err(|error| Trouble {
            kind: TroubleKind::Spoke,
            text: error.to_string(),
        })?;
    }
    let mut verdict = assess(
        &stored.data,
        endpoint.as_ref().ok(),
        cluster,
        agent,
        context.state.hub_now(),
    );
    if verdict.is_ok() && is_rejected(context, &stored) {
        verdict = refused_again(context, &stored).await?;
    }
    if let (Err(Problem::EndpointDiffers(fields)), Ok(endpoint)) = (&verdict, &endpoint) {
        let text = format!(
            "the bootstrap kubeconfig has another {} than the stored credentials",
            fields.join(", ")
        );
        if moved(context, &stored, endpoint, &text).await? {
            return Ok(Next::After(Duration::ZERO));
        }
    }
    let kept = context
        .spoke
        .secret(&pending_secret(&options.hub_kubeconfig_secret))
        .await
        .map_err(of_spoke)?
        .unwrap_or_default();
    let kept = pending::from_data(&kept.data, cluster, agent);
    match verdict {
        Ok(chain) => with_certificate(context, memory, &stored, &chain, endpoint.as_ref().ok(), kept).await,
        Err(problem) => {
            context.state.hub.send_if_modified(|hub| hub.take().is_some());
            context.state.update(|snapshot| snapshot.certificate = None);
            let rejected = problem == Problem::Rejected;
            let access = bootstrap(context, memory, endpoint, &problem)?;
            if rejected && kept.is_none() {
                // A hub that was rebuilt knows nothing of what was registered.
                memory.registered = None;
            }
            let next = ask(context, memory, &access, kept, rejected).await;
            next.map_err(|trouble| of_bootstrap(context, &access, trouble))
        }
    }
}

/// Registers and asks for a certificate with the bootstrap credentials.
async fn ask(
    context: &Context,
    memory: &mut Memory,
    access: &Arc<HubAccess>,
    kept: Option<PendingRequest>,
    rejected: bool,
) -> Result<Next, Trouble> {
    if register(context, memory, access).await? {
        // Neither waits for the other; both have to work.
        let (created, next) = tokio::join!(
            create_cluster(context, access),
            request(context, memory, access, kept, rejected)
        );
        created?;
        memory.registered = Some(access.endpoint.server.clone());
        return next;
    }
    memory.registered = Some(access.endpoint.server.clone());
    request(context, memory, access, kept, rejected).await
}

/// Says what 401 means for bootstrap credentials.
fn of_bootstrap(context: &Context, access: &HubAccess, trouble: Trouble) -> Trouble {
    if trouble.kind != TroubleKind::Unauthorized {
        return trouble;
    }
    Trouble {
        kind: trouble.kind,
        text: format!(
            "the hub at {} does not accept the bootstrap credentials (401): they expired or belong to another hub; ask its administrator for a new bootstrap kubeconfig and put it in place of {}",
            access.endpoint.server,
            context.bootstrap_file().display()
        ),
    }
}

/// Whether the hub said 401 to the stored certificate.
fn is_rejected(context: &Context, stored: &StoredSecret) -> bool {
    let certificate = stored.data.get(key::CERTIFICATE).map(|pem| fingerprint(pem));
    certificate.is_some() && *context.state.rejected.borrow() == certificate
}

/// Asks the hub once more about a pair that it said 401 to. A second 401 leads to one new request, and not to a loop.
async fn refused_again(context: &Context, stored: &StoredSecret) -> Result<Result<Chain, Problem>, Trouble> {
    let access = stored_access(stored)?;
    let answer = Hub::new(&access, &context.options.cluster_name).cluster().await;
    match answer {
        Err(error) if is_unauthorized(&error) => {
            if stored.annotations.contains_key(REPLACES_REJECTED) {
                return Err(Trouble {
                    kind: TroubleKind::Unauthorized,
                    text: format!(
                        "the hub at {} signed a new certificate and does not accept it either (401): its signer and its --client-ca-file do not \
                         belong together; no further certificate is asked for until the bootstrap kubeconfig or the Secret changes",
                        access.endpoint.server
                    ),
                });
            }
            Ok(Err(Problem::Rejected))
        }
        Err(error) if error.cause() != Cause::Forbidden => Err(trouble_of(&error)),
        _ => {
            set(&context.state.rejected, None);
            let pem = stored.data.get(key::CERTIFICATE).map(Vec::as_slice).unwrap_or_default();
            Ok(Chain::parse(pem).map_err(|error| Problem::Unreadable(error.to_string())))
        }
    }
}

fn stored_access(stored: &StoredSecret) -> Result<HubAccess, Trouble> {
    let get = |name: &str| stored.data.get(name).map(Vec::as_slice).unwrap_or_default();
    endpoint_of_text(get(key::KUBECONFIG))
        .and_then(|endpoint| HubAccess::certificate(&endpoint, get(key::CERTIFICATE), get(key::KEY)))
        .map_err(|error| trouble_of(&error))
}

/// The pair is good, and the bootstrap kubeconfig leads elsewhere: is it the same hub, behind another address, proxy or
/// certificate authority? Then only the kubeconfig changes, and nobody has to approve anything. Whether it is.
async fn moved(context: &Context, stored: &StoredSecret, endpoint: &HubEndpoint, text: &str) -> Result<bool, Trouble> {
    let get = |name: &str| stored.data.get(name).map(Vec::as_slice).unwrap_or_default();
    let access =
        HubAccess::certificate(endpoint, get(key::CERTIFICATE), get(key::KEY)).map_err(|error| trouble_of(&error))?;
    match Hub::new(&access, &context.options.cluster_name).cluster().await {
        Err(error) if is_unauthorized(&error) => {
            context.log.info(
                "the hub there does not know the stored certificate: it is another hub",
                &[("because", &text)],
            );
            Ok(false)
        }
        Err(error) if error.cause() != Cause::Forbidden => Err(trouble_of(&error)),
        _ => {
            write_kubeconfig(context, endpoint).await?;
            context.log.info(
                "the hub is the same behind what changed: the stored kubeconfig follows",
                &[("because", &text)],
            );
            Ok(true)
        }
    }
}

async fn write_kubeconfig(context: &Context, endpoint: &HubEndpoint) -> Result<(), Trouble> {
    let text = endpoint.hub_kubeconfig().map_err(|error| trouble_of(&error))?;
    let data = BTreeMap::from([(key::KUBECONFIG.to_owned(), text.into_bytes())]);
    context
        .spoke
        .write_secret(&context.options.hub_kubeconfig_secret, &data, &[])
        .await
        .map_err(of_spoke)
}

/// The stored pair is good: use it, and renew it in time.
async fn with_certificate(
    context: &Context,
    memory: &mut Memory,
    stored: &StoredSecret,
    chain: &Chain,
    bootstrap: Option<&HubEndpoint>,
    kept: Option<PendingRequest>,
) -> Result<Next, Trouble> {
    let state = &context.state;
    let mut access = stored_access(stored)?;
    if let Some(bootstrap) = bootstrap
        && *bootstrap != access.endpoint
    {
        write_kubeconfig(context, bootstrap).await?;
        access = HubAccess {
            endpoint: bootstrap.clone(),
            ..stored_access(stored)?
        };
    }
    let current = state.hub.borrow().clone();
    let access = match current {
        Some(current) if current.is_same(&access) => current,
        _ => {
            let access = Arc::new(access);
            state.hub.send_replace(Some(Arc::clone(&access)));
            access
        }
    };
    let pem = stored.data.get(key::CERTIFICATE).map(Vec::as_slice).unwrap_or_default();
    if stored.annotations.contains_key(REPLACES_REJECTED) && *state.known.borrow() == Some(fingerprint(pem)) {
        let secret = &context.options.hub_kubeconfig_secret;
        context
            .spoke
            .write_secret(secret, &Data::new(), &[(REPLACES_REJECTED, None)])
            .await
            .map_err(of_spoke)?;
    }
    if context.is_join {
        offer_bootstrap(context);
    }
    if context.is_join
        && let Some(bootstrap) = state.bootstrap.borrow().clone()
        && register(context, memory, &bootstrap).await?
    {
        create_cluster(context, &bootstrap).await?;
        memory.registered = Some(bootstrap.endpoint.server.clone());
    }
    let validity = chain.validity();
    let due = renew_at(validity, &fingerprint(pem));
    state.update(|snapshot| snapshot.certificate = Some(validity));
    let now = state.hub_now();
    // A signer that gives very short lives could make every new certificate due at once.
    let rest = memory
        .stored
        .map_or(Duration::ZERO, |stored| SHORTEST_LIFE.saturating_sub(stored.elapsed()));
    if now >= due && !rest.is_zero() {
        context.trouble(None);
        return Ok(Next::After(rest));
    }
    if now < due {
        // What a crash left between the storing of the certificate and the removal of its request.
        if kept.is_some() {
            forget(context).await?;
        }
        context.state.update(|snapshot| snapshot.request = None);
        context.trouble(None);
        let left = Duration::try_from(due.duration_since(now)).unwrap_or_default();
        return Ok(Next::After(left.min(LONGEST_SLEEP)));
    }
    if !state
        .cluster
        .borrow()
        .cluster()
        .is_some_and(|cluster| is_accepted(cluster))
    {
        context.trouble(None);
        return Ok(Next::After(Duration::from_secs(10)));
    }
    let next = request(context, memory, &access, kept, false).await;
    if let Err(trouble) = &next {
        set(
            &state.rotation,
            Some(Err(format!("Failed to rotate client certificate: {}", trouble.text))),
        );
    }
    next
}

/// While the hub has not accepted, only the bootstrap credentials may read the ManagedCluster. That they cannot be used
/// does not matter here.
pub fn offer_bootstrap(context: &Context) {
    if let Ok(access) = HubAccess::bootstrap(&context.bootstrap_file())
        && !context
            .state
            .bootstrap
            .borrow()
            .as_ref()
            .is_some_and(|old| old.is_same(&access))
    {
        context.state.bootstrap.send_replace(Some(Arc::new(access)));
    }
}

/// The way in with the bootstrap credentials, as nothing else is good.
fn bootstrap(
    context: &Context,
    memory: &mut Memory,
    endpoint: shared::Result<HubEndpoint>,
    problem: &Problem,
) -> Result<Arc<HubAccess>, Trouble> {
    let access = endpoint
        .and_then(|_| HubAccess::bootstrap(&context.bootstrap_file()))
        .map_err(|error| Trouble {
            kind: TroubleKind::BadBootstrap,
            text: format!("{problem}; and {error}: waiting for the file to change"),
        })?;
    // A changed file takes away what was made of it, so what is there is of the file as it is.
    let current = context.state.bootstrap.borrow().clone();
    let access = match current {
        Some(current) if current.is_same(&access) => current,
        _ => {
            let access = Arc::new(access);
            context.state.bootstrap.send_replace(Some(Arc::clone(&access)));
            access
        }
    };
    let told = Some(problem.to_string());
    if *problem != Problem::Missing(key::KUBECONFIG) && memory.told != told {
        memory.told = told;
        context.log.info(
            "asking for a new certificate with the bootstrap kubeconfig",
            &[("because", problem)],
        );
    }
    Ok(access)
}

/// Looks whether the ManagedCluster is there and may be ours. Whether it has to be created.
async fn register(context: &Context, memory: &Memory, access: &Arc<HubAccess>) -> Result<bool, Trouble> {
    if memory.registered.as_ref() == Some(&access.endpoint.server) {
        return Ok(false);
    }
    let name = &context.options.cluster_name;
    let seen = Hub::new(access, name)
        .cluster()
        .await
        .map_err(|error| trouble_of(&error))?;
    match ownership(seen.as_ref(), &context.identity) {
        Ownership::Taken(why) if !context.force => Err(Trouble {
            kind: TroubleKind::NameTaken,
            text: format!(
                "the hub has another cluster of the name {name}: {why}; choose another --cluster-name, or, if it is this one, add --force to join"
            ),
        }),
        _ => {
            let missing = seen.is_none();
            if let Some(cluster) = seen {
                super::cluster::see(context, Some(cluster));
            }
            Ok(missing)
        }
    }
}

async fn create_cluster(context: &Context, access: &HubAccess) -> Result<(), Trouble> {
    let name = &context.options.cluster_name;
    let object = new_managed_cluster(name, &context.identity, context.ca_bundle.as_deref());
    match Hub::new(access, name).create_cluster(&object).await {
        Ok(cluster) => {
            context.log.info(
                "registered on the hub",
                &[("cluster", name), ("hub", &access.endpoint.server)],
            );
            super::cluster::see(context, Some(cluster));
            Ok(())
        }
        Err(error) if error.cause() == Cause::AlreadyExists => Ok(()),
        Err(error) => Err(trouble_of(&error)),
    }
}

/// Brings the request one step on, and further as long as nobody has to be waited for.
async fn request(
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

async fn forget(context: &Context) -> Result<(), Trouble> {
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

/// Resolves when the request is not as it was seen any more, or cannot be watched.
async fn decided(context: &Context, access: &HubAccess, name: &str, seen: &RequestState) {
    let hub = Hub::new(access, &context.options.cluster_name);
    let fields = format!("metadata.name={name}");
    let requests = hub.requests();
    let changed = tokio::sync::Notify::new();
    let mut found = false;
    let watch = follow(
        &access.cluster,
        &requests,
        "the certificate request on the hub",
        Some(&fields),
        |change| match change {
            Change::Begin => found = false,
            Change::Set(request) => {
                found = true;
                if request_state(&request) != *seen {
                    changed.notify_one();
                }
            }
            Change::Gone(_) => changed.notify_one(),
            Change::Complete if !found => changed.notify_one(),
            Change::Complete => {}
        },
    );
    tokio::select! {
        // The next look tells the trouble, and waits after it.
        _ = watch => tokio::time::sleep(Duration::from_secs(1)).await,
        () = changed.notified() => {}
        () = tokio::time::sleep(LONGEST_SLEEP) => {}
    }
}

/// Tells when the bootstrap kubeconfig changes.
pub async fn watch_bootstrap_file(context: &Context) {
    let path = context.bootstrap_file();
    let mut mark = FileMark::of(&path);
    loop {
        tokio::time::sleep(Duration::from_secs(1)).await;
        let now = FileMark::of(&path);
        if now != mark {
            mark = now;
            context
                .log
                .info("the bootstrap kubeconfig changed", &[("file", &path.display())]);
            // What was refused before may be right for another hub.
            set(&context.state.rejected, None);
            context.state.bootstrap.send_if_modified(|old| old.take().is_some());
            context.state.look_again.notify_one();
        }
    }
}

/// Tells when somebody else changes or removes the Secret with the credentials.
pub async fn watch_secret(context: &Context) {
    let name = &context.options.hub_kubeconfig_secret;
    let fields = format!("metadata.name={name}");
    loop {
        let mut listed = false;
        let error = follow(
            &context.spoke.cluster,
            &context.spoke.secrets(),
            "the hub's Secret on the spoke",
            Some(&fields),
            |change| match change {
                Change::Complete => listed = true,
                Change::Set(_) | Change::Gone(_) if listed => context.state.look_again.notify_one(),
                _ => {}
            },
        )
        .await;
        if error.cause() == Cause::Forbidden {
            context.log.error("changes of the Secret are not noticed", &error);
        }
        tokio::time::sleep(Duration::from_secs(10)).await;
        context.state.look_again.notify_one();
    }
}
