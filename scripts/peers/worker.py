"""A worker process: loads a model once, then runs what the program asks for, one JSON line each way.

Request {"logits": [ids]} -> {"logits": [...]} of the last token; {"test": {...}} -> {"tokens_per_s": ...};
before the first request {"version", "weights", "kv"} tells what is running. {"error": ...} at any time.
"""

from __future__ import annotations

import abc
import argparse
import json
import os
import random
import sys
import traceback
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, TextIO

from workload import Description, PeerError, Test

WARM_UP_STEPS = 2


@dataclass(frozen=True)
class Options:
    model: Path
    threads: int
    kv_type: str  # llama.cpp's
    cache: Path  # for converted models


class Engine(abc.ABC):
    """One peer with its model loaded."""

    description: Description

    @abc.abstractmethod
    def logits(self, tokens: list[int]) -> list[float]:
        """Of the last of these tokens, over the vocabulary."""

    @abc.abstractmethod
    def prepare(self, test: Test) -> None:
        """What is done once a test and is not timed: first-time allocations, filling the context."""

    @abc.abstractmethod
    def warm_up(self, test: Test) -> None:
        """Before every run: reads weights and context once, since another engine has been running."""

    @abc.abstractmethod
    def seconds(self, test: Test) -> float:
        """How long the test's tokens took."""


def random_tokens(count: int, vocab_size: int) -> list[int]:
    """The same ones each time."""
    generator = random.Random(count)
    return [generator.randrange(vocab_size) for _ in range(count)]


def take_stdout() -> TextIO:
    """Answers have the pipe for themselves: what libraries print goes to the log."""
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8", buffering=1)
    os.dup2(2, 1)
    return answers


def answer(engine: Engine, request: dict[str, Any], prepared: set[Test]) -> dict[str, Any]:
    if "logits" in request:
        return {"logits": engine.logits(request["logits"])}
    test = Test(**request["test"])
    if test not in prepared:
        engine.prepare(test)
        prepared.add(test)
    engine.warm_up(test)
    return {"tokens_per_s": test.total_tokens / engine.seconds(test)}


def parse_options() -> Options:
    parser = argparse.ArgumentParser(description="started by compare")
    parser.add_argument("--model", type=Path, required=True)
    parser.add_argument("--threads", type=int, required=True)
    parser.add_argument("--kv-type", required=True)
    parser.add_argument("--cache", type=Path, required=True)
    return Options(**vars(parser.parse_args()))


def attempt(action: Callable[..., dict[str, Any]], *arguments: Any) -> dict[str, Any]:
    """Libraries raise anything: one line of it is the answer, the rest goes to the log."""
    try:
        return action(*arguments)
    except PeerError as error:
        return {"error": str(error)}
    except Exception as error:
        traceback.print_exception(error)
        return {"error": f"{type(error).__name__}: {(str(error).splitlines() or [''])[0]}"}


def serve(load: Callable[[Options], Engine]) -> None:
    """Answers until the input ends."""
    answers = take_stdout()
    engines: list[Engine] = []
    prepared: set[Test] = set()

    def start() -> dict[str, Any]:
        engines.append(load(parse_options()))
        return asdict(engines[0].description)

    print(json.dumps(attempt(start)), file=answers)
    for line in sys.stdin if engines else ():
        print(json.dumps(attempt(answer, engines[0], json.loads(line), prepared)), file=answers)
