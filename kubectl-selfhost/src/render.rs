//! Plans as text for people, and DaemonSets as YAML.

use std::collections::BTreeSet;

use serde_json::Value;
use shared::table::Table;

use crate::certs_in_secrets::CertificateSecret;
use crate::cluster_plan::{ClusterPlan, NodePlan as ClusterNode};
use crate::names::NAMESPACE;
use crate::plan::{Change, ComponentPlan, ComponentState, Gap, Plan};

/// Colours, or none.
#[derive(Clone, Copy, Debug)]
struct Palette {
    color: bool,
}

impl Palette {
    fn paint(self, code: &str, text: &str) -> String {
        if self.color {
            format!("\x1b[{code}m{text}\x1b[0m")
        } else {
            text.to_owned()
        }
    }
    fn bold(self, text: &str) -> String {
        self.paint("1", text)
    }
    fn dim(self, text: &str) -> String {
        self.paint("2", text)
    }
    fn red(self, text: &str) -> String {
        self.paint("31", text)
    }
    fn green(self, text: &str) -> String {
        self.paint("32", text)
    }
    fn yellow(self, text: &str) -> String {
        self.paint("33", text)
    }
}

/// A plan as text of at most `width` columns, where no single word is longer; with colours by ANSI sequences if `color`.
#[must_use]
pub fn render_text(plan: &Plan, width: usize, color: bool) -> String {
    let palette = Palette { color };
    let mut lines = Vec::new();
    for component in &plan.components {
        render_component(component, width, palette, &mut lines);
    }
    push_conclusion(plan, width, palette, &mut lines);
    lines.join("\n")
}

/// Warnings, what is left alone, and what forbids the conversion or how much there is to do.
fn push_conclusion(plan: &Plan, width: usize, palette: Palette, lines: &mut Vec<String>) {
    for warning in &plan.warnings {
        push_wrapped(lines, "warning: ", warning, width, |text| palette.yellow(text));
    }
    if !plan.untouched.is_empty() {
        push_wrapped(lines, "left alone: ", &plan.untouched.join(", "), width, str::to_owned);
    }
    if plan.refusals.is_empty() {
        lines.push(summary(plan));
    } else {
        let count = match plan.refusals.len() {
            1 => "One thing forbids the conversion, and nothing is changed:".to_owned(),
            count => format!("{count} things forbid the conversion, and nothing is changed:"),
        };
        lines.push(palette.bold(&count));
        for refusal in &plan.refusals {
            push_wrapped(lines, "  ", &refusal.object, width, |text| palette.red(text));
            push_wrapped(lines, "    ", &refusal.what, width, str::to_owned);
            push_wrapped(lines, "    hint: ", &refusal.remedy, width, |text| palette.dim(text));
        }
    }
    lines.push(String::new());
}

fn summary(plan: &Plan) -> String {
    match plan.components.iter().filter(|component| component.is_to_do()).count() {
        0 => "Nothing to do.".to_owned(),
        1 => format!("1 component to convert, expected gap: {}.", plan.expected_gap().name()),
        count => format!(
            "{count} components to convert, expected gap: {}.",
            plan.expected_gap().name()
        ),
    }
}

fn render_component(component: &ComponentPlan, width: usize, palette: Palette, lines: &mut Vec<String>) {
    let name = component.component.name();
    if component.daemon_set.is_none() {
        let rest = if component.rolls {
            "its Pods are rolled onto the files of the Secret"
        } else if component.is_to_do() {
            "the hand-over is on its way and is carried on"
        } else {
            "nothing to do"
        };
        lines.push(format!("{}: {}, {rest}", palette.bold(name), component.state.name()));
        if let Some(secret) = component.secret.as_ref().filter(|_| component.rolls) {
            render_secret(secret, palette, lines);
        }
        lines.push(String::new());
        return;
    }
    let goal = ComponentState::SelfHosted.name();
    let file = component
        .manifest
        .as_deref()
        .map(|file| format!(" ({file})"))
        .unwrap_or_default();
    lines.push(format!(
        "{}{file}: {} -> {goal}",
        palette.bold(name),
        component.state.name()
    ));
    if component.expected_gap != Gap::None {
        push_wrapped(
            lines,
            "  expected gap: ",
            component.expected_gap.name(),
            width,
            |text| palette.yellow(text),
        );
    }
    for warning in &component.warnings {
        push_wrapped(lines, "  warning: ", warning, width, |text| palette.yellow(text));
    }
    let mut last = "";
    for change in &component.changes {
        if change.mutator != last {
            push_wrapped(lines, "  # ", change.reason, width, |text| palette.dim(text));
            last = change.mutator;
        }
        render_change(change, palette, lines);
    }
    if let Some(secret) = &component.secret {
        render_secret(secret, palette, lines);
    }
    lines.push(String::new());
}

