#!/usr/bin/env bash
# scripts/build.sh says how far a build is, and nothing where there is nothing to build.

. tests/e2e/lib/common.sh "$@"
need cmake ninja script

# A project of four steps that take a second each, one after another.
mkdir "$scratch/scripts"
cp scripts/build.sh "$scratch/scripts/"
cat >"$scratch/CMakeLists.txt" <<'END'
cmake_minimum_required(VERSION 3.22)
project(slow LANGUAGES NONE)
set(before ${CMAKE_SOURCE_DIR}/input)
foreach(step 1 2 3 4)
  add_custom_command(OUTPUT step${step} DEPENDS ${before}
    COMMAND sh ${CMAKE_SOURCE_DIR}/step.sh COMMAND touch step${step})
  set(before ${CMAKE_BINARY_DIR}/step${step})
endforeach()
add_custom_target(all_steps ALL DEPENDS step4)
add_custom_target(half DEPENDS step2)
END
touch "$scratch/input"
echo 'sleep 1.1' >"$scratch/step.sh"
build() { # build FOLDER: what it prints is in $scratch/stdout and $scratch/stderr
    ZF_BUILD_REPORT=2 bash "$scratch/scripts/build.sh" "$1" >"$scratch/stdout" 2>"$scratch/stderr"
}

# Three at once: they sleep most of the time.
script -qec "bash $scratch/scripts/build.sh $scratch/t" "$scratch/terminal" </dev/null >"$scratch/script" 2>&1 &
terminal=$!
bash "$scratch/scripts/build.sh" "$scratch/h" -DZF_UNUSED=ON --no-warn-unused-cli -- half >"$scratch/half" 2>&1 &
half=$!
check "it builds" build "$scratch/b"
cat "$scratch/stderr"
printed=$(sed 's/^building: \([1-4]\) of 4 steps$/\1/' "$scratch/stderr" | tr -d '\n')
check "a line for the first step, and now and then" test "$printed" = 13 -o "$printed" = 14 -o "$printed" = 124 \
    -o "$printed" = 134 -o "$printed" = 123
check "nothing on standard output" test ! -s "$scratch/stdout"
check "again" build "$scratch/b"
check "up to date: nothing" test ! -s "$scratch/stderr"

check "on a terminal" wait "$terminal"
check "on a terminal: one line, which goes" python3 - "$scratch/terminal" <<'END'
import re, sys
sent = open(sys.argv[1], newline="").read()
sent = re.sub(r"^Script started.*?\n|Script done.*", "", sent, flags=re.S)
states = sent.strip("\n").split("\r\033[K")
assert states[-1].strip() == "" and states[0] == "", states
assert states[1:-1] == [f"building: {i} of 4 steps" for i in range(1, 5)], states
END

check "a target of its own" wait "$half"
check "it alone is built" test -e "$scratch/h/step2" -a ! -e "$scratch/h/step3"

echo 'echo "a fault of the compiler"; exit 1' >"$scratch/step.sh"
touch "$scratch/input"
check "a fault: status" not build "$scratch/b"
check "a fault: what the compiler said" grep -q '^a fault of the compiler' "$scratch/stderr"
check "a fault: where" grep -q "^build.sh: building in $scratch/b failed" "$scratch/stderr"
finish
