"""Weights of compressed-tensors' pack-quantized folders as GGUF's blocks: codes and scales are copied.

A block holds 32 neighbouring inputs of a row: a scale d in f16, then codes. Q4_0 has 16 bytes, in byte i the codes of
inputs i (low bits) and i + 16, each worth (code - 8) * d. Q8_0 has 32 signed bytes, each worth d times itself.
"""

from __future__ import annotations

import numpy as np
from gguf import GGMLQuantizationType

from workload import PeerError

BLOCK_INPUTS = 32
TYPES = {4: GGMLQuantizationType.Q4_0, 8: GGMLQuantizationType.Q8_0}
SCALES = ("F16", "BF16", "F32")


def as_f32(array: np.ndarray) -> np.ndarray:
    """NumPy has no bf16: its bits are carried as uint16."""
    if array.dtype == np.uint16:
        return (array.astype(np.uint32) << 16).view(np.float32)
    return array.astype(np.float32)


def halves(name: str, scales: np.ndarray) -> np.ndarray:
    """The same scales as f16, or an error that names the first one which f16 does not hold."""
    wide = as_f32(scales)
    with np.errstate(over="ignore"):
        narrow = wide.astype(np.float16)
    wrong = ~(np.isfinite(narrow) & (narrow.astype(np.float32) == wide))
    if wrong.any():
        row, group = (int(index) for index in np.argwhere(wrong)[0])
        raise PeerError(f"{name}: the scale of row {row}, group {group} is {wide[row, group]:.9g}, which f16 does not "
                        f"hold; GGUF's blocks have f16 scales, so quantise with `sluice quantize`, which writes f16")
    return narrow


def blocks(name: str, parts: dict[str, tuple[str, np.ndarray]]) -> tuple[GGMLQuantizationType, np.ndarray]:
    """-> (Q4_0 or Q8_0, bytes [rows, bytes of a row]). `parts` are a module's tensors by the end of their names, with
    their stored types: weight_packed, weight_scale, weight_shape."""
    if unknown := sorted(set(parts) - {"weight_packed", "weight_scale", "weight_shape"}):
        raise PeerError(f"{name} has {unknown[0]}; GGUF's Q4_0 and Q8_0 have codes and scales alone: use int4-g32 or "
                        f"int8-g32")
    if missing := sorted({"weight_packed", "weight_scale", "weight_shape"} - set(parts)):
        raise PeerError(f"{name} lacks {missing[0]}; get the folder again")
    (_, packed), (stored, scales), (_, shape) = (parts[f"weight_{part}"] for part in ("packed", "scale", "shape"))
    rows, inputs = (int(size) for size in shape)
    bits = packed.shape[1] * 32 / inputs
    if stored not in SCALES or bits not in TYPES or packed.shape[0] != rows:
        raise PeerError(f"{name}: codes {list(packed.shape)} and {stored} scales for a weight {[rows, inputs]}; "
                        f"expected 4 or 8 bits a code and floating-point scales")
    if scales.shape != (rows, inputs // BLOCK_INPUTS) or inputs % BLOCK_INPUTS:
        raise PeerError(f"{name}: scales {list(scales.shape)} for a weight {[rows, inputs]}; GGUF's Q4_0 and Q8_0 "
                        f"have a scale for {BLOCK_INPUTS} inputs: use int4-g32 or int8-g32")
    scale_bytes = np.ascontiguousarray(halves(name, scales)).view(np.uint8).reshape(rows, -1, 2)
    stored_bytes = np.ascontiguousarray(packed).view(np.uint8).reshape(rows, scale_bytes.shape[1], -1)
    if bits == 4:  # the first code of a byte is in its low bits
        codes = np.stack([stored_bytes & 15, stored_bytes >> 4], axis=-1).reshape(*stored_bytes.shape[:2], BLOCK_INPUTS)
        code_bytes = codes[..., :BLOCK_INPUTS // 2] | codes[..., BLOCK_INPUTS // 2:] << 4
    else:  # code - 128 as a signed byte
        code_bytes = stored_bytes ^ 0x80
    return TYPES[int(bits)], np.concatenate([scale_bytes, code_bytes], axis=-1).reshape(rows, -1)
