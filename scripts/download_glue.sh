#!/usr/bin/env bash
# Fetches GLUE from its public home and lays it out as zf-train reads it.
#
#   scripts/download_glue.sh [DIR] [TASK...]     DIR: glue; TASK: CoLA SST-2 MRPC STS-B QQP MNLI
#                                                QNLI RTE WNLI; without any, all of them
#
# A task whose files are all there is left alone. Downloads go to DIR/.download and continue where
# they stopped; a task's files appear in DIR/TASK together, or not at all.
#
# What is verified, and against what:
#  - each downloaded file by SHA-256, against the checksums that Hugging Face Datasets publishes
#    with its GLUE loader (datasets/glue/dataset_infos.json) for the same addresses;
#  - each unpacked split by its number of rows, against GLUE's published sizes.
#
# Environment: ZF_GLUE_URL, another server or file:// folder with the same paths;
# ZF_GLUE_MANIFEST, a file in the place of the table below, for a mirror with other files.

set -euo pipefail
export LC_ALL=C # bytes, whatever the locale

url=${ZF_GLUE_URL:-https://dl.fbaipublicfiles.com}

# file TASK PATH SHA-256: what to download.  rows TASK SPLIT N: rows without the header.
# QQP's published sizes leave out a few broken rows, so its files may have some more.
manifest() {
    cat <<'END'
file CoLA glue/data/CoLA.zip f212fcd832b8f7b435fb991f101abf89f96b933ab400603bf198960dfc32cbff
rows CoLA train 8551
rows CoLA dev 1043
rows CoLA test 1063
file SST-2 glue/data/SST-2.zip d67e16fb55739c1b32cdce9877596db1c127dc322d93c082281f64057c16deaa
rows SST-2 train 67349
rows SST-2 dev 872
rows SST-2 test 1821
file MRPC senteval/senteval_data/msr_paraphrase_train.txt 60a9b09084528f0673eedee2b69cb941920f0b8cd0eeccefc464a98768457f89
file MRPC senteval/senteval_data/msr_paraphrase_test.txt a04e271090879aaba6423d65b94950c089298587d9c084bf9cd7439bd785f784
file MRPC glue/data/mrpc_dev_ids.tsv 971d7767d81b997fd9060ade0ec23c4fc31cbb226a55d1bd4a1bac474eb81dc7
rows MRPC train 3668
rows MRPC dev 408
rows MRPC test 1725
file STS-B glue/data/STS-B.zip e60a6393de5a8b5b9bac5020a1554b54e3691f9d600b775bd131e613ac179c85
rows STS-B train 5749
rows STS-B dev 1500
rows STS-B test 1379
file QQP glue/data/QQP-clean.zip 40e7c862c04eb26ee04b67fd900e76c45c6ba8e6d8fab4f8f1f8072a1a3fbae0
rows QQP train 363846
rows QQP dev 40430
rows QQP test 390965
file MNLI glue/data/MNLI.zip e7c1d896d26ed6caf700110645df426cc2d8ebf02a5ab743d5a5c68ac1c83633
rows MNLI train 392702
rows MNLI dev_matched 9815
rows MNLI dev_mismatched 9832
rows MNLI test_matched 9796
rows MNLI test_mismatched 9847
file QNLI glue/data/QNLIv2.zip e634e78627a29adaecd4f955359b22bf5e70f2cbd93b493f2d624138a0c0e5f5
rows QNLI train 104743
rows QNLI dev 5463
rows QNLI test 5463
file RTE glue/data/RTE.zip 6bf86de103ecd335f3441bd43574d23fef87ecc695977a63b82d5efb206556ee
rows RTE train 2490
rows RTE dev 277
rows RTE test 3000
file WNLI glue/data/WNLI.zip ae0e8e4d16f4d46d4a0a566ec7ecceccfd3fbfaa4a7a4b4e02848c0f2561ac46
rows WNLI train 635
rows WNLI dev 71
rows WNLI test 146
END
}

fail() {
    echo "download_glue.sh: $*" >&2
    exit 1
}

# entries KIND TASK: the manifest's lines for it, without those two words.
entries() {
    awk -v kind="$1" -v task="$2" '$1 == kind && $2 == task { print $3, $4 }' <<<"$table"
}

has_sum() {
    [ -f "$1" ] && [ "$(sha256sum "$1" | cut -d ' ' -f 1)" = "$2" ]
}

# fetch PATH SHA-256: prints where the verified file lies.
fetch() {
    local path=$1 sum=$2 file="$work/${1##*/}"
    if [ ! -f "$file" ]; then
        # A run may have ended between the last byte and the new name.
        has_sum "$file.part" "$sum" || curl --fail --silent --show-error --location --connect-timeout 20 --retry 2 \
            --continue-at - --output "$file.part" "$url/$path" 2>"$work/curl.log" ||
            fail "$url/$path cannot be downloaded ($(tail -n 1 "$work/curl.log"))"
        has_sum "$file.part" "$sum" || {
            rm -f "$file.part"
            fail "$url/$path was downloaded, but its SHA-256 is not $sum; nothing is kept"
        }
        mv "$file.part" "$file"
    fi
    echo "$file"
}

# Rows of a TSV file: lines that are not empty, without the header, which CoLA's train and dev files
# do not have.
count_rows() {
    awk -v header="$2" '!/^\r?$/ { n++ } END { print n - header }' "$1"
}

check_rows() {
    local task=$1 folder=$2 split expected rows header
    while read -r split expected; do
        header=1
        if [ "$task" = CoLA ] && [ "$split" != test ]; then header=0; fi
        [ -f "$folder/$split.tsv" ] || fail "$task: the download holds no $split.tsv"
        rows=$(count_rows "$folder/$split.tsv" $header)
        if [ "$rows" -lt "$expected" ] || { [ "$rows" -ne "$expected" ] && [ "$task" != QQP ]; }; then
            fail "$task: $split.tsv has $rows rows, but GLUE's has $expected"
        fi
        echo "$task $split: $rows rows"
    done < <(entries rows "$task")
}

# MRPC comes as Microsoft's two files; GLUE's dev split is the training pairs that mrpc_dev_ids.tsv
# names. GLUE's test file has an index in the place of the label.
make_mrpc() {
    local folder=$1 header=$'#1 ID\t#2 ID\t#1 String\t#2 String'
    local train="$work/msr_paraphrase_train.txt" test="$work/msr_paraphrase_test.txt"
    awk -F '\t' -v OFS='\t' -v folder="$folder" -v header="$header" '
        { sub(/\r$/, "") }
        FNR == 1 { sub(/^\357\273\277/, "") }
        NR == FNR { is_dev[$1, $2] = 1; next }
        FNR == 1 {
            print "Quality", header > (folder "/train.tsv")
            print "Quality", header > (folder "/dev.tsv")
            next
        }
        NF { print > (folder (($2, $3) in is_dev ? "/dev.tsv" : "/train.tsv")) }
    ' "$work/mrpc_dev_ids.tsv" "$train"
    awk -F '\t' -v OFS='\t' -v header="$header" '
        { sub(/\r$/, "") }
        NR == 1 { print "index", header; next }
        NF { print n++, $2, $3, $4, $5 }
    ' "$test" >"$folder/test.tsv"
}

# Puts train.tsv, dev.tsv, ... of a task into a folder.
unpack() {
    local task=$1 folder=$2 archive=$3 split member
    if [ "$task" = MRPC ]; then
        make_mrpc "$folder"
        return
    fi
    unzip -tqq "$archive" >/dev/null || fail "$archive is not a whole zip archive"
    while read -r split _; do
        # The folder inside is not named as the task in every archive. Copies of the files under
        # "original" are something else.
        member=$(unzip -Z1 "$archive" | grep -E "^([^/]+/)?$split\.tsv$" | head -n 1) ||
            fail "$archive holds no $split.tsv"
        unzip -pqq "$archive" "$member" >"$folder/$split.tsv"
    done < <(entries rows "$task")
}

# True where all of a task's files are there.
is_complete() {
    local split
    while read -r split _; do
        [ -f "$directory/$1/$split.tsv" ] || return 1
    done < <(entries rows "$1")
}

get_task() {
    local task=$1 path sum file="" staged="$work/$1.tmp"
    if is_complete "$task"; then
        echo "$task: all files are there"
        return
    fi
    while read -r path sum; do
        file=$(fetch "$path" "$sum")
        fetched+=("$file")
    done < <(entries file "$task")
    rm -rf "$staged"
    mkdir -p "$staged"
    unpack "$task" "$staged" "$file"
    check_rows "$task" "$staged"
    mkdir -p "$directory/$task"
    mv -f "$staged"/*.tsv "$directory/$task/"
    rm -rf "$staged" "${fetched[@]}"
    fetched=()
}

case ${1-} in -h | --help)
    sed -n '2,/^$/s/^# \{0,1\}//p' "$0"
    exit 0
    ;;
esac

table=$(if [ -n "${ZF_GLUE_MANIFEST-}" ]; then cat "$ZF_GLUE_MANIFEST"; else manifest; fi)
directory=${1:-glue}
shift || true
all=$(awk '$1 == "file" && !seen[$2]++ { print $2 }' <<<"$table" | xargs)
read -r -a tasks <<<"${*:-$all}"
for task in "${tasks[@]}"; do
    [ -n "$(entries file "$task")" ] || fail "there is no task \"$task\"; the tasks are $all"
done
for tool in curl unzip sha256sum awk; do
    command -v "$tool" >/dev/null || fail "$tool is needed, but it is not installed"
done

work="$directory/.download"
made_directory=false
if [ ! -d "$directory" ]; then made_directory=true; fi
mkdir -p "$work"
fetched=()
# Leaves nothing behind that holds nothing: no empty folders, no half-unpacked files. A download
# that broke off stays as FILE.part, to be continued.
clean_up() {
    rm -rf "$work"/*.tmp "$work/curl.log"
    find "$work" -maxdepth 1 -name '*.part' -size 0 -delete
    rmdir "$work" 2>/dev/null || true
    if $made_directory; then rmdir "$directory" 2>/dev/null || true; fi
}
trap clean_up EXIT

for task in "${tasks[@]}"; do
    get_task "$task"
done
