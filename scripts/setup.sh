#!/usr/bin/env bash
# Installs what zf-train is built and tested with, on Debian and Ubuntu. Says what it installs; does
# nothing where all is there.
#
#   bash scripts/setup.sh           what building and running need
#   bash scripts/setup.sh --tests   and what the tests need; what of it no package has is in build-python, by
#                                   tests/requirements.txt, and where it cannot be had tests say so, and are skipped
#
# Says on standard error how far apt is: on a terminal in one line that goes in the end, elsewhere in a
# line every ZF_BUILD_REPORT seconds (15).
set -euo pipefail

packages=(gcc g++ cmake ninja-build pkg-config libopenmpi-dev openmpi-bin libdnnl-dev
    libjansson-dev libcsv-dev libpcre2-dev libsentencepiece-dev libutf8proc-dev libxxhash-dev)
case "${1:-}" in
"") ;;
--tests)
    packages+=(libcmocka-dev clang clang-format libclang-rt-dev libomp-dev valgrind shellcheck strace tmux xxhash curl unzip zip python3 python3-venv
        dpkg-dev file debootstrap zsh mandoc)
    # A browser for the report; Ubuntu has none among its packages.
    ! grep -q '^ID=debian' /etc/os-release || packages+=(chromium)
    ;;
*)
    echo "setup.sh: unknown argument '$1': the only one is --tests" >&2
    exit 2
    ;;
esac

if ! command -v dpkg-query >/dev/null || ! command -v apt-get >/dev/null; then
    echo "setup.sh: this machine has no apt; please install by its own means: ${packages[*]}" >&2
    exit 1
fi

installed() {
    [ "$(dpkg-query -W -f '${db:Status-Status}' "$1" 2>/dev/null)" = installed ]
}

# Passes lines on, and tells of those in which apt says how far it is.
show_progress() {
    local line shown=$SECONDS
    while IFS= read -r line; do
        printf '%s\n' "$line"
        [[ $line =~ ^(dl|pm)status:[^:]*:([0-9]+) ]] || continue
        line="$([ "${BASH_REMATCH[1]}" = dl ] && echo downloading || echo installing): ${BASH_REMATCH[2]}%"
        if [ -t 2 ]; then
            printf '\r\033[K%s' "$line" >&2
        elif [ $((SECONDS - shown)) -ge "${ZF_BUILD_REPORT:-15}" ]; then
            printf '%s\n' "$line" >&2
            shown=$SECONDS
        fi
    done
    [ ! -t 2 ] || printf '\r\033[K' >&2
}

# The tests' Python, made anew where what is wanted of it has changed.
make_python() {
    local root folder wanted
    root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
    folder=$root/build-python wanted=$root/tests/requirements.txt
    ! cmp -s "$wanted" "$folder/made-of" || return 0
    echo "setup.sh: making $folder by tests/requirements.txt"
    rm -rf "$folder"
    if ! { python3 -m venv "$folder" && timeout 300 "$folder/bin/pip" install -q --no-deps --only-binary :all: --timeout 20 \
        --retries 2 --disable-pip-version-check -r "$wanted"; } >&2; then
        rm -rf "$folder"
        echo "setup.sh: pip could not install what tests/requirements.txt names: tests that need it will be skipped" >&2
        return 0
    fi
    cp "$wanted" "$folder/made-of"
}

install_packages() { # install_packages PACKAGE...
    local as_root=() log
    if [ "$(id -u)" -ne 0 ]; then
        if ! command -v sudo >/dev/null; then
            echo "setup.sh: these packages are missing and neither root nor sudo is at hand: $*" >&2
            exit 1
        fi
        as_root=(sudo)
    fi
    echo "setup.sh: installing $*"
    log=$(mktemp)
    export DEBIAN_FRONTEND=noninteractive
    if ! { "${as_root[@]}" apt-get update -q && "${as_root[@]}" apt-get install -y -q --no-install-recommends \
        -o APT::Status-Fd=1 "$@"; } 2>&1 | show_progress >"$log"; then
        tail -n 20 "$log" >&2
        rm -f "$log"
        echo "setup.sh: apt could not install $*; its last lines stand above" >&2
        exit 1
    fi
    rm -f "$log"
}

missing=()
for package in "${packages[@]}"; do
    installed "$package" || missing+=("$package")
done
[ ${#missing[@]} -eq 0 ] || install_packages "${missing[@]}"
[ "${1:-}" != --tests ] || make_python
