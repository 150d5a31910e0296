"""What DeepSpeed can compile on this machine: its operators are C++ and CUDA sources, built when first used."""

from __future__ import annotations

import importlib.metadata
import os
import shutil
import sys
from collections.abc import Iterable
from pathlib import Path


def put_ninja_on_path() -> None:
    """Put this environment's ninja on PATH, where builds look for it, unless one is there.

    It is not where Python was started by its path, without the environment's `activate`, or from a folder of packages.
    """
    if shutil.which("ninja"):
        return
    found = next((file for file in _ninja_candidates() if os.access(file, os.X_OK)), None)
    if found is not None:
        # Torch starts ninja by its name; the variable reaches the processes that are started later as well.
        os.environ["PATH"] = os.pathsep.join([str(found.parent), os.environ.get("PATH", os.defpath)])


def _ninja_candidates() -> Iterable[Path]:
    """Where ninja may be: next to Python, in its package, or next to that."""
    yield Path(sys.executable).with_name("ninja")
    try:
        package = importlib.metadata.distribution("ninja")
    except importlib.metadata.PackageNotFoundError:
        return
    yield from (Path(str(file.locate())).resolve() for file in package.files or [] if file.name == "ninja")
    yield Path(str(package.locate_file(""))) / "bin" / "ninja"  # pip install --target


def has_cpp_compiler() -> bool:
    """Whether a C++ compiler is here."""
    # As torch's builder chooses it: CXX, else g++.
    return shutil.which(os.environ.get("CXX", "g++")) is not None


def can_build_operators() -> bool:
    """Whether DeepSpeed could compile its C++ operators here."""
    put_ninja_on_path()
    return has_cpp_compiler() and shutil.which("ninja") is not None


def missing_operators(operators: Iterable[str]) -> frozenset[str]:
    """The GPU operators that neither are installed nor can be compiled here. Imports DeepSpeed.

    Args:
        operators: As DeepSpeed names them: "quantizer", "dc", "async_io".
    """
    wanted = frozenset(operators)
    if not wanted:
        return wanted
    from deepspeed.git_version_info import installed_ops
    from torch.utils.cpp_extension import CUDA_HOME

    # As torch looks for the toolkit: CUDA_HOME, nvcc on PATH, /usr/local/cuda.
    if CUDA_HOME is not None and can_build_operators():
        return frozenset()
    return frozenset(name for name in wanted if not installed_ops.get(name, False))
