//! What the agent knows about its spoke, and what of it the hub is told.

use std::{collections::BTreeMap, time::Duration};

use k8s_openapi::apimachinery::pkg::api::resource::Quantity;

use crate::{
    names::{RESERVED_CLAIMS, SPOKE_ONLY_LABEL},
    quantity::{self, Amount},
    resources::{ClusterClaim, SlimNode, StatusClaim},
};

/// A failing health check counts only after this long.
pub const FAILURE_THRESHOLD: Duration = Duration::from_secs(20);
/// A failing health check is repeated this soon.
pub const FAILURE_RETRY: Duration = Duration::from_secs(5);
/// Longest name and value of a claim that the hub takes.
const LONGEST_CLAIM_NAME: usize = 253;
const LONGEST_CLAIM_VALUE: usize = 1024;

/// Capacity and allocatable of all nodes.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Totals {
    /// Over all nodes.
    pub capacity: BTreeMap<String, Quantity>,
    /// Over the nodes that take Pods.
    pub allocatable: BTreeMap<String, Quantity>,
}

/// What is kept of a node.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct NodeShare {
    unschedulable: bool,
    capacity: BTreeMap<String, Quantity>,
    allocatable: BTreeMap<String, Quantity>,
}

impl From<SlimNode> for NodeShare {
    fn from(node: SlimNode) -> Self {
        Self {
            unschedulable: node.spec.unschedulable,
            capacity: node.status.capacity,
            allocatable: node.status.allocatable,
        }
    }
}

/// Sums them up.
#[must_use]
pub fn totals<'a>(nodes: impl IntoIterator<Item = &'a NodeShare>) -> Totals {
    let (mut capacity, mut allocatable) = (BTreeMap::new(), BTreeMap::new());
    for node in nodes {
        quantity::add(&mut capacity, &node.capacity);
        if !node.unschedulable {
            quantity::add(&mut allocatable, &node.allocatable);
        }
    }
    let written = |sums: BTreeMap<String, Amount>| {
        sums.into_iter()
            .map(|(name, amount)| (name, Quantity(amount.to_string())))
            .collect()
    };
    Totals {
        capacity: written(capacity),
        allocatable: written(allocatable),
    }
}

/// Which claims are sent.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ClaimRules {
    /// How many that are not reserved.
    pub most_custom: usize,
    /// Names that end like this are reserved too.
    pub reserved_suffixes: Vec<String>,
}

/// The claims that are sent, and the names of those that did not fit.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SentClaims {
    /// Reserved ones by name, then the others by name.
    pub claims: Vec<StatusClaim>,
    /// Cut off.
    pub cut: Vec<String>,
}

/// The value of a claim that may be sent; `None` where it stays on the spoke, or the hub would refuse all for its sake.
#[must_use]
pub fn claim_value(claim: &ClusterClaim) -> Option<&str> {
    let stays = claim
        .metadata
        .labels
        .as_ref()
        .is_some_and(|labels| labels.contains_key(SPOKE_ONLY_LABEL));
    let name = claim.metadata.name.as_deref().unwrap_or_default();
    let value = claim.spec.value.as_str();
    let fits = !value.is_empty() && value.len() <= LONGEST_CLAIM_VALUE && name.len() <= LONGEST_CLAIM_NAME;
    (!stays && fits).then_some(value)
}

impl ClaimRules {
    /// Chooses from all claims, by name.
    #[must_use]
    pub fn select(&self, all: &BTreeMap<String, String>) -> SentClaims {
        let reserved = |name: &str| {
            RESERVED_CLAIMS.contains(&name)
                || self
                    .reserved_suffixes
                    .iter()
                    .any(|suffix| !suffix.is_empty() && name.ends_with(suffix.as_str()))
        };
        let claim = |(name, value): (&String, &String)| StatusClaim {
            name: name.clone(),
            value: value.clone(),
        };
        let mut claims: Vec<_> = all.iter().filter(|(name, _)| reserved(name)).map(claim).collect();
        let mut custom = all.iter().filter(|(name, _)| !reserved(name));
        claims.extend(custom.by_ref().take(self.most_custom).map(claim));
        SentClaims {
            claims,
            cut: custom.map(|(name, _)| name.clone()).collect(),
        }
    }
}

