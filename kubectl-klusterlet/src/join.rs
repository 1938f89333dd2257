//! `join`: registers, waits with a bar for each stage, and stays as the agent.

use std::{sync::Arc, time::Duration};

use serde_json::{Value, json};
use shared::{
    Error, Printer, Result,
    kube_client::{Cluster, KubeFlags},
    output::OutputFormat,
    progress::{self, Outcome, Reporter},
    prompt,
    wait::short,
    yaml,
};

use crate::{
    agent::{
        self, Context,
        lock::{DURATION, is_known_dead},
        state::{Snapshot, Trouble, TroubleKind},
    },
    connection::{HubAccess, connect_spoke},
    csr::{new_request, request_object},
    hub::Hub,
    log::{Log, LogFormat},
    names::{AGENT_LEASE, FIELD_MANAGER, key, pending_secret},
    options::{FailoverAgentOptions, not_the_hub},
    outcome::{self, Failure},
    preflight,
    registration::{Ownership, Stage, new_managed_cluster, ownership, stage},
    run::{prepare, stopped},
    spoke::{absent, cluster_uid},
    timing::skew_warning,
};

/// How `join` goes about it.
#[derive(Clone, Debug)]
pub struct JoinOptions {
    /// How far to wait.
    pub wait: Stage,
    /// Whether to end then.
    pub detach: bool,
    /// How long to wait.
    pub timeout: Duration,
    /// Print what would be written, and write nothing.
    pub dry_run: bool,
    /// Do not ask.
    pub yes: bool,
    /// Take over a name that seems to be another spoke's.
    pub force: bool,
    /// Join a cluster to itself.
    pub allow_same_cluster: bool,
}

/// The stages in their order: name, what it is, and what is true once it is reached.
const STAGES: [(&str, &str, &str); 6] = [
    ("registered", "the ManagedCluster on the hub", "ManagedCluster is there"),
    (
        "approved",
        "approval of the certificate request",
        "certificate request is approved",
    ),
    ("certificate", "certificate for the hub", "certificate is stored"),
    ("accepted", "acceptance by the hub", "hub accepts the cluster"),
    ("joined", "first report of the agent", "agent has joined"),
    (
        "available",
        "availability as the hub sees it",
        "hub sees the cluster as available",
    ),
];

/// Joins.
///
/// # Errors
/// With the documented exit codes.
pub async fn join(
    options: FailoverAgentOptions,
    kube: &KubeFlags,
    how: &JoinOptions,
    printer: &Printer,
) -> Result<(), Failure> {
    let stop = stopped()?;
    let connection = connect_spoke(kube)?;
    let bootstrap_file = options.bootstrap_kubeconfig.first().cloned();
    let log = Log::new(printer.clone(), LogFormat::Warnings);
    // Wrong options first: nothing is asked for what cannot work.
    if bootstrap_file.is_none() {
        options.validate()?;
    }
    let hub = HubAccess::bootstrap(&bootstrap_file.unwrap_or_default())?;
    let mut context = prepare(options, &connection, log, !how.dry_run)
        .await
        .map_err(Failure::of_cause)?;
    context.is_join = true;
    context.force = how.force;
    show(&context, &connection.cluster, &hub, printer);
    if !how.allow_same_cluster {
        not_the_hub(&context.identity.urls, &hub.endpoint.server)?;
    }
    refuse_same(&context, &hub, how).await?;
    if how.dry_run {
        return dry_run(&context, &hub, printer).await;
    }
    check_permissions(&context, &hub, printer).await?;
    if already_there(&context, &hub, how, printer).await? {
        return Ok(());
    }
    prompt::confirm(printer, "Register this spoke on that hub?", None, how.yes)?;

    let context = Arc::new(context);
    let reporter = progress::reporter(printer, OutputFormat::Table);
    let (end, ended) = tokio::sync::oneshot::channel::<()>();
    let agent = agent::run(Arc::clone(&context), async move {
        let _ = ended.await;
    });
    let watched = async {
        tokio::pin!(stop);
        let result = tokio::select! {
            result = watch(&context, how, reporter.as_ref()) => result,
            () = &mut stop => Err(Failure::from(
                Error::interrupted("interrupted while waiting").hint("run the same command again: it goes on where this one was"),
            )),
        };
        drop(reporter);
        if result.is_ok() && !how.detach {
            printer.note("joined; this process stays as the agent (Ctrl-C ends it)");
            stop.await;
        }
        let _ = end.send(());
        result
    };
    let (ran, result) = tokio::join!(agent, watched);
    ran?;
    result?;
    if how.detach {
        printer.note("no agent runs now: without one the hub calls the cluster unknown after five lease periods");
        printer.hint("start one: kubectl klusterlet run with the same flags, or kubectl klusterlet deploy");
    }
    Ok(())
}

