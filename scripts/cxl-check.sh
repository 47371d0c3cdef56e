#!/usr/bin/env bash
# Shows that --cxl-nodes puts weights into memory of NUMA nodes without processors, which is how Linux shows CXL memory:
# in an emulated machine that has two of them. And that DDR is that of all nodes with processors, in turn, or by the groups
# of a CPU plan: in one that has two of those, with two processors each. Takes some minutes; for any x86-64 machine with Debian, 4 GiB free.
#
#   scripts/cxl-check.sh [FOLDER]     default: build/cxl-check
#
# Installs QEMU and packs Debian's kernel, BusyBox, and a build without CUDA into the machine's memory; scripts/cxl/init.sh
# is what runs there. Prints a line a check; FOLDER gets summary.txt, and of each machine its console and a folder a step.
# Times under emulation say nothing.
set -euo pipefail

case ${1:-} in -h | --help) sed -n '2,10s/^# \{0,1\}//p' "$0" && exit ;; esac
out=$(realpath -m "${1:-$(dirname "$0")/../build/cxl-check}")
# shellcheck source=scripts/setup.sh
source "$(dirname "${BASH_SOURCE[0]}")/setup.sh"
mkdir -p "$out"

readonly packages=(busybox-static cpio jq qemu-system-x86)
readonly boot_limit_s=900 # emulation may be slow; what hangs is to end
readonly tolerance_kib=1024 # the kernel counts on each processor apart
failed=0
results= # of the machine that is judged

# ---------------------------------------------------------------- the machine

