//! `cargo bench-lab`: every figure that is promised, measured on real clusters and compared to its target.

pub mod figure;
pub mod live;
pub mod local;
pub mod nodes;
pub mod order;

use std::{
    path::{Path, PathBuf},
    time::Instant,
};

use serde_json::{Value, json};

use crate::{
    cache::{self, say},
    error::Result,
    interrupt,
    lab::{Lab, Options},
    operate::Operator,
    settings::Settings,
    static_binary,
};
use figure::{Figure, Target, Unit};
use live::Times;
use order::{Action, Choice, Measure, State};

/// What is asked for.
#[derive(Clone, Debug)]
pub struct BenchOptions {
    /// Which measures, how often.
    pub choice: Choice,
    /// Times within them.
    pub times: Times,
    /// A build of the plugin; built statically linked and optimised where it is absent.
    pub binary: Option<PathBuf>,
}

/// A measure that needs nothing but the binary.
type Local = fn(&Path) -> Result<Vec<Figure>>;

/// Takes all chosen measures. What could not be measured is a figure without a value, which fails.
///
/// # Errors
/// Nothing could be measured: not root, or nothing to measure.
pub fn run(settings: &Settings, options: &BenchOptions) -> Result<Vec<Figure>> {
    crate::packages::require_root("measure on a lab")?;
    let binary = match &options.binary {
        Some(binary) => binary.clone(),
        None => {
            say("building the plugin statically linked and optimised, where it has changed");
            static_binary::build_static()?
        }
    };
    let mut figures = Figures {
        all: Vec::new(),
        begin: Instant::now(),
    };
    let local: [(Measure, &str, Local); 3] = [
        (Measure::Version, "version", local::version),
        (Measure::Binary, "binary", local::binary),
        (Measure::OfflinePlan, "offline-plan", local::offline_plan),
    ];
    for (measure, name, take) in local {
        if !options.choice.has(measure) {
            continue;
        }
        match take(&binary) {
            Ok(found) => found.into_iter().for_each(|f| figures.put(f)),
            Err(error) => figures.broken(name, 1, &error),
        }
    }
    let actions = order::actions(&options.choice);
    if !actions.is_empty() {
        cache::ensure(settings)?;
        let mut bench = Bench {
            settings,
            binary: &binary,
            times: options.times,
            lab: None,
            state: State::Unknown,
        };
        for action in actions {
            bench.take(action, &mut figures);
        }
    }
    if options.choice.has(Measure::Nodes) {
        cache::ensure(settings)?;
        whole_clusters(settings, &binary, &options.choice.nodes, &mut figures);
    }
    Ok(figures.all)
}

/// What a node costs may grow by so much where there are more of them.
const LINEAR: f64 = 1.25;

fn whole_clusters(settings: &Settings, binary: &Path, nodes: &[u8], figures: &mut Figures) {
    let mut least: Option<f64> = None;
    for &nodes in nodes {
        say(&format!(
            "[{:5} s] nodes {nodes} ...",
            figures.begin.elapsed().as_secs()
        ));
        match nodes::measure(settings, binary, nodes, &mut |figure| figures.put(figure)) {
            Ok(each) => {
                let base = *least.get_or_insert(each);
                figures.put(Figure {
                    measure: format!("nodes {nodes}"),
                    run: 1,
                    name: "convert, requests for each node".to_owned(),
                    value: Some(each),
                    of: None,
                    unit: Unit::Count,
                    target: Target::AtMost((base * LINEAR).round()),
                    note: String::new(),
                });
            }
            Err(error) => {
                interrupt::stop_here_when_about_to_be_interrupted();
                figures.broken(&format!("nodes {nodes}"), 1, &error);
            }
        }
    }
}

struct Figures {
    all: Vec<Figure>,
    begin: Instant,
}

impl Figures {
    fn put(&mut self, figure: Figure) {
        say(&format!("[{:5} s] {}", self.begin.elapsed().as_secs(), figure.line()));
        self.all.push(figure);
    }

    fn broken(&mut self, measure: &str, run: u32, why: &dyn std::fmt::Display) {
        self.put(Figure {
            measure: measure.to_owned(),
            run,
            name: "measured to its end".to_owned(),
            value: None,
            of: None,
            unit: Unit::Yes,
            target: Target::AtLeast(1.0),
            note: why.to_string(),
        });
    }
}

struct Bench<'a> {
    settings: &'a Settings,
    binary: &'a Path,
    times: Times,
    lab: Option<Lab>,
    state: State,
}

impl Bench<'_> {
    fn take(&mut self, action: Action, figures: &mut Figures) {
        say(&format!(
            "[{:5} s] {} ...",
            figures.begin.elapsed().as_secs(),
            action.name()
        ));
        let result = self.reach(action.needs()).and_then(|()| match &self.lab {
            Some(lab) => {
                let operator = Operator::new(lab, self.binary);
                live::measure(action, &operator, self.times, &mut |figure| figures.put(figure))
            }
            None => Ok(()),
        });
        self.state = match result {
            Ok(()) => action.leaves(),
            Err(error) => {
                interrupt::stop_here_when_about_to_be_interrupted();
                figures.broken(&action.name(), 1, &error);
                if let Some(lab) = &self.lab {
                    lab.describe();
                }
                // What is left of it cannot be trusted.
                State::Unknown
            }
        };
    }

    /// Brings the control plane into a state, unmeasured.
    fn reach(&mut self, needed: State) -> Result<()> {
        if self.state == State::Unknown || self.lab.is_none() {
            // The old one goes first: only one is there at a time.
            self.lab = None;
            self.lab = Some(Lab::guarded(self.settings.clone(), 1, &Options::default())?);
            self.state = State::Static;
        }
        let Some(lab) = &self.lab else { return Ok(()) };
        let operator = Operator::new(lab, self.binary);
        match (self.state, needed) {
            (State::Static, State::SelfHosted) => drop(operator.selfhost(&["convert", "--yes"])?),
            (State::SelfHosted, State::Static) => drop(operator.selfhost(&["revert", "--yes"])?),
            _ => return Ok(()),
        }
        self.state = needed;
        operator.await_endpoints()
    }
}

/// The report for programs.
#[must_use]
pub fn report(figures: &[Figure], machine: &Value) -> Value {
    let entries: Vec<Value> = figures
        .iter()
        .map(|figure| {
            let mut entry = json!(figure);
            entry["passes"] = json!(figure.passes());
            entry
        })
        .collect();
    json!({"apiVersion": "selfhost/v1", "kind": "Benchmark", "machine": machine, "passes": figure::all_pass(figures), "figures": entries})
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_report_says_of_each_figure_whether_it_passes() {
        let mut figures = Figures {
            all: Vec::new(),
            begin: Instant::now(),
        };
        figures.broken("roll", 2, &"the API is away");
        let report = report(&figures.all, &json!({}));
        assert_eq!(report["passes"], false);
        let entry = &report["figures"][0];
        assert_eq!(entry["measure"], "roll");
        assert_eq!(entry["run"], 2);
        assert_eq!(entry["value"], Value::Null);
        assert_eq!(entry["passes"], false);
        assert_eq!(entry["note"], "the API is away");
        assert_eq!(entry["target"], json!({"at-least": 1.0}));
    }
}
