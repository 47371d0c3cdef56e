#!/usr/bin/env python3
"""LIA's Tables 4 and 5 (OPT-30B, 256 tokens in, 32 out, spr-a100) beside what `sluice plan` says.

  lia_tables.py [--sluice PROGRAM]          prints both tables with the errors
  lia_tables.py --simulate                  the same by `sluice simulate`
  lia_tables.py --fit [--sluice PROGRAM]    fits the profile's eight free parameters to section 4, Table 5 and, those of
                                            AVX-512's attention, section 3.2; prints them, Table 4 with them, and the
                                            leave-one-batch-out error
  lia_tables.py --fit --only NAME,NAME      fits these parameters, the others as shipped

No parameter is fitted to Table 4, but one reading is taken from it and Table 5: what HBM keeps free (`reserve=paper`, RESERVE).
Table 4 is printed without that reading as well. Needs Python 3 alone.
"""
import argparse
import json
import math
import os
import subprocess
import tempfile

BATCHES = (1, 64, 900)
SHAPE = ["--model", "opt-30b", "--input-tokens", "256", "--output-tokens", "32", "--json"]
# Seconds. LIA Table 5: CPU, GPU, communication; IPEX: CPU.
TABLE_5 = {
    "LIA": {1: (3.8, 1.2, 0.1), 64: (16.9, 7.7, 3.9), 900: (168.8, 110.8, 118.8)},
    "IPEX": {1: (10.2,), 64: (75.7,), 900: (1216.5,)},
    "FlexGen": {1: (0.05, 1.3, 31.3), 64: (20.9, 9.8, 86.0), 900: (505.0, 98.7, 128.7)},
}
PARTS = ("CPU", "GPU", "Com.")
# Seconds. LIA Table 4.
TABLE_4 = {
    "all optimizations": (5.05, 24.00, 291.02),
    "no Optimization-1": (10.09, 26.97, 297.13),
    "no Optimization-2": (5.05, 26.96, 443.61),
    "FlexGen's policy": (31.07, 84.80, 291.02),
}
# Inferred from Table 4's B=64 (24.00 against 26.97) and Table 5: 6 to 8 of 48 layers were resident there.
RESERVE = "paper"


def of_paper(policy):
    """Options that make a policy choose as its paper does."""
    return ["--policy-option", "choose=equation-1"] if policy == "lia" else []


TABLE_4_OPTIONS = {
    "all optimizations": [],
    "no Optimization-1": ["opt1=off"],
    "no Optimization-2": ["opt2=off"],
    "FlexGen's policy": ["prefill=000000", "decode=011000"],
}
# Section 4: figures that a parameter should agree with.
SECTION_4 = {"cpu_gemm": 20.0, "cpu_bandwidth": 199.0}
# Section 3.2 (Figure 4), OPT-175B, B=32: seconds of a step's attention with AVX-512 at L=64, and what it saves of a step at
# L=1024 beside KV's transfer.
ATTENTION_S_64, SAVED_1024 = 1.0, 0.102

# Name -> (where the fit begins: the shipped profile's value, meaning). Each has part in several cells of Table 5.
PARAMETERS = {
    "link": (24.0, "GB/s of large copies between DDR and HBM, either way"),
    "cpu_gemm": (16.9, "TFLOP/s of AMX GEMMs with many rows"),
    "cpu_half_rows": (9.4, "rows at which GEMMs reach half of that"),
    "cpu_bandwidth": (198.0, "GB/s at which the CPU reads weights"),
    "cpu_attention": (60.7, "GB/s at which AMX decode attention reads KV"),
    "gpu_gemm": (145.0, "TFLOP/s of the A100's GEMMs"),
    "avx512_attention": (0.633, "FlexGen's AVX-512 decode attention over long contexts, as a share of cpu_attention"),
    "avx512_half_tokens": (188.0, "tokens of context over which it reaches half of that"),
}
CONTEXTS = tuple(2 ** i for i in range(4, 13))


def number(value):
    return {"value": value, "source": "fitted"}


def avx512_attention(values):
    peak, half = values["cpu_attention"] * values["avx512_attention"], values["avx512_half_tokens"]
    return {"batch": [1], "context": list(CONTEXTS), "source": "fitted",
            "values": [[round(peak * tokens / (tokens + half), 2) for tokens in CONTEXTS]]}


