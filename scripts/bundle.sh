#!/usr/bin/env bash
# Packs Sluice for machines that reach no package registry: programs, policies, tests and the libraries that they need,
# into one archive that runs where it is unpacked.
#
#   scripts/bundle.sh [FILE]     default: build/sluice-bundle.tar.xz
#
# For x86-64 with glibc 2.36 or later. CUDA's own libraries are not in it: the machine with the GPU has them (CUDA 13;
# without them the programs do not start). Prints the archive's path; progress goes to stderr.
set -euo pipefail

case ${1:-} in -h | --help) sed -n '2,8s/^# \{0,1\}//p' "$0" && exit ;; esac
archive=$(realpath -m "${1:-$(dirname "$0")/../build/sluice-bundle.tar.xz}")
# shellcheck source=scripts/setup.sh
source "$(dirname "${BASH_SOURCE[0]}")/setup.sh"

readonly most_mib=60
readonly tests=(codelets_test kv_path_test cuda_gpu_test runtime_gpu_test cli_gpu_test memory_gpu_test)
# The system's and CUDA's libraries stay where they are.
readonly not_packed='^(linux-vdso|ld-linux|libc\.|libm\.|libdl\.|libpthread\.|librt\.|libresolv\.|libcuda|libcudart|libcublas)'

set_up_packages
set_up_starpu
build release

stage=$(mktemp -d)
trap 'rm -rf "$stage"' EXIT
readonly root=$stage/sluice-bundle
step bundle "installing into the bundle" cmake --install build/release --prefix "$root" --strip
# No development files; and no simulator, whose StarPU has the same name as the other one.
rm -rf "$root"/include "$root"/lib/cmake "$root"/lib/pkgconfig "$root"/lib/*.a "$root"/bin/sluice-simulate

# pack_program <name> <folder>
pack_program() {
  local found
  found=$(find build/release/tests build/release/scripts -type f -perm -u+x -name "$1")
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
  done < <(libraries_of build/release/engine/sluice "$root"/tests/*)
}
# StarPU warns when the folder of models that it was installed with is not there. The other one, which has none of them
# either, is as long and on every machine.
forget_installation() {
  local library=$1 folder there=/usr/share
  # Read to the end: strings must not be stopped in the middle.
  folder=$(strings "$library" | awk '/\/perfmodels\/sampling$/ && !found++')
  [[ $folder ]] || die "$library: names no folder of models"
  while ((${#there} < ${#folder})); do there+=/; done
  LC_ALL=C sed -i "s#$folder#$there#g" "$library"
}

say "packing libraries"
pack_libraries
for library in "$root"/lib/needed/libstarpu-*; do forget_installation "$library"; done
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
