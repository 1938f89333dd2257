//! `kubectl selfhost revert` and `status`.

use super::reach::{ReachArgs, tell_calls};
use crate::cluster::ControlPlane;
use crate::fleet::{Fleet, connect};
use crate::observe::{Observation, observe_cluster};
use crate::patience::may_pass;
use crate::revert::{RevertOptions, revert};
use crate::status::{ClusterStatus, add_log_lines, cluster_remarks, cluster_status, table};
use clap::Args;
use shared::kube_client::KubeFlags;
use shared::output::{DryRunFlags, OutputFlags};
use shared::prompt::YesFlags;
use shared::{Error, Printer, Result};
use std::time::Duration;

/// See `revert`.
#[derive(Debug, Args)]
pub struct RevertArgs {
    /// Put the original back with --permit-port-sharing=true added: no gap, and another file than before
    #[arg(long)]
    keep_sharing: bool,
    #[command(flatten)]
    reach: ReachArgs,
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
    /// Control-plane nodes (can be repeated; default: all)
    #[arg(long, value_delimiter = ',', value_name = "NODE")]
    nodes: Vec<String>,
    /// Show it again whenever something changes, until interrupted
    #[arg(short, long)]
    watch: bool,
    #[command(flatten)]
    output: OutputFlags,
    #[command(flatten)]
    kube: KubeFlags,
}

/// Runs `revert`.
///
/// # Errors
/// What went wrong.
pub async fn run_revert(args: RevertArgs, verbosity: u8, printer: &Printer) -> Result<()> {
    let fleet = Fleet::find(&args.kube, args.reach.reach()).await?;
    let options = RevertOptions {
        keep_sharing: args.keep_sharing,
        yes: args.yes.yes,
        dry_run: args.dry_run.dry_run,
        output: args.output.output,
    };
    let result = revert(&fleet, options, printer).await;
    tell_calls(&fleet.control_plane.cluster, verbosity, printer);
    result
}

/// How often `status --watch` looks.
const INTERVAL: Duration = Duration::from_secs(2);

/// Runs `status`.
///
/// # Errors
/// When the API cannot be looked at, or has no such node.
pub async fn run_status(args: StatusArgs, verbosity: u8, printer: &Printer) -> Result<()> {
    let control_plane = connect(&args.kube).await?;
    let mut shown: Option<ClusterStatus> = None;
    loop {
        match look(&control_plane, &args.nodes).await {
            Ok(now) if shown.as_ref() == Some(&now) => {}
            Ok(now) => {
                show(&now, &args, shown.is_some(), printer)?;
                shown = Some(now);
            }
            // an API that is away is part of what is watched
            Err(error) if args.watch && shown.is_some() && may_pass(&error) => printer.note(format!("{error}")),
            Err(error) => return Err(error),
        }
        if !args.watch || printer.stdout_closed() {
            break;
        }
        tokio::select! {
            () = tokio::time::sleep(INTERVAL) => {}
            _ = tokio::signal::ctrl_c() => break,
        }
    }
    tell_calls(&control_plane.cluster, verbosity, printer);
    Ok(())
}

async fn look(control_plane: &ControlPlane, nodes: &[String]) -> Result<ClusterStatus> {
    let all = observe_cluster(control_plane).await?;
    let known: Vec<&str> = all.iter().map(|seen| seen.node.name.as_str()).collect();
    if let Some(unknown) = nodes.iter().find(|name| !known.contains(&name.as_str())) {
        return Err(
            Error::usage(format!("--nodes: no control-plane node is named {unknown}")).because(format!(
                "the nodes with Pods of the control plane are: {}",
                known.join(", ")
            )),
        );
    }
    if all.is_empty() {
        return Err(Error::refused(format!(
            "no control plane was found in the cluster at {}",
            control_plane.cluster.server
        ))
        .because("no Pod in kube-system carries the label component=kube-apiserver, as kubeadm's do"));
    }
    let asked = |seen: &&Observation| nodes.is_empty() || nodes.contains(&seen.node.name);
    let observations: Vec<&Observation> = all.iter().filter(asked).collect();
    let mut status = cluster_status(&observations);
    add_log_lines(&mut status, &observations, control_plane).await;
    Ok(status)
}

fn show(status: &ClusterStatus, args: &StatusArgs, again: bool, printer: &Printer) -> Result<()> {
    let format = args.output.output;
    if again && !format.is_for_programs() {
        printer.data("")?;
    }
    shared::output::print(printer, format, status, |wide| table(status, wide))?;
    if !format.is_for_programs() {
        for remark in cluster_remarks(status) {
            printer.note(remark);
        }
    }
    Ok(())
}
