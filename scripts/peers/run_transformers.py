"""PyTorch and Transformers, eager, with the attention of PyTorch (sdpa): greedy decoding, written as a loop.

Decoding uses Transformers' static cache: the dynamic one copies the whole context at every step.
"""

from __future__ import annotations

import os
import time

os.environ["HF_HUB_OFFLINE"] = "1"
import torch
import transformers

from worker import WARM_UP_STEPS, Engine, Options, random_tokens, serve
from workload import Description, Test, stored_type

DTYPES = {"bf16": torch.bfloat16, "f16": torch.float16, "f32": torch.float32}
FILL_TOKENS = 512  # of the context at once


class Transformers(Engine):
    def __init__(self, options: Options) -> None:
        torch.set_num_threads(options.threads)
        dtype = stored_type(options.model)
        self.model = transformers.AutoModelForCausalLM.from_pretrained(
            options.model, dtype=DTYPES[dtype], attn_implementation="sdpa").eval()
        self.caches: dict[Test, transformers.StaticCache] = {}
        weights = f"{dtype} of codes" if hasattr(self.model.config, "quantization_config") else dtype
        self.description = Description(f"{transformers.__version__} (torch {torch.__version__})", weights, dtype)

    def prompt(self, count: int, batch: int) -> torch.Tensor:
        return torch.tensor([random_tokens(count, self.model.config.vocab_size)]).expand(batch, -1)

    @torch.inference_mode()
    def logits(self, tokens: list[int]) -> list[float]:
        return self.model(torch.tensor([tokens]), logits_to_keep=1).logits[0, -1].float().tolist()

    def filled_cache(self, test: Test) -> transformers.StaticCache:
        """The context of one sequence, computed once, copied for the others."""
        cache = transformers.StaticCache(config=self.model.config,
                                         max_cache_len=test.depth + max(test.tokens, WARM_UP_STEPS))
        if test.depth == 0:
            return cache
        one = transformers.DynamicCache(config=self.model.config)
        for part in self.prompt(test.depth, 1).split(FILL_TOKENS, dim=1):
            self.model(part, past_key_values=one, logits_to_keep=1)
        for source, target in zip(one.layers, cache.layers, strict=True):
            target.update(source.keys.expand(test.batch, -1, -1, -1), source.values.expand(test.batch, -1, -1, -1))
        return cache

    def generate(self, test: Test, steps: int) -> None:
        cache = self.caches[test]
        tokens = self.prompt(1, test.batch)
        for _ in range(steps):
            tokens = self.model(tokens, past_key_values=cache).logits[:, -1:].argmax(-1)

    def cut(self, test: Test) -> None:
        for layer in self.caches[test].layers:
            layer.cumulative_length.fill_(test.depth)

    def process_prompts(self, test: Test) -> None:
        prompts = self.prompt(test.tokens, test.batch)
        cache = transformers.DynamicCache(config=self.model.config)
        self.model(prompts, past_key_values=cache, logits_to_keep=1).logits.argmax(-1)

    @torch.inference_mode()
    def prepare(self, test: Test) -> None:
        if test.kind == "pp":
            self.process_prompts(test)
        else:
            self.caches[test] = self.filled_cache(test)

    @torch.inference_mode()
    def warm_up(self, test: Test) -> None:
        if test.kind == "pp":
            self.model(self.prompt(1, 1))
        else:
            self.cut(test)
            self.generate(test, WARM_UP_STEPS)

    @torch.inference_mode()
    def seconds(self, test: Test) -> float:
        if test.kind == "tg":
            self.cut(test)
        begin = time.perf_counter()
        if test.kind == "pp":
            self.process_prompts(test)
        else:
            self.generate(test, test.tokens)
        return time.perf_counter() - begin


if __name__ == "__main__":
    serve(Transformers)
