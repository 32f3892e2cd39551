#!/usr/bin/env bash
# Configures and builds: build.sh FOLDER [CMAKE OPTION...] [-- TARGET...]. Says on standard
# error how far it is: on a terminal in one line that goes in the end, elsewhere in a line every
# ZF_BUILD_REPORT seconds (15). Prints nothing where all is up to date.
set -euo pipefail
source_dir=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
build_dir=$1 options=() targets=()
shift
while [ $# -gt 0 ] && [ "$1" != -- ]; do
    options+=("$1")
    shift
done
[ $# -le 1 ] || targets=(--target "${@:2}")
log=$(mktemp)
trap 'rm -f "$log"' EXIT

# Passes lines on, and counts ninja's steps.
count_steps() {
    local line shown=
    while IFS= read -r line; do
        printf '%s\n' "$line"
        [[ $line =~ ^\[([1-9][0-9]*)/([0-9]+)\] ]] || continue
        line="building: ${BASH_REMATCH[1]} of ${BASH_REMATCH[2]} steps"
        if [ -t 2 ]; then
            printf '\r\033[K%s' "$line" >&2
        elif [ -z "$shown" ] || [ $((SECONDS - shown)) -ge "${ZF_BUILD_REPORT:-15}" ]; then
            printf '%s\n' "$line" >&2
            shown=$SECONDS
        fi
    done
    [ ! -t 2 ] || printf '\r\033[K' >&2
}

export NINJA_STATUS='[%f/%t] '
if ! { cmake -S "$source_dir" -B "$build_dir" -G Ninja "${options[@]}" && cmake --build "$build_dir" "${targets[@]}"; } 2>&1 | count_steps >"$log"; then
    cat "$log" >&2
    echo "build.sh: building in $build_dir failed; the compiler's messages stand above" >&2
    exit 1
fi
