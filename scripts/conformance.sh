#!/usr/bin/env bash
# Has outside suites judge real mounts: pjdfstest (what POSIX says of names and attributes) and fsx (what files say of
# their bytes), on a mount with passthrough, on one without, and on an ordinary user's. Needs root.
set -euo pipefail
. "$(dirname "${BASH_SOURCE[0]}")/lib.sh"

usage() {
    cat <<'END'
Usage: scripts/conformance.sh [--operations N] [--seed N] [--only pjdfstest|fsx]

  --operations N   operations of fsx on each mount (default: 20000)
  --seed N         what fsx begins with (default: a random one, printed)
  --only SUITE     runs one suite
END
}

# The versions that tests/conformance is written for.
pjdfstest_version=0.2.2 fsx_version=0.3.2
operations=20000 seed=$((RANDOM * 32768 + RANDOM)) only=''
arguments=("$@")
while [ $# -gt 0 ]; do
    case $1 in
        --operations) operations=${2:?} && shift ;;
        --seed) seed=${2:?} && shift ;;
        --only) only=${2:?} && shift ;;
        -h | --help) usage && exit 0 ;;
        *) usage >&2 && exit 2 ;;
    esac
    shift
done

# In a mount namespace of its own, where /sbin can have the mount helper that `mount -o remount` asks for.
if [ -z "${TINYLLM_CONFORMANCE_NAMESPACE-}" ]; then
    [ "$(id -u)" -eq 0 ] || fail "run this as root: the suites switch users and make device nodes"
    exec env TINYLLM_CONFORMANCE_NAMESPACE=1 unshare --mount --propagation private \
        bash "${BASH_SOURCE[0]}" "${arguments[@]}"
fi
# A copy here of somebody's mount would keep that mount's daemon from ending.
awk '$3 == "fuse.tinyllm" { print $2 }' /proc/self/mounts | while read -r target; do umount --lazy "$target"; done

need_build_and_mount
need_packages acl libacl1-dev util-linux
suites=$repo_root/tests/conformance
# An ordinary user that every Debian has, with a group of the same name.
user=games

scratch=$(mktemp -d)
chmod 755 "$scratch"
fuse_mode=$(stat -c %a /dev/fuse)
mounts=()
clean_up() {
    local status=$? mount
    trap - EXIT
    for mount in "${mounts[@]}"; do unmount_anyhow "$mount"; done
    ! mountpoint -q "$scratch/other" || umount "$scratch/other"
    [ -z "${sbin-}" ] || ! mountpoint -q "$sbin" || umount "$sbin"
    chmod "$fuse_mode" /dev/fuse
    rm -rf "$scratch"
    exit "$status"
}
trap clean_up EXIT
trap 'exit 130' INT
trap 'exit 143' TERM HUP

build "$scratch/build.log"
mkdir "$scratch/helpers"
ln -s "$bin_dir/mount-tinyllm" "$scratch/helpers/mount.fuse.tinyllm"
sbin=$(realpath /sbin)
mount -t overlay -o "lowerdir=$scratch/helpers:$sbin" overlay "$sbin"
# Where cargo keeps what it built: installing again takes no time.
tools=$(dirname "$bin_dir")/tools
install_suite() { # install_suite NAME VERSION
    [ "$("$tools/bin/$1" --version 2>/dev/null)" = "$1 $2" ] && return
    echo "installing $1 $2"
    cargo install --quiet --locked --root "$tools" --target-dir "$tools/build" "$1" --version "$2" \
        >"$scratch/install.log" 2>&1 || { tail -n 20 "$scratch/install.log" >&2 && fail "$1 could not be installed"; }
}

# Another filesystem, for what must not work across two.
mkdir "$scratch/other"
mount -t tmpfs -o size=64m tmpfs "$scratch/other"
chmod 1777 "$scratch/other"

as_user() { # as_user USER COMMAND...
    setpriv --reuid "$1" --regid "$(id -g "$1")" --clear-groups -- "${@:2}"
}

# mount_as USER NAME OPTIONS: a store of its own, mounted by that user at $scratch/NAME.
mount_as() {
    local dir=$scratch/$2
    install -d -o "$1" -m 755 "$dir" "$dir/mnt"
    mounts+=("$dir/mnt")
    as_user "$1" "$bin_dir/mount-tinyllm" "$dir/store" "$dir/mnt" -o "$3"
}

# served_by_kernel USER NAME: only the user who mounted it can look into a mount.
served_by_kernel() {
    as_user "$1" grep -q '"passthrough": true' "$scratch/$2/mnt/.tinyllm/status.json"
}

