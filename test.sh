#!/usr/bin/env bash
# Sets everything up like run.sh, then builds and runs all tests and checks.
set -euo pipefail

usage() {
  cat <<'END'
usage: ./test.sh [--only STEP]... [--turn] [ctest's options]

Steps, in this order; all but fuzz unless --only names some:
  release  all tests
  lint     clang-format, shellcheck, lint-text, lint-structure, and clang-tidy of files changed since they passed
  asan     the tests labelled "fast", under the address and undefined-behaviour sanitizers
  tsan     the same under the thread sanitizer
  fuzz     only the tests labelled "fuzz" (release runs them too)

--turn is what continuous integration runs: release and lint whole, but of asan and tsan only one, and of its test
programs a quarter. Which ones, the number of commits says, so that eight commits in a row run all of them. A clean clone
takes about an hour on two cores, and two hours without --turn.

Other arguments go to ctest, such as -R REGEX; then only release is run, unless --only says otherwise. Under sanitizers
REGEX is matched with the names of test programs, such as graphs_test.
END
}

readonly all_steps=(release lint asan tsan fuzz)
steps=()
turn=
ctest_arguments=()
while (($# > 0)); do
  case $1 in
    --only)
      [[ " ${all_steps[*]} " == *" ${2:-} "* ]] || { usage >&2 && exit 2; }
      steps+=("$2")
      shift
      ;;
    --only=*) set -- "" --only "${1#--only=}" "${@:2}" ;;
    --turn) turn=1 ;;
    -h | --help) usage && exit ;;
    *) ctest_arguments+=("$1") ;;
  esac
  shift
