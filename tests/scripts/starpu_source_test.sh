#!/usr/bin/env bash
# starpu_source_test.sh <source folder>: what scripts/starpu.sh says of a source that it cannot have, or that is not the one
# that was tried. apt is a program that knows no StarPU, and writes down how it is called.
set -euo pipefail
script=$1/scripts/starpu.sh
version=$(sed -n 's/^# version //p' "$1/scripts/starpu/source.sha256")
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
fail() { echo "starpu_source_test: $*" >&2 && exit 1; }

mkdir "$work/bin"
cat >"$work/bin/apt-get" <<'END'
#!/usr/bin/env bash
echo "$*" >>"$APT_TEST/calls"
if [[ " $* " == *" --print-uris "* ]]; then echo "'http://mirror.example/debian/dists/stable/InRelease' x" && exit; fi
echo "E: the mirror has no StarPU" && exit 100
END
for program in apt-cache pkg-config dpkg-source; do printf '#!/bin/sh\nexit 1\n' >"$work/bin/$program"; done
chmod +x "$work"/bin/*
export APT_TEST=$work PATH=$work/bin:$PATH SLUICE_CACHE=$work/cache
unset SLUICE_STARPU_SOURCE SLUICE_FXT

echo "== a source that cannot be had"
if "$script" simgrid 2>"$work/err"; then fail "went on without a source"; fi
for words in 'SLUICE_STARPU_SOURCE=' 'PKG_CONFIG_PATH=' "$version"; do
  grep -qF "$words" "$work/err" || fail "'$words' is not in: $(<"$work/err")"
done
if grep -w update "$work/calls" | grep -v -- --print-uris | grep -qv "Dir::State::lists=$work/cache/"; then
  fail "refreshed the machine's own lists: $(<"$work/calls")"
fi
[[ ! -e $work/cache/starpu-work && ! -e $work/cache/starpu-source ]] || fail "left $(ls "$work/cache")"

echo "== the version that was tried with other contents"
mkdir "$work/cache/starpu-source"
grep -v '^#' "$1/scripts/starpu/source.sha256" | while read -r _ file; do echo other >"$work/cache/starpu-source/$file"; done
printf 'Format: 3.0 (quilt)\nVersion: %s\n' "$version" >"$work/cache/starpu-source/starpu_${version}.dsc"
if "$script" simgrid 2>"$work/err"; then fail "took other contents"; fi
grep -q 'checksums differ' "$work/err" || fail "it says: $(<"$work/err")"

echo "== another version"
sed -i 's/^Version: .*/Version: 1.4.99-1/' "$work/cache/starpu-source"/*.dsc
if "$script" simgrid 2>"$work/err"; then fail "unpacked without dpkg-source?"; fi # which fails here
grep -q "this is StarPU 1.4.99-1; Sluice was tried with $version" "$work/err" || fail "it says: $(<"$work/err")"
