#!/usr/bin/env bash
# scripts/download_glue.sh and download_gpt2.sh against mirrors on this machine with made-up files:
# what arrives, what is refused, and that a fault is one sentence that leaves nothing behind.

set -euo pipefail

for tool in curl unzip python3 sha256sum; do
    command -v "$tool" >/dev/null || {
        echo "skipped: $tool is not installed"
        exit 77
    }
done

root=$(cd "$(dirname "$0")/../.." && pwd)
scratch=$(mktemp -d)
server=""
clean_up() {
    if [ -n "$server" ]; then kill "$server" 2>/dev/null || true; fi
    rm -rf "$scratch"
}
trap clean_up EXIT
cd "$scratch"

failures=0
check() { # check WHAT COMMAND...
    local what=$1
    shift
    if "$@" >/dev/null 2>&1; then
        echo "ok: $what"
    else
        echo "FAILED: $what: $*"
        failures=$((failures + 1))
    fi
}

# refused WHAT WORDS COMMAND...: the command ends with status 1 and one sentence with these words.
refused() {
    local what=$1 words=$2 status=0
    shift 2
    "$@" >out 2>err || status=$?
    check "$what: status 1" test "$status" = 1
    check "$what: one line" test "$(wc -l <err)" = 1
    check "$what: says '$words'" grep -qF -- "$words" err
    cat err
}

# A mirror with three tasks: one without headers, one whose archive calls its folder otherwise and
# holds other copies, and MRPC.
python3 - <<'END'
import hashlib, pathlib, zipfile

mirror = pathlib.Path("mirror")
(mirror / "glue/data").mkdir(parents=True)
(mirror / "senteval").mkdir()


def archive(name, files):
    with zipfile.ZipFile(mirror / "glue/data" / name, "w", zipfile.ZIP_DEFLATED) as z:
        for path, text in files.items():
            z.writestr(path, text)


archive("CoLA.zip", {
    "CoLA/original/train.tsv": "not this one\n",
    "CoLA/train.tsv": "a\t1\t\tone\nb\t0\t*\ttwo\n",
    "CoLA/dev.tsv": "a\t1\t\tthree\n\n",
    "CoLA/test.tsv": "index\tsentence\n0\tfour\n",
})  # fmt: skip
header = "id\tqid1\tqid2\tquestion1\tquestion2\tis_duplicate\n"
archive("QQP-clean.zip", {
    "QQP-clean/train.tsv": header + "0\t1\t2\ta\tb\t1\n1\t1\t2\tbroken\n",
    "QQP-clean/dev.tsv": header + "0\t1\t2\ta\tb\t1\n",
    "QQP-clean/test.tsv": "id\tquestion1\tquestion2\n0\ta\tb\n",
})  # fmt: skip
header = "\ufeffQuality\t#1 ID\t#2 ID\t#1 String\t#2 String\r\n"
(mirror / "senteval/train.txt").write_text(
    header + '1\t11\t12\tsay "a\tb\r\n0\t21\t22\tc\td\r\n1\t31\t32\te\tf\r\n', newline="")
(mirror / "senteval/test.txt").write_text(header + "1\t41\t42\tg\th\r\n", newline="")
(mirror / "glue/data/mrpc_dev_ids.tsv").write_text("21\t22\n")

lines = []
for task, path in (
    ("CoLA", "glue/data/CoLA.zip"), ("QQP", "glue/data/QQP-clean.zip"),
    ("MRPC", "senteval/train.txt"), ("MRPC", "senteval/test.txt"),
    ("MRPC", "glue/data/mrpc_dev_ids.tsv"),
):  # fmt: skip
    digest = hashlib.sha256((mirror / path).read_bytes()).hexdigest()
    name = path.replace("senteval/", "senteval/msr_paraphrase_")
    (mirror / path).rename(mirror / name)
    lines.append(f"file {task} {name} {digest}")
for task, train in (("CoLA", 2), ("QQP", 1), ("MRPC", 2)):
    lines += [f"rows {task} train {train}", f"rows {task} dev 1", f"rows {task} test 1"]
pathlib.Path("manifest").write_text("\n".join(lines) + "\n")
END

export ZF_GLUE_URL="file://$scratch/mirror" ZF_GLUE_MANIFEST="$scratch/manifest"
glue() {
    bash "$root/scripts/download_glue.sh" "$@"
}

