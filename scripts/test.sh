#!/usr/bin/env bash
# Checks everything: formatting, lints, all tests, and the quickstart. Run as root on Debian with Rust installed; it
# installs what else it needs.
set -euo pipefail
cd "$(dirname "$0")/.."
. scripts/lib.sh

mounts() { awk '$3 == "fuse.tinyllm" { print $2 }' /proc/self/mounts | sort; }
mounts_before=$(mounts)

stage() { printf '\n== %s\n' "$*"; }

stage "packages"
need_packages fuse3 strace rsync git attr acl tar util-linux systemd
stage "format"
cargo fmt --all -- --check
stage "lints"
cargo clippy --quiet --release --workspace --all-targets -- -D warnings
stage "build"
cargo build --quiet --release --workspace
stage "python readers"
bash scripts/python-env.sh
stage "tests"
cargo test --release --workspace
stage "outside judges"
bash scripts/conformance.sh
systemd-analyze verify scripts/systemd/artifacts.mount
stage "quickstart"
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
(cd "$scratch" && bash "$OLDPWD/scripts/quickstart.sh")
stage "no mount or daemon is left"
left=$(comm -13 <(echo "$mounts_before") <(mounts))
[ -z "$left" ] || fail "a test left its mount behind: $left"
echo "all checks passed"
