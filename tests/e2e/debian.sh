#!/usr/bin/env bash
# The Debian package installs and runs in a root of Debian that has nothing else, and goes again. The root is
# made from the mirror that this machine's apt uses; without network, root or debootstrap the test is
# skipped, after a look into the package.

. tests/e2e/lib/common.sh "$@"
need cpack dpkg-deb dpkg-shlibdeps file python3
. /etc/os-release
[ "${ID:-}" = debian ] || skip "this machine is no Debian, and its package is for what it is: ${PRETTY_NAME:-?}"

check "cpack" cpack --config "$build/CPackConfig.cmake" -B "$scratch/package"
package=$(echo "$scratch"/package/*.deb)
check "a package" test -s "$package"
check "its libraries' packages, and what it recommends" python3 - "$(dpkg-deb -f "$package")" <<'END'
import re, sys
fields = dict(re.findall(r"^([\w-]+): (.*)", sys.argv[1], re.M))
depends = re.findall(r"[\w.+-]+(?= \(|,|$)", fields["Depends"])
missing = [p for p in ("libopenmpi", "libjansson4", "libpcre2-8-0", "libgomp1", "libc6", "libcsv3", "libdnnl")
           if not any(d.startswith(p) for d in depends)]
print(fields, "missing:", missing)
assert not missing and fields["Recommends"] == "openmpi-bin" and fields["Package"] == "zf-train"
assert 1000 < int(fields["Installed-Size"]) < 150000, fields # with kernels for several GPUs 70 MB
END
dpkg-deb -c "$package" >"$scratch/contents"
for file in usr/bin/zf-train usr/bin/zf-run usr/bin/zf-bench usr/share/man/man1/zf-train.1.gz \
    usr/share/bash-completion/completions/zf-run usr/share/zsh/vendor-completions/_zf-bench \
    usr/share/doc/zf-train/copyright usr/share/zf-train/configs/zenflow.json usr/share/zf-train/scripts/slurm/zf_train.sbatch; do
    check "it has $file" grep -q " ./$file$" "$scratch/contents"
done
check "it has nothing outside /usr" not grep -Ev ' \./(usr/.*)?$' "$scratch/contents"
if command -v lintian >/dev/null; then
    check "lintian finds no error" lintian --fail-on error "$package"
fi

[ "$failures" = 0 ] || finish
[ "$(id -u)" = 0 ] || skip "debootstrap wants to be root: the package alone was looked at"
command -v debootstrap >/dev/null || skip "debootstrap is not installed: the package alone was looked at"
mirror=$(apt-get indextargets --format '$(REPO_URI)' 'Created-By: Packages' | grep -m 1 'debian/$' || true)
mirror=${mirror:-http://deb.debian.org/debian/}
timeout 60 apt-get download --print-uris hostname >/dev/null 2>&1 &&
    timeout 60 python3 -c "import sys, urllib.request as u; u.urlopen(sys.argv[1])" "${mirror}dists/$VERSION_CODENAME/InRelease" ||
    skip "$mirror is out of reach: the package alone was looked at"

clean=$scratch/root
trap 'umount -q "$scratch"/*/proc "$scratch"/*/*/proc 2>/dev/null || true; rm -rf --one-file-system "$scratch"' EXIT
check "a root with nothing but Debian's minimal packages" debootstrap --variant=minbase "$VERSION_CODENAME" "$clean" "$mirror"
[ "$failures" = 0 ] || finish
cp /etc/resolv.conf "$clean/etc/" 2>/dev/null || true
if [ "${ZF_LONG:-}" = 1 ]; then # the recipes for containers, which build the program anew in a copy of this root
    mkdir "$scratch/containers"
    for recipe in Dockerfile zf-train.def; do
        check "$recipe: its steps are done" python3 tests/e2e/lib/container.py scripts/container/$recipe "$clean" "$scratch/containers"
        made=$(tail -n 1 "$scratch/check.log")
        check "$recipe: the program runs" chroot "$made" zf-train --version
        check "$recipe: the sources are gone" test ! -e "$made/src" -a ! -e "$made/package"
    done
fi
mount -t proc proc "$clean/proc"
inside() { # inside COMMAND...: as a fresh shell there has it
    env -i PATH=/usr/sbin:/usr/bin:/sbin:/bin HOME=/root ${http_proxy:+"http_proxy=$http_proxy"} \
        DEBIAN_FRONTEND=noninteractive OMP_NUM_THREADS=1 OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1 \
        OMPI_MCA_rmaps_base_oversubscribe=1 chroot "$clean" "$@"
}
files() { # what lies in the root, but for what changes by itself
    find "$clean" -xdev \( -path "$clean/var" -o -path "$clean/proc" -o -path "$clean/tmp" -o -path "$clean/root" -o \
        -path "$clean/etc" \) -prune -o -path '*zf-train*' -print | sort
}
cp "$package" "$clean/root/zf-train.deb"
inside apt-get update -q >/dev/null
check "apt-get install" inside apt-get install -y -q --no-install-recommends /root/zf-train.deb
for program in zf-train zf-run zf-bench; do
    check "$program --version" inside $program --version
    check "$program finds its libraries" not grep 'not found' <(inside ldd /usr/bin/$program)
done
short=(--max_train_samples 64 --max_eval_samples 16 --max_steps 2 --do_predict false)
check "the sample trains" inside bash -c "cd /root && bash /usr/share/zf-train/scripts/finetune_gpt_glue.sh ${short[*]}"
check "a model" test -s "$clean/root/output/sample/model.safetensors"
check "zf-run answers" inside zf-run /root/output/sample "a good film"
check "the man page unpacks" inside bash -c "zcat /usr/share/man/man1/zf-train.1.gz | grep -q topk_ratio"
check "what it recommends: mpirun" inside apt-get install -y -q --no-install-recommends openmpi-bin
check "two ranks" inside bash -c "cd /root && NPROC=2 OUTPUT_DIR=two bash /usr/share/zf-train/scripts/finetune_gpt_glue.sh ${short[*]}"
check "apt-get purge" inside apt-get purge -y -q zf-train
check "nothing of it is left" test -z "$(files)"
finish
