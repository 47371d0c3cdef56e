"""Measure the embedded model with transformers: held-out perplexity and one greedy story.

    python evaluate.py                 # print the figures
    python evaluate.py --write-card    # and store them in card.json

The bf16 weights of model/ are widened to f32 and all arithmetic is f32.
"""

import argparse
import json
import math
from pathlib import Path

import torch
from tokenizers import Tokenizer
from transformers import LlamaForCausalLM

HERE = Path(__file__).resolve().parent
NEW_TOKENS = 80
PROMPTS = ["Once upon a time, there was a little girl named Lily.",
           "Once upon a time, there was a little boy named Tom who loved to fly his kite.",
           "Mia and Ben were best friends. One sunny day, they",
           "A small fox named Rusty lived in a deep forest. He wanted to",
           "One night, Anna heard a strange noise. It came from"]
PERPLEXITY_DEFINITION = (
    "exp(total negative log-likelihood in nats / number of predicted tokens). Each line of heldout.jsonl is one story, "
    "taken on its own: ids = <|begin_of_text|>, the tokens of the text, <|end_of_text|>. Every token after "
    "<|begin_of_text|> is predicted from all tokens before it, so a story of n text tokens gives n + 1 predictions. "
    "The sums run over all stories. Weights are the bf16 ones of model.safetensors widened to f32; arithmetic is f32.")


@torch.no_grad()
def perplexity(model, tokenizer, texts):
    """-> (perplexity, predicted tokens); see PERPLEXITY_DEFINITION."""
    total, count = 0.0, 0
    for text in texts:
        ids = tokenizer.encode(text).ids + [model.config.eos_token_id]
        assert ids[0] == model.config.bos_token_id and len(ids) <= model.config.max_position_embeddings
        log_probabilities = model(torch.tensor([ids])).logits[0, :-1].double().log_softmax(-1)
        total -= log_probabilities.gather(1, torch.tensor(ids[1:])[:, None]).sum().item()
        count += len(ids) - 1
    return math.exp(total / count), count


@torch.no_grad()
def greedy(model, prompt_ids, new_tokens):
    """Token of the highest logit, new_tokens times, whatever it is; also the narrowest lead over the second."""
    ids, narrowest = list(prompt_ids), math.inf
    for _ in range(new_tokens):
        best = model(torch.tensor([ids])).logits[0, -1].topk(2)
        ids.append(best.indices[0].item())
        narrowest = min(narrowest, (best.values[0] - best.values[1]).item())
    return ids[len(prompt_ids):], narrowest


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--write-card", action="store_true")
    parser.add_argument("--folder", type=Path, default=HERE, help="holds model/ and heldout.jsonl")
    arguments = parser.parse_args()
    torch.set_num_threads(2)
    model = LlamaForCausalLM.from_pretrained(arguments.folder / "model", dtype=torch.float32).eval()
    tokenizer = Tokenizer.from_file(str(arguments.folder / "model" / "tokenizer.json"))
    texts = [json.loads(line)["text"] for line in open(arguments.folder / "heldout.jsonl")]
    value, tokens = perplexity(model, tokenizer, texts)
    print(f"held-out perplexity {value:.6f} on {len(texts)} stories, {tokens} tokens\n")
    card = {"heldout_perplexity": value, "heldout_tokens": tokens, "heldout_stories": len(texts),
            "perplexity_definition": PERPLEXITY_DEFINITION}
    for number, prompt in enumerate(PROMPTS):
        prompt_ids = tokenizer.encode(prompt).ids
        ids, narrowest = greedy(model, prompt_ids, NEW_TOKENS)
        text = tokenizer.decode(ids, skip_special_tokens=False)
        print(f"[{prompt}]{text}\n  (narrowest lead of the best logit: {narrowest:.4f})\n")
        run = {"prompt": prompt, "prompt_token_ids": prompt_ids, "greedy_token_ids": ids, "greedy_text": text,
               "greedy_narrowest_logit_lead": narrowest}
        if number == 0:
            card |= run | {"greedy_definition": "prompt_token_ids starts with <|begin_of_text|>; greedy_token_ids are "
                                                "the 80 tokens after it, each of the highest logit, in f32.",
                           "more_greedy_runs": []}
        else:
            card["more_greedy_runs"].append(run)
    if arguments.write_card:
        (arguments.folder / "card.json").write_text(json.dumps(card, indent=2) + "\n")


if __name__ == "__main__":
    main()
