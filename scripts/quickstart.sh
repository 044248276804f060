#!/usr/bin/env bash
# The main job, end to end: builds, mounts, trains a small language model with its checkpoints going through the
# mount, kills trainer and daemon in the middle of a save, resumes, and compares the end with an uninterrupted run's.
set -euo pipefail
. "$(dirname "${BASH_SOURCE[0]}")/lib.sh"

usage() {
    cat <<'END'
Usage: scripts/quickstart.sh [MOUNTPOINT] [--keep]

  MOUNTPOINT   where to mount; an empty directory, made when missing (default: ./artifacts)
  --keep       leave the store mounted at the end

The store is $TINYLLM_STORE, else MOUNTPOINT.store, and stays either way.
END
}

mountpoint=artifacts keep=no
for argument in "$@"; do
    case $argument in
        --keep) keep=yes ;;
        -h | --help) usage && exit 0 ;;
        -*) usage >&2 && exit 2 ;;
        *) mountpoint=$argument ;;
    esac
done

# In /proc/mounts, in the daemon and here: one spelling.
mountpoint=$(realpath -m -- "$mountpoint")
store=$(realpath -m -- "${TINYLLM_STORE:-$mountpoint.store}")
scratch=$(mktemp -d)
trainer='' ours=no

clean_up() {
    local status=$?
    trap - EXIT
    [ -z "$trainer" ] || kill -KILL "$trainer" 2>/dev/null || true
    if [ "$ours" = yes ] && { [ "$status" -ne 0 ] || [ "$keep" = no ]; }; then unmount_anyhow "$mountpoint"; fi
    rm -rf "$scratch"
    exit "$status"
}
trap clean_up EXIT
trap 'exit 130' INT
trap 'exit 143' TERM HUP

stage_number=0
stage() {
    stage_number=$((stage_number + 1))
    printf '\n[%d/8] %s   (%d s so far)\n' "$stage_number" "$*" "$SECONDS"
}

passed=()
check() { # check TEXT COMMAND...
    local text=$1
    shift
    "$@" || fail "FAIL  $text"
    passed+=("PASS  $text")
    echo "  PASS  $text"
}

mount_store() {
    "$bin_dir/mount-tinyllm" "$store" "$mountpoint" 2>&1 | sed 's/^/  /'
    ours=yes
    daemon=$(daemon_of "$mountpoint")
    echo "  $store is mounted on $mountpoint (daemon $daemon)"
}

# Starts a trainer in the background; every tenth step, saves and the like are shown.
start_trainer() { # start_trainer ARTIFACTS ARGUMENTS...
    local artifacts=$1
    shift
    "$bin_dir/tinyllm-train" "$@" --artifacts "$artifacts" \
        2> >(sed -u -n -e '/^step [0-9]*[1-9]:/!s/^/  /p' -e '/^step 1:/s/^/  /p') &
    trainer=$!
}

finish_trainer() {
    wait "$trainer" || fail "the trainer failed"
    trainer=''
}

last_loss() {
    sed -n 's/.*"kind":"end".*"loss":\([0-9.e-]*\).*/\1/p' "$1/progress.jsonl" | tail -n 1
}

json_number() { # json_number NAME < JSON: the first field of that name
    sed -n "s/.*\"$1\": *\([0-9][0-9]*\).*/\1/p" | head -n 1
}

is_mounted "$mountpoint" && stat -f "$mountpoint" >/dev/null 2>&1 &&
    fail "$mountpoint is mounted already; unmount it first, or give another MOUNTPOINT"

stage "build"
need_build_and_mount
build "$scratch/build.log"
echo "  built in $bin_dir"

stage "mount"
mkdir -p "$mountpoint"
mount_store
# Again on the same store: a run of its own.
run=quickstart number=1
while [ -e "$mountpoint/runs/$run" ]; do
    number=$((number + 1))
    run=quickstart-$number
done
spec=$scratch/spec.json
sed -e "s|\"quickstart\"|\"$run\"|" -e "s|\"../../data|\"$repo_root/data|" \
    "$repo_root/scripts/specs/quickstart.json" >"$spec"
