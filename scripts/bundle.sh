#!/usr/bin/env bash
# Packs Sluice for machines that reach no package registry: programs, policies, tests and the libraries that they need,
# into one archive that runs where it is unpacked.
#
#   scripts/bundle.sh [FILE]     default: build/sluice-bundle.tar.xz
#
# For x86-64 with glibc 2.36 or later, and GPUs of compute capability 7.5 or later. CUDA's own libraries are not in it: the
# machine with the GPU has them (CUDA 13). It is built without FxT, so that it may be passed on with them: it records no
# traces. Prints the archive's path; progress goes to stderr. Kernels for all GPUs take half an hour of one core.
set -euo pipefail

case ${1:-} in -h | --help) sed -n '2,9s/^# \{0,1\}//p' "$0" && exit ;; esac
archive=$(realpath -m "${1:-$(dirname "$0")/../build/sluice-bundle.tar.xz}")
export SLUICE_FXT=off
# shellcheck source=scripts/setup.sh
source "$(dirname "${BASH_SOURCE[0]}")/setup.sh"

readonly most_mib=60
readonly tests=(codelets_test kv_path_test cuda_gpu_test runtime_gpu_test cli_gpu_test memory_gpu_test)
# The system's and CUDA's libraries stay where they are.
readonly not_packed='^(linux-vdso|ld-linux|libc\.|libm\.|libdl\.|libpthread\.|librt\.|libresolv\.|libcuda|libcudart|libcublas)'

set_up_packages run test
set_up_starpu
type -P nvcc >/dev/null || die "a bundle needs nvcc, on PATH or in /usr/local/cuda/bin"
build bundle

stage=$(mktemp -d)
trap 'rm -rf "$stage"' EXIT
readonly root=$stage/sluice-bundle
step bundle "installing into the bundle" cmake --install build/bundle --prefix "$root" --strip
# No development files; and no simulator, whose StarPU has the same name as the other one.
rm -rf "$root"/include "$root"/share/doc "$root"/lib/cmake "$root"/lib/pkgconfig "$root"/lib/*.a "$root"/bin/sluice-simulate

# pack_program <name> <folder>
pack_program() {
  local found
  found=$(find build/bundle/tests build/bundle/scripts -type f -perm -u+x -name "$1")
  [[ $found ]] || die "the build has no program $1"
  mkdir -p "$2"
  strip -o "$2/$1" "$found"
}
for test in "${tests[@]}"; do pack_program "$test" "$root/tests"; done
pack_program gpu_limits "$root/bin"
pack_program streaming_floor "$root/bin"
readonly golden=$root/share/sluice/tests/golden
mkdir -p "$golden/models"
cp tests/golden/sampling.* "$golden/"
cp -r tests/golden/models/. "$golden/models/"

# Prints "name path" of the libraries that programs need.
libraries_of() {
  ldd "$@" 2>/dev/null | awk '$2 == "=>" && $3 ~ /^\// { print $1, $3 }' | sort -u
}

pack_libraries() {
  local name path
  mkdir -p "$root/lib/needed"
  while read -r name path; do
    if [[ $name =~ $not_packed ]]; then continue; fi
    strip -o "$root/lib/needed/$name" "$(realpath "$path")"
  done < <(libraries_of build/bundle/engine/sluice build/bundle/codelets/libsluice-cuda.so "$root"/tests/*)
}

say "packing libraries"
pack_libraries
# StarPU is there already, see cmake/install.cmake.
rm -f "$root"/lib/needed/libstarpu-*
for library in "$root"/lib/sluice/libstarpu-*; do mv "$library" "$root/lib/needed/"; done
cp scripts/bundle/sluice scripts/bundle/run-tests scripts/gpu-check.sh "$root/"
cp scripts/bundle/environment.sh scripts/bundle/accelerate_offload.py scripts/bundle/gpu_figures.py LICENSE "$root/"

say "packing ${archive##*/}"
mkdir -p "$(dirname "$archive")"
tar -C "$stage" --owner=0 --group=0 -cJf "$archive.part" sluice-bundle
mv "$archive.part" "$archive"
mib=$((($(stat -c %s "$archive") + (1 << 20) - 1) >> 20))
((mib <= most_mib)) || die "$archive has $mib MiB, more than $most_mib"
say "$mib MiB"
echo "$archive"
