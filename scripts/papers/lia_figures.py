#!/usr/bin/env python3
"""What LIA's text says of Figures 3, 4, 8b, 9 to 14 and Table 3, beside what `sluice simulate` gives.

  lia_figures.py [--sluice PROGRAM]

No parameter was fitted to any of these but the 1 s and the 10.2 % of Figure 4. IPEX is `cpu-only`, FlexGen is `flexgen`
with AVX-512's rates. Which lengths the figures show is not in the text but for the longest, 2048 less what comes out: 32,
256 and that are taken, 32 and 256 out.
Needs Python 3 alone, and about ten minutes.
"""
import argparse
import functools
import json
import os
import subprocess
import tempfile

import lia_ratios
import lia_tables

LENGTHS = (32, 256, 2016)
TOKENS_OUT = (32, 256)
POSITIONS = 2048  # OPT's; "L_max is 2016 for L_out = 32 and 1792 for L_out = 256" (Figures 11 and 12)
ONLINE, OFFLINE = (1,), (64, 900)
# LIA's bars with stars come from a latency model that knows no capacity (section 7).
LARGE_GIB = 16384
SYSTEMS = {"LIA": "lia", "IPEX": "cpu-only", "FlexGen": "flexgen"}
PAIRS = (("spr-a100", "opt-30b"), ("spr-a100", "opt-175b"), ("spr-h100", "opt-66b"), ("spr-h100", "opt-175b"))
GNR = {"spr-a100": "gnr-a100", "spr-h100": "gnr-h100"}
GNR_THEORY_TFLOP_PER_S = 90.1 * 128 / 40  # LIA section 4.1: AMX of 40 cores, and it scales with cores
LAYERS = {"opt-30b": 48}


def number(value):
    return {"value": value, "source": "assumed: for this comparison"}


class Runs:
    """Points by `sluice simulate`, each once."""

    def __init__(self, program, folder):
        self.program, self.folder = program, folder
        self.left_out = {}  # a point in words -> None, in order

    @functools.cache
    def profile(self, machine, changes=""):
        """A shipped machine with memory for every point; `changes` is a JSON patch, "avx512" of the CPU."""
        base = lia_ratios.without_amx(machine, self.folder) if changes == "avx512" else machine
        patch = {} if changes in ("", "avx512") else json.loads(changes)
        name = f"{machine}-{len(os.listdir(self.folder))}"
        path = os.path.join(self.folder, name + ".json")
        patch |= {"name": name, "description": "with memory for every point", "base": base,
                  "tiers": patch.get("tiers", {}) | {"ddr": {"capacity_gib": number(LARGE_GIB)}}}
        with open(path, "w", encoding="ascii") as file:
            json.dump(patch, file)
        return path

    def points(self, machine, model, policy, batches, lengths=LENGTHS, tokens_out=TOKENS_OUT, options=(), changes="",
               command="simulate"):
        """(batch, tokens in) -> the JSON of a point, (batch, tokens in, tokens out) of several `tokens_out`; points that
        cannot be are left out, and noted."""
        asked = (self.profile(machine, changes), model, policy, batches)
        if isinstance(tokens_out, tuple):
            found = {}
            for out in tokens_out:
                longest = tuple(min(length, POSITIONS - out) for length in lengths)
                points = self.cached(*asked, longest, out, tuple(options), command)
                found |= {at + (out,): point for at, point in points.items()}
        else:
            found = self.cached(*asked, lengths, tokens_out, tuple(options), command)
        for at in [at for at, point in found.items() if "latency_s" not in point]:
            self.left_out[f"{policy} with {model} on `{machine}`, B={at[0]}, L={at[1]}"] = None
        return {at: point for at, point in found.items() if "latency_s" in point}

    @functools.cache
    def cached(self, machine, model, policy, batches, lengths, tokens_out, options, command):
        line = [self.program, command, "--model", model, "--machine", machine, "--policy", policy, "--batch",
                ",".join(map(str, batches)), "--input-tokens", ",".join(map(str, lengths)), "--output-tokens",
                str(tokens_out), "--json", *options, *lia_tables.of_paper(policy)]
        out = subprocess.run(line, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, check=False).stdout
        return {(p["batch"], p["input_tokens"]): p for p in json.loads(out)}

    def system(self, name, machine, model, batches):
        if name != "FlexGen":
            return self.points(machine, model, SYSTEMS[name], batches)
        return self.points(machine, model, SYSTEMS[name], batches, changes="avx512",
                           options=option(*lia_ratios.flexgen_options(model, batches)))

    def gains(self, other, machine, model, batches, key="latency_s"):
        """How many times better LIA is than another system, by point."""
        lia, theirs = self.system("LIA", machine, model, batches), self.system(other, machine, model, batches)
        return {at: theirs[at][key] / lia[at][key] for at in lia if at in theirs}


