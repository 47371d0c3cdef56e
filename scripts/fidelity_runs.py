"""What fidelity.py, stand_in_fidelity.py and stand_in_points.py share: runs with a calibration of their own, and how they are shown."""
import argparse
import json
import mmap
import os
import re
import statistics
import subprocess
import sys
import tempfile


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

    def model(self, shape):
        """A folder with random weights, made at the first call."""
        path = os.path.join(self.folder, shape)
        if not os.path.exists(path):
            self.run("make-model", "--shape", shape, "--out", path)
        return path

    def prompts(self, batch, tokens_in):
        path = os.path.join(self.folder, "prompts.jsonl")
        with open(path, "w", encoding="ascii") as file:
            for i in range(batch):
                ids = [1000 + (31 * i + j) % 5000 for j in range(tokens_in)]
                file.write(json.dumps({"id": i, "prompt_token_ids": ids}) + "\n")
        return path

    def generate(self, *arguments):
        """A run on the CPU: GB/s and TFLOP/s probed before and after, as text."""
        _, said = self.run("generate", *arguments, "--ignore-eos", "-q", "--policy", "cpu-only", "--explain")
        return re.search(r"beside this run ([\d.]+) GB/s, ([\d.]+) TFLOP/s", said).groups()


def touch_memory(program):
    """Writes to three quarters of what memory there is. A virtual machine's host finds each page when it is first
    used, which takes up to ten times as long as anything later, and would be measured instead."""
    available, _ = program.run("info", "--json")
    size = json.loads(available)["available_bytes"] * 3 // 4
    with mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS) as memory:
        memory.madvise(mmap.MADV_HUGEPAGE)
        for at in range(0, size, mmap.PAGESIZE):
            memory[at] = 1


def print_table(columns, rows):
    print(f"| {' | '.join(columns)} |\n|{'---|' * len(columns)}")
    for cells in rows:
        print(f"| {' | '.join(map(str, cells))} |")


def print_medians(names, measured):
    """Of each figure: `measured` has one of each name a run."""
    print()
    for name, values in zip(names, zip(*measured)):
        print(f"{name}: {statistics.median(values):.3g} ({min(values):.3g} to {max(values):.3g})")


def main(documentation, judge, /, **defaults):
    """Calls judge(program, options) with the script's own options, whose defaults these are, and the common ones."""
    parser = argparse.ArgumentParser(description=documentation, formatter_class=argparse.RawDescriptionHelpFormatter)
    here = os.path.dirname(os.path.abspath(__file__))
    parser.add_argument("--sluice", default=os.path.join(here, "../build/release/engine/sluice"))
    for name, default in defaults.items():
        parser.add_argument(f"--{name}", type=type(default), default=default)
    parser.add_argument("--keep")
    parser.add_argument("--touch", choices=("yes", "no"), default="yes", help="no: leaves the machine's memory to others")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as temporary:
        folder = options.keep or temporary
        os.makedirs(folder, exist_ok=True)
        program = Program(options.sluice, folder)
        if options.touch == "yes":
            touch_memory(program)
        judge(program, options)