/// Names, sizes and the start of checksums: never what is in a Secret.
fn render_secret(secret: &CertificateSecret, palette: Palette, lines: &mut Vec<String>) {
    lines.push(palette.dim(&format!(
        "  # {} bytes that the flags name, kept in the cluster",
        secret.size()
    )));
    lines.push(format!("    Secret {NAMESPACE}/{}", secret.name));
    for file in &secret.files {
        let line = format!(
            "    + {} {:04o} {} bytes, sha256 {}, by {}",
            file.path, file.mode, file.size, file.sha256, file.named_by
        );
        lines.push(palette.green(&line));
    }
}

fn render_change(change: &Change, palette: Palette, lines: &mut Vec<String>) {
    lines.push(format!("    {}", change.path));
    if let Some(before) = &change.before {
        lines.extend(
            value_lines(before)
                .iter()
                .map(|line| palette.red(&format!("    - {line}"))),
        );
    }
    if let Some(after) = &change.after {
        lines.extend(
            value_lines(after)
                .iter()
                .map(|line| palette.green(&format!("    + {line}"))),
        );
    }
}

/// A value as lines of YAML; a string stands as it is.
fn value_lines(value: &Value) -> Vec<String> {
    match value {
        Value::String(text) if !text.is_empty() && !text.contains('\n') => vec![text.clone()],
        Value::Array(_) | Value::Object(_) => match shared::yaml::to_string(value) {
            Ok(yaml) => yaml.trim_end().lines().map(str::to_owned).collect(),
            Err(_) => vec![value.to_string()],
        },
        _ => vec![value.to_string()],
    }
}

/// Adds a text behind `prefix`, wrapped at blanks. What follows the first line is indented as far as the prefix, and the
/// mark `#` is repeated.
fn push_wrapped(lines: &mut Vec<String>, prefix: &str, text: &str, width: usize, paint: impl Fn(&str) -> String) {
    let indent = if prefix.trim() == "#" {
        prefix.to_owned()
    } else {
        " ".repeat(prefix.len())
    };
    let mut line = prefix.to_owned();
    let mut empty = true;
    for word in text.split_whitespace() {
        if !empty && line.chars().count() + 1 + word.chars().count() > width {
            lines.push(paint(&line));
            line.clone_from(&indent);
            empty = true;
        }
        if !empty {
            line.push(' ');
        }
        line.push_str(word);
        empty = false;
    }
    lines.push(paint(&line));
}

/// The DaemonSets of a plan as a stream of YAML documents.
///
/// # Errors
/// A value cannot be written as YAML, which no value read from YAML or JSON can cause.
pub fn daemon_sets_yaml(plan: &Plan) -> shared::Result<String> {
    let documents = plan
        .components
        .iter()
        .filter_map(|component| component.daemon_set.as_ref())
        .map(shared::yaml::to_string)
        .collect::<Result<Vec<_>, _>>()?;
    Ok(documents.join("---\n"))
}

