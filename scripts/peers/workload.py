"""What is measured: tests by name. Shared by the program and its worker processes."""

from __future__ import annotations

import argparse
import json
import re
from dataclasses import dataclass
from pathlib import Path

NAME = re.compile(r"(pp|tg)([1-9]\d*)(?:@([1-9]\d*))?(?:\+(\d+))?")

SHORT_TYPES = {"bfloat16": "bf16", "float16": "f16", "float32": "f32"}


class PeerError(Exception):
    """Something that is said in one line; the other engines go on."""


def positive(text: str) -> int:
    """An option's number."""
    if not text.isdecimal() or int(text) == 0:
        raise argparse.ArgumentTypeError(f"'{text}'; expected a number of at least 1")
    return int(text)


def stored_type(model: Path) -> str:
    """The weights' type, as the folder's config.json names it."""
    config = json.loads((model / "config.json").read_text())
    name = config.get("dtype") or config.get("torch_dtype") or "float32"
    return SHORT_TYPES.get(name, name)


def model_key(model: Path) -> str:
    """Names what is made from a folder: from changed weights it is made anew."""
    files = sorted([model / "config.json", *model.glob("model*.safetensors")])
    stamp = max(file.stat().st_mtime_ns for file in files)
    return f"{model.resolve().name}-{stamp:x}"


@dataclass
class Description:
    version: str
    weights: str  # their type, such as bf16
    kv: str  # the KV cache's type


@dataclass(frozen=True)
class Test:
    """Of kind "pp", prompts are processed, or "tg", tokens are generated one at a time in each sequence."""

    kind: str
    tokens: int  # of each sequence
    batch: int = 1  # sequences
    depth: int = 0  # tokens each sequence has before; filling them is not timed

    @classmethod
    def parse(cls, text: str) -> Test:
        """pp512, tg32, tg32@16 (batch of 16), tg32@16+2048 (each after a context of 2048)."""
        match = NAME.fullmatch(text)
        if match is None:
            raise ValueError(f"not a test: '{text}'; expected such as pp512, tg32@16 or tg32@16+2048")
        kind, tokens, batch, depth = match.groups()
        if kind == "pp" and depth is not None:
            raise ValueError(f"'{text}': only tg takes a depth; prompts start with an empty context")
        return cls(kind, int(tokens), int(batch or 1), int(depth or 0))

    @property
    def name(self) -> str:
        batch = "" if self.kind == "pp" and self.batch == 1 else f"@{self.batch}"
        return f"{self.kind}{self.tokens}{batch}" + (f"+{self.depth}" if self.depth else "")

    @property
    def total_tokens(self) -> int:
        """What tokens per second count: the timed tokens of all sequences together."""
        return self.tokens * self.batch
