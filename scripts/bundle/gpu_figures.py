#!/usr/bin/env python3
"""What gpu-check.sh has measured beside what is wanted.

  gpu_figures.py FOLDER

Reads the folder's JSON files, prints a line a figure, and writes FOLDER/figures.json: machine, date, commands, raw
numbers and these lines, as perfmodels/measured/ holds them. Needs Python 3 alone. What was not measured is said.
"""

import json
import os
import re
import sys

# Of llama-3.1-8b, as models/shapes has it.
LAYERS, HIDDEN, VOCABULARY, PROMPT = 32, 4096, 128256, 2048
BYTES = 2  # an element in bf16
BATCHES = (1, 64)


class Folder:
    def __init__(self, path):
        self.path = path
        self.raw = {}
        for name in sorted(os.listdir(path)):
            if name.endswith(".json") and name != "figures.json":
                try:
                    with open(os.path.join(path, name), encoding="utf-8") as file:
                        self.raw[name[:-len(".json")]] = json.load(file)
                except ValueError:
                    pass  # its step failed, which summary.txt says

    def text(self, name):
        try:
            with open(os.path.join(self.path, name), encoding="utf-8", errors="replace") as file:
                return file.read()
        except OSError:
            return ""

    def steps(self):
        rows = [line.split("\t", 3) for line in self.text("steps.tsv").splitlines()]
        return [{"name": name, "exit": int(status), "seconds": int(seconds), "command": command}
                for name, status, seconds, command in rows]

    def test(self, name, test, batch):
        """A test's object of a bench."""
        for each in self.raw[name]:
            if each["test"] == test and each["batch"] == batch:
                return each
        raise KeyError(f"{name}: {test}, batch {batch}")


def decode_share(folder):
    test = folder.test("llama-3.1-8b", "tg64", 1)
    return test["tokens_per_s_median"] * test["weight_bytes"] / folder.raw["gpu-limits"]["memory_read_bytes_per_s"]


def prefill_share(folder):
    """Matrix products and causal attention of the layers; the head draws one token a prompt."""
    test = folder.test("llama-3.1-8b", f"pp{PROMPT}", 1)
    elements = test["weight_bytes"] / BYTES - VOCABULARY * HIDDEN
    flop = 2 * elements + 2 * PROMPT * HIDDEN * LAYERS
    return test["tokens_per_s_median"] * flop / folder.raw["gpu-limits"]["gemm_bf16_flop_per_s"]


def streaming_share(batch):
    def share(folder):
        test = folder.test("streamed", "tg8", batch)
        copy = max(test["copy_bytes_per_s"], folder.raw["gpu-limits"]["to_gpu_bytes_per_s"])
        return test["to_device_bytes_per_s"] / copy
    return share


def over_floor(batch):
    def ratio(folder):
        test = folder.test("streamed", "tg8", batch)
        return batch / test["tokens_per_s_median"] / folder.raw[f"floor-{batch}"]["pass_s"]
    return ratio


def over_accelerate(batch):
    def ratio(folder):
        test = folder.test("streamed", "tg8", batch)
        return test["tokens_per_s_median"] / folder.raw[f"accelerate-{batch}"]["tokens_per_s"]
    return ratio


def figures_of(folder):
    """What, how, and the least (or most) that is wanted."""
    streamed = folder.raw.get("streamed")
    model = streamed[0]["model"] if streamed else "the model"
    return [
        ("llama-3.1-8b in HBM, decode, batch 1: share of the memory's reading rate", decode_share, "at least", 0.75),
        ("the same, prefill 2048: share of a large bf16 product's rate", prefill_share, "at least", 0.60),
    ] + [figure for batch in BATCHES for figure in (
        (f"{model} streamed, batch {batch}: share of a pinned copy's rate", streaming_share(batch), "at least", 0.92),
        (f"the same: time over a bare loop of copies and products", over_floor(batch), "at most", 1.08),
        (f"the same: tokens/s over accelerate's", over_accelerate(batch), "at least", 5),
    )]


def measure(folder):
    lines = []
    for what, of, relation, wanted in figures_of(folder):
        line = {"what": what, "wanted": f"{relation} {wanted}", "value": None, "reached": None}
        try:
            line["value"] = of(folder)
            line["reached"] = line["value"] >= wanted if relation == "at least" else line["value"] <= wanted
        except (KeyError, TypeError, ZeroDivisionError) as error:
            line["problem"] = f"not measured: {error}"
        lines.append(line)
    return lines


def machine_of(folder):
    described = folder.text("machine.log")
    def found(pattern):
        match = re.search(pattern, described, re.MULTILINE)
        return match.group(1).strip() if match else None
    return {"date": found(r"^(\d{4}-\d\d-\d\dT[\d:]+Z)$"), "cpu": found(r"^Model name: *(.*)$"),
            "gpu": found(r"(NVIDIA \S+[^|]*?)  "), "driver": found(r"Driver Version: *(\S+)"),
            "has_amx": bool(re.search(r"\bamx_bf16\b", described)), "described": described}


def main():
    if len(sys.argv) != 2 or not os.path.isdir(sys.argv[1]):
        print(__doc__.strip(), file=sys.stderr)
        return 2
    folder = Folder(sys.argv[1])
    figures = measure(folder)
    machine = machine_of(folder)
    for figure in figures:
        verdict = {True: "reached", False: "NOT reached", None: figure.get("problem")}[figure["reached"]]
        value = "-" if figure["value"] is None else f"{figure['value']:.3f}"
        print(f"{figure['what']}: {value} ({figure['wanted']}): {verdict}")
    with open(os.path.join(folder.path, "figures.json"), "w", encoding="utf-8") as file:
        json.dump({"machine": machine, "date": machine["date"], "figures": figures, "steps": folder.steps(),
                   "raw": folder.raw}, file, indent=1)
        file.write("\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
