#!/usr/bin/env python3
"""The figures for OPT-175B (128 tokens in, 21 out) in HeLM's text beside what `sluice plan` says.

  helm_tables.py [--sluice PROGRAM]          prints them, and the authors' logs in seconds beside what it says
  helm_tables.py --simulate                  the same by `sluice simulate`
  helm_tables.py --fit [--sluice PROGRAM]    fits the GPU's dequantize_gb_per_s to sections V-B to V-D's figures for
                                             TTFT, TBT and throughput at once, and prints each beside what the others
                                             alone make of it

Section IV-B's are never fitted to. Needs Python 3 alone.
"""
import argparse
import dataclasses
import functools
import json
import math
import os
import subprocess
import tempfile

PROFILES = os.path.join(os.path.dirname(os.path.abspath(__file__)), "../../perfmodels/profiles")
RATES = range(60, 165, 4)  # between these the fit looks, GB/s
NVDRAM, MEMORY_MODE, DRAM, ASIC, FPGA = ("icelake-a100-nvdram", "icelake-a100-memorymode", "icelake-a100-dram",
                                         "cxl-asic", "cxl-fpga")
SSD, FSDAX = "icelake-a100-ssd", "icelake-a100-fsdax"
LARGE_DRAM = "icelake-a100-dram with DRAM for 16-bit weights"
CAPPED_ASIC = "cxl-asic no faster than PCIe"
# The authors' percentages: github.com/Sacusa/FlexLLMGen, flexllmgen/apps/run_batch.sh.
FLEXGEN = ("flexgen", "gpu_percent=20", "attention=gpu")
FLEXGEN_30B = ("flexgen", "gpu_percent=60", "attention=gpu")
FLEXGEN_STORED = FLEXGEN + ("disk_percent=65",)
HELM, ALL_CPU = ("helm",), ("all-cpu",)
HALVES = {"attention": ("qkv", "qk", "sv", "out_proj"), "FFN": ("fc1", "fc2")}
TTFT, TBT, TOKENS_PER_S = "ttft_s", "tpot_s", "tokens_per_s"
B30, B175 = "opt-30b", "opt-175b"
INPUT_TOKENS, OUTPUT_TOKENS = 128, 21
# (machine, policy, batch, bits, model) -> TTFT and TBT, seconds: the authors' logs by helm_times.py.
LOGGED = {
    (NVDRAM, FLEXGEN_30B, 1, 16, B30): (1.584, 1.584),
    (MEMORY_MODE, FLEXGEN_30B, 1, 16, B30): (1.190, 1.189),
    (DRAM, FLEXGEN_30B, 1, 16, B30): (1.191, 1.191),
    (NVDRAM, FLEXGEN_30B, 32, 16, B30): (1.814, 1.582),
    (MEMORY_MODE, FLEXGEN_30B, 32, 16, B30): (1.564, 1.190),
    (DRAM, FLEXGEN_30B, 32, 16, B30): (1.577, 1.212),
    (SSD, FLEXGEN_STORED, 1, 16, B175): (59.082, 59.165),
    (FSDAX, FLEXGEN_STORED, 1, 16, B175): (39.313, 39.356),
    (NVDRAM, FLEXGEN, 1, 16, B175): (16.557, 16.555),
    (MEMORY_MODE, FLEXGEN, 1, 16, B175): (15.286, 15.282),
    (SSD, FLEXGEN_STORED, 8, 16, B175): (58.965, 58.996),
    (FSDAX, FLEXGEN_STORED, 8, 16, B175): (39.247, 39.185),
    (NVDRAM, FLEXGEN, 8, 16, B175): (16.694, 16.690),
    (MEMORY_MODE, FLEXGEN, 8, 16, B175): (15.209, 15.201),
    (NVDRAM, FLEXGEN, 1, 4.5, B175): (5.786, 5.764),
    (MEMORY_MODE, FLEXGEN, 1, 4.5, B175): (5.280, 5.257),
    (DRAM, FLEXGEN, 1, 4.5, B175): (5.142, 5.118),
    (NVDRAM, FLEXGEN, 8, 4.5, B175): (7.393, 5.742),
    (NVDRAM, HELM, 1, 4.5, B175): (4.213, 4.182),
    (MEMORY_MODE, HELM, 1, 4.5, B175): (3.940, 3.903),
    (DRAM, HELM, 1, 4.5, B175): (3.873, 3.840),
    (NVDRAM, ALL_CPU, 1, 4.5, B175): (5.797, 5.772),
    (MEMORY_MODE, ALL_CPU, 1, 4.5, B175): (5.459, 5.438),
    (DRAM, ALL_CPU, 1, 4.5, B175): (5.099, 5.074),
    (NVDRAM, ALL_CPU, 8, 4.5, B175): (7.426, 5.773),
    (MEMORY_MODE, ALL_CPU, 8, 4.5, B175): (6.916, 5.227),
    (DRAM, ALL_CPU, 8, 4.5, B175): (6.811, 5.077),
    (NVDRAM, ALL_CPU, 44, 4.5, B175): (14.255, 5.797),
    (MEMORY_MODE, ALL_CPU, 44, 4.5, B175): (14.220, 5.311),
    (DRAM, ALL_CPU, 44, 4.5, B175): (14.228, 5.084),
}


