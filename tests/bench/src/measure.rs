//! One comparison's result.

use std::io::Write as _;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::sides::Pair;

/// What a ratio is hoped to be.
#[derive(Debug, Clone, Copy)]
pub enum Goal {
    AtLeast(f64),
    AtMost(f64),
}

impl Goal {
    fn met_by(self, ratio: f64) -> bool {
        match self {
            Self::AtLeast(least) => ratio >= least,
            Self::AtMost(most) => ratio <= most,
        }
    }

    fn text(self) -> String {
        match self {
            Self::AtLeast(least) => format!(">= {least}"),
            Self::AtMost(most) => format!("<= {most}"),
        }
    }
}

/// One comparison: the medians of all rounds, and the median of their ratios, ours by theirs.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Measurement {
    pub name: String,
    pub ours: f64,
    pub theirs: f64,
    pub ratio: f64,
    /// None: measured for information.
    pub goal: Option<String>,
    pub unit: String,
    pub ok: Option<bool>,
}

impl Measurement {
    /// A duration in seconds: less is better.
    pub fn time(name: &str, pairs: &[Pair], goal: Option<Goal>) -> Self {
        Self::new(name, "s", pairs, |time| time.as_secs_f64(), goal)
    }

    /// Gigabytes in a second: more is better.
    pub fn throughput(name: &str, bytes: u64, pairs: &[Pair], goal: Option<Goal>) -> Self {
        Self::new(name, "GB/s", pairs, |time| bytes as f64 / time.as_secs_f64() / 1e9, goal)
    }

    fn new(
        name: &str,
        unit: &str,
        pairs: &[Pair],
        scale: impl Fn(&Duration) -> f64,
        goal: Option<Goal>,
    ) -> Self {
        let figures: Vec<(f64, f64)> =
            pairs.iter().map(|pair| (scale(&pair.ours), scale(&pair.theirs))).collect();
        let ratio = median(figures.iter().map(|(ours, theirs)| ours / theirs));
        Self {
            name: name.to_owned(),
            ours: median(figures.iter().map(|(ours, _)| *ours)),
            theirs: median(figures.iter().map(|(_, theirs)| *theirs)),
            ratio,
            goal: goal.map(Goal::text),
            unit: unit.to_owned(),
            ok: goal.map(|goal| goal.met_by(ratio)),
        }
    }

    /// Prints it as one line of JSON.
    pub fn print(&self) -> anyhow::Result<()> {
        let mut line = serde_json::to_string(self)?;
        line.push('\n');
        Ok(std::io::stdout().write_all(line.as_bytes())?)
    }
}

fn median(values: impl Iterator<Item = f64>) -> f64 {
    let mut sorted: Vec<f64> = values.collect();
    sorted.sort_by(f64::total_cmp);
    match sorted.len() {
        0 => f64::NAN,
        count if count % 2 == 1 => sorted[count / 2],
        count => f64::midpoint(sorted[count / 2 - 1], sorted[count / 2]),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn medians_and_goals() {
        assert_eq!(median([3.0, 1.0, 2.0].into_iter()), 2.0);
        assert_eq!(median([4.0, 1.0].into_iter()), 2.5);
        assert!(Goal::AtMost(1.15).met_by(1.15) && !Goal::AtMost(1.15).met_by(1.16));
        assert!(Goal::AtLeast(0.95).met_by(0.95) && !Goal::AtLeast(0.95).met_by(0.94));
    }
}
