//! Which measures there are, and in what order they are taken on one cluster. Pure functions.

use serde::Serialize;

use crate::operate::edits::{Component, Mistake};

/// What can be chosen by `--only`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, clap::ValueEnum)]
pub enum Measure {
    /// Start of the binary.
    Version,
    /// Size of the static binary, which must run in an empty root.
    Binary,
    /// Time of the offline plan of the fixtures.
    OfflinePlan,
    /// From static Pods to DaemonSets.
    Convert,
    /// And back.
    Revert,
    /// Memory and processor time of an idle guard.
    Guard,
    /// A good flag through the DaemonSet, without guard and CLI.
    Roll,
    /// Mistakes in templates.
    BadEdits,
    /// The same flag as in the roll, in the static manifest.
    StaticFlag,
    /// Conversion with a gap.
    GapMode,
    /// Back, with shared ports.
    KeepSharing,
    /// Clusters of several nodes, from a workstation.
    Nodes,
}

/// How often, and what.
#[derive(Clone, Debug)]
pub struct Choice {
    /// Measures; all where it is empty.
    pub only: Vec<Measure>,
    /// Conversions in a row.
    pub conversions: u32,
    /// Rolls in a row.
    pub rolls: u32,
    /// Edits to make, in this order.
    pub edits: Vec<(Component, Mistake)>,
    /// Numbers of nodes.
    pub nodes: Vec<u8>,
}

impl Choice {
    /// Whether a measure is chosen.
    #[must_use]
    pub fn has(&self, measure: Measure) -> bool {
        self.only.is_empty() || self.only.contains(&measure)
    }
}

/// What the control plane is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum State {
    /// There is no cluster, or nobody knows: a fresh one is needed.
    Unknown,
    /// Static Pods from their original manifests.
    Static,
    /// DaemonSets.
    SelfHosted,
}

/// One measure on a cluster.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Action {
    /// See [`Measure::Convert`].
    Convert(u32),
    /// See [`Measure::Revert`].
    Revert(u32),
    /// See [`Measure::Guard`].
    Guard,
    /// See [`Measure::Roll`]: so many in a row, while the guard is stopped.
    Rolls(u32),
    /// See [`Measure::BadEdits`].
    BadEdit(Component, Mistake),
    /// See [`Measure::StaticFlag`].
    StaticFlag,
    /// See [`Measure::GapMode`].
    GapMode,
    /// See [`Measure::KeepSharing`].
    KeepSharing,
}

impl Action {
    /// What the control plane must be before.
    #[must_use]
    pub fn needs(self) -> State {
        match self {
            Self::Convert(_) | Self::StaticFlag | Self::GapMode => State::Static,
            Self::Revert(_) | Self::Guard | Self::Rolls(_) | Self::BadEdit(..) | Self::KeepSharing => State::SelfHosted,
        }
    }

    /// What it is afterwards.
    #[must_use]
    pub fn leaves(self) -> State {
        match self {
            Self::Convert(_) | Self::Guard | Self::Rolls(_) | Self::BadEdit(..) => State::SelfHosted,
            Self::Revert(_) | Self::StaticFlag => State::Static,
            // Other manifests or templates than the measures above start from.
            Self::GapMode | Self::KeepSharing => State::Unknown,
        }
    }

    /// Its name in figures.
    #[must_use]
    pub fn name(self) -> String {
        match self {
            Self::Convert(_) => "convert".to_owned(),
            Self::Revert(_) => "revert".to_owned(),
            Self::Guard => "guard".to_owned(),
            Self::Rolls(_) => "roll".to_owned(),
            Self::BadEdit(component, mistake) => format!("bad-edits {component} {mistake}"),
            Self::StaticFlag => "static-flag".to_owned(),
            Self::GapMode => "gap-mode".to_owned(),
            Self::KeepSharing => "keep-sharing".to_owned(),
        }
    }
}

/// The actions of a choice, so that one leaves what the next one needs as often as possible.
#[must_use]
pub fn actions(choice: &Choice) -> Vec<Action> {
    let mut actions = Vec::new();
    let (convert, revert) = (choice.has(Measure::Convert), choice.has(Measure::Revert));
    let most = if convert || revert { choice.conversions } else { 0 };
    for run in 1..=most {
        if convert {
            actions.push(Action::Convert(run));
        }
        // The last one comes when all is done that needs a converted cluster.
        if revert && run < most {
            actions.push(Action::Revert(run));
        }
    }
    if choice.has(Measure::Guard) {
        actions.push(Action::Guard);
    }
    if choice.has(Measure::Roll) {
        actions.push(Action::Rolls(choice.rolls));
    }
    if choice.has(Measure::BadEdits) {
        actions.extend(
            choice
                .edits
                .iter()
                .map(|(component, mistake)| Action::BadEdit(*component, *mistake)),
        );
    }
    if revert && most > 0 {
        actions.push(Action::Revert(most));
    }
    for (measure, action) in [
        (Measure::StaticFlag, Action::StaticFlag),
        (Measure::GapMode, Action::GapMode),
        (Measure::KeepSharing, Action::KeepSharing),
    ] {
        if choice.has(measure) {
            actions.push(action);
        }
    }
    actions
}

#[cfg(test)]
mod tests {
    use super::*;

    fn choice(only: &[Measure]) -> Choice {
        Choice {
            only: only.to_vec(),
            conversions: 3,
            rolls: 10,
            edits: vec![(Component::KubeScheduler, Mistake::Hangs)],
            nodes: vec![1, 3],
        }
    }

    #[test]
    fn everything_is_measured_with_few_changes_in_between() {
        use Action::*;
        let all = actions(&choice(&[]));
        let edit = BadEdit(Component::KubeScheduler, Mistake::Hangs);
        assert_eq!(
            all,
            [
                Convert(1),
                Revert(1),
                Convert(2),
                Revert(2),
                Convert(3),
                Guard,
                Rolls(10),
                edit,
                Revert(3),
                StaticFlag,
                GapMode,
                KeepSharing
            ]
        );
        for pair in all.windows(2) {
            let known = pair[0].leaves() == pair[1].needs();
            assert!(known || pair[0] == GapMode, "{pair:?}");
        }
    }

    #[test]
    fn a_choice_is_kept_to() {
        use Action::*;
        assert_eq!(actions(&choice(&[Measure::Version])), []);
        assert_eq!(
            actions(&choice(&[Measure::Convert])),
            [Convert(1), Convert(2), Convert(3)]
        );
        assert_eq!(actions(&choice(&[Measure::Revert])), [Revert(1), Revert(2), Revert(3)]);
        assert_eq!(
            actions(&choice(&[Measure::Roll, Measure::StaticFlag])),
            [Rolls(10), StaticFlag]
        );
    }
}