/// What a look at the spoke's health endpoint found.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Health {
    /// 200.
    Ok,
    /// Anything else, in words: status code and body, or why there was no answer.
    Failing(String),
}

/// Whether `/healthz` has to be asked, as `/livez` is not there or not allowed.
#[must_use]
pub fn falls_back(livez_status: u16) -> bool {
    matches!(livez_status, 403 | 404)
}

/// What to report about the spoke's API server. One bad look does not count.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Availability {
    failing_since: Option<Duration>,
    /// `None` before the first verdict; then the trouble, if any.
    verdict: Option<Option<String>>,
}

impl Availability {
    /// Takes the result of a look at `now` (time since any fixed moment, monotonic). Returns how long to wait for the next.
    pub fn observe(&mut self, health: &Health, now: Duration, period: Duration) -> Duration {
        match health {
            Health::Ok => {
                self.failing_since = None;
                self.verdict = Some(None);
                period
            }
            Health::Failing(text) => {
                let since = *self.failing_since.get_or_insert(now);
                if now.saturating_sub(since) >= FAILURE_THRESHOLD {
                    self.verdict = Some(Some(text.clone()));
                }
                FAILURE_RETRY.min(period)
            }
        }
    }

    /// The verdict: `None` while there is none, `Some(None)` while it is available.
    #[must_use]
    pub fn verdict(&self) -> Option<Option<&str>> {
        self.verdict.as_ref().map(Option::as_deref)
    }
}

/// Everything about the spoke that is reported. `None`: not known yet.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct SpokeFacts {
    /// Version of Kubernetes.
    pub version: Option<String>,
    /// Sums over the nodes.
    pub totals: Option<Totals>,
    /// Claims.
    pub claims: Option<SentClaims>,
    /// Verdict about its API server: `Some(None)` is good.
    pub availability: Option<Option<String>>,
}

