"""Train the embedded model: tokenizer, then a small Llama, written as a Hugging Face folder.

    python train.py --steps 100 --out trial                              # a short trial elsewhere
    python train.py                                                      # model/, loss.csv, loss.png, heldout.jsonl
    python train.py --done 2000 --steps 1600 --emphasis 3 --direct 0.1   # go on with model/, on new stories
    python train.py --done 3600 --steps 900 --peak 1e-3 --direct 0.1

The text comes from stories.py and depends on its seeds alone. Each training story is seen once.
"""

import argparse
import csv
import json
import math
import os
import random
import shutil
import time
from pathlib import Path

os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")  # be kind to a machine that does other work

import torch
import torch.nn.functional as F
from safetensors.torch import load_file, save_file
from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, pre_tokenizers, processors, trainers

import stories

HERE = Path(__file__).resolve().parent
BOS, EOS = "<|begin_of_text|>", "<|end_of_text|>"
# The pre-tokenizer of Llama 3.
SPLIT = (r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*"
         r"|\s*[\r\n]+|\s+(?!\S)|\s+")
CONFIG = {
    "architectures": ["LlamaForCausalLM"], "model_type": "llama", "torch_dtype": "bfloat16",
    "vocab_size": 2048, "hidden_size": 256, "intermediate_size": 384, "num_hidden_layers": 6,
    "num_attention_heads": 8, "num_key_value_heads": 2, "head_dim": 32, "hidden_act": "silu",
    "max_position_embeddings": 512, "rms_norm_eps": 1e-05, "rope_theta": 10000.0, "rope_scaling": None,
    "attention_bias": False, "attention_dropout": 0.0, "mlp_bias": False, "pretraining_tp": 1,
    "tie_word_embeddings": True, "initializer_range": 0.02, "bos_token_id": 2046, "eos_token_id": 2047,
    "use_cache": True,
}


# ------------------------------------------------------------------------------------------------------ tokenizer

def train_tokenizer(texts, vocab_size):
    """Byte-level BPE as in Llama 3: the two special tokens come last, the first is put before every text."""
    tokenizer = Tokenizer(models.BPE(ignore_merges=True))
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([
        pre_tokenizers.Split(Regex(SPLIT), behavior="isolated", invert=False),
        pre_tokenizers.ByteLevel(add_prefix_space=False, trim_offsets=True, use_regex=False)])
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(vocab_size=vocab_size - 2,
                                  initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
                                  show_progress=False)
    tokenizer.train_from_iterator(texts, trainer)
    tokenizer.add_special_tokens([AddedToken(BOS, special=True), AddedToken(EOS, special=True)])
    bos = tokenizer.token_to_id(BOS)
    tokenizer.post_processor = processors.Sequence([
        processors.ByteLevel(trim_offsets=False),
        processors.TemplateProcessing(single=f"{BOS} $A", pair=f"{BOS} $A {BOS} $B:1", special_tokens=[(BOS, bos)])])
    assert tokenizer.get_vocab_size() == vocab_size and bos == vocab_size - 2, tokenizer.get_vocab_size()
    return tokenizer


# ---------------------------------------------------------------------------------------------------------- model

class RmsNorm(torch.nn.Module):
    """x / sqrt(mean(x^2) + eps) * weight, in f32."""

    def __init__(self, size, eps):
        super().__init__()
        self.weight, self.eps = torch.nn.Parameter(torch.ones(size)), eps

    def forward(self, x):
        out = F.rms_norm(x, self.weight.shape, self.weight, self.eps)
        return out.to(torch.bfloat16) if torch.is_autocast_enabled("cpu") else out  # one cast for all its readers