def logged(machine, policy, batch, bits=4.5, model=B175):
    """The logs' figures of this plan by key, none if it has no log."""
    times = LOGGED.get((machine, policy, batch, bits, model))
    if not times:
        return {}
    return {TTFT: times[0], TBT: times[1],
            TOKENS_PER_S: OUTPUT_TOKENS * batch / (times[0] + (OUTPUT_TOKENS - 1) * times[1])}


def large_dram():
    """The DRAM machine's profile with room for OPT-175B in 16 bits; HeLM runs 8 of its 96 layers there."""
    capacity = {"value": 1024, "source": "assumed: enough for 16-bit weights"}
    return {"base": DRAM, "tiers": {"ddr": {"capacity_gib": capacity}}}


def capped_asic():
    """CXL-ASIC's profile whose CXL memory reaches the GPU over PCIe, no faster than DRAM does."""
    with open(os.path.join(PROFILES, ASIC + ".json"), encoding="ascii") as file:
        links = json.load(file)["links"]
    return {"base": ASIC, "links": [{key: link[key] for key in link if key != "bypasses_pcie"} for link in links]}


CHANGED = {LARGE_DRAM: large_dram, CAPPED_ASIC: capped_asic}


class Machines:
    """Plans on the shipped profiles, or on these with another dequantisation rate, or changed (CHANGED)."""

    def __init__(self, program, rate=None, command="plan"):
        self.program, self.rate, self.command = program, rate, command
        self.folder = tempfile.TemporaryDirectory()

    def changed(self, machine):
        path = os.path.join(self.folder.name, machine.replace(" ", "-") + ".json")
        with open(path, "w", encoding="ascii") as file:
            json.dump({"name": machine, "description": machine} | CHANGED[machine](), file)
        return path

    def profile(self, machine):
        if machine in CHANGED:
            return self.changed(machine)
        if self.rate is None:
            return machine
        path = os.path.join(self.folder.name, machine + "-fit.json")
        with open(path, "w", encoding="ascii") as file:
            json.dump({"name": machine + "-fit", "description": "being fitted", "base": machine,
                       "gpu": {"dequantize_gb_per_s": {"value": self.rate, "source": "fitted"}}}, file)
        return path

    def plan(self, machine, policy, batch, bits=4.5, model=B175):
        return self.run(machine, policy, batch, bits, model)

    @functools.cache
    def run(self, machine, policy, batch, bits, model):
        # Optane as a NUMA node, and CXL memory, are the cxl tier.
        host = "ddr" if machine in (MEMORY_MODE, DRAM, LARGE_DRAM, SSD, FSDAX) else "cxl"
        command = [self.program, self.command, "--model", model, "--machine", self.profile(machine), "--policy",
                   policy[0], "--batch", str(batch), "--input-tokens", str(INPUT_TOKENS),
                   "--output-tokens", str(OUTPUT_TOKENS), "--weight-bits", str(bits), "--parameters-tier", host,
                   "--json"]
        for option in policy[1:]:
            command += ["--policy-option", option]
        out = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout
        return json.loads(out)[0]

    def half_s(self, key, half, plan, phase):
        """Of the layers' attention or FFN in one iteration of a plan (machine, policy, batch): load_s or compute_s."""
        return sum(layer["num_layers"] * sublayer[key] for layer in self.plan(*plan)[phase]["layers"]
                   for sublayer in layer["sublayers"] if sublayer["sublayer"] in HALVES[half])

    def compute_s(self, phase, batch, bits, model=B175):
        layer = self.plan(MEMORY_MODE, FLEXGEN, batch, bits, model)[phase]["layers"][0]
        return sum(sublayer["compute_s"] for sublayer in layer["sublayers"])


