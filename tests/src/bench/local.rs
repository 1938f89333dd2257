//! Measures that need no cluster: start, size, and the offline plan.

use std::{
    fs,
    path::{Path, PathBuf},
    process::Command,
    time::{Duration, Instant},
};

use super::figure::{Figure, Target, Unit};
use crate::{
    command::{self, Output},
    error::{Context, Error, Result},
    static_binary::{interpreter, workspace},
};

/// Runs of which the median counts.
const STARTS: usize = 100;
const PLANS: usize = 30;

fn figure(measure: &str, name: &str, value: f64, unit: Unit, target: Target) -> Figure {
    Figure {
        measure: measure.to_owned(),
        run: 1,
        name: name.to_owned(),
        value: Some(value),
        of: None,
        unit,
        target,
        note: String::new(),
    }
}

/// Time from before the start of the process to after its end, `--version`.
///
/// # Errors
/// It fails.
pub fn version(binary: &Path) -> Result<Vec<Figure>> {
    let times = times(STARTS, &mut || {
        let mut command = Command::new(binary);
        command.arg("--version");
        command
    })?;
    let mut figure = figure(
        "version",
        "--version, median",
        median(&times),
        Unit::Milliseconds,
        Target::AtMost(10.0),
    );
    figure.note = format!(
        "{STARTS} runs, slowest {:.2} ms",
        times.last().copied().unwrap_or_default()
    );
    Ok(vec![figure])
}

/// Size, and whether it runs where there is nothing else.
///
/// # Errors
/// It cannot be read or copied.
pub fn binary(binary: &Path) -> Result<Vec<Figure>> {
    let what = || format!("look at {}", binary.display());
    #[expect(clippy::cast_precision_loss, reason = "files are smaller than 2^52 bytes")]
    let size = fs::metadata(binary).what(what)?.len() as f64 / 1e6;
    let linker = interpreter(binary)?;
    let root = std::env::temp_dir().join(format!("selfhost-empty-root-{}", std::process::id()));
    fs::create_dir_all(&root)
        .and_then(|()| fs::copy(binary, root.join("kubectl-selfhost")).map(drop))
        .what(what)?;
    let mut chroot = Command::new("chroot");
    chroot.arg(&root).args(["/kubectl-selfhost", "--version"]);
    let output = command::run(&mut chroot, "run the binary in an empty root", Duration::from_secs(10));
    fs::remove_dir_all(&root).what(|| format!("remove {}", root.display()))?;
    let output = output?;
    let mut alone = yes("binary", "runs in an empty root", linker.is_none() && ran(&output));
    alone.note = match linker {
        Some(linker) => format!("it asks for {linker}"),
        None => output.stderr.trim().to_owned(),
    };
    Ok(vec![
        figure("binary", "size", size, Unit::Megabytes, Target::AtMost(12.0)),
        alone,
    ])
}

fn ran(output: &Output) -> bool {
    output.success() && output.stdout.contains(env!("CARGO_PKG_VERSION"))
}

/// A figure that must be "yes".
#[must_use]
pub fn yes(measure: &str, name: &str, is: bool) -> Figure {
    figure(measure, name, f64::from(u8::from(is)), Unit::Yes, Target::AtLeast(1.0))
}

/// The slowest of the fixtures' offline plans, each the median of several runs.
///
/// # Errors
/// A plan fails, or there are no fixtures.
pub fn offline_plan(binary: &Path) -> Result<Vec<Figure>> {
    let directory = workspace().join("kubectl-selfhost/tests/fixtures/kubeadm");
    let entries = fs::read_dir(&directory).what(|| format!("read {}", directory.display()))?;
    let fixtures: Vec<PathBuf> = entries.flatten().map(|e| e.path()).filter(|p| p.is_dir()).collect();
    let mut slowest: Option<(f64, String)> = None;
    for fixture in &fixtures {
        let times = times(PLANS, &mut || {
            let mut command = Command::new(binary);
            command.args(["plan", "--manifests"]).arg(fixture);
            command
        })?;
        let (time, name) = (
            median(&times),
            fixture.file_name().unwrap_or_default().to_string_lossy().into_owned(),
        );
        if slowest.as_ref().is_none_or(|(known, _)| time > *known) {
            slowest = Some((time, name));
        }
    }
    let (time, name) =
        slowest.ok_or_else(|| Error::new("plan the fixtures", format!("{} holds none", directory.display())))?;
    let mut figure = figure(
        "offline-plan",
        "slowest fixture, median",
        time,
        Unit::Milliseconds,
        Target::AtMost(20.0),
    );
    figure.note = format!("{name}, {PLANS} runs of each of {}", fixtures.len());
    Ok(vec![figure])
}

/// Milliseconds of several runs, sorted.
fn times(runs: usize, make: &mut dyn FnMut() -> Command) -> Result<Vec<f64>> {
    let mut times = Vec::with_capacity(runs);
    for _ in 0..runs {
        let mut command = make();
        let what = format!("run {}", command.get_program().display());
        let begin = Instant::now();
        let output = command.output().what(|| what.clone())?;
        times.push(begin.elapsed().as_secs_f64() * 1000.0);
        if !output.status.success() {
            return Err(Error::new(what, String::from_utf8_lossy(&output.stderr)));
        }
    }
    times.sort_by(f64::total_cmp);
    Ok(times)
}

/// The middle of sorted values; not a number without any.
fn median(sorted: &[f64]) -> f64 {
    sorted.get(sorted.len() / 2).copied().unwrap_or(f64::NAN)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_median_is_in_the_middle_and_never_made_up() {
        assert_eq!(median(&[1.0, 2.0, 9.0]), 2.0);
        assert!(median(&[]).is_nan());
    }

    #[test]
    fn a_program_that_fails_has_no_time() {
        assert!(times(2, &mut || Command::new("false")).is_err());
        assert!(times(1, &mut || Command::new("no-such-program")).is_err());
        assert_eq!(times(3, &mut || Command::new("true")).unwrap().len(), 3);
    }
}
