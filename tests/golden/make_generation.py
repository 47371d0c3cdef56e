#!/usr/bin/env python3
"""Writes generation.json: what Transformers' generate() does with fields of generation_config.json, on the tiny model.

Run by hand with a Python that has torch and transformers; needs no network. README.md says what the file holds.
"""
import json
import os
import pathlib

os.environ["HF_HUB_OFFLINE"] = "1"
import torch
import transformers

HERE = pathlib.Path(__file__).resolve().parent
MODEL = HERE.parents[1] / "models/tiny/model"
MAX_NEW_TOKENS = 40
EOS = 2047


def main():
    torch.set_num_threads(1)
    model = transformers.AutoModelForCausalLM.from_pretrained(MODEL, dtype=torch.float32)
    tokenizer = transformers.AutoTokenizer.from_pretrained(MODEL)

    def generate(prompt, fields, count=MAX_NEW_TOKENS):
        model.generation_config = transformers.GenerationConfig(**fields)
        ids = torch.tensor([prompt])
        out = model.generate(ids, attention_mask=torch.ones_like(ids), max_new_tokens=count, do_sample=False,
                             tokenizer=tokenizer)
        return out[0][len(prompt):].tolist()

    eos = dict(eos_token_id=EOS)
    begin = tokenizer("Once upon a time").input_ids
    story = generate(begin, eos, 300)
    assert story[-1] == EOS and EOS not in story[:-1]
    prompt = begin + story[:-18]   # 17 tokens and the end are left of the story
    plain = generate(prompt, eos)
    assert plain == story[-18:]
    pair = tokenizer.decode(plain[5:7])
    middle = pair[1:-1]            # a text that begins and ends inside of tokens
    assert len(tokenizer.decode(plain[5:6])) > 1 and len(tokenizer.decode(plain[6:7])) > 1
    last = tokenizer.decode(plain[-2:-1])
    cases = {
        "plain": eos,
        "min_new_tokens": dict(eos, min_new_tokens=30),
        "min_new_tokens_just_reached": dict(eos, min_new_tokens=17),
        "min_length": dict(eos, min_length=len(prompt) + 25),
        "min_length_below_the_prompt": dict(eos, min_length=len(prompt)),
        "min_new_tokens_before_min_length": dict(eos, min_length=len(prompt) + 35, min_new_tokens=3),
        "min_new_tokens_with_repetition_penalty": dict(eos, min_new_tokens=30, repetition_penalty=1.3),
        "suppress_tokens": dict(eos, suppress_tokens=[plain[9], plain[3]]),
        "begin_suppress_tokens": dict(eos, begin_suppress_tokens=[plain[0], EOS]),
        "suppress_both": dict(eos, suppress_tokens=[plain[2]], begin_suppress_tokens=[plain[0]], min_new_tokens=25),
        "eos_first_of_two": dict(eos_token_id=[plain[6], EOS]),
        "eos_second_of_two": dict(eos_token_id=[EOS, plain[6]]),
        "eos_third_of_three": dict(eos_token_id=[5, EOS, plain[6]]),
        "min_new_tokens_with_two_eos": dict(eos_token_id=[EOS, plain[6]], min_new_tokens=12),
        "stop_strings": dict(eos, stop_strings=[middle]),
        "stop_strings_before_min_new_tokens": dict(eos, stop_strings=["no such text", middle], min_new_tokens=30),
        "stop_strings_special": dict(stop_strings=["<|end_of_text|>"]),
        "stop_strings_text_and_special": dict(stop_strings=[last[-1] + "<|end_of_text|>"]),
        "stop_strings_part_of_special": dict(stop_strings=["_of_"]),
    }
    config = transformers.GenerationConfig()
    document = {
        "transformers": transformers.__version__,
        "fields": sorted(name for name in config.to_dict()),
        "prompt_token_ids": prompt,
        "max_new_tokens": MAX_NEW_TOKENS,
        "cases": [{
  "name" : name, "generation_config" : fields, "token_ids" : generate(prompt, fields)}
                  for name, fields in cases.items()],
    }
    for case in document["cases"]:
        print(case["name"], len(case["token_ids"]), case["token_ids"] == plain, case["token_ids"][-2:])
    (HERE / "generation.json").write_text(json.dumps(document, indent=1) + "\n")


if __name__ == "__main__":
    main()