@dataclasses.dataclass(frozen=True)
class Ratio:
    """Of a figure of two plans (machine, policy, batch, and bits and model if they are not 4.5 and OPT-175B)."""
    key: str
    plan: tuple
    other: tuple

    def __call__(self, machines):
        return machines.plan(*self.plan)[self.key] / machines.plan(*self.other)[self.key]

    def logged(self):
        """The same by the authors' logs, or None where they have none."""
        figures = [logged(*plan).get(self.key) for plan in (self.plan, self.other)]
        return None if None in figures else figures[0] / figures[1]


def transfer_ratio(plan, other):
    """Of decode's transfers of two plans (machine, policy, batch, bits)."""
    return lambda machines: machines.plan(*plan)["decode"]["load_s"] / machines.plan(*other)["decode"]["load_s"]


def half_ratio(half, plan, other):
    """Of the transfers of one half of the layers' weights in decode, of two plans (machine, policy, batch)."""
    return lambda machines: (machines.half_s("load_s", half, plan, "decode") /
                             machines.half_s("load_s", half, other, "decode"))


def hidden(half, behind, plan, phase="decode"):
    """The transfer of one half's weights over the computation of the other half, beside which they come."""
    return lambda machines: (machines.half_s("load_s", half, plan, phase) /
                             machines.half_s("compute_s", behind, plan, phase))


def computation_ratio(plan, other):
    """Of decode's computation of two plans (machine, policy, batch)."""
    def seconds(machines, which):
        return sum(machines.half_s("compute_s", half, which, "decode") for half in HALVES)
    return lambda machines: seconds(machines, plan) / seconds(machines, other)


def slowdown(phase, batch):
    """Compute time with weights of 4.5 bits over that with 16."""
    return lambda machines: machines.compute_s(phase, batch, 4.5) / machines.compute_s(phase, batch, 16)


