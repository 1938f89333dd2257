use super::*;
use Action::*;
use Desired::*;

fn at_rest() -> Observed {
    Observed {
        desired: Static,
        handed_over: false,
        saved: false,
        manifest: Manifest::Original,
        fallback: false,
        fallback_for: Duration::ZERO,
        other_fallback: false,
        verdict: Verdict::Wait,
        waiting: false,
        static_processes: 1,
        fallback_processes: 0,
        self_hosted_processes: 0,
        self_hosted_listens: false,
        strangers: false,
        unhealthy_for: Duration::ZERO,
        self_hosted_healthy_before_fallback: false,
        fallback_proven: false,
        shared: false,
        steered: Steered::No,
        proven: false,
        silent_for: Duration::ZERO,
        handing_for: Duration::ZERO,
        grace: Duration::from_secs(8),
    }
}

fn converted() -> Observed {
    Observed {
        desired: SelfHosted,
        handed_over: true,
        saved: true,
        manifest: Manifest::Absent,
        verdict: Verdict::Go,
        static_processes: 0,
        self_hosted_processes: 1,
        self_hosted_listens: true,
        ..at_rest()
    }
}

const HOLD: Steered = Steered::Hold;
const JUST_SWITCHED: Steered = Steered::Switch(Duration::from_millis(500));
const SWITCHED: Steered = Steered::Switch(SETTLE);

/// Each row: what it is about, the rows before with one thing changed, and what must be done.
#[test]
fn a_hand_over_goes_step_by_step() {
    let o = Observed {
        desired: SelfHosted,
        ..at_rest()
    };
    expect("nothing is done before the original is saved", &o, SaveOriginal);
    let o = Observed { saved: true, ..o };
    expect("nothing is done before a Pod waits", &o, Nothing);
    let o = Observed { waiting: true, ..o };
    expect("a listener that does not share is made to", &o, Share);
    let o = Observed { shared: true, ..o };
    expect("no second process before the port is steered", &o, Hold);
    let o = Observed { steered: HOLD, ..o };
    expect("now it may start", &o, Go);
    let o = Observed {
        verdict: Verdict::Go,
        ..o
    };
    expect("it has not been started yet", &o, Nothing);
    let o = Observed { waiting: false, ..o };
    expect(
        "the init container has ended, the process is not there yet",
        &o,
        Nothing,
    );
    let o = Observed {
        self_hosted_processes: 1,
        ..o
    };
    expect("it is not proven", &o, Nothing);
    let o = Observed {
        self_hosted_listens: true,
        proven: true,
        ..o
    };
    expect("proven", &o, Switch);
    let o = Observed {
        steered: JUST_SWITCHED,
        ..o
    };
    expect("accepted connections are given time", &o, Nothing);
    let o = Observed { steered: SWITCHED, ..o };
    expect("only now the manifest leaves", &o, RemoveManifest);
    let o = Observed {
        handed_over: true,
        manifest: Manifest::Absent,
        ..o
    };
    expect("the old process drains", &o, Nothing);
    assert!(!next_action(&o).settled);
    let o = Observed {
        static_processes: 0,
        ..o
    };
    assert!(next_action(&o).settled);
    assert_eq!(next_action(&o).state, State::SelfHosted);
    let o = Observed {
        steered: Steered::Switch(SETTLE * 2),
        ..o
    };
    expect("the port is steered for the next roll", &o, Hold);
}

#[test]
fn no_manifest_leaves_on_a_mere_time_out() {
    // whatever else is seen, without proof (or the announced gap) the manifest stays
    for handing_for in [Duration::ZERO, HANDOVER_DEADLINE + SETTLE] {
        for steered in [Steered::No, HOLD, SWITCHED] {
            for bits in 0..64_u32 {
                let bit = |n: u32| bits >> n & 1 == 1;
                let o = Observed {
                    desired: SelfHosted,
                    saved: bit(0),
                    verdict: if bit(1) { Verdict::Go } else { Verdict::Wait },
                    waiting: bit(2),
                    shared: bit(3),
                    self_hosted_processes: usize::from(bit(4)),
                    self_hosted_listens: bit(4),
                    fallback: bit(5),
                    handing_for,
                    steered,
                    proven: false,
                    ..at_rest()
                };
                let action = next_action(&o).action;
                assert!(
                    !matches!(action, RemoveManifest | RemoveFallback),
                    "{action:?} on {o:?}"
                );
            }
        }
    }
}

