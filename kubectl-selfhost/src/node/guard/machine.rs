//! What the guard does next: a pure function from what it sees to one action.
//!
//! Nothing is remembered here but what [`Observed`] holds, so that the guard may die and be started again at any instant.
//! An action is taken, the world is looked at again, and so on until a component is settled.

use super::unhealthy;
use crate::node::state::{Desired, State, Verdict};
use std::time::Duration;

/// How the component's manifest lies in the manifest directory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Manifest {
    /// There is none.
    Absent,
    /// Its bytes are those of the saved original (or none is saved yet).
    Original,
    /// It is the original with port sharing on, put in by us.
    Sharing,
    /// Its bytes are neither.
    Foreign,
}

/// What the guard sees of one component.
#[derive(Clone, Debug)]
pub struct Observed {
    /// What the component should be.
    pub desired: Desired,
    /// Whether the manifest left the directory by our hand.
    pub handed_over: bool,
    /// Whether the original is saved on the node.
    pub saved: bool,
    /// The manifest now.
    pub manifest: Manifest,
    /// Whether our fallback lies in the manifest directory.
    pub fallback: bool,
    /// For how long it has been there.
    pub fallback_for: Duration,
    /// Whether there is another one than the one that was put in: of the last template that ran well, or of the original.
    pub other_fallback: bool,
    /// What waiting Pods are told.
    pub verdict: Verdict,
    /// Whether a Pod of the DaemonSet waits in its init container.
    pub waiting: bool,
    /// Processes of the original static Pod (or of its sharing variant).
    pub static_processes: usize,
    /// Processes of our fallback.
    pub fallback_processes: usize,
    /// Processes of the DaemonSet's Pods.
    pub self_hosted_processes: usize,
    /// Whether a process of the DaemonSet's Pods still listens: one that drains does not.
    pub self_hosted_listens: bool,
    /// Whether a process listens on the port that is none of the component's: one that a wrong template has put in its place.
    pub strangers: bool,
    /// For how long the one process of the DaemonSet's that listens has not been healthy.
    pub unhealthy_for: Duration,
    /// Whether that process is healthy, and has been there before the fallback's: it cannot prove itself as the newest.
    pub self_hosted_healthy_before_fallback: bool,
    /// With such a process, or a stranger: whether the fallback's process has answered healthy itself just now, as the newest
    /// on the port.
    pub fallback_proven: bool,
    /// Whether the process that serves shares its port.
    pub shared: bool,
    /// How the port is steered, as far as the guard knows.
    pub steered: Steered,
    /// Whether the process that is to take over has answered healthy itself just now.
    pub proven: bool,
    /// For how long no process of the component has listened.
    pub silent_for: Duration,
    /// For how long the hand-over has been on its way: since the verdict, or since the manifest was put in.
    pub handing_for: Duration,
    /// How long silence lasts before the fallback goes in.
    pub grace: Duration,
}

/// How a port is steered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Steered {
    /// Not, or unknown.
    No,
    /// To the oldest.
    Hold,
    /// To the newest, since so long.
    Switch(Duration),
}

/// One thing to do.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Action {
    /// Nothing now.
    Nothing,
    /// Save the manifest's bytes, mode and owner, and what follows from them.
    SaveOriginal,
    /// Make the live listener share its port.
    Share,
    /// Steer to the oldest.
    Hold,
    /// Steer to the newest.
    Switch,
    /// Let waiting Pods start.
    Go,
    /// Let waiting Pods wait.
    Wait,
    /// Take the manifest out, as the DaemonSet's Pod has proved itself (or, in gap mode, waits for the port).
    RemoveManifest,
    /// Note that the manifest is out, after a crash between taking it out and noting it.
    NoteHandedOver,
    /// Put the fallback in.
    PutFallback,
    /// Put the other fallback in the place of the one that does not come up.
    PutOtherFallback,
    /// Take the fallback out.
    RemoveFallback,
    /// Put the original in, as it was.
    PutOriginal,
    /// Put the original in again, as the kubelet refused it the first time and does not try twice.
    PutOriginalAgain,
    /// Put the original with port sharing in.
    PutSharing,
    /// Give up: let Pods wait, and keep or put back the static Pod.
    Abort,
}

