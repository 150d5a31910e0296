"""Python and the libraries: whether they are those that hftune was made for, and whether they load."""

from __future__ import annotations

import importlib.metadata
import platform
from collections.abc import Callable, Iterable, Iterator

from packaging.requirements import Requirement

from hftune import child_processes
from hftune.compat.checking import CHANGED, LOOKED_AT, installed
from hftune.tools.doctor.findings import NOTE, WRONG, Finding

TOPIC = "libraries"
SHOWN = ("torch", "transformers", "trl", "peft", "deepspeed", "accelerate", "bitsandbytes", "datasets")

OPTIONAL = {
    "liger-kernel": "Triton kernels of losses, norms and rotary embeddings: pip install 'hftune[gpu]'",
    "flash-attn": "FlashAttention 2; without it torch's own is used",
    "vllm": "quicker answers in RL (run_rl.py --use_vllm) and of `hftune serve`",
    "fastapi": "`hftune serve` without vLLM: pip install 'hftune[serve]'",
    "xllamacpp": "`hftune export gguf`, whose files it reads back: pip install 'hftune[gguf]'",
    "torchao": "--fp8 on Hopper GPUs: pip install 'hftune[fp8]'",
    "math-verify": "--reward_funcs accuracy: pip install 'hftune[math]'",
    "sentencepiece": "tokenizers that are a SentencePiece `.model` alone: pip install 'hftune[sentencepiece]'",
}
"""Optional packages and what each is for; none is needed."""

LOADED = ("deepspeed", "bitsandbytes", "torchao", "liger_kernel", "flash_attn")
"""Packages with compiled parts, which may be installed and yet not load."""

# Run by `python -c`, in processes of their own: one of the libraries may be broken, and end Python.
PREPARE = "from hftune.distributed.launch import prepare_environment; prepare_environment()\n"
CHECK_SYMBOLS = "from hftune.compat.checking import main; main()"


def own_requirements() -> tuple[str, list[str]]:
    """The range of Python and the libraries that hftune asks for; nothing of sources that were never installed."""
    if installed("hftune") is None:
        return "", []
    return importlib.metadata.metadata("hftune")["Requires-Python"] or "", importlib.metadata.requires("hftune") or []


def check_python(version: str, wanted: str) -> Finding:
    """Whether this Python is in the range of `requires-python`."""
    if Requirement(f"python{wanted}").specifier.contains(version, prereleases=True):
        return Finding(TOPIC, f"Python {version} on {platform.platform()}")
    return Finding(TOPIC, f"Python {version}; hftune wants {wanted}", WRONG, "make an environment with that Python")


def check_requirements(
    requires: Iterable[str], version_of: Callable[[str], str | None] = installed
) -> Iterator[Finding]:
    """A finding for each library that is missing or out of the range that hftune asks for, and one with versions.

    Args:
        requires: Lines as `importlib.metadata.requires` gives them; those of extras are passed over.
        version_of: From a distribution to its version, None where it is not installed.
    """
    wanted = [Requirement(line) for line in requires]
    # An empty `extra` makes the markers of extras false; those of platforms and Pythons are judged as usual.
    wanted = [one for one in wanted if one.marker is None or one.marker.evaluate({"extra": ""})]
    for one in wanted:
        version = version_of(one.name)
        if version is None:
            yield Finding(TOPIC, f"{one.name} is not installed", WRONG, f"pip install '{one}'")
        # NVIDIA's containers have pre-releases (2.11.0a0+...), which a range excludes unless told otherwise.
        elif not one.specifier.contains(version, prereleases=True):
            said = f"{one.name} {version}; hftune was made for {one.specifier}"
            yield Finding(TOPIC, said, WRONG, f"pip install '{one}'")
    here = ", ".join(f"{name} {version_of(name)}" for name in SHOWN if version_of(name))
    yield Finding(TOPIC, here)


def check_optional(version_of: Callable[[str], str | None] = installed) -> Iterator[Finding]:
    """One finding for all optional packages that are installed, and one for each that is not, with what it is for."""
    here = {name: version for name in OPTIONAL if (version := version_of(name))}
    if here:
        yield Finding(TOPIC, "optional: " + ", ".join(f"{name} {version}" for name, version in here.items()))
    for name, purpose in OPTIONAL.items():
        if name not in here:
            yield Finding(TOPIC, f"optional, not here: {name}, for {purpose}")


def check_loading(names: Iterable[str]) -> Iterator[Finding]:
    """Whether these packages can be imported, each in a process of its own."""
    loaded = []
    # Distributions are spelt with a hyphen where modules have an underscore.
    for name in (name for name in names if installed(name.replace("_", "-"))):
        done, said = _run(f"import {name}")
        if done.returncode == 0:
            loaded.append(name)
            continue
        # Flags of their own use the others; but what ends Python when it is imported ends whatever looks for it.
        level = WRONG if name == "deepspeed" or done.returncode < 0 else NOTE
        yield Finding(TOPIC, f"{name} does not load: {said}", level, f"reinstall or remove {name}")
    if loaded:
        yield Finding(TOPIC, f"these load: {', '.join(loaded)}")


def _run(code: str) -> tuple[child_processes.CompletedProcess[str], str]:
    """A Python process with this code, which has ended, and its last words."""
    done = child_processes.run(child_processes.python("-c", PREPARE + code), capture_output=True)
    return done, (done.stderr.strip().splitlines() or [f"exit {done.returncode}"])[-1][:200]


def check_symbols() -> Iterator[Finding]:
    """Whether the private parts of libraries that hftune uses or replaces are as it expects."""
    done, said = _run(CHECK_SYMBOLS)
    lines = done.stdout.splitlines()
    changed = [line.removeprefix(CHANGED) for line in lines if line.startswith(CHANGED)]
    number = next((line.removesuffix(LOOKED_AT) for line in lines if line.endswith(LOOKED_AT)), None)
    fix = "install the versions that hftune was made for; without them, leave that feature out"
    yield from (Finding(TOPIC, problem, WRONG, fix) for problem in changed)
    if number is None:
        yield Finding(TOPIC, f"looking at private parts of libraries failed: {said}", WRONG, "reinstall what it names")
    elif not changed:
        yield Finding(TOPIC, f"all {number} private parts of libraries that hftune uses are as it expects")
