#!/usr/bin/env bash
# Every command that a README shows is run by some test: by this one, with small shapes, or by the one
# that is named here. A command that is not in the list is a fault, and so is one that no README has.

. tests/e2e/lib/common.sh "$@"
need python3 cmake
bench=$build/zf-bench

commands() { # COMMAND => the file that runs it
    cat <<'END_OF_LIST'
bash scripts/finetune_gpt_glue.sh => tests/e2e/finetune_script.sh
bash scripts/test.sh => .ci/run
bash scripts/setup.sh => tests/e2e/setup.sh
cmake --install build --prefix ~/.local => tests/e2e/install.sh
cpack --config build/CPackConfig.cmake => tests/e2e/debian.sh
bash scripts/download_glue.sh ~/glue CoLA SST-2 => tests/e2e/download.sh
bash scripts/download_gpt2.sh ~/gpt2 => tests/e2e/download.sh
TASK=CoLA GLUE_DIR=~/glue MODEL_DIR=~/gpt2 NPROC=2 bash scripts/finetune_gpt_glue.sh => tests/e2e/finetune_script.sh
mpirun -n 2 build/zf-train --config configs/zenflow.json --task_name cola --data_dir ~/glue --model_name_or_path ~/gpt2 --output_dir output/cola => tests/e2e/configs.sh
cmake -S . -B build -G Ninja -DZF_CUDA=ON && cmake --build build => tests/e2e/readme.sh
build/zf-train --config configs/sample.json --device cuda => tests/e2e/cuda.sh
bash scripts/gpu_check.sh => tests/e2e/bench.sh
cmake -S . -B build -G Ninja && cmake --build build => scripts/build.sh
ctest --test-dir build -L emulated => scripts/test.sh
build/zf-bench kernels => tests/e2e/readme.sh
build/zf-bench report output/cola output/other --output comparison.html => tests/e2e/report.sh
zf-bench report => tests/e2e/report.sh
build/zf-bench train --compare => tests/e2e/readme.sh
build/zf-train-emulated => tests/e2e/cuda.sh
python3 tests/cuda/kernel_resources.py build/zf-train => tests/e2e/readme.sh
zf-bench adam => tests/e2e/readme.sh
build/zf-train --config configs/sample.json --plan h100 => tests/e2e/plan.sh
build/zf-bench machine --json FILE => tests/e2e/plan.sh
build/zf-bench train --plan h100 => tests/e2e/plan.sh
build/zf-train --train_file intents.csv --label_column category --model_name_or_path ~/gpt2 --output_dir output/intents => tests/e2e/own_words.sh
build/zf-run output/intents "I lost my card" => tests/e2e/own_words.sh
build/zf-train --task_name lm --train_file chats.jsonl --max_seq_length 1024 --model_name_or_path ~/smollm2 --output_dir output/chat => tests/e2e/own_words.sh
build/zf-run output/chat --chat "What is the capital of Peru?" => tests/e2e/own_words.sh
build/zf-train --task_name lm --train_file texts/ --max_seq_length 1024 --model_name_or_path ~/gpt2 --output_dir output/texts => tests/e2e/own_words.sh
build/zf-run output/texts "The capital of Peru is" => tests/e2e/own_words.sh
END_OF_LIST
}
commands >"$scratch/list"

# Lines of code blocks, continued ones joined, and code in a sentence that begins with a program.
check "every command is in the list, and the list has no others" python3 - "$scratch/list" README.md \
    ./*/README.md tests/cuda_emulator/README.md tests/bench/results/gpu-predictions.md <<'END'
import os, re, sys
listed = dict(line.rstrip("\n").split(" => ") for line in open(sys.argv[1]))
program = re.compile(r"(\w+=\S+ )*(bash |cmake |cpack |ctest |mpirun .*zf-|python3 |build/|zf-bench )")
shown = set()
for name in sys.argv[2:]:
    text = re.sub(r"\\\n\s*", "", open(name).read())
    code = [l for block in re.findall(r"```\n(.*?)```", text, re.S) for l in block.splitlines()]
    code += re.findall(r"^    (\S.*)$", text, re.M)
    code += re.findall(r"`([^`\n]+)`", re.sub(r"```.*?```", "", text, flags=re.S))
    shown |= {" ".join(c.split()) for c in code if program.match(c)}
for command in sorted(shown ^ set(listed)):
    print(f"{command}: {'in no README' if command in listed else 'which test runs it?'}")
missing = [place for place in listed.values() if not os.path.exists(place)]
print("do not exist:", missing)
sys.exit(shown != set(listed) or bool(missing))
END

tiny=(--device cpu --preset gpt --seqs 2 --length 16 --probe 64)
check "zf-bench adam" "$bench" adam --parameters 100000 --threads 1 --repeats 1
check "zf-bench kernels" "$bench" kernels "${tiny[@]}" --rounds 1
check "zf-bench train --compare" "$bench" train --compare "${tiny[@]}" --steps 4 --warm-up 4

# The table of model/README.md, where the toolkit can read programs.
if python3 tests/cuda/kernel_resources.py "$build/zf-train" >"$scratch/table" 2>"$scratch/stderr"; then
    check "the table of model/README.md, whose kernels other tests compare" grep -q '^| `swiglu_kernel` |' "$scratch/table"
    check "what the kernels are made of" python3 tests/cuda/kernel_resources.py --sass "$build/zf-train"
else
    cat "$scratch/stderr"
    check "no table: it says why" grep -Eq 'cuobjdump|holds no CUDA kernels' "$scratch/stderr"
fi

configure() { # configure OPTION...: the first step of the build
    cmake -S . -B "$scratch/build" -G Ninja "$@"
}
check "-DZF_CUDA=OFF" configure -DZF_CUDA=OFF
cp "$scratch/check.log" "$scratch/printed"
check "it leaves the CUDA device out" grep -q 'The CUDA device: OFF' "$scratch/printed"
rm -rf "$scratch/build"
if configure -DZF_CUDA=ON >"$scratch/printed" 2>&1; then
    check "-DZF_CUDA=ON has it" grep -q 'The CUDA device: ON' "$scratch/printed"
else
    check "-DZF_CUDA=ON without a toolkit says so" grep -q 'no CUDA compiler' "$scratch/printed"
fi
finish
