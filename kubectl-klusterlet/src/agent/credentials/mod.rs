//! From the bootstrap kubeconfig to a certificate, and from one certificate to the next.
//!
//! [`reconcile`] looks at everything, does what can be done, and says what to wait for. It keeps nothing in memory that a
//! restart would need: key and name of an open request lie in a Secret before they are used.
//!
//! | module | does |
//! | --- | --- |
//! | [`stored`] | judges the stored pair by what the hub answers, and lets its kubeconfig follow a hub that moved |
//! | [`request`] | brings a certificate request from its creation to the stored certificate |
//! | [`changes`] | notices what others change: the request, the bootstrap kubeconfig, the Secret |

mod changes;
mod request;
mod stored;

use std::{
    collections::BTreeSet,
    sync::Arc,
    time::{Duration, Instant},
};

use shared::{Error, error::Cause};

pub use self::changes::{watch_bootstrap_file, watch_secret};
use self::{
    changes::decided,
    request::{forget, request},
    stored::{REPLACES_REJECTED, is_rejected, moved, refused_again, stored_access, write_kubeconfig},
};
use super::{
    Context,
    state::{Trouble, TroubleKind, set},
    trouble_at, trouble_of,
};
use crate::{
    certificate::Chain,
    connection::HubAccess,
    csr::{PendingRequest, RequestState, fingerprint, renew_at},
    files,
    hub::Hub,
    hub_kubeconfig::{HubEndpoint, Problem, assess},
    names::{key, pending_secret},
    pending,
    registration::{Ownership, is_accepted, new_managed_cluster, ownership},
    spoke::{Data, StoredSecret},
    timing::backoff,
};

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
    /// Whether the hub's time is known.
    asked_for_the_time: bool,
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
    if let Err(Problem::Expired(_)) = verdict
        && !memory.asked_for_the_time
    {
        // By this machine's clock, which may have jumped. Nothing is thrown away before the hub has been asked for the time.
        let access = match &endpoint {
            Ok(_) => HubAccess::bootstrap(&context.bootstrap_file()).ok(),
            Err(_) => stored_access(&stored).ok(),
        };
        if let Some(access) = access
            && let Some(skew) = access.skew().await
        {
            memory.asked_for_the_time = true;
            context.clock(skew);
            verdict = assess(
                &stored.data,
                endpoint.as_ref().ok(),
                cluster,
                agent,
                context.state.hub_now(),
            );
        }
    }
    if verdict.is_ok() && is_rejected(context, &stored) {
        verdict = refused_again(context, &stored).await?;
    }
    // Whether the stored kubeconfig is to follow the bootstrap kubeconfig.
    let mut follows = true;
    if let (Err(problem @ Problem::EndpointDiffers(_)), Ok(endpoint)) = (&verdict, &endpoint) {
        let text = problem.to_string();
        match moved(context, &stored, endpoint, &text).await {
            Ok(true) => return Ok(Next::After(Duration::ZERO)),
            Ok(false) => {}
            // Nobody answers there, or nobody who is trusted. The pair may still be good where it was made for.
            Err(trouble) => {
                follows = false;
                verdict = assess(&stored.data, None, cluster, agent, context.state.hub_now());
                let told = Some(format!("{text}, and there: {}", trouble.text));
                if memory.told != told {
                    let because: &dyn std::fmt::Display = &told.as_deref().unwrap_or_default();
                    context
                        .log
                        .warning("the stored credentials are used as they are", &[("because", because)]);
                    memory.told = told;
                }
            }
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
        Ok(chain) => {
            let followed = endpoint.as_ref().ok().filter(|_| follows);
            let next = with_certificate(context, memory, &stored, &chain, followed, kept).await;
            match next {
                Ok(Next::After(pause)) if !follows => Ok(Next::After(pause.min(RETRY_REFUSED))),
                next => next,
            }
        }
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
        let get = |name: &str| stored.data.get(name).map(Vec::as_slice).unwrap_or_default();
        access = HubAccess::certificate(bootstrap, get(key::CERTIFICATE), get(key::KEY))
            .map_err(|error| trouble_of(&error))?;
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
        .map_err(|error| trouble_at(&error, &access.endpoint))?;
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
