//! `accept`, with a context of the hub: approves the right certificate request of a cluster and accepts the cluster.

use std::{collections::BTreeSet, time::Duration};

use jiff::Timestamp;
use k8s_openapi::api::certificates::v1::CertificateSigningRequest;
use kube::api::{Patch, PatchParams};
use serde_json::json;
use shared::{
    Error, Printer, Result,
    error::Cause,
    kube_client::Cluster,
    prompt,
    table::Table,
    wait::{self, Poll, short},
};

use crate::{
    csr::{RequestState, recognise, request_state},
    hub::Hub,
    names::{BOOTSTRAP_ACCOUNT, BOOTSTRAP_GROUP, BOOTSTRAP_TOKEN_PREFIX, FIELD_MANAGER, agent_user},
    outcome::{Failure, TIMED_OUT},
    registration::{Stage, stage},
};

/// How `accept` goes about it.
#[derive(Clone, Debug)]
pub struct AcceptOptions {
    /// The cluster.
    pub cluster: String,
    /// Users, beside those that registration accounts have, whose requests may be approved.
    pub requesters: Vec<String>,
    /// How far to wait afterwards.
    pub wait: Option<Stage>,
    /// How long.
    pub timeout: Duration,
    /// Do not ask.
    pub yes: bool,
    /// Show, and change nothing.
    pub dry_run: bool,
}

/// A request that may be approved.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Candidate {
    /// Its name.
    pub name: String,
    /// The agent that it is for.
    pub agent: String,
    /// Who asked.
    pub requester: String,
    /// Since when.
    pub created: Option<Timestamp>,
}

/// Whether this user may ask for the first certificate of a cluster: a registration account, a bootstrap token, somebody
/// in the group of bootstrappers, or one that was named.
#[must_use]
pub fn may_register(user: &str, groups: &[String], named: &[String]) -> bool {
    (user.starts_with("system:serviceaccount:") && user.ends_with(BOOTSTRAP_ACCOUNT))
        || user.starts_with(BOOTSTRAP_TOKEN_PREFIX)
        || groups.iter().any(|group| group == BOOTSTRAP_GROUP)
        || named.iter().any(|name| name == user)
}

/// The open requests of a cluster that may be approved, and why each other open one may not.
#[must_use]
pub fn candidates(
    requests: &[CertificateSigningRequest],
    cluster: &str,
    named: &[String],
) -> (Vec<Candidate>, Vec<String>) {
    let (mut good, mut others) = (Vec::new(), Vec::new());
    for request in requests
        .iter()
        .filter(|request| request_state(request) == RequestState::Pending)
    {
        let name = request.metadata.name.clone().unwrap_or_default();
        let requester = request.spec.username.clone().unwrap_or_default();
        let groups = request.spec.groups.clone().unwrap_or_default();
        match recognise(request) {
            Err(why) => others.push(format!("{name}: {why}")),
            Ok(recognised) if recognised.cluster != cluster => {
                others.push(format!("{name}: it is for cluster {}", recognised.cluster));
            }
            // The hub's controller approves renewals by itself, and by stricter rules than a person can see.
            Ok(recognised) if requester == agent_user(cluster, &recognised.agent) => {
                others.push(format!("{name}: it is a renewal, which the hub approves by itself"));
            }
            Ok(_) if !may_register(&requester, &groups, named) => {
                others.push(format!(
                    "{name}: {requester} is no registration account; if it is right: --requester {requester}"
                ));
            }
            Ok(recognised) => good.push(Candidate {
                name,
                agent: recognised.agent,
                requester,
                created: request.metadata.creation_timestamp.as_ref().map(|time| time.0),
            }),
        }
    }
    (good, others)
}

/// Whether all candidates are of one identity.
///
/// # Errors
/// They are not.
pub fn one_identity(candidates: &[Candidate], cluster: &str) -> Result<()> {
    let identities: BTreeSet<_> = candidates
        .iter()
        .map(|candidate| (candidate.agent.as_str(), candidate.requester.as_str()))
        .collect();
    if identities.len() < 2 {
        return Ok(());
    }
    let list: Vec<_> = candidates
        .iter()
        .map(|candidate| {
            format!(
                "{} for agent {} by {}",
                candidate.name, candidate.agent, candidate.requester
            )
        })
        .collect();
    Err(Error::refused(format!(
        "{} identities claim the name {cluster}; nothing was approved",
        identities.len()
    ))
    .because(list.join("; "))
    .hint("find out which one is right, deny the others (kubectl certificate deny NAME), and accept again"))
}

