#!/usr/bin/env python3
"""LIA against IPEX and FlexGen as `sluice plan` sees it, beside the ranges that LIA's text gives.

  lia_ratios.py [--sluice PROGRAM]    by `sluice plan`
  lia_ratios.py --simulate            by `sluice simulate`; takes long
  lia_ratios.py --section 7.7         of one section

Sections 7.2 (latency, batch 1), 7.3 (throughput, batches 64 and 900) and 7.7 (other models, four machines). IPEX is
`cpu-only`, FlexGen is `flexgen` with the CPU's attention slowed to AVX-512. No parameter was fitted to any of these. Which input lengths the figures show
is not in the text: 32, 256, 1024 and the longest are taken. Needs Python 3 alone.
"""
import argparse
import json
import os
import subprocess
import tempfile

import lia_tables

PROFILES = os.path.join(os.path.dirname(os.path.abspath(__file__)), "../../perfmodels/profiles")
AVX512_GEMM = 1 / 4.5  # section 4.1

# (section, machine, models, what, batches) -> paper's ranges of LIA over IPEX and over FlexGen.
CLAIMS = [
    ("7.2", ("spr-a100",), ("opt-30b",), "latency", (1,), (1.8, 2.1), (5.3, 7.3)),
    ("7.2", ("spr-a100",), ("opt-175b",), "latency", (1,), (1.1, 1.3), (8.5, 12)),
    ("7.2", ("spr-h100",), ("opt-66b",), "latency", (1,), (2.1, 2.5), (4.9, 7.0)),
    ("7.2", ("spr-h100",), ("opt-175b",), "latency", (1,), (1.1, 1.5), (4.0, 5.1)),
    ("7.3", ("spr-a100",), ("opt-30b",), "throughput", (64, 900), (1.5, 6.0), (2.0, 5.9)),
    ("7.3", ("spr-a100",), ("opt-175b",), "throughput", (64, 900), (1.1, 6.1), (1.3, 6.0)),
    ("7.3", ("spr-h100",), ("opt-66b",), "throughput", (64, 900), (1.3, 8.3), (1.2, 3.3)),
    ("7.3", ("spr-h100",), ("opt-175b",), "throughput", (64, 900), (1.2, 10), (1.5, 3.7)),
]
FOUR = ("spr-a100", "spr-h100", "gnr-a100", "gnr-h100")
CLAIMS += [
    ("7.7", FOUR, ("llama-2-70b",), "latency", (1,), (1.2, 1.4), (6.1, 8.4)),
    ("7.7", FOUR, ("llama-2-70b",), "throughput", (64, 900), (1.4, 7.6), (1.4, 7.6)),
    ("7.7", FOUR, ("chinchilla-70b",), "latency", (1,), (1.3, 1.7), (7.4, 10)),
    ("7.7", FOUR, ("chinchilla-70b",), "throughput", (64, 900), (1.3, 4.8), (1.3, 5.0)),
    ("7.7", FOUR, ("bloom-176b",), "latency", (1,), (1.1, 1.4), (7.6, 11)),
    ("7.7", FOUR, ("bloom-176b",), "throughput", (64, 900), (1.1, 6.5), (1.2, 4.9)),
]


def cpu_of(machine):
    with open(os.path.join(PROFILES, machine + ".json"), encoding="ascii") as file:
        profile = json.load(file)
    base = cpu_of(profile["base"]) if "base" in profile else {}
    return base | profile.get("cpu", {})


def without_amx(machine, folder):
    """The machine's profile with AVX-512's rates, as a file."""
    cpu = cpu_of(machine)
    gemm = cpu["gemm_tflop_per_s"]
    slow = {"over": "rows", "peak": gemm["peak"] * AVX512_GEMM, "half_at": gemm["half_at"] * AVX512_GEMM,
            "source": "derived: LIA section 4.1"}
    share = cpu["attention_bandwidth_gb_per_s"]["value"] / cpu_of("spr-a100")["attention_bandwidth_gb_per_s"]["value"]
    attention = cpu_of("spr-a100-avx512")["attention_bandwidth_gb_per_s"]
    attention = attention | {"values": [[rate * share for rate in rates] for rates in attention["values"]],
                             "source": "derived: spr-a100-avx512's, as AMX's rates"}
    path = os.path.join(folder, machine + "-avx512.json")
    with open(path, "w", encoding="ascii") as file:
        json.dump({"name": machine + "-avx512", "description": "AVX-512 only", "base": machine,
                   "cpu": {"gemm_tflop_per_s": slow, "attention_tflop_per_s": slow,
                           "attention_bandwidth_gb_per_s": attention}}, file)
    return path


def latencies(command, machine, model, policy, batches, tokens_in, tokens_out, options=()):
    command = command + ["--model", model, "--machine", machine, "--policy", policy, "--json",
               "--batch", ",".join(map(str, batches)), "--input-tokens", ",".join(map(str, tokens_in)),
               "--output-tokens", str(tokens_out)]
    for option in options:
        command += ["--policy-option", option]
    command += lia_tables.of_paper(policy)
    out = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout
    return {(p["batch"], p["input_tokens"]): p["latency_s"] for p in json.loads(out) if "latency_s" in p}


def flexgen_options(model, batches):
    """Section 3: "For B = 1, all parameters [of OPT-175B] are offloaded to CPU memory while the KV cache and activation are
    stored in GPU memory." Of other models as many parameters as fit are in HBM: 58 % of OPT-30B's (section 5.2)."""
    if batches != (1,):
        return []
    return ["attention=gpu"] + (["gpu_percent=0"] if model == "opt-175b" else [])


def ratios(command, machines, models, batches, folder):
    over = {"IPEX": [], "FlexGen": []}
    for machine in machines:
        slow = without_amx(machine, folder)
        for model in models:
            for tokens_out in (32, 256):
                tokens_in = (32, 256, 1024, 2016 if tokens_out == 32 else 1792)
                point = (batches, tokens_in, tokens_out)
                lia = latencies(command, machine, model, "lia", *point)
                ipex = latencies(command, machine, model, "cpu-only", *point)
                flexgen = latencies(command, slow, model, "flexgen", *point, flexgen_options(model, batches))
                over["IPEX"] += [ipex[key] / lia[key] for key in lia if key in ipex]
                over["FlexGen"] += [flexgen[key] / lia[key] for key in lia if key in flexgen]
    return over


def error(ours, paper):
    return f"{100 * (ours / paper - 1):+.0f} %"


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sluice", default="sluice", help="the program")
    parser.add_argument("--simulate", action="store_true", help="ask the simulator instead of the planner")
    parser.add_argument("--section", help="7.2, 7.3 or 7.7 alone")
    arguments = parser.parse_args()
    command = [arguments.sluice, "simulate" if arguments.simulate else "plan"]
    print("| section | machines | model | what | against | paper | ours | error |\n|---|---|---|---|---|---:|---:|---:|")
    with tempfile.TemporaryDirectory() as folder:
        for section, machines, models, what, batches, ipex, flexgen in CLAIMS:
            if arguments.section not in (None, section):
                continue
            ours = ratios(command, machines, models, batches, folder)
            for other, paper in (("IPEX", ipex), ("FlexGen", flexgen)):
                found = ours[other]
                print(f"| {section} | {', '.join(machines)} | {', '.join(models)} | {what} | {other} | "
                      f"{paper[0]} to {paper[1]} | {min(found):.1f} to {max(found):.1f} | "
                      f"{error(min(found), paper[0])}, {error(max(found), paper[1])} |", flush=True)


if __name__ == "__main__":
    main()
