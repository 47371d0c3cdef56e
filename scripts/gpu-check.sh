#!/usr/bin/env bash
# Everything that has to be shown on a machine with a GPU, from the unpacked bundle, in under 10 minutes.
#
#   ./gpu-check.sh [--only tests|figures] [FOLDER]    default: both, ./gpu-check
#
# First what must be right (tests of every kernel, also under compute-sanitizer where it is installed, the same tokens from
# CPU and GPU), then figures, each with its command. FOLDER gets one log a step, summary.txt, and figures.json: the machine,
# commands and raw numbers, as perfmodels/measured/ holds them, beside what is wanted. GPU_CHECK_ARCHIVE (FOLDER.tar.gz) has all
# of it, after each step. A step that fails or takes too long is said, and the next one goes on; what GPU_CHECK_SECONDS (540)
# leave no time for is skipped, and said. GPU_CHECK_DDR is --ddr of the runs of large models, where the machine shows less
# memory at first than it has. OPT-30B streams, or OPT-13B where new memory comes so slowly that loading would take the time.
set -uo pipefail

usage() { sed -n '2,12s/^# \{0,1\}//p' "$0"; }
parts=(tests figures)
case ${1:-} in
  -h | --help) usage && exit ;;
  --only)
    [[ ${2:-} == tests || ${2:-} == figures ]] || { usage >&2 && exit 2; }
    parts=("$2")
    shift 2
    ;;
  -*) usage >&2 && exit 2 ;;
esac
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
out=$(realpath -m "${1:-gpu-check}")
archive=$(realpath -m "${GPU_CHECK_ARCHIVE:-$out.tar.gz}")
mkdir -p "$out" "$(dirname "$archive")" || exit
# shellcheck source=scripts/bundle/environment.sh
source "$here/environment.sh"
readonly sluice=$here/bin/sluice tests=$here/tests
export sluice tests here
# What does not end is to say so before its step's time is over.
export SLUICE_WATCHDOG_SECONDS=${SLUICE_WATCHDOG_SECONDS:-20}
readonly seconds_in_all=${GPU_CHECK_SECONDS:-540}
failed=0
skipped=0
child=

note() { echo "$*" | tee -a "$out/summary.txt" >&2; }

# As a whole or not at all, whenever this is killed.
pack() { tar -C "$(dirname "$out")" -czf "$archive.part" "$(basename "$out")" && mv -f "$archive.part" "$archive"; }

# at_most <seconds>: those of them that are left, at least one.
at_most() {
  local left=$((seconds_in_all - SECONDS))
  left=$((left < 1 ? 1 : left))
  echo $(($1 < left ? $1 : left))
}

# step <name> <seconds at most> <command...>: output into FOLDER/name.log, a line into FOLDER/steps.tsv.
step() {
  local name=$1 limit=$2 start=$SECONDS status=0
  shift 2
  limit=$(at_most "$limit")
  if ((limit < 10)); then
    skipped=$((skipped + 1))
    note "SKIPPED $name: no time is left"
    return 1
  fi
  printf '$ %s\n' "$*" >"$out/$name.log"
  # In the background, so that a signal is heard meanwhile.
  timeout --kill-after=5 "$limit" "$@" >>"$out/$name.log" 2>&1 </dev/null &
  child=$!
  wait "$child" || status=$?
  printf '%s\t%d\t%d\t%s\n' "$name" "$status" $((SECONDS - start)) "$*" >>"$out/steps.tsv"
  if ((status == 0)); then
    note "ok      $name ($((SECONDS - start)) s)"
  else
    failed=$((failed + 1))
    note "FAILED  $name (exit $status after $((SECONDS - start)) s): $(tail -n 1 "$out/$name.log")"
  fi
  pack
  return "$status"
}

# figures <name> <seconds at most> [VARIABLE=value] <sluice bench's arguments...>: FOLDER/name.json beside the log.
figures() {
  local name=$1 limit=$2
  local -a with=()
  shift 2
  if [[ $1 == *=* ]]; then with=(env "$1") && shift; fi
  # shellcheck disable=SC2016  # the inner shell's
  step "$name" "$limit" "${with[@]}" bash -c '"$1" bench --json "${@:3}" >"$2"' - "$sluice" "$out/$name.json" "$@" \
    ${GPU_CHECK_DDR:+--ddr "$GPU_CHECK_DDR"}
}

