#!/usr/bin/env python3
"""The figures for OPT-175B (128 tokens in, 21 out) in HeLM's text beside what `sluice plan` says.

  helm_tables.py [--sluice PROGRAM]          prints them
  helm_tables.py --simulate                  the same by `sluice simulate`
  helm_tables.py --fit [--sluice PROGRAM]    fits the GPU's dequantize_gb_per_s to sections V-B to V-D's figures for
                                             TTFT, TBT and throughput at once, and prints each beside what the others
                                             alone make of it

Section IV-B's are never fitted to. Needs Python 3 alone.
"""
import argparse
import functools
import json
import math
import os
import subprocess
import tempfile

RATES = range(60, 165, 4)  # between these the fit looks, GB/s
NVDRAM, MEMORY_MODE, DRAM, ASIC, FPGA = ("icelake-a100-nvdram", "icelake-a100-memorymode", "icelake-a100-dram",
                                         "cxl-asic", "cxl-fpga")
FLEXGEN = ("flexgen", "gpu_percent=20", "attention=gpu")
HELM, ALL_CPU = ("helm",), ("all-cpu",)
TTFT, TBT, TOKENS_PER_S = "ttft_s", "tpot_s", "tokens_per_s"


class Machines:
    """Plans on the shipped profiles, or on these with another dequantisation rate."""

    def __init__(self, program, rate=None, command="plan"):
        self.program, self.rate, self.command = program, rate, command
        self.folder = tempfile.TemporaryDirectory()

    def profile(self, machine):
        if self.rate is None:
            return machine
        path = os.path.join(self.folder.name, machine + "-fit.json")
        with open(path, "w", encoding="ascii") as file:
            json.dump({"name": machine + "-fit", "description": "being fitted", "base": machine,
                       "gpu": {"dequantize_gb_per_s": {"value": self.rate, "source": "fitted"}}}, file)
        return path

    @functools.cache
    def plan(self, machine, policy, batch, bits=4.5):
        # Optane as a NUMA node, and CXL memory, are the cxl tier.
        host = "ddr" if machine in (MEMORY_MODE, DRAM) else "cxl"
        command = [self.program, self.command, "--model", "opt-175b", "--machine", self.profile(machine), "--policy",
                   policy[0], "--batch", str(batch), "--input-tokens", "128", "--output-tokens", "21",
                   "--weight-bits", str(bits), "--json"]
        for option in policy[1:] + ("host=" + host,):
            command += ["--policy-option", option]
        out = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout
        return json.loads(out)[0]

    def compute_s(self, phase, batch, bits):
        layer = self.plan(MEMORY_MODE, FLEXGEN, batch, bits)[phase]["layers"][0]
        return sum(sublayer["compute_s"] for sublayer in layer["sublayers"])


def ratio(key, plan, other):
    """Of a figure of two plans (machine, policy, batch)."""
    return lambda machines: machines.plan(*plan)[key] / machines.plan(*other)[key]


def slowdown(phase, batch):
    """Compute time with weights of 4.5 bits over that with 16."""
    return lambda machines: machines.compute_s(phase, batch, 4.5) / machines.compute_s(phase, batch, 16)