done
if ((${#steps[@]} == 0)); then
  steps=(release lint asan tsan)
  if ((${#ctest_arguments[@]} > 0)); then steps=(release); fi
fi

# shellcheck source=scripts/setup.sh
source "$(dirname "${BASH_SOURCE[0]}")/scripts/setup.sh"
jobs=$(nproc)
# What clang-tidy has passed, by content: kept beside StarPU's builds, so that a new checkout need not repeat it.
tidy_dir=${SLUICE_CACHE:-${XDG_CACHE_HOME:-$HOME/.cache}/sluice}/tidy
readonly jobs tidy_dir

# take_turn: of the steps that were chosen, and of the quarters into which sanitizers' test programs are cut
# (sluice_take_quarter()). Others are not even built.
take_turn() {
  local commits left_out=tsan quarter
  commits=$(git rev-list --count HEAD)
  if ((commits % 2 == 1)); then left_out=asan; fi
  quarter=$((commits / 2 % 4))
  mapfile -t steps < <(printf '%s\n' "${steps[@]}" | grep -vx "$left_out")
  quarter_target=("quarter_$quarter")
  of_quarter=(-L "^quarter_$quarter\$")
  say "commit $commits: the turn of quarter $quarter of 0 to 3, without $left_out"
}
quarter_target=()
of_quarter=()

# run_tests <step> <preset> [ctest's options]
run_tests() {
  local -a options=(--test-dir "build/$2" --output-on-failure -j "$jobs")
  # A selection of the caller's may leave some steps without tests.
  if ((${#ctest_arguments[@]} == 0)); then options+=(--no-tests=error); fi
  ctest "${options[@]}" "${@:3}" "${ctest_arguments[@]}" 2>&1 | tee "$logs/ctest-$1.log" && return
  echo "What the failed tests printed, again (the last 100 lines of each):"
  print_failures "build/$2/Testing/Temporary/LastTest.log"
  return 1
}

# print_failures <ctest's log of all outputs>
print_failures() {
  awk '
    /^ *[0-9]+\/[0-9]+ Testing: / { name = substr($0, index($0, ": ") + 2); lines = 0; next }
    /^Output:$/ { getline; inside = 1; next }
    inside {
      if (sub(/<end of output>$/, "")) inside = 0
      if (inside || $0 != "") output[lines++ % 100] = $0
      next
    }
    /^Test Failed\.$/ {
      print "--- " name
      for (i = lines > 100 ? lines - 100 : 0; i < lines; i++) print output[i % 100]
    }' "$1"
}

run_release() {
  build release
  run_tests release release
}

run_fuzz() {
  build release
  run_tests fuzz release -L '^fuzz$'
}

run_asan() {
  build asan "${quarter_target[@]}"
  run_tests asan asan -L '^fast$' "${of_quarter[@]}"
}

run_tsan() {
  build tsan "${quarter_target[@]}"
  run_tests tsan tsan -L '^fast$' "${of_quarter[@]}"
}

# Our files that match, also those not added to git yet.
our_files() {
  git ls-files --cached --others --exclude-standard -- "$@" | while read -r file; do
    if [[ -f $file ]]; then echo "$file"; fi
  done
}

run_lint() {
  local -a files
  mapfile -t files < <(our_files '*.cc' '*.h' '*.cu' '*.cuh')
  say "clang-format: ${#files[@]} files"
  clang-format --dry-run -Werror "${files[@]}" </dev/null

  mapfile -t files < <(our_files '*.sh' .ci/run)
  say "shellcheck: ${#files[@]} files"
  shellcheck "${files[@]}"

  say "lint-text: our pages"
  scripts/lint-text

  say "lint-structure: includes go one way, and StarPU is called in one place"
  scripts/lint-structure

  build release
  run_clang_tidy
}

# Prints "<source> <key>" for each source of the product that the release build compiles. The key covers the file, the
# headers of ours that it includes (as ninja knows them), how it is compiled, and clang-tidy's configuration.
sources_and_keys() {
  local source headers common
  common=$(clang-tidy --version && cat .clang-tidy)
  ninja -C build/release -t deps |
    awk -v root="$PWD/" '
      /^[^ ].*: #deps/ { source = ""; headers = ""; next }
      { sub(/^ +\.\.\/\.\.\//, " " root) }  # ccache makes paths relative to the build folder
      /^ / && index($1, root) == 1 { if (source == "") source = $1; else headers = headers " " $1; next }
      /^$/ && source ~ /\.cc$/ && !seen[source]++ { print source headers }' |
    while read -r source headers; do
      [[ -f $source && $source != "$PWD"/build/* && $source != "$PWD"/tests/* ]] || continue
      # shellcheck disable=SC2086  # a list of files
      echo "$source $({
        echo "$common"
        grep -F -- "-c $source\"" build/release/compile_commands.json | sed "s#$PWD#.#g" || true
        cat "$source" $headers
      } | sha256sum | cut -c1-32)"
    done
}

# tidy_one <source> <key>
tidy_one() {
  local output
  if output=$(clang-tidy -p build/release --quiet --extra-arg=-Wno-unknown-warning-option \
    --extra-arg=-Wno-unused-command-line-argument "$1" 2>&1); then
    touch "$tidy_dir/$2"
  else
    printf '%s\n' "$output" && return 1
  fi
}

# Up to so many: CI has an hour and a half for everything, and starts with an empty cache.
readonly most_recent_files=30

# The sources and headers of ours, but no tests, that are not committed, and those that commits of the last commit's day
# have touched, the newest first.
recent_files() {
  {
    git diff --name-only HEAD
    git ls-files --others --exclude-standard
    git log --since="@$(($(git log -1 --format=%ct) - 24 * 60 * 60))" --name-only --format=
  } | awk -v most="$most_recent_files" '/\.(cc|h)$/ && !/^tests\// && !seen[$0]++ && ++count <= most'
}

# is_recent <source>: it, or the header of its name, is among $recent.
is_recent() {
  local file=${1#"$PWD"/}
  grep -qxF -e "$file" -e "${file%.cc}.h" <<<"$recent"
}

run_clang_tidy() {
  local source key recent total=0 left_out=0
  recent=$(recent_files)
  local -a to_check=()
  mkdir -p "$tidy_dir"
  while read -r source key; do
    total=$((total + 1))
    if [[ -e $tidy_dir/$key ]]; then continue; fi
    if [[ ${SLUICE_TIDY:-} == all ]] || is_recent "$source"; then
      to_check+=("$source" "$key")
    else
      left_out=$((left_out + 1))
    fi
  done < <(sources_and_keys)
  ((total > 0)) || die "clang-tidy: the build compiled none of our sources?"
  say "clang-tidy: $((${#to_check[@]} / 2)) of $total files; $left_out that were not touched lately are left to SLUICE_TIDY=all"
  ((${#to_check[@]} > 0)) || return 0
  export tidy_dir
  export -f tidy_one
  # shellcheck disable=SC2016  # for the inner shell
  printf '%s\0' "${to_check[@]}" | xargs -0 -n 2 -P "$jobs" bash -c 'tidy_one "$@"' tidy_one
}

if [[ $turn ]]; then take_turn; fi
set_up_packages run simulate test
set_up_starpu
set_up_cuda test
set_up_tests
if [[ " ${steps[*]} " == *" release "* || " ${steps[*]} " == *" lint "* ]]; then set_up_simgrid; fi

times=()
step_name=
report_failure() {
  local status=$?
  if ((status != 0)) && [[ $step_name ]]; then say "=== $step_name failed"; fi
}
trap report_failure EXIT
for step_name in "${steps[@]}"; do
  echo
  say "=== $step_name"
  started=$SECONDS
  "run_$step_name"
  took="$step_name $((SECONDS - started)) s"
  times+=("$took")
  say "=== $took"
done

# What matters most comes last: how ctest summed up all the tests.
if ((${#steps[@]} > 1)); then
  echo
  say "all steps passed: $(printf '%s, ' "${times[@]}" | sed 's/, $//')"
  if [[ " ${steps[*]} " == *" release "* ]]; then
    sed -n '/tests passed, /,$p' "$logs/ctest-release.log"
  fi
fi
