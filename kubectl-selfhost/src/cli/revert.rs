//! `kubectl selfhost revert` and `status`.

use crate::live::Live;
use crate::revert::{RevertOptions, revert};
use crate::status::{add_log_lines, remarks, status, table};
use clap::Args;
use shared::kube_client::KubeFlags;
use shared::output::{DryRunFlags, OutputFlags};
use shared::prompt::YesFlags;
use shared::{Printer, Result};

/// See `revert`.
#[derive(Debug, Args)]
pub struct RevertArgs {
    /// Put the original back with --permit-port-sharing=true added: no gap, and another file than before
    #[arg(long)]
    keep_sharing: bool,
    #[command(flatten)]
    yes: YesFlags,
    #[command(flatten)]
    dry_run: DryRunFlags,
    #[command(flatten)]
    output: OutputFlags,
    #[command(flatten)]
    kube: KubeFlags,
}

/// See `status`.
#[derive(Debug, Args)]
pub struct StatusArgs {
    #[command(flatten)]
    output: OutputFlags,
    #[command(flatten)]
    kube: KubeFlags,
}

/// Runs `revert`.
///
/// # Errors
/// What went wrong.
pub async fn run_revert(args: RevertArgs, printer: &Printer) -> Result<()> {
    let live = Live::find(&args.kube).await?;
    let options = RevertOptions {
        keep_sharing: args.keep_sharing,
        yes: args.yes.yes,
        dry_run: args.dry_run.dry_run,
        output: args.output.output,
    };
    revert(&live, options, printer).await
}

/// Runs `status`.
///
/// # Errors
/// When the node or the API cannot be looked at.
pub async fn run_status(args: StatusArgs, printer: &Printer) -> Result<()> {
    let live = Live::find(&args.kube).await?;
    let observation = live.observe().await?;
    let mut status = status(&observation);
    add_log_lines(&mut status, &observation, &live.control_plane).await;
    let format = args.output.output;
    shared::output::print(printer, format, &status, |wide| table(&status, wide))?;
    if !format.is_for_programs() {
        for remark in remarks(&status) {
            printer.note(remark);
        }
    }
    Ok(())
}