/// An action with what `status` and the progress bar say of it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Decision {
    /// What to do.
    pub action: Action,
    /// What serves.
    pub state: State,
    /// Whether nothing is left to do.
    pub settled: bool,
    /// What is waited for or done, in words.
    pub step: &'static str,
    /// What is wrong, in words with what to do.
    pub error: Option<&'static str>,
    /// The static Pod has proved itself beside the DaemonSet's Pod, which may go now.
    pub releasable: bool,
}

/// How long everything goes to the newest before the oldest is told to go: connections that it has accepted and not read
/// yet are lost when it closes (seen: one of 37376 requests).
pub const SETTLE: Duration = Duration::from_secs(2);
/// How long a process has to prove itself before the hand-over is given up.
pub const HANDOVER_DEADLINE: Duration = Duration::from_secs(120);
/// The same in gap mode, where nothing serves meanwhile.
pub const GAP_DEADLINE: Duration = Duration::from_secs(45);
/// How long a fallback has to listen before the other one is tried. An apiserver that waits for etcd takes its time; and should
/// neither come up, they take turns.
pub const FALLBACK_DEADLINE: Duration = Duration::from_secs(180);
/// How long a static Pod has to show a process before its manifest is put in again.
pub const PUT_AGAIN: Duration = Duration::from_secs(20);

/// What serves, from processes and files alone.
#[must_use]
pub fn state(o: &Observed) -> State {
    let by_processes = process_state(
        o.static_processes > 0,
        o.self_hosted_processes > 0,
        o.fallback_processes > 0,
    );
    match by_processes {
        // a manifest is there of which a process may come any moment
        State::SelfHosted if o.manifest != Manifest::Absent || o.fallback => State::Both,
        state => state,
    }
}

/// What serves, from which kinds of processes there are.
#[must_use]
pub fn process_state(of_static: bool, of_self_hosted: bool, of_fallback: bool) -> State {
    match (of_static, of_self_hosted, of_fallback) {
        (false, false, false) => State::None,
        (true, false, false) => State::Static,
        (false, true, false) => State::SelfHosted,
        (false, false, true) => State::Fallback,
        _ => State::Both,
    }
}

/// What to do next.
#[must_use]
pub fn next_action(o: &Observed) -> Decision {
    let decide = match o.desired {
        Desired::SelfHosted | Desired::SelfHostedGap if o.handed_over => handed_over(o),
        Desired::SelfHosted => hand_over(o),
        Desired::SelfHostedGap => hand_over_with_gap(o),
        Desired::Static => back(o),
        Desired::StaticSharing => back_sharing(o),
    };
    Decision {
        state: state(o),
        ..decide
    }
}

fn act(action: Action, step: &'static str) -> Decision {
    Decision {
        action,
        state: State::None,
        settled: false,
        step,
        error: None,
        releasable: false,
    }
}

fn wait(step: &'static str) -> Decision {
    act(Action::Nothing, step)
}

fn settled() -> Decision {
    Decision {
        settled: true,
        ..wait("")
    }
}

fn stuck(error: &'static str) -> Decision {
    Decision {
        error: Some(error),
        ..wait("")
    }
}

