#!/usr/bin/env bash
# What cmake --install puts somewhere else runs there, and knows nothing of the build.

. tests/e2e/lib/common.sh "$@"
need cmake readelf python3
prefix=$scratch/prefix share=$scratch/prefix/share/zf-train

check "cmake --install" cmake --install "$build" --prefix "$prefix"
for file in share/doc/zf-train/README.md share/doc/zf-train/LICENSE share/zf-train/scripts/download_glue.sh \
    share/zf-train/scripts/download_gpt2.sh share/zf-train/scripts/slurm/zf_train.sbatch; do
    check "$file" test -s "$prefix/$file"
done
check "all configurations" diff -r configs "$share/configs"
for program in zf-train zf-bench zf-run; do
    readelf -d "$prefix/bin/$program" >"$scratch/dynamic"
    check "$program: nothing of it is looked for in the build" not grep -F -e "$build" -e "$root" "$scratch/dynamic"
    check "$program finds its libraries" not grep 'not found' <(ldd "$prefix/bin/$program")
done

# Man pages and completions have every option that --help has, and no other.
options_of() { # options_of PROGRAM: "NAME" or "SUBCOMMAND NAME", from --help
    local name
    if [ "$1" = zf-bench ]; then
        for name in $("$prefix/bin/zf-bench" --help | sed -n 's/^  \([a-z][a-z]*\) .*/\1/p'); do
            "$prefix/bin/zf-bench" "$name" --help | grep -o '^  --[a-zA-Z_0-9.-]*' | sed "s/^ */$name /"
        done
    else
        "$prefix/bin/$1" --help | grep -o '^  --[a-zA-Z_0-9.-]*' | sed 's/^ *//'
    fi | sort
}
completed() { # completed WORD...: what bash offers where the last word is being typed, a line each
    bash -c '. "$1"; shift; COMP_WORDS=("$@") COMP_CWORD=$(($# - 1)); function=_${1//-/_}; "$function"
        printf "%s\n" "${COMPREPLY[@]}"' _ "$prefix/share/bash-completion/completions/$1" "$@"
}
all_completed() { # all_completed PROGRAM: each of $scratch/options when it is typed whole
    local words
    while read -ra words; do
        completed "$1" "${words[@]}" | grep -xF -- "${words[-1]}" >/dev/null || { echo "${words[*]}" && return 1; }
    done <"$scratch/options"
}
for program in zf-train zf-run zf-bench; do
    page=$prefix/share/man/man1/$program.1 zsh=$prefix/share/zsh/site-functions/_$program
    options_of $program >"$scratch/options"
    check "$program has options" test "$(wc -l <"$scratch/options")" -gt 15
    check "$program's man page has them" python3 - "$scratch/options" "$page" <<'END'
import re, sys
want = [line.split()[-1] for line in open(sys.argv[1])]
page = open(sys.argv[2]).read().replace("\\-", "-")
have = [name for name in re.findall(r"^\.TP\n\\fB(--[\w.-]+)\\fR", page, re.M) if name not in ("--help", "--version")]
want = [name for name in want if name not in ("--help", "--version")]
print(set(want) ^ set(have))
sys.exit(sorted(want) != sorted(have))
END
    check "bash completes them" all_completed $program
    check "zsh's file has them" python3 - "$scratch/options" "$zsh" <<'END'
import re, sys
want = sorted(set(line.split()[-1] for line in open(sys.argv[1])) - {"--help"})
text = open(sys.argv[2]).read()
have = sorted(set(re.findall(r"^ +'(--[\w.-]+)=?\[", text, re.M)) - {"--help"})
print(set(want) ^ set(have))
sys.exit(want != have)
END
    if command -v zsh >/dev/null; then
        options=$(wc -l <"$scratch/options")
        [ $program != zf-bench ] || options=$(($(grep -c '^train ' "$scratch/options") + 1)) # --help
        check "zsh has each of them as a word" test "$(zsh -fc '_arguments() { print -rl -- "$@" }; complete() { . $1 }
            words=($2 train --x) CURRENT=3; complete $1' _ "$zsh" $program | grep -c "^--")" = "$options"
    fi
    if command -v mandoc >/dev/null; then
        check "mandoc finds no fault in its page" test -z "$(mandoc -T lint -W warning "$page" |
            grep -v 'missing date')" # builds on other days give the same page
    fi
    if command -v groff >/dev/null; then
        check "groff neither" test -z "$(groff -ww -man -T utf8 "$page" 2>&1 >/dev/null)"
    fi
done
command -v zsh >/dev/null || echo "zsh is not installed: its completions are only compared"
check "bash: words of a value" test "$(completed zf-train --device c | sort | xargs)" = "cpu cuda"
check "bash: after an equals sign" test "$(completed zf-train --device = cu)" = cuda
check "bash: subcommands" test "$(completed zf-bench ma)" = machine
check "bash: a value that may be anything is a file's name" test -z "$(completed zf-run --file x)"
for program in zf-train zf-run zf-bench; do
    check "$program --version" bash -c "'$prefix/bin/$program' --version | diff - <(sed '1s/zf-train/$program/' <('$train' --version))"
done

# From another folder, without this one's environment.
mkdir "$scratch/elsewhere"
cd "$scratch/elsewhere"
clean=(env -i "HOME=$scratch" "PATH=$PATH" "OMP_NUM_THREADS=$OMP_NUM_THREADS" "LSAN_OPTIONS=$LSAN_OPTIONS")
short=(--max_train_samples 64 --max_eval_samples 16 --max_steps 2 --do_predict false)
check "the installed program trains" "${clean[@]}" "$prefix/bin/zf-train" --config "$share/configs/sample.json" \
    --data_dir "$share/data/sample" --tokenizer_name "$share/data/sample/tokenizer" --output_dir out "${short[@]}"
check "a model" test -s out/model.safetensors
check "the installed zf-run answers" "${clean[@]}" "$prefix/bin/zf-run" out "a good film"
check "the installed script trains the sample" "${clean[@]}" bash "$share/scripts/finetune_gpt_glue.sh" "${short[@]}"
check "the same model" cmp out/model.safetensors output/sample/model.safetensors
check "zf-bench" "${clean[@]}" "$prefix/bin/zf-bench" adam --parameters 100000 --threads 1 --repeats 1
finish
