//! PCG32 (XSH RR 64/32) of Melissa O'Neill, "PCG: A Family of Simple Fast Space-Efficient Statistically Good
//! Algorithms for Random Number Generation" (2014): the one source of randomness of a run.

const MULTIPLIER: u64 = 6_364_136_223_846_793_005;

/// Generates 32-bit numbers; its whole state is two 64-bit words, which a checkpoint saves.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Pcg32 {
    state: u64,
    /// Odd; selects the stream.
    increment: u64,
}

impl Pcg32 {
    /// Starts `stream` at `seed`, as the reference `pcg32_srandom_r` does.
    pub fn new(seed: u64, stream: u64) -> Self {
        let mut generator = Self { state: 0, increment: stream << 1 | 1 };
        generator.next_u32();
        generator.state = generator.state.wrapping_add(seed);
        generator.next_u32();
        generator
    }

    /// Gives back a generator from its two words; None when the increment is even, which no stream has.
    pub fn from_words(state: u64, increment: u64) -> Option<Self> {
        (increment % 2 == 1).then_some(Self { state, increment })
    }

    /// Gives the two words, state first.
    pub fn words(&self) -> (u64, u64) {
        (self.state, self.increment)
    }

    /// Draws 32 uniform bits.
    pub fn next_u32(&mut self) -> u32 {
        let old = self.state;
        self.state = old.wrapping_mul(MULTIPLIER).wrapping_add(self.increment);
        let xorshifted = (((old >> 18) ^ old) >> 27) as u32;
        xorshifted.rotate_right((old >> 59) as u32)
    }

    /// Draws uniformly from `0..bound`, without the bias of a bare modulo: draws below 2^32 mod `bound` are
    /// thrown away. `bound` is not 0.
    pub fn below(&mut self, bound: u32) -> u32 {
        let threshold = bound.wrapping_neg() % bound;
        loop {
            let drawn = self.next_u32();
            if drawn >= threshold {
                return drawn % bound;
            }
        }
    }

    /// Draws from the standard normal distribution by Box and Muller's transform, two draws a number.
    pub fn normal(&mut self) -> f64 {
        // Half a step above zero keeps the logarithm finite.
        let unit = |drawn: u32| (f64::from(drawn) + 0.5) / 4_294_967_296.0;
        let radius = (-2.0 * unit(self.next_u32()).ln()).sqrt();
        radius * (std::f64::consts::TAU * unit(self.next_u32())).cos()
    }

    /// Shuffles by Fisher and Yates, from the end.
    pub fn shuffle(&mut self, items: &mut [u32]) {
        for last in (1..items.len()).rev() {
            let bound = u32::try_from(last + 1).expect("windows are counted in 32 bits");
            items.swap(last, self.below(bound) as usize);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The reference implementation's own demo prints these for seed 42, stream 54.
    #[test]
    fn the_reference_outputs_come_out() {
        let mut generator = Pcg32::new(42, 54);
        let drawn: Vec<u32> = (0..6).map(|_| generator.next_u32()).collect();
        assert_eq!(drawn, [0xa15c_02b7, 0x7b47_f409, 0xba1d_3330, 0x83d2_f293, 0xbfa4_784b, 0xcbed_606e]);
    }

    #[test]
    fn saved_words_continue_the_stream() {
        let mut generator = Pcg32::new(7, 1);
        generator.next_u32();
        let (state, increment) = generator.words();
        let mut continued = Pcg32::from_words(state, increment).unwrap();
        assert_eq!(continued.next_u32(), generator.next_u32());
        assert_eq!(Pcg32::from_words(1, 2), None);
    }

    #[test]
    fn bounded_draws_cover_the_range_evenly_and_a_shuffle_permutes() {
        let mut generator = Pcg32::new(1, 1);
        let mut counts = [0u32; 6];
        (0..60_000).for_each(|_| counts[generator.below(6) as usize] += 1);
        assert!(counts.iter().all(|count| (9_500..10_500).contains(count)), "{counts:?}");

        let mut items: Vec<u32> = (0..100).collect();
        generator.shuffle(&mut items);
        assert_ne!(items, (0..100).collect::<Vec<_>>());
        items.sort_unstable();
        assert_eq!(items, (0..100).collect::<Vec<_>>());
    }

    #[test]
    fn normal_draws_have_mean_0_and_variance_1() {
        let mut generator = Pcg32::new(3, 3);
        let drawn: Vec<f64> = (0..100_000).map(|_| generator.normal()).collect();
        let mean = drawn.iter().sum::<f64>() / 1e5;
        let variance = drawn.iter().map(|x| (x - mean).powi(2)).sum::<f64>() / 1e5;
        assert!(mean.abs() < 0.02 && (variance - 1.0).abs() < 0.03, "{mean} {variance}");
    }
}
