//! The table for people.

use std::io::{self, Write as _};

use anyhow::Context as _;

use crate::measure::Measurement;

/// Turns the JSON lines of standard input into a table.
pub fn table() -> anyhow::Result<()> {
    let mut out = io::stdout().lock();
    writeln!(out, "{:<40} {:>14} {:>14} {:>7}  {:<8}", "", "tinyllm", "plain disk", "ratio", "goal")?;
    for line in io::stdin().lines() {
        let line = line?;
        let found: Measurement = serde_json::from_str(&line).with_context(|| format!("reading {line:?}"))?;
        let Measurement { name, ours, theirs, ratio, goal, unit, ok } = found;
        let (ours, theirs) = (format!("{ours:.3} {unit}"), format!("{theirs:.3} {unit}"));
        let verdict = match ok {
            None => "",
            Some(true) => "met",
            Some(false) => "MISSED",
        };
        let goal = goal.unwrap_or_default();
        writeln!(out, "{name:<40} {ours:>14} {theirs:>14} {ratio:>7.2}  {goal:<8} {verdict}")?;
    }
    Ok(())
}
