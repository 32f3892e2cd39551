#!/usr/bin/env bash
# Configures and builds: build.sh FOLDER [CMAKE OPTION...]. Prints nothing where all is up to date.
set -euo pipefail
source_dir=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
build_dir=$1
shift
log=$(mktemp)
trap 'rm -f "$log"' EXIT
if ! { cmake -S "$source_dir" -B "$build_dir" -G Ninja "$@" && cmake --build "$build_dir"; } >"$log" 2>&1; then
    cat "$log" >&2
    echo "build.sh: building in $build_dir failed; the compiler's messages stand above" >&2
    exit 1
fi
