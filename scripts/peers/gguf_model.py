"""Writes a Hugging Face folder (Llama, Mistral, Qwen2, Qwen3, mixtures) as a GGUF file: the same weights, for llama.cpp.

Weights in 4 and 8 bits keep their codes (gguf_blocks.py).

As a program: gguf_model.py FOLDER FILE writes the file with a vocabulary, which llama.cpp's server needs.
"""

from __future__ import annotations

import json
import math
import os
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import gguf
import numpy as np

from gguf_blocks import as_f32, blocks
from workload import PeerError

PLAIN = {"BF16": np.uint16, "F16": np.float16, "F32": np.float32}  # NumPy has no bf16: its bits are carried
STORED = PLAIN | {"I32": np.int32, "I64": np.int64}  # codes, shapes
CODED = "weight_"  # how the parts of a quantised weight begin; a plain one is `weight`
# model_type -> llama.cpp's architecture, and whether it rotates pairs (2i, 2i+1) rather than (i, i + head_dim/2).
ARCHITECTURES = {"llama": ("llama", True), "mistral": ("llama", True), "mixtral": ("llama", True),
                 "qwen2": ("qwen2", False), "qwen3": ("qwen3", False), "qwen3_moe": ("qwen3moe", False)}
NAMES = {
    "model.embed_tokens": "token_embd",
    "model.norm": "output_norm",
    "lm_head": "output",
    "input_layernorm": "attn_norm",
    "post_attention_layernorm": "ffn_norm",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "self_attn.q_norm": "attn_q_norm",
    "self_attn.k_norm": "attn_k_norm",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
    "mlp.gate": "ffn_gate_inp",
    "block_sparse_moe.gate": "ffn_gate_inp",
}
# One expert's weights: all of a layer's are one tensor there, an expert behind the other.
EXPERT = re.compile(r"model\.layers\.(\d+)\.(?:mlp|block_sparse_moe)\.experts\.(\d+)\.(\w+)")
EXPERT_NAMES = {"gate_proj": "ffn_gate_exps", "up_proj": "ffn_up_exps", "down_proj": "ffn_down_exps",
                "w1": "ffn_gate_exps", "w3": "ffn_up_exps", "w2": "ffn_down_exps"}


def safetensors(path: Path) -> Iterator[tuple[str, str, np.ndarray]]:
    """-> (name, stored type, array), mapped from the file: an 8-byte length, a JSON header, the data."""
    with path.open("rb") as file:
        header_bytes = int.from_bytes(file.read(8), "little")
        header = json.loads(file.read(header_bytes))
    data = np.memmap(path, np.uint8, "r", offset=8 + header_bytes)
    for name, entry in header.items():
        if name == "__metadata__":
            continue
        if entry["dtype"] not in STORED:
            raise PeerError(f"{path}: {name} is {entry['dtype']}; expected one of {', '.join(STORED)}")
        begin, end = entry["data_offsets"]
        yield name, entry["dtype"], data[begin:end].view(STORED[entry["dtype"]]).reshape(entry["shape"])


def gguf_name(name: str) -> str:
    """model.layers.3.mlp.up_proj.weight -> blk.3.ffn_up.weight"""
    stem, _, kind = name.rpartition(".")
    prefix = ""
    if stem.startswith("model.layers."):
        _, _, layer, stem = stem.split(".", 3)
        prefix = f"blk.{layer}."
    if stem not in NAMES:
        raise PeerError(f"no GGUF name is known for the tensor {name}")
    return f"{prefix}{NAMES[stem]}.{kind}"


def expert_of(module: str) -> tuple[str, int] | None:
    """model.layers.3.mlp.experts.7.up_proj -> (blk.3.ffn_up_exps.weight, 7)"""
    match = EXPERT.fullmatch(module)
    if match is None:
        return None
    layer, number, part = match.groups()
    return f"blk.{layer}.{EXPERT_NAMES[part]}.weight", int(number)