fn show(context: &Context, spoke: &Cluster, hub: &HubAccess, printer: &Printer) {
    let options = &context.options;
    let name = spoke
        .context
        .as_deref()
        .map_or_else(String::new, |name| format!(" (context {name})"));
    printer.note(format!("spoke    {}{name}", spoke.server));
    printer.note(format!(
        "hub      {} (cluster {} of {})",
        hub.endpoint.server,
        hub.endpoint.cluster,
        context.bootstrap_file().display()
    ));
    printer.note(format!(
        "cluster  {}, agent {}",
        options.cluster_name, options.agent_name
    ));
    printer.note(format!(
        "keeps    Secret {}/{}, directory {}",
        context.spoke.namespace,
        options.hub_kubeconfig_secret,
        options.hub_kubeconfig_dir.display()
    ));
}

async fn refuse_same(context: &Context, hub: &HubAccess, how: &JoinOptions) -> Result<(), Failure> {
    if how.allow_same_cluster {
        return Ok(());
    }
    // Registration credentials seldom may read this; then the address has to do.
    let same_uid = cluster_uid(&hub.cluster)
        .await
        .is_ok_and(|uid| uid == context.identity.uid);
    if same_uid || hub.endpoint.server == context.spoke.cluster.server {
        return Err(Failure::from(
            Error::refused(format!("spoke and hub are the same cluster: {}", hub.endpoint.server))
                .because("nothing was changed")
                .hint("choose the spoke with --context, or add --allow-same-cluster to register a hub with itself"),
        ));
    }
    Ok(())
}

async fn check_permissions(context: &Context, hub: &HubAccess, printer: &Printer) -> Result<(), Failure> {
    let secrets = [
        context.options.hub_kubeconfig_secret.clone(),
        pending_secret(&context.options.hub_kubeconfig_secret),
    ];
    let (of_hub, of_spoke) = (
        preflight::of_bootstrap(),
        preflight::of_spoke(&context.spoke.namespace, &secrets),
    );
    let (hub_lacks, spoke_lacks, skew) = tokio::join!(
        preflight::missing(&hub.cluster, &of_hub),
        preflight::missing(&context.spoke.cluster, &of_spoke),
        hub.skew()
    );
    if let Some(text) = skew_warning(skew) {
        printer.warning(text);
    }
    let spoke_lacks = spoke_lacks.map_err(Failure::of_cause)?;
    for permission in spoke_lacks.iter().filter(|permission| permission.is_optional) {
        printer.warning(format!(
            "the spoke does not allow to {}: it is not reported",
            permission.describe()
        ));
    }
    let list = |lacks: &[preflight::Permission]| {
        let needed: Vec<_> = lacks
            .iter()
            .filter(|permission| !permission.is_optional)
            .map(preflight::Permission::describe)
            .collect();
        needed.join("; ")
    };
    let spoke_lacks = list(&spoke_lacks);
    if !spoke_lacks.is_empty() {
        let error = Error::refused("the spoke does not allow all that the agent needs")
            .because(spoke_lacks)
            .hint("use a context with these rights");
        return Err(Failure::with_code(error, outcome::UNAUTHORIZED));
    }
    let hub_lacks = match hub_lacks {
        Ok(lacks) => list(&lacks),
        Err(error) => {
            // A pair that is good needs no bootstrap credentials: then their end is no reason to stop.
            if context.identity.has_credentials && matches!(error.cause(), shared::error::Cause::Unauthorized) {
                printer.warning(
                    "the hub does not know the bootstrap credentials any more; the stored certificate is used",
                );
                return Ok(());
            }
            return Err(Failure::of_cause(error.hint(
                "the bootstrap kubeconfig may have expired: ask the hub's administrator for a new one",
            )));
        }
    };
    if hub_lacks.is_empty() {
        return Ok(());
    }
    let error = Error::refused("the bootstrap credentials lack rights on the hub")
        .because(hub_lacks)
        .hint("the hub's administrator binds the ClusterRole open-cluster-management:bootstrap to them");
    Err(Failure::with_code(error, outcome::UNAUTHORIZED))
}

