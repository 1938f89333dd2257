//! YAML as the kubelet reads it, and YAML that the kubelet does not misread.
//!
//! Kubernetes reads YAML through `sigs.k8s.io/yaml`: YAML 1.1 booleans (`yes`, `on`), legacy octal numbers (`0644`),
//! merge keys, and only the first document of a file. Text that begins with `{` is read as JSON. Two differences are
//! wanted: a duplicate key is an error here (there the last one wins silently), and so is a file without content. One is
//! known: there the keys `y`, `n`, `yes`, `no`, `on`, `off` become `true` and `false`; see [`ambiguous_keys`].

use std::fmt;

use serde::{
    Deserialize, Serialize,
    de::{self, DeserializeSeed, MapAccess, SeqAccess, Visitor},
};
use serde_json::{Map, Number, Value};

use crate::Context as _;

/// Why a text cannot be read. Lines and columns count from 1.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Error {
    /// Nothing, blanks, comments, or a null.
    #[error("it is empty")]
    Empty,
    /// The same key twice in one mapping.
    #[error("line {line}, column {column}: the key {key:?} is there twice")]
    DuplicateKey {
        /// The key.
        key: String,
        /// Line of the second one.
        line: u64,
        /// Column of the second one.
        column: u64,
    },
    /// It is not YAML, or not JSON where it begins with `{`.
    #[error("line {line}, column {column}: {message}")]
    Syntax {
        /// What the parser says.
        message: String,
        /// Where it noticed; 0 where that is unknown.
        line: u64,
        /// Where it noticed; 0 where that is unknown.
        column: u64,
    },
}

/// The first document of a YAML or JSON text, which is all that the kubelet takes from a file.
///
/// # Errors
/// When there is no content, a key is there twice, or the text cannot be read. What follows the first document is not
/// looked at.
pub fn first_document(text: &str) -> Result<Value, Error> {
    let text = without_byte_order_mark(text);
    if begins_as_json(text) {
        return json(text);
    }
    match split(text).first() {
        Some(document) => yaml(text, document),
        None => Err(Error::Empty),
    }
}

/// All documents of a YAML or JSON text in their order, those without content left out.
///
/// # Errors
/// When any of them cannot be read; see [`first_document`].
pub fn all_documents(text: &str) -> Result<Vec<Value>, Error> {
    let text = without_byte_order_mark(text);
    let mut documents = Vec::new();
    for document in split(text) {
        match yaml(text, &document) {
            Ok(value) => documents.push(value),
            Err(Error::Empty) => {}
            Err(error) => return Err(error),
        }
    }
    Ok(documents)
}

/// The value as YAML. Strings that a YAML 1.1 reader takes for something else are quoted.
///
/// # Errors
/// When the value cannot be written as YAML (a map with keys that are no scalars, for example).
pub fn to_string<T: Serialize + ?Sized>(value: &T) -> crate::Result<String> {
    // The defaults quote what YAML 1.1 would misread; the option `yaml_12` would not.
    let mut text = serde_saphyr::to_string(&value).context("cannot write it as YAML")?;
    // Go refuses a block scalar that begins with a tab, so such a value gets its strings in quotes.
    if text.lines().any(|line| line.trim_start_matches(' ').starts_with('\t')) {
        let quoted = serde_saphyr::ser_options! { prefer_block_scalars: false };
        text = serde_saphyr::to_string_with_options(&value, quoted).context("cannot write it as YAML")?;
    }
    if !text.ends_with('\n') {
        text.push('\n');
    }
    Ok(text)
}

/// JSON pointers to keys that Kubernetes turns into `true` or `false` unless they are quoted, which the value does not
/// show. Worth a warning.
#[must_use]
pub fn ambiguous_keys(value: &Value) -> Vec<String> {
    fn walk(value: &Value, path: &str, found: &mut Vec<String>) {
        match value {
            Value::Object(map) => {
                for (key, inner) in map {
                    let path = format!("{path}/{}", key.replace('~', "~0").replace('/', "~1"));
                    if matches!(
                        key.to_ascii_lowercase().as_str(),
                        "y" | "n" | "yes" | "no" | "on" | "off"
                    ) {
                        found.push(path.clone());
                    }
                    walk(inner, &path, found);
                }
            }
            Value::Array(items) => {
                for (index, inner) in items.iter().enumerate() {
                    walk(inner, &format!("{path}/{index}"), found);
                }
            }
            _ => {}
        }
    }
    let mut found = Vec::new();
    walk(value, "", &mut found);
    found
}

fn without_byte_order_mark(text: &str) -> &str {
    text.strip_prefix('\u{feff}').unwrap_or(text)
}

/// The test of `k8s.io/apimachinery/pkg/util/yaml` (`hasJSONPrefix`).
fn begins_as_json(text: &str) -> bool {
    text.trim_start().starts_with('{')
}

/// One document as a range of bytes, and how many lines come before it.
#[derive(Debug, PartialEq, Eq)]
struct Document {
    start: usize,
    end: usize,
    lines_before: usize,
}

