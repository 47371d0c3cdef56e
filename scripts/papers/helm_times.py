#!/usr/bin/env python3
"""TTFT and time per token on HeLM's machine, from its authors' logs: what `LOGGED` in helm_tables.py has.

  helm_times.py CLONE    CLONE is a folder with github.com/Sacusa/FlexLLMGen

The paper's TTFT and TBT are from these logs (flexllmgen/apps/output, `per_token_latency`): each is the mean of all runs but
the first, as the authors' scripts have it. Its throughput counts words, so that a figure in tokens has to be made of them.
Needs Python 3 alone.
"""
import argparse
import os
import re
import statistics

FOLDERS = {  # folder -> (policy, batch, bits)
    "batch_size_1": ("FlexGen", 1, 16), "batch_size_8": ("FlexGen", 8, 16), "batch_size_32": ("FlexGen", 32, 16),
    "compressed/batch_size_1": ("FlexGen", 1, 4.5), "compressed/batch_size_8": ("FlexGen", 8, 4.5),
    "compressed/mlp_focused/batch_size_1": ("HeLM", 1, 4.5), "compressed/all_cpu/batch_size_1": ("All-CPU", 1, 4.5),
    "compressed/all_cpu/batch_size_8": ("All-CPU", 8, 4.5), "compressed/all_cpu/batch_size_44": ("All-CPU", 44, 4.5),
}
MACHINES = {
    "ssd/storage,nvm/na,dram/memory": "SSD", "ssd/na,nvm/storage,dram/memory": "FSDAX",
    "ssd/na,nvm/memory,dram/na": "NVDRAM", "ssd/na,nvm/memory,dram/cache": "MemoryMode",
    "ssd/na,nvm/na,dram/memory": "DRAM",
}


def logs(clone, folder):
    """(model, machine's name, its log) of each machine that ran."""
    for model in ("opt_30b", "opt_175b"):
        path = os.path.join(clone, "flexllmgen/apps/output", folder, model + "_per_token_latency.txt")
        if os.path.exists(path):
            with open(path, encoding="ascii") as file:
                parts = re.split(r"^opt-\d+b,(.*),gpu/dma$", file.read(), flags=re.M)[1:]
            for name, log in zip(parts[::2], parts[1::2]):
                if name in MACHINES:
                    yield model.replace("_", "-"), MACHINES[name], log


def means(log):
    """TTFT and time per token, seconds, or None of a log that has but the first run."""
    tokens = [(int(i), float(s)) for i, s in re.findall(r"^generate \(token (\d+)\): ([\d.]+) s$", log, re.M)]
    second = [i for i, (token, _) in enumerate(tokens) if token == 0][1:2]
    if not second:
        return None
    later = tokens[second[0]:]
    return (statistics.mean(s for token, s in later if token == 0), statistics.mean(s for token, s in later if token > 0))


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("clone", help="the folder of FlexLLMGen")
    arguments = parser.parse_args()
    for folder, (policy, batch, bits) in FOLDERS.items():
        for model, machine, log in logs(arguments.clone, folder):
            found = means(log)
            if found:
                print(f"{model} {machine} {policy} B={batch} {bits} bits: TTFT {found[0]:.3f} s, TBT {found[1]:.3f} s")


if __name__ == "__main__":
    main()
