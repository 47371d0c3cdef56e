#!/usr/bin/env python3
"""NEO's evaluation (sections 5.2 to 5.5), replayed on simulated machines.

  scripts/papers/neo.py --osc FILE --azure FILE [--simulate SECTIONS] [--sluice PROGRAM] [--requests N] [--jobs N]

Prints docs/records/neo.md.

FILE are NEO's lengths for the T4 and Azure's trace of code of 2023, as `sluice replay --trace` reads them. What
--simulate names, of 5.2,5.4,5.5,azure, is simulated besides, which takes about ten minutes each on two cores and needs
the simulator: ./run.sh simulate builds it. Needs Python 3 alone.
"""
import argparse
import json
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent.parent
# KV in bytes a token: layers x 2 x KV heads x head size x 2 bytes.
KV_BYTES = {"llama-2-7b": 32 * 2 * 4096 * 2, "llama-3.1-8b": 32 * 2 * 1024 * 2}
LAUNCH = ["--policy-option", "launch_us=800"]

HEAD = """# NEO's figures, replayed on simulated machines

Written by `scripts/papers/neo.py`. The question of [NEO](../references.md#neo)'s evaluation is how many more requests a
GPU serves if the CPU attends for some of them. Here the engine's own scheduler answers it, over 2,000 requests on
described machines: *estimated* by the cost model (`--estimate`) and *simulated* with every task and transfer
([replay](../reference/replay.md#on-a-described-machine)). `neo` is as [Policies](../reference/policies.md#neo) describes
it, and `gpu-only` stands for vLLM and for the paper's GPU-only NEO. No parameter was fitted to these figures.

Room for KV is the paper's: 864 tokens on the T4 and 26,400 on the A10G, 20 GB of the T4's host, and 15, 30, 60 and 120
GB on the four A10G machines. An iteration has at most 832 rows on the T4 and 20,480 on the A10G. The T4's profile leaves room for
1,600 tokens of KV beside the weights, less than the longest of its requests, so that only the paper's room is shown.

`launch_us=800` has `neo` count with the time that NEO's own runtime takes to launch a layer. Neither the estimate nor
the simulation takes that time, so it shows only what counting with it costs.
"""


def tokens(model, gigabytes):
    return int(gigabytes * 1e9 / KV_BYTES[model])


class Replays:
    """Runs of `sluice replay`, as many at once as there are jobs."""

    def __init__(self, sluice, requests, jobs):
        self.sluice = sluice
        self.requests = requests
        self.pool = ThreadPoolExecutor(jobs)

    def start(self, model, machine, policy, workload, how, *, estimate=False, extra=()):
        """A list of points, once it is asked for its result."""
        command = [self.sluice, "replay", "--model", model, "--machine", machine, "--policy", policy, "--requests",
                   str(self.requests), "--prefix-cache", "off", "-q", "--json", *workload, "--arrivals", how, *extra]
        if estimate:
            command.append("--estimate")
        return self.pool.submit(self.run, command)

    @staticmethod
    def run(command):
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode != 0:
            sys.exit(f"neo.py: {' '.join(command)}: {done.stderr.strip()}")
        return json.loads(done.stdout)


def crossing(points, latency):
    """The rate at which the mean per-token latency is so many seconds, linear between two points; None: not between."""
    for low, high in zip(points, points[1:]):
        a, b = (p["per_token_latency_s"]["mean"] for p in (low, high))
        if a <= latency < b:
            return low["rate_per_s"] + (latency - a) / (b - a) * (high["rate_per_s"] - low["rate_per_s"])
    return None


def rate_at(replays, simulate, latency, model, machine, policy, workload, extra, first, last):
    """(estimated, simulated): the rate at that latency. The simulation runs beside the estimate's crossing."""
    rates = [first]
    while rates[-1] < last:
        rates.append(round(rates[-1] * 1.05, 4))
    text = ",".join(map(str, rates))
    points = replays.start(model, machine, policy, workload, f"poisson:{text}", estimate=True, extra=extra).result()
    estimated = crossing(points, latency)
    if estimated is None or not simulate:
        return estimated, None
    beside = [round(estimated * factor, 4) for factor in (0.9, 0.95, 1, 1.05)]
    text = ",".join(map(str, beside))
    simulated = replays.start(model, machine, policy, workload, f"poisson:{text}", extra=extra).result()
    return estimated, crossing(simulated, latency)


def number(value, digits=2):
    return "-" if value is None else f"{value:.{digits}f}"


def gain(value, base):
    return "-" if value is None or base is None else f"{100 * (value / base - 1):+.0f} %"


def latency_table(replays, simulate, title, latency, paper, model, machine, workload, variants, first, last):
    """`variants`: (policy, words, options); the first one is the base."""
    with ThreadPoolExecutor(len(variants)) as together:
        found = list(together.map(
            lambda v: rate_at(replays, simulate, latency, model, machine, v[0], workload, v[2], first, last), variants))
    print(f"| {title} | estimated, requests/s | simulated | gain, estimated | gain, simulated | paper |")
    print("|---|---:|---:|---:|---:|---:|")
    for (_, words, _), (estimated, simulated) in zip(variants, found):
        is_base = (estimated, simulated) == found[0]
        its_paper = paper if words == "`neo`" else ""
        gains = ("", "", "") if is_base else (gain(estimated, found[0][0]), gain(simulated, found[0][1]), its_paper)
        print(f"| {words} | {number(estimated)} | {number(simulated)} | {gains[0]} | {gains[1]} | {gains[2]} |")
    print(flush=True)


