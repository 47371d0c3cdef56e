#!/usr/bin/env python3
"""Simulated against measured time on this machine, for a model whose shape was not calibrated.

  fidelity.py [--sluice PROGRAM] [--calibrate SHAPE] [--judge SHAPE] [--repeat N] [--keep DIR]

Calibrates one shape, with a data folder of its own, then runs `sluice generate` on a folder with random weights of the
other shape, each point in a process of its own, all points by turns, and `sluice simulate --machine this` on the same
points. Time to first token of the prefill, time per token of the decodes; their lengths are no buckets of the
calibration, but for the prefill's 512. "measured" is the median of the runs. Two predictions: at the median rates of
the calibration, and at those probed beside each run (`simulate --rates`), with the median of the runs' errors: others
who use the machine change its rates. --keep leaves calibration and weights in DIR, and takes what an earlier call has
left there. Uses three quarters of the free memory once before.
Needs Python 3 alone, an otherwise idle machine, and room for the weights in DIR or TMPDIR.
"""
import json
import os
import statistics

import fidelity_runs

PREFILL, DECODE = "prefill", "decode"
# (phase, batch, tokens in, tokens out)
POINTS = [(PREFILL, 1, 512, 2), (DECODE, 1, 300, 48), (DECODE, 16, 100, 32), (DECODE, 64, 60, 32)]
KEYS = {PREFILL: "ttft_s", DECODE: "tpot_s"}


def generate(program, model, point):
    """Seconds, and GB/s and TFLOP/s probed before and after."""
    phase, batch, tokens_in, tokens_out = point
    stats = os.path.join(program.folder, "stats.json")
    rates = program.generate("--model", model, "--prompts", program.prompts(batch, tokens_in), "--batch", batch,
                             "--max-tokens", tokens_out, "--temperature", 0, "--stats", stats)
    with open(stats, encoding="utf-8") as file:
        return json.load(file)[KEYS[phase]], tuple(map(float, rates))


def simulate(program, shape, point, rates=None):
    phase, batch, tokens_in, tokens_out = point
    at_rates = ["--rates", "{},{}".format(*rates)] if rates else []
    result, _ = program.run("simulate", "--model", shape, "--machine", "this", "--policy", "cpu-only", "--json",
                            "--batch", batch, "--input-tokens", tokens_in, "--output-tokens", tokens_out, *at_rates)
    return json.loads(result)[0][KEYS[phase]]


def judge_point(program, shape, point, runs):
    """Cells of a line of the table, and both errors."""
    simulated = simulate(program, shape, point)
    measured = [seconds for seconds, _ in runs]
    median = statistics.median(measured)
    beside = [simulate(program, shape, point, rates) for _, rates in runs]
    errors = (simulated / median - 1, statistics.median(at / seconds - 1 for at, seconds in zip(beside, measured)))
    cells = [*point, f"{1e3 * median:.2f} ms", f"{1e3 * min(measured):.2f} to {1e3 * max(measured):.2f}",
             f"{1e3 * simulated:.2f} ms", f"{100 * errors[0]:+.1f} %", f"{1e3 * statistics.median(beside):.2f} ms",
             f"{100 * errors[1]:+.1f} %"]
    return cells, errors


def judge(program, options):
    program.run("calibrate", "--model", options.calibrate, show=True)
    model = program.model(options.judge)
    runs = {point: [] for point in POINTS}
    for _ in range(options.repeat):
        for point, seen in runs.items():
            seen.append(generate(program, model, point))
    judged = [judge_point(program, options.judge, point, seen) for point, seen in runs.items()]
    print(f"calibrated on {options.calibrate}, judged on {options.judge}\n")
    fidelity_runs.print_table(("phase", "batch", "tokens in", "out", "measured", "range", "simulated", "error",
                               "at the rates beside", "error"), [cells for cells, _ in judged])
    fidelity_runs.print_medians(("GB/s meanwhile", "TFLOP/s meanwhile"),
                                [rates for seen in runs.values() for _, rates in seen])
    worst = [max(abs(errors[i]) for _, errors in judged) for i in range(2)]
    print(f"\nworst error {100 * worst[0]:.1f} %, at the rates beside {100 * worst[1]:.1f} %")


if __name__ == "__main__":
    fidelity_runs.main(__doc__, judge, calibrate="qwen2-0.5b", judge="llama-3.2-1b", repeat=5)