# pjdfstest_as USER NAME CONFIGURATION LOG [PATTERN]
pjdfstest_as() {
    if ! (cd / && as_user "$1" "$tools/bin/pjdfstest" -c "$3" -p "$scratch/$2/mnt" -s "$scratch/other" "${@:5}" >"$4.raw" 2>&1); then
        grep -A 3 -E 'FAILED|UNEXPECTEDLY|^Error' "$4.raw" >&2 || cat "$4.raw" >&2
        fail "pjdfstest, $2: see above"
    fi
    sed 's/\x1b\[[0-9;]*m//g' "$4.raw" >"$4"
}

# run_pjdfstest USER NAME: fails on every case that fails, and on every case that was skipped without being listed.
run_pjdfstest() {
    local log=$scratch/$2.pjdfstest unlisted listed=("$suites/skipped.txt")
    # The cases of EROFS on their own: others leave files open as long as the suite runs, and keep what they are on
    # busy (ext4 as well).
    pjdfstest_as "$1" "$2" "$suites/pjdfstest.toml" "$log.erofs" erofs
    sed 's/^allow_remount = true$/allow_remount = false/' "$suites/pjdfstest.toml" >"$log.toml"
    pjdfstest_as "$1" "$2" "$log.toml" "$log"
    # A case's name and, indented below it, the reasons.
    awk '/ skipped$/ { name = $1; next }
         /^\t/ { if (name && !/requires root privileges/) print name; next }
         { name = "" }' "$log" | sort -u >"$log.skipped"
    awk '/ ok$/ { print $1 }' "$log.erofs" >"$log.passed"
    [ "$1" = root ] || listed+=("$suites/skipped-ordinary-user.txt")
    unlisted=$(comm -23 "$log.skipped" <(grep -hv '^#' "${listed[@]}" | sort -u - "$log.passed"))
    [ -z "$unlisted" ] || fail "pjdfstest, $2: skipped, and not listed in ${listed[*]}:" $unlisted
    printf '  pjdfstest  %-14s %s\n' "$2" "$(sed -n 's/^Summary: //p' "$log")"
    printf '  pjdfstest  %-14s %s (cases of EROFS)\n' "$2" "$(sed -n 's/^Summary: //p' "$log.erofs")"
}

run_fsx() { # run_fsx USER NAME
    local user=$1 dir=$scratch/$2 log=$scratch/$2.fsx
    install -d -o "$user" "$dir/artifacts"
    if ! as_user "$user" "$tools/bin/fsx" -q -f "$suites/fsx.toml" -N "$operations" -S "$seed" \
        -P "$dir/artifacts" "$dir/mnt/file" \
        >"$log" 2>&1; then
        tail -n 40 "$log" >&2
        fail "fsx, $2: diverged with seed $seed"
    fi
    as_user "$user" rm "$dir/mnt/file"
    printf '  fsx        %-14s %s operations, no divergence\n' "$2" "$operations"
}

wanted() { [ -z "$only" ] || [ "$only" = "$1" ]; }

! wanted pjdfstest || install_suite pjdfstest "$pjdfstest_version"
! wanted fsx || install_suite fsx "$fsx_version"

chmod 666 /dev/fuse
mount_as root passthrough dev,suid,passthrough=yes
mount_as root user-space dev,suid,passthrough=no
# As a distribution sets things up for users. Without the right to pass files through the daemon has to notice.
mount_as "$user" ordinary-user passthrough=yes
! served_by_kernel "$user" ordinary-user || fail "an ordinary user's daemon says that it passes files through"
served_by_kernel root passthrough || echo "  this kernel passes no files through: both of root's mounts are alike"

for name in passthrough user-space ordinary-user; do
    who=root
    [ "$name" != ordinary-user ] || who=$user
    ! wanted pjdfstest || run_pjdfstest "$who" "$name"
    ! wanted fsx || run_fsx "$who" "$name"
    # Root itself can't look into an ordinary user's mount.
    pid=$(as_user "$who" cat "$scratch/$name/mnt/.tinyllm/status.json" | sed -n 's/.*"pid": *\([0-9]*\).*/\1/p')
    umount "$scratch/$name/mnt"
    wait_gone "$pid"
    as_user "$who" "$bin_dir/tinyllm" verify --all --store "$scratch/$name/store" \
        >"$scratch/verify.log" 2>&1 || { cat "$scratch/verify.log" >&2 && fail "the store of $name does not verify"; }
done
