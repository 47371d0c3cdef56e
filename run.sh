#!/usr/bin/env bash
# Sets everything up (packages, StarPU, the build) and runs sluice. Only sluice writes to stdout.
#
#   ./run.sh                              generates text with the tiny model that is built in
#   ./run.sh generate --prompt "..."      any arguments go to sluice; ./run.sh help lists its commands
#   ./run.sh simulate --machine spr-h100  the same; the simulator is built first
#   ./run.sh --help                       this text, at once
#
# What it builds first takes some minutes. Kernels for NVIDIA GPUs are built for those that are here. Variables:
#
#   SLUICE_CUDA      auto, off, on (also without a GPU: for 9.0), or compute capabilities such as "80;90"; default auto
#   SLUICE_FXT       off: without FxT, whose licence is the GPL, and so without --trace; default on
#   SLUICE_PACKAGES  skip: install no packages
#   SLUICE_CACHE     where StarPU is kept, default ~/.cache/sluice
#   SLUICE_STARPU_SOURCE  StarPU's source, default Debian's
set -euo pipefail

case ${1:-} in -h | --help) sed -n '2,/^[^#]/s/^# \{0,1\}//p' "${BASH_SOURCE[0]}" && exit ;; esac

readonly default_arguments=(generate --model tiny
  --prompt "Once upon a time, there was a little girl named Lily." --max-tokens 80)

readonly started_in=$PWD
# shellcheck source=scripts/setup.sh
source "$(dirname "${BASH_SOURCE[0]}")/scripts/setup.sh"

targets=(sluice)
if [[ ${1:-} == simulate ]]; then
  set_up_packages run simulate
  set_up_simgrid
  targets+=(sluice-simulate)
else
  set_up_packages run
fi
set_up_starpu
set_up_cuda run
if [[ $cuda_is_wanted ]]; then targets+=(sluice-cuda); fi
build release "${targets[@]}"

cd "$started_in" # paths among the arguments are the caller's
if (($# == 0)); then set -- "${default_arguments[@]}"; fi
exec "$sluice_program" "$@"
