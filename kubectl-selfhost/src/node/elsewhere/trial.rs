//! `node::trial` on systems that are no nodes.

/// See the module of the same name for Linux.
///
/// # Errors
/// Always.
pub fn run() -> Result<(), String> {
    Err("this is no Linux node".to_owned())
}
