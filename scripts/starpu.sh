#!/usr/bin/env bash
# Prints the installation prefix of a usable StarPU on stdout, building it first when there is none.
#
#   scripts/starpu.sh [native|cpu|simgrid]
#
# native   runs on this machine; with CUDA where nvcc is (on PATH or in /usr/local/cuda/bin)
# cpu      the same without CUDA, for an emulated machine (cxl-check.sh)
# simgrid  simulates a machine; runs no kernels
#
# Where StarPU comes from, first match wins:
#   1. $SLUICE_STARPU_SOURCE: a source directory, a tarball or a .dsc
#   2. an installed StarPU that pkg-config finds and that meets the needs (see `meets_needs`)
#   3. Debian's source package, through this machine's own apt configuration
# 1 and 3 are patched (scripts/starpu/patches, and its folder FLAVOUR), built once and kept in $SLUICE_CACHE.
# Progress goes to stderr, the details to a log file in the cache.
set -Eeuo pipefail

readonly flavour=${1:-native}
case $flavour in
  native | cpu | simgrid) ;;
  *) echo "usage: ${0##*/} [native|cpu|simgrid]" >&2 && exit 2 ;;
esac

here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
readonly patches_dir=$here/starpu/patches
shopt -s nullglob
readonly patches=("$patches_dir"/*.patch "$patches_dir/$flavour"/*.patch) # in the order in which they apply
shopt -u nullglob
readonly cache=${SLUICE_CACHE:-${XDG_CACHE_HOME:-${HOME:?set HOME or SLUICE_CACHE}/.cache}/sluice}
readonly given_source=${SLUICE_STARPU_SOURCE:-}
readonly fxt=${SLUICE_FXT:-on}         # off: without FxT, which is under the GPL, and so without traces
readonly min_buffers=16                # data handles that one of our tasks may use
readonly debian_suites=(sid trixie)    # where to look for StarPU 1.4, newest first
log=/dev/null

trap 'echo "[starpu] failed at line $LINENO" >&2' ERR

say() { echo "[starpu] $*" >&2; }
die() { say "$*" && exit 1; }

# Runs a command with its output in the log; shows the end of the log when it fails.
logged() {
  echo "\$ $*" >>"$log"
  "$@" >>"$log" 2>&1 </dev/null && return
  { echo "..." && tail -n 30 "$log"; } >&2
  die "failed: ${1##*/}. The whole log: $log"
}

# What Sluice is built against and tested with: checksums of Debian's source package, and its version.
readonly known_source=$here/starpu/source.sha256
known_version=$(sed -n 's/^# version \(.*\)/\1/p' "$known_source")
readonly known_version

how_to_provide() {
  cat >&2 <<END
[starpu] StarPU's source cannot be had through apt. Two ways out; then run this again:
[starpu]   SLUICE_STARPU_SOURCE=path   StarPU 1.4's source from elsewhere: a tarball, an unpacked directory, or Debian's .dsc
[starpu]                               (tried: $known_version; its checksums are in scripts/starpu/source.sha256)
[starpu]   PKG_CONFIG_PATH=path        an installed StarPU 1.4 (--enable-maxbuffers=16, with FxT unless SLUICE_FXT=off)
END
}

