#!/usr/bin/env bash
# expectations.md is what happens: its commands run in order, each does what its line promises.

. tests/e2e/lib/common.sh "$@"
need python3 mpirun

export OMPI_MCA_rmaps_base_oversubscribe=1 OMPI_MCA_hwloc_base_binding_policy=none
mkdir "$scratch/work"
for folder in configs data tests; do ln -s "$root/$folder" "$scratch/work/$folder"; done
ln -s "$build" "$scratch/work/build"
check "the page's lines" python3 tests/e2e/lib/expectations.py lines tests/e2e/expectations.md
cp "$scratch/check.log" "$scratch/lines"
check "at least 40" test "$(wc -l <"$scratch/lines")" -ge 40
python3 tests/e2e/lib/expectations.py setup tests/e2e/expectations.md >"$scratch/setup.sh"
check "the data and models that they take" bash -ec "cd '$scratch/work' && . ../setup.sh"
while IFS=$'\t' read -r number what; do
    check "$number: $what" python3 tests/e2e/lib/expectations.py run tests/e2e/expectations.md "$number" "$scratch/work"
done <"$scratch/lines"
finish
