#!/usr/bin/env python3
"""Writes quantized/: small weights in every form that checkpoints have them, and what the libraries make of them.

Run by hand with a Python that has torch, transformers, safetensors, compressed-tensors and gguf; needs no network. The
outputs are committed: building and testing need no Python. README.md says what the files hold.

    python make_quantized.py
"""
import json
import pathlib
import shutil
import sys

import numpy
import safetensors.torch
import torch
from compressed_tensors.compressors import BaseCompressor
from compressed_tensors.compressors.pack_quantized import pack_to_int32
from compressed_tensors.quantization import QuantizationScheme
from transformers.integrations.mxfp4 import convert_moe_packed_tensors

HERE = pathlib.Path(__file__).resolve().parent / "quantized"
PEERS = HERE.parents[2] / "scripts" / "peers"
Tensors = dict[str, torch.Tensor]


def random_codes(shape: tuple[int, ...], bits: int, generator: torch.Generator) -> torch.Tensor:
    return torch.randint(0, 1 << bits, shape, generator=generator, dtype=torch.int32)


def random_scales(shape: tuple[int, ...], dtype: torch.dtype, generator: torch.Generator) -> torch.Tensor:
    """Of both signs, with a 0, the least subnormal and another."""
    scales = (torch.randn(shape, generator=generator) * 0.01).to(dtype)
    flat = scales.view(-1)
    tiny = torch.finfo(dtype).smallest_normal
    for place, value in enumerate((0.0, torch.finfo(dtype).smallest_normal * torch.finfo(dtype).eps, -0.3 * tiny)):
        if flat.numel() > 2 * place + 2:
            flat[2 * place + 1] = value
    return scales


def random_zero_points(shape: tuple[int, ...], bits: int, generator: torch.Generator) -> torch.Tensor:
    zeros = random_codes(shape, bits, generator)
    zeros.view(-1)[0] = 0
    zeros.view(-1)[-1] = (1 << bits) - 1
    return zeros


def save(case: str, config: dict, tensors: Tensors, expected: Tensors) -> None:
    folder = HERE / case
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    (folder / "config.json").write_text(json.dumps({"quantization_config": config}, indent=2) + "\n")
    contiguous = lambda values: {name: value.contiguous() for name, value in values.items()}
    safetensors.torch.save_file(contiguous(tensors), folder / "model.safetensors", {"format": "pt"})
    safetensors.torch.save_file(contiguous(expected), folder / "expected.safetensors", {"format": "pt"})


# --- compressed-tensors: the library packs and unpacks

def compressed_tensors(case: str, bits: int, group: int, symmetric: bool, dtype: torch.dtype,
                       shapes: list[tuple[int, int]]) -> None:
    generator = torch.Generator().manual_seed(len(case))
    weights = {"num_bits": bits, "type": "int", "symmetric": symmetric,
               "strategy": "group" if group else "channel", **({"group_size": group} if group else {})}
    scheme = QuantizationScheme(targets=["Linear"], weights=weights)
    compressor = BaseCompressor.get_value_from_registry("pack-quantized")
    middle = 1 << (bits - 1)
    tensors, expected = {}, {}
    for i, (rows, inputs) in enumerate(shapes):
        groups = inputs // group if group else 1
        signed = (random_codes((rows, inputs), bits, generator) - middle).to(torch.int8)
        state = {"weight_packed": pack_to_int32(signed, bits),
                 "weight_scale": random_scales((rows, groups), dtype, generator),
                 "weight_shape": torch.tensor([rows, inputs])}
        if not symmetric:
            zeros = (random_zero_points((rows, groups), bits, generator) - middle).to(torch.int8)
            state["weight_zero_point"] = pack_to_int32(zeros, bits, packed_dim=0)
        tensors.update({f"w{i}.{name}": value for name, value in state.items()})
        expected[f"w{i}"] = compressor.decompress(state, scheme)["weight"]
    save(case, {"quant_method": "compressed-tensors", "format": "pack-quantized",
                "config_groups": {"group_0": {"targets": ["Linear"], "weights": weights}}}, tensors, expected)


