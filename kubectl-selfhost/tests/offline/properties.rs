//! Properties that hold for manifests of every shape.

use kubectl_selfhost::daemon_set::build_daemon_set;
use kubectl_selfhost::fallback::build_fallback;
use kubectl_selfhost::manifest::parse;
use kubectl_selfhost::mutators::{Mode, default_mutators};
use kubectl_selfhost::names::Component;
use kubectl_selfhost::plan::{Snapshot, plan};
use proptest::collection::{btree_map, vec};
use proptest::prelude::*;
use proptest::sample::{Index, select};
use serde_json::{Map, Value};

use crate::support::{context, options, pod};

fn component() -> impl Strategy<Value = Component> {
    select(Component::ALL.to_vec())
}

fn mode() -> impl Strategy<Value = Mode> {
    select(vec![Mode::Steered, Mode::Gap])
}

/// Any JSON value of moderate size.
fn json_value() -> impl Strategy<Value = Value> {
    let leaf = prop_oneof![
        Just(Value::Null),
        any::<bool>().prop_map(Value::from),
        any::<i64>().prop_map(Value::from),
        "[a-z0-9:./ $()=-]{0,12}".prop_map(Value::from),
    ];
    leaf.prop_recursive(3, 12, 3, |inner| {
        prop_oneof![
            vec(inner.clone(), 0..3).prop_map(Value::from),
            btree_map("[a-z]{1,5}", inner, 0..3).prop_map(|map| Value::Object(map.into_iter().collect())),
        ]
    })
}

/// Flags as people write them, none of which we know.
fn flag() -> impl Strategy<Value = String> {
    prop_oneof![
        "--x-[a-z]{1,6}=[a-z0-9,*=./ :-]{0,10}",
        "--x-[a-z]{1,6}",
        "-v=[0-9]",
        "[a-z0-9/.]{1,8}",
    ]
}

/// Every map of a value, by JSON pointer.
fn maps(value: &Value, pointer: &str, found: &mut Vec<String>) {
    match value {
        Value::Object(map) => {
            found.push(pointer.to_owned());
            for (key, inner) in map {
                maps(
                    inner,
                    &format!("{pointer}/{}", key.replace('~', "~0").replace('/', "~1")),
                    found,
                );
            }
        }
        Value::Array(list) => {
            for (index, inner) in list.iter().enumerate() {
                maps(inner, &format!("{pointer}/{index}"), found);
            }
        }
        _ => {}
    }
}

/// Whether every `x-new-…` field of `before` is in `after` at a place that is reached by the same names.
fn carried(before: &Value, after: Option<&Value>, lost: &mut Vec<String>, path: &str) {
    match (before, after) {
        (Value::Object(map), after) => {
            for (key, value) in map {
                let other = after.and_then(|after| after.get(key));
                if key.starts_with("x-new") && other != Some(value) {
                    lost.push(format!("{path}.{key}"));
                } else {
                    carried(value, other, lost, &format!("{path}.{key}"));
                }
            }
        }
        (Value::Array(list), after) => {
            let others = after.and_then(Value::as_array).map_or(&[][..], Vec::as_slice);
            for (index, element) in list.iter().enumerate() {
                let name = |value: &Value| value.get("mountPath").or_else(|| value.get("name")).cloned();
                let other = match name(element) {
                    Some(wanted) => others.iter().find(|other| name(other).as_ref() == Some(&wanted)),
                    None => others.get(index),
                };
                carried(element, other, lost, &format!("{path}[{index}]"));
            }
        }
        _ => {}
    }
}