describe_machine() {
  date -u +%FT%TZ
  nvidia-smi || return 1
  nvidia-smi -q -d CLOCK,MEMORY,POWER || true
  nvidia-smi --query-gpu=pcie.link.gen.max,pcie.link.width.max --format=csv || true
  lscpu
  free -b
  uname -a
  outside python3 -c '
import time
start = time.monotonic()
fresh = b"\1" * (2 << 30)
print("milliseconds for a new GiB:", round((time.monotonic() - start) / 2 * 1000))'
  "$sluice" info --json
}

# The model whose weights stream, what it may take of HBM, and its hidden size, FFN size and layers.
choose_streamed() {
  local new_gib_ms
  new_gib_ms=$(sed -n 's/^milliseconds for a new GiB: //p' "$out/machine.log")
  if ((${new_gib_ms:-0} < 1500)); then
    streamed=opt-30b hbm=20GiB sizes=(7168 28672 48)
  else
    streamed=opt-13b hbm=9GiB sizes=(5120 20480 40)
    note "        a new GiB of memory takes $new_gib_ms ms: opt-13b streams, not opt-30b"
  fi
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

# expect_in <step> <pattern>: or it failed after all.
expect_in() {
  grep -q "$2" "$out/$1.log" && return
  failed=$((failed + 1))
  note "FAILED  $1: its log has no $2"
}

has_amx() { grep -q amx_bf16 /proc/cpuinfo; }

# sanitize <tool> <test> <filter> [all]: our own kernels, or all, cuBLASLt's too. What a test provokes on purpose (a capture
# that CUDA refuses) is no finding.
sanitize() {
  local option
  local -a kernels=()
  for option in --kernel-name --filter; do # what newer and older ones call it
    if "$sanitizer" --help | grep -q -e "$option"; then kernels=("$option" kns=sluice) && break; fi
  done
  if [[ ${4:-} == all ]]; then kernels=(); fi
  SLUICE_TEST_DATA=$here/share/sluice/tests "$sanitizer" --tool "$1" "${kernels[@]}" --report-api-errors no \
    --error-exitcode 1 "$tests/$2" --gtest_filter="$3"
}

# All of them side by side: what fails is said, and each has a log of its own.
sanitize_all() {
  local name status=0
  local -A runs
  start() {
    sanitize "${@:2}" >"$out/$1.log" 2>&1 &
    runs[$1]=$!
  }
  start memcheck-linear memcheck cuda_gpu_test "$linear_tests"
  start memcheck memcheck cuda_gpu_test "*-$linear_tests"
  start memcheck-runtime memcheck runtime_gpu_test '*'
  start racecheck racecheck cuda_gpu_test '*Attention*:*Sampling*'
  # Told to look at some kernels only, racecheck (2025.3.1) fails beside cuBLASLt's.
  start racecheck-linear racecheck cuda_gpu_test '*Linear*:*Qkv*' all
  for name in "${!runs[@]}"; do
    if wait "${runs[$name]}"; then
      echo "$name: $(tail -n 1 "$out/$name.log")"
    else
      status=1
      echo "$name failed: $(tail -n 1 "$out/$name.log")"
    fi
  done
  if ((status != 0)); then echo "see the log of each"; fi
  return "$status"
}

# Layers of the streamed run that stayed in HBM; nothing if that is not known.
resident_layers() {
  grep -m 1 -o '"resident_layers": *[0-9]*' "$out/streamed.json" 2>/dev/null | grep -o '[0-9]*$'
}

# What multiplies with weights.
readonly linear_tests='*Linear*:*Qkv*:*OutProj*:*Fc1*:*Fc2*:*LmHead*'

run_tests() {
  step cuda_gpu_test 150 "$here/run-tests" --gpu cuda_gpu_test
  step runtime_gpu_test 30 "$here/run-tests" --gpu runtime_gpu_test
  step same-tokens 60 bash -c same_tokens
  step kv_path_test 150 "$here/run-tests" --gpu kv_path_test
  step cli_gpu_test 150 "$here/run-tests" --gpu cli_gpu_test
  step memory_gpu_test 30 "$here/run-tests" --gpu memory_gpu_test
  sanitizer=$(PATH=$PATH:${CUDA_HOME:-/usr/local/cuda}/bin type -P compute-sanitizer)
  if [[ ! $sanitizer ]]; then
    failed=$((failed + 1))
    note "FAILED  sanitizer: compute-sanitizer is not installed here"
    return
  fi
  export sanitizer
  # Some virtual machines keep a sanitizer from the device.
  if ! timeout --kill-after=5 "$(at_most 60)" bash -c 'sanitize memcheck cuda_gpu_test "*SelectRows*"' \
    >"$out/sanitizer.log" 2>&1 </dev/null &&
    grep -qi 'not supported' "$out/sanitizer.log"; then
    skipped=$((skipped + 1))
    note "SKIPPED sanitizer: it says that it does not support this device: see sanitizer.log"
    return
  fi
  step sanitizers 200 bash -c sanitize_all
}

run_figures() {
  # shellcheck disable=SC2016  # the inner shell's
  step gpu-limits 60 bash -c '"$1" >"$2"' - "$here/bin/gpu_limits" "$out/gpu-limits.json"
  figures llama-3.1-8b 120 --model llama-3.1-8b --device cuda --policy gpu-only --prompt-tokens 2048 --gen-tokens 64 \
    --repeat 3
  # All of the decoder on the GPU, so that what is not resident streams.
  choose_streamed
  figures streamed 240 --model "$streamed" --device cuda --hbm "$hbm" --policy lia --policy-option decode=000000 \
    --prompt-tokens 0 --gen-tokens 8 --batch 1,64 --repeat 2
  local batch resident
  if resident=$(resident_layers); then
    for batch in 1 64; do
      # The same layers stay.
      # shellcheck disable=SC2016  # the inner shell's
      step "floor-$batch" 60 bash -c '"$1" "${@:3}" >"$2"' - "$here/bin/streaming_floor" "$out/floor-$batch.json" \
        "${sizes[@]}" "$resident" "$batch" 3
    done
  else
    note "SKIPPED floor: how many layers stayed is not known"
    skipped=$((skipped + 1))
  fi
  # What CUDA graphs are worth.
  figures llama-3.1-8b-no-graphs 90 --model llama-3.1-8b --device cuda --policy gpu-only --prompt-tokens 0 --gen-tokens 64 \
    --repeat 3 --cuda-graphs off
  if has_amx; then
    local -a on_cpu=(--model llama-3.2-1b --device cpu --prompt-tokens 512 --gen-tokens 16 --repeat 3)
    figures amx 60 "${on_cpu[@]}"
    figures amx-off 60 ONEDNN_MAX_CPU_ISA=AVX512_CORE_BF16 "${on_cpu[@]}"
    # What multiplies: our kernel, whose instructions give what the manual says, and, in the probe of the CPU's rate, oneDNN's.
    # Its log is apart, as that slows it.
    step amx-tests 60 env SLUICE_TEST_DATA="$here/share/sluice/tests" "$tests/codelets_test" --gtest_filter='*Amx*:*Linear*' &&
      expect_in amx-tests 'OK.*CpuHasTheBitsOfTheEmulation'
    step amx-proof 30 env ONEDNN_VERBOSE=1 "$sluice" bench --model tiny --dtype bf16 --device cpu --prompt-tokens 16 \
      --gen-tokens 2 --repeat 1 && expect_in amx-proof amx
  else
    note "        this CPU has no AMX"
  fi
  # What plans and simulations go by, and how true it is between the buckets.
  local what
  for what in "" --check; do
    step "calibrate$what" 150 env XDG_DATA_HOME="$out/data" "$sluice" calibrate --model llama-3.2-1b --device cuda \
      --repeat 1 $what
  done
  # The streamed runs by accelerate, a weak peer: last, as it takes minutes.
  if outside timeout "$(at_most 60)" python3 -c 'import accelerate, torch, transformers' 2>/dev/null; then
    for batch in 1 64; do
      # shellcheck disable=SC2016  # the inner shell's
      step "accelerate-$batch" 120 bash -c 'outside python3 "$1" "${@:3}" >"$2"' - "$here/accelerate_offload.py" \
        "$out/accelerate-$batch.json" --model "$streamed" --memory "$hbm" --batch "$batch" --steps 2
    done
  else
    note "        accelerate is not installed here"
  fi
}

# What is known by then, also when this is ended from outside.
finish() {
  trap - EXIT
  if outside python3 "$here/gpu_figures.py" "$out" >"$out/figures.txt" 2>&1; then
    note "$(<"$out/figures.txt")"
  else
    note "figures.json could not be made: $(tail -n 1 "$out/figures.txt")"
  fi
  note "$failed steps failed, $skipped were skipped; everything is in $out and $archive"
  pack
  exit $((failed + skipped > 0))
}
trap finish EXIT
trap 'kill "$child" 2>/dev/null; wait "$child"; failed=$((failed + 1)); note "ENDED from outside"; exit' INT TERM

note "Sluice on a GPU, $(date -u +%FT%TZ)"
export -f describe_machine same_tokens sanitize sanitize_all outside
export out linear_tests
step machine 60 bash -c describe_machine
for part in "${parts[@]}"; do "run_$part"; done