#[test]
fn the_dead_man_switch_gives_up_a_process_that_does_not_prove_itself() {
    let o = Observed {
        desired: SelfHosted,
        saved: true,
        verdict: Verdict::Go,
        steered: HOLD,
        shared: true,
        self_hosted_processes: 1,
        ..at_rest()
    };
    expect(
        "in time",
        &Observed {
            handing_for: HANDOVER_DEADLINE,
            ..o.clone()
        },
        Nothing,
    );
    let late = HANDOVER_DEADLINE + Duration::from_secs(1);
    expect(
        "late",
        &Observed {
            handing_for: late,
            ..o.clone()
        },
        Abort,
    );
    expect(
        "late, and gone",
        &Observed {
            handing_for: late,
            self_hosted_processes: 0,
            ..o.clone()
        },
        Abort,
    );
    expect(
        "the manifest was changed",
        &Observed {
            manifest: Manifest::Foreign,
            ..o.clone()
        },
        Abort,
    );
    // after the abort the static Pod stays, and the word to wait has been given
    let o = Observed {
        desired: Static,
        verdict: Verdict::Wait,
        ..o
    };
    expect("the DaemonSet's process is left to the CLI", &o, Nothing);
    let o = Observed {
        self_hosted_processes: 0,
        ..o
    };
    assert!(next_action(&o).settled);
}

#[test]
fn the_fallback_comes_when_nothing_serves_and_leaves_when_the_pod_has_proved_itself() {
    let silent = Observed {
        self_hosted_processes: 0,
        self_hosted_listens: false,
        silent_for: Duration::from_secs(7),
        ..converted()
    };
    expect("within the grace", &silent, Nothing);
    let o = Observed {
        silent_for: Duration::from_secs(8),
        ..silent
    };
    expect("beyond it", &o, PutFallback);
    let o = Observed {
        silent_for: Duration::from_secs(60),
        static_processes: 1,
        ..o
    };
    expect("a process that drains does not serve", &o, PutFallback);
    let o = Observed {
        fallback: true,
        static_processes: 0,
        ..o
    };
    expect("it is put in once", &o, Nothing);
    let o = Observed {
        fallback_processes: 1,
        silent_for: Duration::ZERO,
        shared: true,
        ..o
    };
    assert_eq!(next_action(&o).state, State::Fallback);
    expect("the group of the fallback is steered", &o, Hold);
    let o = Observed { steered: HOLD, ..o };
    assert!(next_action(&o).settled, "a fallback is a steady state");
    let o = Observed {
        self_hosted_processes: 1,
        ..o
    };
    expect("the Pod's process is not proven", &o, Nothing);
    let o = Observed { proven: true, ..o };
    expect("proven", &o, Switch);
    let o = Observed { steered: SWITCHED, ..o };
    expect("the fallback leaves", &o, RemoveFallback);
    let o = Observed { fallback: false, ..o };
    expect("its process drains", &o, Nothing);
    assert_eq!(next_action(&o).state, State::Both);
    let o = Observed {
        fallback_processes: 0,
        ..o
    };
    assert!(next_action(&o).settled);
}

#[test]
fn a_fallback_that_does_not_come_up_gives_way_to_the_other_one() {
    let o = Observed {
        fallback: true,
        other_fallback: true,
        fallback_for: FALLBACK_DEADLINE,
        silent_for: FALLBACK_DEADLINE,
        self_hosted_processes: 0,
        self_hosted_listens: false,
        ..converted()
    };
    expect("it had its time", &o, PutOtherFallback);
    for (about, o) in [
        (
            "it was just put in",
            Observed {
                fallback_for: SETTLE,
                ..o.clone()
            },
        ),
        (
            "something listens",
            Observed {
                silent_for: Duration::ZERO,
                ..o.clone()
            },
        ),
        (
            "there is no other one",
            Observed {
                other_fallback: false,
                ..o.clone()
            },
        ),
    ] {
        expect(about, &o, Nothing);
    }
    let gap = Observed {
        desired: SelfHostedGap,
        ..o
    };
    expect("also where ports cannot be shared", &gap, PutOtherFallback);
}

