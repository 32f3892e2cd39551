#!/usr/bin/env bash
# The programs are built so that a fault in them is hard to use: what their files say of it.

. tests/e2e/lib/common.sh "$@"
need readelf nm
if nm -D "$train" | grep -q __asan_init; then
    skip "this build has sanitizers instead"
fi
libraries='(RUNPATH|RPATH).*(\[|:)(:|\])' # an empty path is the folder that one is in
for program in zf-train zf-bench zf-run; do
    readelf -lW "$build/$program" >"$scratch/segments"
    readelf -dW "$build/$program" >"$scratch/dynamic"
    readelf -nW "$build/$program" >"$scratch/notes"
    readelf -W --dyn-syms "$build/$program" >"$scratch/symbols"
    check "$program: addresses differ from run to run" grep -q 'FLAGS_1.*PIE' "$scratch/dynamic"
    check "$program: all functions are bound at start" grep -q 'FLAGS_1.*NOW' "$scratch/dynamic"
    check "$program: and cannot be bound anew" grep -q GNU_RELRO "$scratch/segments"
    check "$program: the stack is no code" grep -Eq 'GNU_STACK.* RW +0x' "$scratch/segments"
    check "$program: nothing is code that can be written" not grep -E 'LOAD.* RWE' "$scratch/segments"
    check "$program: no library is looked for where one is" not grep -E "$libraries" "$scratch/dynamic"
    check "$program: stack canaries" grep -q __stack_chk_fail "$scratch/symbols"
    check "$program: checked copies" grep -Eq '__(memcpy|sprintf|snprintf|vsnprintf|strcpy)_chk' "$scratch/symbols"
done
# The C library's own start-up code has the marks where the machine and the distribution have them; CUDA's static
# library has none.
if [ "$(uname -m)" = x86_64 ] && ! nm "$train" | grep -q cudart; then
    echo 'int main(void) { return 0; }' >"$scratch/empty.c"
    ${CC:-cc} -fcf-protection -o "$scratch/empty" "$scratch/empty.c"
    if readelf -nW "$scratch/empty" | grep -q 'IBT, SHSTK'; then
        check "indirect jumps and returns go where they may" grep -q 'IBT, SHSTK' "$scratch/notes"
    else
        echo "skipped: this system has no CET"
    fi
fi
# That the check sees something.
echo 'int main(void) { return 0; }' >"$scratch/empty.c"
for path in /opt/lib: :/opt/lib /opt/lib::/usr/lib; do
    ${CC:-cc} -Wl,-rpath,$path -o "$scratch/empty" "$scratch/empty.c"
    readelf -dW "$scratch/empty" >"$scratch/dynamic"
    check "$path is seen" grep -Eq "$libraries" "$scratch/dynamic"
done
finish
