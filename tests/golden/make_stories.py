#!/usr/bin/env python3
"""Writes stories260k.json: 200 tokens that Transformers draws greedily, in f32, from a small trained model.

Usage: python make_stories.py FOLDER, the model's folder. The model is not in this tree; the test that reads the file
finds it by SLUICE_SHARED_DIR.
"""
import json
import os
import pathlib
import sys

os.environ["HF_HUB_OFFLINE"] = "1"
import torch
import transformers

PROMPTS = [[1], [1, 403, 407, 261, 378]]
TOKENS = 200


def main():
    model = transformers.AutoModelForCausalLM.from_pretrained(sys.argv[1], dtype=torch.float32).eval()
    model.generation_config = transformers.GenerationConfig(pad_token_id=0)   # an end of sequence ends nothing
    cases = []
    for prompt in PROMPTS:
        ids = torch.tensor([prompt])
        out = model.generate(ids, attention_mask=torch.ones_like(ids), do_sample=False, max_new_tokens=TOKENS)
        cases.append({"prompt": prompt, "greedy": out[0, len(prompt):].tolist()})
    text = ",\n".join(json.dumps(case) for case in cases)
    (pathlib.Path(__file__).resolve().parent / "stories260k.json").write_text(f"[\n{text}\n]\n")


if __name__ == "__main__":
    main()