def option(*texts):
    return [word for text in texts for word in ("--policy-option", text)]


def percent(mine, paper):
    return f"{100 * (mine / paper - 1):+.0f} %"


def mean(values):
    values = list(values)
    return sum(values) / len(values)


def row(section, what, paper, ours, error):
    print(f"| {section} | {what} | {paper} | {ours} | {error} |", flush=True)


def value_row(section, what, paper, ours, unit=""):
    row(section, what, f"{paper:g}{unit}", f"{ours:.3g}{unit}", percent(ours, paper))


def share_row(section, what, paper, ours, form=""):
    """`form`: "above ", "below " or "within " where the paper has a bound."""
    met = {"above ": ours >= paper, "below ": ours < paper, "within ": abs(ours) <= paper}.get(form, False)
    row(section, what, f"{form}{100 * paper:.3g} %", f"{100 * ours:.1f} %",
        "holds" if met else f"{100 * (ours - paper):+.1f} points")


def range_row(section, what, paper, values):
    low, high = min(values), max(values)
    row(section, what, f"{round(paper[0], 2):g} to {round(paper[1], 2):g}", f"{low:.2f} to {high:.2f}",
        f"{percent(low, paper[0])}, {percent(high, paper[1])}")


def communication_share(point, phase):
    times = point[phase]
    moved = times["load_s"] + times["store_s"]
    return moved / (moved + times["cpu_s"] + times["gpu_s"])


def figures_3_and_4(runs):
    on_gpu = option("prefill=000000", "decode=000000", "opt1=off", "opt2=off", "cxl=off")
    on_cpu = option("prefill=000000", "decode=011000", "opt1=off", "opt2=off", "cxl=off")
    lengths = (64, 1024)
    moved = runs.points("spr-a100", "opt-175b", "lia", (1, 32), (64, 128, 1024), 2, on_gpu)
    share_row("3.1", "Figure 3: transfers' share of prefill, B=1, L=64", 0.98,
              communication_share(moved[1, 64], "prefill"), "above ")
    share_row("3.1", "the same, L=1024", 0.87, communication_share(moved[1, 1024], "prefill"))
    share_row("3.1", "of decode, B=1, L=64", 0.98, communication_share(moved[1, 64], "decode"), "above ")
    for length in lengths:
        share_row("3.1", f"of decode, B=32, L={length}", 0.80, communication_share(moved[32, length], "decode"),
                  "above ")
    prefill = runs.points("spr-a100", "opt-175b", "lia", (32,), lengths, 1, on_gpu)
    short, long = prefill[32, 64], prefill[32, 1024]
    value_row("3.1", "prefill, B=32, L=1024 over 64: computation", 16.2,
              long["prefill"]["gpu_s"] / short["prefill"]["gpu_s"])

    def bytes_moved(point):
        return sum(point["bytes_moved"].values())

    value_row("3.1", "the same: bytes moved", 1.8, bytes_moved(long) / bytes_moved(short))
    computed = runs.points("spr-a100", "opt-175b", "lia", (32,), (64, 128, 1024), 2, on_cpu, "avx512")
    weights_s = runs.points("spr-a100", "opt-175b", "lia", (1,), (64,), 2, on_gpu)[1, 64]["decode"]["load_s"]
    value_row("3.2", "Figure 4: KV's transfer, B=32, L=64, s", 0.4, moved[32, 64]["decode"]["load_s"] - weights_s)
    value_row("3.2", "attention on the CPU, the same, s", 1, computed[32, 64]["decode"]["cpu_s"])

    def saved(length):
        return 1 - computed[32, length]["decode"]["iteration_s"] / moved[32, length]["decode"]["iteration_s"]

    share_row("3.2", "what compute-offloading saves of decode, L=1024", 0.102, saved(1024))
    share_row("3.2", "the same, L=64, where it makes it longer", 0, saved(64), "below ")
    share_row("3.2", "the same, L=128", 0, saved(128), "below ")


