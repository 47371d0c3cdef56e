#!/usr/bin/env bash
# elf_check.sh <program or shared object>...: reads their dynamic sections. Nothing is looked for in the current directory,
# the program is position-independent and read-only once relocated, and it starts without CUDA's libraries.
set -euo pipefail
failed=
fail() { echo "$*" && failed=1; }

# Prints the values of a kind of entry, such as NEEDED.
entries() { readelf -dW "$2" | sed -n "s/.*(\($1\)).*\[\(.*\)\].*/\2/p"; }

check_path() {
  local path element
  while read -r path; do
    # Not read -a: it drops a last empty element.
    while IFS= read -r -d ':' element; do
      [[ $element == /* || $element == "\$ORIGIN" || $element == "\$ORIGIN/"* ]] ||
        fail "$1: looks for libraries in '$element' ($path); expected absolute folders or \$ORIGIN"
    done <<<"$path:"
  done < <(entries 'RUNPATH\|RPATH' "$1")
}

check_hardening() {
  local file=$1 symbols
  readelf -lW "$file" | grep -q GNU_RELRO || fail "$file: not read-only once relocated"
  readelf -lW "$file" | grep -q 'GNU_STACK.* RW ' || fail "$file: its stack can be run"
  symbols=$(readelf --dyn-syms -W "$file")
  grep -q __stack_chk_fail <<<"$symbols" || fail "$file: built without -fstack-protector-strong"
  [[ $file == *.so ]] && return
  readelf -hW "$file" | grep -q 'Type: *DYN' || fail "$file: not position-independent"
  readelf -dW "$file" | grep -q 'NOW' || fail "$file: its functions are bound when first called, not at start"
  grep -qE '__(memcpy|snprintf|read|vsnprintf)_chk' <<<"$symbols" || fail "$file: built without _FORTIFY_SOURCE"
  if grep -i 'libcu' <<<"$(entries NEEDED "$file")"; then fail "$file: does not start without CUDA's libraries"; fi
}

(($# > 0)) || fail "no files given"
for file; do
  [[ -e $file ]] || { fail "$file: no such file" && continue; }
  check_path "$file"
  check_hardening "$file"
done
[[ ! $failed ]]