#[test]
fn a_manifest_that_somebody_writes_is_not_fought() {
    for manifest in [Manifest::Original, Manifest::Foreign] {
        let o = Observed {
            manifest,
            static_processes: 1,
            ..converted()
        };
        let decision = next_action(&o);
        assert_eq!((decision.action, decision.state), (Nothing, State::Both));
        let o = Observed {
            desired: Static,
            verdict: Verdict::Wait,
            ..o
        };
        let decision = next_action(&o);
        assert_eq!(decision.action, Nothing);
        assert!(decision.error.is_some());
    }
    let o = Observed {
        desired: SelfHosted,
        saved: true,
        manifest: Manifest::Foreign,
        ..at_rest()
    };
    expect("before the hand-over it is the new original", &o, SaveOriginal);
}

#[test]
fn the_way_back_puts_the_original_in_when_the_port_is_free() {
    let o = Observed {
        desired: Static,
        ..converted()
    };
    expect("no Pod may start any more", &o, Wait);
    let o = Observed {
        verdict: Verdict::Wait,
        ..o
    };
    expect("the Pod still listens", &o, Nothing);
    let o = Observed {
        self_hosted_listens: false,
        ..o
    };
    expect("it drains: the port is free", &o, PutOriginal);
    let died = Observed {
        manifest: Manifest::Original,
        static_processes: 1,
        ..o.clone()
    };
    expect("the guard died before it noted so", &died, PutOriginal);
    let o = Observed {
        handed_over: false,
        manifest: Manifest::Original,
        ..o
    };
    expect("the kubelet starts it", &o, Nothing);
    let o = Observed {
        self_hosted_processes: 0,
        ..o
    };
    let late = Observed {
        handing_for: PUT_AGAIN + SETTLE,
        ..o.clone()
    };
    expect("the kubelet refused it", &late, PutOriginalAgain);
    let o = Observed {
        static_processes: 1,
        ..o
    };
    assert!(next_action(&o).settled);
    assert_eq!(next_action(&o).state, State::Static);
}

/// A wrong template has put something on the port that is not the component, and never answers.
#[test]
fn the_fallback_serves_past_a_stranger_on_its_port() {
    let o = Observed {
        self_hosted_processes: 0,
        self_hosted_listens: false,
        fallback: true,
        fallback_processes: 1,
        shared: true,
        strangers: true,
        ..converted()
    };
    expect("it is to be the oldest that serves", &o, Hold);
    let o = Observed { steered: HOLD, ..o };
    expect("the stranger came later", &o, Nothing);
    let o = Observed {
        fallback_proven: true,
        ..o
    };
    expect("the stranger came first", &o, Switch);
    let o = Observed {
        steered: JUST_SWITCHED,
        ..o
    };
    expect("it serves", &o, Nothing);
    assert!(next_action(&o).settled);
    let o = Observed {
        fallback_proven: false,
        ..o
    };
    expect("the stranger started again, and is the newest now", &o, Hold);
    let o = Observed {
        strangers: false,
        steered: SWITCHED,
        ..o
    };
    expect("the stranger is gone", &o, Hold);
}

#[test]
fn the_way_back_from_a_fallback_takes_it_out_first() {
    let o = Observed {
        desired: Static,
        verdict: Verdict::Wait,
        fallback: true,
        fallback_processes: 1,
        self_hosted_processes: 0,
        self_hosted_listens: false,
        ..converted()
    };
    expect("out", &o, RemoveFallback);
    let o = Observed { fallback: false, ..o };
    expect("gone?", &o, Nothing);
    let o = Observed {
        fallback_processes: 0,
        ..o
    };
    expect("in", &o, PutOriginal);
}

#[test]
fn the_way_back_with_sharing_has_no_gap() {
    let o = Observed {
        desired: StaticSharing,
        ..converted()
    };
    expect("no Pod may start any more", &o, Wait);
    let o = Observed {
        verdict: Verdict::Wait,
        ..o
    };
    expect("the port is steered first", &o, Hold);
    let o = Observed { steered: HOLD, ..o };
    expect("then the static Pod may come", &o, PutSharing);
    let o = Observed {
        manifest: Manifest::Sharing,
        handed_over: false,
        ..o
    };
    expect("it starts", &o, Nothing);
    let o = Observed {
        static_processes: 1,
        ..o
    };
    expect("it is not proven", &o, Nothing);
    assert!(!next_action(&o).releasable);
    let o = Observed { proven: true, ..o };
    expect("proven", &o, Switch);
    let o = Observed {
        steered: JUST_SWITCHED,
        ..o
    };
    assert!(!next_action(&o).releasable);
    let o = Observed { steered: SWITCHED, ..o };
    assert!(next_action(&o).releasable);
    let o = Observed {
        self_hosted_processes: 0,
        self_hosted_listens: false,
        ..o
    };
    assert!(next_action(&o).settled);
    // and from there to the original itself
    let o = Observed { desired: Static, ..o };
    expect("one restart", &o, PutOriginal);
}

