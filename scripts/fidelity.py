#!/usr/bin/env python3
"""Simulated against measured time on this machine, for a model whose shape was not calibrated.

  fidelity.py [--sluice PROGRAM] [--calibrate SHAPE] [--judge SHAPE] [--repeat N] [--keep DIR]

Calibrates one shape, with a data folder of its own, then runs `sluice generate` on a folder with random weights of the
other shape, each point in a process of its own, all points by turns, and `sluice simulate --machine this` on the same
points. Time to first token of the prefill, time per token of the decodes; their lengths are no buckets of the
calibration, but for the prefill's 512. "measured" is the median of the runs. Two predictions: at the median rates of
the calibration, and at those probed beside each run (`simulate --rates`), with the median of the runs' errors: others
who use the machine change its rates. --keep leaves calibration and weights in DIR, and takes what an earlier call has
left there. Needs Python 3 alone, an otherwise idle machine, and room for the weights in DIR or TMPDIR.
"""
import argparse
import json
import os
import re
import statistics
import subprocess
import sys
import tempfile

PREFILL, DECODE = "prefill", "decode"
# (phase, batch, tokens in, tokens out)
POINTS = [(PREFILL, 1, 512, 2), (DECODE, 1, 300, 48), (DECODE, 16, 100, 32), (DECODE, 64, 60, 32)]
KEYS = {PREFILL: "ttft_s", DECODE: "tpot_s"}


class Program:
    """sluice with a data folder of its own."""

    def __init__(self, path, folder):
        self.path = os.path.abspath(path)
        self.folder = folder
        self.environment = dict(os.environ, XDG_DATA_HOME=os.path.join(folder, "data"))

    def run(self, *arguments, show=False):
        """What it says on both outputs. Standard error is shown instead, or said when it fails."""
        done = subprocess.run([self.path, *map(str, arguments)], env=self.environment, text=True, check=False,
                              stdout=subprocess.PIPE, stderr=None if show else subprocess.PIPE)
        if done.returncode != 0:
            sys.exit(f"sluice {' '.join(map(str, arguments))} failed\n{done.stderr or ''}")
        return done.stdout, done.stderr

    def generate(self, model, point):
        """Seconds, and GB/s and TFLOP/s probed before and after."""
        phase, batch, tokens_in, tokens_out = point
        prompts, stats = (os.path.join(self.folder, name) for name in ("prompts.jsonl", "stats.json"))
        with open(prompts, "w", encoding="ascii") as file:
            for i in range(batch):
                ids = [1000 + (31 * i + j) % 5000 for j in range(tokens_in)]
                file.write(json.dumps({"id": i, "prompt_token_ids": ids}) + "\n")
        _, said = self.run("generate", "--model", model, "--prompts", prompts, "--batch", batch, "--max-tokens",
                           tokens_out, "--ignore-eos", "--temperature", 0, "--policy", "cpu-only", "-q", "--explain",
                           "--stats", stats)
        rates = re.search(r"beside this run ([\d.]+) GB/s, ([\d.]+) TFLOP/s", said).groups()
        with open(stats, encoding="utf-8") as file:
            return json.load(file)[KEYS[phase]], tuple(map(float, rates))

    def simulate(self, shape, point, rates=None):
        phase, batch, tokens_in, tokens_out = point
        at_rates = ["--rates", "{},{}".format(*rates)] if rates else []
        result, _ = self.run("simulate", "--model", shape, "--machine", "this", "--policy", "cpu-only", "--json",
                             "--batch", batch, "--input-tokens", tokens_in, "--output-tokens", tokens_out, *at_rates)
        return json.loads(result)[0][KEYS[phase]]


def judge_point(program, shape, point, runs):
    """A line of the table, and both errors."""
    simulated = program.simulate(shape, point)
    measured = [seconds for seconds, _ in runs]
    median = statistics.median(measured)
    beside = [program.simulate(shape, point, rates) for _, rates in runs]
    errors = (simulated / median - 1, statistics.median(at / seconds - 1 for at, seconds in zip(beside, measured)))
    cells = [*point, f"{1e3 * median:.2f} ms", f"{1e3 * min(measured):.2f} to {1e3 * max(measured):.2f}",
             f"{1e3 * simulated:.2f} ms", f"{100 * errors[0]:+.1f} %", f"{1e3 * statistics.median(beside):.2f} ms",
             f"{100 * errors[1]:+.1f} %"]
    return f"| {' | '.join(map(str, cells))} |", errors


def judge(program, options):
    program.run("calibrate", "--model", options.calibrate, show=True)
    model = os.path.join(program.folder, options.judge)
    if not os.path.exists(model):
        program.run("make-model", "--shape", options.judge, "--out", model)
    runs = {point: [] for point in POINTS}
    for _ in range(options.repeat):
        for point, seen in runs.items():
            seen.append(program.generate(model, point))
    judged = [judge_point(program, options.judge, point, seen) for point, seen in runs.items()]
    print(f"calibrated on {options.calibrate}, judged on {options.judge}\n")
    print("| phase | batch | tokens in | out | measured | range | simulated | error | at the rates beside | error |")
    print("|---|---|---|---|---|---|---|---|---|---|")
    print("\n".join(line for line, _ in judged))
    for i, unit in enumerate(("GB/s", "TFLOP/s")):
        values = [rates[i] for seen in runs.values() for _, rates in seen]
        print(f"\n{unit} meanwhile: {statistics.median(values):.3g} ({min(values):.3g} to {max(values):.3g})", end="")
    worst = [max(abs(errors[i]) for _, errors in judged) for i in range(2)]
    print(f"\n\nworst error {100 * worst[0]:.1f} %, at the rates beside {100 * worst[1]:.1f} %")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    here = os.path.dirname(os.path.abspath(__file__))
    parser.add_argument("--sluice", default=os.path.join(here, "../build/release/engine/sluice"))
    parser.add_argument("--calibrate", default="qwen2-0.5b")
    parser.add_argument("--judge", default="llama-3.2-1b")
    parser.add_argument("--repeat", type=int, default=5)
    parser.add_argument("--keep")
    options = parser.parse_args()
    if options.keep:
        os.makedirs(options.keep, exist_ok=True)
        judge(Program(options.sluice, options.keep), options)
        return
    with tempfile.TemporaryDirectory() as folder:
        judge(Program(options.sluice, folder), options)


if __name__ == "__main__":
    main()
