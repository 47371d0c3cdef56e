#!/usr/bin/env python3
"""Simulated against real runs with the stand-in accelerator on this machine: time, overlap and bytes.

  stand_in_fidelity.py [--sluice PROGRAM] [--model SHAPE] [--memory SIZE] [--threads N] [--repeat N] [--keep DIR]

Calibrates the shape on the CPU and on a stand-in of --calibration_memory, with a data folder of its own, makes a folder
with random weights, and runs `sluice generate --device standin:SIZE` with all weights streamed, each point in a process
of its own, all points by turns. `sluice simulate --machine this` gets the rates of memory and GEMMs that a short run on
the CPU with --explain finds beside each run. For comparison, the link's as the runs' own traces have them: bytes over
the time for which large pieces were on their way, and the median time of those under 4 KiB. Overlap: seconds for which data was on its way to the accelerator while
a device computed. Medians of the runs' ratios. --threads: of each side; without it, all cores. Uses three quarters of the
free memory once before. Needs Python 3 alone and an otherwise idle machine.
"""
import json
import os
import shutil
import statistics

import fidelity_runs

LARGE, SMALL = 1 << 20, 4 << 10
# (name, placement of prefill, of decode, batch, tokens in, tokens out)
POINTS = [("prefill", "000000", "000000", 1, 512, 1), ("decode", "000000", "000000", 4, 16, 6),
          ("attention on the CPU", "000000", "011000", 16, 100, 6)]


def union(intervals):
    """The same time as disjoint intervals, in order."""
    merged = []
    for start, end in sorted(intervals):
        if merged and start <= merged[-1][1]:
            merged[-1][1] = max(merged[-1][1], end)
        else:
            merged.append([start, end])
    return merged


def length(intervals):
    return sum(end - start for start, end in intervals)


def common(first, second):
    """Length of what two disjoint ordered lists share."""
    shared, i, j = 0, 0, 0
    while i < len(first) and j < len(second):
        shared += max(0, min(first[i][1], second[j][1]) - max(first[i][0], second[j][0]))
        if first[i][1] < second[j][1]:
            i += 1
        else:
            j += 1
    return shared


class Trace:
    """What a trace's lines say, in seconds."""

    def __init__(self, folder):
        with open(os.path.join(folder, "trace.jsonl"), encoding="utf-8") as file:
            lines = [json.loads(line) for line in file]
        tiers = {node["id"]: node["tier"] for node in lines[0]["nodes"]}
        self.sent = [line for line in lines if "bytes" in line and "from" in line and tiers[line["to"]] == "hbm"]
        tasks = [line for line in lines if "worker" in line and "start" in line]
        self.computing = union((task["start"] * 1e-9, task["end"] * 1e-9) for task in tasks)
        self.moving = self.moving_of(self.sent)
        self.seconds = self.computing[-1][1] - self.computing[0][0]
        self.overlap_s = common(self.moving, self.computing)
        self.bytes = sum(piece["bytes"] for piece in self.sent)

    @staticmethod
    def moving_of(pieces):
        return union((piece["start"] * 1e-9, piece["end"] * 1e-9) for piece in pieces)

    def link(self):
        """GB/s and us."""
        large = [piece for piece in self.sent if piece["bytes"] >= LARGE]
        small = [piece["end"] - piece["start"] for piece in self.sent if piece["bytes"] < SMALL]
        rate = sum(piece["bytes"] for piece in large) / length(self.moving_of(large))
        return rate * 1e-9, statistics.median(small) * 1e-3


class Runs:
    """Of one model, real and simulated."""

    def __init__(self, program, options):
        self.program = program
        self.shape = options.model
        self.model = program.model(options.model)
        self.memory = options.memory
        self.calibration_memory = options.calibration_memory
        self.threads = ["--threads", options.threads] if options.threads else []

    def calibrate(self):
        for device in ("cpu", f"standin:{self.calibration_memory}"):
            self.program.run("calibrate", "--model", self.shape, "--device", device, *self.threads)

    def rates(self):
        return self.program.generate("--model", self.model, "--prompts", self.program.prompts(1, 16), "--max-tokens", 8,
                                     *self.threads)

    def options_of(self, point):
        _, prefill, decode, batch, _, _ = point
        return ["--policy", "lia", "--policy-option", f"prefill={prefill}", "--policy-option", f"decode={decode}",
                "--policy-option", "opt1=off", "--batch", batch, "--device", f"standin:{self.memory}", *self.threads]

    def trace(self, *arguments):
        folder = os.path.join(self.program.folder, "trace")
        shutil.rmtree(folder, ignore_errors=True)
        self.program.run(*arguments, "--trace", folder)
        return Trace(folder)

    def real(self, point):
        _, _, _, batch, tokens_in, tokens_out = point
        return self.trace("generate", "--model", self.model, "--prompts", self.program.prompts(batch, tokens_in),
                          "--max-tokens", tokens_out, "--ignore-eos", "--temperature", 0, "-q", *self.options_of(point))

    def simulated(self, point, rates):
        _, _, _, _, tokens_in, tokens_out = point
        return self.trace("simulate", "--model", self.shape, "--machine", "this", "--input-tokens", tokens_in,
                          "--output-tokens", tokens_out, "--rates", ",".join(rates), *self.options_of(point))


def judge(program, options):
    runs = Runs(program, options)
    runs.calibrate()
    pairs = {point: [] for point in POINTS}
    links = []
    for _ in range(options.repeat):
        for point, seen in pairs.items():
            rates = runs.rates()
            real = runs.real(point)
            links.append(real.link())
            seen.append((real, runs.simulated(point, rates)))
    rows = []
    for point, seen in pairs.items():
        cells = [point[0], *point[3:]]
        for figure in ("seconds", "overlap_s"):
            real, simulated = ([getattr(pair[i], figure) for pair in seen] for i in (0, 1))
            error = statistics.median(b / a - 1 for a, b in zip(real, simulated))
            cells += [f"{statistics.median(real):.3f} s", f"{statistics.median(simulated):.3f} s", f"{100 * error:+.1f} %"]
        cells.append(f"{100 * statistics.median(b.bytes / a.bytes - 1 for a, b in seen):+.2f} %")
        rows.append(cells)
    fidelity_runs.print_table(("point", "batch", "tokens in", "out", "measured", "simulated", "error", "overlap",
                               "simulated", "error", "bytes, error"), rows)
    fidelity_runs.print_medians(("link, GB/s", "link, us"), links)


if __name__ == "__main__":
    fidelity_runs.main(__doc__, judge, model="qwen2-0.5b", memory="512MiB", calibration_memory="4GiB", threads=0, repeat=3)
