#!/usr/bin/env python3
"""Bytes and time of seeded points on the stand-in accelerator, beside the simulation of the same machine.

  stand_in_points.py [--sluice PROGRAM] [--shapes A,B] [--points N] [--seed S] [--threads N] [--repeat N] [--keep DIR]
                     [--touch no]

Calibrates each shape on the CPU and on a stand-in, with a data folder of its own. Draws points: a shape, a placement of
prefill and one of decode, a batch, tokens in and out, and the stand-in's memory between what a run needs and a layer or
two more. Runs `sluice generate` and `sluice simulate --machine this` --repeat times by turns, each time with the rates
of memory and GEMMs that a short run finds beside it. Prints the medians, simulated over measured: bytes to the stand-in
and back, and time. Needs Python 3 alone; times are of use on an otherwise idle machine only.
"""
import json
import os
import random
import re
import statistics
import subprocess
import sys

import fidelity_runs

BYTES, TIME = 0.03, 0.15


class Points:
    def __init__(self, program, options):
        self.program = program
        self.repeat = options.repeat
        self.threads = ["--threads", options.threads] if options.threads else []
        self.random = random.Random(options.seed)
        self.shapes = options.shapes.split(",")

    def model(self, shape):
        return shape if shape == "tiny" else self.program.model(shape)

    def calibrate(self):
        for shape in self.shapes:
            for device in ("cpu", "standin:1GiB"):
                self.program.run("calibrate", "--model", shape, "--repeat", 1, "--device", device, *self.threads)

    def prompts(self, batch, tokens_in):
        path = os.path.join(self.program.folder, "points.jsonl")
        with open(path, "w", encoding="ascii") as file:
            for i in range(batch):
                ids = [100 + (31 * i + j) % 1000 for j in range(tokens_in)]
                file.write(json.dumps({"id": i, "prompt_token_ids": ids}) + "\n")
        return path

    def draw(self):
        """A point that the stand-in holds; never one without the GPU."""
        bits = [f"{self.random.randrange(63):06b}" for _ in range(2)]
        if self.random.random() < 0.5:
            bits[1] = bits[0]
        point = {"shape": self.random.choice(self.shapes), "prefill": bits[0], "decode": bits[1],
                 "batch": self.random.choice([1, 2, 4, 8]), "in": self.random.choice([16, 40]),
                 "out": self.random.choice([4, 8]), "mib": 1}
        found = re.search(r"standin:(\d+)MiB would do", self.try_generate(point).stderr)
        least = int(found[1]) if found else 1
        point["mib"] = least + self.random.choice([1, least // 8 + 1, least // 3 + 1])
        return point

    def options_of(self, point):
        return ["--policy", "lia", "--policy-option", f"prefill={point['prefill']}", "--policy-option",
                f"decode={point['decode']}", "--policy-option", "opt1=off", "--batch", point["batch"], "--device",
                f"standin:{point['mib']}MiB", *self.threads]

    def try_generate(self, point):
        words = ["generate", "--model", self.model(point["shape"]), "--prompts",
                 self.prompts(point["batch"], point["in"]), "--max-tokens", point["out"], "--ignore-eos",
                 "--temperature", 0, "-q", "--stats", os.path.join(self.program.folder, "point.json"),
                 *self.options_of(point)]
        return subprocess.run([self.program.path, *map(str, words)], env=self.program.environment, text=True,
                              check=False, capture_output=True)

    def measured(self, point):
        """Bytes there, bytes back, seconds, mini-batches."""
        done = self.try_generate(point)
        if done.returncode != 0:
            sys.exit(f"{point}: {done.stderr}")
        with open(os.path.join(self.program.folder, "point.json"), encoding="utf-8") as file:
            stats = json.load(file)
        moved = {pair["to"]: pair["bytes"] for pair in stats["moved"]}
        return moved.get("hbm", 0), moved.get("ddr", 0), stats["wall_s"], stats["device"]["prefill_mini_batches"]

    def simulated(self, point, rates):
        said, _ = self.program.run("simulate", "--model", point["shape"], "--machine", "this", "--input-tokens",
                                   point["in"], "--output-tokens", point["out"], "--rates", ",".join(rates), "--json",
                                   *self.options_of(point))
        result = json.loads(said)[0]
        moved = result["bytes_moved"]
        return moved["link to gpu"], moved["link to cpu"], result["latency_s"]

    def rates(self, point):
        return self.program.generate("--model", self.model(point["shape"]), "--prompts", self.prompts(1, 16),
                                     "--max-tokens", 8, *self.threads)


def ratio(simulated, measured):
    return simulated / measured if measured else (1.0 if simulated == 0 else float("inf"))


def judge(program, options):
    points = Points(program, options)
    points.calibrate()
    drawn = [points.draw() for _ in range(options.points)]
    runs = [[] for _ in drawn]
    for _ in range(options.repeat):
        for point, seen in zip(drawn, runs):
            real = points.measured(point)
            simulated = points.simulated(point, points.rates(point))
            seen.append([ratio(s, r) for s, r in zip(simulated, real)] + [*real])
    rows, medians = [], []
    for point, seen in zip(drawn, runs):
        there, back, time, moved, _, seconds, parts = map(statistics.median, zip(*seen))
        medians.append((there, back, time))
        mark = " ".join(name for name, out in (("bytes", max(abs(there - 1), abs(back - 1)) > BYTES),
                                               ("time", abs(time - 1) > TIME)) if out)
        spread = [each[2] for each in seen]
        rows.append([point["shape"], point["prefill"], point["decode"], point["batch"], point["in"], point["out"],
                     f"{point['mib']} MiB", int(parts), f"{moved * 1e-6:.1f} MB", f"{there:.3f}", f"{back:.3f}",
                     f"{1e3 * seconds:.0f} ms", f"{time:.2f}", f"{min(spread):.2f} to {max(spread):.2f}", mark])
    fidelity_runs.print_table(("shape", "prefill", "decode", "batch", "in", "out", "memory", "mini-batches", "moved there",
                               "bytes there", "bytes back", "measured", "time", "range", "out"), rows)
    fidelity_runs.print_medians(("bytes there", "bytes back", "time"), medians)
    within = [sum(max(abs(a - 1), abs(b - 1)) <= BYTES for a, b, _ in medians),
              sum(abs(time - 1) <= TIME for _, _, time in medians)]
    print(f"\nof {len(medians)} points {within[0]} have bytes within {BYTES:.0%}, {within[1]} time within {TIME:.0%}")


if __name__ == "__main__":
    fidelity_runs.main(__doc__, judge, shapes="tiny,opt-125m", points=30, seed=1, threads=1, repeat=3)