def gain_table(replays, simulate, model, inputs, outputs, machines, columns):
    """`machines`: (name, options). `columns`: (words, policy, options, estimate). All at once, over gpu-only."""
    lengths = ",".join(f"uniform:{inputs},{out}" for out in outputs)
    columns = [column for column in columns if column[3] or simulate]
    started = []
    for machine, room in machines:
        for estimate in sorted({column[3] for column in columns}):
            started.append(((machine, "gpu-only", estimate), replays.start(
                model, machine, "gpu-only", ["--lengths", lengths], "all", estimate=estimate, extra=room)))
        for words, policy, extra, estimate in columns:
            started.append(((machine, words, estimate), replays.start(
                model, machine, policy, ["--lengths", lengths], "all", estimate=estimate, extra=[*room, *extra])))
    rates = {key: [p["requests_per_s"] for p in started_run.result()] for key, started_run in started}
    print("| machine | policy | " + " | ".join(f"{out} out" for out in outputs) + " |")
    print("|---|---|" + "---:|" * len(outputs))
    for machine, _ in machines:
        for words, _, _, estimate in columns:
            base = rates[machine, "gpu-only", estimate]
            cells = [f"{value / of:.2f}" for value, of in zip(rates[machine, words, estimate], base)]
            print(f"| `{machine}` | {words} | " + " | ".join(cells) + " |")
    print(flush=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--osc", required=True)
    parser.add_argument("--azure", required=True)
    parser.add_argument("--simulate", default="", help="a list of 5.2, 5.4, 5.5 and azure")
    parser.add_argument("--sluice", default=str(ROOT / "build" / "release" / "engine" / "sluice"))
    parser.add_argument("--requests", type=int, default=2000)
    parser.add_argument("--jobs", type=int, default=2)
    options = parser.parse_args()
    simulate = options.simulate.split(",")
    replays = Replays(options.sluice, options.requests, options.jobs)

    print(HEAD, flush=True)

    print("## Section 5.2: Llama-2-7B on a T4, summaries\n", flush=True)
    limits = ["--max-batch-tokens", "832", "--max-sequences", "256"]
    room = ["--kv-tokens", f"hbm=864,ddr={tokens('llama-2-7b', 20)}", *limits]
    latency_table(replays, "5.2" in simulate, "at 1 s a token", 1, "+563 %", "llama-2-7b", "g4-4xlarge", ["--trace", options.osc],
                  [("gpu-only", "`gpu-only`", room), ("neo", "`neo`", room),
                   ("neo", "`neo`, `launch_us=800`", [*room, *LAUNCH]), ("fastdecode", "`fastdecode`", room),
                   ("symmetric", "`symmetric`", room), ("simple-offload", "`simple-offload`", room)], 0.5, 7)
    print("## Section 5.5: Llama-3.1-8B on four machines with an A10G\n\n1,000 tokens in, all requests at once; "
          "throughput over `gpu-only`'s.\n", flush=True)
    limits = ["--max-batch-tokens", "20480", "--max-sequences", "1024"]
    machines = [(f"g5-{size}xlarge", ["--kv-tokens", f"hbm=26400,ddr={tokens('llama-3.1-8b', 7.5 * size)}", *limits])
                for size in (2, 4, 8, 16)]
    gain_table(replays, "5.5" in simulate, "llama-3.1-8b", 1000, [50, 100, 150, 200, 300, 400], machines,
               [("`neo`, simulated", "neo", [], False), ("`neo`, estimated", "neo", [], True),
                ("`neo`, `launch_us=800`, estimated", "neo", LAUNCH, True)])
    print("With the profile's own room for KV, estimated:\n")
    gain_table(replays, False, "llama-3.1-8b", 1000, [50, 100, 150, 200, 300, 400],
               [(name, limits) for name, _ in machines], [("`neo`, estimated", "neo", [], True)])

    print("## Section 5.4: Llama-3.1-70B on two H100s\n\n2,000 tokens in, all requests at once, the profile's own room "
          "for KV; throughput over `gpu-only`'s.\n", flush=True)
    limits = ["--max-batch-tokens", "8192", "--max-sequences", "512"]
    gain_table(replays, "5.4" in simulate, "llama-3.1-70b", 2000, [50, 100, 200, 300, 500, 1000], [("hgx-h100-2", limits)],
               [("`neo`, simulated", "neo", [], False), ("`neo`, estimated", "neo", [], True),
                ("`neo`, `launch_us=800`, estimated", "neo", LAUNCH, True),
                ("`fastdecode`, estimated", "fastdecode", [], True)])

    print("## Section 5.2: Azure's trace of code\n", flush=True)
    room = machines[1][1]
    latency_table(replays, "azure" in simulate, "Llama-3.1-8B, `g5-4xlarge`, at 2 s a token", 2, "+6.4 %", "llama-3.1-8b", "g5-4xlarge",
                  ["--trace", options.azure],
                  [("gpu-only", "`gpu-only`", room), ("neo", "`neo`", room),
                   ("neo", "`neo`, `launch_us=800`", [*room, *LAUNCH])], 1, 4)
    latency_table(replays, "azure" in simulate, "Llama-3.1-70B, `hgx-h100-2`, at 2 s a token", 2, "+14.3 %", "llama-3.1-70b", "hgx-h100-2",
                  ["--trace", options.azure],
                  [("gpu-only", "`gpu-only`", limits), ("neo", "`neo`", limits),
                   ("neo", "`neo`, `launch_us=800`", [*limits, *LAUNCH])], 2, 8)


if __name__ == "__main__":
    main()
