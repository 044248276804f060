#!/usr/bin/env bash
# Builds and installs tinyllm, mount-tinyllm and tinyllm-train.
set -euo pipefail
. "$(dirname "${BASH_SOURCE[0]}")/lib.sh"

usage() {
    cat <<'END'
Usage: scripts/install.sh [PREFIX]

  PREFIX   where bin/ is (default: /usr/local)

With a PREFIX of /usr, /usr/local or /, the mount helpers go to /sbin, where mount(8) and fstab look for them:
    mount -t tinyllm STORE MOUNTPOINT
With any other, they go to PREFIX/sbin. $DESTDIR is put before every path.
END
}

case ${1-} in
    -h | --help) usage && exit 0 ;;
    -*) usage >&2 && exit 2 ;;
esac
[ $# -le 1 ] || { usage >&2 && exit 2; }

prefix=$(realpath -m -- "${1:-/usr/local}")
case $prefix in
    / | /usr | /usr/local) sbin=${DESTDIR-}/sbin ;;
    *) sbin=${DESTDIR-}$prefix/sbin ;;
esac
bin=${DESTDIR-}${prefix%/}/bin

build_log=$(mktemp)
trap 'rm -f "$build_log"' EXIT
need_build_and_mount
echo "building"
build "$build_log"

install -d "$bin" "$sbin" || fail "cannot install to $bin and $sbin; run as root, or give a PREFIX of your own"
for program in tinyllm mount-tinyllm tinyllm-train; do
    install -m 755 "$bin_dir/$program" "$bin/$program"
    echo "installed $bin/$program"
done
# The second is the type that a mounted store has: mount -o remount asks for it.
for helper in mount.tinyllm mount.fuse.tinyllm; do
    ln -sf "${prefix%/}/bin/mount-tinyllm" "$sbin/$helper"
    echo "installed $sbin/$helper"
done