def profiles(values):
    """spr-a100 and its AVX-512 variant with these parameters, as JSON patches of the shipped ones."""
    link = [{"from": a, "to": b, "pinned": True, "bandwidth_gb_per_s": number(values["link"]),
             "latency_us": number(10)} for a, b in (("ddr", "hbm"), ("hbm", "ddr"))]
    gemm = {"over": "rows", "peak": values["cpu_gemm"], "half_at": values["cpu_half_rows"], "source": "fitted"}
    gpu = {"gemm_tflop_per_s": number(values["gpu_gemm"]), "attention_tflop_per_s": number(values["gpu_gemm"])}
    cpu = {"memory_bandwidth_gb_per_s": number(values["cpu_bandwidth"]), "gemm_tflop_per_s": gemm,
           "attention_tflop_per_s": gemm, "attention_bandwidth_gb_per_s": number(values["cpu_attention"])}
    slow = {"attention_bandwidth_gb_per_s": avx512_attention(values)}
    # Without its CXL memory: Tables 4 and 5 were measured on DDR.
    common = {"links": link, "gpu": gpu, "tiers": {"cxl": None}}
    return ({"name": "fit", "description": "being fitted", "base": "spr-a100", "cpu": cpu} | common,
            {"name": "fit-avx512", "description": "being fitted", "base": "spr-a100-avx512", "cpu": cpu | slow} | common)


class Planner:
    def __init__(self, program, values=None, command="plan"):
        self.program, self.command = program, command
        self.folder = tempfile.TemporaryDirectory()
        self.amx, self.avx512 = "spr-a100", "spr-a100-avx512"
        if values is not None:
            paths = []
            for profile in profiles(values):
                paths.append(os.path.join(self.folder.name, profile["name"] + ".json"))
                with open(paths[-1], "w", encoding="ascii") as file:
                    json.dump(profile, file)
            self.amx, self.avx512 = paths

    def lia(self, options, batches, reserve=RESERVE):
        return self.plans(self.amx, "lia", ["reserve=" + reserve] + options, batches)

    def plans(self, machine, policy, options, batches=BATCHES, shape=SHAPE):
        command = [self.program, self.command, "--machine", machine, "--policy", policy,
                   "--batch", ",".join(map(str, batches))] + shape
        for option in options:
            command += ["--policy-option", option]
        command += of_paper(policy)
        out = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout
        return {plan["batch"]: plan for plan in json.loads(out)}

    def table_5(self, batches=BATCHES):
        def parts(plan):
            cpu, gpu, com = (sum(plan[phase][key] for phase in ("prefill", "decode") for key in keys)
                             for keys in (("cpu_s",), ("gpu_s",), ("load_s", "store_s")))
            return cpu, gpu, com
        lia = self.lia(["opt2=off"], batches)
        ipex = self.plans(self.amx, "cpu-only", [], batches)
        # From B=64 on, FlexGen's communication is all weights, moved 32 times: none of them stayed on the GPU. At B=1 KV
        # does (section 3).
        flexgen = {b: self.plans(self.avx512, "flexgen",
                                 ["overlap=off", "gpu_percent=0" if b > 1 else "attention=gpu"], (b,))[b]
                   for b in batches}
        return {"LIA": {b: parts(p) for b, p in lia.items()},
                "IPEX": {b: (p["latency_s"],) for b, p in ipex.items()},
                "FlexGen": {b: parts(p) for b, p in flexgen.items()}}

    def figure_4(self):
        """Seconds of a step's attention at L=64, and the share of a step at L=1024 that computing it saves."""
        def decode(tokens_in, placement):
            shape = ["--model", "opt-175b", "--input-tokens", str(tokens_in), "--output-tokens", "2", "--json"]
            options = ["prefill=000000", "decode=" + placement, "opt1=off", "opt2=off", "cxl=off"]
            step = self.plans(self.avx512, "lia", options, (32,), shape)[32]["decode"]
            return step["cpu_s"], sum(step[key] for key in ("load_s", "cpu_s", "gpu_s", "store_s"))
        return decode(64, "011000")[0], 1 - decode(1024, "011000")[1] / decode(1024, "000000")[1]

    def table_4(self, batches=BATCHES, reserve=RESERVE):
        rows = {}
        for name, options in TABLE_4_OPTIONS.items():
            rows[name] = {b: p["latency_s"] for b, p in self.lia(options, batches, reserve).items()}
        return rows


def residuals(program, values, batches):
    """Each part's error as a share of its run's time, and the figures of sections 4 and 3.2."""
    planner = Planner(program, values)
    ours = planner.table_5(batches)
    errors = []
    for system, rows in TABLE_5.items():
        for batch in batches:
            total = sum(rows[batch])
            errors += [(mine - paper) / total for mine, paper in zip(ours[system][batch], rows[batch])]
    errors += [0.5 * math.log(values[name] / paper) for name, paper in SECTION_4.items()]
    attention_s, saved = planner.figure_4()
    errors += [0.5 * math.log(attention_s / ATTENTION_S_64), saved - SAVED_1024]
    return errors


