//! What differs between two Pods, field by field.

use serde_json::Value;

use crate::fields::string_at;

/// One field that differs.
#[derive(Clone, Debug, PartialEq)]
pub struct Difference {
    /// Path of the field, as `spec.containers[kube-apiserver].command[3]`.
    pub path: String,
    /// The value before; absent where the field is new.
    pub before: Option<Value>,
    /// The value after; absent where the field is gone.
    pub after: Option<Value>,
}

/// Every difference between `before` and `after`, in the order of `before`, new fields last.
///
/// Elements of lists are matched by their name, or by their mount path, where all have a unique one; else by position,
/// after the parts at both ends that are equal.
#[must_use]
pub fn diff(before: &Value, after: &Value) -> Vec<Difference> {
    let mut found = Vec::new();
    compare(&mut String::new(), Some(before), Some(after), &mut found);
    found
}

/// Compares two values and everything in them. `path` is written to and put back: most fields are equal, and need no
/// path of their own.
fn compare(path: &mut String, before: Option<&Value>, after: Option<&Value>, found: &mut Vec<Difference>) {
    match (before, after) {
        (Some(Value::Object(before)), Some(Value::Object(after))) => {
            let length = path.len();
            // Mostly both have the same keys in the same order, and nothing needs to be looked up.
            let mut others = after.iter();
            for (key, value) in before {
                let other = others.next().filter(|(other, _)| *other == key).map(|(_, value)| value);
                push_member(path, key);
                compare(path, Some(value), other.or_else(|| after.get(key)), found);
                path.truncate(length);
            }
            for (key, value) in after.iter().filter(|(key, _)| !before.contains_key(*key)) {
                push_member(path, key);
                compare(path, None, Some(value), found);
                path.truncate(length);
            }
        }
        (Some(Value::Array(before)), Some(Value::Array(after))) => compare_lists(path, before, after, found),
        (before, after) if before == after => {}
        (before, after) => {
            found.push(Difference {
                path: path.clone(),
                before: before.cloned(),
                after: after.cloned(),
            });
        }
    }
}

/// The key whose value names each element of both lists uniquely.
fn element_key(before: &[Value], after: &[Value]) -> Option<&'static str> {
    ["mountPath", "name"].into_iter().find(|key| {
        [before, after].into_iter().all(|list| {
            let mut names: Vec<_> = list.iter().map(|element| string_at(element, &[key])).collect();
            names.sort_unstable();
            names.iter().all(Option::is_some) && names.windows(2).all(|pair| pair.first() != pair.last())
        })
    })
}

fn compare_lists(path: &mut String, before: &[Value], after: &[Value], found: &mut Vec<Difference>) {
    let length = path.len();
    let mut element = |name: &dyn std::fmt::Display, before: Option<&Value>, after: Option<&Value>| {
        path.push_str(&format!("[{name}]"));
        compare(path, before, after, found);
        path.truncate(length);
    };
    if let Some(key) = element_key(before, after) {
        let name = |element| string_at(element, &[key]).unwrap_or_default();
        for one in before {
            element(
                &name(one),
                Some(one),
                after.iter().find(|other| name(other) == name(one)),
            );
        }
        for one in after
            .iter()
            .filter(|one| !before.iter().any(|other| name(other) == name(one)))
        {
            element(&name(one), None, Some(one));
        }
        return;
    }
    let start = before
        .iter()
        .zip(after)
        .take_while(|(before, after)| before == after)
        .count();
    let rest = before.len().min(after.len()) - start;
    let tail = before
        .iter()
        .rev()
        .zip(after.iter().rev())
        .take(rest)
        .take_while(|(one, other)| one == other)
        .count();
    let middle = |list: &'_ [Value], index: usize| index < list.len() - tail;
    for index in start..before.len().max(after.len()) - tail {
        let before = before.get(index).filter(|_| middle(before, index));
        element(&index, before, after.get(index).filter(|_| middle(after, index)));
    }
}

/// Appends a member of a map to a path; names that are no plain words stand in brackets.
fn push_member(path: &mut String, key: &str) {
    if !key
        .chars()
        .all(|letter| letter.is_ascii_alphanumeric() || letter == '_' || letter == '-')
    {
        path.push('[');
        path.push_str(key);
        path.push(']');
        return;
    }
    if !path.is_empty() {
        path.push('.');
    }
    path.push_str(key);
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn paths(before: &Value, after: &Value) -> Vec<String> {
        let show = |value: Option<Value>| value.map_or_else(|| "-".to_owned(), |value| value.to_string());
        diff(before, after)
            .into_iter()
            .map(|difference| {
                format!(
                    "{} {} {}",
                    difference.path,
                    show(difference.before),
                    show(difference.after)
                )
            })
            .collect()
    }

    #[test]
    fn maps_and_lists() {
        assert_eq!(paths(&json!({"a": 1}), &json!({"a": 1})), [""; 0]);
        assert_eq!(
            paths(&json!({"a": {"b": 1, "c": 2}}), &json!({"a": {"b": 1, "x.y/z": 3}})),
            ["a.c 2 -", "a[x.y/z] - 3"]
        );
        assert_eq!(
            paths(&json!({"l": ["a", "b", "z"]}), &json!({"l": ["a", "z"]})),
            ["l[1] \"b\" -"]
        );
        assert_eq!(
            paths(&json!({"l": ["a", "z"]}), &json!({"l": ["a", "b", "z"]})),
            ["l[1] - \"b\""]
        );
        assert_eq!(
            paths(&json!({"l": ["a", "b"]}), &json!({"l": ["a", "c"]})),
            ["l[1] \"b\" \"c\""]
        );
        assert_eq!(paths(&json!({"l": ["a", "a"]}), &json!({"l": ["a"]})), ["l[1] \"a\" -"]);
        assert_eq!(paths(&json!({"l": []}), &json!({"l": ["a"]})), ["l[0] - \"a\""]);
        assert_eq!(paths(&json!({"a": [1]}), &json!({"a": {"b": 1}})), ["a [1] {\"b\":1}"]);
    }

    #[test]
    fn named_elements() {
        let before = json!({"c": [{"name": "x", "v": 1}]});
        let after = json!({"c": [{"name": "first"}, {"name": "x", "v": 2}]});
        assert_eq!(
            paths(&before, &after),
            ["c[x].v 1 2", "c[first] - {\"name\":\"first\"}"]
        );
        // One volume mounted twice: the mount path tells the mounts apart.
        let before = json!([{"name": "v", "mountPath": "/a"}, {"name": "v", "mountPath": "/b"}]);
        assert_eq!(
            paths(&before, &json!([{"name": "v", "mountPath": "/b"}])),
            ["[/a] {\"name\":\"v\",\"mountPath\":\"/a\"} -"]
        );
        // Names that repeat tell nothing apart.
        let before = json!([{"name": "v", "value": "1"}, {"name": "v", "value": "2"}]);
        assert_eq!(
            paths(&before, &json!([{"name": "v", "value": "1"}])),
            ["[1] {\"name\":\"v\",\"value\":\"2\"} -"]
        );
    }
}
