//! One figure: what was measured, what it must reach, and whether it does. Pure functions.

use serde::Serialize;

/// What a figure is counted in.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Unit {
    /// Things.
    Count,
    /// Seconds.
    Seconds,
    /// Milliseconds.
    Milliseconds,
    /// Millions of bytes.
    Megabytes,
    /// Hundredths, of one core for processor time.
    Percent,
    /// 1 for yes, 0 for no.
    Yes,
}

impl Unit {
    /// A value in this unit, for people.
    #[must_use]
    pub fn text(self, value: f64) -> String {
        match self {
            Self::Count => format!("{value:.0}"),
            Self::Seconds => format!("{value:.2} s"),
            Self::Milliseconds => format!("{value:.2} ms"),
            Self::Megabytes => format!("{value:.1} MB"),
            Self::Percent => format!("{value:.2} %"),
            Self::Yes => if value == 0.0 { "no" } else { "yes" }.to_owned(),
        }
    }
}

/// What a figure must reach.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Target {
    /// That or less.
    AtMost(f64),
    /// That or more.
    AtLeast(f64),
    /// Nothing: it is measured to be known.
    Known,
}

/// One figure.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Figure {
    /// The measure it belongs to, as it is named on the command line, with what was chosen within it.
    pub measure: String,
    /// Which of several runs in a row, from 1.
    pub run: u32,
    /// What it is.
    pub name: String,
    /// What was measured; absent where it could not be measured.
    pub value: Option<f64>,
    /// Of how many, for counts of failures.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub of: Option<u64>,
    /// What value and target are counted in.
    pub unit: Unit,
    /// What it must reach.
    pub target: Target,
    /// Details: what failed, or why there is no value.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub note: String,
}

impl Figure {
    /// Whether it reaches its target. One that could not be measured does not, nor do failures of nothing.
    #[must_use]
    pub fn passes(&self) -> bool {
        let Some(value) = self.value else { return false };
        if self.of == Some(0) || value.is_nan() {
            return false;
        }
        match self.target {
            Target::AtMost(most) => value <= most,
            Target::AtLeast(least) => value >= least,
            Target::Known => true,
        }
    }

    fn value_text(&self) -> String {
        match (self.value, self.of) {
            (None, _) => "not measured".to_owned(),
            (Some(value), Some(of)) => format!("{} of {of}", self.unit.text(value)),
            (Some(value), None) => self.unit.text(value),
        }
    }

    fn target_text(&self) -> String {
        match self.target {
            Target::AtMost(0.0) => self.unit.text(0.0),
            Target::AtMost(most) => format!("<= {}", self.unit.text(most)),
            Target::AtLeast(_) if self.unit == Unit::Yes => "yes".to_owned(),
            Target::AtLeast(least) => format!(">= {}", self.unit.text(least)),
            Target::Known => "-".to_owned(),
        }
    }

    fn verdict(&self) -> &'static str {
        match (self.passes(), self.target) {
            (false, _) => "FAIL",
            (true, Target::Known) => "-",
            (true, _) => "pass",
        }
    }

    /// The worse of two: where only one passes, the other; else the one further away from its target.
    fn worse<'a>(&'a self, other: &'a Self) -> &'a Self {
        let rank = |f: &Self| {
            let distance = match f.target {
                Target::AtLeast(_) => f.value.map(|v| -v),
                Target::AtMost(_) | Target::Known => f.value,
            };
            (!f.passes(), distance.unwrap_or(f64::INFINITY))
        };
        if rank(other) > rank(self) { other } else { self }
    }

    /// One line for the time it was measured.
    #[must_use]
    pub fn line(&self) -> String {
        let note = if self.note.is_empty() {
            String::new()
        } else {
            format!("; {}", self.note)
        };
        format!(
            "{} {}: {}: {} (target {}) {}{note}",
            self.measure,
            self.run,
            self.name,
            self.value_text(),
            self.target_text(),
            self.verdict()
        )
    }
}

/// Whether there are figures, and all reach their targets.
#[must_use]
pub fn all_pass(figures: &[Figure]) -> bool {
    !figures.is_empty() && figures.iter().all(Figure::passes)
}

