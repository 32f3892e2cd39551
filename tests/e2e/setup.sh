#!/usr/bin/env bash
# scripts/setup.sh, with an apt-get that only says what apt-get says: how far it is, and what went wrong; and what tests have
# from PyPI, with a pip that only says what it is asked.

. tests/e2e/lib/common.sh "$@"
need python3 script

mkdir "$scratch/bin"
cat >"$scratch/bin/dpkg-query" <<'END'
#!/bin/sh
case "$*" in *libcsv-dev | *ninja-build) echo unknown ;; *) echo installed ;; esac
END
cat >"$scratch/bin/apt-get" <<'END'
#!/bin/sh
echo "apt-get $*" >>"$ASKED"
[ "$1" = install ] || exit 0
for status in dlstatus:1:0.0:Retrieving dlstatus:2:40.5:Retrieving pmstatus:libcsv-dev:50.0000:Unpacking pmstatus:libcsv-dev:100.0000:Installed; do
    echo "what apt says of it"
    echo "$status"
    sleep "${SLOW:-0}"
done
[ -z "${FAILS:-}" ] || { echo "E: no such package" >&2; exit 100; }
END
printf '#!/bin/sh\nexec "$@"\n' >"$scratch/bin/sudo"
chmod +x "$scratch"/bin/*
export PATH=$scratch/bin:$PATH ASKED=$scratch/asked
setup() { # what it prints is in $scratch/stdout and $scratch/stderr
    : >"$ASKED"
    bash scripts/setup.sh >"$scratch/stdout" 2>"$scratch/stderr"
}

check "it installs" setup
check "it says what" test "$(cat "$scratch/stdout")" = "setup.sh: installing ninja-build libcsv-dev"
check "it asks for these" grep -q '^apt-get install .* ninja-build libcsv-dev$' "$ASKED"
check "a fast one says no more" test ! -s "$scratch/stderr"
export SLOW=1.1 ZF_BUILD_REPORT=2
check "slowly" setup
unset SLOW ZF_BUILD_REPORT
check "slowly: now and then how far it is" grep -Eqx 'installing: (50|100)%' "$scratch/stderr"
check "slowly: no more often" test "$(wc -l <"$scratch/stderr")" -le 2
check "on a terminal" script -qec "bash scripts/setup.sh" "$scratch/terminal" </dev/null
check "on a terminal: one line, which goes" python3 - "$scratch/terminal" <<'END'
import re, sys
sent = open(sys.argv[1], newline="").read()
sent = sent[sent.index("libcsv-dev\r\n") + len("libcsv-dev\r\n"):sent.index("Script done")]
states = sent.strip("\n").split("\r\033[K")
assert states == ["", "downloading: 0%", "downloading: 40%", "installing: 50%", "installing: 100%", ""], states
END
check "a fault" not env FAILS=1 bash -c "ASKED=$ASKED bash scripts/setup.sh 2>$scratch/stderr"
check "a fault: what apt said" grep -q '^E: no such package' "$scratch/stderr"
check "a fault: what could not be installed" grep -q '^setup.sh: apt could not install ninja-build libcsv-dev' "$scratch/stderr"

# The tests' Python, in a project of its own.
mkdir -p "$scratch/project/scripts" "$scratch/project/tests" "$scratch/python"
cp scripts/setup.sh "$scratch/project/scripts/"
cp tests/requirements.txt "$scratch/project/tests/"
made=$scratch/project/build-python
cat >"$scratch/python/python3" <<'END'
#!/bin/sh
[ "$1 $2" = "-m venv" ] && mkdir -p "$3/bin" || exit 1
printf '#!/bin/sh\necho "pip $*" >>"$ASKED"\n[ -z "${OFFLINE:-}" ] || { echo "no network" >&2; exit 1; }\n' >"$3/bin/pip"
chmod +x "$3/bin/pip"
END
chmod +x "$scratch/python/python3"
python_of() { # python_of [OPTION]: setup.sh of that project; what it prints as above
    : >"$ASKED"
    PATH=$scratch/python:$PATH bash "$scratch/project/scripts/setup.sh" "$@" >"$scratch/stdout" 2>"$scratch/stderr"
}
check "without --tests" python_of
check "there is no Python" test ! -e "$made"
check "--tests without a network goes on" env OFFLINE=1 bash -c "$(declare -f python_of); scratch=$scratch python_of --tests"
check "it says what follows" grep -q '^setup.sh: pip could not install .*: tests that need it will be skipped$' "$scratch/stderr"
check "and leaves nothing half made" test ! -e "$made"
check "--tests" python_of --tests
check "asks pip for what is named" grep -q "^pip install .* -r $scratch/project/tests/requirements.txt$" "$ASKED"
check "once more" python_of --tests
check "asks for nothing" not grep -q '^pip' "$ASKED"
echo 'other==1' >"$scratch/project/tests/requirements.txt"
check "after a change" python_of --tests
check "asks anew" grep -q '^pip install' "$ASKED"
check "an unknown argument" not bash scripts/setup.sh --all
finish