ckpt=$mountpoint/runs/$run/ckpt
steps=$(json_number steps <"$spec")
last=step-$(printf %06d "$steps")

stage "train run $run through the mount, and kill trainer and daemon with SIGKILL in the middle of a save"
start_trainer "$mountpoint" "$spec"
# The moment to strike: past half of the run, large files being written, no manifest yet.
struck=''
while [ -z "$struck" ] && [ -d "/proc/$trainer" ]; do
    for tmp in "$ckpt"/step-*.tmp; do
        step=${tmp##*/step-}
        if [ -e "$tmp/model.safetensors" ] && [ $((10#${step%.tmp} * 2)) -ge "$steps" ] && [ ! -e "$tmp/MANIFEST.json" ]; then
            kill -KILL "$daemon" "$trainer"
            struck=${tmp##*/}
            break
        fi
    done
    sleep 0.002
done
[ -n "$struck" ] || { finish_trainer && fail "the run ended before one of its saves was seen"; }
wait "$trainer" 2>/dev/null || true
trainer=''
wait_gone "$daemon"
echo "  killed while $struck was being written"
echo "  the dead mount says: $(stat -f "$mountpoint" 2>&1 | head -n 1)"

stage "mount again and look"
mount_store
(cd "$ckpt" && shopt -s nullglob && ls -l . latest/ step-*.tmp/) | sed 's/^/  /'
latest=$(cat "$ckpt/LATEST")
if [ -e "$ckpt/${struck%.tmp}" ]; then
    # The signals came late, which only a busy machine can do.
    check "the save was done when the signals came, and LATEST names it" test "$latest" = "${struck%.tmp}"
else
    check "the save that was cut off left $struck and no ${struck%.tmp}" test -d "$ckpt/$struck"
fi
verify_latest() { "$bin_dir/tinyllm" --store "$store" verify "$run/latest" | sed 's/^/  /'; }
check "LATEST names $latest, and every byte of that one is right" verify_latest

stage "resume"
start_trainer "$mountpoint" "$spec" --resume
finish_trainer

stage "the same run without interruption, on the bare disk"
start_trainer "$scratch/plain" "$spec"
finish_trainer

stage "compare"
here=$ckpt/$last there=$scratch/plain/runs/$run/ckpt/$last
loss=$(last_loss "$mountpoint/runs/$run")
check "both runs end with loss $loss" test -n "$loss" -a "$loss" = "$(last_loss "$scratch/plain/runs/$run")"
for file in model.safetensors optimizer.safetensors trainer_state.json config.json; do
    check "$file of $last is the same to the bit ($(stat -c %s "$here/$file") bytes)" cmp "$here/$file" "$there/$file"
done

stage "verify all, and show what is shared"
# The uninterrupted run's model, as a directory that Hugging Face tools would write.
mkdir "$scratch/model"
cp "$there/config.json" "$there/model.safetensors" "$scratch/model"
"$bin_dir/tinyllm" --store "$store" import "$scratch/model" "$run-from-disk/step-$steps" | sed 's/^/  /'
verify_all() { "$bin_dir/tinyllm" --store "$store" verify --all | sed 's/^/  /'; }
check "tinyllm verify --all finds nothing wrong" verify_all
"$bin_dir/tinyllm" --store "$store" gc | sed 's/^/  /'
for verb in "status" "ls"; do
    printf '\n  $ tinyllm %s\n' "$verb"
    "$bin_dir/tinyllm" --store "$store" "$verb" | sed 's/^/  /'
done
"$bin_dir/tinyllm" --store "$store" --json status >"$scratch/status.json"
logical=$(du -s -B1 --apparent-size "$mountpoint" | cut -f 1)
disk=$(json_number total_bytes <"$scratch/status.json")

echo
printf '%s\n' "${passed[@]}"
printf '\nThe files under the mount hold %s; the store takes %s of disk. All of this took %d s.\n' "$(human "$logical")" "$(human "$disk")" "$SECONDS"
if [ "$keep" = yes ]; then
    echo "The store stays mounted on $mountpoint. Unmount it with: umount $mountpoint"
else
    unmount "$mountpoint"
    echo "Unmounted. Mount it again with: $bin_dir/mount-tinyllm $store $mountpoint"
fi