def figure_8b(runs):
    """What the CPU loses of sublayers 1 and 2 in decode where their operand is in CXL memory, by `plan`."""
    large = json.dumps({"tiers": {"cxl": {"capacity_gib": number(LARGE_GIB)}}})
    batches = (1, 16, 64, 256, 900)

    def seconds(index, *options):
        points = runs.points("spr-a100", "opt-175b", "cpu-only", batches, (512,), 2, options, large, "plan")
        return [points[batch, 512]["decode"]["layers"][0]["sublayers"][index]["compute_s"] for batch in batches]

    for index, what, tier, paper in ((0, "sublayer 1, parameters", "--parameters-tier", (11, 70)),
                                     (1, "sublayer 2, KV", "--kv-tier", (10, 82))):
        lost = [100 * (1 - ddr / cxl) for ddr, cxl in zip(seconds(index), seconds(index, tier, "cxl"))]
        low, high = min(lost), max(lost)
        row("6", f"Figure 8b: rate lost in CXL memory, decode, {what}", f"{paper[0]} to {paper[1]} %",
            f"{low:.0f} to {high:.0f} %", f"{low - paper[0]:+.0f}, {high - paper[1]:+.0f} points")


def flip(runs, machine, phase, make_point):
    """The smallest size from which on a phase's placement is another one than at 1, by `plan`."""
    low, high = 1, 4096
    first = make_point(runs, machine, 1)[phase]["placement"]
    while high - low > 1:
        middle = (low + high) // 2
        if make_point(runs, machine, middle)[phase]["placement"] == first:
            low = middle
        else:
            high = middle
    return high


def figure_9(runs):
    def prompt(runs, machine, tokens):
        return runs.points(machine, "opt-175b", "lia", (1,), (tokens,), 1, command="plan")[1, tokens]

    def batch(runs, machine, size):
        return runs.points(machine, "opt-175b", "lia", (size,), (256,), 32, command="plan")[size, 256]

    value_row("7.1", "Figure 9: prefill leaves the CPU from B x L on, `spr-a100`", 850,
              flip(runs, "spr-a100", "prefill", prompt))
    value_row("7.1", "decode leaves it from B on", 858, flip(runs, "spr-a100", "decode", batch))
    row("7.1", "the same two on `spr-h100`", "earlier",
        f"{flip(runs, 'spr-h100', 'prefill', prompt)}, {flip(runs, 'spr-h100', 'decode', batch)}", "")


FIGURE_10 = {PAIRS[0]: ((1.8, 2.1), (5.3, 7.3)), PAIRS[1]: ((1.1, 1.3), (8.5, 12)),
             PAIRS[2]: ((2.1, 2.5), (4.9, 7.0)), PAIRS[3]: ((1.1, 1.5), (4.0, 5.1))}
FIGURE_11 = {PAIRS[0]: ((1.5, 6.0), (2.0, 5.9)), PAIRS[1]: ((1.1, 6.1), (1.3, 6.0)),
             PAIRS[2]: ((1.3, 8.3), (1.2, 3.3)), PAIRS[3]: ((1.2, 10), (1.5, 3.7))}


