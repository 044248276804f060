# What the scripts share. To be sourced by bash with `set -euo pipefail`.
# shellcheck shell=bash

repo_root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)

# Ends the script with one line that says why.
fail() {
    printf '%s: %s\n' "$(basename "$0")" "$*" >&2
    exit 1
}

# Installs the Debian packages that are missing.
need_packages() {
    local package missing=()
    command -v dpkg-query >/dev/null || fail "needs a Debian system, to install: $*"
    for package in "$@"; do
        dpkg-query -W -f '${db:Status-Abbrev}' "$package" 2>/dev/null | grep -q '^.i' || missing+=("$package")
    done
    [ ${#missing[@]} -gt 0 ] || return 0
    [ "$(id -u)" -eq 0 ] || fail "packages are missing; run as root: apt-get install ${missing[*]}"
    echo "installing ${missing[*]}"
    local said
    if ! said=$({ apt-get update -q && DEBIAN_FRONTEND=noninteractive apt-get install -q -y "${missing[@]}"; } 2>&1); then
        printf '%s\n' "$said" | tail -n 5 >&2
        fail "apt-get could not install ${missing[*]}"
    fi
}

# Finds cargo, also where rustup put it without a new login.
need_rust() {
    if ! command -v cargo >/dev/null && [ -x "${CARGO_HOME:-$HOME/.cargo}/bin/cargo" ]; then
        PATH=${CARGO_HOME:-$HOME/.cargo}/bin:$PATH
    fi
    command -v cargo >/dev/null || fail "cargo was not found; install Rust with rustup first"
}

# What building and mounting take besides Rust.
need_build_and_mount() {
    need_packages gcc libc6-dev ca-certificates fuse3
    need_rust
    [ -e /dev/fuse ] || modprobe fuse 2>/dev/null || true
    [ -e /dev/fuse ] || fail "/dev/fuse is missing: the kernel has no FUSE, or this container may not use it"
}

# build LOG: builds the programs in the release profile and says every half minute that it still does. Sets bin_dir.
build() {
    local log=$1 started=$SECONDS builder said=0
    # The same packages as the tests build, so that neither builds the dependencies again for the other.
    (cd "$repo_root" && exec cargo build --release --workspace --bins) >"$log" 2>&1 &
    builder=$!
    while kill -0 "$builder" 2>/dev/null; do
        sleep 0.2
        if [ $((SECONDS - started - said)) -ge 30 ]; then
            said=$((SECONDS - started))
            echo "  still building: $(grep -c '^ *Compiling' "$log") crates begun, $said s"
        fi
    done
    if ! wait "$builder"; then
        tail -n 20 "$log" >&2
        fail "the build failed"
    fi
    # shellcheck disable=SC2034 # for the script that sources this file
    bin_dir=$(cd "$repo_root" && realpath -m "${CARGO_TARGET_DIR:-target}")/release
}

# Says whether a directory has a tinyllm mount on it, dead or alive.
is_mounted() {
    awk -v target="$1" '$2 == target && $3 == "fuse.tinyllm" { found = 1 } END { exit !found }' /proc/self/mounts
}

# Prints the process id of the daemon behind a mount.
daemon_of() {
    sed -n 's/.*"pid": *\([0-9][0-9]*\).*/\1/p' "$1/.tinyllm/status.json"
}

# Waits until a process that need not be a child is gone.
wait_gone() {
    while [ -d "/proc/$1" ] && ! grep -q '^State:.*Z' "/proc/$1/status" 2>/dev/null; do
        sleep 0.05
    done
}

# Unmounts and waits until the daemon is done with its store.
unmount() {
    local pid
    pid=$(daemon_of "$1" 2>/dev/null || true)
    if [ "$(id -u)" -eq 0 ]; then umount "$1"; else fusermount3 -u "$1"; fi
    [ -z "$pid" ] || wait_gone "$pid"
}

# The same for clean-up: by force, and whether or not there is a mount.
unmount_anyhow() {
    is_mounted "$1" || return 0
    unmount "$1" 2>/dev/null || umount -l "$1" 2>/dev/null || fusermount3 -u -z "$1" 2>/dev/null || true
}

# A number of bytes for people.
human() {
    numfmt --to=iec-i --suffix=B --format=%.1f "$1"
}
