//! `kubectl selfhost recover`.

use super::reach::component;
use crate::names::Component;
use crate::recover::{RecoverOptions, recover};
use clap::Args;
use shared::kube_client::parse_duration;
use shared::output::OutputFormat;
use shared::progress::reporter;
use shared::prompt::YesFlags;
use shared::{Printer, Result};
use std::time::Duration;

/// See `recover`.
#[derive(Debug, Args)]
pub struct RecoverArgs {
    /// Components to bring back (can be repeated; default: all)
    #[arg(long, value_parser = component, value_delimiter = ',', value_name = "COMPONENT")]
    components: Vec<Component>,
    /// Take the manifest from before the conversion, also where a later template ran well on this node
    #[arg(long)]
    original: bool,
    /// Name of this Node, where neither the guard's files nor the kubelet's certificate say it
    #[arg(long, value_name = "NODE")]
    node_name: Option<String>,
    /// Say what would be done, and change nothing
    #[arg(long)]
    dry_run: bool,
    /// The longest wait for the API, and then for the DaemonSets' Pods
    #[arg(long, value_name = "DURATION", value_parser = parse_duration, default_value = "5m")]
    timeout: Duration,
    #[command(flatten)]
    yes: YesFlags,
}

/// Runs `recover`.
///
/// # Errors
/// What forbids it, or what went wrong.
pub async fn run_recover(args: RecoverArgs, printer: &Printer) -> Result<()> {
    let mut components = args.components;
    if components.is_empty() {
        components = Component::ALL.to_vec();
    }
    components.sort_unstable();
    components.dedup();
    let options = RecoverOptions {
        components,
        original: args.original,
        node_name: args.node_name,
        yes: args.yes.yes,
        dry_run: args.dry_run,
        timeout: args.timeout,
    };
    let reporter = reporter(printer, OutputFormat::default());
    recover(&options, reporter.as_ref(), printer).await
}
