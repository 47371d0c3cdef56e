"""CTranslate2's Generator: greedy, fixed length.

It has no call for one prefill or one step, so the times are taken from its per-token callback: a prompt takes until
its first token, generation from the first token to the last.
"""

from __future__ import annotations

import json
import os
import shutil
import time
from collections.abc import Iterable
from pathlib import Path

os.environ["HF_HUB_OFFLINE"] = "1"
import ctranslate2
import numpy as np
from ctranslate2.converters import TransformersConverter

from worker import WARM_UP_STEPS, Engine, Options, random_tokens, serve
from workload import Description, Test, model_key, stored_type

COMPUTE_TYPES = {"bf16": "bfloat16", "f16": "float16", "f32": "float32"}


class NoTokenizer:
    """Names for the token ids; the folder need not have a tokenizer."""

    bos_token, eos_token, unk_token = "t0", "t1", "t2"

    def __init__(self, vocab_size: int) -> None:
        self.vocab_size = vocab_size

    def get_vocab(self) -> dict[str, int]:
        return {name: i for i, name in enumerate(names(range(self.vocab_size)))}


class Converter(TransformersConverter):
    def load_tokenizer(self, _: object, folder: str, **__: object) -> NoTokenizer:
        return NoTokenizer(vocab_size(Path(folder)))


def names(tokens: Iterable[int]) -> list[str]:
    return [f"t{token}" for token in tokens]


def vocab_size(model: Path) -> int:
    return json.loads((model / "config.json").read_text())["vocab_size"]


def converted(options: Options, compute_type: str) -> Path:
    path = options.cache / "ctranslate2" / f"{model_key(options.model)}-{compute_type}"
    if not path.exists():
        part = path.with_name(path.name + ".part")
        shutil.rmtree(part, ignore_errors=True)
        part.parent.mkdir(parents=True, exist_ok=True)
        Converter(str(options.model)).convert(str(part), quantization=compute_type)
        part.rename(path)
    return path


class CTranslate2(Engine):
    def __init__(self, options: Options) -> None:
        dtype = stored_type(options.model)
        if COMPUTE_TYPES[dtype] not in ctranslate2.get_supported_compute_types("cpu"):
            dtype = "f32"  # bf16 needs an Intel CPU there
        compute_type = COMPUTE_TYPES[dtype]
        self.generator = ctranslate2.Generator(str(converted(options, compute_type)), compute_type=compute_type,
                                               intra_threads=options.threads)
        self.vocab_size = vocab_size(options.model)
        self.description = Description(ctranslate2.__version__, dtype, dtype)

    def logits(self, tokens: list[int]) -> list[float]:
        return np.asarray(self.generator.forward_batch([tokens]))[0, -1].tolist()

    def token_times(self, prompt: list[str], context: list[str], batch: int, steps: int) -> list[float]:
        """When each of the generated tokens was there in all sequences. The context's state is computed once."""
        times = [0.0] * steps

        def note(result: ctranslate2.GenerationStepResult) -> bool:
            times[result.step] = time.perf_counter()
            return False

        self.generator.generate_batch([prompt] * batch, static_prompt=context or None, min_length=steps,
                                      max_length=steps, include_prompt_in_result=False, callback=note)
        return times

    def process_prompts(self, test: Test) -> float:
        prompt = names(random_tokens(test.tokens, self.vocab_size))
        begin = time.perf_counter()
        return self.token_times(prompt, [], test.batch, 1)[0] - begin

    def generate(self, test: Test, steps: int) -> float:
        """The first token's time includes the context's; it stands for the one that the others start from."""
        context = names(random_tokens(test.depth, self.vocab_size))
        times = self.token_times(names([3]), context, test.batch, steps + 1)
        return times[-1] - times[0]

    def prepare(self, test: Test) -> None:
        if test.kind == "pp":
            self.process_prompts(test)
        else:
            self.generate(test, WARM_UP_STEPS)

    def warm_up(self, test: Test) -> None:
        """A test of generation begins with an untimed token anyway."""
        if test.kind == "pp":
            self.token_times(names([3]), [], 1, 1)

    def seconds(self, test: Test) -> float:
        return self.process_prompts(test) if test.kind == "pp" else self.generate(test, test.tokens)


if __name__ == "__main__":
    serve(CTranslate2)
