//! `kubectl selfhost convert` and `plan`.

use super::reach::{ReachArgs, component, tell_calls};
use crate::cluster_plan::ClusterPlan;
use crate::convert::{ConvertOptions, ModeChoice, convert, refused};
use crate::feature_gates::FeatureGates;
use crate::fleet::Fleet;
use crate::mutators::Mode;
use crate::names::Component;
use crate::node::await_port::describe;
use crate::plan::{Plan, PlanOptions, offline_plan};
use crate::planning::make_plan;
use crate::render::{daemon_sets_yaml, render_cluster_text, render_text};
use clap::Args;
use shared::kube_client::{KubeFlags, parse_duration};
use shared::output::{DryRun, DryRunFlags, OutputFlags, OutputFormat};
use shared::prompt::YesFlags;
use shared::table::Table;
use shared::{Error, Printer, Result};
use std::path::PathBuf;
use std::time::Duration;

/// Exit code of `plan --exit-code` when there is something to do.
pub const EXIT_CHANGES: u8 = 3;
/// Exit code of `plan --exit-code` when something forbids it.
pub const EXIT_FORBIDDEN: u8 = 4;

/// Stands for the build of the executable where nothing is installed.
const BUILD: &str = "BUILD";

/// What both commands are told.
#[derive(Debug, Args)]
pub struct WhatArgs {
    /// Read the manifests of this directory instead of a node; needs no cluster
    #[arg(long, value_name = "DIR")]
    manifests: Option<PathBuf>,
    /// Components to convert (can be repeated; default: all)
    #[arg(long, value_parser = component, value_delimiter = ',', value_name = "COMPONENT")]
    components: Vec<Component>,
    /// How ports are handed over
    #[arg(long, value_enum, default_value_t)]
    mode: ModeChoice,
    /// Feature gates, as NAME=true|false: StoreCertsInSecrets (default false) takes certificates, keys and kubeconfigs from
    /// Secrets instead of from the node (can be repeated)
    #[arg(long, value_name = "GATES")]
    feature_gates: Vec<FeatureGates>,
    /// Make one DaemonSet for each node and component: for nodes whose manifests differ
    #[arg(long)]
    per_node: bool,
    /// Let a node that is converted later run the DaemonSets' templates also where its own manifests differ
    #[arg(long)]
    accept_template: bool,
    #[command(flatten)]
    reach: ReachArgs,
    #[command(flatten)]
    output: OutputFlags,
    #[command(flatten)]
    kube: KubeFlags,
}

/// See `plan`.
#[derive(Debug, Args)]
pub struct PlanArgs {
    #[command(flatten)]
    what: WhatArgs,
    /// Exit with 3 when there is something to do, 4 when something forbids it, 0 when there is nothing to do
    #[arg(long)]
    exit_code: bool,
}

/// See `convert`.
#[derive(Debug, Args)]
pub struct ConvertArgs {
    #[command(flatten)]
    what: WhatArgs,
    /// How long a template runs well on a node before the fallback there is made of it (default 10m; what was given before
    /// stays)
    #[arg(long, value_name = "DURATION", value_parser = parse_duration)]
    last_known_good_after: Option<Duration>,
    #[command(flatten)]
    yes: YesFlags,
    #[command(flatten)]
    dry_run: DryRunFlags,
}

impl WhatArgs {
    fn options(&self, yes: bool, dry_run: DryRun) -> ConvertOptions {
        let mut components = self.components.clone();
        if components.is_empty() {
            components = Component::ALL.to_vec();
        }
        components.sort_unstable();
        components.dedup();
        ConvertOptions {
            components,
            mode: self.mode,
            yes,
            dry_run,
            last_known_good_after: None,
            output: self.output.output,
            per_node: self.per_node,
            accept_template: self.accept_template,
            feature_gates: (self.feature_gates.iter()).fold(FeatureGates::default(), FeatureGates::and),
        }
    }

    async fn live(&self, printer: &Printer) -> Result<ClusterPlan> {
        let fleet = Fleet::find(&self.kube, self.reach.reach()).await?;
        let control_plane = fleet.control_plane.clone();
        let quiet = self.output.output.is_for_programs();
        let options = self.options(true, DryRun::Client);
        let looking = |what: &str| {
            if !quiet {
                printer.note(what);
            }
        };
        tokio::select! {
            planned = make_plan(fleet, &options, looking) => planned.map(|planned| planned.plan),
            _ = tokio::signal::ctrl_c() => {
                control_plane.delete_own_helpers().await;
                Err(Error::interrupted("interrupted; nothing was changed"))
            }
        }
    }

