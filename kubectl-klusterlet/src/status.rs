//! `status`: identity, certificate, lease and conditions, as spoke and hub show them.

use std::time::Duration;

use jiff::Timestamp;
use serde::Serialize;
use shared::{
    Printer, Result,
    kube_client::Cluster,
    output::{self, OutputFormat},
    table::Table,
    wait::short,
};

use crate::{
    agent::{
        lock::{DURATION, is_known_dead},
        trouble_at,
    },
    certificate::Chain,
    connection::HubAccess,
    csr::{RequestState, fingerprint, renew_at, request_state},
    hub::Hub,
    hub_kubeconfig::endpoint_of_text,
    names::{AGENT_LEASE, key, pending_secret},
    options::FailoverAgentOptions,
    outcome::Failure,
    pending,
    registration::{Stage, is_denied, stage},
    run::pod_namespace,
    spoke::{Spoke, StoredSecret, absent},
    timing::{lease_period, skew_warning},
};

/// All that is shown. Readers of the JSON must ignore fields that they do not know.
#[derive(Clone, Debug, Default, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Status {
    /// `klusterlet/v1`.
    pub api_version: String,
    /// `Status`.
    pub kind: String,
    /// Address of the spoke.
    pub spoke: String,
    /// Namespace of the agent.
    pub namespace: String,
    /// Name on the hub.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cluster: Option<String>,
    /// Name of the agent.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub agent: Option<String>,
    /// `notJoined`, `registered`, `accepted`, `joined`, `available`, `denied`, `deleted` or `unknown`.
    pub state: String,
    /// The hubs; this version has at most one.
    pub hubs: Vec<HubStatus>,
    /// The certificate.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub certificate: Option<CertificateStatus>,
    /// The open request.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub request: Option<RequestStatus>,
    /// The process that holds the spoke.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub running_agent: Option<RunningAgent>,
    /// The lease on the hub.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub lease: Option<LeaseStatus>,
    /// Conditions of the ManagedCluster.
    pub conditions: Vec<ConditionStatus>,
    /// What is wrong, each with what to do.
    pub troubles: Vec<String>,
}

/// A hub.
#[derive(Clone, Debug, Default, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct HubStatus {
    /// Its address.
    pub server: String,
    /// Whether it is the one that the agent reports to.
    pub active: bool,
    /// Whether it answers.
    pub reachable: bool,
    /// How many seconds its clock is ahead of this machine's, to a second.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub clock_skew_seconds: Option<i64>,
}

/// A certificate.
#[derive(Clone, Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct CertificateStatus {
    /// Begin.
    pub not_before: Timestamp,
    /// End.
    pub not_after: Timestamp,
    /// When the next one is asked for.
    pub renewal: Timestamp,
    /// Whether it has ended.
    pub expired: bool,
}

/// A request.
#[derive(Clone, Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct RequestStatus {
    /// Its name on the hub; empty before the hub answered.
    pub name: String,
    /// `pending`, `approved`, `issued`, `denied`, `failed`, `gone` or `unknown`.
    pub state: String,
}

/// A running agent.
#[derive(Clone, Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct RunningAgent {
    /// Host, process and a random part.
    pub holder: String,
    /// Seconds since it said so.
    pub age_seconds: i64,
    /// Whether that is not too long ago.
    pub alive: bool,
}

/// The lease on the hub.
#[derive(Clone, Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct LeaseStatus {
    /// Seconds since it was renewed.
    pub age_seconds: i64,
    /// How often it is to be renewed.
    pub period_seconds: u64,
}

/// A condition.
#[derive(Clone, Debug, Serialize)]
pub struct ConditionStatus {
    /// Type.
    #[serde(rename = "type")]
    pub kind: String,
    /// `True`, `False` or `Unknown`.
    pub status: String,
    /// CamelCase.
    pub reason: String,
    /// For people.
    pub message: String,
}

/// Looks and shows.
///
/// # Errors
/// The spoke does not answer. That the hub does not is shown.
pub async fn status(
    options: &FailoverAgentOptions,
    spoke: Cluster,
    format: OutputFormat,
    printer: &Printer,
) -> Result<(), Failure> {
    let spoke = Spoke {
        namespace: options.namespace(pod_namespace().as_deref()),
        cluster: spoke,
    };
    let found = look(options, &spoke, Timestamp::now())
        .await
        .map_err(Failure::of_cause)?;
    if format.is_for_programs() {
        output::print(printer, format, &found, |_| Table::default())?;
    } else {
        printer.data(&text(&found, Timestamp::now()))?;
    }
    Ok(())
}

