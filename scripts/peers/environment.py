"""The peers' Python environment: a virtual environment in the cache, filled by plain pip."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from workload import PeerError

CACHE = Path(os.environ.get("SLUICE_CACHE")
             or Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "sluice") / "peers"
VENV = CACHE / "venv"
PYTHON = VENV / "bin" / "python"
LOGS = CACHE / "logs"

# The versions this was written against; their interfaces change often.
NUMPY = "numpy==2.4.6"
TORCH = ("torch==2.15.0", "transformers==5.23.0", NUMPY)
LLAMA_CPP = "llama-cpp-python==0.3.36"
REQUIREMENTS = {
    "llama.cpp": (LLAMA_CPP, "gguf==0.19.0", NUMPY),
    "transformers": TORCH,
    "ctranslate2": ("ctranslate2==4.8.5", *TORCH),  # its converter reads models with Transformers
}
LLAMA_CPP_CMAKE = ("-DCMAKE_BUILD_TYPE=Release", "-DGGML_NATIVE=ON", "-DGGML_CUDA=OFF", "-DLLAVA_BUILD=OFF")


def cpu_field(name: str) -> str:
    """A field of the first processor in /proc/cpuinfo."""
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        key, _, value = line.partition(":")
        if key.strip() == name:
            return value.strip()
    return "unknown"


def say(text: str) -> None:
    print(f"[peers] {text}", file=sys.stderr, flush=True)


def last_line(text: str) -> str:
    """That says something: where programs put their error."""
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return lines[-1] if lines else "no output"


def logged(log: Path, what: str, command: list[str | Path], environment: dict[str, str] | None = None) -> None:
    """Runs a command with its output in the log."""
    say(what)
    LOGS.mkdir(parents=True, exist_ok=True)
    with log.open("ab") as output:
        try:
            status = subprocess.run(command, stdin=subprocess.DEVNULL, stdout=output, stderr=output,
                                    env=os.environ | (environment or {}), check=False).returncode
        except OSError as error:
            raise PeerError(f"failed: {what}: {error}") from error
    if status != 0:
        raise PeerError(f"failed: {what}: {last_line(log.read_text(errors='replace'))} (the log: {log})")


def recipe(peer: str) -> str:
    """What an installation is made from. llama.cpp is compiled for this CPU: another CPU, another build."""
    parts = list(REQUIREMENTS[peer])
    if peer == "llama.cpp":
        parts += [*LLAMA_CPP_CMAKE, cpu_field("flags")]
    return "\n".join([sys.version, *parts, ""])


def pip_arguments(peer: str) -> list[str]:
    """llama.cpp comes as source. pip's cache of wheels must not serve one that was built with other options."""
    if peer != "llama.cpp":
        return list(REQUIREMENTS[peer])
    return ["--no-cache-dir", "--force-reinstall", "--no-binary", LLAMA_CPP.partition("==")[0], *REQUIREMENTS[peer]]


def install(peer: str) -> None:
    """Installs a peer unless that has been done."""
    stamp = VENV / f"{peer}.installed"
    if stamp.exists() and stamp.read_text() == recipe(peer):
        return
    log = LOGS / f"install-{peer}.log"
    if not PYTHON.exists():
        logged(log, f"making a virtual environment in {VENV}", [sys.executable, "-m", "venv", VENV])
    logged(log, f"installing {', '.join(REQUIREMENTS[peer])}",
           [PYTHON, "-m", "pip", "install", *pip_arguments(peer)],
           {"CMAKE_ARGS": " ".join(LLAMA_CPP_CMAKE)})
    stamp.write_text(recipe(peer))