set_up_emulator() {
  local -a missing=()
  local package
  for package in "${packages[@]}"; do
    dpkg-query -W -f '${db:Status-Status}\n' "$package" 2>/dev/null | grep -qx installed || missing+=("$package")
  done
  ((${#missing[@]} > 0)) || return 0
  [[ ${SLUICE_PACKAGES:-} != skip ]] || die "please have these packages installed: ${missing[*]}"
  step cxl-packages "installing packages: ${missing[*]}" apt_install "${missing[@]}"
}

# Unpacks Debian's newest kernel, which need not be this machine's; sets kernel to its file.
fetch_kernel() {
  local package
  package=$(apt-cache depends linux-image-cloud-amd64 | sed -n 's/.*Depends: \(linux-image-[^ ]*\)/\1/p' | head -n 1)
  [[ $package ]] || die "apt knows no linux-image-cloud-amd64; apt-get update may help"
  if [[ ! -e $out/kernel/$package ]]; then
    rm -rf "$out/kernel" && mkdir -p "$out/kernel"
    (cd "$out/kernel" && apt-get -qq -o APT::Sandbox::User=root download "$package" && dpkg-deb -x ./*.deb .) >&2
    rm "$out"/kernel/*.deb
    touch "$out/kernel/$package"
  fi
  kernel=$(echo "$out"/kernel/boot/vmlinuz-*)
}

# Everything that the machine has, as one file for its memory.
pack() {
  local root=$out/root library
  rm -rf "$root" "$out/installed" && mkdir -p "$root"/{bin,dev,lib64,needed,out,proc,sluice,sys,tmp}
  # StarPU asks for its folder of models.
  mkdir -p "$root$starpu_prefix/share/starpu/perfmodels/sampling"
  install -m 755 scripts/cxl/init.sh "$root/init"
  cp /bin/busybox "$root/bin/"
  cmake --install build/no-cuda --prefix "$out/installed" --strip >"$logs/cxl-install.log"
  cp -r "$out"/installed/{bin,share} "$root/sluice/"
  mkdir "$root/sluice/lib" && cp -r "$out/installed/lib/sluice" "$root/sluice/lib/"
  while read -r library; do
    strip -o "$root/needed/${library##*/}" "$(realpath "$library")"
  done < <(ldd "$out"/installed/bin/sluice "$out"/installed/lib/sluice/policies/*.so |
    awk '$2 == "=>" && $3 ~ /^\// { print $3 }' | sort -u)
  cp /lib64/ld-linux-x86-64.so.2 "$root/lib64/"
  [[ -e $out/opt-125m ]] || build/no-cuda/engine/sluice make-model --shape opt-125m --out "$out/opt-125m"
  cp -r "$out/opt-125m" "$root/"
  echo '{"prompt_token_ids": [2, 100, 200, 300]}' >"$root/prompts"
  echo '{"prefill": {"groups": [{"cores": [0, 1, 2, 3], "share": 1}]},
    "decode": {"groups": [{"cores": [0], "numa_node": 0, "share": 0.25}, {"cores": [2], "numa_node": 1, "share": 0.75}],
    "left_out": [1, 3]}}' >"$root/plan"
  (cd "$root" && find . | cpio -o -H newc --quiet) >"$out/memory.cpio"
  rm -rf "$root"
}

# boot <machine> <processors of node 0> [of node 1]: node 2 has none; nodes 1 and 2 are further from each other than from 0.
boot() {
  local machine=$1 processors=2
  if [[ ${3:-} ]]; then processors=4; fi
  timeout --kill-after=5 "$boot_limit_s" qemu-system-x86_64 -machine q35 -accel tcg,thread=multi -cpu max -smp "$processors" -m 3G \
    -object memory-backend-ram,id=ddr,size=1536M -numa "node,nodeid=0,memdev=ddr,cpus=$2" \
    -object memory-backend-ram,id=more,size=1024M -numa "node,nodeid=1,memdev=more${3:+,cpus=$3}" \
    -object memory-backend-ram,id=cxl,size=512M -numa node,nodeid=2,memdev=cxl \
    -numa dist,src=0,dst=1,val=20 -numa dist,src=0,dst=2,val=20 -numa dist,src=1,dst=2,val=30 \
    -nodefaults -nographic -no-reboot -serial "file:$out/$machine/console.txt" -serial "file:$out/$machine.tar" \
    -kernel "$kernel" -initrd "$out/memory.cpio" -append "console=ttyS0 quiet panic=-1 sluice_machine=$machine"
}

# run_machine <machine> <processors of nodes...>: sets results.
run_machine() {
  results=$out/$1
  rm -rf "$results" "$results.tar" && mkdir "$results"
  say "running the machine with ${1//_/ }; its console: $results/console.txt"
  boot "$@" </dev/null || note "FAILED  the machine did not end by itself within $boot_limit_s s; see console.txt"
  tar -C "$results" -xif "$results.tar" || true
  check "the machine with ${1//_/ } ran all steps" test -e "$results/end"
}

# ---------------------------------------------------------------- what it shows

note() { echo "$*" | tee -a "$out/summary.txt"; }

# check <what> <command...>: what the command prints is the figure, or what is wrong.
check() {
  local what=$1 said
  shift
  if said=$("$@" 2>&1); then
    note "ok      $what${said:+: $said}"
  else
    failed=$((failed + 1))
    note "FAILED  $what: ${said:-${*@Q}}"
  fi
}

three_nodes() { # <processors of each>
  awk -v wanted="$*" '{ printf "%snode %s with processors %s and %d MiB", (NR > 1 ? ", " : ""), $1, $2, $3 / 1024
      found = found (NR > 1 ? " " : "") $2 }
    END { exit (found != wanted) }' "$results/machine/nodes"
}

info_tells_tiers() { # <as text>
  jq -er --arg wanted "$1" '[.memory_nodes[] | "node \(.numa_node) \(.tier) with \(.cpus) cores"] | join(", ") | .,
    if . == $wanted then empty else error end' "$results/info/stdout"
}

# Every page of a block that was asked of a node is there, and each block can be copied to both others.
probe_finds_pages() {
  ended_well probe || return
  jq -er '([.memory_nodes[] | "\(.probe.pages_found) of \(.probe.pages_asked) pages on node \(.numa_node)"] | join(", ")) as $said |
    if (.memory_nodes | length) == 3 and all(.memory_nodes[].probe; .pages_asked > 1000 and .pages_found == .pages_asked and
      .read_bytes_per_s > 0 and (.copies | length) == 2 and .problems == []) then $said else $said, error end' "$results/probe/stdout"
}

# DDR is the nodes with processors, and not more than those have.
plan_counts_ddr_apart() { # <as text>
  local total_kib
  ended_well plan || return
  total_kib=$(awk '$2 != "[]" { all += $3 } END { print all }' "$results/machine/nodes")
  jq -er --arg where "$1" --argjson total "$((total_kib * 1024))" '.tiers[0] |
    "\(.available_bytes / 1048576 | floor) MiB on \(.where)",
    if .where == $where and .available_bytes > 0 and .available_bytes < $total then empty else error end' "$results/plan/stdout"
}

ended_well() {
  [[ $(<"$results/$1/status") == 0 ]] || { tail -n 1 "$results/$1/stderr" && return 1; }
}

same_tokens() { # <step> <step>
  ended_well "$1" && ended_well "$2" && [[ -s $results/$1/stdout ]] && cmp "$results/$1/stdout" "$results/$2/stdout"
}

# In the end summary and in stats.json: every page of the weights lies on the nodes, on each some, and of many pages equal
# shares (a huge page lies on one node whole).
sluice_says() { # <step> <nodes, as JSON>
  ended_well "$1" || return
  local line
  line=$(grep '^cxl node' "$results/$1/stderr") || { echo "no summary" && return 1; }
  echo "$line"
  grep -qE ' ([1-9][0-9]*) of \1 pages lie there$' <<<"$line" || return
  jq -e --argjson nodes "$2" '.cxl | (.pages | add) as $all |
    .nodes == $nodes and (.pages | keys) == ($nodes | map(tostring)) and $all * 4096 >= .weight_bytes and
    (.weight_bytes < 100000000 or all(.pages[]; . * ($nodes | length) > 0.9 * $all))' "$results/$1/stats.json" >/dev/null
}

# pages <step> <policy>: "there NODE PAGES" of the memory with that policy, "else NODE PAGES" of all other.
pages() {
  awk -v policy="$2" '{
    for (i = 3; i <= NF; ++i)
      if ($i ~ /^N[0-9]+=/) { split(substr($i, 2), at, "="); pages[($2 == policy ? "there " : "else ") at[1]] += at[2] }
  } END { for (place in pages) print place, pages[place] }' "$results/$1/numa_maps" | sort
}

# The kernel lists the same pages under the policy that was asked for, and all others (KV, values, tables) on node 0.
kernel_says() { # <step> <policy>
  local found wanted
  found=$(pages "$1" "$2")
  paste -sd ';' <<<"$found" | sed 's/;/, /g'
  wanted=$(jq -r '.cxl.pages // {} | to_entries[] | "there \(.key) \(.value)"' "$results/$1/stats.json" | sort)
  [[ $(grep there <<<"$found") == "$wanted" ]] && grep -q '^else 0 ' <<<"$found" && ! grep -q '^else [12] ' <<<"$found"
}

# More lies there than weights, and nothing else on nodes 1 and 2.
kv_is_there() { # <step> <policy> <node>
  local found there weights
  found=$(pages "$1" "$2")
  there=$(sed -n "s/^there $3 //p" <<<"$found")
  weights=$(jq -r '.cxl.pages | add' "$results/$1/stats.json")
  echo "$there pages on node $3, $weights of them weights"
  ((there > weights)) && ! grep -qE '^else [12] ' <<<"$found"
}

# Each of its iterations read the disk's layers.
streams_from_disk() { # <step>
  jq -er '.disk | "\(.weight_bytes) bytes live there, \(.read_bytes) were read",
    if .weight_bytes > 0 and .read_bytes >= 4 * .weight_bytes then empty else error end' "$results/$1/stats.json"
}

# anonymous_kib <step> <file> <node>
anonymous_kib() { awk -v node="$3" '$2 == node && $3 == "AnonPages:" { print $4 }' "$results/$1/$2"; }

# Nodes 1 and 2 have grown by as much as the pages on them.
nodes_grew() { # <step>
  local node before during pages off said=
  for node in 1 2; do
    before=$(anonymous_kib "$1" meminfo.before "$node")
    during=$(anonymous_kib "$1" meminfo "$node")
    pages=$(jq -r --arg node "$node" '.cxl.pages[$node] // 0' "$results/$1/stats.json")
    said+="${said:+, }node $node by $((during - before)) KiB for $((pages * 4)) KiB of weights"
    off=$((during - before - pages * 4))
    ((${off#-} <= tolerance_kib)) || { echo "$said" && return 1; }
  done
  echo "$said"
}

# refused <step> <text>: exit status 1, and one line with that text.
refused() {
  cat "$results/$1/stderr"
  [[ $(<"$results/$1/status") == 1 && $(wc -l <"$results/$1/stderr") == 1 && ! -s $results/$1/stdout ]] &&
    grep -q "^sluice: .*$2" "$results/$1/stderr"
}

check_placement() { # <step> <nodes, as JSON> <policy> <the same in DDR>
  check "$1: the same tokens as in DDR" same_tokens "$1" "$4"
  check "$1: Sluice's account" sluice_says "$1" "$2"
  check "$1: the program's numa_maps" kernel_says "$1" "$3"
  check "$1: the nodes' meminfo" nodes_grew "$1"
}

# All of the layers' weights lie on the nodes with processors, each of which has as many pages of what is spread.
spread_in_ddr() { # <step>
  local found
  ended_well "$1" || return
  grep '^ddr node' "$results/$1/stderr" || { echo "no summary" && return 1; }
  found=$(pages "$1" interleave:0-1)
  paste -sd ';' <<<"$found" | sed 's/;/, /g'
  ! grep -q '^there 2' <<<"$found" || return
  jq -e --argjson pages "$(awk '$1 == "there" { print $3 }' <<<"$found" | jq -s .)" '.placement[] | select(.tier == "ddr") |
    .numa_nodes == [0, 1] and .pages_found == .pages_asked and .pages_asked * 4096 >= .weight_bytes and
    ($pages | length) == 2 and ($pages | add) >= .pages_asked and ($pages | min) > 0.9 * ($pages | max)' \
    "$results/$1/stats.json" >/dev/null
}

# At least 99 % of each group's pages lie on its node, by Sluice's account and by the kernel's, which has one copy in all.
bound_by_group() { # <step> <shares, as JSON>
  ended_well "$1" || return
  grep '^ddr node' "$results/$1/stderr" || { echo "no summary" && return 1; }
  jq -e --argjson shares "$2" '.placement[] | select(.tier == "ddr") | .weight_bytes as $bytes |
    [.groups[].numa_node] == [0, 1] and [.groups[].share] == $shares and
    all(.groups[]; .pages_asked > 0 and .pages_found >= 0.99 * .pages_asked) and
    ([.groups[].pages_asked] | add) * 4096 >= $bytes' "$results/$1/stats.json" >/dev/null || return
  local node on_node elsewhere asked
  for node in 0 1; do
    on_node=$(pages "$1" "bind:$node" | sed -n "s/^there $node //p")
    elsewhere=$(pages "$1" "bind:$node" | awk -v node="$node" '$1 == "there" && $2 != node { n += $3 } END { print n + 0 }')
    asked=$(jq ".placement[] | select(.tier == \"ddr\") | .groups[$node].pages_asked" "$results/$1/stats.json")
    echo "the kernel: $on_node pages bound to node $node lie there, $elsewhere elsewhere"
    ((${on_node:-0} == asked && elsewhere * 99 <= on_node)) || return
  done
}

# Each part's heads of the KV cache lie on its node.
kv_by_heads() { # <step> <heads of each part, as JSON>
  jq -er --argjson heads "$2" '.kv_groups | (map("\(.pages_found) of \(.pages_asked) pages of \(.heads) heads on node \(.numa_node)") |
    join(", ")), if map(.numa_node) == [0, 1] and map(.heads) == $heads and
    all(.[]; .pages_asked > 0 and .pages_found >= 0.99 * .pages_asked) then empty else error end' "$results/$1/stats.json"
}

# There is a thread that may run on one processor alone, for each of these.
has_threads_on() { # <step> <processors...>
  local step=$1 processor
  shift
  for processor; do
    grep -qP "^Cpus_allowed_list:\t$processor\$" "$results/$step/threads" || { echo "none on $processor" && return 1; }
  done
}

check_two_sockets() {
  check "nodes" three_nodes "[0-1]" "[2-3]" "[]"
  check "sluice info" info_tells_tiers "node 0 ddr with 2 cores, node 1 ddr with 2 cores, node 2 cxl with 0 cores"
  check "sluice info --memory" probe_finds_pages
  check "DDR in a dry run" plan_counts_ddr_apart "node 0,1"
  local step
  for step in ddr opt-ddr; do check "$step: in turn over both nodes" spread_in_ddr "$step"; done
  check "ddr: the same tokens as with one socket" cmp "$results/ddr/stdout" "$out/one_socket/ddr/stdout"
  check "opt-ddr: the same tokens as with one socket" cmp "$results/opt-ddr/stdout" "$out/one_socket/opt-ddr/stdout"
  for step in "node2 ddr" "opt-node2 opt-ddr"; do
    # shellcheck disable=SC2086  # two words
    check "${step% *}: the same tokens as in DDR" same_tokens $step
    check "${step% *}: Sluice's account" sluice_says "${step% *}" '[2]'
  done
  check "static: the same tokens" same_tokens static ddr
  check "static: a group's pages lie on its node" bound_by_group static '[0.5,0.5]'
  check "opt-static: the same tokens" same_tokens opt-static opt-ddr
  check "opt-static: a group's pages lie on its node" bound_by_group opt-static '[0.5,0.5]'
  check "opt-static: a thread on each processor" has_threads_on opt-static 0 1 2 3
  check "opt-static: KV lies by heads" kv_by_heads opt-static '[6,6]'
  check "opt-left-out: KV lies by heads" kv_by_heads opt-left-out '[3,9]'
  check "opt-left-out: the same tokens" same_tokens opt-left-out opt-ddr
  check "opt-left-out: a group's pages lie on its node" bound_by_group opt-left-out '[0.25,0.75]'
  check "opt-left-out: a thread on each processor that prefill has" has_threads_on opt-left-out 0 1 2 3
  check "a node with too little memory for its group's part" refused full-node 'the CPU plan puts .* on NUMA node 1'
}

check_one_socket() {
  check "nodes" three_nodes "[0-1]" "[]" "[]"
  check "sluice info" info_tells_tiers "node 0 ddr with 2 cores, node 1 cxl with 0 cores, node 2 cxl with 0 cores"
  check "sluice info --memory" probe_finds_pages
  check "DDR in a dry run" plan_counts_ddr_apart "node 0"
  check "ddr: all on node 0" kernel_says ddr none
  check_placement node1 '[1]' bind:1 ddr
  check_placement nodes12 '[1,2]' interleave:1-2 ddr
  check "kv-node1: the same tokens as in DDR" same_tokens kv-node1 ddr
  check "kv-node1: the program's numa_maps" kv_is_there kv-node1 bind:1 1
  check "opt-ddr: all on node 0" kernel_says opt-ddr none
  check_placement opt-nodes12 '[1,2]' interleave:1-2 opt-ddr
  check "a node with processors" refused processors 'node 0 has processors'
  check "a node that is none" refused nowhere 'no NUMA node 3'
  check_placement just-enough '[2]' bind:2 opt-ddr
  check "a node with too little memory" refused too-little 'not enough CXL memory'
  check_placement half-enough '[1,2]' interleave:1-2 opt-ddr
  check "two nodes, of which one has too little for its share" refused uneven 'not enough CXL memory'
  check_placement rest-on-disk '[2]' bind:2 opt-ddr
  check "rest-on-disk: the disk" streams_from_disk rest-on-disk
}

# ----------------------------------------------------------------

type -P apt-get dpkg-query >/dev/null || die "this takes Debian's packages, and there is no apt here"
set_up_packages run
set_up_emulator
starpu_prefix=$(scripts/starpu.sh cpu)
build no-cuda
fetch_kernel
say "packing the machine"
pack
rm -f "$out/summary.txt"
run_machine one_socket 0-1
note "$(cut -d ' ' -f 1-3 "$results/machine/version"), $(qemu-system-x86_64 --version | head -n 1)"
check_one_socket
run_machine two_sockets 0-1 2-3
check_two_sockets
note "$failed checks failed; everything is in $out"
((failed == 0))