/// Towards the DaemonSet: the static Pod serves, its manifest is in the directory.
fn hand_over(o: &Observed) -> Decision {
    match o.manifest {
        Manifest::Absent => return manifest_went_away(o),
        Manifest::Foreign | Manifest::Sharing if o.verdict == Verdict::Wait => {
            return act(Action::SaveOriginal, "saving the original manifest");
        }
        Manifest::Foreign | Manifest::Sharing => {
            return act(Action::Abort, "the manifest was changed during the hand-over");
        }
        Manifest::Original if !o.saved => return act(Action::SaveOriginal, "saving the original manifest"),
        Manifest::Original => {}
    }
    if o.verdict == Verdict::Go && o.handing_for > HANDOVER_DEADLINE {
        return act(Action::Abort, "the DaemonSet's process did not prove healthy in time");
    }
    if o.self_hosted_processes == 0 {
        if o.verdict == Verdict::Go && !o.waiting {
            return wait("waiting for the DaemonSet's process to start");
        }
        if !o.waiting {
            return wait("waiting for the DaemonSet's Pod to wait for its port on this node");
        }
        if o.static_processes == 0 {
            return wait("waiting for the static Pod's process to listen");
        }
        if !o.shared {
            return act(Action::Share, "making the static Pod's process share its port");
        }
        if o.steered != Steered::Hold {
            return act(Action::Hold, "steering new connections to the process that serves");
        }
        if o.verdict == Verdict::Wait {
            return act(Action::Go, "letting the DaemonSet's process start");
        }
        return wait("waiting for the DaemonSet's process to start");
    }
    if o.verdict == Verdict::Wait {
        return act(Action::Go, "letting the DaemonSet's process start");
    }
    take_over(o, Action::RemoveManifest)
}

/// The process that is to take over runs: prove it, switch, pause, and then let the other one go.
fn take_over(o: &Observed, then: Action) -> Decision {
    if !o.proven && !o.silent_for.is_zero() {
        return wait("waiting for a process to listen");
    }
    if !o.proven {
        return match o.steered {
            Steered::Hold => wait("waiting for the new process to prove healthy itself"),
            _ => act(Action::Hold, "steering new connections to the process that serves"),
        };
    }
    match o.steered {
        Steered::Switch(since) if since >= SETTLE => act(then, "letting the old process go"),
        Steered::Switch(_) => wait("letting accepted connections reach the old process"),
        _ => act(Action::Switch, "steering new connections to the new process"),
    }
}

/// The manifest is gone, and it is not noted that we took it: either we died in between, or somebody else did it.
fn manifest_went_away(o: &Observed) -> Decision {
    if !o.saved {
        return stuck("there is no manifest of this component in the manifest directory, and none is saved");
    }
    if o.self_hosted_processes > 0 && o.proven {
        return act(Action::NoteHandedOver, "noting that the manifest is out");
    }
    act(
        Action::PutOriginal,
        "putting the original manifest back, as nothing has proved healthy in its place",
    )
}

