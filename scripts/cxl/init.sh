#!/bin/busybox sh
# shellcheck shell=dash
# The emulated machine's only process, from cxl-check.sh: runs Sluice on memory without processors. What happened goes to
# the second serial port as a tar file a step, to be judged outside: stdout, stderr, status, stats.json, and, from the time
# at which the program had most memory, its numa_maps, its threads' processors and the nodes' meminfo.
/bin/busybox --install -s /bin
mount -t devtmpfs devices /dev
mount -t proc processes /proc
mount -t sysfs system /sys
export LD_LIBRARY_PATH=/needed HOME=/tmp
readonly sluice=/sluice/bin/sluice nodes=/sys/devices/system/node
stty -F /dev/ttyS1 raw
exec 3>/dev/ttyS1

anonymous_pages() { sed -n 's/.* anon=\([0-9]*\).*/\1/p' "$1" | awk '{ n += $1 } END { print n + 0 }'; }

# watch <folder>: until the program there has ended.
watch() {
  most=0
  while [ ! -e "$1/status" ]; do
    cat "$nodes"/node*/meminfo >/tmp/meminfo # before the maps, which must find the program still whole
    if cat "/proc/$(cat "$1/pid" 2>/dev/null)/numa_maps" >/tmp/maps 2>/dev/null && [ -s /tmp/maps ]; then
      now=$(anonymous_pages /tmp/maps)
      if [ "$now" -ge "$most" ]; then
        most=$now
        mv /tmp/maps "$1/numa_maps"
        mv /tmp/meminfo "$1/meminfo"
        grep -h Cpus_allowed_list "/proc/$(cat "$1/pid")/task"/*/status >"$1/threads"
      fi
    fi
    sleep 0.1
  done
}

send() {
  tar -C /out -cf - "$1" >&3
  rm -r "/out/${1:?}"
}

# step <name> <sluice's arguments...>
step() {
  name=$1
  folder=/out/$name
  shift
  echo "$(cut -d ' ' -f 1 /proc/uptime) s: $name"
  mkdir -p "$folder"
  cat "$nodes"/node*/meminfo >"$folder/meminfo.before"
  (
    # shellcheck disable=SC2016  # the inner shell's
    sh -c 'echo $$ >"$0/pid" && exec "$@"' "$folder" "$sluice" "$@" >"$folder/stdout" 2>"$folder/stderr"
    echo $? >/tmp/status
    mv /tmp/status "$folder/status"
  ) &
  watch "$folder"
  wait
  send "$name"
}

tiny() {
  name=$1
  shift
  step "$name" generate --model tiny --prompt "Once upon a time" --no-echo --max-tokens 40 --temperature 0 --dtype f32 \
    --stats "/out/$name/stats.json" "$@"
}

# Buffers of 9 MiB, so in huge pages.
opt() {
  name=$1
  shift
  step "$name" generate --model /opt-125m --prompts /prompts --max-tokens 4 --temperature 0 --ignore-eos --dtype f32 \
    --stats "/out/$name/stats.json" "$@"
}

# What of node 2 a run may take, in KiB, as Sluice counts it (CXL memory is its last tier), where the weights fit.
left_kib() {
  "$sluice" generate --model /opt-125m --prompts /prompts --dtype f32 --cxl-nodes 2 --dry-run --json |
    sed -n 's/.*"available_bytes": \([0-9]*\).*/\1/p' | awk '{ kib = int($1 / 1024) } END { print kib }'
}

# take <KiB>: a file takes so much of node 2's memory; the kernel counts what was given up as free only some seconds later.
take() { dd if=/dev/zero bs=1024 count="$1" 2>/dev/null >>/node2/file; }

mkdir -p /out/machine /node2
cat /proc/version >/out/machine/version
cat /proc/zoneinfo >/out/machine/zoneinfo
for node in "$nodes"/node[0-9]*; do
  echo "${node##*/node} [$(cat "$node/cpulist")] $(sed -n 's/.*MemTotal: *\([0-9]*\) kB/\1/p' "$node/meminfo")"
done >/out/machine/nodes
cp /sys/kernel/mm/transparent_hugepage/enabled /out/machine/huge_pages
send machine

# Two sockets, and node 2 without processors.
two_sockets() {
  tiny ddr
  tiny node2 --cxl-nodes 2
  opt opt-ddr
  opt opt-node2 --cxl-nodes 2
  tiny static --cpu-plan static
  opt opt-static --cpu-plan static
  opt opt-left-out --cpu-plan /plan
  # Of node 1's 911 MiB some 200 are left; the plan's 75 % of the weights are 353.
  mount -t tmpfs -o mpol=bind:1 files /node2
  dd if=/dev/zero bs=1048576 count=700 2>/dev/null >/node2/file
  opt full-node --cpu-plan /plan
}

# One socket, and nodes 1 and 2 without processors.
one_socket() {
  tiny ddr
  tiny node1 --cxl-nodes 1
  tiny nodes12 --cxl-nodes 1,2
  tiny kv-node1 --cxl-nodes 1 --kv-tier cxl
  opt opt-ddr
  opt opt-nodes12 --cxl-nodes 1,2
  tiny processors --cxl-nodes 0
  tiny nowhere --cxl-nodes 3
  mount -t tmpfs -o mpol=bind:2 files /node2
  # The layers' weights are 331776 KiB. Margins are wide, as what is free wavers by some MiB.
  while sleep 5 && left=$(left_kib) && [ "$left" -gt 345000 ]; do take $((left - 340000)); done
  echo "node 2: $left KiB left"
  opt just-enough --cxl-nodes 2
  take 40000
  opt too-little --cxl-nodes 2
  opt half-enough --cxl-nodes 1,2
  take 180000
  opt uneven --cxl-nodes 1,2
  opt rest-on-disk --cxl-nodes 2 --ddr 340MiB --disk /disk
}

step info info --json
step probe info --memory --json
step plan generate --model tiny --prompt x --dtype f32 --cxl-nodes 2 --dry-run --json
"$(sed -n 's/.*sluice_machine=\([a-z_]*\).*/\1/p' /proc/cmdline)"
echo "$(cut -d ' ' -f 1 /proc/uptime) s: done"
mkdir /out/end
send end
poweroff -f
