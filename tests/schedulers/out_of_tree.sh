#!/usr/bin/env bash
# Installs Sluice, builds examples/policy against that copy alone, and runs the result with Sluice and in a plain StarPU
# program. out_of_tree.sh <Sluice's build folder> <examples/policy> <work folder> <C++ compiler> <StarPU's prefix or "">
set -euo pipefail
readonly build=$1 example=$2 work=$3 compiler=$4 starpu_prefix=$5

rm -rf "$work" && mkdir -p "$work"
# What does not lie in the source tree cannot be found there.
cp -r "$example" "$work/example"
cmake --install "$build" --prefix "$work/installed" >"$work/install.log"

fail() { echo "out_of_tree: $*" >&2 && exit 1; }

echo "== CMake"
cmake -S "$work/example" -B "$work/build" -DCMAKE_PREFIX_PATH="$work/installed" -DCMAKE_CXX_COMPILER="$compiler"
cmake --build "$work/build"

echo "== pkg-config"
pkgconfig=$(dirname "$(find "$work/installed" -name sluice.pc)")
export PKG_CONFIG_PATH=$pkgconfig${starpu_prefix:+:$starpu_prefix/lib/pkgconfig}:${PKG_CONFIG_PATH:-}
read -ra compile_flags < <(pkg-config --cflags sluice)
read -ra link_flags < <(pkg-config --libs sluice)
"$compiler" -shared -fPIC "${compile_flags[@]}" "$work/example/two_lanes.cc" "${link_flags[@]}" -o "$work/mine.so"

echo "== with sluice"
export STARPU_HOME=$work/starpu
sluice=$work/installed/bin/sluice
generate() {
  "$sluice" generate --prompt "Once upon a time" --max-tokens 8 --temperature 0 --dtype f32 -q "$@"
}
expected=$(generate --policy cpu-only)
for policy in "$work/build/two-lanes.so" "$work/mine.so"; do
  [[ $(generate --policy "$policy" --policy-option long-context=6 2>"$work/stderr") == "$expected" ]] ||
    fail "$policy gives other tokens"
done
[[ $(SLUICE_POLICY_PATH=$work/build generate --policy two-lanes) == "$expected" ]] || fail "not found by name"
if [[ -e $work/build/two-lanes.simgrid.so ]]; then
  if generate --policy "$work/build/two-lanes.simgrid.so" 2>"$work/stderr"; then fail "ran the simulator's variant"; fi
  grep -q "simgrid" "$work/stderr" || fail "an unclear message: $(cat "$work/stderr")"
  # The simulator finds its variant beside the file that is named.
  simulated=$("$sluice" simulate --model opt-6.7b --machine spr-a100 --policy "$work/build/two-lanes.so" \
    --policy-option long-context=512 --input-tokens 64 --output-tokens 2 --json) || fail "does not simulate"
  grep -q '"policy": ".*two-lanes' <<<"$simulated" || fail "simulated another policy: $simulated"
fi

echo "== with requests that come"
for tokens in 200 150 8 90; do
  echo "{\"arrival_s\": 0, \"input_tokens\": $tokens, \"output_tokens\": 30}"
done >"$work/trace.jsonl"
# The first of two figures: the mean.
mean_ttft() {
  "$sluice" replay --model opt-6.7b --machine spr-a100 --estimate --trace "$work/trace.jsonl" --max-sequences 1 --json \
    -q --policy "$1" | grep -A1 '"ttft_s"' | grep -o '[0-9.e-]*[0-9]' | head -1
}
shortest=$(mean_ttft "$work/build/shortest-first.so")
awk -v a="$shortest" -v b="$(mean_ttft "$work/build/two-lanes.so")" 'BEGIN { exit !(a > 0 && a < b) }' ||
  fail "the shortest prompts come first, and the mean time to the first token is $shortest"

echo "== in a plain StarPU program"
for policy in "$work/build/two-lanes.so" "$work/mine.so"; do
  name=$(STARPU_SCHED=two-lanes STARPU_SCHED_LIB=$policy STARPU_NCPU=2 STARPU_NCUDA=0 STARPU_NOPENCL=0 \
    STARPU_WORKERS_NOBIND=1 STARPU_SILENT=1 "$work/build/plain") || fail "the plain program failed"
  [[ $name == two-lanes ]] || fail "the plain program ran $name"
done
