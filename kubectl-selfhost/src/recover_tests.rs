use super::*;
use crate::last_known_good::Template;

fn whole(memory: Option<(Desired, bool)>) -> Saved {
    Saved::Whole {
        memory,
        made_of: FallbackReport {
            made_of: MadeOf::Template,
            template: Template {
                generation: Some(4),
                revision: Some("abc".into()),
            },
            since: None,
            refused: None,
        },
    }
}

fn gone() -> ComponentFacts {
    ComponentFacts {
        serves: false,
        manifest: None,
        fallback_in: false,
        saved: whole(Some((Desired::SelfHosted, true))),
    }
}

fn facts(apiserver: ComponentFacts) -> Facts {
    Facts {
        components: BTreeMap::from([(Component::KubeApiserver, apiserver)]),
        guard_runs: false,
        guard_manifest: false,
    }
}

#[test]
fn each_state_of_a_component_has_its_step() {
    let put = |remember| Step::PutFallback {
        made_of: "the template of generation 4 (abc)".into(),
        remember,
    };
    let with = |change: &dyn Fn(&mut ComponentFacts)| {
        let mut facts = gone();
        change(&mut facts);
        facts
    };
    for (about, seen, expected) in [
        ("gone", gone(), put(false)),
        ("it serves", with(&|c| c.serves = true), Step::Leave("serves")),
        (
            "damaged, and it serves",
            with(&|c| {
                c.serves = true;
                c.saved = Saved::Damaged("x".into());
            }),
            Step::Leave("serves"),
        ),
        (
            "the fallback is in",
            with(&|c| c.fallback_in = true),
            Step::Leave("its fallback is in, and the kubelet starts it"),
        ),
        (
            "it is static",
            with(&|c| c.manifest = Some("kube-apiserver.yaml".into())),
            Step::Leave("its static manifest is in, and the kubelet starts it"),
        ),
        (
            "a revert was on its way",
            with(&|c| c.saved = whole(Some((Desired::Static, true)))),
            Step::Leave("was on its way back: the guard puts its original manifest in"),
        ),
        ("the memory is lost", with(&|c| c.saved = whole(None)), put(true)),
        (
            "it died before it noted that the manifest is out",
            with(&|c| c.saved = whole(Some((Desired::SelfHosted, false)))),
            put(true),
        ),
    ] {
        let plan = plan(&facts(seen)).unwrap();
        assert_eq!(plan.steps[&Component::KubeApiserver], expected, "{about}");
        assert!(plan.guard);
        assert!(plan.text().contains("guard: executable and guard are put back"));
    }
}

#[test]
fn a_node_that_is_no_such_node_is_told_so_and_nothing_is_done() {
    let nothing = ComponentFacts {
        saved: Saved::Nothing,
        ..gone()
    };
    let error = plan(&facts(nothing.clone())).unwrap_err().to_string();
    assert!(error.contains("nothing of a converted control plane"), "{error}");
    let of_static = ComponentFacts {
        manifest: Some("kube-apiserver.yaml".into()),
        ..nothing
    };
    let error = plan(&facts(of_static)).unwrap_err();
    assert!(error.why()[0].contains("static Pods"), "{error}");
    let damaged = ComponentFacts {
        saved: Saved::Damaged("/var/lib/selfhost/kube-apiserver/original.manifest is damaged".into()),
        ..gone()
    };
    let error = plan(&facts(damaged)).unwrap_err();
    assert!(error.why()[0].contains("original.manifest is damaged"), "{error}");
    assert!(error.hints().iter().any(|hint| hint.contains("--components")));
}

#[test]
fn a_guard_alone_that_is_gone_is_put_back_and_a_whole_node_needs_nothing() {
    let serves = ComponentFacts { serves: true, ..gone() };
    let mut all = facts(serves);
    assert!(!plan(&all).unwrap().is_empty());
    all.guard_runs = true;
    assert!(
        plan(&all).unwrap().guard,
        "it would not start again without its manifest"
    );
    all.guard_manifest = true;
    assert!(plan(&all).unwrap().is_empty());
}
