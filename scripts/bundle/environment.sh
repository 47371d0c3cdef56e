# shellcheck shell=bash
# What the bundle's programs need to know of where they lie. To be sourced; sets bundle and LD_LIBRARY_PATH.
# outside <command...> runs one of the machine's own programs, which must not find the bundle's libraries.
bundle=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)

export outside_library_path=${LD_LIBRARY_PATH:-}
outside() { env -u LD_LIBRARY_PATH ${outside_library_path:+LD_LIBRARY_PATH="$outside_library_path"} "$@"; }

# Folders that may hold CUDA's libraries, likely ones first.
cuda_folders() {
  tr ':' '\n' <<<"${LD_LIBRARY_PATH:-}"
  printf '%s\n' "${CUDA_HOME:-/usr/local/cuda}"/{lib64,lib,targets/x86_64-linux/lib} /usr/local/cuda-13*/lib64 \
    /usr/lib/x86_64-linux-gnu
  # Python's packages of them: a folder a library.
  python3 -c 'import glob, site, sys
for root in site.getsitepackages() + sys.path:
    print(*glob.glob(root + "/nvidia/*/lib"), sep="\n")' 2>/dev/null || true
}

# Prints the folders that have CUDA 13's libraries, joined by colons; says which one is missing.
find_cuda() {
  local library folder found=
  for library in libcudart.so.13 libcublas.so.13 libcublasLt.so.13; do
    while read -r folder; do
      if [[ $folder && -e $folder/$library ]]; then
        found+=${found:+:}$folder
        continue 2
      fi
    done < <(cuda_folders)
    echo "sluice: $library is not on this machine; set CUDA_HOME to an installed CUDA 13" >&2
    return 1
  done
  echo "$found"
}

# Without them everything runs but what wants a GPU. No element is empty: that would be the current directory.
cuda=$(find_cuda) || cuda=
export LD_LIBRARY_PATH=$bundle/lib/needed${cuda:+:$cuda}${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}
