#!/usr/bin/env bash
# apt_test.sh <source folder>: what scripts/setup.sh does with apt, by an apt-get that writes down how it is called. The
# machine's lists are never the ones that are refreshed, and Ctrl-C does not cut dpkg off.
set -euo pipefail
source_dir=$1
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
fail() { echo "apt_test: $*" >&2 && cat "$work/calls" >&2 && exit 1; }

mkdir -p "$work/bin" "$work/tree/scripts"
cp "$source_dir"/scripts/{setup.sh,packages.txt} "$work/tree/scripts/"
cat >"$work/bin/apt-get" <<'END'
#!/usr/bin/env bash
# Has a package once newer lists were fetched; unpacking takes a second.
echo "$*" >>"$APT_TEST/calls"
case " $* " in
  *" update "*) touch "$APT_TEST/updated" && exit ;;
  *" --download-only "*) [[ -e $APT_TEST/updated || -e $APT_TEST/lists_do ]] && exit || exit 100 ;;
esac
sleep 1 && echo unpacked >>"$APT_TEST/calls"
END
printf '#!/bin/sh\nexec "$@"\n' >"$work/bin/sudo"
printf '#!/bin/sh\nexit 1\n' >"$work/bin/dpkg-query"
# shellcheck disable=SC2016  # for the program
printf '#!/bin/sh\nif [ -e "$APT_TEST/broken" ]; then echo broken; fi\n' >"$work/bin/dpkg"
chmod +x "$work"/bin/*
export APT_TEST=$work PATH=$work/bin:$PATH TMPDIR=$work/tmp

# install: set_up_packages in a shell of its own.
install() {
  rm -rf "$work"/{calls,updated,tmp}
  mkdir "$work/tmp"
  : >"$work/calls"
  bash -c 'source "$APT_TEST/tree/scripts/setup.sh" && set_up_packages run' >"$work/out" 2>&1
}

echo "== the lists do"
touch "$work/lists_do"
install || fail "failed: $(<"$work/out")"
if grep -q update "$work/calls"; then fail "refreshed lists that did"; fi
rm "$work/lists_do"

echo "== they do not"
install || fail "failed: $(<"$work/out")"
grep -q update "$work/calls" || fail "did not refresh"
if grep update "$work/calls" | grep -qv "Dir::State::lists=$work/tmp"; then fail "refreshed the machine's own lists"; fi
tail -n 2 "$work/calls" | head -n 1 | grep -q "Dir::State::lists=$work/tmp" || fail "installed from other lists"
[[ -z $(ls -A "$work/tmp") ]] || fail "left $(ls "$work/tmp")"

echo "== Ctrl-C while packages are unpacked"
set -m # a process group of its own, as a terminal would have it
install &
process=$!
set +m
until grep -q 'install' "$work/calls" && tail -n 1 "$work/calls" | grep -qv -- --download-only; do sleep 0.05; done
sleep 0.2
kill -INT -- "-$process"
status=0
wait "$process" || status=$?
((status == 130)) || fail "ended with $status, not 130"
[[ $(tail -n 1 "$work/calls") == unpacked ]] || fail "dpkg was cut off"
[[ -z $(ls -A "$work/tmp") ]] || fail "left $(ls "$work/tmp")"

echo "== a dpkg that was cut off"
touch "$work/broken"
if install; then fail "went on"; fi
grep -q 'dpkg --configure -a' "$work/out" || fail "unclear: $(<"$work/out")"
[[ ! -s $work/calls ]] || fail "called apt-get"
