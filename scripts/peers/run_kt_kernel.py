"""kt-kernel's experts of one layer in mxfp4: prints a JSON object with a list of times for each number of rows.

Weights are random codes and scales. Its output for one row is compared with the codes' values in double precision, so
that nothing is timed that computes something else.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from importlib.metadata import version

import kt_kernel
import torch
from kt_kernel.utils.amx import _select_mxfp4_backend

from workload import PeerError

GROUP = 32  # inputs that share a scale
E2M1 = torch.tensor([0, 0.5, 1, 1.5, 2, 3, 4, 6], dtype=torch.float64)
VALUES = torch.cat([E2M1, -E2M1])
ROUTINGS = 8  # choices of experts, taken in turn
REPETITION_S = 0.02  # least time of a repetition
MAX_ERROR = 0.02  # of the largest output; its inputs are bf16


class Matrix:
    """A weight [out, in] of each expert: codes of 4 bits, low ones first, and a power of two for each group."""

    def __init__(self, experts: int, out: int, inputs: int, generator: torch.Generator) -> None:
        self.codes = torch.randint(0, 256, (experts, out, inputs // 2), dtype=torch.uint8, generator=generator)
        exponents = torch.randint(-8, -5, (experts, out, inputs // GROUP), generator=generator)
        self.scales = torch.pow(2.0, exponents.double()).to(torch.bfloat16)

    def values(self, expert: int) -> torch.Tensor:
        codes = self.codes[expert]
        both = torch.stack([codes & 15, codes >> 4], dim=-1).reshape(codes.shape[0], -1)
        return VALUES[both.long()] * self.scales[expert].double().repeat_interleave(GROUP, dim=1)

    def pointers(self) -> tuple[list[list[int]], list[list[int]]]:
        return [[each.data_ptr() for each in self.codes]], [[each.data_ptr() for each in self.scales]]


class Layer:
    def __init__(self, options: argparse.Namespace) -> None:
        self.options = options
        generator = torch.Generator().manual_seed(1)
        self.generator = generator
        sizes = options.experts, options.ffn, options.hidden
        self.gate, self.up = Matrix(*sizes, generator), Matrix(*sizes, generator)
        self.down = Matrix(options.experts, options.hidden, options.ffn, generator)
        extension = kt_kernel.kt_kernel_ext
        pool = extension.WorkerPoolConfig()
        pool.subpool_count, pool.subpool_numa_map, pool.subpool_thread_count = 1, [0], [options.threads]
        self.cpu = extension.CPUInfer(pool)
        on_gpu = torch.zeros(options.experts, dtype=torch.bool)
        config = extension.moe.MOEConfig(options.experts, options.per_token, options.hidden, options.ffn,
                                         on_gpu.data_ptr())
        self.on_gpu = on_gpu  # the config keeps its address
        config.layer_idx, config.pool, config.max_len = 0, self.cpu.backend_, max(options.rows)
        config.gate_projs, config.gate_scales = self.gate.pointers()
        config.up_projs, config.up_scales = self.up.pointers()
        config.down_projs, config.down_scales = self.down.pointers()
        config.quant_config.bits, config.quant_config.group_size, config.quant_config.zero_point = 4, GROUP, False
        backend = _select_mxfp4_backend()
        if backend is None:
            raise PeerError("kt-kernel has no mxfp4 kernel for this CPU")
        self.name = backend.__name__
        self.moe = backend(config)
        self.order = torch.arange(options.experts, dtype=torch.int64)
        self.cpu.submit(self.moe.load_weights_task(self.order.data_ptr()))
        self.cpu.sync()

    def choose(self, rows: int) -> torch.Tensor:
        """Different experts for each row, all with the same chances."""
        chances = torch.rand((rows, self.options.experts), generator=self.generator)
        return chances.topk(self.options.per_token, dim=1).indices.to(torch.int64).contiguous()

    def run(self, x: torch.Tensor, chosen: torch.Tensor, weights: torch.Tensor, out: torch.Tensor,
            count: torch.Tensor) -> None:
        self.cpu.submit(self.moe.forward_task(count.data_ptr(), self.options.per_token, chosen.data_ptr(),
                                              weights.data_ptr(), x.data_ptr(), out.data_ptr(), False))
        self.cpu.sync()

    def check(self) -> float:
        """-> the largest error of one row's outputs, as a share of the largest output."""
        x = torch.randn((1, self.options.hidden), generator=self.generator).to(torch.bfloat16)
        chosen = self.choose(1)
        weights = torch.rand(chosen.shape, generator=self.generator)
        out = torch.zeros((1, self.options.hidden), dtype=torch.bfloat16)
        self.run(x, chosen, weights, out, torch.tensor([1], dtype=torch.int32))
        expected = torch.zeros(self.options.hidden, dtype=torch.float64)
        for expert, weight in zip(chosen[0].tolist(), weights[0].tolist(), strict=True):
            inner = torch.nn.functional.silu(self.gate.values(expert) @ x[0].double())
            inner *= self.up.values(expert) @ x[0].double()
            expected += weight * (self.down.values(expert) @ inner)
        return float((out[0].double() - expected).abs().max() / expected.abs().max())

    def times(self, rows: int) -> list[float]:
        x = torch.randn((rows, self.options.hidden), generator=self.generator).to(torch.bfloat16)
        out = torch.zeros((rows, self.options.hidden), dtype=torch.bfloat16)
        choices = [self.choose(rows) for _ in range(ROUTINGS)]
        weights = torch.full((rows, self.options.per_token), 1 / self.options.per_token)
        count = torch.tensor([rows], dtype=torch.int32)

        def seconds_of(calls: int) -> float:
            begin = time.perf_counter()
            for i in range(calls):
                self.run(x, choices[i % ROUTINGS], weights, out, count)
            return (time.perf_counter() - begin) / calls

        seconds_of(1)
        calls = max(1, round(REPETITION_S / seconds_of(1)))
        return [seconds_of(calls) for _ in range(self.options.repeat)]


def numbers(text: str) -> list[int]:
    return [int(part) for part in text.split(",")]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    for name in ("experts", "per-token", "hidden", "ffn", "threads", "repeat"):
        parser.add_argument(f"--{name}", type=int, required=True)
    parser.add_argument("--rows", type=numbers, required=True)
    layer = Layer(parser.parse_args())
    if (error := layer.check()) > MAX_ERROR:
        raise SystemExit(f"kt-kernel's output differs by {error:.3f} of the largest value: it computes something else")
    times = {rows: layer.times(rows) for rows in layer.options.rows}
    print(json.dumps({"version": version("kt-kernel"), "kernel": layer.name, "error": error, "seconds": times,
                      "median_s": {rows: statistics.median(each) for rows, each in times.items()}}))


if __name__ == "__main__":
    main()
