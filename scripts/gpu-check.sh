#!/usr/bin/env bash
# Everything that has to be shown on a machine with a GPU, from the unpacked bundle, in under 10 minutes.
#
#   ./gpu-check.sh [FOLDER]    default: ./gpu-check
#
# First what must be right (tests of every kernel, under compute-sanitizer where it is installed, the same tokens from
# CPU and GPU), then figures, each with its command. FOLDER gets one log a step, summary.txt, and the figures as JSON: what
# perfmodels/measured/ holds of a machine. A step that fails or takes too long is said, and the next one goes on.
set -uo pipefail

case ${1:-} in -h | --help) sed -n '2,9s/^# \{0,1\}//p' "$0" && exit ;; esac
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
out=$(realpath -m "${1:-gpu-check}")
mkdir -p "$out" || exit
# shellcheck source=scripts/bundle/environment.sh
source "$here/environment.sh"
readonly sluice=$here/bin/sluice tests=$here/tests
export sluice tests here
readonly hbm=20GiB # of the runs whose weights stream
failed=0

note() { echo "$*" | tee -a "$out/summary.txt" >&2; }

# step <name> <seconds at most> <command...>: output into FOLDER/name.log.
step() {
  local name=$1 limit=$2 start=$SECONDS
  shift 2
  printf '$ %s\n' "$*" >"$out/$name.log"
  if timeout --kill-after=5 "$limit" "$@" >>"$out/$name.log" 2>&1 </dev/null; then
    note "ok      $name ($((SECONDS - start)) s)"
  else
    local status=$?
    failed=$((failed + 1))
    note "FAILED  $name (exit $status after $((SECONDS - start)) s): $(tail -n 1 "$out/$name.log")"
    return 1
  fi
}

# figures <name> <seconds at most> <sluice bench's arguments...>: FOLDER/name.json beside the log.
figures() {
  local name=$1 limit=$2
  shift 2
  # shellcheck disable=SC2016  # the inner shell's
  step "$name" "$limit" bash -c '"$1" bench --json "${@:3}" >"$2"' - "$sluice" "$out/$name.json" "$@"
  # As the run says that it would be faster.
  if [[ ! ${ONEDNN_MAX_CPU_ISA:-} ]] && grep -q 'ONEDNN_MAX_CPU_ISA=' "$out/$name.log"; then
    ONEDNN_MAX_CPU_ISA=AVX512_CORE_BF16 figures "$name-strips" "$limit" "$@"
  fi
}

describe_machine() {
  date -u +%FT%TZ
  nvidia-smi || return 1
  nvidia-smi -q -d CLOCK,MEMORY,PCIE 2>/dev/null || true
  lscpu
  free -b
  uname -a
  "$sluice" info --json
}

same_tokens() {
  local policy cpu gpu
  local -a run=(generate --prompt "Once upon a time" --max-tokens 40 --temperature 0 -q --dtype f32)
  cpu=$("$sluice" "${run[@]}" --device cpu) || return 1
  for policy in gpu-only flexgen lia helm neo; do
    gpu=$("$sluice" "${run[@]}" --device cuda --policy "$policy") || return 1
    if [[ $gpu != "$cpu" ]]; then
      printf '%s: the GPU says\n%s\nthe CPU says\n%s\n' "$policy" "$gpu" "$cpu"
      return 1
    fi
    echo "$policy: the same tokens"
  done
}

sanitize() {
  local tool
  tool=$(PATH=$PATH:${CUDA_HOME:-/usr/local/cuda}/bin type -P compute-sanitizer)
  if [[ ! $tool ]]; then
    echo "compute-sanitizer is not installed here"
    return 1
  fi
  local test
  for test in "$tests/cuda_gpu_test" "$tests/runtime_gpu_test"; do
    SLUICE_TEST_DATA=$here/share/sluice/tests "$tool" --error-exitcode 1 "$test" --gtest_brief=1 || return 1
  done
}

# Layers of the last streamed run that stayed in HBM.
resident_layers() {
  python3 -c 'import json, sys
print(json.load(open(sys.argv[1]))[0].get("resident_layers", 0))' "$out/opt-30b-streamed.json" 2>/dev/null || echo 0
}

note "Sluice on a GPU, $(date -u +%FT%TZ)"
export -f describe_machine same_tokens sanitize
step machine 60 bash -c describe_machine
step tests 200 "$here/run-tests" --gpu
step same-tokens 90 bash -c same_tokens
step sanitizer 120 bash -c sanitize
figures llama-3.1-8b 120 --model llama-3.1-8b --device cuda --policy gpu-only --prompt-tokens 2048 --gen-tokens 64 --repeat 3
# What CUDA graphs are worth.
figures llama-3.1-8b-no-graphs 90 --model llama-3.1-8b --device cuda --policy gpu-only --prompt-tokens 0 --gen-tokens 64 \
  --repeat 3 --cuda-graphs off
# All of the decoder on the GPU, so that what is not resident streams.
figures opt-30b-streamed 200 --model opt-30b --device cuda --hbm "$hbm" --policy lia --policy-option decode=000000 \
  --prompt-tokens 0 --gen-tokens 8 --batch 1,64 --repeat 2
for batch in 1 64; do
  # OPT-30B's sizes; the same layers stay.
  step "floor-$batch" 60 "$here/bin/streaming_floor" 7168 28672 48 "$(resident_layers)" "$batch" 3
done
# The same by accelerate, a weak peer.
if python3 -c 'import accelerate, torch, transformers' 2>/dev/null; then
  for batch in 1 64; do
    step "accelerate-$batch" 120 python3 "$here/accelerate_offload.py" --model opt-30b --memory "$hbm" --batch "$batch"
  done
else
  note "        accelerate is not installed here"
fi
# What plans and simulations go by, and how true it is between the buckets.
for what in "" --check; do
  step "calibrate$what" 150 env XDG_DATA_HOME="$out/data" "$sluice" calibrate --model llama-3.2-1b --device cuda \
    --repeat 1 $what
done
if grep -q amx_bf16 /proc/cpuinfo; then
  step amx 90 env ONEDNN_VERBOSE=1 "$sluice" bench --model llama-3.2-1b --device cpu --gen-tokens 16 --repeat 2
  if ! grep -q amx "$out/amx.log"; then
    failed=$((failed + 1))
    note "FAILED  amx: oneDNN did not use it"
  fi
else
  note "        this CPU has no AMX"
fi
note "$failed steps failed; everything is in $out"
((failed == 0))
