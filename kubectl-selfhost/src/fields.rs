//! Reaching into Pods that are kept as plain JSON values.
//!
//! Pods are never turned into typed structures: a field that is newer than the compiled API would get lost on the way.

use serde_json::{Map, Value};

/// Something about one field that makes a Pod unfit, with what to do about it.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error, serde::Serialize, serde::Deserialize)]
#[error("{field}: {what}")]
pub struct FieldError {
    /// Path of the field inside the Pod, as `spec.containers[kube-apiserver].ports`.
    pub field: String,
    /// What is wrong with it.
    pub what: String,
    /// What the reader should do.
    pub remedy: String,
}

impl FieldError {
    /// An error about `field`.
    pub fn new(field: impl Into<String>, what: impl Into<String>, remedy: impl Into<String>) -> Self {
        Self {
            field: field.into(),
            what: what.into(),
            remedy: remedy.into(),
        }
    }

    /// The same error, seen from one level further out: `prefix.field`.
    #[must_use]
    pub fn under(mut self, prefix: &str) -> Self {
        self.field = format!("{prefix}.{}", self.field);
        self
    }
}

/// Name of the JSON type of a value, for messages.
#[must_use]
pub fn type_name(value: &Value) -> &'static str {
    match value {
        Value::Null => "null",
        Value::Bool(_) => "a boolean",
        Value::Number(_) => "a number",
        Value::String(_) => "a string",
        Value::Array(_) => "a list",
        Value::Object(_) => "a map",
    }
}

fn wrong_type(field: &str, expected: &str, found: &Value) -> FieldError {
    FieldError::new(
        field,
        format!("must be {expected}, but is {}", type_name(found)),
        "correct the field: the kubelet cannot read it either",
    )
}

/// The string at `path`, if there is one.
#[must_use]
pub fn string_at<'a>(value: &'a Value, path: &[&str]) -> Option<&'a str> {
    at(value, path).and_then(Value::as_str)
}

/// The value at `path`; `null` counts as absent, as it does for Kubernetes.
#[must_use]
pub fn at<'a>(value: &'a Value, path: &[&str]) -> Option<&'a Value> {
    path.iter()
        .try_fold(value, |value, key| value.get(key))
        .filter(|value| !value.is_null())
}

/// The elements of the list at `path`; none where it is absent.
#[must_use]
pub fn list_at<'a>(value: &'a Value, path: &[&str]) -> &'a [Value] {
    at(value, path).and_then(Value::as_array).map_or(&[], Vec::as_slice)
}

/// The map `key` of `value`, made where it is absent or null.
///
/// # Errors
/// `value` or its field is something else than a map; `field` is how the error names it.
pub fn map_mut<'a>(value: &'a mut Value, key: &str, field: &str) -> Result<&'a mut Map<String, Value>, FieldError> {
    let slot = slot_mut(value, key, field, || Value::Object(Map::new()))?;
    match slot {
        Value::Object(map) => Ok(map),
        other => Err(wrong_type(field, "a map", other)),
    }
}

/// The list `key` of `value`, made where it is absent or null.
///
/// # Errors
/// `value` is no map, or its field is something else than a list; `field` is how the error names it.
pub fn list_mut<'a>(value: &'a mut Value, key: &str, field: &str) -> Result<&'a mut Vec<Value>, FieldError> {
    let slot = slot_mut(value, key, field, || Value::Array(Vec::new()))?;
    match slot {
        Value::Array(list) => Ok(list),
        other => Err(wrong_type(field, "a list", other)),
    }
}

fn slot_mut<'a>(
    value: &'a mut Value,
    key: &str,
    field: &str,
    default: fn() -> Value,
) -> Result<&'a mut Value, FieldError> {
    let Value::Object(map) = value else {
        return Err(wrong_type(field, "inside a map", value));
    };
    let slot = map.entry(key).or_insert_with(default);
    if slot.is_null() {
        *slot = default();
    }
    Ok(slot)
}

/// Takes `key` out of `value`, keeping the order of what stays. Nothing happens where it is absent.
pub fn remove(value: &mut Value, key: &str) -> Option<Value> {
    value.as_object_mut().and_then(|map| map.shift_remove(key))
}

/// Keys of a Pod's `spec` that hold lists of containers.
pub const CONTAINER_LISTS: [&str; 3] = ["initContainers", "containers", "ephemeralContainers"];

/// Every container of a Pod or Pod template, in all lists, changeable.
pub fn containers_mut(pod: &mut Value) -> impl Iterator<Item = &mut Value> {
    pod.get_mut("spec")
        .and_then(Value::as_object_mut)
        .into_iter()
        .flat_map(|spec| {
            spec.iter_mut()
                .filter(|(key, _)| CONTAINER_LISTS.contains(&key.as_str()))
                .filter_map(|(_, list)| list.as_array_mut())
                .flatten()
        })
}

/// Every container of a Pod or Pod template with its path, as `spec.containers[kube-apiserver]`.
pub fn containers(pod: &Value) -> impl Iterator<Item = (String, &Value)> {
    CONTAINER_LISTS.into_iter().flat_map(move |list| {
        list_at(pod, &["spec", list])
            .iter()
            .enumerate()
            .map(move |(index, container)| (container_path(list, index, container), container))
    })
}

/// How a container is named in paths: by its name, or by its index where it has none.
#[must_use]
pub fn container_path(list: &str, index: usize, container: &Value) -> String {
    match string_at(container, &["name"]) {
        Some(name) => format!("spec.{list}[{name}]"),
        None => format!("spec.{list}[{index}]"),
    }
}
