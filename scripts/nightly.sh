#!/usr/bin/env bash
# What takes too long for every change: 10,000 random sequences of each kind against the reference model, and a
# million operations of fsx in each mode of mounting. Hours, on two cores.
#
# usage: scripts/nightly.sh [SEED]
#
# Another seed gives other sequences; a failure names the seed that repeats it.
set -euo pipefail
cd "$(dirname "$0")/.."
. scripts/lib.sh

seed=${1:-$(date +%s)}
[[ $seed =~ ^[0-9]+$ ]] || fail "$seed: the seed must be a number"
echo "seed $seed"
cargo build --quiet --release --workspace
PROPTEST_CASES=10000 TINYLLM_SEED=$seed cargo test --release --workspace --test model ||
  fail "a sequence did not do what the model says; repeat it with: scripts/nightly.sh $seed"
bash scripts/conformance.sh --operations 1000000 --seed "$seed"
echo "all nightly checks passed (seed $seed)"
