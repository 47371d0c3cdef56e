#!/usr/bin/env bash
# kernels_test.sh <sluice> <folder of policies> <libsluice-cuda.so or "">: a program without its CUDA kernels computes on the
# CPU, and says in one line what is missing when a GPU is asked for.
set -euo pipefail
program=$1
kernels=$3
export SLUICE_POLICY_PATH=$2
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
mkdir -p "$work/bin" "$work/lib/sluice"
cp "$program" "$work/bin/sluice"
fail() { echo "kernels_test: $*" >&2 && exit 1; }

generate() {
  "$work/bin/sluice" generate --model tiny --prompt Once --max-tokens 2 --temperature 0 -q "$@" 2>"$work/err"
}

# refuses <words>: --device cuda fails with one line that has them.
refuses() {
  local status=0
  generate --device cuda >/dev/null || status=$?
  ((status == 1)) || fail "--device cuda ends with $status: $(<"$work/err")"
  [[ $(wc -l <"$work/err") == 1 && $(<"$work/err") == *"$1"* ]] || fail "expected '$1', it says: $(<"$work/err")"
}

expected=$(generate --device cpu)
[[ $(generate) == "$expected" ]] || fail "without --device it does not compute on the CPU"
refuses 'no libsluice-cuda.so beside the program'

echo 'no object' >"$work/lib/sluice/libsluice-cuda.so"
refuses 'cannot be loaded'
[[ $(generate) == "$expected" ]] || fail "a broken object stops a run on the CPU"

cp "$SLUICE_POLICY_PATH/all-cpu.so" "$work/lib/sluice/libsluice-cuda.so"
refuses 'exports no kernels'

if [[ $kernels && ! -e /dev/nvidiactl ]]; then
  cp "$kernels" "$work/lib/sluice/libsluice-cuda.so"
  refuses 'CUDA'
  [[ $(generate) == "$expected" ]] || fail "with kernels it does not compute on the CPU"
fi