def fit(program, batches, steps, names):
    """Nelder and Mead's simplex over these parameters' logarithms, the others as shipped."""
    shipped = {name: value for name, (value, _) in PARAMETERS.items()}

    def cost(point):
        values = shipped | {name: math.exp(x) for name, x in zip(names, point)}
        return sum(error * error for error in residuals(program, values, batches))

    start = [math.log(PARAMETERS[name][0]) for name in names]
    simplex = [(cost(start), start)]
    for i in range(len(names)):
        point = list(start)
        point[i] += 0.15
        simplex.append((cost(point), point))
    for _ in range(steps):
        simplex.sort(key=lambda vertex: vertex[0])
        worst = simplex[-1]
        middle = [sum(v[1][i] for v in simplex[:-1]) / len(names) for i in range(len(names))]

        def along(factor):
            point = [m + factor * (w - m) for m, w in zip(middle, worst[1])]
            return cost(point), point

        reflected = along(-1)
        if reflected[0] < simplex[0][0]:
            simplex[-1] = min(reflected, along(-2))
        elif reflected[0] < simplex[-2][0]:
            simplex[-1] = reflected
        else:
            contracted = along(0.5 if reflected[0] >= worst[0] else -0.5)
            if contracted[0] < min(worst[0], reflected[0]):
                simplex[-1] = contracted
            else:
                best = simplex[0][1]
                simplex[1:] = [(cost(p), p) for p in
                               ([(a + b) / 2 for a, b in zip(best, v[1])] for v in simplex[1:])]
    best = min(simplex)
    return shipped | {name: math.exp(x) for name, x in zip(names, best[1])}


def percent(mine, paper):
    return f"{100 * (mine / paper - 1):+.0f} %"


def print_table_4(rows, batches=BATCHES, title="Table 4, s"):
    errors = []
    print(f"| {title} | " + " | ".join(f"B={b}: paper | ours | error" for b in batches) + " |")
    print("|---|" + "---:|---:|---:|" * len(batches))
    for name, row in rows.items():
        cells = []
        for batch in batches:
            paper = TABLE_4[name][BATCHES.index(batch)]
            errors.append(abs(row[batch] / paper - 1))
            cells.append(f"{paper} | {row[batch]:.2f} | {percent(row[batch], paper)}")
        print(f"| {name} | " + " | ".join(cells) + " |")
    print(f"mean error {100 * sum(errors) / len(errors):.1f} %, worst {100 * max(errors):.0f} %\n")
    return errors


def print_table_5(ours):
    print("| Table 5, s | batch | part | paper | ours | error |\n|---|---:|---|---:|---:|---:|")
    for system, rows in TABLE_5.items():
        for batch, parts in rows.items():
            for part, paper, mine in zip(PARTS, parts, ours[system][batch]):
                print(f"| {system} | {batch} | {part} | {paper} | {mine:.2f} | {percent(mine, paper)} |")
    print()


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sluice", default="sluice", help="the program")
    parser.add_argument("--simulate", action="store_true", help="ask the simulator instead of the planner")
    parser.add_argument("--fit", action="store_true", help="fit the free parameters to Table 5, sections 4 and 3.2")
    parser.add_argument("--only", metavar="NAME,NAME", default=",".join(PARAMETERS), help="parameters to fit")
    parser.add_argument("--steps", type=int, default=250, help="of the simplex")
    arguments = parser.parse_args()
    if not arguments.fit:
        planner = Planner(arguments.sluice, command="simulate" if arguments.simulate else "plan")
        print_table_5(planner.table_5())
        print_table_4(planner.table_4())
        print_table_4(planner.table_4(reserve="engine"), title="Table 4 with `reserve=engine`, s")
        return
    names = arguments.only.split(",")
    if not set(names) <= set(PARAMETERS):
        parser.error(f"--only {arguments.only}: expected some of {', '.join(PARAMETERS)}")
    values = fit(arguments.sluice, BATCHES, arguments.steps, names)
    print("| parameter | value | meaning |\n|---|---:|---|")
    for name, value in values.items():
        print(f"| {name} | {value:.4g} | {PARAMETERS[name][1]} |")
    print()
    planner = Planner(arguments.sluice, values)
    print_table_5(planner.table_5())
    print_table_4(planner.table_4())
    left_out = []
    for batch in BATCHES:
        others = tuple(b for b in BATCHES if b != batch)
        print(f"fitted without B={batch}:\n")
        values = fit(arguments.sluice, others, arguments.steps, names)
        left_out += print_table_4(Planner(arguments.sluice, values).table_4((batch,)), (batch,))
    print(f"leave one batch out: mean error {100 * sum(left_out) / len(left_out):.1f} %, "
          f"worst {100 * max(left_out):.0f} %")


if __name__ == "__main__":
    main()