async fn look(options: &FailoverAgentOptions, spoke: &Spoke, now: Timestamp) -> Result<Status> {
    let pending_name = pending_secret(&options.hub_kubeconfig_secret);
    let leases = spoke.leases();
    let (stored, open, lease) = tokio::join!(
        spoke.secret(&options.hub_kubeconfig_secret),
        spoke.secret(&pending_name),
        spoke.cluster.call("read the agent's Lease", leases.get(AGENT_LEASE)),
    );
    let (stored, open, lease) = (stored?.unwrap_or_default(), open?, absent(lease)?);
    let mut status = Status {
        api_version: "klusterlet/v1".into(),
        kind: "Status".into(),
        spoke: spoke.cluster.server.clone(),
        namespace: spoke.namespace.clone(),
        state: "notJoined".into(),
        ..Status::default()
    };
    if let Some(spec) = lease.and_then(|lease| lease.spec)
        && let Some(holder) = spec.holder_identity.filter(|holder| !holder.is_empty())
    {
        let age = spec
            .renew_time
            .map_or(i64::MAX, |time| now.duration_since(time.0).as_secs());
        status.running_agent = Some(RunningAgent {
            age_seconds: age,
            alive: age.unsigned_abs() < DURATION.as_secs() && !is_known_dead(&holder),
            holder,
        });
    }
    let chain = stored
        .data
        .get(key::CERTIFICATE)
        .and_then(|pem| Chain::parse(pem).ok().map(|chain| (chain, fingerprint(pem))));
    let text = |name: &str| {
        stored
            .data
            .get(name)
            .map(|bytes| String::from_utf8_lossy(bytes).into_owned())
    };
    let open_names = open.as_ref().and_then(|open| pending::names(&open.data)).unzip();
    let certified = chain
        .as_ref()
        .and_then(|(chain, _)| chain.names())
        .map(|(cluster, agent)| (cluster.to_owned(), agent.to_owned()))
        .unzip();
    status.cluster = certified.0.or_else(|| text(key::CLUSTER_NAME)).or(open_names.0);
    status.agent = certified.1.or_else(|| text(key::AGENT_NAME)).or(open_names.1);
    if let Some((chain, fingerprint)) = &chain {
        let validity = chain.validity();
        let expired = now >= validity.not_after;
        if expired {
            status.troubles.push(
                "the certificate has expired: the agent needs a bootstrap kubeconfig that the hub accepts".into(),
            );
        }
        status.certificate = Some(CertificateStatus {
            not_before: validity.not_before,
            not_after: validity.not_after,
            renewal: renew_at(validity, fingerprint),
            expired,
        });
    }
    if status.certificate.is_some() && !status.running_agent.as_ref().is_some_and(|agent| agent.alive) {
        status
            .troubles
            .push("no agent runs for this spoke: start kubectl klusterlet run".into());
    }
    if let Some(open) = &open {
        status.request = Some(RequestStatus {
            name: pending::request_name(&open.data).unwrap_or_default(),
            state: "unknown".into(),
        });
        status.state = "registered".into();
    }
    ask_hub(&mut status, &stored, now).await;
    Ok(status)
}

async fn ask_hub(status: &mut Status, stored: &StoredSecret, now: Timestamp) {
    let get = |name: &str| stored.data.get(name).map(Vec::as_slice).unwrap_or_default();
    let Ok(endpoint) = endpoint_of_text(get(key::KUBECONFIG)) else {
        if let Some(request) = &status.request {
            status.troubles.push(format!(
                "waiting for the hub's administrator: kubectl klusterlet --context HUB accept {} (request {})",
                status.cluster.as_deref().unwrap_or_default(),
                request.name
            ));
        }
        return;
    };
    let mut hub_status = HubStatus {
        server: endpoint.server.clone(),
        active: true,
        reachable: false,
        clock_skew_seconds: None,
    };
    let name = status.cluster.clone().unwrap_or_default();
    match HubAccess::certificate(&endpoint, get(key::CERTIFICATE), get(key::KEY)) {
        Err(error) => status.troubles.push(error.to_string()),
        Ok(access) => {
            let hub = Hub::new(&access, &name);
            let request = status
                .request
                .as_ref()
                .map(|request| request.name.clone())
                .filter(|name| !name.is_empty());
            let (cluster, lease, open, skew) = tokio::join!(
                hub.cluster(),
                hub.lease(),
                async {
                    match &request {
                        Some(request) => Some(hub.request(request).await),
                        None => None,
                    }
                },
                access.skew()
            );
            hub_status.clock_skew_seconds = skew.map(|skew| skew.as_secs());
            status.troubles.extend(skew_warning(skew));
            hub_status.reachable = !cluster.as_ref().is_err_and(shared::Error::is_retryable);
            if let (Some(Ok(open)), Some(shown)) = (open, &mut status.request) {
                shown.state = match open.as_ref().map(request_state) {
                    None => "gone",
                    Some(RequestState::Pending) => "pending",
                    Some(RequestState::Approved) => "approved",
                    Some(RequestState::Issued(_)) => "issued",
                    Some(RequestState::Denied(_)) => "denied",
                    Some(RequestState::Failed(_)) => "failed",
                }
                .to_owned();
            }
            match cluster {
                Err(error) => {
                    status.state = "unknown".into();
                    let text = if error.cause() == shared::error::Cause::Forbidden {
                        format!(
                            "the hub lets this agent not even read ManagedCluster {name}: it is not accepted yet, or was deleted"
                        )
                    } else {
                        trouble_at(&error, &endpoint).text
                    };
                    status.troubles.push(text);
                }
                Ok(None) => {
                    status.state = "deleted".into();
                    status.troubles.push(format!(
                        "ManagedCluster {name} is not on the hub: run join to register again"
                    ));
                }
                Ok(Some(cluster)) => {
                    status.state = if is_denied(&cluster) {
                        "denied".to_owned()
                    } else {
                        format!("{:?}", stage(&cluster)).to_lowercase()
                    };
                    if status.state == "denied" || stage(&cluster) == Stage::Registered {
                        status.troubles.push(format!(
                            "the hub does not accept it: kubectl klusterlet --context HUB accept {name}"
                        ));
                    }
                    status.conditions = cluster
                        .status
                        .conditions
                        .iter()
                        .map(|condition| ConditionStatus {
                            kind: condition.type_.clone(),
                            status: condition.status.clone(),
                            reason: condition.reason.clone(),
                            message: condition.message.clone(),
                        })
                        .collect();
                    if let Some(time) = lease.ok().and_then(|lease| lease.spec).and_then(|spec| spec.renew_time) {
                        status.lease = Some(LeaseStatus {
                            age_seconds: now.duration_since(time.0).as_secs(),
                            period_seconds: lease_period(cluster.spec.lease_duration_seconds).as_secs(),
                        });
                    }
                }
            }
        }
    }
    status.hubs.push(hub_status);
}