def compressed_tensors_float(case: str, strategy: str, dtype: torch.dtype, shapes: list[tuple[int, int]]) -> None:
    generator = torch.Generator().manual_seed(len(case))
    weights = {"num_bits": 8, "type": "float", "symmetric": True, "strategy": strategy,
               **({"block_structure": [128, 128]} if strategy == "block" else {})}
    scheme = QuantizationScheme(targets=["Linear"], weights=weights)
    compressor = BaseCompressor.get_value_from_registry("float-quantized")
    tensors, expected = {}, {}
    for i, (rows, inputs) in enumerate(shapes):
        scale_shape = {"tensor": (1,), "channel": (rows, 1),
                       "block": (-(-rows // 128), -(-inputs // 128))}[strategy]
        state = {"weight": random_fp8((rows, inputs), generator),
                 "weight_scale": random_scales(scale_shape, dtype, generator)}
        tensors.update({f"w{i}.{name}": value for name, value in state.items()})
        expected[f"w{i}"] = compressor.decompress(state, scheme)["weight"]
    save(case, {"quant_method": "compressed-tensors", "format": "float-quantized",
                "config_groups": {"group_0": {"targets": ["Linear"], "weights": weights}}}, tensors, expected)


def random_fp8(shape: tuple[int, int], generator: torch.Generator) -> torch.Tensor:
    """Any byte but the two that are NaN."""
    codes = random_codes(shape, 8, generator)
    codes[(codes & 0x7F) == 0x7F] = 0x7E
    return codes.to(torch.uint8).view(torch.float8_e4m3fn)


# --- GGUF: the package's values of the blocks into which scripts/peers copies our codes

def gguf_copies(case: str, bits: int, shapes: list[tuple[int, int]]) -> None:
    sys.path.append(str(PEERS))
    import gguf   # here alone: other scripts import this one
    from gguf_blocks import blocks
    generator = torch.Generator().manual_seed(len(case))
    weights = {"num_bits": bits, "type": "int", "symmetric": True, "strategy": "group", "group_size": 32}
    tensors, expected = {}, {}
    for i, (rows, inputs) in enumerate(shapes):
        signed = (random_codes((rows, inputs), bits, generator) - (1 << (bits - 1))).to(torch.int8)
        parts = {"weight_packed": pack_to_int32(signed, bits),
                 "weight_scale": random_scales((rows, inputs // 32), torch.float16, generator),
                 "weight_shape": torch.tensor([rows, inputs])}
        tensors.update({f"w{i}.{name}": value for name, value in parts.items()})
        stored = {name: ("F16" if name == "weight_scale" else "", part.numpy()) for name, part in parts.items()}
        block_type, rows_of_blocks = blocks(f"w{i}", stored)
        expected[f"w{i}"] = torch.from_numpy(gguf.quants.dequantize(rows_of_blocks, block_type))
    save(case, {"quant_method": "compressed-tensors", "format": "pack-quantized",
                "config_groups": {"group_0": {"targets": ["Linear"], "weights": weights}}}, tensors, expected)


# --- fp8: PyTorch's float8 times the block's scale, in f32, as Transformers' Fp8Dequantize has it

def fp8(case: str, dtype: torch.dtype, shapes: list[tuple[int, int]]) -> None:
    generator = torch.Generator().manual_seed(len(case))
    tensors, expected = {}, {}
    for i, (rows, inputs) in enumerate(shapes):
        weight = random_fp8((rows, inputs), generator)
        scales = random_scales((-(-rows // 128), -(-inputs // 128)), dtype, generator)
        each = scales.float().repeat_interleave(128, 0)[:rows].repeat_interleave(128, 1)[:, :inputs]
        tensors.update({f"w{i}.weight": weight, f"w{i}.weight_scale_inv": scales})
        expected[f"w{i}"] = weight.float() * each
    save(case, {"quant_method": "fp8", "fmt": "e4m3", "activation_scheme": "dynamic",
                "weight_block_size": [128, 128]}, tensors, expected)


# --- GPTQ: packed as AutoGPTQ's pack(), widened as GPTQModel's dequantize_weight()

def pack_rows(codes: torch.Tensor, bits: int) -> torch.Tensor:
    """[n, ...] to words [n * bits / 32, ...], the first code in the lowest bits."""
    in_word = 32 // bits
    words = torch.zeros((codes.shape[0] // in_word, *codes.shape[1:]), dtype=torch.int64)
    for place in range(in_word):
        words |= codes[place::in_word].long() << (bits * place)
    return torch.where(words >= 1 << 31, words - (1 << 32), words).to(torch.int32)


def gptq(case: str, bits: int, group: int, version: str, zeros_of: str, dtype: torch.dtype,
         shapes: list[tuple[int, int]]) -> None:
    generator = torch.Generator().manual_seed(len(case))
    tensors, expected = {}, {}
    for i, (rows, inputs) in enumerate(shapes):
        groups = inputs // group if group > 0 else 1
        codes = random_codes((inputs, rows), bits, generator)
        scales = random_scales((groups, rows), dtype, generator)
        zeros = random_zero_points((groups, rows), bits, generator)
        if zeros_of == "middle":
            zeros = torch.full_like(zeros, 1 << (bits - 1))
        words = pack_rows(zeros.T, bits).T
        if version == "gptq":   # GPTQModel takes this from the words as a whole, and adds it again
            less = 0x11111111 if bits == 4 else 0x01010101
            words = words - less
        g_idx = torch.arange(inputs) // (group if group > 0 else inputs)
        tensors.update({f"w{i}.qweight": pack_rows(codes, bits), f"w{i}.scales": scales, f"w{i}.qzeros": words,
                        f"w{i}.g_idx": g_idx.to(torch.int32)})
        expected[f"w{i}"] = (scales[g_idx] * (codes - zeros[g_idx])).T
    save(case, {"quant_method": "gptq", "bits": bits, "group_size": group, "desc_act": False, "sym": False,
                "checkpoint_format": version}, tensors, expected)


# --- AWQ: packed as AutoAWQ's WQLinear_GEMM.from_linear(), widened as its dequantize_gemm()

AWQ_ORDER = [0, 2, 4, 6, 1, 3, 5, 7]
AWQ_REVERSE_ORDER = [0, 4, 1, 5, 2, 6, 3, 7]


def pack_awq(codes: torch.Tensor) -> torch.Tensor:
    words = torch.zeros((codes.shape[0], codes.shape[1] // 8), dtype=torch.int64)
    for place, column in enumerate(AWQ_ORDER):
        words |= codes[:, column::8].long() << (4 * place)
    return torch.where(words >= 1 << 31, words - (1 << 32), words).to(torch.int32)


def unpack_awq(words: torch.Tensor) -> torch.Tensor:
    shifts = torch.arange(0, 32, 4)
    codes = torch.bitwise_right_shift(words[:, :, None], shifts[None, None, :]).to(torch.int8)
    return torch.bitwise_and(codes[:, :, AWQ_REVERSE_ORDER].reshape(words.shape[0], -1), 15)


def awq(case: str, group: int, zeros_of: str, shapes: list[tuple[int, int]]) -> None:
    generator = torch.Generator().manual_seed(len(case))
    tensors, expected = {}, {}
    for i, (rows, inputs) in enumerate(shapes):
        groups = inputs // group if group > 0 else 1
        codes = random_codes((inputs, rows), 4, generator)
        scales = random_scales((groups, rows), torch.float16, generator)
        zeros = random_zero_points((groups, rows), 4, generator)
        if zeros_of == "middle":
            zeros = torch.full_like(zeros, 8)
        qweight, qzeros = pack_awq(codes), pack_awq(zeros)
        tensors.update({f"w{i}.qweight": qweight, f"w{i}.scales": scales, f"w{i}.qzeros": qzeros})
        repeat = lambda values: values.repeat_interleave(inputs // groups, 0)
        expected[f"w{i}"] = ((unpack_awq(qweight) - repeat(unpack_awq(qzeros))) * repeat(scales)).T
    save(case, {"quant_method": "awq", "bits": 4, "group_size": group, "version": "gemm", "zero_point": True},
         tensors, expected)


# --- MXFP4: Transformers' own conversion

def mxfp4(case: str, shapes: list[tuple[int, int, int]]) -> None:
    generator = torch.Generator().manual_seed(len(case))
    tensors, expected = {}, {}
    for i, (experts, rows, inputs) in enumerate(shapes):
        blocks = random_codes((experts, rows, inputs // 32, 16), 8, generator).to(torch.uint8)
        scales = torch.randint(100, 140, (experts, rows, inputs // 32), generator=generator, dtype=torch.uint8)
        scales.view(-1)[:4] = torch.tensor([0, 1, 2, 250], dtype=torch.uint8)   # subnormal, and large
        tensors.update({f"w{i}_blocks": blocks, f"w{i}_scales": scales})
        values = convert_moe_packed_tensors(blocks, scales, dtype=torch.bfloat16)
        expected[f"w{i}"] = values.transpose(1, 2).reshape(experts * rows, inputs)
    save(case, {"quant_method": "mxfp4", "modules_to_not_convert": ["lm_head"]}, tensors, expected)


# --- The rules of quantize_rows, in NumPy

FACTORS = [numpy.float32(46 - k) / numpy.float32(40) for k in range(19)]
FORMATS = {   # codes, group, rows that share a scale, zero points
    "int4-g32": ("int4", 32, 1, False), "int4-g128z": ("int4", 128, 1, True), "int4-g0": ("int4", 0, 1, False),
    "int4-g64z": ("int4", 64, 1, True), "int8-g32": ("int8", 32, 1, False), "int8-g0z": ("int8", 0, 1, True),
    "fp8-row": ("fp8", 0, 1, False), "fp8-b128": ("fp8", 128, 128, False)}


def to_fp8(values: numpy.ndarray) -> numpy.ndarray:
    clamped = torch.from_numpy(values).clamp(-448, 448)
    return clamped.to(torch.float8_e4m3fn).view(torch.uint8).numpy()


def from_fp8(codes: numpy.ndarray) -> numpy.ndarray:
    return torch.from_numpy(codes).view(torch.float8_e4m3fn).float().numpy()


def stored(scale: numpy.float32, codes: str) -> tuple[int, numpy.float32]:
    """A scale's bits as it is stored (f16, of fp8 f32), and its value."""
    if codes == "fp8":
        return int(numpy.float32(scale).view(numpy.uint32)), numpy.float32(scale)
    half = numpy.float16(scale)
    return int(half.view(numpy.uint16)), numpy.float32(half)


def encode(values: numpy.ndarray, codes: str, zeros: bool, by: numpy.float32
           ) -> tuple[int, int, numpy.ndarray, float]:
    """Scale's bits, zero point, codes and squared error of one group with its scale multiplied by `by`."""
    last = numpy.float32(15 if codes == "int4" else 255)
    low, high = numpy.minimum(values.min(), numpy.float32(0)), numpy.maximum(values.max(), numpy.float32(0))
    extreme = values.reshape(-1)[numpy.abs(values).argmax()]
    if codes == "fp8":
        plain = numpy.abs(extreme) / numpy.float32(448)
    elif zeros:
        plain = (high - low) / last
    else:
        plain = extreme / numpy.float32(-8) if codes == "int4" else numpy.abs(extreme) / numpy.float32(127)
    bits, scale = stored(plain * by, codes)
    zero = numpy.float32({"int4": 8, "int8": 128, "fp8": 0}[codes])
    if zeros:
        zero = numpy.float32(0) if scale == 0 else numpy.rint(numpy.clip((low * by) / -scale, 0, last))
    if scale == 0:
        coded, near = numpy.full(values.shape, zero, numpy.uint8), numpy.zeros_like(values)
    elif codes == "fp8":
        coded = to_fp8(values / scale)
        near = from_fp8(coded)
    else:
        near = numpy.rint(numpy.clip(values / scale, -zero, last - zero))
        coded = (near + zero).astype(numpy.uint8)
    difference = (values.astype(numpy.float64) - near.astype(numpy.float64) * numpy.float64(scale))
    difference = difference.astype(numpy.float32).astype(numpy.float64).reshape(-1)
    padded = numpy.pad(difference * difference, (0, -len(difference) % 8)).reshape(-1, 8)
    lanes = numpy.add.accumulate(padded, axis=0)[-1]   # in eight lanes, one after the other
    return bits, int(zero), coded, float(numpy.add.accumulate(lanes)[-1])


def quantize(rows: numpy.ndarray, name: str, search: bool) -> Tensors:
    codes, group, block, zeros = FORMATS[name]
    num_rows, inputs = rows.shape
    group = group or inputs
    groups = -(-inputs // group)
    all_codes = numpy.zeros(rows.shape, numpy.uint8)
    scales = numpy.zeros((num_rows, groups), numpy.uint32)
    zero_points = numpy.zeros((num_rows, groups), numpy.uint8)
    for row in range(0, num_rows, block):
        for g in range(groups):
            part = (slice(row, row + block), slice(g * group, (g + 1) * group))
            best = encode(rows[part], codes, zeros, numpy.float32(1))
            for factor in FACTORS if search else []:
                tried = encode(rows[part], codes, zeros, factor)
                if tried[3] < best[3]:
                    best = tried
            scales[row:row + block, g], zero_points[row:row + block, g], all_codes[part], _ = best
    result = {"codes": torch.from_numpy(all_codes), "scales": torch.from_numpy(scales.view(numpy.int32))}
    if zeros:
        result["zero_points"] = torch.from_numpy(zero_points)
    return result


def rules() -> None:
    random = numpy.random.default_rng(11)
    rows = (random.standard_normal((12, 256)) * 0.02).astype(numpy.float32)
    rows[1, 32:64] = 0
    rows[2, :32] *= numpy.float32(1e-5)       # subnormal halves as scales
    rows[3, :64] = numpy.abs(rows[3, :64])    # of one sign
    rows[4, :64] = -numpy.abs(rows[4, :64])
    rows[5, 7], rows[5, 9] = 1.5, -1.5        # equal extremes
    rows[6, 200] = -40.0
    odd = rows[:9, :77].copy()
    blocks = (random.standard_normal((130, 136)) * 0.02).astype(numpy.float32)
    inputs = {"rows": rows, "odd_rows": odd, "block_rows": blocks}
    tensors = {name: torch.from_numpy(values) for name, values in inputs.items()}
    for name, (_, group, block, _) in FORMATS.items():
        for search in (False, True):
            of = odd if group == 0 else blocks if block != 1 else rows
            for part, value in quantize(of, name, search).items():
                tensors[f"{name}.{'mse' if search else 'none'}.{part}"] = value
    safetensors.torch.save_file(tensors, HERE / "rules.safetensors", {"format": "pt"})


def main() -> None:
    f16, bf16, f32 = torch.float16, torch.bfloat16, torch.float32
    compressed_tensors("ct-int4-g32", 4, 32, True, f16, [(1, 32), (13, 96), (40, 160)])
    compressed_tensors("ct-int4-g64z", 4, 64, False, bf16, [(8, 64), (13, 192), (33, 128)])
    compressed_tensors("ct-int4-g128z", 4, 128, False, f16, [(16, 128), (21, 256)])
    compressed_tensors("ct-int4-row", 4, 0, True, f32, [(3, 7), (24, 77)])
    compressed_tensors("ct-int4-row-z", 4, 0, False, bf16, [(5, 9), (24, 77)])
    compressed_tensors("ct-int8-g32", 8, 32, True, bf16, [(7, 32), (19, 96)])
    compressed_tensors("ct-int8-g128z", 8, 128, False, f16, [(6, 128), (11, 256)])
    compressed_tensors("ct-int8-row-z", 8, 0, False, f32, [(5, 9), (10, 50)])
    compressed_tensors_float("ct-fp8-row", "channel", bf16, [(3, 5), (17, 33)])
    compressed_tensors_float("ct-fp8-tensor", "tensor", f32, [(4, 6)])
    compressed_tensors_float("ct-fp8-block", "block", f32, [(130, 140)])
    compressed_tensors_float("ct-fp8-block-bf16", "block", bf16, [(20, 260)])
    gguf_copies("gguf-q4_0", 4, [(1, 32), (13, 96), (24, 160)])
    gguf_copies("gguf-q8_0", 8, [(7, 32), (19, 96)])
    fp8("fp8", f32, [(130, 140), (5, 3)])
    gptq("gptq-int4-g128", 4, 128, "gptq", "any", f16, [(8, 128), (24, 256)])
    gptq("gptq-int4-g32-v2", 4, 32, "gptq_v2", "any", f16, [(8, 32), (40, 96)])
    gptq("gptq-int4-row-middle", 4, -1, "gptq", "middle", bf16, [(16, 72)])
    gptq("gptq-int8-g64", 8, 64, "gptq", "any", f16, [(4, 64), (12, 128)])
    gptq("gptq-int8-row-v2", 8, -1, "gptq_v2", "any", f16, [(12, 20)])
    awq("awq-g128", 128, "any", [(8, 128), (24, 256)])
    awq("awq-g32-middle", 32, "middle", [(40, 96)])
    awq("awq-row", -1, "any", [(16, 75)])
    mxfp4("mxfp4", [(2, 3, 32), (1, 17, 96)])
    rules()
    cases = sorted(path.name for path in HERE.iterdir() if (path / "model.safetensors").exists())
    (HERE / "cases.json").write_text(json.dumps(cases, indent=2) + "\n")


if __name__ == "__main__":
    main()