# (section, what, the paper's figure, its form, our ratio): "x" is the ratio itself, "below" and "above" are percent.
# Of the four compute times that Figure 6 shows, decode of batch 1 has the least to compute beside dequantisation,
# prefill of batch 8 the most.
NOT_FITTED = [
    ("IV-B", "compute time, decode, B=1: 4.5 bits over 16", 13, "x", slowdown("decode", 1)),
    ("IV-B", "compute time, prefill, B=8: the same", 2.5, "x", slowdown("prefill", 8)),
]
ROWS = [
    ("V-B", "TTFT, HeLM below FlexGen, NVDRAM", 27.20, "below", ratio(TTFT, (NVDRAM, HELM, 1), (NVDRAM, FLEXGEN, 1))),
    ("V-B", "TBT, the same", 27.44, "below", ratio(TBT, (NVDRAM, HELM, 1), (NVDRAM, FLEXGEN, 1))),
    ("V-B", "TTFT, HeLM on MemoryMode below FlexGen on NVDRAM", 31.90, "below",
     ratio(TTFT, (MEMORY_MODE, HELM, 1), (NVDRAM, FLEXGEN, 1))),
    ("V-B", "TBT, the same", 32.28, "below", ratio(TBT, (MEMORY_MODE, HELM, 1), (NVDRAM, FLEXGEN, 1))),
    ("V-B", "TTFT, HeLM on NVDRAM above DRAM", 8.75, "above", ratio(TTFT, (NVDRAM, HELM, 1), (DRAM, HELM, 1))),
    ("V-B", "TBT, the same", 8.91, "above", ratio(TBT, (NVDRAM, HELM, 1), (DRAM, HELM, 1))),
    ("V-B", "TTFT, HeLM on MemoryMode above DRAM", 1.73, "above",
     ratio(TTFT, (MEMORY_MODE, HELM, 1), (DRAM, HELM, 1))),
    ("V-B", "TBT, the same", 1.64, "above", ratio(TBT, (MEMORY_MODE, HELM, 1), (DRAM, HELM, 1))),
    ("V-C", "TBT, All-CPU above FlexGen, NVDRAM, B=1", 1, "above",
     ratio(TBT, (NVDRAM, ALL_CPU, 1), (NVDRAM, FLEXGEN, 1))),
    ("V-C", "tokens/s, the same, B=8", 5, "above", ratio(TOKENS_PER_S, (NVDRAM, ALL_CPU, 8), (NVDRAM, FLEXGEN, 8))),
    ("V-C", "TTFT, All-CPU on MemoryMode below NVDRAM, B=1", 5.83, "below",
     ratio(TTFT, (MEMORY_MODE, ALL_CPU, 1), (NVDRAM, ALL_CPU, 1))),
    ("V-C", "the same, B=8", 6.86, "below", ratio(TTFT, (MEMORY_MODE, ALL_CPU, 8), (NVDRAM, ALL_CPU, 8))),
    ("V-C", "the same, B=44", 0.24, "below", ratio(TTFT, (MEMORY_MODE, ALL_CPU, 44), (NVDRAM, ALL_CPU, 44))),
    ("V-C", "TBT, All-CPU on MemoryMode below NVDRAM, B=1", 5.77, "below",
     ratio(TBT, (MEMORY_MODE, ALL_CPU, 1), (NVDRAM, ALL_CPU, 1))),
    ("V-C", "the same, B=8", 9.46, "below", ratio(TBT, (MEMORY_MODE, ALL_CPU, 8), (NVDRAM, ALL_CPU, 8))),
    ("V-C", "the same, B=44", 8.39, "below", ratio(TBT, (MEMORY_MODE, ALL_CPU, 44), (NVDRAM, ALL_CPU, 44))),
    ("V-C", "tokens/s, All-CPU on MemoryMode above NVDRAM, B=44", 7.57, "above",
     ratio(TOKENS_PER_S, (MEMORY_MODE, ALL_CPU, 44), (NVDRAM, ALL_CPU, 44))),
    ("V-C", "tokens/s, All-CPU on MemoryMode above DRAM, B=44", 1.15, "above",
     ratio(TOKENS_PER_S, (MEMORY_MODE, ALL_CPU, 44), (DRAM, ALL_CPU, 44))),
    ("V-C", "tokens/s, All-CPU on NVDRAM below DRAM, B=44", 6, "below",
     ratio(TOKENS_PER_S, (NVDRAM, ALL_CPU, 44), (DRAM, ALL_CPU, 44))),
    ("V-C", "tokens/s, All-CPU of B=44 over FlexGen of B=8, NVDRAM", 5, "x",
     ratio(TOKENS_PER_S, (NVDRAM, ALL_CPU, 44), (NVDRAM, FLEXGEN, 8))),
    ("V-D", "TTFT, HeLM below FlexGen, `cxl-fpga`", 27, "below", ratio(TTFT, (FPGA, HELM, 1), (FPGA, FLEXGEN, 1))),
    ("V-D", "TBT, the same", 27, "below", ratio(TBT, (FPGA, HELM, 1), (FPGA, FLEXGEN, 1))),
    ("V-D", "TTFT, HeLM below FlexGen, `cxl-asic`", 21, "below", ratio(TTFT, (ASIC, HELM, 1), (ASIC, FLEXGEN, 1))),
    ("V-D", "TBT, the same", 21, "below", ratio(TBT, (ASIC, HELM, 1), (ASIC, FLEXGEN, 1))),
    ("V-D", "tokens/s, All-CPU below FlexGen, B=8, `cxl-fpga`", 8.35, "below",
     ratio(TOKENS_PER_S, (FPGA, ALL_CPU, 8), (FPGA, FLEXGEN, 8))),
    ("V-D", "tokens/s, All-CPU of B=44 over FlexGen of B=8, `cxl-asic`", 4.74, "x",
     ratio(TOKENS_PER_S, (ASIC, ALL_CPU, 44), (ASIC, FLEXGEN, 8))),
    ("V-D", "the same, `cxl-fpga`", 5.04, "x", ratio(TOKENS_PER_S, (FPGA, ALL_CPU, 44), (FPGA, FLEXGEN, 8))),
]