/// Whether there is nothing to do: an agent runs already, or everything asked for is reached and nobody is to stay.
async fn already_there(
    context: &Context,
    hub: &HubAccess,
    how: &JoinOptions,
    printer: &Printer,
) -> Result<bool, Failure> {
    let name = &context.options.cluster_name;
    let lease = absent(
        context
            .spoke
            .cluster
            .call("read the agent's Lease", context.spoke.leases().get(AGENT_LEASE))
            .await,
    )?;
    let spec = lease.and_then(|lease| lease.spec).unwrap_or_default();
    let holder = spec.holder_identity.filter(|holder| !holder.is_empty());
    let age = spec
        .renew_time
        .map(|time| jiff::Timestamp::now().duration_since(time.0).as_secs());
    let lives = holder
        .filter(|holder| age.is_some_and(|age| age.unsigned_abs() < DURATION.as_secs()) && !is_known_dead(holder));
    // The bootstrap credentials may have ended since; then the certificate tells.
    let seen = Hub::new(hub, name).cluster().await;
    let at = match &seen {
        Ok(Some(cluster)) if ownership(Some(cluster), &context.identity) == Ownership::Ours => Some(stage(cluster)),
        _ => None,
    };
    let reached = context.identity.has_credentials && at.is_some_and(|at| at >= how.wait);
    match lives {
        Some(holder) if reached => {
            printer.note(format!(
                "{name} has joined already, and its agent runs ({holder}); nothing was changed"
            ));
            Ok(true)
        }
        Some(holder) => Err(Failure::from(
            Error::refused(format!("an agent runs for this spoke already: {holder}"))
                .because(format!(
                    "the cluster is {}; that agent goes on with it",
                    at.map_or_else(
                        || "not registered yet".to_owned(),
                        |at| format!("{at:?}").to_lowercase()
                    )
                ))
                .hint("see kubectl klusterlet status; end that agent before another one joins"),
        )),
        None if reached && how.detach => {
            printer.note(format!("{name} has joined already; nothing was changed"));
            Ok(true)
        }
        None => Ok(false),
    }
}

/// How many of the stages are reached, from the first on; those after it may not be.
#[must_use]
pub fn reached(snapshot: &Snapshot) -> [bool; 6] {
    let certificate = snapshot.certificate.is_some();
    let approved = certificate || snapshot.request.as_ref().is_some_and(|request| request.is_approved);
    let at = |wanted: Stage| snapshot.stage.is_some_and(|stage| stage >= wanted);
    [
        snapshot.registered,
        approved,
        certificate,
        at(Stage::Accepted),
        at(Stage::Joined) && certificate,
        at(Stage::Available) && certificate,
    ]
}

/// What a stage waits for: who has to do what. Nothing to say where it is a matter of a moment.
#[must_use]
pub fn waits_for(index: usize, snapshot: &Snapshot, cluster: &str) -> Option<String> {
    let command = format!("kubectl klusterlet --context HUB accept {cluster}");
    Some(match (index, &snapshot.request) {
        (0, _) => "the hub's answer".to_owned(),
        (1, Some(request)) => format!("the hub's administrator to approve {}: {command}", request.name),
        (1, None) => return None,
        (2, _) => "the hub's signer".to_owned(),
        (3, _) => format!("the hub's administrator to accept {cluster}: {command}"),
        (4, _) => "the agent's first report".to_owned(),
        _ => "the spoke's health to be known".to_owned(),
    })
}

/// How many stages are asked for.
fn wanted(wait: Stage) -> usize {
    match wait {
        Stage::Registered => 1,
        Stage::Accepted => 4,
        Stage::Joined => 5,
        Stage::Available => 6,
    }
}

