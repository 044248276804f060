//! The order in which windows are trained on: shuffled anew each epoch, and resumable at any window.

use crate::pcg32::Pcg32;

/// Walks the windows of the data epoch by epoch.
#[derive(Debug, Clone)]
pub struct WindowOrder {
    /// As it stood before this epoch's shuffle: what a checkpoint saves.
    before_shuffle: Pcg32,
    /// As it stands after it: what the next epoch is shuffled with.
    generator: Pcg32,
    order: Vec<u32>,
    cursor: Cursor,
}

/// Names the next window.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Cursor {
    pub epoch: u64,
    /// Position in the epoch's order; equal to the number of windows when the epoch is used up.
    pub window_index: u64,
}

impl WindowOrder {
    /// Starts before the first window of epoch 0.
    pub fn start(windows: u32, generator: Pcg32) -> Self {
        Self::at(windows, generator, Cursor { epoch: 0, window_index: 0 })
    }

    /// Continues at `cursor`, in the epoch whose shuffle `before_shuffle` draws; None when the epoch has fewer
    /// windows than the cursor says.
    pub fn resume(windows: u32, before_shuffle: Pcg32, cursor: Cursor) -> Option<Self> {
        (cursor.window_index <= u64::from(windows)).then(|| Self::at(windows, before_shuffle, cursor))
    }

    fn at(windows: u32, before_shuffle: Pcg32, cursor: Cursor) -> Self {
        let mut generator = before_shuffle.clone();
        let mut order: Vec<u32> = (0..windows).collect();
        generator.shuffle(&mut order);
        Self { before_shuffle, generator, order, cursor }
    }

    /// Gives the next window and moves past it.
    pub fn next_window(&mut self) -> u32 {
        let windows = self.order.len() as u64;
        if self.cursor.window_index == windows {
            let cursor = Cursor { epoch: self.cursor.epoch + 1, window_index: 0 };
            let count = u32::try_from(windows).expect("built from a 32-bit count");
            *self = Self::at(count, self.generator.clone(), cursor);
        }
        let window = self.order[self.cursor.window_index as usize];
        self.cursor.window_index += 1;
        window
    }

    pub fn cursor(&self) -> Cursor {
        self.cursor
    }

    /// Gives the generator as it stood before the current epoch's shuffle.
    pub fn generator_before_shuffle(&self) -> &Pcg32 {
        &self.before_shuffle
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_epoch_visits_every_window_once_and_the_next_has_another_order() {
        let mut order = WindowOrder::start(10, Pcg32::new(1, 2));
        let mut draw = || (0..10).map(|_| order.next_window()).collect::<Vec<_>>();
        let (mut first, second) = (draw(), draw());
        assert_ne!(first, second);
        first.sort_unstable();
        assert_eq!(first, (0..10).collect::<Vec<_>>());
    }

    #[test]
    fn resuming_at_any_window_continues_the_walk() {
        let mut walk = WindowOrder::start(7, Pcg32::new(5, 2));
        for _ in 0..30 {
            let mut resumed =
                WindowOrder::resume(7, walk.generator_before_shuffle().clone(), walk.cursor()).unwrap();
            let mut ahead = walk.clone();
            for _ in 0..20 {
                assert_eq!(resumed.next_window(), ahead.next_window());
            }
            walk.next_window();
        }
        let beyond = Cursor { epoch: 0, window_index: 8 };
        assert!(WindowOrder::resume(7, Pcg32::new(5, 2), beyond).is_none());
    }
}
