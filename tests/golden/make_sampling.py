#!/usr/bin/env python3
"""Writes sampling.safetensors and sampling.json: next-token probabilities as Transformers' generate() shapes them.

Run by hand with a Python that has torch, transformers and safetensors; needs no network. README.md says what the
files hold. The list of processors comes from Transformers itself (_get_logits_processor), so the order is its own:
repetition_penalty, temperature, top_k, top_p, min_p, and then one softmax.
"""
import json
import os
import pathlib

os.environ["HF_HUB_OFFLINE"] = "1"
import safetensors.torch
import torch
import transformers

HERE = pathlib.Path(__file__).resolve().parent
VOCAB = 97
ORDER = ["RepetitionPenaltyLogitsProcessor", "TemperatureLogitsWarper", "TopKLogitsWarper", "TopPLogitsWarper",
         "MinPLogitsWarper"]
# What switches a setting off. Transformers' own default for top_k while sampling is 50, so 0 is passed.
OFF = dict(temperature=1.0, top_k=0, top_p=1.0, min_p=0.0, repetition_penalty=1.0)
MARGIN = 1e-4   # no kept or dropped token may be this near (relative) to a threshold, so that rounding cannot decide

ROWS = [   # settings (those missing are OFF), number of history ids
    (dict(), 0),
    (dict(temperature=0.7), 0),
    (dict(temperature=1.7), 0),
    (dict(temperature=0.05), 0),
    (dict(top_k=1), 0),
    (dict(top_k=10), 0),
    (dict(top_k=200), 0),                                 # more than the vocabulary: keeps all
    (dict(top_k=5, temperature=0.8), 0),                  # ties at the fifth place: all of them stay
    (dict(top_p=0.9), 0),
    (dict(top_p=0.3, temperature=1.3), 0),
    (dict(top_p=0.001), 0),                               # the best token always stays
    (dict(min_p=0.05), 0),
    (dict(min_p=0.3, temperature=2.0), 0),
    (dict(min_p=1.0), 0),
    (dict(repetition_penalty=1.3), 12),
    (dict(repetition_penalty=0.8), 12),
    (dict(repetition_penalty=1.1, temperature=0.6, top_p=0.9), 25),
    (dict(repetition_penalty=1.05, temperature=0.7, top_k=20, top_p=0.8), 31),      # Qwen2.5's own settings
    (dict(temperature=0.6, top_p=0.9, top_k=50), 0),                                # Llama 3's own settings
    (dict(temperature=1.5, top_k=40, min_p=0.1), 0),
    (dict(temperature=1.2, top_p=0.95, min_p=0.02), 0),
    (dict(repetition_penalty=2.0, temperature=0.9, top_k=30, top_p=0.92, min_p=0.03), 31),
    (dict(repetition_penalty=1.2, top_k=3, top_p=0.5), 5),
    (dict(temperature=0.9, top_k=8, top_p=0.7, min_p=0.2, repetition_penalty=1.15), 18),
]
TIED_ROW = 7


def processors(settings):
    """generate()'s own list for these settings."""
    config = transformers.LlamaConfig(vocab_size=VOCAB, hidden_size=8, intermediate_size=8, num_hidden_layers=1,
                                      num_attention_heads=1)
    model = transformers.AutoModelForCausalLM.from_config(config)
    generation = transformers.GenerationConfig(do_sample=True, **{**OFF, **settings})
    found = model._get_logits_processor(generation, input_ids_seq_length=1)
    names = [type(p).__name__ for p in found]
    assert names == [name for name in ORDER if name in names], f"Transformers' order has changed: {names}"
    return found


def near_threshold(settings, ids, logits):
    """Whether top-p's or min-p's decision hangs on rounding (in double, from the scores that each of them sees)."""
    scores = logits.double()[None]
    for processor in processors(settings):
        name = type(processor).__name__
        if name == "TopPLogitsWarper":
            cumulative = scores.sort().values.softmax(-1).cumsum(-1)
            if ((cumulative - (1 - settings["top_p"])).abs() < MARGIN).any():
                return True
        if name == "MinPLogitsWarper" and 0 < settings.get("min_p", 0) < 1:
            ratio = scores.softmax(-1) / scores.softmax(-1).amax()
            if ((ratio / settings["min_p"] - 1).abs() < MARGIN).any():
                return True
        scores = processor(ids, scores)
    return False


def shaped(settings, ids, logits):
    """The probabilities, and which tokens were kept (at a low temperature a kept token's may underflow to 0)."""
    scores = logits[None]
    for processor in processors(settings):
        scores = processor(ids, scores)
    return scores.softmax(-1)[0], scores[0].isfinite()


def draw_row(generator, row, settings, num_history):
    for _ in range(100):
        logits = torch.randn(VOCAB, generator=generator) * 2.5
        if row == TIED_ROW:
            top = logits.topk(9).indices
            logits[top[4:7]] = logits[top[4]].clone()     # places 5, 6 and 7 are equal
        ids = torch.randint(0, VOCAB, (num_history,), generator=generator)
        if num_history > 4:                               # repeats and likely tokens: a repeat is penalised once
            ids[:2] = logits.topk(2).indices
            ids[2] = ids[0]
        if not near_threshold(settings, ids[None], logits):
            return logits, ids
    raise SystemExit(f"row {row}: every draw lies near a threshold")


def main():
    torch.set_num_threads(1)
    generator = torch.Generator().manual_seed(1)
    longest = max(num_history for _, num_history in ROWS)
    history = torch.full((len(ROWS), longest), -1, dtype=torch.int32)
    all_logits, f32, f64, described = [], [], [], []
    for row, (settings, num_history) in enumerate(ROWS):
        logits, ids = draw_row(generator, row, settings, num_history)
        history[row, :num_history] = ids.int()
        all_logits.append(logits)
        in_f32, kept = shaped(settings, ids[None], logits)
        in_f64, kept_f64 = shaped(settings, ids[None], logits.double())
        assert torch.equal(kept, kept_f64), f"row {row}: rounding decides which tokens stay"
        assert (in_f32 - in_f64).abs().max() < 1e-6
        f32.append(in_f32)
        f64.append(in_f64)
        described.append({**OFF, **settings, "history": ids.tolist(), "kept": int(kept.sum())})
    safetensors.torch.save_file(
        {"logits": torch.stack(all_logits), "probabilities": torch.stack(f32), "probabilities_f64": torch.stack(f64),
         "history": history, "top_k": torch.tensor([d["top_k"] for d in described], dtype=torch.int32),
         **{key: torch.tensor([d[key] for d in described], dtype=torch.float32)
            for key in ("temperature", "top_p", "min_p", "repetition_penalty")}},
        HERE / "sampling.safetensors")
    (HERE / "sampling.safetensors").chmod(0o644)
    rows = ",\n    ".join(json.dumps(d) for d in described)
    (HERE / "sampling.json").write_text(
        f'{{\n  "transformers": "{transformers.__version__}",\n  "torch": "{torch.__version__.split("+")[0]}",\n'
        f'  "order": {json.dumps(ORDER)},\n  "off": {json.dumps(OFF)},\n  "rows": [\n    {rows}\n  ]\n}}\n')
    json.loads((HERE / "sampling.json").read_text())
    print(f"{len(ROWS)} rows; tokens kept: {[d['kept'] for d in described]}")


if __name__ == "__main__":
    main()
