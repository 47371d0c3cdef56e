#!/usr/bin/env python3
"""LIA's section 7.1 of mixtures of experts, in numbers: OPT-175B's FFN cut into experts, on spr-a100.

  lia_experts.py [--sluice PROGRAM]

The section says that policies such as 011011 may be better than 011000 there, and gives no figure. Two tables are printed:
what equation 1 chooses for decode, by number of experts and batch, and the parts of equation 1 in which 011000 and 011011
differ. Each expert has the same part of the FFN's columns, and a token goes through one, evenly drawn. In the first table
memories have room for every batch, as in LIA's own latency model; placements do not depend on the context. The second is of
spr-a100 as it is, with short prompts, so that all fits. Needs Python 3 alone, and some seconds.
"""
import argparse
import json
import os
import subprocess
import tempfile

EXPERTS = (1, 2, 4, 8, 16)
BATCHES = (1, 256, 512, 768, 896, 1024, 1280, 1536, 2048, 3072, 4096, 6144, 8192, 12288, 16384)
TERMS_AT = 1280
TOKENS_IN, SHORT_IN, TOKENS_OUT = 512, 32, 32
LARGE_GIB = 10000  # the most that a profile may have; what DDR lacks beyond is no error


def roomy(folder):
    """spr-a100 with memories for everything, as a file."""
    path = os.path.join(folder, "roomy.json")
    room = {"capacity_gib": {"value": LARGE_GIB, "source": "assumed: for this comparison"}}
    with open(path, "w", encoding="ascii") as file:
        json.dump({"name": "roomy", "description": "spr-a100 with memory for every batch", "base": "spr-a100",
                   "tiers": {"hbm": room, "ddr": room}}, file)
    return path


def plans(program, machine, experts, batches, tokens_in, options=()):
    """batch -> the JSON of a plan's decode."""
    command = [program, "plan", "--model", "opt-175b", "--machine", machine, "--policy", "lia", "--policy-option",
               "opt1=off", "--policy-option", "choose=equation-1", "--experts", str(experts), "--batch",
               ",".join(map(str, batches)), "--input-tokens", str(tokens_in), "--output-tokens", str(TOKENS_OUT),
               "--json"]
    for option in options:
        command += ["--policy-option", option]
    run = subprocess.run(command, capture_output=True, text=True, check=False)
    if run.returncode != 0:
        raise SystemExit(run.stderr.strip())
    points = json.loads(run.stdout)
    for point in points:
        if "problem" in point:
            raise SystemExit(f"{experts} experts, batch {point['batch']}: {point['problem']}")
    return {point["batch"]: point["decode"] for point in points}


def print_placements(program, machine):
    print("| batch | " + " | ".join("dense" if n == 1 else f"{n} experts" for n in EXPERTS) + " |")
    print("|---:|" + "---|" * len(EXPERTS))
    chosen = [plans(program, machine, n, BATCHES, TOKENS_IN) for n in EXPERTS]
    for batch in BATCHES:
        print(f"| {batch} | " + " | ".join(each[batch]["placement"] for each in chosen) + " |")


def print_terms(program):
    """FC1 and FC2 together, of one layer."""
    print("| experts | placement | FC1 and FC2 load | FC1 and FC2 compute | all else | T(p) |")
    print("|---:|---|---:|---:|---:|---:|")
    for n in EXPERTS:
        for placement in ("011000", "011011"):
            decode = plans(program, "spr-a100", n, (TERMS_AT,), SHORT_IN, (f"decode={placement}",))[TERMS_AT]
            sublayers = {each["sublayer"]: each for each in decode["layers"][0]["sublayers"]}
            ffn = [sublayers["fc1"], sublayers["fc2"]]
            load_s = sum(each["load_s"] for each in ffn)
            compute_s = sum(each["compute_s"] for each in ffn)
            total_s = sum(each[part] for each in sublayers.values() for part in ("load_s", "compute_s", "store_s"))
            print(f"| {n} | {placement} | {1e3 * load_s:.1f} | {1e3 * compute_s:.1f} | "
                  f"{1e3 * (total_s - load_s - compute_s):.1f} | {1e3 * total_s:.1f} |")


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--sluice", default="sluice", help="the program")
    program = parser.parse_args().sluice
    with tempfile.TemporaryDirectory() as folder:
        machine = roomy(folder)
        print(f"Decode by equation 1, {TOKENS_IN} tokens in, {TOKENS_OUT} out:\n")
        print_placements(program, machine)
    print(f"\nOne layer at batch {TERMS_AT}, {SHORT_IN} tokens in, ms:\n")
    print_terms(program)


if __name__ == "__main__":
    main()
