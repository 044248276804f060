#!/usr/bin/env bash
# Measures the mount against the same work on the store's own disk, in turns, and prints ratios.
set -euo pipefail
. "$(dirname "${BASH_SOURCE[0]}")/lib.sh"

usage() {
    cat <<'END'
Usage: scripts/bench.sh [--json] [--dir DIR] [--size-mib N] [--rounds N]

  --json         one JSON object a line: name, ours, theirs, ratio, goal, unit, ok
  --dir DIR      a directory of the disk to measure on (default: beside the build)
  --size-mib N   size of a checkpoint (default: 512)
  --rounds N     how often each thing is measured; medians are printed (default: 7)

A ratio is ours by theirs: of seconds, where less is better, or of GB/s, where more is. It is the median of the
rounds' ratios. Everything is removed at the end. Run it on an idle machine.
END
}

json=no dir='' size_mib=512 rounds=7
while [ $# -gt 0 ]; do
    case $1 in
        --json) json=yes ;;
        --dir | --size-mib | --rounds)
            [ $# -ge 2 ] || fail "$1 wants a value"
            case $1 in
                --dir) dir=$2 ;;
                --size-mib) size_mib=$2 ;;
                --rounds) rounds=$2 ;;
            esac
            shift
            ;;
        -h | --help) usage && exit 0 ;;
        *) usage >&2 && exit 2 ;;
    esac
    shift
done
[[ $size_mib =~ ^[1-9][0-9]*$ && $rounds =~ ^[1-9][0-9]*$ ]] || fail "sizes and rounds are whole numbers"
[ "$(id -u)" -eq 0 ] || fail "run it as root: passthrough and cold caches take that"

work='' build_log=$(mktemp)
clean_up() {
    local status=$?
    trap - EXIT
    rm -f "$build_log"
    if [ -n "$work" ]; then
        unmount_anyhow "$work/mnt"
        rm -rf "$work"
    fi
    exit "$status"
}
trap clean_up EXIT
trap 'exit 130' INT
trap 'exit 143' TERM HUP

say() { echo "$*" >&2; }

need_build_and_mount >&2
say "building"
build "$build_log" >&2
work=$(mktemp -d "$(realpath -- "${dir:-$bin_dir/..}")/tinyllm-bench.XXXXXX")
mkdir "$work/mnt" "$work/plain"

# Three checkpoints on either side, twice for what is removed late, and some room.
need_mib=$((size_mib * 14))
free_mib=$(df --output=avail -m "$work" | tail -n 1)
[ "$free_mib" -gt "$need_mib" ] || fail "$work has $free_mib MiB free and needs $need_mib; give --dir or --size-mib"

bench() { # bench WHAT ARGUMENTS...
    local what=$1
    shift
    say "measuring $what"
    "$bin_dir/tinyllm-bench" "$what" "$work/mnt" "$work/plain" --rounds "$rounds" \
        --between "$bin_dir/tinyllm --store $work/store gc >/dev/null" "$@" >>"$work/results" || {
        tail -n 5 "$work/store/daemon.log" >&2 || true
        fail "measuring $what failed"
    }
}

available_mib=$(awk '/^MemAvailable/ { print int($2 / 1024) }' /proc/meminfo)
"$bin_dir/tinyllm-bench" warm-memory --mib $((available_mib / 2 < size_mib * 16 ? available_mib / 2 : size_mib * 16))

load_before=$(cut -d ' ' -f 1 /proc/loadavg)
# Collection is done between the rounds.
"$bin_dir/mount-tinyllm" "$work/store" "$work/mnt" -o gc_after=86400
bench saves --size-mib "$size_mib"
bench reads --size-mib "$size_mib"
bench small
unmount "$work/mnt"
"$bin_dir/mount-tinyllm" "$work/store" "$work/mnt" -o gc_after=86400,passthrough=no
bench reads --size-mib "$size_mib" --only-for-information "user space"
unmount "$work/mnt"

if [ "$json" = yes ]; then
    cat "$work/results"
else
    echo "checkpoints of $size_mib MiB, $rounds rounds, $(nproc) cores, $(stat -f -c %T "$work") on $(df --output=source "$work" | tail -n 1)," \
        "kernel $(uname -r), load $load_before before and $(cut -d ' ' -f 1 /proc/loadavg) after"
    "$bin_dir/tinyllm-bench" table <"$work/results"
fi