check "all tasks arrive" glue all
check "CoLA is its own train file" test "$(head -n 1 all/CoLA/train.tsv)" = $'a\t1\t\tone'
check "QQP arrives from a folder of another name" grep -q is_duplicate all/QQP/dev.tsv
check "MRPC train" diff all/MRPC/train.tsv - <<<$'Quality\t#1 ID\t#2 ID\t#1 String\t#2 String
1\t11\t12\tsay "a\tb\n1\t31\t32\te\tf'
check "MRPC dev" diff all/MRPC/dev.tsv - <<<$'Quality\t#1 ID\t#2 ID\t#1 String\t#2 String
0\t21\t22\tc\td'
check "MRPC test" diff all/MRPC/test.tsv - <<<$'index\t#1 ID\t#2 ID\t#1 String\t#2 String
0\t41\t42\tg\th'
check "nothing else is left" test "$(find all -type f | wc -l)" = 9
check "nothing else is left (.download)" test ! -e all/.download
check "a second run needs no server" env ZF_GLUE_URL=http://127.0.0.1:9 \
    bash "$root/scripts/download_glue.sh" all

refused "unknown task" 'there is no task "SST"; the tasks are CoLA QQP MRPC' glue none SST
refused "no server" "127.0.0.1:9/glue/data/CoLA.zip cannot be downloaded" \
    env ZF_GLUE_URL=http://127.0.0.1:9 bash "$root/scripts/download_glue.sh" none CoLA
refused "missing file" "cannot be downloaded" \
    env ZF_GLUE_URL="file://$scratch/nowhere" bash "$root/scripts/download_glue.sh" none CoLA
check "nothing is left of a fault" test ! -e none

mkdir -p resumed/.download
head -c 100 mirror/glue/data/CoLA.zip >resumed/.download/CoLA.zip.part
check "a download continues" glue resumed CoLA
cp -r mirror broken
printf x >>broken/glue/data/CoLA.zip
refused "wrong checksum" "its SHA-256 is not" \
    env ZF_GLUE_URL="file://$scratch/broken" bash "$root/scripts/download_glue.sh" none CoLA
check "nothing is left of a wrong file" test ! -e none
sed 's/rows CoLA train 2/rows CoLA train 3/' manifest >other
refused "wrong size" "CoLA: train.tsv has 2 rows, but GLUE's has 3" \
    env ZF_GLUE_MANIFEST=other bash "$root/scripts/download_glue.sh" none CoLA
check "no split of a wrong size" test ! -e none/CoLA

# A server that announces checksums as huggingface.co does: the right one, and for "liar" another.
for model in right liar page; do
    mkdir -p "hub/$model/resolve/main"
    for file in config.json vocab.json tokenizer.json; do
        echo '{"a": 1}' >"hub/$model/resolve/main/$file"
    done
    echo "#version: 0.2" >"hub/$model/resolve/main/merges.txt"
    echo "weights" >"hub/$model/resolve/main/model.safetensors"
done
echo "<html>" >hub/page/resolve/main/config.json
cat >server.py <<'END'
import hashlib, http.server, pathlib


class Handler(http.server.SimpleHTTPRequestHandler):
    def end_headers(self):
        path = pathlib.Path("hub" + self.path)
        if path.name == "model.safetensors" and path.exists():
            data = path.read_bytes() + (b"x" if "liar" in self.path else b"")
            self.send_header("X-Linked-ETag", f'"{hashlib.sha256(data).hexdigest()}"')
        super().end_headers()

    def log_message(self, *_):
        pass


server = http.server.HTTPServer(
    ("127.0.0.1", 0), lambda *a: Handler(*a, directory="hub")
)
pathlib.Path("port.tmp").write_text(str(server.server_port))
pathlib.Path("port.tmp").rename("port")
server.serve_forever()
END
python3 server.py &
server=$!
for _ in $(seq 100); do
    if [ -f port ]; then break; fi
    sleep 0.1
done
ZF_HF_URL="http://127.0.0.1:$(cat port)"
export ZF_HF_URL
gpt2() {
    bash "$root/scripts/download_gpt2.sh" "$@"
}

check "a model arrives" gpt2 model right
check "its weights are whole" cmp model/model.safetensors hub/right/resolve/main/model.safetensors
check "checksums are recorded" sh -c 'cd model && sha256sum --check SHA256SUMS'
check "a second run needs no server" env ZF_HF_URL=http://127.0.0.1:9 \
    bash "$root/scripts/download_gpt2.sh" model right
echo '{"a": 2}' >model/config.json
refused "changed file" "model/config.json is there, but its SHA-256 is not" gpt2 model right
refused "announced checksum" "model.safetensors was downloaded, but its SHA-256 is" gpt2 liar liar
check "no weights of a wrong checksum" test ! -e liar/model.safetensors
check "no part of them either" test ! -e liar/model.safetensors.part
refused "a page in the place of JSON" "config.json was downloaded, but it is not a JSON" \
    gpt2 page page
check "nothing is left of it" test ! -e page
refused "a model that is not there" "cannot be downloaded" gpt2 absent absent
check "nothing is left of that" test ! -e absent
cp -r hub/right hub/gpt2
refused "GPT-2's own checksum" "vocab.json was downloaded, but its SHA-256 is" gpt2 gpt2 gpt2

if [ "$failures" -gt 0 ]; then
    echo "$failures checks failed"
    exit 1
fi
echo "all checks passed"
