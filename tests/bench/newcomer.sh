#!/usr/bin/env bash
# From an empty Debian to an answer of the first trained model: what a newcomer types, and the seconds. As root,
# with debootstrap and a network; the last commit is what is cloned.
#
#   bash tests/bench/newcomer.sh FOLDER [SUITE]     the folder, for a root of 3 GB, is made and stays
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."
root=$1 suite=${2:-bookworm}
[ ! -e "$root/root/zf-train" ] || { echo "newcomer.sh: $root/root/zf-train is there already" >&2; exit 1; }
[ -d "$root/root" ] || debootstrap --variant=minbase --include=git,ca-certificates "$suite" "$root" >&2
mkdir -p "$root/srv" "$root/proc"
mount -t proc proc "$root/proc"
trap 'umount "$root/proc"' EXIT
git clone -q --bare . "$root/srv/zf-train.git"

seconds() { # each line with the seconds since the command began
    while IFS= read -r line; do
        printf '%4d  %s\n' $((SECONDS - began)) "$line"
    done
}
inside() { # inside COMMAND: as typed by someone who has just logged in
    printf '\n$ %s        (load %s)\n' "$1" "$(cut -d' ' -f1-3 /proc/loadavg)"
    local began=$SECONDS
    env -i PATH=/usr/sbin:/usr/bin:/sbin:/bin HOME=/root ${http_proxy:+"http_proxy=$http_proxy"} \
        ${https_proxy:+"https_proxy=$https_proxy"} chroot "$root" bash -c "cd && { [ ! -d zf-train ] || cd zf-train; } && $1" 2>&1 | seconds
    echo "status 0 after $((SECONDS - began)) s"
}
printf 'commit %s, %s, %s cores\n' "$(git rev-parse --short HEAD)" "$(sed -n 's/^PRETTY_NAME=//p' "$root/etc/os-release")" "$(nproc)"
inside "git clone -q /srv/zf-train.git"
inside "bash scripts/finetune_gpt_glue.sh"
inside "build/zf-run output/sample 'a gripping film'"
echo "$SECONDS s in all, the empty Debian's own among them if it was made"
