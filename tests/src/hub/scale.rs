//! Much of it: a spoke with many claims and nodes, and many agents on one hub.

use std::{
    collections::BTreeMap,
    fs,
    process::{Command, Stdio},
    thread,
    time::{Duration, Instant},
};

use serde_json::{Value, json};

use super::{
    AuditEvent,
    bench::{Bench, DEADLINE, Running, Usage, Which, between, figure},
};
use crate::{
    bench::figure::{Figure, Target, Unit},
    cache::say,
    error::{Context, Error, Result},
};

/// Claims and nodes of the large spoke.
const CLAIMS: usize = 10_000;
const NODES: usize = 1_000;
/// Writers at a time: each `kubectl` limits itself.
const WRITERS: usize = 8;
/// A lease of 60 s is renewed at least this often; what comes later is a renewal that was missed.
const LONGEST_BETWEEN_RENEWALS: f64 = 62.0;

impl Bench {
    /// An agent joins from a spoke with many claims and nodes.
    pub(super) fn large_spoke(&self) -> Result<Vec<Figure>> {
        say(&format!("making {CLAIMS} claims and {NODES} nodes"));
        let claims = (0..CLAIMS).map(|number| {
            json!({"apiVersion": "cluster.open-cluster-management.io/v1alpha1", "kind": "ClusterClaim",
                "metadata": {"name": format!("claim-{number:05}.example.com")}, "spec": {"value": format!("value of claim {number}")}})
        });
        let nodes = (0..NODES).map(|number| {
            let amounts = json!({"cpu": "8", "memory": "32Gi", "pods": "110", "ephemeral-storage": "100Gi"});
            json!({"apiVersion": "v1", "kind": "Node", "metadata": {"name": format!("node-{number:04}")},
                "status": {"capacity": amounts, "allocatable": amounts}})
        });
        let all: Vec<_> = claims.chain(nodes).collect();
        let begin = Instant::now();
        let mut writers = Vec::new();
        for (number, items) in all.chunks(all.len().div_ceil(WRITERS)).enumerate() {
            let file = self.spoke.directory().join(format!("many-{number}.json"));
            let list = json!({"apiVersion": "v1", "kind": "List", "items": items});
            fs::write(&file, list.to_string()).what(|| format!("write {}", file.display()))?;
            let mut kubectl = Command::new(self.parts.built.kubernetes.join("kubectl"));
            kubectl
                .arg("--kubeconfig")
                .arg(self.spoke.admin())
                .args(["create", "--validate=false", "-f"])
                .arg(&file);
            writers.push(
                kubectl
                    .stdout(Stdio::null())
                    .spawn()
                    .what(|| "start kubectl".to_owned())?,
            );
        }
        for mut writer in writers {
            let status = writer.wait().what(|| "wait for kubectl".to_owned())?;
            if !status.success() {
                return Err(Error::new("make claims and nodes", status));
            }
        }
        say(&format!("made in {:.0} s", begin.elapsed().as_secs_f64()));
        let agent = self.start(Which::Ours, "large")?;
        self.accept(&agent)?;
        // Nothing follows: all was in the first report.
        thread::sleep(Duration::from_secs(30));
        let usage = Usage::of(&agent)?;
        let user = "system:open-cluster-management:large:";
        let patches = self
            .hub
            .requests(user)?
            .into_iter()
            .filter(|event| event.resource == "managedclusters/status" && event.code == 200)
            .count();
        let status = self.hub.get(&["managedcluster", "large"])?["status"].clone();
        let sent = status["clusterClaims"].as_array().map_or(0, Vec::len);
        let cores = status["capacity"]["cpu"].as_str().unwrap_or_default().to_owned();
        if sent != 20 || cores != format!("{}k", NODES * 8 / 1000) {
            return Err(Error::new(
                "join from a large spoke",
                format!("the hub shows {sent} claims and {cores} cores"),
            ));
        }
        let note = format!("{CLAIMS} claims, {NODES} nodes");
        Ok(vec![
            figure(
                "memory, peak, large spoke",
                usage.peak,
                Unit::Megabytes,
                Target::AtMost(60.0),
                note.clone(),
            ),
            figure(
                "status patches, large spoke",
                patches as f64,
                Unit::Count,
                Target::AtMost(1.0),
                note,
            ),
        ])
    }

