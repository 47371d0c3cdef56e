#!/usr/bin/env python3
"""The rates of the A100 on HeLM's machine, from its authors' logs of OPT-175B's computation.

  helm_gpu.py CLONE [--sluice PROGRAM]    CLONE is a folder with github.com/Sacusa/FlexLLMGen

The logs (flexllmgen/apps/output, `exec_time_breakdown`) have, of runs that compute and load in turn, how long each half of
each layer computes: prefill of 128 tokens and a token's decode, by batch, with 16-bit and with 4-bit weights. Medians without
each run's first repetition are taken, and the profile's rates fitted to all of them at once, by least squares of their
logarithms. OPT-30B's logs, and all logs of times per token, which the paper's TTFT, TBT and throughput are from, are left
out. Needs Python 3 alone, and two minutes.
"""
import argparse
import json
import math
import os
import re
import statistics
import subprocess
import tempfile

LOGS = {  # folder -> (batch, bits)
    "batch_size_1": (1, 16), "batch_size_8": (8, 16), "all_cpu/batch_size_8": (8, 16),
    "compressed/batch_size_1": (1, 4.5), "compressed/batch_size_8": (8, 4.5),
    "compressed/all_cpu/batch_size_8": (8, 4.5), "compressed/all_cpu/batch_size_44": (44, 4.5),
}
NUM_LAYERS = 194  # halves, with the embedding and the head
PHASES, HALVES = ("prefill", "decode"), ("attention", "FFN")
# Name -> (where the fit begins, its unit).
RATES = {"memory_bandwidth_gb_per_s": (1300, "GB/s"), "gemm_tflop_per_s": (200, "TFLOP/s"),
         "task_overhead_us": (40, "us"), "dequantize_gb_per_s": (100, "GB/s")}


def log_of(clone, folder):
    path = os.path.join(clone, "flexllmgen/apps/output", folder, "opt_175b_exec_time_breakdown.txt")
    with open(path, encoding="ascii") as file:
        return file.read()


def passes(log):
    """The seconds of all halves in each pass over the layers; prefill and decode take turns."""
    times = [float(s) for s in re.findall(r"^compute_layer \(layer \d+\): ([\d.]+) s$", log, re.M)]
    return [times[i:i + NUM_LAYERS] for i in range(0, len(times), NUM_LAYERS)]


def medians(clone):
    """(batch, bits, phase, half) -> seconds."""
    samples = {}
    for folder, (batch, bits) in LOGS.items():
        for machine in re.split(r"^opt-175b,.*$", log_of(clone, folder), flags=re.M)[1:]:
            for i, halves in enumerate(passes(machine)[2:]):
                for half, name in enumerate(HALVES):
                    key = (batch, bits, PHASES[i % 2], name)
                    samples.setdefault(key, []).extend(halves[1 + half:-1:2])
    return {key: statistics.median(times) for key, times in samples.items()}


class Model:
    """What `sluice plan` says of the same halves on a machine with these rates."""

    def __init__(self, program):
        self.program = program
        self.folder = tempfile.TemporaryDirectory()

    def profile(self, rates):
        gpu = {name: {"value": value, "source": "fitted"} for name, value in rates.items()}
        gpu["attention_tflop_per_s"] = gpu["gemm_tflop_per_s"]
        gpu["attention_bandwidth_gb_per_s"] = gpu["memory_bandwidth_gb_per_s"]
        path = os.path.join(self.folder.name, "fit.json")
        with open(path, "w", encoding="ascii") as file:
            json.dump({"name": "fit", "description": "being fitted", "base": "icelake-a100-memorymode", "gpu": gpu}, file)
        return path

    def times(self, rates):
        machine, times = self.profile(rates), {}
        for bits in (16, 4.5):
            batches = sorted({batch for batch, b in LOGS.values() if b == bits})
            command = [self.program, "plan", "--model", "opt-175b", "--machine", machine, "--policy", "all-cpu",
                       "--batch", ",".join(map(str, batches)), "--input-tokens", "128", "--output-tokens", "2",
                       "--weight-bits", str(bits), "--json"]
            plans = json.loads(subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout)
            for plan in plans:
                for phase in PHASES:
                    layer = [sublayer["compute_s"] for sublayer in plan[phase]["layers"][0]["sublayers"]]
                    for half, seconds in zip(HALVES, (sum(layer[:4]), sum(layer[4:]))):
                        times[plan["batch"], bits, phase, half] = seconds
        return times


def fit(model, measured):
    """Each rate in turn, in steps that shrink, until none of them helps."""
    def error(rates):
        times = model.times(rates)
        return sum(math.log(times[key] / seconds) ** 2 for key, seconds in measured.items())

    rates = {name: start for name, (start, _) in RATES.items()}
    least, step = error(rates), 1.1
    while step > 1.001:
        better = False
        for name in RATES:
            for factor in (step, 1 / step):
                tried = rates | {name: rates[name] * factor}
                found = error(tried)
                if found < least:
                    rates, least, better = tried, found, True
        if not better:
            step = math.sqrt(step)
    return rates, math.sqrt(least / len(measured))


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("clone", help="the folder of FlexLLMGen")
    parser.add_argument("--sluice", default="sluice", help="the program")
    arguments = parser.parse_args()
    measured, model = medians(arguments.clone), Model(arguments.sluice)
    rates, rms = fit(model, measured)
    for name, value in rates.items():
        print(f"{name}: {value:.4g} {RATES[name][1]}")
    print(f"rms error {100 * rms:.1f} %\n")
    print("| batch | bits | phase | half | log, ms | ours, ms | error |\n|---:|---:|---|---|---:|---:|---:|")
    times = model.times(rates)
    for key, seconds in measured.items():
        print("| " + " | ".join(map(str, key)) + f" | {1e3 * seconds:.2f} | {1e3 * times[key]:.2f} | "
              f"{100 * (times[key] / seconds - 1):+.0f} % |")


if __name__ == "__main__":
    main()
