#!/usr/bin/env bash
# Fetches a pretrained GPT-2 from Hugging Face into a folder that zf-train and Transformers read.
#
#   scripts/download_gpt2.sh [DIR] [MODEL]       DIR: MODEL's name; MODEL: gpt2, distilgpt2,
#                                                gpt2-medium, gpt2-large, gpt2-xl, or any
#                                                OWNER/NAME there that has the same files
#
# Files that are there already are checked, not downloaded. A download continues where it stopped,
# as FILE.part, and gets its name when it is verified.
#
# What is verified, and against what:
#  - vocab.json, merges.txt, by SHA-256 for the five GPT-2 models, which share them; the sums below
#    are those of the files that OpenAI published;
#  - model.safetensors of gpt2 and distilgpt2 by the SHA-256 below;
#  - model.safetensors of other models by the SHA-256 that the server announces (X-Linked-ETag);
#  - every file, on later runs, by the SHA-256 recorded in DIR/SHA256SUMS when it was downloaded.
# config.json and tokenizer.json are text without a published sum: they must be JSON objects.
#
# Environment: ZF_HF_URL, another server or file:// folder with the same paths; ZF_HF_SUMS, a file
# in the place of the table below ("MODEL FILE SHA-256" a line), for a mirror with other files.

set -euo pipefail
export LC_ALL=C # bytes, whatever the locale

url=${ZF_HF_URL:-https://huggingface.co}
files=(config.json vocab.json merges.txt tokenizer.json model.safetensors)

sums() {
    local model
    for model in gpt2 distilgpt2 gpt2-medium gpt2-large gpt2-xl; do
        cat <<END
$model vocab.json 196139668be63f3b5d6574427317ae82f612a97c5d1cdaf36ed2256dbf636783
$model merges.txt 1ce1664773c50f3e0cc8842619a93edc4624525b728b188a9e0be33b7726adc5
END
    done
    cat <<'END'
gpt2 model.safetensors 248dfc3911869ec493c76e65bf2fcf7f615828b0254c12b473182f0f81d3a707
distilgpt2 model.safetensors e1ff18884359fe8beb795a5f414feb85a6ce3d929ad019c0d958c039d2b94a1b
END
}

fail() {
    echo "download_gpt2.sh: $*" >&2
    exit 1
}

sha256_of() {
    sha256sum "$1" | cut -d ' ' -f 1
}

# The SHA-256 that a file must have by the table or by an earlier run; nothing where none is known.
known_sum() {
    local file=$1 sum
    sum=$(awk -v key="$model $file" '$1 " " $2 == key { print $3 }' <<<"$table")
    if [ -z "$sum" ] && [ -f "$directory/SHA256SUMS" ]; then
        sum=$(awk -v file="$file" '$2 == file { print $1 }' "$directory/SHA256SUMS")
    fi
    echo "$sum"
}

# The SHA-256 that the server announces for a large file, from the headers of a download.
announced_sum() {
    sed -n 's/^[Xx]-[Ll]inked-[Ee][Tt]ag: *"\{0,1\}\([0-9a-f]\{64\}\)"\{0,1\}\r\{0,1\}$/\1/p' "$1" |
        tail -n 1
}

check_json() {
    [ "${1##*.}" != json ] || [ "$(tr -d ' \t\r\n' <"$2" | head -c 1)" = "{" ] ||
        fail "$1 was downloaded, but it is not a JSON object; nothing is kept"
}

download() {
    local file=$1 sum part="$directory/$1.part" got
    curl --fail --silent --show-error --location --connect-timeout 20 --retry 2 --continue-at - \
        --dump-header "$headers" --output "$part" "$url/$model/resolve/main/$file" 2>"$log" ||
        fail "$url/$model/resolve/main/$file cannot be downloaded ($(tail -n 1 "$log"))"
    sum=$(known_sum "$file")
    if [ -z "$sum" ]; then sum=$(announced_sum "$headers"); fi
    got=$(sha256_of "$part")
    if [ -n "$sum" ] && [ "$got" != "$sum" ]; then
        rm -f "$part"
        fail "$file was downloaded, but its SHA-256 is $got, not $sum; nothing is kept"
    fi
    (check_json "$file" "$part") || {
        rm -f "$part"
        exit 1
    }
    mv "$part" "$directory/$file"
    record_sum "$file" "$got"
    echo "$file: $(stat -c %s "$directory/$file") bytes, SHA-256 $got"
}

record_sum() {
    local list="$directory/SHA256SUMS"
    touch "$list"
    { awk -v file="$1" '$2 != file' "$list" && echo "$2  $1"; } >"$list.part"
    mv "$list.part" "$list"
}

get_file() {
    local file=$1 sum
    if [ ! -f "$directory/$file" ]; then
        download "$file"
        return
    fi
    sum=$(known_sum "$file")
    if [ -n "$sum" ] && [ "$(sha256_of "$directory/$file")" != "$sum" ]; then
        fail "$directory/$file is there, but its SHA-256 is not $sum; remove it to fetch it again"
    fi
    echo "$file: is there"
}

case ${1-} in -h | --help)
    sed -n '2,/^$/s/^# \{0,1\}//p' "$0"
    exit 0
    ;;
esac

model=${2:-gpt2}
directory=${1:-${model##*/}}
if [ -n "${ZF_HF_SUMS-}" ]; then table=$(cat "$ZF_HF_SUMS"); else table=$(sums); fi
for tool in curl sha256sum awk; do
    command -v "$tool" >/dev/null || fail "$tool is needed, but it is not installed"
done

made_directory=false
if [ ! -d "$directory" ]; then made_directory=true; fi
mkdir -p "$directory"
headers=$(mktemp)
log=$(mktemp)
# A download that broke off stays as FILE.part, to be continued; one that never began does not.
clean_up() {
    rm -f "$headers" "$log"
    find "$directory" -maxdepth 1 -name '*.part' -size 0 -delete
    if $made_directory; then rmdir "$directory" 2>/dev/null || true; fi
}
trap clean_up EXIT

for file in "${files[@]}"; do
    get_file "$file"
done