def interleave_halves(array: np.ndarray, num_heads: int) -> np.ndarray:
    """Rows i and i + head_dim/2 of each head become rows 2i and 2i+1, the pairs that llama.cpp rotates."""
    return array.reshape(num_heads, 2, -1, *array.shape[1:]).swapaxes(1, 2).reshape(array.shape)


def add_tensor(writer: gguf.GGUFWriter, name: str, stored: str, array: np.ndarray) -> None:
    """Matrices stay as they are stored; llama.cpp wants vectors (norms, biases) and routers in f32."""
    if stored not in PLAIN:
        raise PeerError(f"{name} is {stored}; expected one of {', '.join(PLAIN)}")
    if array.ndim == 1 or "ffn_gate_inp" in name:  # which experts a row goes through is decided in f32
        writer.add_tensor(name, as_f32(array))
    elif stored == "BF16":
        bits = np.ascontiguousarray(array).view(np.uint8)
        writer.add_tensor(name, bits, raw_dtype=gguf.GGMLQuantizationType.BF16)
    else:
        writer.add_tensor(name, array)


def rope_parameters(config: dict[str, Any]) -> dict[str, Any]:
    """Transformers 5 writes rope_parameters; before, rope_theta and rope_scaling were apart."""
    return {"rope_theta": config.get("rope_theta", 10000.0)} | (
        config.get("rope_parameters") or config.get("rope_scaling") or {})


def llama3_rope_factors(rope: dict[str, Any], head_dim: int) -> np.ndarray:
    """What llama.cpp divides each frequency by: Llama 3.1's stretching of the long wavelengths."""
    factor, low, high = rope["factor"], rope["low_freq_factor"], rope["high_freq_factor"]
    context = rope["original_max_position_embeddings"]
    wavelengths = 2 * math.pi * rope["rope_theta"] ** (np.arange(0, head_dim, 2) / head_dim)
    smooth = np.clip((context / wavelengths - low) / (high - low), 0, 1)
    return (1 / ((1 - smooth) / factor + smooth)).astype(np.float32)


def add_vocabulary(writer: gguf.GGUFWriter, config: dict[str, Any]) -> None:
    """A word for each token, so that the server has something to print. No text is ever tokenized."""
    words = config["vocab_size"]
    writer.add_tokenizer_model("llama")
    writer.add_token_list([f"\u2581w{token}" for token in range(words)])  # llama.cpp prints U+2581 as a blank
    writer.add_token_scores([0.0] * words)
    writer.add_token_types([gguf.TokenType.NORMAL] * words)
    for name, add in (("bos_token_id", writer.add_bos_token_id), ("eos_token_id", writer.add_eos_token_id)):
        if isinstance(config.get(name), int):
            add(config[name])
    writer.add_add_bos_token(False)


def add_metadata(writer: gguf.GGUFWriter, config: dict[str, Any], head_dim: int) -> None:
    writer.add_context_length(config["max_position_embeddings"])
    writer.add_embedding_length(config["hidden_size"])
    writer.add_block_count(config["num_hidden_layers"])
    writer.add_feed_forward_length(config["intermediate_size"])
    writer.add_head_count(config["num_attention_heads"])
    writer.add_head_count_kv(config.get("num_key_value_heads", config["num_attention_heads"]))
    writer.add_key_length(head_dim)
    writer.add_value_length(head_dim)
    writer.add_layer_norm_rms_eps(config["rms_norm_eps"])
    writer.add_rope_dimension_count(head_dim)
    writer.add_rope_freq_base(rope_parameters(config)["rope_theta"])
    writer.add_vocab_size(config["vocab_size"])
    num_experts = config.get("num_experts", config.get("num_local_experts", 0))
    if num_experts:
        writer.add_expert_count(num_experts)
        writer.add_expert_used_count(config["num_experts_per_tok"])
        if "moe_intermediate_size" in config:
            writer.add_expert_feed_forward_length(config["moe_intermediate_size"])


