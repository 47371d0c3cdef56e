"""llama.cpp through its C API, as its llama-bench and llama-batched-bench use it: random tokens, no sampling."""

from __future__ import annotations

import time
from collections.abc import Sequence
from importlib.metadata import version
from pathlib import Path

import llama_cpp
import numpy as np
from gguf import GGMLQuantizationType, GGUFReader

from gguf_model import write_gguf
from worker import WARM_UP_STEPS, Engine, Options, random_tokens, serve
from workload import Description, PeerError, Test, model_key

BATCH_TOKENS, UBATCH_TOKENS = 2048, 512  # llama.cpp's defaults: 512 prompt tokens go through the model at once
KV_CELLS_GRANULE = 256  # a sequence's share of the cache is a multiple of it
KV_TYPES = {"f16": GGMLQuantizationType.F16, "bf16": GGMLQuantizationType.BF16}


class Context:
    """A context for one batch and depth, with a KV buffer of its own for each sequence."""

    def __init__(self, model: llama_cpp.llama_model_p, options: Options, sequences: int, tokens: int) -> None:
        self.sequences = sequences
        self.vocab_size = llama_cpp.llama_vocab_n_tokens(llama_cpp.llama_model_get_vocab(model))
        cells = -(-tokens // KV_CELLS_GRANULE) * KV_CELLS_GRANULE
        parameters = llama_cpp.llama_context_default_params()
        parameters.n_ctx = sequences * cells
        parameters.n_batch, parameters.n_ubatch = BATCH_TOKENS, UBATCH_TOKENS
        parameters.n_seq_max, parameters.kv_unified = sequences, False
        parameters.n_threads = parameters.n_threads_batch = options.threads
        parameters.flash_attn_type = llama_cpp.LLAMA_FLASH_ATTN_TYPE_ENABLED
        parameters.type_k = parameters.type_v = KV_TYPES[options.kv_type]
        self.handle = llama_cpp.llama_init_from_model(model, parameters)
        if not self.handle:
            raise PeerError(f"llama.cpp makes no context of {sequences} x {cells} tokens")
        self.memory = llama_cpp.llama_get_memory(self.handle)
        self.batch = llama_cpp.llama_batch_init(BATCH_TOKENS, 0, 1)

    def decode(self, entries: Sequence[tuple[int, int, int, bool]]) -> None:
        """Entries are (token, position, sequence, whether its logits are wanted)."""
        for first in range(0, len(entries), BATCH_TOKENS):
            part = entries[first:first + BATCH_TOKENS]
            self.batch.n_tokens = len(part)
            for i, (token, position, sequence, wanted) in enumerate(part):
                self.batch.token[i], self.batch.pos[i] = token, position
                self.batch.n_seq_id[i], self.batch.seq_id[i][0] = 1, sequence
                self.batch.logits[i] = wanted
            if (status := llama_cpp.llama_decode(self.handle, self.batch)) != 0:
                raise PeerError(f"llama_decode returned {status}")
        llama_cpp.llama_synchronize(self.handle)

    def prompt(self, tokens: Sequence[int], sequences: int) -> None:
        """The same prompt in each of the first sequences; the logits of its last token."""
        last = len(tokens) - 1
        self.decode([(token, i, sequence, i == last)
                     for sequence in range(sequences) for i, token in enumerate(tokens)])

    def step(self, position: int) -> None:
        tokens = random_tokens(self.sequences, self.vocab_size)
        self.decode([(token, position, sequence, True) for sequence, token in enumerate(tokens)])

    def copy_first(self) -> None:
        """The first sequence's context into the buffers of the others."""
        for sequence in range(1, self.sequences):
            llama_cpp.llama_memory_seq_cp(self.memory, 0, sequence, -1, -1)

    def cut(self, length: int) -> None:
        for sequence in range(self.sequences):
            llama_cpp.llama_memory_seq_rm(self.memory, sequence, length, -1)

    def last_logits(self) -> list[float]:
        pointer = llama_cpp.llama_get_logits_ith(self.handle, -1)
        return np.ctypeslib.as_array(pointer, (self.vocab_size,)).tolist()


class LlamaCpp(Engine):
    def __init__(self, options: Options) -> None:
        llama_cpp.llama_backend_init()
        path = converted(options)
        self.options = options
        self.model = llama_cpp.llama_model_load_from_file(
            str(path).encode(), llama_cpp.llama_model_default_params())
        if not self.model:
            raise PeerError(f"llama.cpp does not load {path}")
        self.contexts: dict[Test, Context] = {}
        llama_version = llama_cpp.llama_version().decode()
        self.description = Description(f"{llama_version} (llama-cpp-python {version('llama-cpp-python')})",
                                       weights_in(path), options.kv_type)

    def logits(self, tokens: list[int]) -> list[float]:
        context = Context(self.model, self.options, 1, len(tokens))
        context.prompt(tokens, 1)
        result = context.last_logits()
        llama_cpp.llama_free(context.handle)
        return result

    def prepare(self, test: Test) -> None:
        context = Context(self.model, self.options, test.batch, test.depth + max(test.tokens, WARM_UP_STEPS))
        self.contexts[test] = context
        if test.kind == "pp":
            context.prompt(random_tokens(test.tokens, context.vocab_size), test.batch)
        elif test.depth > 0:
            context.prompt(random_tokens(test.depth, context.vocab_size), 1)
            context.copy_first()

    def warm_up(self, test: Test) -> None:
        context = self.contexts[test]
        context.cut(test.depth)
        for i in range(WARM_UP_STEPS):
            context.step(test.depth + i)

    def seconds(self, test: Test) -> float:
        context = self.contexts[test]
        context.cut(test.depth)
        prompt = random_tokens(test.tokens, context.vocab_size)
        begin = time.perf_counter()
        if test.kind == "pp":
            context.prompt(prompt, test.batch)
        else:
            for i in range(test.tokens):
                context.step(test.depth + i)
        return time.perf_counter() - begin


def converted(options: Options) -> Path:
    path = options.cache / "gguf" / f"{model_key(options.model)}.gguf"
    if not path.exists():
        path.parent.mkdir(parents=True, exist_ok=True)
        write_gguf(options.model, path)
    return path


def weights_in(path: Path) -> str:
    """The types of the layers' matrices and of the head, as the file has them: Q4_0, or Q4_0, head BF16."""
    types = {tensor.name: tensor.tensor_type.name for tensor in GGUFReader(path).tensors if len(tensor.shape) > 1}
    layers = "/".join(sorted({name for tensor, name in types.items() if tensor.startswith("blk.")}))
    head = types.get("output.weight", types["token_embd.weight"])
    return layers if head == layers else f"{layers}, head {head}"


if __name__ == "__main__":
    serve(LlamaCpp)
