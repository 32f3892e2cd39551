#!/usr/bin/env bash
# Puts what zf-train is built with and runs on (Open MPI, SentencePiece, Jansson, PCRE2, oneDNN,
# cmocka, pkg-config) into one folder, from unpacked Debian packages of this machine's own release:
# for machines with a compiler, CMake and perhaps a CUDA toolkit, but without packages or root.
#
#   bash scripts/pack_runtime.sh FOLDER    makes FOLDER, of less than 64 MB; needs apt-get and gcc
#   source FOLDER/env.sh                   on the other machine, then build and run as usual
#
# The other machine's C library must be as new as this one's. FOLDER may be moved. Nothing is installed
# on this machine.
set -euo pipefail

if [ $# -ne 1 ] || [ "${1#-}" != "$1" ]; then
    echo "usage: bash scripts/pack_runtime.sh FOLDER" >&2
    exit 2
fi
fail() {
    echo "pack_runtime.sh: $*" >&2
    exit 1
}
for tool in apt-get apt-cache dpkg-deb gcc readelf; do
    command -v "$tool" >/dev/null || fail "$tool is not on this machine"
done
[ ! -e "$1" ] || [ -e "$1/env.sh" ] || [ -z "$(ls -A "$1")" ] ||
    fail "$1 is there already, and no folder of this script's"

most_megabytes=64
# What is asked for, and what these need; a package that this release lacks has another name there.
packages=(openmpi-bin openmpi-common 'libopenmpi3|libopenmpi3t64' libopenmpi-dev
    'libevent-core-2.1-7|libevent-core-2.1-7t64' 'libevent-pthreads-2.1-7|libevent-pthreads-2.1-7t64'
    'libhwloc15' 'libpmix2|libpmix2t64' 'libmunge2|libmunge2t64' libudev1 zlib1g libcap2
    libsentencepiece0 libsentencepiece-dev libjansson4 libjansson-dev libpcre2-8-0 libpcre2-dev
    'libutf8proc2|libutf8proc3' libutf8proc-dev
    libxxhash0 libxxhash-dev
    "$(apt-cache depends libdnnl-dev | sed -n 's/.*Depends: \(libdnnl[0-9.]*\)$/\1/p')" libdnnl-dev
    ocl-icd-libopencl1 'libcmocka0' libcmocka-dev pkgconf pkgconf-bin libpkgconf3)

scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
chmod 755 "$scratch"

available() { # available PACKAGE
    [[ $(apt-cache show --no-all-versions "$1" 2>/dev/null) == *Filename:* ]]
}

names=()
for package in "${packages[@]}"; do
    found=
    for name in ${package//|/ }; do
        if [ -z "$found" ] && available "$name"; then
            found=$name
        fi
    done
    [ -n "$found" ] || fail "apt knows no package ${package//|/ or } (apt-get update?)"
    names+=("$found")
done

echo "pack_runtime.sh: downloading ${#names[@]} packages"
(cd "$scratch" && apt-get download "${names[@]}" >apt.log 2>&1) ||
    fail "apt-get download failed: $(tail -n 1 "$scratch/apt.log")"
mkdir "$scratch/unpacked"
for package in "$scratch"/*.deb; do
    dpkg-deb -x "$package" "$scratch/unpacked"
done

triplet=$(gcc -dumpmachine)
usr=$scratch/unpacked/usr
lib=$usr/lib/$triplet
[ -d "$lib" ] || lib=$usr/lib/$(gcc -print-multiarch)
triplet=$(basename "$lib")
# Releases differ in whether /lib is /usr/lib.
if [ -d "$scratch/unpacked/lib" ] && [ ! -L "$scratch/unpacked/lib" ]; then
    cp -a "$scratch/unpacked/lib/." "$usr/lib/"
fi

# Names that Debian's alternatives would give.
for tool in mpicc mpirun mpiexec; do
    if [ ! -e "$usr/bin/$tool" ]; then
        rm -f "$usr/bin/$tool"
        [ ! -e "$usr/bin/$tool.openmpi" ] || ln -s "$tool.openmpi" "$usr/bin/$tool"
    fi
done
if [ -d "$lib/openmpi/include" ] && [ ! -e "$lib/openmpi/include/mpi.h" ]; then
    fail "libopenmpi-dev has no $lib/openmpi/include/mpi.h"
fi

# What building and running does not read: documents, static libraries, Fortran, C++, Java.
rm -rf "$usr"/share/{doc,man,lintian,bug,doc-base,applications} "$usr"/lib/ocaml "$lib"/{cmake,fortran} \
    "$lib"/openmpi/include/openmpi/* # of mpi.h's headers none is there
find "$usr" \( -name '*.a' -o -name '*.la' -o -name '*.mod' -o -name '*.jar' -o -name 'libmpi_*' -o \
    -name 'libmpi_usempi*' -o -name 'liboshmem*' -o -name '*java*' -o -name 'libpcre2-16*' -o \
    -name 'libpcre2-32*' -o -name 'libpcre2-posix*' -o -name 'oshmem' \) -prune -exec rm -rf {} +
find "$usr/bin" -type f ! -name 'orte*' ! -name 'opal*' ! -name '*.openmpi' ! -name 'ompi*' \
    ! -name 'pkg*' -delete
find "$usr" -xtype l -delete

# Paths become relative to where each file lies.
for file in "$lib"/pkgconfig/*.pc "$usr"/share/pkgconfig/*.pc; do
    [ -f "$file" ] && sed -i "s|/usr\b|\${pcfiledir}/../../..|g" "$file"
done

# A library comes from here or belongs to every machine with a C++ compiler. An Open MPI plugin for
# hardware whose library is not here could not be loaded anyway.
everywhere='^(libc|libm|libdl|librt|libpthread|libutil|libresolv|ld-linux-x86-64|ld-linux-aarch64|libstdc\+\+|libgcc_s|libgomp|libatomic)\.so'
missing_of() { # missing_of FILE: the libraries that it needs and nobody has
    local name
    readelf -d "$1" 2>/dev/null | sed -n 's/.*(NEEDED).*\[\(.*\)\]/\1/p' | while read -r name; do
        if ! [[ $name =~ $everywhere ]] && [ ! -e "$lib/$name" ] && [ ! -e "$lib/openmpi/lib/$name" ]; then
            echo "$name"
        fi
    done
}
removed=1
while [ "$removed" = 1 ]; do # what one that goes leaves behind may go too
    removed=0
    while read -r file; do
        missing=$(missing_of "$file" | tr '\n' ' ')
        [ -z "$missing" ] || case $file in
        */mca_* | */libmca_* | */pmix2/*)
            rm "$file"
            removed=1
            ;;
        *) fail "${file#"$usr"/} needs $missing, and no package of the list has it" ;;
        esac
    done < <(find "$usr" -type f \( -name '*.so*' -o -perm -u+x \))
done
find "$usr" -xtype l -delete

cat >"$scratch/unpacked/env.sh" <<END
# Source this file: what lies beside it is found by compilers, the loader and mpirun.
zf_runtime=\$(cd "\$(dirname "\${BASH_SOURCE[0]:-\$0}")" && pwd)
zf_usr=\$zf_runtime/usr
zf_lib=\$zf_usr/lib/$triplet
export PATH=\$zf_usr/bin\${PATH:+:\$PATH}
export LD_LIBRARY_PATH=\$zf_lib:\$zf_lib/openmpi/lib\${LD_LIBRARY_PATH:+:\$LD_LIBRARY_PATH}
export LIBRARY_PATH=\$zf_lib:\$zf_lib/openmpi/lib\${LIBRARY_PATH:+:\$LIBRARY_PATH}
export PKG_CONFIG_PATH=\$zf_lib/pkgconfig:\$zf_usr/share/pkgconfig\${PKG_CONFIG_PATH:+:\$PKG_CONFIG_PATH}
export CMAKE_PREFIX_PATH=\$zf_usr\${CMAKE_PREFIX_PATH:+:\$CMAKE_PREFIX_PATH}
# Open MPI's and PMIx's own folders; one machine needs no remote shell.
export OPAL_PREFIX=\$zf_usr OPAL_LIBDIR=\$zf_lib/openmpi/lib OPAL_INCLUDEDIR=\$zf_lib/openmpi/include
export OPAL_PKGLIBDIR=\$zf_lib/openmpi/lib/openmpi3 OPAL_SYSCONFDIR=\$zf_runtime/etc/openmpi
export PMIX_PREFIX=\$zf_usr PMIX_PKGLIBDIR=\$zf_lib/pmix2/lib/pmix PMIX_SYSCONFDIR=\$zf_runtime/etc/pmix
export OMPI_MCA_plm=isolated
unset zf_runtime zf_usr zf_lib
END

mkdir -p "$1"
rm -rf "${1:?}"/{usr,etc,env.sh,packages.txt}
printf '%s\n' "$scratch"/*.deb | sed 's|.*/||' >"$scratch/unpacked/packages.txt"
for part in usr etc env.sh packages.txt; do
    [ ! -e "$scratch/unpacked/$part" ] || cp -a "$scratch/unpacked/$part" "$1/"
done
kilobytes=$(du -sk --apparent-size "$1" | cut -f 1)
glibc=$(find "$1" -type f \( -name '*.so*' -o -perm -u+x \) -exec readelf --dyn-syms -W {} + 2>/dev/null |
    grep -o 'GLIBC_[0-9.]*' | sort -uV | tail -n 1)
echo "pack_runtime.sh: $1 holds $((kilobytes / 1000)).$((kilobytes % 1000 / 100)) MB; it asks for ${glibc/_/ } or newer"
[ "$kilobytes" -lt $((most_megabytes * 1000)) ] || fail "that is not less than $most_megabytes MB"