/// Parts of a Pod that a conversion replaces or drops as a whole, whatever is in them; see the mutators' reasons.
const REPLACED: [&str; 4] = [
    ".spec.containers[0].startupProbe",
    ".spec.containers[0].ports",
    ".status",
    ".apiVersion",
];

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, cases: 100, ..ProptestConfig::default() })]

    /// A field that is newer than this program survives, wherever it stands.
    #[test]
    fn unknown_fields_survive(
        component in component(),
        mode in mode(),
        places in vec((any::<Index>(), json_value()), 1..6),
    ) {
        let mut original = pod(component);
        for (number, (place, value)) in places.into_iter().enumerate() {
            let mut all = Vec::new();
            maps(&original, "", &mut all);
            // Kinds of maps in which every member has a meaning of its own are left out: labels, requests and the like.
            all.retain(|pointer| !pointer.contains("x-new") && !pointer.is_empty());
            let pointer = place.get(&all).clone();
            let map = original.pointer_mut(&pointer).unwrap().as_object_mut().unwrap();
            map.insert(format!("x-new-{number}"), value);
        }
        let mutators = default_mutators(component, &mode);
        let template = build_daemon_set(component, &original, &mutators, &context(component, mode)).unwrap();
        let template = &template["spec"]["template"];
        let mut lost = Vec::new();
        carried(&original, Some(template), &mut lost, "");
        lost.retain(|path| !REPLACED.iter().any(|replaced| path.starts_with(replaced)));
        prop_assert_eq!(lost, Vec::<String>::new());

        let fallback = build_fallback(component, &original).unwrap();
        let mut lost = Vec::new();
        carried(&original, Some(&fallback), &mut lost, "");
        lost.retain(|path| !REPLACED[1..].iter().any(|replaced| path.starts_with(replaced)));
        prop_assert_eq!(lost, Vec::<String>::new());
    }

    /// Arguments keep their order and their repeats; ours come behind them.
    #[test]
    fn arguments_keep_their_order(
        component in component(),
        command in vec(flag(), 0..8),
        args in vec(flag(), 0..8),
    ) {
        let mut original = pod(component);
        let mut words = vec![component.name().to_owned()];
        words.extend(command);
        original["spec"]["containers"][0]["command"] = words.clone().into();
        if !args.is_empty() {
            original["spec"]["containers"][0]["args"] = args.clone().into();
        }
        let mutators = default_mutators(component, &Mode::Steered);
        let daemon_set =
            build_daemon_set(component, &original, &mutators, &context(component, Mode::Steered)).unwrap();
        let main = &daemon_set["spec"]["template"]["spec"]["containers"][0];
        let read = |list: &str| -> Vec<String> {
            main.get(list).map(|list| serde_json::from_value(list.clone()).unwrap()).unwrap_or_default()
        };
        let sharing = "--permit-port-sharing=true".to_owned();
        if args.is_empty() {
            words.push(sharing);
            prop_assert_eq!(read("args"), Vec::<String>::new());
        } else {
            let mut args = args;
            args.push(sharing);
            prop_assert_eq!(read("args"), args);
        }
        prop_assert_eq!(read("command"), words);
    }

    /// Applying every mutator a second time, alone, changes nothing.
    #[test]
    fn mutators_are_idempotent(
        component in component(),
        mode in mode(),
        flags in vec(select(vec![
            "--permit-port-sharing=false", "--permit-port-sharing", "--advertise-address=192.0.2.11", "--advertise-address",
            "192.0.2.11", "--bind-address=::1", "--bind-address=192.0.2.11", "--secure-port=7443", "--x=y",
        ]), 0..6),
        environment in vec(select(vec!["GODEBUG", "HOST_IP", "KUBECTL_SELFHOST_ROLE", "A"]), 0..4),
    ) {
        let mut original = pod(component);
        let main = &mut original["spec"]["containers"][0];
        main["command"].as_array_mut().unwrap().extend(flags.into_iter().map(Value::from));
        main["env"] = environment.into_iter().map(|name| serde_json::json!({"name": name, "value": "a=1"})).collect();
        let context = context(component, mode);
        let mut template = kubectl_selfhost::daemon_set::template_of(&original).unwrap();
        for mutator in default_mutators(component, &mode) {
            (mutator.apply)(&mut template, &context).unwrap();
            let once = template.clone();
            (mutator.apply)(&mut template, &context).unwrap();
            prop_assert_eq!(&once, &template, "{}", mutator.name);
        }
        let once = template.clone();
        for mutator in default_mutators(component, &mode) {
            (mutator.apply)(&mut template, &context).unwrap();
        }
        prop_assert_eq!(once, template);
    }

    /// Nothing that lies in a manifest directory makes us panic, and all of it is either planned, refused or left alone.
    #[test]
    fn no_bytes_make_it_panic(component in component(), at in any::<Index>(), value in json_value(), bytes in vec(any::<u8>(), 0..64)) {
        let _ = parse(&bytes);
        let mut original = pod(component);
        let mut all = Vec::new();
        maps(&original, "", &mut all);
        let pointer = at.get(&all).clone();
        *original.pointer_mut(&pointer).unwrap() = value;
        let text = original.to_string();
        let directory = tempfile::tempdir().unwrap();
        std::fs::write(directory.path().join("kube.json"), &text).unwrap();
        let entries = kubectl_selfhost::manifest::read_directory(directory.path()).unwrap();
        let plan = plan(&Snapshot::of_manifests("DIR".to_owned(), entries), &options());
        prop_assert!(!plan.refusals.is_empty());
        prop_assert!(!kubectl_selfhost::render::render_text(&plan, 80, true).is_empty());
        for component in Component::ALL {
            let mutators = default_mutators(component, &Mode::Steered);
            let _ = build_daemon_set(component, &original, &mutators, &context(component, Mode::Steered));
            let _ = build_fallback(component, &original);
        }
    }

    /// What the difference names, and nothing else, differs.
    #[test]
    fn differences_are_complete(before in json_value(), after in json_value()) {
        let differences = kubectl_selfhost::diff::diff(&before, &after);
        prop_assert_eq!(differences.is_empty(), before == after);
        for difference in differences {
            prop_assert_ne!(difference.before, difference.after);
        }
    }
}

#[test]
fn the_helper_finds_what_is_lost() {
    let before: Value = serde_json::json!({"a": [{"name": "n", "x-new-1": 1}], "x-new-2": {}});
    let mut lost = Vec::new();
    carried(&before, Some(&Value::Object(Map::new())), &mut lost, "");
    assert_eq!(lost, [".a[0].x-new-1", ".x-new-2"]);
}
