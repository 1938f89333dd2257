//! `--feature-gates`, read as the components of Kubernetes read theirs.

use std::collections::BTreeMap;
use std::fmt;
use std::str::FromStr;

use crate::certs_in_secrets;
use crate::mutators::PodSpecMutator;

/// A part of the program that is off until somebody asks for it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Gate {
    /// Certificates, keys and kubeconfigs are taken from Secrets instead of from the node.
    StoreCertsInSecrets,
}

impl Gate {
    /// All gates.
    pub const ALL: [Self; 1] = [Self::StoreCertsInSecrets];

    /// Its name on the command line.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::StoreCertsInSecrets => "StoreCertsInSecrets",
        }
    }

    /// Whether it is on where nothing is said.
    #[must_use]
    pub fn default(self) -> bool {
        match self {
            Self::StoreCertsInSecrets => false,
        }
    }
}

/// Which gates are set, and to what.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct FeatureGates(BTreeMap<Gate, bool>);

/// Why a text holds no feature gates.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum FeatureGateError {
    /// No gate has that name.
    #[error("unrecognized feature gate {0:?}; known are: {known}", known = known())]
    Unknown(String),
    /// A name without a value.
    #[error("missing bool value for {0}; write {0}=true or {0}=false")]
    Missing(String),
    /// A value that is no boolean.
    #[error("invalid value of {0}={1}; write true or false")]
    Invalid(String, String),
}

fn known() -> String {
    let gates = Gate::ALL.map(|gate| format!("{}=true|false (default={})", gate.name(), gate.default()));
    gates.join(", ")
}

impl FeatureGates {
    /// Whether a gate is on.
    #[must_use]
    pub fn enabled(&self, gate: Gate) -> bool {
        self.0.get(&gate).copied().unwrap_or_else(|| gate.default())
    }

    /// Both together; of a gate that is set in both, `later` counts, as for a flag that is repeated.
    #[must_use]
    pub fn and(mut self, later: &Self) -> Self {
        self.0.extend(&later.0);
        self
    }
}

impl FromStr for FeatureGates {
    type Err = FeatureGateError;

    /// Reads `Name=true,Other=false`: blanks around names and values do not count, empty parts are skipped, of a name that is
    /// repeated the last one counts, and values are what Go's `strconv.ParseBool` takes (k8s.io/component-base
    /// `featuregate/feature_gate.go`, `Set`). `AllAlpha` and `AllBeta` are unknown: they would switch on what nobody named.
    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let mut gates = BTreeMap::new();
        for part in text.split(',').filter(|part| !part.is_empty()) {
            let (name, value) = match part.split_once('=') {
                Some((name, value)) => (name.trim(), value.trim()),
                None => return Err(FeatureGateError::Missing(part.trim().to_owned())),
            };
            let gate = Gate::ALL
                .into_iter()
                .find(|gate| gate.name() == name)
                .ok_or_else(|| FeatureGateError::Unknown(name.to_owned()))?;
            let value = crate::component_spec::parse_bool(value)
                .ok_or_else(|| FeatureGateError::Invalid(name.to_owned(), value.to_owned()))?;
            gates.insert(gate, value);
        }
        Ok(Self(gates))
    }
}

impl fmt::Display for FeatureGates {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let gates: Vec<String> = self
            .0
            .iter()
            .map(|(gate, value)| format!("{}={value}", gate.name()))
            .collect();
        f.write_str(&gates.join(","))
    }
}

/// The steps that feature gates ask for, on top of [`crate::mutators::default_mutators`].
#[must_use]
pub fn mutators_from_feature_gates(gates: &FeatureGates) -> Vec<PodSpecMutator> {
    let mut mutators = Vec::new();
    if gates.enabled(Gate::StoreCertsInSecrets) {
        mutators.push(certs_in_secrets::STORE_CERTS);
    }
    mutators
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(text: &str) -> Result<bool, String> {
        text.parse::<FeatureGates>()
            .map(|gates| gates.enabled(Gate::StoreCertsInSecrets))
            .map_err(|error| error.to_string())
    }

    #[test]
    fn what_the_components_read() {
        for (text, expected) in [
            ("", false),
            (",", false),
            ("StoreCertsInSecrets=true", true),
            ("StoreCertsInSecrets=false", false),
            (" StoreCertsInSecrets = true ", true),
            (",StoreCertsInSecrets=1,", true),
            ("StoreCertsInSecrets=T", true),
            ("StoreCertsInSecrets=TRUE,StoreCertsInSecrets=f", false),
            ("StoreCertsInSecrets=0,StoreCertsInSecrets=True", true),
        ] {
            assert_eq!(read(text), Ok(expected), "{text:?}");
        }
    }

    #[test]
    fn what_they_do_not() {
        let known = "known are: StoreCertsInSecrets=true|false (default=false)";
        for (text, expected) in [
            (
                "StoreCertsInSecret=true",
                format!("unrecognized feature gate \"StoreCertsInSecret\"; {known}"),
            ),
            (
                "storecertsinsecrets=true",
                format!("unrecognized feature gate \"storecertsinsecrets\"; {known}"),
            ),
            ("AllAlpha=true", format!("unrecognized feature gate \"AllAlpha\"; {known}")),
            ("=true", format!("unrecognized feature gate \"\"; {known}")),
            (
                "StoreCertsInSecrets",
                "missing bool value for StoreCertsInSecrets; write StoreCertsInSecrets=true or StoreCertsInSecrets=false"
                    .into(),
            ),
            (
                "StoreCertsInSecrets=maybe",
                "invalid value of StoreCertsInSecrets=maybe; write true or false".into(),
            ),
            (
                "StoreCertsInSecrets=true=true",
                "invalid value of StoreCertsInSecrets=true=true; write true or false".into(),
            ),
            (
                "StoreCertsInSecrets=tRuE",
                "invalid value of StoreCertsInSecrets=tRuE; write true or false".into(),
            ),
        ] {
            assert_eq!(read(text), Err(expected), "{text:?}");
        }
    }

    #[test]
    fn of_repeated_flags_the_later_one_counts() {
        let gates = |text: &str| text.parse::<FeatureGates>().unwrap();
        let on = gates("StoreCertsInSecrets=true");
        assert!(on.clone().and(&gates("")).enabled(Gate::StoreCertsInSecrets));
        let off = on.and(&gates("StoreCertsInSecrets=false"));
        assert!(!off.enabled(Gate::StoreCertsInSecrets));
        assert_eq!(off.to_string(), "StoreCertsInSecrets=false");
        assert_eq!(gates(&off.to_string()), off);
    }

    #[test]
    fn a_gate_adds_its_step_and_nothing_else() {
        let names = |text: &str| -> Vec<&str> {
            let gates = text.parse().unwrap();
            mutators_from_feature_gates(&gates)
                .iter()
                .map(|mutator| mutator.name)
                .collect()
        };
        assert_eq!(names(""), [""; 0]);
        assert_eq!(names("StoreCertsInSecrets=false"), [""; 0]);
        assert_eq!(names("StoreCertsInSecrets=true"), ["store-certs-in-secrets"]);
    }
}
