#!/usr/bin/env python3
"""Simulated against real runs with the stand-in accelerator on this machine: time, overlap and bytes.

  stand_in_fidelity.py [--sluice PROGRAM] [--model SHAPE] [--memory SIZE] [--repeat N] [--keep DIR]

Calibrates the shape with a data folder of its own, makes a folder with random weights, and runs `sluice generate
--device standin:SIZE` with all weights streamed, each point in a process of its own, all points by turns. Beside each
run: the rates of memory and GEMMs (a short run on the CPU with --explain), and the link's, from the run's own trace:
bytes over the time for which large pieces were on their way, and the median time of those under 4 KiB.
`sluice simulate --machine this` gets both. Overlap: seconds for which data was on its way to the accelerator while
a device computed. Medians of the runs' ratios. Needs Python 3 alone and an otherwise idle machine.
"""
import argparse
import json
import os
import re
import shutil
import statistics
import subprocess
import sys
import tempfile

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


class Program:
    """sluice with a data folder of its own."""

    def __init__(self, options, folder):
        self.path = os.path.abspath(options.sluice)
        self.folder = folder
        self.shape = options.model
        self.model = os.path.join(folder, options.model)
        self.memory = options.memory
        self.environment = dict(os.environ, XDG_DATA_HOME=os.path.join(folder, "data"))

    def run(self, *arguments):
        done = subprocess.run([self.path, *map(str, arguments)], env=self.environment, text=True, check=False,
                              capture_output=True)
        if done.returncode != 0:
            sys.exit(f"sluice {' '.join(map(str, arguments))} failed\n{done.stderr}")
        return done.stderr

    def prompts(self, batch, tokens_in):
        path = os.path.join(self.folder, "prompts.jsonl")
        with open(path, "w", encoding="ascii") as file:
            for i in range(batch):
                file.write(json.dumps({"id": i, "prompt_token_ids": [1000 + (31 * i + j) % 5000 for j in range(tokens_in)]})
                           + "\n")
        return path

    def rates(self):
        said = self.run("generate", "--model", self.model, "--prompts", self.prompts(1, 16), "--max-tokens", 8,
                        "--ignore-eos", "-q", "--policy", "cpu-only", "--explain")
        return re.search(r"beside this run ([\d.]+) GB/s, ([\d.]+) TFLOP/s", said).groups()

    def options_of(self, point):
        _, prefill, decode, batch, _, _ = point
        return ["--policy", "lia", "--policy-option", f"prefill={prefill}", "--policy-option", f"decode={decode}",
                "--policy-option", "opt1=off", "--batch", batch, "--device", f"standin:{self.memory}"]

    def trace(self, *arguments):
        folder = os.path.join(self.folder, "trace")
        shutil.rmtree(folder, ignore_errors=True)
        self.run(*arguments, "--trace", folder)
        return Trace(folder)

    def real(self, point):
        _, _, _, batch, tokens_in, tokens_out = point
        return self.trace("generate", "--model", self.model, "--prompts", self.prompts(batch, tokens_in), "--max-tokens",
                          tokens_out, "--ignore-eos", "--temperature", 0, "-q", *self.options_of(point))

    def simulated(self, point, rates, link):
        _, _, _, _, tokens_in, tokens_out = point
        return self.trace("simulate", "--model", self.shape, "--machine", "this", "--input-tokens", tokens_in,
                          "--output-tokens", tokens_out, "--rates", ",".join(rates), "--link",
                          "{:.4f},{:.2f}".format(*link), *self.options_of(point))


def compare(program, repeat):
    pairs = {point: [] for point in POINTS}
    links = []
    for _ in range(repeat):
        for point, seen in pairs.items():
            rates = program.rates()
            real = program.real(point)
            links.append(real.link())
            seen.append((real, program.simulated(point, rates, links[-1])))
    print("| point | batch | tokens in | out | measured | simulated | error | overlap | simulated | error | bytes, error |")
    print("|---|---|---|---|---|---|---|---|---|---|---|")
    for point, seen in pairs.items():
        cells = [point[0], *point[3:]]
        for figure in ("seconds", "overlap_s"):
            real, simulated = ([getattr(pair[i], figure) for pair in seen] for i in (0, 1))
            error = statistics.median(b / a - 1 for a, b in zip(real, simulated))
            cells += [f"{statistics.median(real):.3f} s", f"{statistics.median(simulated):.3f} s", f"{100 * error:+.1f} %"]
        cells.append(f"{100 * statistics.median(b.bytes / a.bytes - 1 for a, b in seen):+.2f} %")
        print(f"| {' | '.join(map(str, cells))} |")
    for i, unit in enumerate(("GB/s", "us")):
        values = [link[i] for link in links]
        print(f"\nlink, {unit}: {statistics.median(values):.3g} ({min(values):.3g} to {max(values):.3g})", end="")
    print()


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    here = os.path.dirname(os.path.abspath(__file__))
    parser.add_argument("--sluice", default=os.path.join(here, "../build/release/engine/sluice"))
    parser.add_argument("--model", default="qwen2-0.5b")
    parser.add_argument("--memory", default="512MiB")
    parser.add_argument("--repeat", type=int, default=3)
    parser.add_argument("--keep")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as temporary:
        folder = options.keep or temporary
        os.makedirs(folder, exist_ok=True)
        program = Program(options, folder)
        program.run("calibrate", "--model", options.model)
        if not os.path.exists(program.model):
            program.run("make-model", "--shape", options.model, "--out", program.model)
        compare(program, options.repeat)


if __name__ == "__main__":
    main()