impl SpokeFacts {
    /// Whether all is known, so that the hub can be told in one write.
    #[must_use]
    pub fn are_complete(&self) -> bool {
        self.version.is_some() && self.totals.is_some() && self.claims.is_some() && self.availability.is_some()
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn claims(names: &[&str]) -> BTreeMap<String, String> {
        names.iter().map(|name| ((*name).to_owned(), "v".to_owned())).collect()
    }

    fn names(sent: &SentClaims) -> Vec<&str> {
        sent.claims.iter().map(|claim| claim.name.as_str()).collect()
    }

    #[test]
    fn reserved_claims_come_first_and_the_others_are_cut() {
        let all = claims(&["a", "c", "e", "id.k8s.io", "id-test.k8s.io"]);
        let mut rules = ClaimRules {
            most_custom: 2,
            ..ClaimRules::default()
        };
        let sent = rules.select(&all);
        assert_eq!(names(&sent), ["id.k8s.io", "a", "c"]);
        assert_eq!(sent.cut, ["e", "id-test.k8s.io"]);
        rules.reserved_suffixes = vec!["reserved.io".into()];
        let sent = rules.select(&claims(&["a", "c", "e", "id.k8s.io", "test.reserved.io"]));
        assert_eq!(names(&sent), ["id.k8s.io", "test.reserved.io", "a", "c"]);
        rules.most_custom = 0;
        assert_eq!(names(&rules.select(&all)), ["id.k8s.io"]);
    }

    #[test]
    fn claims_that_stay_or_that_the_hub_refuses_are_not_sent() {
        let claim = |label: Option<&str>, value: &str| ClusterClaim {
            metadata: k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta {
                name: Some("a".into()),
                labels: label.map(|label| BTreeMap::from([(label.to_owned(), "false".to_owned())])),
                ..Default::default()
            },
            spec: crate::resources::ClusterClaimSpec { value: value.into() },
        };
        assert_eq!(claim_value(&claim(None, "x")), Some("x"));
        assert_eq!(claim_value(&claim(Some("other"), "x")), Some("x"));
        assert_eq!(claim_value(&claim(Some(SPOKE_ONLY_LABEL), "x")), None);
        assert_eq!(claim_value(&claim(None, "")), None);
        assert_eq!(claim_value(&claim(None, &"x".repeat(1025))), None);
    }

    fn node(unschedulable: bool, capacity: &str, allocatable: &str) -> NodeShare {
        let cpu = |text: &str| BTreeMap::from([("cpu".to_owned(), Quantity(text.to_owned()))]);
        NodeShare {
            unschedulable,
            capacity: cpu(capacity),
            allocatable: cpu(allocatable),
        }
    }

    #[test]
    fn a_cordoned_node_counts_for_capacity_only() {
        let cpu = |totals: &BTreeMap<String, Quantity>| totals.get("cpu").map(|quantity| quantity.0.clone());
        let sum = totals(&[node(false, "8", "7500m"), node(false, "8", "7500m")]);
        assert_eq!(
            (cpu(&sum.capacity).unwrap(), cpu(&sum.allocatable).unwrap()),
            ("16".into(), "15".into())
        );
        let sum = totals(&[node(true, "8", "7500m")]);
        assert_eq!((cpu(&sum.capacity), cpu(&sum.allocatable)), (Some("8".into()), None));
        assert_eq!(totals(&[]), Totals::default());
    }

    #[test]
    fn livez_that_is_missing_or_forbidden_falls_back_to_healthz() {
        for (status, falls) in [(200, false), (404, true), (403, true), (401, false), (500, false)] {
            assert_eq!(falls_back(status), falls, "{status}");
        }
    }

    #[test]
    fn the_spoke_is_unavailable_only_after_twenty_seconds_of_failures() {
        let second = Duration::from_secs(1);
        let period = 60 * second;
        let failing = Health::Failing("status code: 500, x".into());
        let mut availability = Availability::default();
        assert_eq!(availability.verdict(), None);
        assert_eq!(availability.observe(&failing, Duration::ZERO, period), 5 * second);
        assert_eq!(availability.verdict(), None, "nothing is known yet");
        assert_eq!(availability.observe(&Health::Ok, 2 * second, period), period);
        assert_eq!(availability.verdict(), Some(None));
        for at in [10, 11, 12, 15, 20, 29] {
            assert_eq!(availability.observe(&failing, at * second, period), 5 * second);
            assert_eq!(availability.verdict(), Some(None), "kept at {at}");
        }
        availability.observe(&failing, 30 * second, period);
        assert_eq!(availability.verdict(), Some(Some("status code: 500, x")));
        availability.observe(&Health::Ok, 31 * second, period);
        assert_eq!(availability.verdict(), Some(None));
        availability.observe(&failing, 40 * second, period);
        assert_eq!(availability.verdict(), Some(None), "a success starts the time anew");
        assert_eq!(
            availability.observe(&failing, 41 * second, second),
            second,
            "never less often than asked"
        );
    }

    proptest! {
        #[test]
        fn no_claim_is_lost_and_no_more_than_asked_are_sent(names in prop::collection::btree_set("[a-e]{1,3}(\\.x)?", 0..30), most in 0usize..25) {
            let all = names.iter().map(|name| (name.clone(), "v".to_owned())).collect();
            let rules = ClaimRules { most_custom: most, reserved_suffixes: vec![".x".into()] };
            let sent = rules.select(&all);
            prop_assert_eq!(sent.claims.len() + sent.cut.len(), names.len());
            prop_assert!(sent.claims.iter().filter(|claim| !claim.name.ends_with(".x")).count() <= most);
            prop_assert!(sent.cut.iter().all(|name| !name.ends_with(".x")));
        }
    }
}