class Attention(torch.nn.Module):
    def __init__(self, c):
        super().__init__()
        hidden, self.head_dim = c["hidden_size"], c["head_dim"]
        self.q_proj = torch.nn.Linear(hidden, c["num_attention_heads"] * self.head_dim, bias=False)
        self.k_proj = torch.nn.Linear(hidden, c["num_key_value_heads"] * self.head_dim, bias=False)
        self.v_proj = torch.nn.Linear(hidden, c["num_key_value_heads"] * self.head_dim, bias=False)
        self.o_proj = torch.nn.Linear(c["num_attention_heads"] * self.head_dim, hidden, bias=False)
        self.group = c["num_attention_heads"] // c["num_key_value_heads"]

    def forward(self, x, cos, sin, future):
        rows, tokens, _ = x.shape

        def heads(y):  # [rows, tokens, heads * head_dim] -> [rows, heads, tokens, head_dim]
            return y.view(rows, tokens, -1, self.head_dim).transpose(1, 2)

        def rotate(y):  # rotary positions, halves layout
            first, second = y.float().chunk(2, -1)
            return torch.cat([first * cos - second * sin, second * cos + first * sin], -1)

        q, k, v = rotate(heads(self.q_proj(x))), rotate(heads(self.k_proj(x))), heads(self.v_proj(x))
        # The query heads of one group share k and v: they stack into one matrix. Written out, because on CPUs this is
        # several times faster than scaled_dot_product_attention for short rows and small heads.
        q = (q * self.head_dim ** -0.5).to(v.dtype).reshape(rows, -1, self.group * tokens, self.head_dim)
        scores = q @ k.to(v.dtype).transpose(-1, -2)  # [rows, kv_heads, group * tokens, tokens]
        scores = scores.view(rows, -1, self.group, tokens, tokens) + future
        weights = scores.softmax(-1, dtype=v.dtype).view(rows, -1, self.group * tokens, tokens)
        out = (weights @ v).view(rows, -1, tokens, self.head_dim)
        return self.o_proj(out.transpose(1, 2).reshape(rows, tokens, -1))


class Mlp(torch.nn.Module):
    def __init__(self, c):
        super().__init__()
        self.gate_proj = torch.nn.Linear(c["hidden_size"], c["intermediate_size"], bias=False)
        self.up_proj = torch.nn.Linear(c["hidden_size"], c["intermediate_size"], bias=False)
        self.down_proj = torch.nn.Linear(c["intermediate_size"], c["hidden_size"], bias=False)

    def forward(self, x):
        return self.down_proj(F.silu(self.gate_proj(x)) * self.up_proj(x))


class Layer(torch.nn.Module):
    def __init__(self, c):
        super().__init__()
        self.self_attn, self.mlp = Attention(c), Mlp(c)
        self.input_layernorm = RmsNorm(c["hidden_size"], c["rms_norm_eps"])
        self.post_attention_layernorm = RmsNorm(c["hidden_size"], c["rms_norm_eps"])

    def forward(self, x, cos, sin, future):
        x = x + self.self_attn(self.input_layernorm(x), cos, sin, future)
        return x + self.mlp(self.post_attention_layernorm(x))


class Llama(torch.nn.Module):
    """The Llama architecture; parameters carry the names of the Hugging Face checkpoint after "model."."""

    def __init__(self, c):
        super().__init__()
        self.embed_tokens = torch.nn.Embedding(c["vocab_size"], c["hidden_size"])
        self.layers = torch.nn.ModuleList(Layer(c) for _ in range(c["num_hidden_layers"]))
        self.norm = RmsNorm(c["hidden_size"], c["rms_norm_eps"])
        frequency = c["rope_theta"] ** (-torch.arange(0, c["head_dim"], 2).float() / c["head_dim"])
        angle = torch.outer(torch.arange(c["max_position_embeddings"]).float(), frequency)
        self.register_buffer("cos", angle.cos(), persistent=False)
        self.register_buffer("sin", angle.sin(), persistent=False)
        for name, parameter in self.named_parameters():
            if parameter.dim() == 2:
                deep = name.endswith(("o_proj.weight", "down_proj.weight"))
                std = c["initializer_range"] / (math.sqrt(2 * c["num_hidden_layers"]) if deep else 1)
                torch.nn.init.normal_(parameter, std=std)

    def forward(self, ids):
        """ids [rows, tokens] -> final hidden states [rows, tokens, hidden_size]."""
        x = self.embed_tokens(ids)
        cos, sin = self.cos[:ids.shape[1]], self.sin[:ids.shape[1]]
        future = torch.full((ids.shape[1], ids.shape[1]), -30000.0).triu(1)
        future = future.to(torch.bfloat16) if torch.is_autocast_enabled("cpu") else future
        for layer in self.layers:
            x = layer(x, cos, sin, future)
        return self.norm(x)

    def losses(self, ids, keep):
        """Negative log-likelihood of each token of ids[:, 1:] where keep[:, 1:]."""
        hidden = self(ids[:, :-1])[keep[:, 1:]]
        return F.cross_entropy(F.linear(hidden, self.embed_tokens.weight).float(), ids[:, 1:][keep[:, 1:]],
                               reduction="none")


# ------------------------------------------------------------------------------------------------------- training