async fn watch(context: &Context, how: &JoinOptions, reporter: &dyn Reporter) -> Result<(), Failure> {
    let wanted = wanted(how.wait);
    let name = &context.options.cluster_name;
    let mut snapshots = context.state.snapshot.subscribe();
    let stages = STAGES.get(..wanted).unwrap_or(&STAGES);
    let mut done = vec![false; stages.len()];
    for (stage, title, _) in stages {
        reporter.begin(stage, title, 1);
    }
    let wait = async {
        loop {
            let snapshot = snapshots.borrow_and_update().clone();
            let reached = reached(&snapshot);
            for (index, (stage, _, fact)) in stages.iter().enumerate() {
                if done[index] {
                    continue;
                }
                if reached[index] {
                    done[index] = true;
                    reporter.step(stage, fact);
                    reporter.finish(stage, Outcome::Done, "");
                }
            }
            // Only the first that is open can be acted upon.
            if let Some(index) = done.iter().position(|done| !done)
                && let Some((stage, _, _)) = stages.get(index)
                && let Some(text) = waits_for(index, &snapshot, name)
            {
                reporter.waiting(stage, &text);
            }
            if done.iter().all(|done| *done) {
                return Ok(());
            }
            if let Some(trouble) = [&snapshot.trouble, &snapshot.cluster_trouble]
                .into_iter()
                .flatten()
                .find(|trouble| outcome::ends_the_wait(trouble))
            {
                return Err(trouble.clone());
            }
            // A log tells again after a while what is waited for, if it changed.
            let _ = tokio::time::timeout(Duration::from_secs(1), snapshots.changed()).await;
        }
    };
    let result = tokio::time::timeout(how.timeout, wait).await;
    if result.as_ref().is_ok_and(Result::is_ok) {
        return Ok(());
    }
    let snapshot = context.state.snapshot.borrow().clone();
    let open = reached(&snapshot)
        .iter()
        .take(wanted)
        .position(|reached| !reached)
        .unwrap_or(0);
    for (index, (stage, _, _)) in stages.iter().enumerate() {
        if !reached(&snapshot)[index] {
            let outcome = if index == open {
                Outcome::Failed
            } else {
                Outcome::Skipped
            };
            reporter.finish(stage, outcome, "");
        }
    }
    match result {
        Ok(Err(trouble)) => Err(failed(&trouble, name)),
        _ => Err(timed_out(how, &snapshot, open, name)),
    }
}

fn failed(trouble: &Trouble, name: &str) -> Failure {
    let error = Error::new(format!("cannot join as {name}")).because(&trouble.text);
    let error = match trouble.kind {
        TroubleKind::RequestDenied => error.hint("ask the hub's administrator why; run join again to ask anew"),
        _ => error,
    };
    Failure::with_code(error, outcome::code_of(trouble.kind))
}

fn timed_out(how: &JoinOptions, snapshot: &Snapshot, open: usize, name: &str) -> Failure {
    let fact = STAGES.get(open).map_or("", |(_, _, fact)| fact);
    let mut error = Error::new(format!("gave up after {} waiting until {fact}", short(how.timeout)));
    let trouble = snapshot.trouble.as_ref().or(snapshot.cluster_trouble.as_ref());
    let code = match trouble {
        Some(trouble) => {
            error = error.because(&trouble.text);
            outcome::code_of(trouble.kind)
        }
        None => {
            error = error.because(format!(
                "still waiting for {}",
                waits_for(open, snapshot, name).unwrap_or_else(|| "the hub's answer".to_owned())
            ));
            outcome::TIMED_OUT
        }
    };
    Failure::with_code(
        error.hint("run the same command again: it goes on where this one was; --timeout waits longer"),
        code,
    )
}

