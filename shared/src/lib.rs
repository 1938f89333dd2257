//! What both plugins are built on.
