#!/usr/bin/env bash
# All sources are as clang-format 14 formats them; another version formats otherwise.

. tests/e2e/lib/common.sh "$@"
need git clang-format
version=$(clang-format --version)
[[ $version =~ version\ 14\. ]] || skip "this is $version, and 14 is expected"
git ls-files '*.c' '*.h' '*.cc' '*.cu' '*.cuh' >"$scratch/sources" 2>/dev/null || skip "git does not know this folder"
[ -s "$scratch/sources" ] || skip "git has no sources here"
check "all $(wc -l <"$scratch/sources") sources" xargs clang-format --dry-run -Werror <"$scratch/sources"
check "no line has more than 100 columns" not xargs grep -HnE '.{101}' <"$scratch/sources" # not comments either, which clang-format leaves alone

# That the check sees something.
printf 'int  main( ){return 0;}\n' >"$scratch/crooked.c"
cp .clang-format "$scratch/"
check "a crooked one is seen" not clang-format --dry-run -Werror "$scratch/crooked.c"
finish
