# shellcheck shell=bash
# What run.sh and test.sh share: packages, StarPU, configuring, building. To be sourced; changes to the
# repository's root. Says what it does on stderr, one line a step; details go to build/logs/.

cd "$(dirname "${BASH_SOURCE[0]}")/.." || exit
readonly logs=build/logs
# Compilations are found again in another checkout of the same sources, and under another locale.
export CCACHE_BASEDIR=$PWD CCACHE_NOHASHDIR=1 CCACHE_SLOPPINESS=locale CCACHE_COMPILERCHECK=content
# shellcheck disable=SC2034  # for run.sh
readonly sluice_program=$PWD/build/release/engine/sluice
mkdir -p "$logs"

# nvcc need not be on PATH.
if ! type -P nvcc >/dev/null && [[ -x /usr/local/cuda/bin/nvcc ]]; then
  export PATH=$PATH:/usr/local/cuda/bin
fi

say() { echo "[sluice] $*" >&2; }
die() { say "$*" && exit 1; }

# step <log's name> <what it does> <command...>: output into the log; its end is shown if the command fails.
step() {
  local log=$logs/$1.log what=$2
  say "$what"
  shift 2
  "$@" >"$log" 2>&1 </dev/null && return
  { echo "..." && tail -n 40 "$log"; } >&2
  die "failed: $what. The whole log: $PWD/$log"
}

# The packages of packages.txt that are not installed.
missing_packages() {
  local -a wanted
  mapfile -t wanted < <(sed -n 's/^\([a-z0-9][a-z0-9.+-]*\).*/\1/p' scripts/packages.txt | sort)
  # shellcheck disable=SC2016  # dpkg-query's own fields
  comm -23 <(printf '%s\n' "${wanted[@]}") \
    <(dpkg-query -W -f '${db:Status-Status} ${Package}\n' "${wanted[@]}" 2>/dev/null |
      sed -n 's/^installed //p' | sort -u)
}

# apt_install <package...>: the lists are fetched anew only when they do not do.
apt_install() {
  local -a apt=(env DEBIAN_FRONTEND=noninteractive apt-get -y -o DPkg::Lock::Timeout=300 -o Acquire::Retries=2)
  if ((EUID != 0)); then apt=(sudo "${apt[@]}"); fi
  "${apt[@]}" install --no-install-recommends "$@" && return
  "${apt[@]}" update || true # one broken source of several may not matter
  "${apt[@]}" install --no-install-recommends "$@"
}

set_up_packages() {
  [[ ${SLUICE_PACKAGES:-} != skip ]] || return 0
  if ! type -P apt-get dpkg-query >/dev/null; then
    say "no apt here: the packages are taken to be installed (docs/guide/install.md lists them)"
    return
  fi
  local -a missing
  mapfile -t missing < <(missing_packages)
  ((${#missing[@]} > 0)) || return 0
  if ((EUID != 0)) && ! type -P sudo >/dev/null; then
    die "neither root nor sudo: please have these packages installed: ${missing[*]}"
  fi
  step packages "installing packages: ${missing[*]}" apt_install "${missing[@]}"
}

# Sets starpu_prefix.
set_up_starpu() {
  starpu_prefix=$(scripts/starpu.sh native) || exit 1
}

# The simulator's StarPU; its place is remembered, so that run.sh and test.sh configure the same.
set_up_simgrid() {
  local prefix
  prefix=$(scripts/starpu.sh simgrid) || exit 1
  mkdir -p build
  echo "$prefix" >build/starpu_simgrid_prefix
}

# configure <preset>: only when there is no build folder yet, or when what it was made from has changed.
configure() {
  local dir=build/$1 made_from
  local -a arguments=(--preset "$1" "-DSLUICE_STARPU_PREFIX=$starpu_prefix")
  if [[ $1 == release && -e build/starpu_simgrid_prefix ]]; then
    arguments+=("-DSLUICE_STARPU_SIMGRID_PREFIX=$(<build/starpu_simgrid_prefix)")
  fi
  made_from=$(echo "${arguments[@]}" && cksum <CMakePresets.json)
  if [[ -e $dir/build.ninja && $(cat "$dir/made_from" 2>/dev/null) == "$made_from" ]]; then return; fi
  if [[ -e $dir/CMakeCache.txt ]]; then arguments+=(--fresh); fi
  step "configure-$1" "configuring ($1)" cmake "${arguments[@]}"
  echo "$made_from" >"$dir/made_from"
}

# build <preset> [target...]; one at a time in a checkout.
build() {
  local preset=$1 lock
  shift
  exec {lock}>build/lock
  flock -n "$lock" || { say "waiting for another build here" && flock "$lock"; }
  configure "$preset"
  step "build-$preset" "building ($preset)" ninja -C "build/$preset" "$@"
  exec {lock}>&-
}