/// Accepts.
///
/// # Errors
/// There is nothing to accept, or more than one identity, or the hub refuses.
pub async fn accept(cluster: &Cluster, how: &AcceptOptions, printer: &Printer) -> Result<(), Failure> {
    let name = &how.cluster;
    let hub = Hub::through(cluster, name);
    let seen = hub.cluster().await.map_err(Failure::of_cause)?;
    let requests = hub.list_requests().await.map_err(Failure::of_cause)?;
    let (open, others) = candidates(&requests, name, &how.requesters);
    one_identity(&open, name)?;
    for other in &others {
        printer.note(format!("not approved: {other}"));
    }
    let Some(seen) = seen else {
        let error = Error::refused(format!("the hub has no ManagedCluster {name}; nothing was changed"))
            .hint("the spoke registers first: kubectl klusterlet join --cluster-name ... there");
        return Err(error.into());
    };
    if open.is_empty() && seen.spec.hub_accepts_client {
        printer.note(format!(
            "{name} is accepted, and no request of it is open; nothing was changed"
        ));
        return follow_up(&hub, how, printer).await;
    }
    if open.is_empty() && !others.is_empty() {
        let error = Error::refused(format!(
            "none of the {} open requests of {name} may be approved; nothing was changed",
            others.len()
        ));
        return Err(error.into());
    }
    let now = Timestamp::now();
    let mut table = Table::new(["request", "agent", "requester", "age"]);
    for candidate in &open {
        let age = candidate
            .created
            .and_then(|created| Duration::try_from(now.duration_since(created)).ok())
            .unwrap_or_default();
        table.row([
            candidate.name.clone(),
            candidate.agent.clone(),
            candidate.requester.clone(),
            short(age),
        ]);
    }
    printer.note(format!("hub      {}", cluster.server));
    printer.note(format!("cluster  {name}"));
    if open.is_empty() {
        printer.note("no certificate request is open: only the cluster is accepted");
    } else {
        printer.note(table.render(None).trim_end());
    }
    if how.dry_run {
        printer.note("dry run: nothing was changed");
        return Ok(());
    }
    prompt::confirm(printer, "Approve and accept?", None, how.yes)?;
    for candidate in &open {
        approve(cluster, &hub, candidate, &requests)
            .await
            .map_err(Failure::of_cause)?;
        printer.note(format!("approved {}", candidate.name));
    }
    if !seen.spec.hub_accepts_client {
        let patch = json!({"spec": {"hubAcceptsClient": true}});
        let clusters = hub.clusters();
        let parameters = PatchParams {
            field_manager: Some(FIELD_MANAGER.into()),
            ..PatchParams::default()
        };
        cluster
            .call(
                &format!("accept ManagedCluster {name}"),
                clusters.patch(name, &parameters, &Patch::Merge(&patch)),
            )
            .await
            .map_err(Failure::of_cause)?;
        printer.note(format!("accepted {name}"));
    }
    follow_up(&hub, how, printer).await
}

/// Approves the request as it was seen: if somebody changed it since, nothing happens.
async fn approve(
    cluster: &Cluster,
    hub: &Hub<'_>,
    candidate: &Candidate,
    requests: &[CertificateSigningRequest],
) -> Result<()> {
    let seen = requests
        .iter()
        .find(|request| request.metadata.name.as_ref() == Some(&candidate.name));
    let version = seen.and_then(|request| request.metadata.resource_version.clone());
    let now = Timestamp::now();
    let patch = json!({
        "metadata": {"resourceVersion": version},
        "status": {"conditions": [{
            "type": "Approved", "status": "True", "reason": "KlusterletAccept",
            "message": "approved by kubectl klusterlet accept",
            "lastUpdateTime": format!("{now:.0}"),
        }]},
    });
    let api = hub.requests();
    cluster
        .call(
            &format!("approve {}", candidate.name),
            api.patch_approval(&candidate.name, &PatchParams::default(), &Patch::Merge(&patch)),
        )
        .await?;
    Ok(())
}