/// The static Pod's manifest is out by our hand: the DaemonSet's Pod serves, or is to serve.
fn handed_over(o: &Observed) -> Decision {
    if o.verdict == Verdict::Wait {
        return act(Action::Go, "letting the DaemonSet's process start");
    }
    if o.silent_for >= o.grace && !o.fallback {
        if o.desired == Desired::SelfHostedGap && o.self_hosted_processes > 0 && o.silent_for < GAP_DEADLINE {
            return wait("waiting for the DaemonSet's process to listen");
        }
        return act(Action::PutFallback, "nothing serves: putting the fallback in");
    }
    let unhealthy = o.unhealthy_for >= unhealthy::DEADLINE;
    if unhealthy && !o.fallback && o.desired == Desired::SelfHosted {
        return act(
            Action::PutFallback,
            "the DaemonSet's process listens and does not get healthy: putting the fallback in beside it",
        );
    }
    let late = o.silent_for >= FALLBACK_DEADLINE && o.fallback_for >= FALLBACK_DEADLINE;
    if o.fallback && o.other_fallback && late {
        return act(
            Action::PutOtherFallback,
            "the fallback does not come up: putting the other one in",
        );
    }
    if o.fallback && o.desired == Desired::SelfHostedGap {
        // two cannot listen at once: the fallback leaves as soon as a Pod waits for its port
        return if o.waiting && o.fallback_processes > 0 {
            act(Action::RemoveFallback, "taking the fallback out: the gap begins")
        } else {
            Decision {
                settled: o.fallback_processes > 0,
                ..wait("the fallback serves, as the DaemonSet's Pod is not there")
            }
        };
    }
    if o.fallback && unhealthy && o.self_hosted_listens {
        return past_an_unhealthy_process(o);
    }
    if o.fallback && o.self_hosted_healthy_before_fallback {
        // it serves already where the port is held for the oldest
        return match o.steered {
            Steered::Hold => act(
                Action::RemoveFallback,
                "the DaemonSet's process is healthy again: letting the fallback go",
            ),
            _ => act(
                Action::Hold,
                "steering new connections to the DaemonSet's process, which is healthy again",
            ),
        };
    }
    if o.fallback && o.self_hosted_processes > 0 {
        return take_over(o, Action::RemoveFallback);
    }
    if o.fallback {
        if o.fallback_processes > 0 && o.shared {
            // our probes meet the newest: what answers them is the newest itself
            let is_newest = o.strangers && o.fallback_proven;
            match o.steered {
                Steered::Switch(_) if is_newest => {}
                Steered::Hold if !is_newest => {}
                _ if is_newest => {
                    return act(
                        Action::Switch,
                        "steering new connections to the fallback, past a process that is not the component",
                    );
                }
                _ => return act(Action::Hold, "steering new connections to the process that serves"),
            }
        }
        return Decision {
            settled: o.fallback_processes > 0,
            ..wait("the fallback serves, as the DaemonSet's Pod is not there")
        };
    }
    if o.static_processes > 0 && o.manifest == Manifest::Absent {
        return wait("waiting for the old process to finish what it serves and exit");
    }
    if o.fallback_processes > 0 {
        return wait("waiting for the fallback's process to exit");
    }
    if o.self_hosted_processes == 0 {
        return wait("waiting for the DaemonSet's process");
    }
    if o.self_hosted_processes == 1 && matches!(o.steered, Steered::Switch(since) if since > SETTLE) {
        return act(Action::Hold, "steering the port for the next process");
    }
    settled()
}

/// The fallback is in, beside a process of the DaemonSet's that listens and is not healthy: the kubelet ends that one, or
/// somebody mends the template. The fallback may be no better, as when etcd is away.
fn past_an_unhealthy_process(o: &Observed) -> Decision {
    match o.steered {
        Steered::Switch(_) if o.fallback_proven => Decision {
            error: Some(
                "the DaemonSet's process listens and is not healthy, and the fallback serves in its place: see the Pod's log, and mend or undo the change of the DaemonSet",
            ),
            ..wait("the fallback serves, past a DaemonSet's process that is not healthy")
        },
        _ if o.fallback_proven => act(
            Action::Switch,
            "steering new connections to the fallback, past a DaemonSet's process that is not healthy",
        ),
        Steered::Hold => wait("waiting for the fallback, or the DaemonSet's process, to be healthy"),
        _ => act(Action::Hold, "steering new connections to the process that serves"),
    }
}

/// Towards the DaemonSet where ports cannot be shared: one process ends before the other starts.
fn hand_over_with_gap(o: &Observed) -> Decision {
    match o.manifest {
        Manifest::Absent => return manifest_went_away(o),
        Manifest::Foreign | Manifest::Sharing if o.verdict == Verdict::Wait => {
            return act(Action::SaveOriginal, "saving the original manifest");
        }
        Manifest::Foreign | Manifest::Sharing => {
            return act(Action::Abort, "the manifest was changed during the hand-over");
        }
        Manifest::Original if !o.saved => return act(Action::SaveOriginal, "saving the original manifest"),
        Manifest::Original => {}
    }
    if !o.waiting {
        return wait("waiting for the DaemonSet's Pod to wait for its port on this node");
    }
    if o.verdict == Verdict::Wait {
        return act(
            Action::Go,
            "letting the DaemonSet's process start when the port is free",
        );
    }
    act(Action::RemoveManifest, "stopping the static Pod: the gap begins")
}

