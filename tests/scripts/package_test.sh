#!/usr/bin/env bash
# package_test.sh <build folder> <elf_check.sh>: the Debian package, unpacked somewhere else, has all that it needs but what
# it depends on, and tells the story.
set -euo pipefail
build=$1
elf_check=$2
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
fail() { echo "package_test: $*" >&2 && exit 1; }

(cd "$work" && cpack --config "$build/CPackConfig.cmake" -G DEB) >"$work/log" 2>&1 || fail "cpack: $(tail -n 20 "$work/log")"
package=$(echo "$work"/*.deb)
dpkg-deb --info "$package"
dpkg-deb -x "$package" "$work/unpacked"
root=$work/unpacked/usr

for file in bin/sluice lib/sluice/policies/lia.so share/man/man1/sluice.1 \
  share/bash-completion/completions/sluice share/zsh/vendor-completions/_sluice share/doc/sluice/README.md; do
  [[ -e $root/$file || -e $root/$file.gz ]] || fail "it lacks $file"
done
for package_name in libboost-program-options libdnnl libpcre2-8-0 libhwloc; do
  dpkg-deb -f "$package" Depends | grep -q "$package_name" || fail "it does not depend on $package_name"
done
dpkg-deb -f "$package" Description | grep -q 'FxT' || fail "it does not say whether FxT is in it"
if dpkg-deb -f "$package" Description | grep -q 'Built with FxT' && [[ -e $root/lib/sluice/libsluice-cuda.so ]]; then
  fail "it has both FxT and CUDA kernels"
fi
if grep -l "$build" "$root"/bin/* "$root"/lib/sluice/*.so*; then fail "these name the build folder"; fi
"$elf_check" "$root/bin/sluice" "$root/lib/sluice/policies/lia.so"

library=$(env -i ldd "$root/bin/sluice" | awk '/libstarpu/ { print $3 }')
[[ $library == "$root"/* ]] || fail "StarPU is loaded from $library"
# shellcheck disable=SC2016
story=$(env -i HOME="$work" PATH=/usr/bin:/bin "$root/bin/sluice" generate --model tiny --prompt 'Once upon a time' \
  --max-tokens 20 --temperature 0 -q 2>"$work/err") || fail "no story: $(<"$work/err")"
[[ ! -s $work/err ]] || fail "it says: $(<"$work/err")"
[[ $story ]] || fail "an empty story"
echo "$story"
