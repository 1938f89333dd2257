//! kubectl-selfhost
