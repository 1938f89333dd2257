//! `/healthz`, `/readyz` and `/metrics` of a running agent.

use std::{
    convert::Infallible,
    net::SocketAddr,
    sync::{Arc, OnceLock, atomic::Ordering},
};

use http::{Method, Request, Response, StatusCode};
use http_body_util::Full;
use hyper::{body::Bytes, server::conn::http1, service::service_fn};
use hyper_util::rt::{TokioIo, TokioTimer};
use shared::Context as _;
use tokio::net::TcpListener;

use crate::{
    agent::{Context, state::Snapshot},
    registration::Stage,
};

/// Longest time to send a request's head.
const HEADER_TIMEOUT: std::time::Duration = std::time::Duration::from_secs(5);

/// Takes the address.
///
/// # Errors
/// It cannot be taken.
pub async fn bind(address: SocketAddr) -> shared::Result<TcpListener> {
    TcpListener::bind(address)
        .await
        .with_context(|| format!("cannot listen on {address}"))
}

/// The agent, once the spoke has answered. Before that the process lives, and is not ready.
pub type Slot = Arc<OnceLock<Arc<Context>>>;

/// Answers for ever.
pub async fn serve(listener: TcpListener, slot: Slot) {
    loop {
        let Ok((stream, _)) = listener.accept().await else {
            // Out of descriptors, for example: it passes.
            tokio::time::sleep(std::time::Duration::from_millis(100)).await;
            continue;
        };
        let slot = Arc::clone(&slot);
        tokio::spawn(async move {
            let service = service_fn(|request: Request<hyper::body::Incoming>| {
                let answer = answer(slot.get().map(Arc::as_ref), request.method(), request.uri().path());
                async move { Ok::<_, Infallible>(answer) }
            });
            let _ = http1::Builder::new()
                .timer(TokioTimer::new())
                .header_read_timeout(HEADER_TIMEOUT)
                .serve_connection(TokioIo::new(stream), service)
                .await;
        });
    }
}

fn answer(context: Option<&Context>, method: &Method, path: &str) -> Response<Full<Bytes>> {
    let (status, kind, body) = if !matches!(*method, Method::GET | Method::HEAD) {
        (StatusCode::METHOD_NOT_ALLOWED, "text/plain", "only GET\n".to_owned())
    } else {
        match path {
            // It answers, so it lives. What is wrong outside is no reason to kill it: it keeps trying.
            "/healthz" | "/livez" => (StatusCode::OK, "text/plain", "ok\n".to_owned()),
            "/readyz" => match ready(context) {
                Ok(()) => (StatusCode::OK, "text/plain", "ok\n".to_owned()),
                Err(why) => (StatusCode::SERVICE_UNAVAILABLE, "text/plain", format!("{why}\n")),
            },
            "/metrics" => (
                StatusCode::OK,
                "text/plain; version=0.0.4",
                context.map(metrics).unwrap_or_default(),
            ),
            _ => (
                StatusCode::NOT_FOUND,
                "text/plain",
                "there are /healthz, /readyz and /metrics\n".to_owned(),
            ),
        }
    };
    let mut response = Response::new(Full::new(Bytes::from(body)));
    *response.status_mut() = status;
    response
        .headers_mut()
        .insert(http::header::CONTENT_TYPE, http::HeaderValue::from_static(kind));
    response
}

fn ready(context: Option<&Context>) -> Result<(), String> {
    let state = &context.ok_or("waiting for the spoke's API server")?.state;
    readiness(&state.snapshot.borrow(), *state.is_leader.borrow())
}

/// Ready: has joined, and nothing keeps it from its work.
///
/// # Errors
/// What is missing.
pub fn readiness(snapshot: &Snapshot, is_leader: bool) -> Result<(), String> {
    if let Some(trouble) = snapshot.trouble.as_ref().or(snapshot.cluster_trouble.as_ref()) {
        return Err(trouble.text.clone());
    }
    if !is_leader {
        return Err("another agent holds the spoke's Lease".to_owned());
    }
    match (snapshot.stage, &snapshot.request) {
        (Some(Stage::Joined | Stage::Available), _) => Ok(()),
        (_, Some(request)) if !request.is_approved => Err(format!(
            "the certificate request {} waits for its approval on the hub",
            request.name
        )),
        _ => Err("waiting for the hub's acceptance".to_owned()),
    }
}