# (section, what, the paper's figure, its form, our ratio): "x" is the ratio itself, "below" and "above" are percent,
# "sequences" is a number, "at most" and "at least" bound a ratio.
# The paper's compute times are those of the logs that the GPU's rates are from (helm_gpu.py): what these rows try is
# dequantisation alone.
# Of the four compute times that Figure 6 shows, decode of batch 1 has the least to compute beside dequantisation,
# prefill of batch 8 the most.
NOT_FITTED = [
    ("IV-B", "compute time, decode, B=1: 4.5 bits over 16", 13, "x", slowdown("decode", 1)),
    ("IV-B", "compute time, prefill, B=8: the same", 2.5, "x", slowdown("prefill", 8)),
]
ROWS = [
    ("V-B", "TTFT, HeLM below FlexGen, NVDRAM", 27.20, "below", Ratio(TTFT, (NVDRAM, HELM, 1), (NVDRAM, FLEXGEN, 1))),
    ("V-B", "TBT, the same", 27.44, "below", Ratio(TBT, (NVDRAM, HELM, 1), (NVDRAM, FLEXGEN, 1))),
    ("V-B", "TTFT, HeLM on MemoryMode below FlexGen on NVDRAM", 31.90, "below",
     Ratio(TTFT, (MEMORY_MODE, HELM, 1), (NVDRAM, FLEXGEN, 1))),
    ("V-B", "TBT, the same", 32.28, "below", Ratio(TBT, (MEMORY_MODE, HELM, 1), (NVDRAM, FLEXGEN, 1))),
    ("V-B", "TTFT, HeLM on NVDRAM above DRAM", 8.75, "above", Ratio(TTFT, (NVDRAM, HELM, 1), (DRAM, HELM, 1))),
    ("V-B", "TBT, the same", 8.91, "above", Ratio(TBT, (NVDRAM, HELM, 1), (DRAM, HELM, 1))),
    ("V-B", "TTFT, HeLM on MemoryMode above DRAM", 1.73, "above",
     Ratio(TTFT, (MEMORY_MODE, HELM, 1), (DRAM, HELM, 1))),
    ("V-B", "TBT, the same", 1.64, "above", Ratio(TBT, (MEMORY_MODE, HELM, 1), (DRAM, HELM, 1))),
    ("V-C", "TBT, All-CPU above FlexGen, NVDRAM, B=1", 1, "above",
     Ratio(TBT, (NVDRAM, ALL_CPU, 1), (NVDRAM, FLEXGEN, 1))),
    ("V-C", "tokens/s, the same, B=8", 5, "above", Ratio(TOKENS_PER_S, (NVDRAM, ALL_CPU, 8), (NVDRAM, FLEXGEN, 8))),
    ("V-C", "TTFT, All-CPU on MemoryMode below NVDRAM, B=1", 5.83, "below",
     Ratio(TTFT, (MEMORY_MODE, ALL_CPU, 1), (NVDRAM, ALL_CPU, 1))),
    ("V-C", "the same, B=8", 6.86, "below", Ratio(TTFT, (MEMORY_MODE, ALL_CPU, 8), (NVDRAM, ALL_CPU, 8))),
    ("V-C", "the same, B=44", 0.24, "below", Ratio(TTFT, (MEMORY_MODE, ALL_CPU, 44), (NVDRAM, ALL_CPU, 44))),
    ("V-C", "TBT, All-CPU on MemoryMode below NVDRAM, B=1", 5.77, "below",
     Ratio(TBT, (MEMORY_MODE, ALL_CPU, 1), (NVDRAM, ALL_CPU, 1))),
    ("V-C", "the same, B=8", 9.46, "below", Ratio(TBT, (MEMORY_MODE, ALL_CPU, 8), (NVDRAM, ALL_CPU, 8))),
    ("V-C", "the same, B=44", 8.39, "below", Ratio(TBT, (MEMORY_MODE, ALL_CPU, 44), (NVDRAM, ALL_CPU, 44))),
    ("V-C", "tokens/s, All-CPU on MemoryMode above NVDRAM, B=44", 7.57, "above",
     Ratio(TOKENS_PER_S, (MEMORY_MODE, ALL_CPU, 44), (NVDRAM, ALL_CPU, 44))),
    ("V-C", "tokens/s, All-CPU on MemoryMode above DRAM, B=44", 1.15, "above",
     Ratio(TOKENS_PER_S, (MEMORY_MODE, ALL_CPU, 44), (DRAM, ALL_CPU, 44))),
    ("V-C", "tokens/s, All-CPU on NVDRAM below DRAM, B=44", 6, "below",
     Ratio(TOKENS_PER_S, (NVDRAM, ALL_CPU, 44), (DRAM, ALL_CPU, 44))),
    ("V-C", "tokens/s, All-CPU of B=44 over FlexGen of B=8, NVDRAM", 5, "x",
     Ratio(TOKENS_PER_S, (NVDRAM, ALL_CPU, 44), (NVDRAM, FLEXGEN, 8))),
    ("V-D", "TTFT, HeLM below FlexGen, `cxl-fpga`", 27, "below", Ratio(TTFT, (FPGA, HELM, 1), (FPGA, FLEXGEN, 1))),
    ("V-D", "TBT, the same", 27, "below", Ratio(TBT, (FPGA, HELM, 1), (FPGA, FLEXGEN, 1))),
    ("V-D", "TTFT, HeLM below FlexGen, `cxl-asic`", 21, "below", Ratio(TTFT, (ASIC, HELM, 1), (ASIC, FLEXGEN, 1))),
    ("V-D", "TBT, the same", 21, "below", Ratio(TBT, (ASIC, HELM, 1), (ASIC, FLEXGEN, 1))),
    ("V-D", "tokens/s, All-CPU below FlexGen, B=8, `cxl-fpga`", 8.35, "below",
     Ratio(TOKENS_PER_S, (FPGA, ALL_CPU, 8), (FPGA, FLEXGEN, 8))),
    ("V-D", "tokens/s, All-CPU of B=44 over FlexGen of B=8, `cxl-asic`", 4.74, "x",
     Ratio(TOKENS_PER_S, (ASIC, ALL_CPU, 44), (ASIC, FLEXGEN, 8))),
    ("V-D", "the same, `cxl-fpga`", 5.04, "x", Ratio(TOKENS_PER_S, (FPGA, ALL_CPU, 44), (FPGA, FLEXGEN, 8))),
]


