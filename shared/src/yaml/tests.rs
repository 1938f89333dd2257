use proptest::prelude::*;
use serde_json::json;

use super::*;

/// What `sigs.k8s.io/yaml` 1.6.0 makes of each text, as measured with that module: a value or an error.
const GO: &str = include_str!("go.json");

#[derive(serde::Deserialize)]
struct Case {
    yaml: String,
    #[serde(default)]
    value: Value,
    error: Option<String>,
}

/// Where we differ from Go, and how: first what is meant, then what is known and rare.
fn known_differences() -> Vec<(&'static str, Option<Value>)> {
    vec![
        ("a: 1\na: 2\n", None),
        ("{\"a\": 1, \"a\": 2}", None),
        // The kubelet hands text that begins with a brace to its JSON reader, and so do we.
        ("{a: 1}\n", None),
        ("y: 2\n", Some(json!({"y": 2}))),
        ("on: x\n", Some(json!({"on": "x"}))),
        ("0x10: a\n", Some(json!({"0x10": "a"}))),
        ("v: 0X1F\n", Some(json!({"v": "0X1F"}))),
        ("v: 0B11\n", Some(json!({"v": "0B11"}))),
        ("v: 1_0.5\n", Some(json!({"v": "1_0.5"}))),
        ("v: 1__0\n", Some(json!({"v": "1__0"}))),
        ("v: 1e400\n", None),
        ("\ta: 1\n", Some(json!({"a": 1}))),
    ]
}

/// Equal as JSON is equal for Go: 1 and 1.0 are one number.
fn same(left: &Value, right: &Value) -> bool {
    match (left, right) {
        (Value::Number(left), Value::Number(right)) => left == right || left.as_f64() == right.as_f64(),
        (Value::Object(left), Value::Object(right)) => {
            left.len() == right.len()
                && left
                    .iter()
                    .all(|(key, value)| right.get(key).is_some_and(|other| same(value, other)))
        }
        _ => left == right,
    }
}

#[test]
fn texts_are_read_as_go_reads_them_but_for_the_known_differences() {
    let cases: Vec<Case> = serde_json::from_str(GO).unwrap();
    assert!(cases.len() > 100);
    let known = known_differences();
    let mut differences = Vec::new();
    for Case { yaml, value, error } in &cases {
        let ours = first_document(yaml);
        let equal = match (&ours, error) {
            (Ok(ours), None) => same(ours, value),
            (Err(Error::Empty), None) => value.is_null(),
            (Err(_), Some(_)) => true,
            _ => false,
        };
        if !equal {
            differences.push((yaml.as_str(), ours.ok()));
        }
    }
    differences.sort_by_key(|(yaml, _)| *yaml);
    let mut expected = known;
    expected.sort_by_key(|(yaml, _)| *yaml);
    assert_eq!(differences, expected);
}

#[test]
fn only_the_first_document_counts() {
    for text in [
        "a: 1\n---\nb: [",
        "a: 1\n...\n}",
        "# c\n---\na: 1\n--- x",
        "%YAML 1.1\n---\na: 1\n---\n",
        "a: 1\r\n---\r\nb: [",
    ] {
        assert_eq!(first_document(text), Ok(json!({"a": 1})), "{text:?}");
    }
    assert_eq!(first_document("---\n---\na: 1"), Err(Error::Empty));
    assert_eq!(
        first_document("a: |\n  x\n  ---\n  y\n---\nz"),
        Ok(json!({"a": "x\n---\ny\n"}))
    );
}

#[test]
fn all_documents_are_found_and_empty_ones_left_out() {
    let text = "# one\na: 1\n---\n# nothing\n---\nb: 2\n...\n---\nc: 3\n---\n{\"d\": 4}\n";
    assert_eq!(
        all_documents(text),
        Ok(vec![json!({"a": 1}), json!({"b": 2}), json!({"c": 3}), json!({"d": 4})])
    );
    assert_eq!(all_documents("{\"a\": 1}"), Ok(vec![json!({"a": 1})]));
    assert_eq!(all_documents(""), Ok(vec![]));
}

