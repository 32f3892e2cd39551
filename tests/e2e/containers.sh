#!/usr/bin/env bash
# The recipes for containers, as linters find them: nothing is built here. e2e_debian does their steps, with ZF_LONG=1.

. tests/e2e/lib/common.sh "$@"
need shellcheck hadolint

sed -n '/^%post/,/^%runscript/p' scripts/container/zf-train.def | sed '/^%/d; s/{{ \([A-Z]*\) }}/\1/' >"$scratch/steps.sh"
check "the definition's steps are there" grep -q cpack "$scratch/steps.sh"
check "shellcheck: the definition's steps" shellcheck -s sh "$scratch/steps.sh"
check "hadolint: the Dockerfile" hadolint scripts/container/Dockerfile

# That they see something.
sed '/hadolint ignore/d' scripts/container/Dockerfile >"$scratch/Dockerfile"
check "hadolint: what the Dockerfile excuses" not hadolint "$scratch/Dockerfile"
(cat "$scratch/steps.sh" && echo 'cd $1') >"$scratch/worse.sh"
check "shellcheck: a fault" not shellcheck -s sh "$scratch/worse.sh"
finish