# Section IV-B, Figures 4 and 5: 16-bit weights and FlexGen. Batches are 1, and 32 (OPT-30B) or 8 (OPT-175B).
def optane(key, batch):
    """OPT-30B on NVDRAM over DRAM."""
    return Ratio(key, (NVDRAM, FLEXGEN_30B, batch, 16, B30), (DRAM, FLEXGEN_30B, batch, 16, B30))


def batched(machine):
    """TTFT of OPT-30B, batch 32 over 1."""
    return Ratio(TTFT, (machine, FLEXGEN_30B, 32, 16, B30), (machine, FLEXGEN_30B, 1, 16, B30))


def cached(key, batch):
    """OPT-175B on MemoryMode over NVDRAM."""
    return Ratio(key, (MEMORY_MODE, FLEXGEN, batch, 16, B175), (NVDRAM, FLEXGEN, batch, 16, B175))


def stored(key, batch):
    """OPT-175B on FSDAX over SSD, with (65, 15, 20) percent of the weights on storage, host and GPU."""
    return Ratio(key, (FSDAX, FLEXGEN_STORED, batch, 16, B175), (SSD, FLEXGEN_STORED, batch, 16, B175))


FIGURES_4_AND_5 = [
    ("IV-B", "Figure 4: TTFT, OPT-30B, NVDRAM above DRAM, B=1", 33.03, "above", optane(TTFT, 1)),
    ("IV-B", "the same, B=32", 15.05, "above", optane(TTFT, 32)),
    ("IV-B", "TBT, the same, B=1", 33.03, "above", optane(TBT, 1)),
    ("IV-B", "TBT, the same, B=32", 30.55, "above", optane(TBT, 32)),
    ("IV-B", "tokens/s, OPT-30B, NVDRAM below DRAM, B=1", 18.96, "below", optane(TOKENS_PER_S, 1)),
    ("IV-B", "tokens/s, the same, B=32", 22.68, "below", optane(TOKENS_PER_S, 32)),
    ("IV-B", "TTFT, OPT-30B, B=32 above B=1, DRAM", 32.41, "above", batched(DRAM)),
    ("IV-B", "the same, NVDRAM", 14.51, "above", batched(NVDRAM)),
    ("IV-B", "the same, MemoryMode", 31.50, "above", batched(MEMORY_MODE)),
    ("IV-B", "TTFT, OPT-175B, MemoryMode below NVDRAM, B=1", 7.67, "below", cached(TTFT, 1)),
    ("IV-B", "the same, B=8", 8.90, "below", cached(TTFT, 8)),
    ("IV-B", "TBT, the same, B=1", 7.69, "below", cached(TBT, 1)),
    ("IV-B", "TBT, the same, B=8", 8.92, "below", cached(TBT, 8)),
    ("IV-B", "tokens/s, OPT-175B, MemoryMode above NVDRAM, B=1", 0.60, "above", cached(TOKENS_PER_S, 1)),
    ("IV-B", "the same, B=8", 7.98, "above", cached(TOKENS_PER_S, 8)),
    ("IV-B", "TTFT, OPT-175B, FSDAX below SSD, B=1", 33.46, "below", stored(TTFT, 1)),
    ("IV-B", "the same, B=8", 33.44, "below", stored(TTFT, 8)),
    ("IV-B", "TBT, the same, B=1", 33.48, "below", stored(TBT, 1)),
    ("IV-B", "TBT, the same, B=8", 33.58, "below", stored(TBT, 8)),
    ("IV-B", "tokens/s, OPT-175B, FSDAX above SSD, B=1", 35.31, "above", stored(TOKENS_PER_S, 1)),
    ("IV-B", "the same, B=8", 46.68, "above", stored(TOKENS_PER_S, 8)),
    ("IV-B", "Figure 5: compute time, prefill, OPT-30B, B=32 over 1", 15, "x",
     lambda machines: machines.compute_s("prefill", 32, 16, B30) / machines.compute_s("prefill", 1, 16, B30)),
    ("IV-B", "weights' transfer, OPT-175B, DRAM below NVDRAM", 32.78, "below",
     transfer_ratio((LARGE_DRAM, FLEXGEN, 1, 16), (NVDRAM, FLEXGEN, 1, 16))),
    ("IV-B", "the same, DRAM below MemoryMode", 22.41, "below",
     transfer_ratio((LARGE_DRAM, FLEXGEN, 1, 16), (MEMORY_MODE, FLEXGEN, 1, 16))),
    ("IV-B", "the same, 4.5 bits below 16, NVDRAM", 72, "below",
     transfer_ratio((NVDRAM, FLEXGEN, 1, 4.5), (NVDRAM, FLEXGEN, 1, 16))),
    ("IV-B", "the same, MemoryMode", 74, "below",
     transfer_ratio((MEMORY_MODE, FLEXGEN, 1, 4.5), (MEMORY_MODE, FLEXGEN, 1, 16))),
]