/// For people.
fn text(status: &Status, now: Timestamp) -> String {
    let mut table = Table::new(["", ""]);
    let mut row = |name: &str, value: String| {
        table.row([name.to_owned(), value]);
    };
    let none = || "none".to_owned();
    let until = |at: Timestamp| {
        let left = Duration::try_from(at.duration_since(now)).ok();
        left.map_or_else(|| "past".to_owned(), |left| format!("in {}", short(left)))
    };
    row("State", status.state.clone());
    row("Spoke", format!("{}, namespace {}", status.spoke, status.namespace));
    row("Cluster", status.cluster.clone().unwrap_or_else(none));
    row("Agent", status.agent.clone().unwrap_or_else(none));
    for hub in &status.hubs {
        let reach = if hub.reachable {
            "active"
        } else {
            "active, not reachable"
        };
        row("Hub", format!("{} ({reach})", hub.server));
    }
    if let Some(certificate) = &status.certificate {
        row(
            "Certificate",
            format!(
                "until {} ({}), renewed {}",
                certificate.not_after,
                until(certificate.not_after),
                until(certificate.renewal)
            ),
        );
    }
    if let Some(request) = &status.request {
        row("Request", format!("{} ({})", request.name, request.state));
    }
    row(
        "Process",
        status.running_agent.as_ref().map_or_else(none, |agent| {
            format!(
                "{}, {} s ago{}",
                agent.holder,
                agent.age_seconds,
                if agent.alive { "" } else { ": not running" }
            )
        }),
    );
    if let Some(lease) = &status.lease {
        row(
            "Lease",
            format!("{} s old, renewed every {} s", lease.age_seconds, lease.period_seconds),
        );
    }
    let mut text: String = table
        .render(None)
        .lines()
        .skip(1)
        .map(|line| format!("{}\n", line.trim_end()))
        .collect();
    if !status.conditions.is_empty() {
        let mut table = Table::new(["condition", "status", "reason"]);
        for condition in &status.conditions {
            table.row([
                condition.kind.clone(),
                condition.status.clone(),
                condition.reason.clone(),
            ]);
        }
        text.push('\n');
        text.push_str(&table.render(None));
    }
    for trouble in &status.troubles {
        text.push_str(&format!("\n! {trouble}"));
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn people_see_what_matters() {
        let now: Timestamp = "2026-01-01T00:00:00Z".parse().unwrap();
        let at = |seconds: i64| now.checked_add(jiff::SignedDuration::from_secs(seconds)).unwrap();
        let status = Status {
            state: "available".into(),
            spoke: "https://spoke:6443".into(),
            namespace: "agents".into(),
            cluster: Some("edge-7".into()),
            agent: Some("bcdfg".into()),
            hubs: vec![HubStatus {
                server: "https://hub:6443".into(),
                active: true,
                reachable: true,
                clock_skew_seconds: Some(0),
            }],
            certificate: Some(CertificateStatus {
                not_before: now,
                not_after: at(3600),
                renewal: at(2800),
                expired: false,
            }),
            running_agent: Some(RunningAgent {
                holder: "host_1_abc".into(),
                age_seconds: 3,
                alive: true,
            }),
            lease: Some(LeaseStatus {
                age_seconds: 20,
                period_seconds: 60,
            }),
            conditions: vec![ConditionStatus {
                kind: "ManagedClusterJoined".into(),
                status: "True".into(),
                reason: "ManagedClusterJoined".into(),
                message: String::new(),
            }],
            troubles: vec!["something".into()],
            ..Status::default()
        };
        insta::assert_snapshot!(text(&status, now));
        insta::assert_snapshot!(text(
            &Status {
                state: "notJoined".into(),
                ..Status::default()
            },
            now
        ));
    }
}