    /// Many agents, each of its own cluster, for a while.
    pub(super) fn fleet(&self, size: usize, time: Duration) -> Result<Vec<Figure>> {
        let names: Vec<_> = (1..=size).map(|number| format!("fleet-{number}")).collect();
        say(&format!("starting {size} agents"));
        let mut agents: Vec<Running> = Vec::new();
        for name in &names {
            agents.push(self.start(Which::Ours, name)?);
        }
        let requests = self.hub.eventually("all certificate requests", DEADLINE * 5, |hub| {
            let list = hub.must(&["get", "csr", "-o", "jsonpath={.items[*].metadata.name}"])?;
            let of_fleet: Vec<_> = list
                .split_whitespace()
                .filter(|name| name.starts_with("fleet-"))
                .map(str::to_owned)
                .collect();
            Ok((of_fleet.len() >= size).then_some(of_fleet))
        })?;
        let words = |first: &[&str], names: &[String], last: &[&str]| {
            let names = names.iter().map(String::as_str);
            first
                .iter()
                .copied()
                .chain(names)
                .chain(last.iter().copied())
                .map(str::to_owned)
                .collect::<Vec<_>>()
        };
        let accept = json!({"spec": {"hubAcceptsClient": true}}).to_string();
        for some in requests.chunks(50) {
            self.kubectl(&words(&["certificate", "approve"], some, &[]))?;
        }
        for some in names.chunks(50) {
            self.kubectl(&words(
                &["patch", "managedcluster"],
                some,
                &["--type=merge", "-p", &accept],
            ))?;
        }
        let available = || -> Result<usize> {
            let list = self.hub.must(&[
                "get",
                "managedclusters",
                "-o",
                r#"jsonpath={range .items[*]}{.metadata.name} {.status.conditions[?(@.type=="ManagedClusterConditionAvailable")].status}{"\n"}{end}"#,
            ])?;
            Ok(list
                .lines()
                .filter(|line| line.starts_with("fleet-") && line.ends_with(" True"))
                .count())
        };
        self.hub.eventually("all clusters to be available", DEADLINE * 5, |_| {
            Ok((available()? == size).then_some(()))
        })?;
        say(&format!("all have joined; watching for {} s", time.as_secs()));
        let from = self.hub.requests("")?.len();
        thread::sleep(time);
        let events = self.hub.requests("")?;
        let lives = agents
            .iter_mut()
            .filter_map(|agent| agent.child.try_wait().ok())
            .filter(Option::is_none)
            .count();
        let memory: f64 = agents
            .iter()
            .filter_map(|agent| Usage::of(agent).ok())
            .map(|usage| usage.resident)
            .sum();
        let (missed, longest, failed) = renewals(events.get(from..).unwrap_or_default(), &names);
        let asked = requests_of(&self.hub.get(&["csr"])?, &names);
        let still = available()?;
        let minutes = format!(
            "{size} agents, {} s; longest {longest:.1} s; {failed} answers that were no success",
            time.as_secs()
        );
        Ok(vec![
            figure(
                "renewals missed, many agents",
                missed as f64,
                Unit::Count,
                Target::AtMost(0.0),
                minutes,
            ),
            figure(
                "agents with exactly one certificate request",
                asked.values().filter(|count| **count == 1).count() as f64,
                Unit::Count,
                Target::AtLeast(size as f64),
                format!("{} requests in all", asked.values().sum::<usize>()),
            ),
            figure(
                "agents that live and are available at the end",
                lives.min(still) as f64,
                Unit::Count,
                Target::AtLeast(size as f64),
                format!("{memory:.0} MB resident in all"),
            ),
        ])
    }