#[test]
fn gap_mode_takes_the_manifest_out_only_while_a_pod_waits() {
    let o = Observed {
        desired: SelfHostedGap,
        saved: true,
        ..at_rest()
    };
    expect("no Pod waits", &o, Nothing);
    let o = Observed { waiting: true, ..o };
    expect("it may start when the port is free", &o, Go);
    let o = Observed {
        verdict: Verdict::Go,
        ..o
    };
    expect("the gap begins", &o, RemoveManifest);
    let o = Observed {
        handed_over: true,
        manifest: Manifest::Absent,
        ..o
    };
    expect("the old one ends", &o, Nothing);
    let o = Observed {
        static_processes: 0,
        waiting: false,
        silent_for: Duration::from_secs(3),
        ..o
    };
    expect("the new one starts", &o, Nothing);
    expect(
        "it does not come",
        &Observed {
            silent_for: o.grace,
            ..o.clone()
        },
        PutFallback,
    );
    let slow = Observed {
        silent_for: o.grace,
        self_hosted_processes: 1,
        ..o.clone()
    };
    expect("it is there and slow", &slow, Nothing);
    expect(
        "too slow",
        &Observed {
            silent_for: GAP_DEADLINE,
            ..slow
        },
        PutFallback,
    );
    let back = Observed {
        fallback: true,
        fallback_processes: 1,
        silent_for: Duration::ZERO,
        ..o.clone()
    };
    expect("the fallback serves on", &back, Nothing);
    expect(
        "a Pod waits for its port",
        &Observed { waiting: true, ..back },
        RemoveFallback,
    );
    let o = Observed {
        self_hosted_processes: 1,
        self_hosted_listens: true,
        silent_for: Duration::ZERO,
        ..o
    };
    assert!(next_action(&o).settled);
}

#[test]
fn a_crash_between_taking_the_manifest_out_and_noting_it_is_finished() {
    let o = Observed {
        handed_over: false,
        ..converted()
    };
    expect(
        "proven: it is noted",
        &Observed {
            proven: true,
            ..o.clone()
        },
        NoteHandedOver,
    );
    expect("not proven: the original comes back", &o, PutOriginal);
    expect("nothing saved: nothing to do", &Observed { saved: false, ..o }, Nothing);
}