/// Prints what would be written on both sides.
async fn dry_run(context: &Context, hub: &HubAccess, printer: &Printer) -> Result<(), Failure> {
    let options = &context.options;
    let name = &options.cluster_name;
    let seen = Hub::new(hub, name).cluster().await.map_err(Failure::of_cause)?;
    if let Ownership::Taken(why) = ownership(seen.as_ref(), &context.identity)
        && !context.force
    {
        let error = Error::refused(format!("the hub has another cluster of the name {name}")).because(why);
        return Err(Failure::with_code(
            error.hint("choose another --cluster-name"),
            outcome::NAME_TAKEN,
        ));
    }
    let pair = new_request(name, &options.agent_name)?;
    let mut objects: Vec<(&str, Value)> = Vec::new();
    if seen.is_none() {
        objects.push((
            "hub",
            written(&new_managed_cluster(
                name,
                &context.identity,
                context.ca_bundle.as_deref(),
            ))?,
        ));
    }
    objects.push((
        "hub",
        written(&request_object(name, &pair.request, options.client_cert_expiration))?,
    ));
    let secret = |name: &str, keys: &[(&str, String)]| {
        let data: serde_json::Map<_, _> = keys
            .iter()
            .map(|(key, text)| ((*key).to_owned(), json!(text)))
            .collect();
        json!({
            "apiVersion": "v1", "kind": "Secret", "type": "Opaque",
            "metadata": {"name": name, "namespace": context.spoke.namespace, "labels": {"app.kubernetes.io/managed-by": FIELD_MANAGER}},
            "stringData": data,
        })
    };
    let hidden = || "(a private key, drawn when it is needed)".to_owned();
    objects.push((
        "spoke",
        secret(
            &pending_secret(&options.hub_kubeconfig_secret),
            &[
                ("tls.key", hidden()),
                ("tls.csr", pair.request.clone()),
                ("server", hub.endpoint.server.clone()),
                ("cluster-name", name.clone()),
                ("agent-name", options.agent_name.clone()),
            ],
        ),
    ));
    objects.push((
        "spoke",
        secret(
            &options.hub_kubeconfig_secret,
            &[
                (key::KUBECONFIG, hub.endpoint.hub_kubeconfig()?),
                (key::CERTIFICATE, "(what the hub signs)".to_owned()),
                (key::KEY, hidden()),
                (key::CLUSTER_NAME, name.clone()),
                (key::AGENT_NAME, options.agent_name.clone()),
            ],
        ),
    ));
    objects.push((
        "spoke",
        json!({
            "apiVersion": "coordination.k8s.io/v1", "kind": "Lease",
            "metadata": {"name": AGENT_LEASE, "namespace": context.spoke.namespace},
        }),
    ));
    for (side, object) in objects {
        printer.data(&format!("---\n# on the {side}\n{}", yaml::to_string(&object)?))?;
    }
    printer.note("dry run: nothing was written");
    Ok(())
}

/// An object as it is sent, without empty fields.
fn written<T: serde::Serialize>(object: &T) -> Result<Value> {
    fn prune(value: &mut Value) {
        if let Value::Object(map) = value {
            map.values_mut().for_each(prune);
            map.retain(|_, value| !value.is_null() && value.as_object().is_none_or(|inner| !inner.is_empty()));
        }
    }
    let mut value = shared::Context::context(serde_json::to_value(object), "cannot write the object")?;
    prune(&mut value);
    Ok(value)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::agent::state::OpenRequest;

    #[test]
    fn stages_are_reached_one_after_the_other() {
        let mut snapshot = Snapshot::default();
        assert_eq!(reached(&snapshot), [false; 6]);
        assert_eq!(waits_for(1, &snapshot, "c"), None);
        snapshot.registered = true;
        snapshot.stage = Some(Stage::Registered);
        snapshot.request = Some(OpenRequest {
            name: "c-abcde".into(),
            is_approved: false,
        });
        assert_eq!(reached(&snapshot), [true, false, false, false, false, false]);
        assert_eq!(
            waits_for(1, &snapshot, "c").unwrap(),
            "the hub's administrator to approve c-abcde: kubectl klusterlet --context HUB accept c"
        );
        snapshot.request = Some(OpenRequest {
            name: "c-abcde".into(),
            is_approved: true,
        });
        assert!(reached(&snapshot)[1]);
        snapshot.stage = Some(Stage::Available);
        assert_eq!(
            reached(&snapshot),
            [true, true, false, true, false, false],
            "another agent's report is not ours"
        );
        snapshot.certificate = Some(crate::certificate::Validity {
            not_before: jiff::Timestamp::MIN,
            not_after: jiff::Timestamp::MAX,
        });
        assert_eq!(reached(&snapshot), [true; 6]);
    }
}