FIGURE_6 = [
    ("IV-B", "Figure 6: weights' transfer, 4.5 bits, NVDRAM above DRAM", 25, "above",
     transfer_ratio((NVDRAM, FLEXGEN, 1, 4.5), (DRAM, FLEXGEN, 1, 4.5))),
    ("IV-B", "the same, MemoryMode above DRAM", 6, "above",
     transfer_ratio((MEMORY_MODE, FLEXGEN, 1, 4.5), (DRAM, FLEXGEN, 1, 4.5))),
]
# Not fitted to, either.
FIGURES_11_AND_12 = [
    ("V-B", "Figure 11a: FFN weights' transfer, HeLM below FlexGen, NVDRAM", 49.33, "below",
     half_ratio("FFN", (NVDRAM, HELM, 1), (NVDRAM, FLEXGEN, 1))),
    ("V-B", "attention weights' transfer, HeLM above FlexGen, NVDRAM", 32.55, "above",
     half_ratio("attention", (NVDRAM, HELM, 1), (NVDRAM, FLEXGEN, 1))),
    ("V-B", "the same of HeLM over the FFN's computation, which hides it", 1, "at most",
     hidden("attention", "FFN", (NVDRAM, HELM, 1))),
    ("V-C", "Figure 12: TTFT, All-CPU above FlexGen, NVDRAM, B=1", 1, "above",
     Ratio(TTFT, (NVDRAM, ALL_CPU, 1), (NVDRAM, FLEXGEN, 1))),
    ("V-C", "the same, B=8", 1, "above", Ratio(TTFT, (NVDRAM, ALL_CPU, 8), (NVDRAM, FLEXGEN, 8))),
    ("V-C", "TBT, the same, B=8", 1, "above", Ratio(TBT, (NVDRAM, ALL_CPU, 8), (NVDRAM, FLEXGEN, 8))),
    ("V-C", "tokens/s, the same, B=1", 5, "above",
     Ratio(TOKENS_PER_S, (NVDRAM, ALL_CPU, 1), (NVDRAM, FLEXGEN, 1))),
    ("V-C", "Figure 12d: attention weights' transfer over the FFN's computation, All-CPU, NVDRAM, B=44, prefill", 1,
     "at most", hidden("attention", "FFN", (NVDRAM, ALL_CPU, 44), "prefill")),
    ("V-C", "Figure 12e: the same, decode", 1, "at most", hidden("attention", "FFN", (NVDRAM, ALL_CPU, 44))),
    ("V-C", "computation, decode, All-CPU of B=44 over FlexGen of B=8", 1, "x",
     computation_ratio((NVDRAM, ALL_CPU, 44), (NVDRAM, FLEXGEN, 8))),
]


