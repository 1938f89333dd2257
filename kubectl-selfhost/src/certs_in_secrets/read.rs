//! Reading the files that are named.

use std::collections::BTreeSet;
use std::fs;
use std::io;
use std::path::Path;

use serde_json::Value;

use super::Content;
use super::checks::LARGEST_SECRET;
use super::files::{Found, NodeFiles, named_files};
use crate::names::Component;

/// Files name files, and those may name more; nobody goes further than this.
pub const ROUNDS: usize = 8;

/// What has to be looked at before everything is known that these Pods' components need.
#[must_use]
pub fn wanted(pods: &[(Component, &Value)], files: &NodeFiles) -> BTreeSet<String> {
    let named = pods
        .iter()
        .filter_map(|(component, pod)| named_files(*component, pod, files).ok());
    named.flat_map(|named| named.wanted).collect()
}

/// Reads every file that these Pods' components need, by `read`, until nothing more is asked for.
pub fn read_all(pods: &[(Component, &Value)], mut read: impl FnMut(&str) -> Found) -> NodeFiles {
    let mut files = NodeFiles::new();
    for _ in 0..ROUNDS {
        let wanted = wanted(pods, &files);
        if wanted.is_empty() {
            break;
        }
        for path in wanted {
            let found = read(&path);
            files.insert(path, found);
        }
    }
    files
}

/// What lies at a path of this machine. A file that no Secret could hold is not read.
#[must_use]
pub fn read_local(path: &str) -> Found {
    let path = Path::new(path);
    match fs::metadata(path) {
        Err(error) if matches!(error.kind(), io::ErrorKind::NotFound | io::ErrorKind::NotADirectory) => Found::Absent,
        Err(error) => Found::Unreadable(error.to_string()),
        Ok(found) if found.is_dir() => Found::NoFile("a directory".to_owned()),
        Ok(found) if !found.is_file() => Found::NoFile("a socket or a device".to_owned()),
        Ok(found) if usize::try_from(found.len()).map_or(true, |size| size > LARGEST_SECRET) => Found::Unreadable(
            format!("it has {} bytes, and a Secret holds {LARGEST_SECRET}", found.len()),
        ),
        Ok(_) => match fs::read(path) {
            Ok(bytes) => Found::File(Content::new(bytes)),
            Err(error) => Found::Unreadable(error.to_string()),
        },
    }
}
