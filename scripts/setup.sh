# shellcheck shell=bash
# What run.sh and test.sh share: packages, StarPU, configuring, building. To be sourced; changes to the
# repository's root. Says what it does on stderr, one line a step; details go to build/logs/.

cd "$(dirname "${BASH_SOURCE[0]}")/.." || exit
readonly logs=build/logs
readonly seconds_a_step_tenths=20 # of processor time, for how_long
# Compilations are found again in another checkout of the same sources, and under another locale; what is not found is not
# preprocessed first.
export CCACHE_BASEDIR=$PWD CCACHE_NOHASHDIR=1 CCACHE_SLOPPINESS=locale,pch_defines,time_macros CCACHE_COMPILERCHECK=content
export CCACHE_DEPEND=1
# shellcheck disable=SC2034  # for run.sh
readonly sluice_program=$PWD/build/release/engine/sluice
mkdir -p "$logs"

# nvcc need not be on PATH.
if ! type -P nvcc >/dev/null && [[ -x /usr/local/cuda/bin/nvcc ]]; then
  export PATH=$PATH:/usr/local/cuda/bin
fi

exec {said_to}>&2 # also where a step's output goes into a log
say() { echo "[sluice] $*" >&"$said_to"; }
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

# missing_packages <section...>: those of these sections of packages.txt that are not installed.
missing_packages() {
  local -a wanted
  mapfile -t wanted < <(awk -v sections=" $* " '
    /^\[/ { wanted = index(sections, " " substr($0, 2, length($0) - 2) " ") }
    wanted && /^[a-z0-9]/ { print $1 }' scripts/packages.txt | sort)
  # shellcheck disable=SC2016  # dpkg-query's own fields
  comm -23 <(printf '%s\n' "${wanted[@]}") \
    <(dpkg-query -W -f '${db:Status-Status} ${Package}\n' "${wanted[@]}" 2>/dev/null |
      sed -n 's/^installed //p' | sort -u)
}

# apt_install <package...>: the machine's lists stay as they are; where they do not do, newer ones are fetched into a folder
# of our own. Ctrl-C ends it before packages are unpacked; then it waits, as dpkg must not be cut off.
apt_install() {
  local -a as_root=() apt newer
  if ((EUID != 0)); then as_root=(sudo); fi
  apt=("${as_root[@]}" env DEBIAN_FRONTEND=noninteractive apt-get -y -o DPkg::Lock::Timeout=300 -o Acquire::Retries=2)
  if "${apt[@]}" install --no-install-recommends --download-only "$@"; then
    uninterrupted "${apt[@]}" install --no-install-recommends "$@"
    return
  fi
  own_lists=$(mktemp -d)
  trap 'remove_own_lists; exit 130' INT TERM HUP
  mkdir -p "$own_lists/lists/partial" "$own_lists/cache/archives/partial"
  newer=(-o Dir::State::lists="$own_lists/lists" -o Dir::Cache="$own_lists/cache" -o APT::Sandbox::User=root)
  local status=0
  "${apt[@]}" "${newer[@]}" update || true # one broken source of several may not matter
  if "${apt[@]}" "${newer[@]}" install --no-install-recommends --download-only "$@"; then
    uninterrupted "${apt[@]}" "${newer[@]}" install --no-install-recommends "$@" || status=$?
  else
    status=1
  fi
  trap - INT TERM HUP
  remove_own_lists
  return "$status"
}

own_lists=
remove_own_lists() {
  local -a as_root=()
  if ((EUID != 0)); then as_root=(sudo); fi
  if [[ $own_lists ]]; then "${as_root[@]}" rm -rf "$own_lists"; fi
  own_lists=
}

# uninterrupted <command...>: the terminal's Ctrl-C does not reach it; a signal to us counts when it has ended.
uninterrupted() {
  local process status=0 interrupted=
  trap 'interrupted=1; say "stopping once the packages are installed: dpkg must not be cut off"' INT TERM HUP
  setsid "$@" &
  process=$!
  while kill -0 "$process" 2>/dev/null; do
    wait "$process" && status=0 || status=$?
  done
  trap - INT TERM HUP
  if [[ $interrupted ]]; then remove_own_lists && exit 130; fi
  return "$status"
}

# set_up_packages <section...>
set_up_packages() {
  [[ ${SLUICE_PACKAGES:-} != skip ]] || return 0
  if ! type -P apt-get dpkg-query >/dev/null; then
    say "no apt here: the packages are taken to be installed (scripts/packages.txt lists them)"
    return
  fi
  local -a missing
  mapfile -t missing < <(missing_packages "$@")
  ((${#missing[@]} > 0)) || return 0
  if ((EUID != 0)) && ! type -P sudo >/dev/null; then
    die "neither root nor sudo: please have these packages installed: ${missing[*]}"
  fi
  if [[ $(dpkg --audit 2>/dev/null) ]]; then
    die "dpkg was cut off earlier, or holds broken packages (dpkg --audit): mend that with dpkg --configure -a"
  fi
  step packages "installing ${#missing[@]} packages, about a minute: ${missing[*]}" apt_install "${missing[@]}"
}

# Sets starpu_prefix.
set_up_starpu() {
  starpu_prefix=$(scripts/starpu.sh native) || exit 1
}

# The compute capabilities of the GPUs here as nvcc wants them, such as "80;90"; nothing without one.
gpu_architectures() {
  {
    nvidia-smi --query-gpu=compute_cap --format=csv,noheader ||
      "$(dirname "$(type -P nvcc)")/__nvcc_device_query" | tr ',' '\n'
  } 2>/dev/null | tr -d '. ' | grep -x '[0-9]\{2,3\}' | sort -nu | paste -sd ';' || true
}

# set_up_cuda <run|test>: sets cuda_architectures to what kernels are built for; nothing: they are not built. SLUICE_CUDA is
# auto, off, on, or a list such as 80;90. The choice is remembered, so that run.sh and test.sh configure the same.
set_up_cuda() {
  local choice=${SLUICE_CUDA:-auto} gpus remembered=build/cuda_architectures
  [[ $choice =~ ^(auto|on|off|[0-9]{2,3}(;[0-9]{2,3})*)$ ]] ||
    die "SLUICE_CUDA=$choice: expected auto, on, off, or compute capabilities such as 80;90"
  cuda_architectures=
  if [[ $choice != off ]]; then
    gpus=$(gpu_architectures)
    case $choice in
      auto) cuda_architectures=$gpus ;;
      on) cuda_architectures=${gpus:-90} ;;
      *) cuda_architectures=$choice ;;
    esac
    if [[ $choice == auto && ! $gpus ]]; then
      if [[ -e $remembered ]]; then
        cuda_architectures=$(<"$remembered")
      elif [[ $1 == test ]]; then
        cuda_architectures=90
      fi
    fi
  fi
  # shellcheck disable=SC2034  # for run.sh
  cuda_is_wanted=
  if [[ $cuda_architectures ]] && ! type -P nvcc >/dev/null; then
    [[ $choice == auto ]] || die "SLUICE_CUDA=$choice needs nvcc, on PATH or in /usr/local/cuda/bin"
    if [[ $gpus ]]; then say "there is a GPU, but no nvcc to build its kernels with: computing on the CPU"; fi
    cuda_architectures=
  elif [[ $choice != off && ($choice != auto || $gpus) ]]; then
    # shellcheck disable=SC2034  # for run.sh
    cuda_is_wanted=1
  fi
  rm -f "$remembered"
  if [[ $cuda_architectures ]]; then mkdir -p build && echo "$cuda_architectures" >"$remembered"; fi
}

# Tests are built from now on, in run.sh's build folder, too.
set_up_tests() {
  mkdir -p build
  touch build/with_tests
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
  if [[ $1 == release ]]; then
    if [[ -e build/starpu_simgrid_prefix ]]; then
      arguments+=("-DSLUICE_STARPU_SIMGRID_PREFIX=$(<build/starpu_simgrid_prefix)")
    fi
    if [[ ! -e build/with_tests ]]; then
      arguments+=(-DSLUICE_BUILD_TESTS=OFF -DSLUICE_PRECOMPILED_HEADERS=ON)
    fi
    if [[ ${SLUICE_FXT:-on} == off ]]; then arguments+=(-DSLUICE_FXT=OFF); fi
    if [[ ${cuda_architectures:-} ]]; then
      arguments+=(-DSLUICE_CUDA=ON "-DSLUICE_CUDA_ARCHITECTURES=$cuda_architectures")
    else
      arguments+=(-DSLUICE_CUDA=OFF)
    fi
  fi
  made_from=$(echo "${arguments[@]}" && cksum <CMakePresets.json)
  if [[ -e $dir/build.ninja && $(cat "$dir/made_from" 2>/dev/null) == "$made_from" ]]; then return; fi
  if [[ -e $dir/CMakeCache.txt ]]; then arguments+=(--fresh); fi
  step "configure-$1" "configuring ($1)" cmake "${arguments[@]}"
  echo "$made_from" >"$dir/made_from"
}

# how_long <preset> [target...]: what ninja would do, in words, such as ": 240 steps, about 3 minutes"; nothing for a few.
how_long() {
  local steps seconds
  steps=$(ninja -C "build/$1" -n "${@:2}" 2>/dev/null | sed -n '$s#^\[[0-9]*/\([0-9]*\)\].*#\1#p')
  ((${steps:-0} > 5)) || return 0
  seconds=$((steps * seconds_a_step_tenths / 10 / $(nproc)))
  if ((seconds < 60)); then
    echo ": $steps steps, less than a minute"
  else
    echo ": $steps steps, about $(((seconds + 30) / 60)) min, less with a warm ccache"
  fi
}

# build <preset> [target...]; one at a time in a checkout.
build() {
  local preset=$1 lock
  shift
  exec {lock}>build/lock
  flock -n "$lock" || { say "waiting for another build here" && flock "$lock"; }
  configure "$preset"
  step "build-$preset" "building ($preset)$(how_long "$preset" "$@")" ninja -C "build/$preset" "$@"
  exec {lock}>&-
}