# check_known <folder>: whether the source package in it is the one that was tried. Another version is; the same version with
# other contents is not taken.
check_known() {
  local packages=("$1"/*.dsc) found
  found=$(sed -n 's/^Version: //p' "${packages[0]}" | head -n 1)
  if [[ $found != "$known_version" ]]; then
    say "this is StarPU $found; Sluice was tried with $known_version. Going on with it"
    return 0
  fi
  (cd "$1" && grep -v '^#' "$known_source" | sha256sum --check --quiet --strict) >>"$log" 2>&1 ||
    die "StarPU's source package $found is not the one that Sluice was tried with: its checksums differ from" \
      "scripts/starpu/source.sha256. Remove $1 to fetch it again, or set SLUICE_STARPU_SOURCE"
}

# ---------------------------------------------------------------- what is needed

# Sets cuda_dir to the CUDA toolkit's folder, or to nothing.
find_cuda() {
  cuda_dir=
  local nvcc
  nvcc=$(PATH=$PATH:/usr/local/cuda/bin type -P nvcc) || return 0
  if ! "$nvcc" --version >/dev/null 2>&1; then
    say "$nvcc does not run: building without CUDA"
    return 0
  fi
  # nvcc itself knows best: the one that is found may be a wrapper, beside links to some of the toolkit.
  cuda_dir=$("$nvcc" --dryrun -c -x cu /dev/null 2>&1 | sed -n 's/^#\$ TOP=//p')
  if [[ -e $cuda_dir/include/cuda_runtime.h ]]; then cuda_dir=$(realpath "$cuda_dir"); else cuda_dir=${nvcc%/bin/*}; fi
  cuda_version=$("$nvcc" --version | sed -n 's/.*release \([0-9.]*\).*/\1/p')
}

set_configure_flags() {
  flags=(--disable-static --disable-build-doc --disable-build-examples --disable-build-tests
    --disable-starpupy --disable-starpufft --disable-opencl --disable-fortran --disable-mpi --disable-hdf5
    --enable-maxbuffers="$min_buffers")
  if [[ $fxt == on ]]; then flags+=(--with-fxt); else flags+=(--without-fxt); fi
  if [[ $flavour == simgrid ]]; then
    # The simulated machine may be larger than this one, but has at most DDR, CXL, a GPU's memory and a disk. StarPU's
    # default of 32 memories make a handle 18.7 kB instead of 2; clearing them was a quarter of a short simulation.
    flags+=(--enable-simgrid --enable-maxcpus=64 --enable-maxnumanodes=4 --enable-maxnodes=8)
    # Its calls of its own functions do not go through the table of symbols.
    flags+=(LDFLAGS="${LDFLAGS:-} -Wl,-Bsymbolic-functions")
    return
  fi
  # Spelt out, so that they are part of the key under which a build is kept. StarPU's default is as many processors as
  # this machine has; it writes past its tables on a larger one, where a bundle may be unpacked.
  local cpus=256 numa_nodes=(/sys/devices/system/node/node[0-9]*)
  while ((cpus < $(getconf _NPROCESSORS_ONLN))); do cpus=$((cpus * 2)); done
  flags+=(--enable-maxcpus="$cpus" --enable-maxnumanodes="$((${#numa_nodes[@]} > 2 ? ${#numa_nodes[@]} : 2))")
  if [[ $cuda_dir ]]; then
    flags+=(--with-cuda-dir="$cuda_dir")
    # No helpers for libraries of CUDA's that Sluice does not use through StarPU: loading them takes time and memory.
    flags+=(CPPFLAGS="${CPPFLAGS:-} -DSTARPU_NO_CUBLAS" ac_cv_lib_cublasLt_cublasLtCreate=no
      ac_cv_lib_cusparse_cusparseCreate=no ac_cv_lib_cusolver_cusolverDnCreate=no)
  else
    flags+=(--disable-cuda)
  fi
  flags+=(--enable-tcpip-master-slave --enable-maxtcpipdev=1) # the stand-in accelerator
}

# meets_needs <starpu_config.h>
meets_needs() {
  local buffers
  buffers=$(sed -n 's/^#define STARPU_NMAXBUFS \([0-9]*\).*/\1/p' "$1")
  ((${buffers:-0} >= min_buffers)) || return 1
  # One with FxT does for a program without, but may not be passed on with CUDA's libraries.
  if grep -q '^#define STARPU_USE_FXT 1' "$1"; then [[ $fxt == on ]]; else [[ $fxt == off ]]; fi || return 1
  if [[ $flavour == simgrid ]]; then
    grep -q '^#define STARPU_SIMGRID 1' "$1"
  else
    ! grep -q '^#define STARPU_SIMGRID 1' "$1" || return 1
    if grep -q '^#define STARPU_USE_CUDA 1' "$1"; then [[ $flavour != cpu ]]; else [[ ! $cuda_dir ]]; fi
  fi
}

# Prints the prefix of an installed StarPU that will do.
installed_prefix() {
  pkg-config --exists 'starpu-1.4 >= 1.4.0' 2>/dev/null || return 1
  local prefix include
  prefix=$(pkg-config --variable=prefix starpu-1.4)
  include=$(pkg-config --variable=starpu_includedir starpu-1.4)
  # The build takes a prefix and looks into its lib/pkgconfig.
  [[ -e $prefix/lib/pkgconfig/starpu-1.4.pc && -e $include/starpu_config.h ]] || return 1
  meets_needs "$include/starpu_config.h" || return 1
  echo "$prefix"
}

# A line that changes when the given source does.
source_identity() {
  if [[ ! $given_source ]]; then
    echo debian
  elif [[ -d $given_source ]]; then
    (cd "$given_source" && find . -type f -printf '%P %s %T@\n' | sort | sha256sum)
  else
    sha256sum <"$given_source"
  fi
}

# Everything but StarPU's version that makes one build differ from another.
build_key() {
  {
    uname -m
    grep '^VERSION_ID=' /etc/os-release || true
    printf '%s\n' "${flags[@]}" "${cuda_version:-no CUDA}"
    source_identity
    cat "${patches[@]}"
  } | sha256sum | cut -c1-12
}

# Prints the prefix of the newest build that is kept under our key.
built_prefix() {
  local builds=("$cache"/starpu-1.4.*-"$flavour-$key")
  [[ -d ${builds[0]} ]] || return 1
  printf '%s\n' "${builds[@]}" | sort -V | tail -n 1
}

# ---------------------------------------------------------------- getting the source

# apt with lists and a source entry of our own: the machine's configuration stays as it is.
# private_apt <command> <arguments>
private_apt() {
  local command=$1 && shift
  "$command" -o Dir::Etc::sourcelist="$apt_dir/sources.list" -o Dir::Etc::sourceparts=/dev/null \
    -o Dir::State::lists="$apt_dir/lists" -o Dir::Cache="$apt_dir/cache" -o APT::Sandbox::User=root \
    -o Acquire::Retries=2 -o Acquire::http::Timeout=20 -o Acquire::https::Timeout=20 "$@"
}

# best_1_4 <apt-cache, or private_apt apt-cache>: the StarPU that was tried, or the newest 1.4 that those lists offer.
best_1_4() {
  local offered
  offered=$("$@" showsrc --only-source starpu 2>>"$log" | sed -n 's/^Version: \(1\.4\..*\)/\1/p' | sort -V)
  grep -Fx "$known_version" <<<"$offered" || tail -n 1 <<<"$offered"
}

# The mirrors that this machine installs from. Whether one is Debian's shows when it is asked: our source entry
# accepts nothing that Debian has not signed.
mirrors() {
  apt-get update --print-uris 2>>"$log" | sed -n "s#^'\(.*\)/dists/.*#\1#p" | grep -v '^cdrom:' | awk '!seen[$0]++'
}

# Puts StarPU's .dsc and tarballs into the current folder.
fetch_from_debian() {
  type -P apt-get >/dev/null && type -P dpkg-source >/dev/null || return 1
  local version mirror suite keyring=/usr/share/keyrings/debian-archive-keyring.gpg
  version=$(best_1_4 apt-cache)
  if [[ $version ]]; then
    apt-get -o APT::Sandbox::User=root source --download-only "starpu=$version" >>"$log" 2>&1 && return
  fi
  [[ -e $keyring ]] || return 1
  apt_dir=$work/apt
  for mirror in $(mirrors); do
    for suite in "${debian_suites[@]}"; do
      rm -rf "$apt_dir" && mkdir -p "$apt_dir"/lists/partial "$apt_dir"/cache/archives/partial
      echo "deb-src [signed-by=$keyring] $mirror $suite main" >"$apt_dir/sources.list"
      cat "$apt_dir/sources.list" >>"$log"
      private_apt apt-get update >>"$log" 2>&1 || continue
      version=$(best_1_4 private_apt apt-cache)
      [[ $version ]] || continue
      private_apt apt-get source --download-only "starpu=$version" >>"$log" 2>&1 && return
    done
  done
  return 1
}

# Fetches once, for all flavours; sets dsc.
debian_source() {
  local kept=("$cache"/starpu-source/*.dsc)
  if [[ ! -e ${kept[0]} ]]; then
    say "fetching the source of StarPU from Debian"
    mkdir -p "$work/fetch"
    if ! (cd "$work/fetch" && fetch_from_debian); then
      how_to_provide
      say "What apt said is in $log; the first of it: $(grep '^[EW]: ' "$log" | grep -v deb-src | head -n 1 || true)"
      exit 1
    fi
    check_known "$work/fetch"
    rm -rf "$cache/starpu-source" && mv "$work/fetch" "$cache/starpu-source"
    kept=("$cache"/starpu-source/*.dsc)
  else
    check_known "$cache/starpu-source"
  fi
  dsc=${kept[0]}
}

# Leaves StarPU's source in $work/source.
unpack() {
  case $given_source in
    '') debian_source && logged dpkg-source -x "$dsc" "$work/source" ;;
    *.dsc) logged dpkg-source -x "$given_source" "$work/source" ;;
    *)
      mkdir -p "$work/source"
      if [[ -d $given_source ]]; then
        logged cp -a "$given_source/." "$work/source/"
      else
        logged tar -xf "$given_source" -C "$work/source" --strip-components=1
      fi
      ;;
  esac
  [[ -e $work/source/configure.ac && -e $work/source/src/core/workers.c ]] ||
    die "SLUICE_STARPU_SOURCE=$given_source: no StarPU source there"
  [[ -x $work/source/configure ]] ||
    die "SLUICE_STARPU_SOURCE=$given_source: no configure script there; run ./autogen.sh in it first"
}

apply_patches() {
  local patch
  # A patch of the flavour's alone may change what one before it has added.
  if [[ ${patches[-1]} == "$patches_dir/$flavour"/* ]] &&
    patch -p1 -R --dry-run -s -f -d "$work/source" <"${patches[-1]}" >>"$log" 2>&1; then
    return
  fi
  for patch in "${patches[@]}"; do
    if patch -p1 -N --dry-run -s -f -d "$work/source" <"$patch" >>"$log" 2>&1; then
      logged patch -p1 -N -f -d "$work/source" -i "$patch"
    elif ! patch -p1 -R --dry-run -s -f -d "$work/source" <"$patch" >>"$log" 2>&1; then
      die "${patch##*/} does not apply to this StarPU ($version). Sluice was tried with 1.4.10;" \
        "SLUICE_STARPU_SOURCE=path takes another source. The log: $log"
    fi
  done
}

# ---------------------------------------------------------------- building

compile() {
  local cc=${CC:-gcc} cxx=${CXX:-g++}
  if type -P ccache >/dev/null; then cc="ccache $cc" cxx="ccache $cxx"; fi
  local link_flags=${LDFLAGS:-}
  if [[ $flavour == native && $cuda_dir ]]; then
    # CUDA's folder need not be known to the dynamic loader.
    link_flags+=" -Wl,-rpath,$cuda_dir/lib64"
    # Only what is used is linked; among LDFLAGS, libtool would put this behind the libraries.
    cc+=" -Wl,--as-needed" cxx+=" -Wl,--as-needed"
  fi
  mkdir "$work/build" && cd "$work/build"
  # Autoconf's own flags less -g, which is a quarter of the time.
  logged ../source/configure --prefix="$prefix" CC="$cc" CXX="$cxx" CFLAGS="${CFLAGS:--O2}" CXXFLAGS="${CXXFLAGS:--O2}" \
    LDFLAGS="$link_flags" "${flags[@]}"
  logged make -j"$(nproc)"
  logged make install DESTDIR="$work/installed"
  cd "$cache"
}

clean_up() {
  if [[ ! -d ${prefix:-} && -e $work/build/config.log ]]; then
    mv "$work/build/config.log" "$cache/starpu-$flavour-config.log" # may say why
  fi
  rm -rf "$work"
}

build() {
  # One fixed folder, so that ccache finds its objects again; what an interrupted run left is cleared.
  work=$cache/starpu-work
  trap clean_up EXIT
  trap 'exit 130' INT TERM HUP
  rm -rf "$work" && mkdir -p "$work"
  log=$cache/starpu-$flavour.log
  : >"$log"

  unpack
  version=$(sed -n "s/^PACKAGE_VERSION='\(.*\)'/\1/p" "$work/source/configure")
  [[ $version == 1.4.* ]] || die "StarPU 1.4 is needed, this is ${version:-of unknown version}"
  if [[ $given_source && $known_version != "$version"[+-]* ]]; then
    say "this is StarPU $version; Sluice was tried with ${known_version%%+*}. Going on with it"
  fi
  prefix=$cache/starpu-$version-$flavour-$key
  apply_patches
  say "building StarPU $version ($flavour${cuda_version:+, CUDA $cuda_version}), once: a minute or two"
  compile
  meets_needs "$work/installed$prefix/include/starpu/1.4/starpu_config.h" ||
    die "StarPU was built, but without something that Sluice needs. The log: $log"
  mv "$work/installed$prefix" "$prefix"
  say "built in $SECONDS s"
}

[[ $fxt == on || $fxt == off ]] || die "SLUICE_FXT=$fxt: expected on or off"
if [[ $given_source && ! -r $given_source ]]; then
  die "SLUICE_STARPU_SOURCE=$given_source: no such file or directory"
fi
cuda_version=
if [[ $flavour == native ]]; then find_cuda; else cuda_dir=; fi

if [[ ! $given_source ]] && installed_prefix; then exit; fi

set_configure_flags
key=$(build_key)
if built_prefix; then exit; fi

mkdir -p "$cache"
exec {lock}>"$cache/starpu.lock"
if ! flock -n "$lock"; then
  say "waiting for another run that builds StarPU"
  flock "$lock"
fi
if built_prefix; then exit; fi
build
echo "$prefix"
