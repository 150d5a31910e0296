"""Load files of `torch.save` as numbers and plain containers, never as a pickle that may run code.

DeepSpeed pickles four classes of its own with its state, and nothing else: tried with the files of ZeRO 0 to 3, with
offloading, in bf16, with eight optimizers and adapters (0.19.8). They are
allowed by name: torch's restricted unpickler executes none of a file that asks for any other. The Trainer reads in
this way itself.
"""

from __future__ import annotations

import importlib
import os
import pickle
import re
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NoReturn

import torch

from hftune.errors import ManifestError, shown
from hftune.opening.files import open_regular

DEEPSPEED = (
    "deepspeed.runtime.fp16.loss_scaler.LossScaler",
    "deepspeed.runtime.fp16.loss_scaler.DynamicLossScaler",
    "deepspeed.runtime.zero.config.ZeroStageEnum",
    "deepspeed.utils.tensor_fragment.fragment_address",
)
"""What a checkpoint of DeepSpeed's needs beyond tensors: plain values without code of their own."""

_FIX = "take a checkpoint of your own, or one from a place that you trust as you trust a program"
_FORCED = "TORCH_FORCE_WEIGHTS_ONLY_LOAD"
# What torch's restricted unpickler and its reader of archives raise on damaged bytes.
_DAMAGED = (
    *(pickle.UnpicklingError, EOFError, RuntimeError, ValueError, LookupError, TypeError, AttributeError),
    *(AssertionError, ArithmeticError, MemoryError, OSError),
)


def load_torch(file: str | Path, *, allow: Iterable[str] = (), mmap: bool = False) -> Any:
    """The contents of a file of `torch.save`, on the CPU.

    Args:
        file: In torch's format since 1.6, an archive.
        allow: Dotted names of classes that it may need, `DEEPSPEED` for one.
        mmap: Leave the tensors' bytes in the file until they are used.

    Raises:
        ManifestError: It needs other classes, or is damaged.
    """
    open_regular(file).close()  # a pipe would wait for a writer
    with _allowed_globals(allow), _one_message(file):
        return torch.load(file, map_location="cpu", weights_only=True, mmap=mmap)


@contextmanager
def checked_loading(place: str | Path) -> Iterator[None]:
    """Make every `torch.load` in the block, also those of other libraries, refuse all but numbers and `DEEPSPEED`.

    DeepSpeed asks for whole pickles in thirty places (`weights_only=False`); torch's own switch overrules them:
    https://docs.pytorch.org/docs/stable/notes/serialization.html
    """
    before = os.environ.get(_FORCED)
    # Of the whole process: DeepSpeed's calls name `weights_only=False` themselves.
    os.environ[_FORCED] = "1"
    try:
        with _allowed_globals(DEEPSPEED):
            yield
    except pickle.UnpicklingError as problem:
        _refuse(place, f"it is damaged, or more than numbers: {_first_line(problem)}", problem)
    finally:
        if before is None:
            del os.environ[_FORCED]
        else:
            os.environ[_FORCED] = before


@contextmanager
def _one_message(file: str | Path) -> Iterator[None]:
    try:
        yield
    except _DAMAGED as problem:
        _refuse(file, f"it is damaged, or more than numbers: {_first_line(problem)}", problem)


def _first_line(problem: BaseException) -> str:
    """torch's message without its advice to load the file as a program after all."""
    found = re.search(r"WeightsUnpickler error: (.*)", str(problem)) or re.search(r"(.*)", str(problem))
    return shown(found[1] if found and found[1] else type(problem).__name__, 160)


def _allowed_globals(allow: Iterable[str]) -> Any:
    """A context in which torch's restricted unpickler accepts these classes as well."""
    parts = [name.rpartition(".") for name in allow]
    # The classes are imported here, by names that hftune lists, never by names from the file.
    return torch.serialization.safe_globals([getattr(importlib.import_module(home), last) for home, _, last in parts])


def _refuse(file: str | Path, cause: str, why: BaseException | None = None) -> NoReturn:
    raise ManifestError(f"{file}: {cause}", place=str(file), fix=_FIX) from why