/// Splits at the lines that begin with `---` or `...`, which YAML knows as the borders of documents wherever they stand,
/// also within a block scalar. Comments and directives in front of the first `---` belong to the document after it.
fn split(text: &str) -> Vec<Document> {
    let mut documents = Vec::new();
    let mut start = 0;
    let mut lines_before = 0;
    // Whether the current document has begun: by `---` or by content.
    let mut begun = false;
    let mut position = 0;
    for (index, line) in text.split_inclusive('\n').enumerate() {
        let marker = line.get(..3).filter(|head| matches!(*head, "---" | "..."));
        let marker = marker.filter(|_| line[3..].chars().next().is_none_or(|next| next.is_ascii_whitespace()));
        let end = position + line.len();
        match marker {
            Some("---") => {
                if begun {
                    documents.push(Document {
                        start,
                        end: position,
                        lines_before,
                    });
                    start = position;
                    lines_before = index;
                }
                begun = true;
            }
            Some(_) => {
                if begun {
                    documents.push(Document {
                        start,
                        end: position,
                        lines_before,
                    });
                }
                start = end;
                lines_before = index + 1;
                begun = false;
            }
            None => {
                let content = line.trim();
                begun |= !content.is_empty() && !content.starts_with('#') && !line.starts_with('%');
            }
        }
        position = end;
    }
    if begun {
        documents.push(Document {
            start,
            end: position,
            lines_before,
        });
    }
    documents
}

fn yaml(text: &str, document: &Document) -> Result<Value, Error> {
    let options = serde_saphyr::options! {
        legacy_octal_numbers: true,
        duplicate_keys: serde_saphyr::DuplicateKeyPolicy::Error,
        with_snippet: false,
    };
    let text = text.get(document.start..document.end).unwrap_or_default();
    let before = u64::try_from(document.lines_before).unwrap_or(u64::MAX);
    match serde_saphyr::from_str_with_options::<Value>(text, options) {
        Ok(Value::Null) => Err(Error::Empty),
        Ok(value) => Ok(value),
        Err(error) => {
            let (line, column) = error.location().map_or((0, 0), |at| (at.line() + before, at.column()));
            Err(match error {
                serde_saphyr::Error::DuplicateMappingKey { key, .. } => Error::DuplicateKey {
                    key: key.unwrap_or_default(),
                    line,
                    column,
                },
                other => Error::Syntax {
                    message: without_position(&other.to_string()),
                    line,
                    column,
                },
            })
        }
    }
}

/// The parser's text without its own mention of line and column, which stand in front already.
fn without_position(message: &str) -> String {
    let message = message.trim();
    let message = match message.find(" at line ") {
        Some(position) => &message[..position],
        None => message,
    };
    message
        .lines()
        .next()
        .unwrap_or_default()
        .trim_start_matches("error: ")
        .to_owned()
}

fn json(text: &str) -> Result<Value, Error> {
    let mut deserializer = serde_json::Deserializer::from_str(text);
    let result = UniqueKeys
        .deserialize(&mut deserializer)
        .and_then(|value| deserializer.end().map(|()| value));
    result.map_err(|error| {
        let (line, column) = (error.line() as u64, error.column() as u64);
        let message = error.to_string();
        let message = message.split(" at line ").next().unwrap_or_default();
        match message.strip_prefix(DUPLICATE) {
            Some(key) => Error::DuplicateKey {
                key: key.to_owned(),
                line,
                column,
            },
            None => Error::Syntax {
                message: format!("as JSON: {message}"),
                line,
                column,
            },
        }
    })
}

const DUPLICATE: &str = "duplicate key ";

/// Reads a JSON value as `serde_json` does, with a key that is there twice as an error.
struct UniqueKeys;

impl<'de> DeserializeSeed<'de> for UniqueKeys {
    type Value = Value;
    fn deserialize<D: de::Deserializer<'de>>(self, deserializer: D) -> Result<Value, D::Error> {
        deserializer.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for UniqueKeys {
    type Value = Value;

    fn expecting(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("a JSON value")
    }
    fn visit_bool<E>(self, value: bool) -> Result<Value, E> {
        Ok(Value::Bool(value))
    }
    fn visit_i64<E>(self, value: i64) -> Result<Value, E> {
        Ok(value.into())
    }
    fn visit_u64<E>(self, value: u64) -> Result<Value, E> {
        Ok(value.into())
    }
    fn visit_f64<E>(self, value: f64) -> Result<Value, E> {
        Ok(Number::from_f64(value).map_or(Value::Null, Value::Number))
    }
    fn visit_str<E>(self, value: &str) -> Result<Value, E> {
        Ok(value.into())
    }
    fn visit_unit<E>(self) -> Result<Value, E> {
        Ok(Value::Null)
    }
    fn visit_seq<A: SeqAccess<'de>>(self, mut access: A) -> Result<Value, A::Error> {
        let mut items = Vec::new();
        while let Some(item) = access.next_element_seed(UniqueKeys)? {
            items.push(item);
        }
        Ok(Value::Array(items))
    }
    fn visit_map<A: MapAccess<'de>>(self, mut access: A) -> Result<Value, A::Error> {
        let mut map = Map::new();
        while let Some(key) = access.next_key::<String>()? {
            if map.contains_key(&key) {
                return Err(de::Error::custom(format_args!("{DUPLICATE}{key}")));
            }
            let value = access.next_value_seed(UniqueKeys)?;
            map.insert(key, value);
        }
        Ok(Value::Object(map))
    }
}

/// Reads a typed value from an untyped one; a wrong type is an error that names it, as it is for the kubelet.
///
/// # Errors
/// When a field is missing or has the wrong type.
pub fn typed<'de, T: Deserialize<'de>>(value: &'de Value) -> crate::Result<T> {
    T::deserialize(value).context("cannot read it")
}

#[cfg(test)]
mod tests;