def figures_10_and_11(runs):
    for section, claims, batches, what in (("7.2", FIGURE_10, ONLINE, "Figure 10: latency, B=1"),
                                           ("7.3", FIGURE_11, OFFLINE, "Figure 11: tokens/s, B=64 and 900")):
        for (machine, model), papers in claims.items():
            for other, paper in zip(("IPEX", "FlexGen"), papers):
                gains = runs.gains(other, machine, model, batches)
                range_row(section, f"{what}, {model} on `{machine}`, LIA over {other}", paper, gains.values())
    for section, batches, what, paper in (("7.2", ONLINE, "latency, B=1", (1.1, 1.3)),
                                          ("7.3", OFFLINE, "tokens/s, B=64 and 900", (1.1, 1.9))):
        a100, h100 = (runs.system("LIA", machine, "opt-175b", batches) for machine in ("spr-a100", "spr-h100"))
        range_row(section, f"{what}, opt-175b, LIA on `spr-h100` over `spr-a100`", paper,
                  [a100[at]["latency_s"] / h100[at]["latency_s"] for at in a100 if at in h100])
    ipex, lia = (runs.system(name, "spr-a100", "opt-30b", OFFLINE)[64, 2016, 32] for name in ("IPEX", "LIA"))
    share_row("7.3", "prefill's share, IPEX, opt-30b, B=64, L=2016", 0.92, ipex["ttft_s"] / ipex["latency_s"])
    value_row("7.3", "prefill, the same, IPEX over LIA", 7.8, ipex["ttft_s"] / lia["ttft_s"])
    resident = runs.system("LIA", "spr-a100", "opt-30b", ONLINE)[1, 2016, 32]["resident_layers"] / LAYERS["opt-30b"]
    share_row("5.2", "layers in HBM, opt-30b, B=1, L=2016", 0.62, resident)


def table_3(runs):
    def point(batch, tier, *options):
        options = ["--parameters-tier", tier] + option(*options)
        return runs.points("spr-a100", "opt-30b", "lia", (batch,), (32,), 32, options)[batch, 32]

    ddr, cxl, more = point(900, "ddr"), point(900, "cxl"), point(1580, "cxl")
    share_row("7.3", "Table 3: tokens/s lost with parameters in CXL memory, opt-30b, B=900, L=32", 0.01,
              1 - cxl["tokens_per_s"] / ddr["tokens_per_s"], "within ")
    share_row("7.3", "DDR memory that it frees", 0.431, 1 - cxl["bytes"]["ddr"] / ddr["bytes"]["ddr"])
    value_row("7.3", "tokens/s with B=1580 and CXL over B=900 without", 1.45, more["tokens_per_s"] / ddr["tokens_per_s"])
    streamed = [point(batch, tier, "opt1=off")["tokens_per_s"] for batch, tier in ((1580, "cxl"), (900, "ddr"))]
    value_row("7.3", "the same without Optimization-1", 1.45, streamed[0] / streamed[1])
    value_row("7.3", "DDR memory of the two batches", 1, more["bytes"]["ddr"] / ddr["bytes"]["ddr"])


def figure_12(runs):
    for other, paper in (("IPEX", (1.1, 5.8)), ("FlexGen", (1.6, 10.3))):
        gains = [gain for machine, model in PAIRS[:2] for batches in (ONLINE, OFFLINE)
                 for gain in runs.gains(other, machine, model, batches, "joules_per_token").values()]
        range_row("7.5", f"Figure 12: joules per token on `spr-a100`, {other} over LIA", paper, gains)
    at_900 = [gain for machine, model in PAIRS[:2]
              for (batch, *_), gain in runs.gains("FlexGen", machine, model, OFFLINE, "joules_per_token").items()
              if batch == 900]
    value_row("7.5", "the same over FlexGen, B=900, the least", 1.6, min(at_900))


def tdp_watts(machine):
    with open(os.path.join(lia_ratios.PROFILES, machine + ".json"), encoding="ascii") as file:
        profile = json.load(file)
    base = tdp_watts(profile["base"]) if "base" in profile else {}
    return base | {device: profile[device]["busy_watts"]["value"] for device in ("cpu", "gpu")
                   if "busy_watts" in profile.get(device, {})}