def largest(policy, bits, model=B175):
    return lambda machines: machines.plan(MEMORY_MODE, policy, "max", bits, model)["batch"]


def power_of_two(policy, bits, model=B175):
    """The largest that fits as well."""
    return lambda machines: 1 << largest(policy, bits, model)(machines).bit_length() - 1


def largest_rows(section, what, paper, *placement):
    return [(section, f"largest batch that fits, {what}", paper, "sequences", largest(*placement)),
            (section, "the largest power of two that fits", paper, "sequences", power_of_two(*placement))]


LARGEST_BATCHES = (largest_rows("IV-B", "FlexGen, OPT-30B, 16 bits", 32, FLEXGEN_30B, 16, B30) +
                   largest_rows("IV-B", "FlexGen, OPT-175B, 16 bits", 8, FLEXGEN, 16) +
                   largest_rows("V-C", "FlexGen, OPT-175B, 4.5 bits", 8, FLEXGEN, 4.5) +
                   largest_rows("V-C", "All-CPU, OPT-175B, 4.5 bits", 44, ALL_CPU, 4.5))
# The authors' script (the repository's flexllmgen/apps/output/scripts/plot_throughput_ac_cxl.py) counts words, of which it has
# 1.57 a token at B=8 and 1.45 at B=44: in tokens section V-D's 4.74 are 5.13.
IN_TOKENS = [
    ("V-D", "tokens/s, All-CPU of B=44 over FlexGen of B=8, `cxl-asic`, the paper's words made tokens",
     round(4.74 * 1.57 / 1.45, 2), "x", Ratio(TOKENS_PER_S, (ASIC, ALL_CPU, 44), (ASIC, FLEXGEN, 8))),
]
# "Being the only configuration that achieves FFN load latency lower than MHA compute latency with HeLM."
LOAD_OVER_COMPUTE = [
    ("V-D", "FFN weights' transfer over attention's computation, HeLM, decode, `cxl-asic`", 1, "at most",
     hidden("FFN", "attention", (ASIC, HELM, 1))),
    ("V-D", "the same, `cxl-fpga`", 1, "at least", hidden("FFN", "attention", (FPGA, HELM, 1))),
    ("V-D", "the same, NVDRAM", 1, "at least", hidden("FFN", "attention", (NVDRAM, HELM, 1))),
]
# Section V-D again, with 28 GB/s held to what PCIe lets through.
CAPPED = [
    ("V-D", "TTFT, HeLM below FlexGen, `cxl-asic` capped at PCIe", 21, "below",
     Ratio(TTFT, (CAPPED_ASIC, HELM, 1), (CAPPED_ASIC, FLEXGEN, 1))),
    ("V-D", "TBT, the same", 21, "below", Ratio(TBT, (CAPPED_ASIC, HELM, 1), (CAPPED_ASIC, FLEXGEN, 1))),
    ("V-D", "tokens/s, All-CPU of B=44 over FlexGen of B=8, `cxl-asic` capped at PCIe", 4.74, "x",
     Ratio(TOKENS_PER_S, (CAPPED_ASIC, ALL_CPU, 44), (CAPPED_ASIC, FLEXGEN, 8))),
    ("V-D", "FFN weights' transfer over attention's computation, HeLM, decode, `cxl-asic` capped at PCIe", 1, "at most",
     hidden("FFN", "attention", (CAPPED_ASIC, HELM, 1))),
]