/// Over all combinations: the guard never does what an invariant forbids.
#[test]
fn invariants_hold_over_all_combinations() {
    let mut seen = std::collections::HashSet::new();
    for desired in Desired::ALL {
        for manifest in [
            Manifest::Absent,
            Manifest::Original,
            Manifest::Sharing,
            Manifest::Foreign,
        ] {
            for steered in [Steered::No, HOLD, JUST_SWITCHED, SWITCHED] {
                for bits in 0..32_768_u32 {
                    let bit = |n: u32| bits >> n & 1 == 1;
                    let o = Observed {
                        desired,
                        manifest,
                        steered,
                        handed_over: bit(0),
                        saved: bit(1),
                        fallback: bit(2),
                        verdict: if bit(3) { Verdict::Go } else { Verdict::Wait },
                        waiting: bit(4),
                        static_processes: usize::from(bit(5)),
                        fallback_processes: usize::from(bit(6)),
                        self_hosted_processes: usize::from(bit(7)),
                        self_hosted_listens: bit(7) && bit(8),
                        shared: bit(9),
                        proven: bit(10),
                        strangers: bit(12),
                        fallback_proven: bit(12) && bit(13),
                        silent_for: if bit(11) {
                            FALLBACK_DEADLINE.max(Duration::from_secs(60))
                        } else {
                            Duration::ZERO
                        },
                        fallback_for: FALLBACK_DEADLINE,
                        other_fallback: bit(14),
                        ..at_rest()
                    };
                    let decision = next_action(&o);
                    seen.insert(decision.action);
                    match decision.action {
                        RemoveManifest => {
                            assert!(o.saved, "unsaved bytes are not removed: {o:?}");
                            assert_eq!(
                                o.manifest,
                                Manifest::Original,
                                "only the saved original is removed: {o:?}"
                            );
                            assert!(desired.is_self_hosted());
                            assert!(o.proven || (desired == SelfHostedGap && o.waiting), "{o:?}");
                        }
                        PutOriginal | PutOriginalAgain | PutSharing => {
                            assert!(o.saved, "{o:?}");
                            assert_ne!(
                                o.manifest,
                                Manifest::Foreign,
                                "what somebody wrote is not overwritten: {o:?}"
                            );
                        }
                        PutFallback => assert!(o.handed_over && !o.fallback, "{o:?}"),
                        PutOtherFallback => {
                            assert!(
                                o.handed_over && o.fallback && o.other_fallback && !o.silent_for.is_zero(),
                                "{o:?}"
                            );
                        }
                        Go => assert!(desired.is_self_hosted(), "{o:?}"),
                        SaveOriginal => assert!(!o.handed_over && o.verdict == Verdict::Wait || !o.saved, "{o:?}"),
                        _ => {}
                    }
                    if decision.settled {
                        assert_eq!(decision.action, Nothing);
                        assert!(decision.error.is_none());
                    }
                    if decision.action == Nothing && !decision.settled {
                        assert!(
                            !decision.step.is_empty() || decision.error.is_some(),
                            "it says what it waits for: {o:?}"
                        );
                    }
                }
            }
        }
    }
    let all = [
        Nothing,
        SaveOriginal,
        Share,
        Hold,
        Switch,
        Go,
        Wait,
        RemoveManifest,
        NoteHandedOver,
        PutFallback,
        PutOtherFallback,
        RemoveFallback,
        PutOriginal,
        PutSharing,
        Abort,
    ];
    for action in all {
        assert!(seen.contains(&action), "{action:?} is never decided");
    }
}

fn expect(about: &str, o: &Observed, action: Action) {
    let decision = next_action(o);
    assert_eq!(decision.action, action, "{about}: {decision:?} on {o:?}");
}

/// A template with which the apiserver starts, listens, and never gets ready; its good Pod is lost.
#[test]
fn a_process_that_listens_and_is_not_healthy_gets_the_fallback_beside_it() {
    let o = converted();
    let almost = Observed {
        unhealthy_for: unhealthy::DEADLINE.saturating_sub(Duration::from_secs(1)),
        ..o.clone()
    };
    expect("a large apiserver takes its time", &almost, Nothing);
    let o = Observed {
        unhealthy_for: unhealthy::DEADLINE,
        steered: HOLD,
        ..o
    };
    expect("nobody serves", &o, PutFallback);
    let in_gap_mode = Observed {
        desired: SelfHostedGap,
        ..o.clone()
    };
    expect("it could not listen", &in_gap_mode, Nothing);
    let o = Observed { fallback: true, ..o };
    expect("it is not there yet", &o, Nothing);
    let o = Observed {
        fallback_processes: 1,
        shared: true,
        ..o
    };
    expect("it is not healthy either, as when etcd is away", &o, Nothing);
    let o = Observed {
        fallback_proven: true,
        ..o
    };
    expect("it serves", &o, Switch);
    let o = Observed { steered: SWITCHED, ..o };
    expect("this is how it stays", &o, Nothing);
    assert!(next_action(&o).error.is_some());

    let ended = Observed {
        self_hosted_processes: 0,
        self_hosted_listens: false,
        unhealthy_for: Duration::ZERO,
        fallback_proven: false,
        ..o.clone()
    };
    expect(
        "the kubelet ended it: the next one must not be given everything",
        &ended,
        Hold,
    );
    let next = Observed {
        self_hosted_processes: 1,
        self_hosted_listens: true,
        steered: HOLD,
        ..ended
    };
    expect("the next one proves nothing", &next, Nothing);
    let proven = Observed { proven: true, ..next };
    expect("a mended one does", &proven, Switch);

    let well = Observed {
        unhealthy_for: Duration::ZERO,
        self_hosted_healthy_before_fallback: true,
        ..o
    };
    expect("etcd is back: the DaemonSet's process was there first", &well, Hold);
    let well = Observed { steered: HOLD, ..well };
    expect("and serves", &well, RemoveFallback);
}
