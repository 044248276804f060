//! The learning rate as a function of the step alone, so that a resumed run needs no schedule state.

use serde::Deserialize;

/// A linear warm-up, then a cosine down to a share of the peak.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(default)]
pub struct ScheduleSpec {
    /// None: a twentieth of the run.
    pub warmup_steps: Option<u64>,
    pub min_lr_ratio: f64,
}

impl Default for ScheduleSpec {
    fn default() -> Self {
        Self { warmup_steps: None, min_lr_ratio: 0.1 }
    }
}

impl ScheduleSpec {
    /// Gives the rate of step `step` (the first is 1) of a run of `steps`.
    pub fn learning_rate(&self, peak: f64, step: u64, steps: u64) -> f64 {
        let warmup_steps = self.warmup_steps.unwrap_or(steps / 20);
        if step <= warmup_steps {
            return peak * step as f64 / warmup_steps as f64;
        }
        let done = (step - warmup_steps) as f64 / steps.saturating_sub(warmup_steps).max(1) as f64;
        let cosine = 0.5 * (1.0 + (std::f64::consts::PI * done.min(1.0)).cos());
        peak * (self.min_lr_ratio + (1.0 - self.min_lr_ratio) * cosine)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_rises_to_the_peak_and_falls_to_the_floor() {
        let schedule = ScheduleSpec { warmup_steps: Some(10), min_lr_ratio: 0.1 };
        let rate = |step| schedule.learning_rate(2.0, step, 110);
        assert_eq!(rate(1), 0.2);
        assert_eq!(rate(10), 2.0);
        assert!((rate(60) - 1.1).abs() < 1e-12);
        assert!((rate(110) - 0.2).abs() < 1e-12);
        assert!((10..110).all(|step| rate(step + 1) < rate(step)));
        let none = ScheduleSpec { warmup_steps: Some(0), min_lr_ratio: 1.0 };
        assert_eq!(none.learning_rate(3.0, 1, 1), 3.0);
    }
}
