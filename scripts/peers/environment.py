"""The peers' Python environment: a virtual environment in the cache, filled by plain pip."""

from __future__ import annotations

import os
import subprocess
import sys
import tarfile
from pathlib import Path

from workload import PeerError, model_key

CACHE = Path(os.environ.get("SLUICE_CACHE")
             or Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "sluice") / "peers"
VENV = CACHE / "venv"
PYTHON = VENV / "bin" / "python"
KT_VENV = CACHE / "kt-kernel"  # an environment of its own: it wants other versions
LOGS = CACHE / "logs"

# The versions this was written against; their interfaces change often.
NUMPY = "numpy==2.4.6"
TORCH = ("torch==2.15.0", "transformers==5.23.0", "compressed-tensors==0.20.1", NUMPY)
LLAMA_CPP = "llama-cpp-python==0.3.36"
GGUF = ("gguf==0.19.0", NUMPY)  # for conversions
REQUIREMENTS = {
    "llama.cpp": (LLAMA_CPP, *GGUF),
    "llama-server": GGUF,
    "transformers": TORCH,
    "ctranslate2": ("ctranslate2==4.8.5", *TORCH),  # its converter reads models with Transformers
}
KT_KERNEL = ("kt-kernel==0.7.2", "torch==2.15.0", NUMPY)
LLAMA_CPP_CMAKE = ("-DCMAKE_BUILD_TYPE=Release", "-DGGML_NATIVE=ON", "-DGGML_CUDA=OFF", "-DLLAVA_BUILD=OFF")
LLAMA_SERVER = CACHE / "llama-server"  # built from the same source package, whose wheel has no server
LLAMA_SERVER_CMAKE = ("-DCMAKE_BUILD_TYPE=Release", "-DGGML_NATIVE=ON", "-DGGML_CUDA=OFF", "-DBUILD_SHARED_LIBS=OFF",
                      "-DLLAMA_BUILD_COMMON=ON", "-DLLAMA_BUILD_TOOLS=ON", "-DLLAMA_BUILD_SERVER=ON",
                      "-DLLAMA_BUILD_TESTS=OFF", "-DLLAMA_BUILD_EXAMPLES=OFF", "-DLLAMA_BUILD_APP=OFF",
                      "-DLLAMA_BUILD_UI=OFF", "-DLLAMA_USE_PREBUILT_UI=OFF",  # else it downloads a page
                      "-DLLAMA_OPENSSL=OFF")


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
    if peer == "llama-server":
        parts += [LLAMA_CPP, *LLAMA_SERVER_CMAKE, cpu_field("flags")]
    return "\n".join([sys.version, *parts, ""])


def pip_arguments(peer: str) -> list[str]:
    """llama.cpp comes as source. pip's cache of wheels must not serve one that was built with other options."""
    if peer != "llama.cpp":
        return list(REQUIREMENTS[peer])
    return ["--no-cache-dir", "--force-reinstall", "--no-binary", LLAMA_CPP.partition("==")[0], *REQUIREMENTS[peer]]


def model_folder(name: str, sluice: Path, weights: str | None = None, head_weights: str | None = None) -> Path:
    """A folder as it is; a shape is made once, with random weights. With formats of the weights a shape gets random
    codes, and a folder is quantised once."""
    formats = ["--weights", weights] if weights else []
    formats += ["--head-weights", head_weights] if head_weights else []
    suffix = (f"-{weights}" if weights else "") + (f"-head-{head_weights}" if head_weights else "")
    source = Path(name)
    is_folder = (source / "config.json").exists()
    if is_folder and not formats:
        return source.resolve()
    if not is_folder and "/" in name:
        raise PeerError(f"no config.json in {name}")
    folder = CACHE / "models" / ((model_key(source) if is_folder else name) + suffix)
    folder.parent.mkdir(parents=True, exist_ok=True)
    if not (folder / "config.json").exists():
        what = f"quantising {name}" if is_folder else f"making {name} with random weights"
        command = ["quantize", "--model", source.resolve()] if is_folder else ["make-model", "--shape", name]
        logged(LOGS / "make-model.log", what, [sluice, *command, "--out", folder, *formats])
    return folder


def build_llama_server(log: Path) -> None:
    """llama.cpp as the source package brings it along."""
    name, _, version = LLAMA_CPP.partition("==")
    logged(log, f"downloading the sources of {LLAMA_CPP}",
           [PYTHON, "-m", "pip", "download", "--no-deps", "--no-binary", name, "--dest", LLAMA_SERVER, LLAMA_CPP])
    (archive,) = LLAMA_SERVER.glob(f"*{version}.tar.gz")
    with tarfile.open(archive) as package:
        package.extractall(LLAMA_SERVER, filter="data")
    source = LLAMA_SERVER / archive.name.removesuffix(".tar.gz") / "vendor" / "llama.cpp"
    build = LLAMA_SERVER / "build"
    logged(log, "configuring llama.cpp's server", ["cmake", "-S", source, "-B", build, *LLAMA_SERVER_CMAKE])
    jobs = str(len(os.sched_getaffinity(0)))
    logged(log, "compiling llama.cpp's server", ["cmake", "--build", build, "--target", "llama-server", "-j", jobs])


def kt_python() -> Path:
    """Makes kt-kernel's environment unless that has been done; -> its Python. Its other needs are a server's."""
    python = KT_VENV / "bin" / "python"
    stamp = KT_VENV / "installed"
    wanted = "\n".join([sys.version, *KT_KERNEL, ""])
    if stamp.exists() and stamp.read_text() == wanted:
        return python
    log = LOGS / "install-kt-kernel.log"
    logged(log, f"making a virtual environment in {KT_VENV}", [sys.executable, "-m", "venv", KT_VENV])
    logged(log, f"installing {KT_KERNEL[0]}", [python, "-m", "pip", "install", "--no-deps", KT_KERNEL[0]])
    logged(log, f"installing {', '.join(KT_KERNEL[1:])}", [python, "-m", "pip", "install", *KT_KERNEL[1:]])
    stamp.write_text(wanted)
    return python


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
    if peer == "llama-server":
        build_llama_server(log)
    stamp.write_text(recipe(peer))