def check_quantization(config: dict[str, Any]) -> None:
    quantization = config.get("quantization_config")
    if quantization is None:
        return
    found = " ".join(str(quantization[field]) for field in ("quant_method", "format") if field in quantization)
    if found != "compressed-tensors pack-quantized":
        raise PeerError(f"conversion to GGUF: weights are of {found}; expected compressed-tensors pack-quantized, as "
                        f"`sluice quantize` writes int4-g32 and int8-g32")


def add_tensors(writer: gguf.GGUFWriter, folder: Path, config: dict[str, Any], pairs_adjacent: bool) -> None:
    heads = config["num_attention_heads"]
    num_heads = {"attn_q": heads, "attn_k": config.get("num_key_value_heads", heads)}

    def ordered(new_name: str, array: np.ndarray) -> np.ndarray:
        part = new_name.split(".")[-2]
        return interleave_halves(array, num_heads[part]) if pairs_adjacent and part in num_heads else array

    coded: dict[str, dict[str, tuple[str, np.ndarray]]] = {}  # by module
    experts: dict[str, dict[int, tuple[str, np.ndarray]]] = {}  # plain ones, by their tensor there and their number
    for path in sorted(folder.glob("model*.safetensors")):
        for name, stored, array in safetensors(path):
            module, _, part = name.rpartition(".")
            if part.startswith(CODED):
                coded.setdefault(module, {})[part] = stored, array
                continue
            if name == "lm_head.weight" and config.get("tie_word_embeddings"):
                continue  # llama.cpp takes the embedding when there is no output matrix
            if expert := expert_of(module):
                experts.setdefault(expert[0], {})[expert[1]] = stored, array
                continue
            new_name = gguf_name(name)
            add_tensor(writer, new_name, stored, ordered(new_name, array))
    coded_experts: dict[str, dict[int, str]] = {}  # their modules
    for module, parts in coded.items():
        if expert := expert_of(module):
            coded_experts.setdefault(expert[0], {})[expert[1]] = module
            continue
        new_name = gguf_name(f"{module}.weight")
        block_type, array = blocks(module, parts)
        writer.add_tensor(new_name, ordered(new_name, array), raw_dtype=block_type)
    for name, by_number in experts.items():
        stored = by_number[0][0]
        add_tensor(writer, name, stored, np.stack([by_number[number][1] for number in range(len(by_number))]))
    for name, modules in coded_experts.items():
        made = [blocks(modules[number], coded[modules[number]]) for number in range(len(modules))]
        writer.add_tensor(name, np.stack([array for _, array in made]), raw_dtype=made[0][0])


def write_gguf(folder: Path, path: Path, vocabulary: bool = False) -> None:
    """Without a vocabulary there is no tokenizer: `compare`'s tests use random token ids."""
    config = json.loads((folder / "config.json").read_text())
    model_type = config["model_type"]
    if model_type not in ARCHITECTURES:
        raise PeerError(f"llama.cpp has no {model_type} models")
    check_quantization(config)
    rope = rope_parameters(config)
    rope_type = rope.get("rope_type") or rope.get("type") or "default"
    if rope_type not in ("default", "llama3"):
        raise PeerError(f"conversion to GGUF: RoPE of type {rope_type} is not written yet")
    architecture, pairs_adjacent = ARCHITECTURES[model_type]
    head_dim = config.get("head_dim") or config["hidden_size"] // config["num_attention_heads"]
    part = path.with_name(path.name + ".part")  # a broken run leaves no file that looks whole
    writer = gguf.GGUFWriter(part, architecture)
    add_metadata(writer, config, head_dim)
    if vocabulary:
        add_vocabulary(writer, config)
    else:
        writer.add_tokenizer_model("none")
    if rope_type == "llama3":
        writer.add_tensor("rope_freqs.weight", llama3_rope_factors(rope, head_dim))
    add_tensors(writer, folder, config, pairs_adjacent)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    os.replace(part, path)


if __name__ == "__main__":
    write_gguf(Path(sys.argv[1]), Path(sys.argv[2]), vocabulary=True)
