#!/usr/bin/env python3
"""Writes rope.json: what Transformers makes of the rotary fields of config.json, for many forms of them.

Each entry holds the fields, and either the frequencies [head_dim / 2] and the factor of cosines and sines, or null
where Transformers fails. Run by hand with a Python that has torch and transformers; needs no network.
"""
import json
import os
import pathlib

os.environ["HF_HUB_OFFLINE"] = "1"
import transformers
from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding

HERE = pathlib.Path(__file__).resolve().parent
SIZES = dict(vocab_size=50, hidden_size=64, intermediate_size=40, num_hidden_layers=2, num_attention_heads=4,
             num_key_value_heads=2, max_position_embeddings=64)
YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 16}
LLAMA3 = {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
          "original_max_position_embeddings": 32}
SHORT, LONG = [1.0 + i / 8 for i in range(8)], [4.0] * 8
DEFAULT = {"rope_type": "default", "rope_theta": 500000.0}

FIELDS = {
    "nothing": {},
    "theta": {"rope_theta": 777.0},
    "theta of the parameters counts": {"rope_theta": 777.0, "rope_parameters": DEFAULT},
    "theta beside the parameters": {"rope_theta": 777.0, "rope_parameters": {"rope_type": "default"}},
    "scaling replaces parameters and their theta": {"rope_parameters": DEFAULT, "rope_scaling": YARN},
    "scaling replaces parameters, theta of its own": {"rope_parameters": DEFAULT,
                                                      "rope_scaling": {**YARN, "rope_theta": 2000.0}},
    "scaling replaces parameters, theta outside": {"rope_theta": 777.0, "rope_parameters": DEFAULT,
                                                   "rope_scaling": {"rope_type": "linear", "factor": 4.0}},
    "scaling of another type": {"rope_parameters": {**YARN, "rope_theta": 500000.0},
                                "rope_scaling": {**LLAMA3}},
    "empty scaling": {"rope_parameters": DEFAULT, "rope_scaling": {}},
    "null scaling": {"rope_parameters": DEFAULT, "rope_scaling": None},
    "type": {"rope_scaling": {"type": "linear", "factor": 2.0}},
    "rope_type before type": {"rope_scaling": {"type": "linear", "rope_type": "dynamic", "factor": 2.0}},
    "null rope_type": {"rope_scaling": {"rope_type": None, "factor": 2.0}},
    "unknown type": {"rope_scaling": {"type": "mrope", "factor": 2.0}},
    "linear": {"rope_scaling": {"rope_type": "linear", "factor": 2.5}},
    "linear below 1": {"rope_scaling": {"rope_type": "linear", "factor": 0.5}},
    "linear without factor": {"rope_scaling": {"rope_type": "linear"}},
    "dynamic": {"rope_scaling": {"rope_type": "dynamic", "factor": 2.0}},
    "llama3": {"rope_theta": 500000.0, "rope_scaling": LLAMA3},
    "yarn": {"rope_scaling": YARN},
    "yarn, original outside": {"original_max_position_embeddings": 32, "rope_scaling": YARN},
    "yarn, no original": {"rope_scaling": {"rope_type": "yarn", "factor": 4.0}},
    "yarn, null factor": {"rope_scaling": {**YARN, "factor": None}},
    "yarn, no factor": {"rope_scaling": {"rope_type": "yarn", "original_max_position_embeddings": 16}},
    "yarn, factor 1": {"rope_scaling": {**YARN, "factor": 1.0}},
    "yarn, attention_factor": {"rope_scaling": {**YARN, "attention_factor": 0.75}},
    "yarn, mscale": {"rope_scaling": {**YARN, "mscale": 0.707, "mscale_all_dim": 1.0}},
    "yarn, mscale alone": {"rope_scaling": {**YARN, "mscale": 0.707}},
    "yarn, betas": {"rope_scaling": {**YARN, "beta_fast": 3.0, "beta_slow": 0.5}},
    "yarn, beta 0": {"rope_scaling": {**YARN, "beta_fast": 0}},
    "yarn, not truncated": {"rope_scaling": {**YARN, "truncate": False}},
    "yarn, long context": {"max_position_embeddings": 32768, "rope_theta": 1000000.0,
                           "rope_scaling": {"type": "yarn", "factor": 4.0,
                                            "original_max_position_embeddings": 32768}},
    "longrope": {"rope_scaling": {"rope_type": "longrope", "short_factor": SHORT, "long_factor": LONG,
                                  "original_max_position_embeddings": 16}},
    "longrope, factor": {"rope_scaling": {"rope_type": "longrope", "short_factor": SHORT, "long_factor": LONG,
                                          "factor": 2.0, "original_max_position_embeddings": 16}},
    "longrope, attention_factor": {"rope_scaling": {"rope_type": "longrope", "short_factor": SHORT,
                                                    "long_factor": LONG, "attention_factor": 1.25,
                                                    "original_max_position_embeddings": 16}},
    "proportional": {"rope_parameters": {"rope_type": "proportional", "partial_rotary_factor": 0.5,
                                         "rope_theta": 10000.0}},
    "proportional with factor": {"rope_parameters": {"rope_type": "proportional", "partial_rotary_factor": 0.3,
                                                     "factor": 4.0, "rope_theta": 10000.0}},
}


def rotary(fields):
    try:
        config = transformers.LlamaConfig(**json.loads(json.dumps({**SIZES, **fields})))
        embedding = LlamaRotaryEmbedding(config)
    except (KeyError, ValueError, TypeError, AttributeError):
        return None, None
    return embedding.inv_freq.tolist(), float(embedding.attention_scaling)


def main():
    transformers.logging.set_verbosity_error()
    entries = []
    for name, fields in FIELDS.items():
        frequencies, factor = rotary(fields)
        entries.append({"name": name, "fields": {**SIZES, **fields}, "frequencies": frequencies,
                        "attention_factor": factor})
    text = ",\n".join(json.dumps(entry) for entry in entries)
    (HERE / "rope.json").write_text(f"[\n{text}\n]\n")
    print({entry["name"]: entry["frequencies"] is not None for entry in entries})


if __name__ == "__main__":
    main()