#[test]
fn errors_name_line_and_column_of_the_whole_file() {
    assert_eq!(
        all_documents("a: 1\n---\nb: 1\nc: 2\nb: 3\n"),
        Err(Error::DuplicateKey {
            key: "b".into(),
            line: 5,
            column: 1
        })
    );
    let error = first_document("a: 1\nb:\n  c: [1, 2\nd: 3\n").unwrap_err();
    assert!(matches!(error, Error::Syntax { line: 3 | 4, .. }), "{error}");
    let error = first_document("{\"a\": 1,\n \"b\": }").unwrap_err();
    assert_eq!(error.to_string(), "line 2, column 7: as JSON: expected value");
    assert_eq!(
        first_document("{\"a\": {\"b\": 1,\n\"b\": 2}}"),
        Err(Error::DuplicateKey {
            key: "b".into(),
            line: 2,
            column: 3
        })
    );
    let error = first_document("{\"a\": 1}\n---\n{\"b\": 2}").unwrap_err();
    assert!(error.to_string().contains("trailing characters"), "{error}");
}

#[test]
fn a_message_says_the_position_once_and_fits_on_a_line() {
    for text in [
        "a: b: c\n",
        "a: *x\n",
        "a: 1\n b: 2\n",
        "v: .nan\n",
        "a: \"\n",
        "? [a]\n: b\n",
    ] {
        let message = first_document(text).unwrap_err().to_string();
        assert_eq!(message.matches("line ").count(), 1, "{message}");
        assert!(!message.contains('\n'), "{message}");
    }
}

#[test]
fn numbers_of_file_modes_are_octal() {
    assert_eq!(first_document("defaultMode: 0400"), Ok(json!({"defaultMode": 256})));
}

#[test]
fn a_typed_reading_refuses_what_the_kubelet_refuses() {
    use k8s_openapi::api::core::v1::Pod;
    let pod = |field: &str| {
        let text = format!(
            "apiVersion: v1\nkind: Pod\nmetadata:\n  name: a\nspec:\n  containers:\n  - name: a\n    {field}\n"
        );
        typed::<Pod>(&first_document(&text).unwrap()).map(|_| ())
    };
    for field in [
        "env: [{name: a, value: yes}]",
        "env: [{name: a, value: 1}]",
        "command: [0777]",
    ] {
        assert!(pod(field).is_err(), "{field}");
    }
    assert!(pod("env: [{name: a, value: \"yes\"}]").is_ok());
}

#[test]
fn billions_of_laughs_are_refused() {
    let mut text = "a0: &a0 [x, x, x, x, x, x, x, x, x, x]\n".to_owned();
    for level in 1..12 {
        let items = vec![format!("*a{}", level - 1); 10].join(", ");
        text.push_str(&format!("a{level}: &a{level} [{items}]\n"));
    }
    assert!(matches!(first_document(&text), Err(Error::Syntax { .. })));
    let deep = "[".repeat(100_000);
    assert!(first_document(&deep).is_err());
    assert!(first_document(&format!("{{\"a\": {deep}")).is_err());
}

#[test]
fn keys_that_kubernetes_misreads_are_found() {
    let value = json!({"on": 1, "a": [{"labels/x": {"Yes": 2, "y~": 3}}], "name": 4});
    assert_eq!(ambiguous_keys(&value), ["/on", "/a/0/labels~1x/Yes"]);
}

/// Strings that a YAML 1.1 reader takes for something else when they stand without quotes.
const HOSTILE: &str = "yes no on off y n Y N Yes No On Off YES NO ON OFF true false True FALSE null Null NULL ~ 0777 010 0o777 \
    0x1F 0X1F 0b11 1_000 1_0.5 +1 -1 1 1.5 .5 1. 1e3 1E3 1e400 18446744073709551616 .inf -.inf .nan .NaN 12:30 12:30:45 \
    2001-01-01 2001-12-14t21:59:43.10-05:00 = << * & ! | > ' \" % @ ` - --- ... ? : , [] {} [ ] { } # a:b a#b !!str &a *a \
    08 09 0o8 00 -0 0. 1__0 _1 0_7 0x_1";