def make_batches(encoded, rows, rng, max_tokens):
    """Rows of similar length; one batch in eight holds two stories a row, to reach the late positions."""
    order = list(range(len(encoded)))
    rng.shuffle(order)
    batches = []
    for start in range(0, len(order) - 64 * rows + 1, 64 * rows):
        chunk = sorted(order[start:start + 64 * rows], key=lambda i: len(encoded[i]))
        groups = [chunk[i:i + rows] for i in range(0, len(chunk), rows)]
        for number, group in enumerate(groups):
            if number % 8 == 3:
                group = [group[i:i + 2] for i in range(0, len(group), 2)]
            else:
                group = [[i] for i in group]
            batches.append([[t for i in row for t in encoded[i]][:max_tokens] for row in group])
    rng.shuffle(batches)
    return batches


def to_tensors(batch, padding):
    length = max(map(len, batch))
    ids = torch.tensor([row + [padding] * (length - len(row)) for row in batch])
    keep = torch.arange(length)[None] < torch.tensor([len(row) for row in batch])[:, None]
    return ids, keep


def learning_rate(step, steps, peak, warmup=100):
    if step < warmup:
        return peak * (step + 1) / warmup
    return peak * (0.02 + 0.98 * 0.5 * (1 + math.cos(math.pi * (step - warmup) / max(1, steps - warmup))))


def entity_tokens(tokenizer):
    """[vocab_size], 1 for the tokens that say who is meant: names and pronouns."""
    words = stories.GIRLS + stories.BOYS + stories.PET_NAMES + "he she He She him his her His Her Him".split()
    mask = torch.zeros(tokenizer.get_vocab_size())
    for word in words:
        mask[tokenizer.encode(" " + word, add_special_tokens=False).ids] = 1
    return mask


def train(model, batches, steps, peak, emphasis, history, snapshot):
    """Appends (step, tokens, loss, learning rate) to history; returns seconds."""
    decay = [p for p in model.parameters() if p.dim() == 2]
    rest = [p for p in model.parameters() if p.dim() != 2]
    optimizer = torch.optim.AdamW([{"params": decay, "weight_decay": 0.1}, {"params": rest, "weight_decay": 0.0}],
                                  lr=peak, betas=(0.9, 0.98), fused=True)
    begin, seen_tokens, window = time.time(), 0, []
    first_step, first_tokens = history[-1][:2] if history else (0, 0)
    for step in range(steps):
        ids, keep = to_tensors(batches[step % len(batches)], CONFIG["eos_token_id"])
        for group in optimizer.param_groups:
            group["lr"] = learning_rate(step, steps, peak)
        with torch.autocast("cpu", dtype=torch.bfloat16):
            losses = model.losses(ids, keep)
        # More weight on the tokens of `emphasis` teaches to keep track of who is who; it fades, so as not to distort.
        weights = 1 + emphasis[ids[:, 1:][keep[:, 1:]]] * max(0.0, 1 - step / (0.6 * steps))
        ((losses * weights).sum() / weights.sum()).backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        seen_tokens += int(keep[:, 1:].sum())
        window.append(losses.mean().item())
        if (step + 1) % 25 == 0 or step + 1 == steps:
            seconds = time.time() - begin
            history.append((first_step + step + 1, first_tokens + seen_tokens, round(sum(window) / len(window), 4),
                            f"{learning_rate(step, steps, peak):.3e}"))
            window = []
            print(f"step {step + 1}/{steps} loss {history[-1][2]:.4f} tokens {seen_tokens} "
                  f"{seen_tokens / seconds:.0f} tokens/s {seconds:.0f} s", flush=True)
        if (step + 1) % 250 == 0:
            snapshot()
    return time.time() - begin, seen_tokens


def read_history(path):
    with open(path, newline="") as file:
        return [(int(step), int(tokens), float(loss), rate) for step, tokens, loss, rate in list(csv.reader(file))[1:]]