/// A table with the worst of all runs for each figure, in the order they were measured.
#[must_use]
pub fn table(figures: &[Figure]) -> String {
    let mut worst: Vec<(&Figure, u32)> = Vec::new();
    for figure in figures {
        match worst
            .iter_mut()
            .find(|(f, _)| f.measure == figure.measure && f.name == figure.name)
        {
            Some((known, runs)) => {
                *known = known.worse(figure);
                *runs += 1;
            }
            None => worst.push((figure, 1)),
        }
    }
    let mut rows = vec![["MEASURE", "FIGURE", "RUNS", "WORST", "TARGET", "RESULT"].map(str::to_owned)];
    for (figure, runs) in worst {
        rows.push([
            figure.measure.clone(),
            figure.name.clone(),
            runs.to_string(),
            figure.value_text(),
            figure.target_text(),
            figure.verdict().to_owned(),
        ]);
    }
    let mut widths = [0; 6];
    for row in &rows {
        for (width, cell) in widths.iter_mut().zip(row) {
            *width = (*width).max(cell.chars().count());
        }
    }
    let mut text = String::new();
    for row in rows {
        let cells: Vec<_> = row
            .iter()
            .zip(widths)
            .map(|(cell, width)| format!("{cell:width$}"))
            .collect();
        text.push_str(cells.join("   ").trim_end());
        text.push('\n');
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    fn figure(value: Option<f64>, of: Option<u64>, target: Target) -> Figure {
        Figure {
            measure: "convert".into(),
            run: 1,
            name: "failed".into(),
            value,
            of,
            unit: Unit::Count,
            target,
            note: String::new(),
        }
    }

    #[test]
    fn a_figure_passes_by_its_value_alone() {
        for (value, of, target, passes) in [
            (Some(0.0), Some(10), Target::AtMost(0.0), true),
            (Some(1.0), Some(10), Target::AtMost(0.0), false),
            (Some(0.0), Some(0), Target::AtMost(0.0), false),
            (Some(75.0), None, Target::AtMost(75.0), true),
            (Some(1.0), None, Target::AtLeast(1.0), true),
            (Some(0.0), None, Target::AtLeast(1.0), false),
            (Some(9.0), None, Target::Known, true),
            (Some(f64::NAN), None, Target::Known, false),
            (None, None, Target::Known, false),
            (None, None, Target::AtMost(0.0), false),
        ] {
            assert_eq!(
                figure(value, of, target).passes(),
                passes,
                "{value:?} of {of:?}, {target:?}"
            );
        }
    }

    #[test]
    fn nothing_measured_is_no_success() {
        assert!(!all_pass(&[]));
        let good = figure(Some(0.0), None, Target::AtMost(0.0));
        assert!(all_pass(std::slice::from_ref(&good)));
        assert!(!all_pass(&[good, figure(None, None, Target::Known)]));
    }

    #[test]
    fn the_table_shows_the_worst_of_all_runs() {
        let run = |run, value, of| Figure {
            run,
            ..figure(value, Some(of), Target::AtMost(0.0))
        };
        let figures = [run(1, Some(0.0), 100), run(2, Some(2.0), 50), run(3, Some(1.0), 70)];
        assert_eq!(
            table(&figures),
            "MEASURE   FIGURE   RUNS   WORST     TARGET   RESULT\n\
             convert   failed   3      2 of 50   0        FAIL\n"
        );
        let figures = [run(1, Some(5.0), 100), run(2, None, 50)];
        assert!(table(&figures).contains("not measured"), "{}", table(&figures));
        // What was sent in vain is worse than a success, although it is as much.
        let figures = [run(1, Some(0.0), 100), run(2, Some(0.0), 0)];
        assert!(table(&figures).contains("FAIL"), "{}", table(&figures));
        let least = |run, value| Figure {
            run,
            unit: Unit::Yes,
            ..figure(Some(value), None, Target::AtLeast(1.0))
        };
        assert!(table(&[least(1, 0.0), least(2, 1.0)]).contains("no"));
    }

    #[test]
    fn a_line_says_what_it_was_compared_to() {
        let seconds = Figure {
            unit: Unit::Seconds,
            note: "slow disk".into(),
            ..figure(Some(76.5), None, Target::AtMost(75.0))
        };
        assert_eq!(
            seconds.line(),
            "convert 1: failed: 76.50 s (target <= 75.00 s) FAIL; slow disk"
        );
    }
}