#[test]
fn what_is_written_is_read_back_and_hostile_strings_are_quoted() {
    let mut hostile: Vec<String> = HOSTILE.split_whitespace().map(str::to_owned).collect();
    hostile.extend(
        [
            "",
            " ",
            " a",
            "a ",
            "a: b",
            "a #b",
            "a\nb",
            "a\n",
            "\na",
            "a\n\n",
            "\t",
            "a\tb",
            "- a",
            "? a",
            "\u{85}",
            "\u{2028}",
            "\u{feff}a",
            "\u{0}",
            "\u{7f}",
            "é",
            "日本",
            "😀",
            " \n a\n",
            "a\r\nb",
            "\\",
            "a\\nb",
        ]
        .map(str::to_owned),
    );
    for text in &hostile {
        let value = json!({"v": text, "list": [text, {"in": text}], "keys": {text: text}});
        let written = to_string(&value).unwrap();
        assert_eq!(
            first_document(&written).as_ref(),
            Ok(&value),
            "{text:?} was written as {written}"
        );
    }
    let plain_numbers_and_words = "yes no on off y n Y N Yes NO On true False null ~ 0777 010 0x1F 0b11 1_000 1_0.5 1 1.5 1e3 .inf .nan 2001-01-01 << =";
    for text in plain_numbers_and_words.split_whitespace() {
        let written = to_string(&json!({"v": text})).unwrap();
        assert!(
            written.starts_with("v: \"") || written.starts_with("v: '"),
            "{text} was written as {written}"
        );
        let written = to_string(&json!({text: 1})).unwrap();
        assert!(
            written.starts_with(['"', '\'']),
            "the key {text} was written as {written}"
        );
    }
}

#[test]
fn texts_of_several_lines_are_blocks_unless_go_refuses_them() {
    assert_eq!(
        to_string(&json!({"v": "a: 1\nb: 2\n"})).unwrap(),
        "v: |\n  a: 1\n  b: 2\n"
    );
    // Go: "found a tab character where an indentation space is expected".
    assert_eq!(to_string(&json!({"v": "\ta\nb\n"})).unwrap(), "v: \"\\ta\\nb\\n\"\n");
    assert_eq!(to_string(&json!({"v": ["\n\ta\n"]})).unwrap(), "v:\n- \"\\n\\ta\\n\"\n");
}

fn any_value() -> impl Strategy<Value = Value> {
    let leaf = prop_oneof![
        Just(Value::Null),
        any::<bool>().prop_map(Value::from),
        any::<i64>().prop_map(Value::from),
        any::<u64>().prop_map(Value::from),
        any::<String>().prop_map(Value::from),
        "[ -~\n\t]{0,40}".prop_map(Value::from),
        "[a-zA-Z0-9_.:+-]{1,8}".prop_map(Value::from),
    ];
    leaf.prop_recursive(4, 40, 6, |inner| {
        prop_oneof![
            prop::collection::vec(inner.clone(), 0..5).prop_map(Value::from),
            prop::collection::vec(("[ -~]{0,12}", inner), 0..5)
                .prop_map(|entries| Value::Object(entries.into_iter().collect())),
        ]
    })
}

proptest! {
    #[test]
    fn any_value_survives_writing_and_reading(value in any_value()) {
        let value = json!({"v": value});
        let written = to_string(&value).unwrap();
        prop_assert_eq!(first_document(&written), Ok(value), "written as {}", written);
    }

    #[test]
    fn no_text_makes_it_panic(text in "[-{}\\[\\]:,&*#?|>%@`'\"!a-c0-9_ .\n\t\r\u{feff}é]{0,60}") {
        let _ = first_document(&text);
        let _ = all_documents(&text);
    }

    #[test]
    fn json_is_read_as_serde_json_reads_it(value in any_value()) {
        let value = json!({"v": value});
        prop_assert_eq!(first_document(&value.to_string()), Ok(value.clone()));
        prop_assert_eq!(first_document(&serde_json::to_string_pretty(&value).unwrap()), Ok(value));
    }
}
