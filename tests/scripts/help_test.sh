#!/usr/bin/env bash
# help_test.sh <source folder>: the scripts say how they are used without setting anything up.
set -euo pipefail
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
mkdir "$work/scripts"
cp "$1"/{run,test}.sh "$work/"
# Whoever sources it sets something up.
echo 'echo "sets up" >&2; exit 9' >"$work/scripts/setup.sh"
for script in run.sh test.sh; do
  for option in --help -h; do
    text=$("$work/$script" "$option") || { echo "$script $option failed" >&2 && exit 1; }
    [[ $text == *"./$script"* ]] || { echo "$script $option does not say how it is used: $text" >&2 && exit 1; }
  done
done
if "$work/run.sh" 2>/dev/null; then echo "run.sh without --help sets nothing up?" >&2 && exit 1; fi
