#!/usr/bin/env bash
# without_fxt_test.sh <program> <folder to write into>: a program that was built without FxT says so, and refuses --trace.
set -euo pipefail
program=$1
folder=$2/without_fxt
rm -rf "$folder"
mkdir -p "$folder"

fail() {
  echo "$*" >&2
  exit 1
}

"$program" --version | grep -q -- '--trace is off' || fail "$program --version does not say that it has no traces"
"$program" generate --prompt Once --max-tokens 1 2>/dev/null | grep -q . || fail "$program generates nothing"
if "$program" generate --prompt Once --max-tokens 1 --trace "$folder/trace" 2>"$folder/errors" >/dev/null; then
  fail "$program takes --trace"
fi
if [[ $(grep -c '' "$folder/errors") != 1 || $(<"$folder/errors") != *FxT* ]]; then
  fail "$program refuses --trace with these words: $(<"$folder/errors")"
fi
if [[ -e $folder/trace ]]; then fail "$program leaves a folder for the trace that it refuses"; fi