async fn follow_up(hub: &Hub<'_>, how: &AcceptOptions, printer: &Printer) -> Result<(), Failure> {
    let Some(wanted) = how.wait else { return Ok(()) };
    let word = format!("{wanted:?}").to_lowercase();
    let result = wait::until(
        &format!("cluster {} to be {word}", how.cluster),
        how.timeout,
        Duration::from_millis(500),
        |_| {},
        async || {
            let seen = hub.cluster().await;
            wait::tolerate(seen.map(|seen| match seen.as_ref().map(stage) {
                Some(now) if now >= wanted => Poll::Ready(()),
                Some(now) => Poll::Pending(format!("it is {}", format!("{now:?}").to_lowercase())),
                None => Poll::Pending("it is gone".to_owned()),
            }))
        },
    )
    .await;
    match result {
        Ok(()) => {
            printer.note(format!("{} is {word}", how.cluster));
            Ok(())
        }
        Err(error) if error.cause() == Cause::TimedOut => Err(Failure::with_code(
            error.hint("see whether the agent runs: kubectl klusterlet status on the spoke"),
            TIMED_OUT,
        )),
        Err(error) => Err(Failure::of_cause(error)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::csr::{new_request, request_object};

    const ACCOUNT: &str = "system:serviceaccount:open-cluster-management:agent-registration-bootstrap";

    fn request(name: &str, agent: &str, requester: &str) -> CertificateSigningRequest {
        let pair = new_request("c", agent).unwrap();
        let mut object = request_object("c", &pair.request, None);
        object.metadata.name = Some(name.into());
        object.spec.username = Some(requester.into());
        object
    }

    #[test]
    fn only_registration_accounts_and_named_users_register() {
        let group = [BOOTSTRAP_GROUP.to_owned()];
        let named = ["me".to_owned()];
        for (user, groups, expected) in [
            (ACCOUNT, &[][..], true),
            ("system:serviceaccount:anywhere:agent-registration-bootstrap", &[], true),
            ("evil:agent-registration-bootstrap", &[], false),
            ("system:bootstrap:abcdef", &[], true),
            ("anybody", &group, true),
            ("me", &[], true),
            ("you", &[], false),
        ] {
            assert_eq!(may_register(user, groups, &named), expected, "{user}");
        }
    }

    #[test]
    fn the_right_requests_are_chosen_and_the_others_are_explained() {
        let renewal = request("c-3", "a", &agent_user("c", "a"));
        let mut denied = request("c-4", "a", ACCOUNT);
        denied.status =
            Some(serde_json::from_value(json!({"conditions": [{"type": "Denied", "status": "True"}]})).unwrap());
        let mut foreign = request("c-5", "a", ACCOUNT);
        foreign.spec.signer_name = "example.com/other".into();
        let all = [
            request("c-1", "a", ACCOUNT),
            request("c-2", "a", "somebody"),
            renewal,
            denied,
            foreign,
        ];
        let (good, others) = candidates(&all, "c", &[]);
        assert_eq!(
            good.iter().map(|candidate| candidate.name.as_str()).collect::<Vec<_>>(),
            ["c-1"]
        );
        assert_eq!(others.len(), 3, "{others:?}");
        assert!(others[0].contains("--requester somebody"), "{others:?}");
        let (good, _) = candidates(&all, "c", &["somebody".into()]);
        assert_eq!(good.len(), 2);
        assert!(one_identity(&good, "c").is_err(), "two requesters");
        let (good, _) = candidates(&all, "other", &[]);
        assert!(good.is_empty());
    }

    #[test]
    fn two_identities_are_refused_and_one_that_asked_twice_is_not() {
        let all = [request("c-1", "a", ACCOUNT), request("c-2", "b", ACCOUNT)];
        let (good, _) = candidates(&all, "c", &[]);
        let error = one_identity(&good, "c").unwrap_err();
        assert!(
            error.to_string().contains("c-1 for agent a") && error.to_string().contains("c-2 for agent b"),
            "{error}"
        );
        let all = [request("c-1", "a", ACCOUNT), request("c-2", "a", ACCOUNT)];
        let (good, _) = candidates(&all, "c", &[]);
        assert!(one_identity(&good, "c").is_ok());
    }
}