/// The plan of a cluster as text: that of each node; where a node's changes are those of the one before, this is said
/// instead.
#[must_use]
pub fn render_cluster_text(plan: &ClusterPlan, width: usize, color: bool) -> String {
    let palette = Palette { color };
    let mut lines = Vec::new();
    let mut shown: Vec<&ClusterNode> = Vec::new();
    for node in &plan.nodes {
        lines.push(palette.bold(&format!("Node {}", node.node)));
        for component in &node.plan.components {
            let same = shown.iter().find(|other| {
                let plans = &other.plan.components;
                component.daemon_set.is_some() && plans.iter().any(|other| is_alike(other, component))
            });
            match same {
                Some(other) => lines.push(format!(
                    "{}: {} -> {}, the same changes as on Node {}",
                    palette.bold(component.component.name()),
                    component.state.name(),
                    ComponentState::SelfHosted.name(),
                    other.node
                )),
                None => render_component(component, width, palette, &mut lines),
            }
        }
        if lines.last().is_some_and(|line| !line.is_empty()) {
            lines.push(String::new());
        }
        shown.push(node);
    }
    push_cluster_conclusion(plan, width, palette, &mut lines);
    lines.join("\n")
}

/// Whether two nodes' plans of a component say the same: the values before may differ, such as a node's own address.
fn is_alike(one: &ComponentPlan, other: &ComponentPlan) -> bool {
    let said = |plan: &ComponentPlan| {
        let changes = plan
            .changes
            .iter()
            .map(|change| (change.path.clone(), change.after.clone(), change.mutator));
        (
            plan.component,
            plan.state,
            plan.manifest.clone(),
            plan.warnings.clone(),
            changes.collect::<Vec<_>>(),
        )
    };
    said(one) == said(other)
}

/// The plan of a cluster in a few lines: what `convert` shows before it asks.
#[must_use]
pub fn render_cluster_summary(plan: &ClusterPlan, width: usize, color: bool) -> String {
    let palette = Palette { color };
    let mut table = Table::new(["NODE", "COMPONENT", "NOW", "THEN", "FIELDS", "GAP"]);
    for node in &plan.nodes {
        for component in &node.plan.components {
            let paths: BTreeSet<&str> = component.changes.iter().map(|change| change.path.as_str()).collect();
            table.row([
                &node.node,
                component.component.name(),
                component.state.name(),
                ComponentState::SelfHosted.name(),
                &paths.len().to_string(),
                component.expected_gap.name(),
            ]);
        }
    }
    let mut lines = Vec::new();
    if !table.is_empty() {
        lines.push(table.render(Some(width)));
    }
    let mut told = BTreeSet::new();
    for component in plan.nodes.iter().flat_map(|node| &node.plan.components) {
        for warning in &component.warnings {
            let warning = format!("{}: {warning}", component.component);
            if told.insert(warning.clone()) {
                push_wrapped(&mut lines, "warning: ", &warning, width, |text| palette.yellow(text));
            }
        }
    }
    push_cluster_conclusion(plan, width, palette, &mut lines);
    lines.join("\n")
}

fn push_cluster_conclusion(plan: &ClusterPlan, width: usize, palette: Palette, lines: &mut Vec<String>) {
    let mut untouched: Vec<String> = Vec::new();
    for name in plan.nodes.iter().flat_map(|node| &node.plan.untouched) {
        if !untouched.contains(name) {
            untouched.push(name.clone());
        }
    }
    let whole = Plan {
        components: plan
            .nodes
            .iter()
            .flat_map(|node| node.plan.components.clone())
            .collect(),
        untouched,
        refusals: plan.all_refusals(),
        warnings: plan.all_warnings(),
        ..Plan::default()
    };
    push_conclusion(&whole, width, palette, lines);
}

/// The DaemonSets of a cluster's plan as a stream of YAML documents, each once.
///
/// # Errors
/// As [`daemon_sets_yaml`].
pub fn cluster_daemon_sets_yaml(plan: &ClusterPlan) -> shared::Result<String> {
    let mut components: Vec<ComponentPlan> = Vec::new();
    for component in plan.nodes.iter().flat_map(|node| &node.plan.components) {
        if !components.iter().any(|known| known.daemon_set == component.daemon_set) {
            components.push(component.clone());
        }
    }
    daemon_sets_yaml(&Plan {
        components,
        ..Plan::default()
    })
}