/// Back to the original: the port cannot be shared with it, so that what serves now must go first.
fn back(o: &Observed) -> Decision {
    if o.verdict == Verdict::Go {
        return act(Action::Wait, "telling waiting Pods to wait");
    }
    if o.fallback {
        return act(Action::RemoveFallback, "taking the fallback out");
    }
    match o.manifest {
        Manifest::Original if !o.handed_over => {
            if o.self_hosted_processes > 0 && o.static_processes > 0 {
                return wait("waiting for the DaemonSet's Pod to go");
            }
            if o.static_processes > 0 && o.fallback_processes == 0 {
                return settled();
            }
            if o.self_hosted_processes == 0 && o.fallback_processes == 0 && o.handing_for > PUT_AGAIN && o.saved {
                return act(
                    Action::PutOriginalAgain,
                    "putting the original manifest in again, as no process came of it",
                );
            }
            wait("waiting for the static Pod's process to start")
        }
        Manifest::Foreign if !o.handed_over => settled(),
        // a guard that died after it put it back and before it noted so
        Manifest::Original if o.saved && !o.self_hosted_listens && o.fallback_processes == 0 => {
            act(Action::PutOriginal, "putting the original manifest back")
        }
        Manifest::Foreign | Manifest::Original => stuck(
            "somebody else wrote a manifest of this component into the manifest directory: move it out of there, then run revert again",
        ),
        Manifest::Absent | Manifest::Sharing if !o.saved => {
            stuck("there is no manifest of this component in the manifest directory, and none is saved")
        }
        Manifest::Sharing if o.self_hosted_listens => wait("waiting for the DaemonSet's Pod to go"),
        Manifest::Sharing => act(Action::PutOriginal, "putting the original manifest back"),
        Manifest::Absent if o.self_hosted_listens => {
            wait("waiting for the DaemonSet's Pod to go: the gap begins when it does")
        }
        Manifest::Absent if o.fallback_processes > 0 => wait("waiting for the fallback's process to exit"),
        Manifest::Absent => act(Action::PutOriginal, "putting the original manifest back"),
    }
}

/// Back to the original with port sharing: the static Pod starts beside what serves now.
fn back_sharing(o: &Observed) -> Decision {
    if o.verdict == Verdict::Go {
        return act(Action::Wait, "telling waiting Pods to wait");
    }
    match o.manifest {
        Manifest::Absent if !o.saved => {
            return stuck("there is no manifest of this component in the manifest directory, and none is saved");
        }
        Manifest::Absent => {
            return if o.silent_for.is_zero() && o.steered != Steered::Hold {
                act(Action::Hold, "steering new connections to the process that serves")
            } else {
                act(Action::PutSharing, "putting the original manifest with port sharing in")
            };
        }
        Manifest::Foreign if o.handed_over => {
            return stuck(
                "somebody else wrote a manifest of this component into the manifest directory: move it out of there, then run revert again",
            );
        }
        Manifest::Original | Manifest::Foreign | Manifest::Sharing => {}
    }
    if o.static_processes == 0 {
        return wait("waiting for the static Pod's process to start");
    }
    if o.fallback {
        return take_over(o, Action::RemoveFallback);
    }
    if o.self_hosted_processes > 0 {
        return match take_over(o, Action::Nothing) {
            Decision {
                action: Action::Nothing,
                step: "letting the old process go",
                ..
            } => Decision {
                releasable: true,
                ..wait("waiting for the DaemonSet's Pod to go")
            },
            other => other,
        };
    }
    if o.fallback_processes > 0 {
        return wait("waiting for the fallback's process to exit");
    }
    settled()
}

#[cfg(test)]
#[path = "machine_tests.rs"]
mod tests;