def as_ratio(figure, form):
    return {"x": figure, "below": 1 - figure / 100, "above": 1 + figure / 100}[form]


def as_text(value, form):
    figure = {"x": value, "below": 100 * (1 - value), "above": 100 * (value - 1)}[form]
    return f"{figure:.2f}" if form == "x" else f"{figure:.1f} %"


def print_rows(rows, ours, more=None):
    """`ours`, and `more` under its name: ratios by row."""
    columns = [ours] + ([more[1]] if more else [])
    print("| section | what | paper | ours |" + (f" {more[0]} |" if more else ""))
    print("|---|---|" + "---:|" * (1 + len(columns)))
    for i, (section, what, paper, form, _) in enumerate(rows):
        unit = "" if form == "x" else " %"
        cells = "".join(f" {as_text(column[i], form)} |" for column in columns)
        print(f"| {section} | {what} | {paper}{unit} |{cells}")


class Fit:
    """Least squares over the ratios' logarithms."""

    def __init__(self, program, rows):
        self.rows = rows
        self.logs = {}
        for rate in RATES:
            machines = Machines(program, rate)
            self.logs[rate] = [math.log(row[4](machines)) for row in rows]

    def ratio(self, rate, i):
        low = min(max(r for r in RATES if r <= rate), RATES[-2])
        share = (rate - low) / RATES.step
        return math.exp((1 - share) * self.logs[low][i] + share * self.logs[low + RATES.step][i])

    def error(self, rate, i):
        return math.log(self.ratio(rate, i) / as_ratio(*self.rows[i][2:4]))

    def best(self, rows):
        rates = [rate / 10 for rate in range(10 * RATES[0], 10 * RATES[-1] + 1)]
        return min(rates, key=lambda rate: sum(self.error(rate, i)**2 for i in rows))


def fit(program):
    all_rows = range(len(ROWS))
    fitted = Fit(program, ROWS)
    rate = fitted.best(all_rows)
    rms = math.sqrt(sum(fitted.error(rate, i)**2 for i in all_rows) / len(ROWS))
    without = [fitted.best([i for i in all_rows if i != left_out]) for left_out in all_rows]
    print(f"dequantize_gb_per_s {rate:.1f}, rms error of the ratios {100 * rms:.1f} %; "
          f"without any one figure {min(without):.1f} to {max(without):.1f}\n")
    print_rows(ROWS, [fitted.ratio(rate, i) for i in all_rows],
               ("without this one", [fitted.ratio(without[i], i) for i in all_rows]))
    apart = Fit(program, NOT_FITTED)
    print("\nnot fitted:")
    for i, row in enumerate(NOT_FITTED):
        print(f"{row[0]}, {row[1]}: paper {row[2]}, ours {apart.ratio(rate, i):.2f}; "
              f"alone it would give {apart.best([i]):.1f}")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sluice", default="sluice", help="the program")
    parser.add_argument("--simulate", action="store_true", help="ask the simulator instead of the planner")
    parser.add_argument("--fit", action="store_true", help="fit the dequantisation rate")
    arguments = parser.parse_args()
    if arguments.fit:
        fit(arguments.sluice)
        return
    machines = Machines(arguments.sluice, command="simulate" if arguments.simulate else "plan")
    rows = NOT_FITTED + ROWS
    print_rows(rows, [row[4](machines) for row in rows])


if __name__ == "__main__":
    main()
