use super::*;
#[test]
fn x() { assert!(first_document("a: 1").is_ok()); }
