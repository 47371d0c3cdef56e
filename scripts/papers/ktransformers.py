#!/usr/bin/env python3
"""KTransformers' published figures for MiniMax-M2.1 in FP8, beside plans.

  ktransformers.py [--sluice PROGRAM]

Prints two tables of tokens/s. The first has KTransformers as it is: its experts are computed by the CPU while it decodes
and, below a length that is set by hand, for prompts; above it a prompt's experts stream to the GPU layer by layer, and the
GPU waits for them (`experts` with both placements given, overlap=off and hot=none). Four cells are those that the profiles' numbers
were fitted to. The second table has what our own kernels' rates would give on the same machines: nothing is fitted, and
`experts` chooses. Needs Python 3 alone, and some seconds.
"""
import argparse
import json
import os
import subprocess
import tempfile

TOKENS_OUT = 32
ON_CPU, ON_GPU = "000011", "000000"
# Tokens in -> prefill and decode in tokens/s, and where KTransformers computes the prompt's experts.
PAPER = {
    "ktransformers-4090": {2048: (129, 21.8, ON_CPU), 8192: (669, 20.9, ON_GPU), 32768: (1385, 18.5, ON_GPU)},
    "ktransformers-5090": {2048: (408, 32.1, ON_GPU), 8192: (1196, 31.4, ON_GPU), 32768: (2540, 27.6, ON_GPU)},
}
# What the profiles' numbers were fitted to.
FITTED = {("ktransformers-4090", 2048, "decode"), ("ktransformers-4090", 2048, "prefill"),
          ("ktransformers-5090", 2048, "decode"), ("ktransformers-5090", 32768, "prefill")}


def number(value, source):
    return {"value": value, "source": source}


def own_rates():
    """What differs where our kernels compute: by machine, a patch of its profile."""
    xeon = number(398, "derived: twice the 199 GB/s that a socket with 8 channels of DDR5-4800 reads (LIA section 4.2)")
    xeon_gemm = {"over": "rows", "peak": 48, "half_at": 9.4,
                 "source": "derived: spr-a100's curve, LIA's 20 TFLOP/s of 40 cores (section 4.1) x 96 / 40"}
    epyc = number(796, "derived: 1229 of the datasheet x 199 / 307, the share that LIA's Xeon reads of its own")
    epyc_gemm = {"over": "rows", "peak": 25, "half_at": 9.4,
                 "source": "derived: 0.49 TFLOP/s a core of Zen 5, measured on two, x 64, less a fifth for the clock"}
    return {"ktransformers-4090": {"memory_bandwidth_gb_per_s": xeon, "gemm_tflop_per_s": xeon_gemm},
            "ktransformers-5090": {"memory_bandwidth_gb_per_s": epyc, "gemm_tflop_per_s": epyc_gemm}}


def write_profiles(folder):
    """machine -> the file of its profile with our own kernels' rates."""
    files = {}
    for machine, cpu in own_rates().items():
        gpu = number(165.2 if machine.endswith("4090") else 209.5, "datasheet: bf16, sums in f32")
        gpu_rates = {"gemm_tflop_per_s": gpu, "attention_tflop_per_s": gpu}
        files[machine] = os.path.join(folder, f"{machine}-own.json")
        with open(files[machine], "w", encoding="ascii") as file:
            json.dump({"name": f"{machine}-own", "description": "with our own kernels' rates", "base": machine, "cpu": cpu,
                       "gpu": gpu_rates}, file)
    return files


def plan(program, machine, tokens, options=()):
    """A plan's JSON."""
    command = [program, "plan", "--model", "minimax-m2", "--weights", "fp8-b128", "--machine", machine, "--policy",
               "experts", "--batch", "1", "--input-tokens", str(tokens), "--output-tokens", str(TOKENS_OUT), "--json"]
    for option in options:
        command += ["--policy-option", option]
    run = subprocess.run(command, capture_output=True, text=True, check=False)
    if run.returncode != 0:
        raise SystemExit(run.stderr.strip())
    return json.loads(run.stdout)[0]


def rates(point):
    """Tokens/s of the prompt, and of decoding."""
    return {"prefill": point["input_tokens"] / point["ttft_s"], "decode": 1 / point["tpot_s"]}


def text_of(rate):
    return f"{rate:.0f}" if rate >= 100 else f"{rate:.1f}"


def print_table(last_column, row_of):
    """A row for each cell, which ends with the error or how many times as fast a plan is; returns the errors of cells that
    nothing was fitted to."""
    print(f"| machine | tokens in | phase | placement | KTransformers | plan | {last_column} |")
    print("|---|---:|---|---|---:|---:|---:|")
    errors = []
    for machine, cells in PAPER.items():
        for tokens, (prefill, decode, _) in cells.items():
            point = row_of(machine, tokens)
            for phase, paper in (("prefill", prefill), ("decode", decode)):
                ours = rates(point)[phase]
                error = ours / paper - 1
                fitted = (machine, tokens, phase) in FITTED
                if not fitted:
                    errors.append(abs(error))
                last = f"{100 * error:+.0f} %{' (fitted)' if fitted else ''}" if last_column == "error" else f"{ours / paper:.1f}"
                print(f"| {machine} | {tokens} | {phase} | {point[phase]['placement']} | {text_of(paper)} | {text_of(ours)} | "
                      f"{last} |")
    return errors


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--sluice", default="sluice", help="the program")
    program = parser.parse_args().sluice

    def as_it_is(machine, tokens):
        prefill = PAPER[machine][tokens][2]
        return plan(program, machine, tokens, (f"prefill={prefill}", f"decode={ON_CPU}", "overlap=off", "hot=none"))

    print("As KTransformers runs, tokens/s:\n")
    errors = print_table("error", as_it_is)
    print(f"\nThe {len(errors)} cells that are not fitted: {100 * sum(errors) / len(errors):.0f} % on average, "
          f"{100 * max(errors):.0f} % at most.\n")
    print("With our own kernels' rates, tokens/s:\n")
    with tempfile.TemporaryDirectory() as folder:
        files = write_profiles(folder)
        print_table("times as fast", lambda machine, tokens: plan(program, files[machine], tokens))


if __name__ == "__main__":
    main()