def write_history(history, path):
    with open(path, "w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["step", "tokens", "loss", "learning_rate"])
        writer.writerows(history)


def draw_loss(history, path):
    import matplotlib
    matplotlib.use("Agg")
    import matplotlib.pyplot as plt
    figure, axes = plt.subplots(figsize=(7, 3.5), dpi=100)
    axes.plot([row[1] / 1e6 for row in history], [row[2] for row in history], color="#1f6f8b", linewidth=1.4)
    axes.set(xlabel="training tokens (millions)", ylabel="loss (nats per token)",
             title="Training loss, mean of 25 steps")
    axes.set_ylim(0, min(6.0, max(row[2] for row in history) * 1.05))
    axes.grid(alpha=0.3)
    figure.tight_layout()
    figure.savefig(path)


# --------------------------------------------------------------------------------------------------------- output

def write_json(path, value):
    path.write_text(json.dumps(value, indent=2) + "\n")


def export(model, tokenizer, folder):
    """Write the Hugging Face folder beside the target, then swap, so that it is never half-written."""
    draft = folder.with_name(folder.name + ".new")
    shutil.rmtree(draft, ignore_errors=True)
    draft.mkdir(parents=True)
    weights = {"model." + name: p.detach().to(torch.bfloat16).contiguous() for name, p in model.named_parameters()}
    save_file(weights, draft / "model.safetensors", metadata={"format": "pt"})
    write_json(draft / "config.json", CONFIG)
    write_json(draft / "generation_config.json", {"bos_token_id": CONFIG["bos_token_id"], "do_sample": False,
                                                  "eos_token_id": CONFIG["eos_token_id"]})
    write_json(draft / "tokenizer_config.json", {
        "added_tokens_decoder": {str(tokenizer.token_to_id(token)): {
            "content": token, "lstrip": False, "normalized": False, "rstrip": False, "single_word": False,
            "special": True} for token in (BOS, EOS)},
        "bos_token": BOS, "eos_token": EOS, "clean_up_tokenization_spaces": False,
        "model_input_names": ["input_ids", "attention_mask"],
        "model_max_length": CONFIG["max_position_embeddings"], "tokenizer_class": "PreTrainedTokenizerFast"})
    tokenizer.save(str(draft / "tokenizer.json"))
    size = sum(file.stat().st_size for file in draft.iterdir())
    assert size < 8_000_000, f"the model folder has {size} bytes, at most 8000000 are wanted"
    for file in draft.iterdir():
        file.chmod(0o644)
    old = folder.with_name(folder.name + ".old")
    shutil.rmtree(old, ignore_errors=True)
    if folder.exists():
        os.rename(folder, old)
    os.rename(draft, folder)
    shutil.rmtree(old, ignore_errors=True)
    return size


def heldout_stories(training, count):
    seen, texts, index = set(training), [], 0
    while len(texts) < count:
        text = stories.story("heldout", index)
        if text not in seen:
            texts.append(text)
        index += 1
    return texts


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--steps", type=int, default=2000)
    parser.add_argument("--rows", type=int, default=8, help="stories a batch")
    parser.add_argument("--peak", type=float, default=2e-3, help="highest learning rate")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--out", type=Path, default=HERE)
    parser.add_argument("--emphasis", type=float, default=0.0, help="extra weight of names and pronouns at first")
    parser.add_argument("--direct", type=float, default=0.0, help="share of stories that begin without introduction")
    parser.add_argument("--done", type=int, default=0, help="steps that the model in OUT/model has behind it")
    arguments = parser.parse_args()
    arguments.out.mkdir(parents=True, exist_ok=True)
    torch.manual_seed(1)
    torch.set_num_threads(arguments.threads)
    begin = time.time()
    folder = arguments.out / "model"

    def stories_of(steps):  # batches are made 64 at a time
        return -(-steps // 64) * 64 * arguments.rows

    first = stories_of(arguments.done)
    texts = stories.stories("train", stories_of(arguments.steps), first, arguments.direct)
    tokenizer = train_tokenizer(stories.stories("tokenizer", 20000), CONFIG["vocab_size"])
    eos = tokenizer.token_to_id(EOS)
    encoded = [e.ids + [eos] for start in range(0, len(texts), 10000)
               for e in tokenizer.encode_batch(texts[start:start + 10000])]
    tokens = sum(map(len, encoded))
    print(f"{len(texts)} stories, {len(set(texts))} distinct, {tokens / len(texts):.1f} tokens each, "
          f"{time.time() - begin:.0f} s")
    with open(arguments.out / "heldout.jsonl", "w") as file:
        seen = stories.stories("train", first) + stories.stories("train", first, 0, arguments.direct) + texts
        file.writelines(json.dumps({"text": text}) + "\n" for text in heldout_stories(seen, 60))
    model, history = Llama(CONFIG), []
    print(f"{sum(p.numel() for p in model.parameters())} parameters", flush=True)
    if arguments.done:
        weights = load_file(folder / "model.safetensors")
        model.load_state_dict({name.removeprefix("model."): weight.float() for name, weight in weights.items()})
        history = read_history(arguments.out / "loss.csv")
    batches = make_batches(encoded, arguments.rows, random.Random(2 + first), CONFIG["max_position_embeddings"])
    seconds, tokens = train(model, batches, arguments.steps, arguments.peak,
                            arguments.emphasis * entity_tokens(tokenizer), history,
                            lambda: export(model, tokenizer, folder))
    size = export(model, tokenizer, folder)
    write_history(history, arguments.out / "loss.csv")
    draw_loss(history, arguments.out / "loss.png")
    print(f"trained in {seconds:.0f} s, {tokens / seconds:.0f} tokens/s; model/ has {size} bytes")


if __name__ == "__main__":
    main()
