#!/usr/bin/env bash
# Sets everything up (packages, StarPU, the build) and runs sluice. Only sluice writes to stdout.
#
#   ./run.sh                              generates text with the tiny model that is built in
#   ./run.sh generate --prompt "..."      any arguments go to sluice
#   ./run.sh simulate --machine spr-h100  the same; the simulator is built first
set -euo pipefail

readonly default_arguments=(generate --model tiny
  --prompt "Once upon a time, there was a little girl named Lily." --max-tokens 80)

readonly started_in=$PWD
# shellcheck source=scripts/setup.sh
source "$(dirname "${BASH_SOURCE[0]}")/scripts/setup.sh"

set_up_packages
set_up_starpu
targets=(sluice)
if [[ ${1:-} == simulate ]]; then
  set_up_simgrid
  targets+=(sluice-simulate)
fi
build release "${targets[@]}"

cd "$started_in" # paths among the arguments are the caller's
if (($# == 0)); then set -- "${default_arguments[@]}"; fi
exec "$sluice_program" "$@"