    fn kubectl(&self, args: &[String]) -> Result<()> {
        let args: Vec<_> = args.iter().map(String::as_str).collect();
        self.hub.must(&args).map(|_| ())
    }
}

/// Of what was asked within the time: renewals that came later than they should have, the longest time between two of one
/// cluster, and those that failed. A cluster without two renewals has missed one.
fn renewals(events: &[AuditEvent], names: &[String]) -> (usize, f64, usize) {
    let mut times: BTreeMap<&str, Vec<&str>> = names.iter().map(|name| (name.as_str(), Vec::new())).collect();
    let mut failed = 0;
    for event in events
        .iter()
        .filter(|event| event.resource == "leases" && event.verb == "update")
    {
        let cluster = event
            .user
            .strip_prefix("system:open-cluster-management:")
            .and_then(|rest| rest.split(':').next())
            .unwrap_or_default();
        if let Some(times) = times.get_mut(cluster) {
            if event.code == 200 {
                times.push(&event.time);
            } else {
                failed += 1;
            }
        }
    }
    let (mut missed, mut longest) = (0, 0f64);
    for times in times.values() {
        missed += usize::from(times.len() < 2);
        for pair in times.windows(2) {
            let gap = between(pair[0], pair[1]).unwrap_or(f64::MAX);
            longest = longest.max(gap);
            missed += usize::from(gap > LONGEST_BETWEEN_RENEWALS);
        }
    }
    (missed, longest, failed)
}

/// How many certificate requests the hub has of each cluster; it keeps those that were decided for an hour.
fn requests_of(list: &Value, names: &[String]) -> BTreeMap<String, usize> {
    let mut asked: BTreeMap<String, usize> = BTreeMap::new();
    for request in list["items"].as_array().into_iter().flatten() {
        let label = &request["metadata"]["labels"]["open-cluster-management.io/cluster-name"];
        if let Some(name) = names.iter().find(|name| label == name.as_str()) {
            *asked.entry(name.clone()).or_default() += 1;
        }
    }
    asked
}

#[cfg(test)]
mod tests {
    use super::*;

    fn event(user: &str, verb: &str, resource: &str, name: &str, code: u64, second: u32) -> AuditEvent {
        AuditEvent {
            user: user.into(),
            agent: String::new(),
            verb: verb.into(),
            resource: resource.into(),
            name: name.into(),
            code,
            time: format!("2026-01-01T00:{:02}:{:02}.000000Z", second / 60, second % 60),
        }
    }

    #[test]
    fn late_missing_and_failed_renewals_are_counted() {
        let names = ["a".to_owned(), "b".to_owned()];
        let renew = |cluster: &str, code, second| {
            let user = format!("system:open-cluster-management:{cluster}:x");
            event(&user, "update", "leases", "managed-cluster-lease", code, second)
        };
        let good = [
            renew("a", 200, 0),
            renew("b", 200, 1),
            renew("a", 200, 58),
            renew("b", 200, 60),
        ];
        assert_eq!(renewals(&good, &names), (0, 59.0, 0));
        let late = [good.as_slice(), &[renew("a", 409, 59), renew("a", 200, 130)]].concat();
        assert_eq!(renewals(&late, &names), (1, 72.0, 1));
        assert_eq!(renewals(&good[..3], &names).0, 1, "b has only one");
        assert_eq!(renewals(&[], &names).0, 2);
    }

    #[test]
    fn requests_belong_to_clusters() {
        let names = ["a-1".to_owned(), "b".to_owned()];
        let request =
            |cluster: &str| json!({"metadata": {"labels": {"open-cluster-management.io/cluster-name": cluster}}});
        let list = json!({"items": [request("a-1"), request("a-1"), request("other"), json!({"metadata": {}})]});
        assert_eq!(requests_of(&list, &names), BTreeMap::from([("a-1".to_owned(), 2)]));
        assert!(requests_of(&json!({}), &names).is_empty());
    }
}