    fn offline(&self, directory: &std::path::Path) -> Result<Plan> {
        let options = self.options(true, DryRun::Client);
        let plan_options = PlanOptions {
            components: options.components,
            mode: if options.mode == ModeChoice::Gap {
                Mode::Gap
            } else {
                Mode::Steered
            },
            feature_gates: options.feature_gates,
            ..PlanOptions::new(BUILD)
        };
        offline_plan(directory, &plan_options).map_err(|error| {
            Error::refused(format!("{} cannot be read", directory.display()))
                .because(describe(&error))
                .hint("name a kubelet's manifest directory, usually /etc/kubernetes/manifests")
        })
    }
}

fn print_cluster_plan(plan: &ClusterPlan, output: OutputFormat, printer: &Printer) -> Result<()> {
    match output {
        OutputFormat::Json | OutputFormat::Yaml => {
            shared::output::print(printer, output, plan, |_| Table::new(["COMPONENT"]))
        }
        _ => {
            let width = printer.stdout_width().unwrap_or(80);
            printer.data(&render_cluster_text(plan, width, printer.color_stdout()))
        }
    }
}

fn print_plan(plan: &Plan, output: OutputFormat, printer: &Printer) -> Result<()> {
    match output {
        OutputFormat::Json | OutputFormat::Yaml => {
            shared::output::print(printer, output, plan, |_| Table::new(["COMPONENT"]))
        }
        _ => {
            let width = printer.stdout_width().unwrap_or(80);
            printer.data(&render_text(plan, width, printer.color_stdout()))
        }
    }
}

/// Runs `plan`. Returns the exit code.
///
/// # Errors
/// When there is no plan to be made.
pub async fn run_plan(args: PlanArgs, printer: &Printer) -> Result<u8> {
    let output = args.what.output.output;
    let (refusals, has_changes) = match &args.what.manifests {
        Some(directory) => {
            let plan = args.what.offline(directory)?;
            print_plan(&plan, output, printer)?;
            (plan.refusals.clone(), plan.has_changes())
        }
        None => {
            let plan = args.what.live(printer).await?;
            print_cluster_plan(&plan, output, printer)?;
            (plan.all_refusals(), plan.has_changes())
        }
    };
    Ok(match (args.exit_code, refusals.is_empty(), has_changes) {
        (false, true, _) | (true, true, false) => 0,
        (true, false, _) => EXIT_FORBIDDEN,
        (false, false, _) => return Err(refused(&refusals, !output.is_for_programs())),
        (true, true, true) => EXIT_CHANGES,
    })
}

/// Runs `convert`.
///
/// # Errors
/// What forbids it, or what went wrong.
pub async fn run_convert(args: ConvertArgs, verbosity: u8, printer: &Printer) -> Result<()> {
    let dry_run = args.dry_run.dry_run;
    let options = ConvertOptions {
        last_known_good_after: args.last_known_good_after,
        ..args.what.options(args.yes.yes, dry_run)
    };
    let Some(directory) = &args.what.manifests else {
        let fleet = Fleet::find(&args.what.kube, args.what.reach.reach()).await?;
        let cluster = fleet.control_plane.cluster.clone();
        let result = convert(fleet, &options, printer).await;
        tell_calls(&cluster, verbosity, printer);
        return result;
    };
    if dry_run != DryRun::Client {
        return Err(Error::usage(
            "--manifests reads a directory and changes nothing: it goes with --dry-run=client only",
        ));
    }
    let plan = args.what.offline(directory)?;
    match options.output {
        OutputFormat::Yaml if plan.refusals.is_empty() => {
            printer.data(&daemon_sets_yaml(&plan)?)?;
            printer.note(format!(
                "{BUILD} in the paths stands for the build of the executable that convert installs on a node"
            ));
        }
        OutputFormat::Yaml => {}
        other => print_plan(&plan, other, printer)?,
    }
    if plan.refusals.is_empty() {
        Ok(())
    } else {
        Err(refused(&plan.refusals, !options.output.is_for_programs()))
    }
}