fn metrics(context: &Context) -> String {
    let (state, metrics) = (&context.state, &context.state.metrics);
    let snapshot = state.snapshot.borrow().clone();
    let mut text = String::new();
    let mut metric = |name: &str, kind: &str, help: &str, labels: &str, value: String| {
        text.push_str(&format!(
            "# HELP {name} {help}\n# TYPE {name} {kind}\n{name}{labels} {value}\n"
        ));
    };
    let count = |counter: &std::sync::atomic::AtomicU64| counter.load(Ordering::Relaxed).to_string();
    let build = format!("{{version=\"{}\"}}", env!("CARGO_PKG_VERSION"));
    metric(
        "klusterlet_build_info",
        "gauge",
        "The agent's version.",
        &build,
        "1".into(),
    );
    metric(
        "klusterlet_lease_renewals_total",
        "counter",
        "Renewals of the lease on the hub.",
        "",
        count(&metrics.lease_renewals),
    );
    metric(
        "klusterlet_lease_renewal_failures_total",
        "counter",
        "Renewals of the lease that failed.",
        "",
        count(&metrics.lease_failures),
    );
    metric(
        "klusterlet_status_patches_total",
        "counter",
        "Writes of the ManagedCluster's status.",
        "",
        count(&metrics.status_patches),
    );
    metric(
        "klusterlet_certificate_requests_total",
        "counter",
        "Certificate requests that were created.",
        "",
        count(&metrics.requests_created),
    );
    metric(
        "klusterlet_certificates_issued_total",
        "counter",
        "Certificates that were stored.",
        "",
        count(&metrics.certificates_issued),
    );
    let calls = state.hub.borrow().as_ref().map_or(0, |hub| hub.cluster.calls());
    metric(
        "klusterlet_hub_requests",
        "gauge",
        "Requests sent with the current certificate.",
        "",
        calls.to_string(),
    );
    if let Some(validity) = snapshot.certificate {
        metric(
            "klusterlet_client_certificate_expiration_timestamp_seconds",
            "gauge",
            "When the certificate for the hub expires.",
            "",
            validity.not_after.as_second().to_string(),
        );
    }
    if let Some(renewed) = *state.renewed.borrow() {
        metric(
            "klusterlet_lease_age_seconds",
            "gauge",
            "Time since the lease was renewed.",
            "",
            format!("{:.3}", renewed.elapsed().as_secs_f64()),
        );
    }
    let skew = state.skew().as_secs_f64();
    metric(
        "klusterlet_hub_clock_skew_seconds",
        "gauge",
        "How far the hub's clock is ahead.",
        "",
        format!("{skew:.3}"),
    );
    let stage = snapshot.stage.map_or(0, |stage| stage as u8 + 1);
    metric(
        "klusterlet_stage",
        "gauge",
        "0 unknown, 1 registered, 2 accepted, 3 joined, 4 available.",
        "",
        stage.to_string(),
    );
    let leads = u8::from(*state.is_leader.borrow());
    metric(
        "klusterlet_leader",
        "gauge",
        "Whether this agent holds the spoke's Lease.",
        "",
        leads.to_string(),
    );
    if let Some(process) = Process::of_self() {
        metric(
            "process_resident_memory_bytes",
            "gauge",
            "Resident memory.",
            "",
            process.resident.to_string(),
        );
        metric(
            "process_cpu_seconds_total",
            "counter",
            "CPU time.",
            "",
            format!("{:.2}", process.cpu),
        );
    }
    text
}

/// What Linux tells about this process.
struct Process {
    resident: u64,
    cpu: f64,
}

impl Process {
    fn of_self() -> Option<Self> {
        let status = std::fs::read_to_string("/proc/self/status").ok()?;
        let resident = status.lines().find_map(|line| line.strip_prefix("VmRSS:"))?;
        let kilobytes: u64 = resident.split_whitespace().next()?.parse().ok()?;
        let stat = std::fs::read_to_string("/proc/self/stat").ok()?;
        let fields: Vec<&str> = stat.rsplit_once(')')?.1.split_whitespace().collect();
        let ticks: u64 = fields.get(11)?.parse::<u64>().ok()? + fields.get(12)?.parse::<u64>().ok()?;
        Some(Self {
            resident: kilobytes * 1024,
            // Linux counts in hundredths of a second wherever this runs.
            cpu: ticks as f64 / 100.0,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::agent::state::{OpenRequest, Trouble, TroubleKind};

    #[test]
    fn before_the_spoke_answers_the_process_lives_and_is_not_ready() {
        for (path, status) in [
            ("/healthz", 200),
            ("/livez", 200),
            ("/readyz", 503),
            ("/metrics", 200),
            ("/", 404),
        ] {
            assert_eq!(answer(None, &Method::GET, path).status().as_u16(), status, "{path}");
        }
        assert_eq!(answer(None, &Method::POST, "/healthz").status().as_u16(), 405);
    }

    #[test]
    fn readiness_says_what_is_missing() {
        let mut snapshot = Snapshot::default();
        assert!(readiness(&snapshot, true).unwrap_err().contains("acceptance"));
        snapshot.request = Some(OpenRequest {
            name: "c-abcde".into(),
            is_approved: false,
        });
        assert!(readiness(&snapshot, true).unwrap_err().contains("c-abcde"));
        snapshot.stage = Some(Stage::Joined);
        assert_eq!(
            readiness(&snapshot, true),
            Ok(()),
            "a renewal waits for its approval, and all else works"
        );
        assert!(readiness(&snapshot, false).is_err());
        snapshot.cluster_trouble = Some(Trouble {
            kind: TroubleKind::ClusterDenied,
            text: "denied".into(),
        });
        assert_eq!(readiness(&snapshot, true), Err("denied".into()));
    }
}