def with_tokens(rows):
    """Each row of tokens/s, which are words in the paper, before what the authors' times make of it."""
    for row in rows:
        yield row
        tokens = row[4].logged() if isinstance(row[4], Ratio) and row[4].key == TOKENS_PER_S else None
        if tokens:
            yield (row[0], "the same in tokens", in_form(tokens, row[3]), row[3], row[4])


BOUNDS = ("at most", "at least")
COUNTS = ("x", "sequences") + BOUNDS  # forms that are no percentages


def as_ratio(figure, form):
    return {"x": figure, "sequences": figure, "below": 1 - figure / 100, "above": 1 + figure / 100}[form]


def in_form(ratio, form):
    """A ratio as the paper would give it."""
    return round({"x": ratio, "below": 100 * (1 - ratio), "above": 100 * (ratio - 1)}[form], 2)


def as_text(value, form):
    if form in COUNTS:
        return f"{value}" if form == "sequences" else f"{value:.2f}"
    return f"{100 * (1 - value if form == 'below' else value - 1):.1f} %"


def error_text(value, figure, form):
    """How far our ratio is from the paper's figure, in its unit."""
    if form in BOUNDS:
        return "holds" if (value <= figure if form == "at most" else value >= figure) else "misses"
    if form in COUNTS:
        return f"{100 * (value / figure - 1):+.0f} %"
    ours = 100 * (1 - value if form == "below" else value - 1)
    return f"{ours - figure:+.1f} points"


def print_rows(rows, ours, more=None):
    """`ours` with its errors, and `more` under its name: ratios by row."""
    print("| section | what | paper | ours | error |" + (f" {more[0]} |" if more else ""))
    print("|---|---|---:|---:|---:|" + ("---:|" if more else ""))
    for i, (section, what, paper, form, _) in enumerate(rows):
        unit = "" if form in COUNTS else " %"
        paper_text = f"{form} {paper}" if form in BOUNDS else f"{paper}{unit}"
        last = f" {as_text(more[1][i], form)} |" if more else ""
        print(f"| {section} | {what} | {paper_text} | {as_text(ours[i], form)} | "
              f"{error_text(ours[i], paper, form)} |{last}")


def print_seconds(machines):
    """The logs' times beside ours."""
    print("| model | bits | machine | policy | batch | TTFT, s: logs | ours | error | TBT, s: logs | ours | error |")
    print("|---|---:|---|---|---:|---:|---:|---:|---:|---:|---:|")
    for (machine, policy, batch, bits, model), times in LOGGED.items():
        plan = machines.plan(machine, policy, batch, bits, model)
        cells = " | ".join(f"{theirs:.2f} | {plan[key]:.2f} | {100 * (plan[key] / theirs - 1):+.0f} %"
                           for key, theirs in zip((TTFT, TBT), times))
        print(f"| {model} | {bits} | {machine} | {' '.join(policy)} | {batch} | {cells} |")


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
    rows = list(with_tokens(FIGURES_4_AND_5 + FIGURE_6 + NOT_FITTED + LARGEST_BATCHES + FIGURES_11_AND_12 + ROWS +
                            IN_TOKENS + LOAD_OVER_COMPUTE + CAPPED))
    print_rows(rows, [row[4](machines) for row in rows])
    print()
    print_seconds(machines)


if __name__ == "__main__":
    main()
