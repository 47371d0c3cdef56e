"""The engines as the program sees them: Sluice, one process a test, and the peers' worker processes."""

from __future__ import annotations

import contextlib
import json
import math
import os
import subprocess
from dataclasses import asdict
from pathlib import Path
from typing import IO, Any, Protocol

import environment
from workload import Description, PeerError, Test, stored_type

HERE = Path(__file__).resolve().parent
WORKERS = {"llama.cpp": "run_llama_cpp.py", "transformers": "run_transformers.py", "ctranslate2": "run_ctranslate2.py"}
CHECK_TOKENS = [37 * i % 101 for i in range(64)]  # small ids: any vocabulary has them
UNSUPPORTED = {"llama.cpp": {"opt"}}  # model types
PLAIN_ONLY = {"ctranslate2"}


class Engine(Protocol):
    name: str
    description: Description

    def tokens_per_s(self, test: Test) -> float: ...
    def close(self) -> None: ...


class Sluice:
    """`sluice bench`; loads the model for each test, which it does not count."""

    name = "sluice"

    def __init__(self, program: Path, model: Path, threads: int) -> None:
        if not os.access(program, os.X_OK):
            raise PeerError(f"no program {program}; ./run.sh builds it, --sluice says where it is")
        self.command = [str(program), "bench", "--model", str(model), "--threads", str(threads),
                        "--dtype", stored_type(model), "--repeat", "1", "--json"]
        version = subprocess.run([program, "--version"], capture_output=True, text=True, check=False)
        number, _, _ = environment.last_line(version.stdout).removeprefix("sluice ").partition(" (")
        self.description = Description(number, "?", "?")

    def tokens_per_s(self, test: Test) -> float:
        prompt, generated = (test.tokens, 0) if test.kind == "pp" else (0, test.tokens)
        run = subprocess.run([*self.command, "--prompt-tokens", str(prompt), "--gen-tokens", str(generated),
                              "--batch", str(test.batch), "--depth", str(test.depth)],
                             stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False)
        if run.returncode != 0:
            raise PeerError(environment.last_line(run.stderr))
        try:
            (result,) = json.loads(run.stdout)
            # KV has the model's type there.
            self.description.weights, self.description.kv = weights_of(result), result["dtype"]
            return float(result["tokens_per_s"])
        except (ValueError, KeyError, TypeError) as error:
            raise PeerError(f"sluice bench printed no result for {test.name}: {error!r}") from error

    def close(self) -> None:
        """There is no process between tests."""


def weights_of(result: dict[str, Any]) -> str:
    """bf16, int4-g32, or int4-g32, head bf16."""
    layers, head = result["weights"], result["head_weights"]
    return layers if head == layers else f"{layers}, head {head}"


class Worker:
    """A peer: a process that keeps its model between tests."""

    def __init__(self, name: str, model: Path, threads: int, kv_type: str) -> None:
        self.name = name
        self.log = environment.LOGS / f"{name}.log"
        self.log.parent.mkdir(parents=True, exist_ok=True)
        command: list[str | Path] = [environment.PYTHON, HERE / WORKERS[name], "--model", model,
                                     "--threads", str(threads), "--kv-type", kv_type, "--cache", environment.CACHE]
        with self.log.open("w", encoding="utf-8") as log:
            self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log,
                                            text=True, env=os.environ | {"OMP_NUM_THREADS": str(threads)})
        try:
            self.description = Description(**self.answer())
        except PeerError:
            self.close()
            raise

    def answer(self) -> dict[str, Any]:
        line = pipe(self.process.stdout).readline()
        if not line:
            raise PeerError(f"the worker ended with status {self.process.wait()}; its log: {self.log}")
        message = json.loads(line)
        if "error" in message:
            raise PeerError(message["error"])
        return message

    def ask(self, request: dict[str, Any]) -> dict[str, Any]:
        with contextlib.suppress(BrokenPipeError):  # answer() says why
            print(json.dumps(request), file=pipe(self.process.stdin), flush=True)
        return self.answer()

    def logits(self) -> list[float]:
        return self.ask({"logits": CHECK_TOKENS})["logits"]

    def tokens_per_s(self, test: Test) -> float:
        return float(self.ask({"test": asdict(test)})["tokens_per_s"])

    def close(self) -> None:
        """It may be in the middle of a test; it has nothing to save."""
        self.process.kill()
        self.process.wait()


def pipe(stream: IO[str] | None) -> IO[str]:
    assert stream is not None
    return stream


def start_worker(name: str, model: Path, threads: int, kv_type: str) -> Worker:
    config = json.loads((model / "config.json").read_text())
    if config.get("model_type") in UNSUPPORTED.get(name, ()):
        raise PeerError(f"does not support models of type {config['model_type']}")
    if "quantization_config" in config and name in PLAIN_ONLY:
        raise PeerError("does not read quantised weights")
    environment.install(name)
    environment.say(f"{name}: converting where needed, loading")
    return Worker(name, model, threads, kv_type)


def cosine(a: list[float], b: list[float]) -> float:
    product = math.fsum(x * y for x, y in zip(a, b, strict=True))
    return product / math.sqrt(math.fsum(x * x for x in a) * math.fsum(y * y for y in b))