def section_7_6(runs):
    for other, paper in (("IPEX", 1 - 0.14), ("FlexGen", 1.7)):
        changes = []
        for machine, model in PAIRS:
            for batches in (ONLINE, OFFLINE):
                before = runs.gains(other, machine, model, batches)
                after = runs.gains(other, GNR[machine], model, batches)
                changes += [after[at] / before[at] for at in before if at in after]
        value_row("7.6", f"LIA over {other}: on Granite Rapids over on Sapphire Rapids, mean", paper, mean(changes))
    for batches, what, paper in ((ONLINE, "latency, B=1", (10, 19)), (OFFLINE, "tokens/s, B=64 and 900", (1.6, 5.1))):
        gains = [gain for model in ("opt-66b", "opt-175b")
                 for gain in runs.gains("FlexGen", "gnr-h100", model, batches).values()]
        range_row("1", f"{what}, opt-66b and opt-175b on `gnr-h100`, LIA over FlexGen", paper, gains)
    faster = {}
    for batches in (ONLINE, OFFLINE):
        ours, theirs = (runs.system("LIA", machine, "opt-175b", batches) for machine in ("gnr-a100", "spr-h100"))
        faster |= {at: theirs[at]["latency_s"] / ours[at]["latency_s"] for at in ours if at in theirs}
    by_batch = {b: [gain for (batch, *_), gain in faster.items() if batch == b] for b in (1, 64, 900)}
    range_row("7.6", "Figure 13: latency, B=1, opt-175b, `gnr-a100` over `spr-h100`", (1.4, 2.0), by_batch[1])
    value_row("7.6", "tokens/s, B=64, at most", 1.9, max(by_batch[64]))
    value_row("7.6", "tokens/s, B=900, mean", 0.7, mean(by_batch[900]))
    watts = {machine: sum(tdp_watts(machine).values()) for machine in ("gnr-a100", "spr-h100")}
    value_row("7.6", "tokens/s/W(TDP), all batches, mean", 1.6,
              mean(faster.values()) * watts["spr-h100"] / watts["gnr-a100"])


def figure_14(runs):
    theory = {"over": "rows", "peak": GNR_THEORY_TFLOP_PER_S / 2, "half_at": 9.4, "source": "LIA section 7.8"}
    better = json.dumps({"cpu": {"gemm_tflop_per_s": theory, "attention_tflop_per_s": theory}})

    def compare(batch, changes=""):
        lia = runs.points("gnr-a100", "opt-175b", "lia", (batch,), changes=changes)
        dgx = runs.points("dgx-a100", "opt-175b", "gpu-only", (batch,))
        both = [at for at in lia if at in dgx]
        return ([8 * lia[at]["tokens_per_s"] / dgx[at]["tokens_per_s"] for at in both],
                [dgx[at]["usd_per_million_tokens"] / lia[at]["usd_per_million_tokens"] for at in both])

    for what, papers, found in (("B=1", ((1.4, 1.8), (1.5, 2.0)), compare(1)),
                                ("B=64", ((0.67, 0.70), (1 / 1.4, 1 / 1.3)), compare(64)),
                                ("B=64, AMX at half of its theory", ((1.1, 1.3), (1.1, 1.2)), compare(64, better))):
        range_row("7.8", f"Figure 14: tokens/s for each GPU, {what}, `gnr-a100` over `dgx-a100`", papers[0], found[0])
        range_row("7.8", f"price of a token, {what}, `dgx-a100` over `gnr-a100`", papers[1], found[1])


def section_8(runs):
    hopper = [point for batches in (ONLINE, OFFLINE)
              for point in runs.system("LIA", "grace-hopper", "opt-175b", batches).values()]
    on_gpu = sum(point[phase]["placement"] == "000000" for point in hopper for phase in ("prefill", "decode"))
    row("8", "`grace-hopper`: placements that are all on the GPU", "all", f"{on_gpu} of {2 * len(hopper)}",
        "holds" if on_gpu == 2 * len(hopper) else "misses")
    for batches, what, paper in ((ONLINE, "latency, B=1", (1.8, 2.3)), (OFFLINE, "tokens/s, B=64 and 900", (3.0, 4.1))):
        hopper, gnr = (runs.system("LIA", machine, "opt-175b", batches) for machine in ("grace-hopper", "gnr-h100"))
        range_row("8", f"{what}, opt-175b, `grace-hopper` over `gnr-h100`", paper,
                  [gnr[at]["latency_s"] / hopper[at]["latency_s"] for at in gnr if at in hopper])


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sluice", default="sluice", help="the program")
    arguments = parser.parse_args()
    print("| section | what | paper | simulated | error |\n|---|---|---:|---:|---:|")
    with tempfile.TemporaryDirectory() as folder:
        runs = Runs(arguments.sluice, folder)
        for part in (figures_3_and_4, figure_8b, figure_9, figures_10_and_11, table_3, figure_12, section_7_6, figure_14,
                     section_8):
            part(runs)
        print("\nLeft out, since no plan fits the GPU's memory: " + ("; ".join(runs.left_out) or "none") + ".")


if __name__ == "__main__":
    main()
