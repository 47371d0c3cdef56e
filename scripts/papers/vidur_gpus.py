#!/usr/bin/env python3
"""The GPUs' rates of dgx-a100 and hgx-h100-2, from what Vidur measured of such GPUs.

  vidur_gpus.py CLONE    CLONE is a folder with github.com/microsoft/vidur

LIA has its eight A100 from Vidur (section 7.8), a simulator that predicts from measurements of one GPU's share of a layer and
of all-reduces, both in its repository (data/profiling). Of all models of about 70 billion parameters there, with as many GPUs
as the profile has:
  reading     a share of a layer's matrices, over the time of their products with one row
  GEMMs       the products' FLOP over their time, by rows
  overheads   norms, rotary embedding, activation and additions of one row, a sixth of which each sublayer has (hgx-h100-2 has
              an assumed launch of NEO's kernels instead)
  all-reduce  the bytes of the sum over the median time, by octaves of bytes; to each, Vidur adds 20 us for its launch by
              default (nccl_cpu_launch_overhead_ms)
Attention's measurements, which the repository has, too, were not at hand: the profiles' rates of it are assumed. Needs
Python 3 alone.
"""
import argparse
import csv
import math
import os
import statistics

MACHINES = {  # profile -> (GPU, GPUs, network, models)
    "dgx-a100": ("a100", 8, "a100_dgx", ("meta-llama/Llama-2-70b-hf", "meta-llama/Meta-Llama-3-70B", "Qwen/Qwen-72B")),
    "hgx-h100-2": ("h100", 2, "h100_dgx", ("meta-llama/Llama-2-70b-hf", "Qwen/Qwen-72B")),
}
PRODUCTS = ("attn_pre_proj", "attn_post_proj", "mlp_up_proj", "mlp_down_proj")
OTHERS = ("input_layernorm", "attn_rope", "post_attention_layernorm", "mlp_act", "add")
ROWS = (64, 128, 256, 512, 1024, 2048, 4096)
SUBLAYERS = 6


def rows_of(*path):
    with open(os.path.join(*path), encoding="ascii") as file:
        return list(csv.DictReader(file))


def share_elements(shape, num_gpus):
    """Elements of one GPU's share of a layer's matrices."""
    hidden, ffn = int(shape["n_embd"]), int(shape["n_expanded_embd"])
    kv = hidden * int(shape["n_kv_head"]) // int(shape["n_head"])
    return (hidden * (hidden + 2 * kv) + hidden * hidden + 3 * hidden * ffn) / num_gpus


def seconds(measured, num_gpus, num_rows, operations):
    """Of all operations together, for so many rows: Vidur's medians are in milliseconds."""
    found = [row for row in measured
             if int(float(row["num_tensor_parallel_workers"])) == num_gpus and int(float(row["num_tokens"])) == num_rows]
    return 1e-3 * sum(statistics.median(float(row[f"time_stats.{name}.median"] or 0) for row in found)
                      for name in operations)


def all_reduces(clone, network, num_gpus):
    """Bytes -> the median second of an all-reduce among so many GPUs of one machine."""
    times = {}
    for row in rows_of(clone, "data/profiling/network", network, "all_reduce.csv"):
        if row["collective"] == "all_reduce" and int(row["num_workers"]) == int(row["devices_per_node"]) == num_gpus:
            times.setdefault(int(row["size"]), []).append(1e-3 * float(row["time_stats.all_reduce.median"]))
    return {size: statistics.median(found) for size, found in times.items()}


def rates(times):
    """[bytes, GB/s] by octaves of size: the median of the sizes, over the median of their times. What took longer than more
    bytes was held up, and counts as long as those: 195 kB among eight A100 took 60 us, 784 kB 39."""
    octaves = {}
    for size, taken in times.items():
        octaves.setdefault(int(math.log2(size)), []).append((size, taken))
    points, longest = [], math.inf
    for _, octave in sorted(octaves.items(), reverse=True):
        size, taken = (statistics.median(values) for values in zip(*octave))
        longest = min(longest, taken)
        points.insert(0, [round(size), float(f"{1e-9 * size / longest:.3g}")])
    return points


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("clone", help="the folder of Vidur")
    clone = parser.parse_args().clone
    for profile, (gpu, num_gpus, network, models) in MACHINES.items():
        tables = [rows_of(clone, "data/profiling/compute", gpu, model, "mlp.csv") for model in models]

        def mean(figure):
            return statistics.mean(figure(share_elements(table[0], num_gpus), table) for table in tables)

        def reading(elements, table):
            return 2e-9 * elements / seconds(table, num_gpus, 1, PRODUCTS)

        def gemm(num_rows):
            return mean(lambda elements, table: 2e-12 * num_rows * elements / seconds(table, num_gpus, num_rows, PRODUCTS))

        def overhead(_elements, table):
            return 1e6 * seconds(table, num_gpus, 1, OTHERS) / SUBLAYERS

        print(f"{profile}: {num_gpus} GPUs, {gpu}")
        print(f"  memory_bandwidth_gb_per_s: {mean(reading):.0f}")
        print(f"  gemm_tflop_per_s: {[[num_rows, round(gemm(num_rows))] for num_rows in ROWS]}")
        print(f"  task_overhead_us: {mean(overhead):.1f}")
        print(f"  all_reduce.bandwidth_gb_per_s: {rates(all_reduces(clone, network, num_gpus))}")


if __name__ == "__main__":
    main()
