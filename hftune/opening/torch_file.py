"""Load files of `torch.save` as numbers and plain containers, never as a pickle that may run code.

DeepSpeed pickles four classes of its own with its state, and nothing else: tried with the files of ZeRO 0 to 3, with
offloading, in bf16, with eight optimizers and adapters (0.19.8). They are
allowed by name; a file that asks for any other is refused before a byte of it is executed.
"""

from __future__ import annotations

import importlib
import os
import pickle
import re
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from enum import Enum
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
    "builtins.getattr",  # of enumerations alone: `_enum_member`
)
"""What a checkpoint of DeepSpeed's needs beyond tensors: plain values without code of their own."""
RANDOM_STATES = (
    *("numpy._core.multiarray._reconstruct", "numpy.core.multiarray._reconstruct"),
    *("numpy.dtype", "numpy.ndarray"),
)
"""What the Trainer's rng_state.pth needs, and allows itself while it loads one."""

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
    check_torch(file, allow=allow)
    # Checked above and restricted here: neither the list of names nor torch's unpickler is trusted alone.
    with _allowed_globals(allow), _one_message(file):
        return torch.load(file, map_location="cpu", weights_only=True, mmap=mmap)


def check_torch(file: str | Path, *, allow: Iterable[str] = ()) -> None:
    """Refuse a file that needs other classes, without executing anything in it.

    Raises:
        ManifestError: It needs classes beyond tensors and `allow`, or is none of torch's.
    """
    with open_regular(file) as stream, _one_message(file):
        needs = set(torch.serialization.get_unsafe_globals_in_checkpoint(stream))
    strange = sorted(needs - set(allow))
    if strange:
        raise ManifestError(
            f"{file} is a program, not only numbers: it asks for {shown(', '.join(strange), 120)}",
            place=str(file),
            fix=_FIX,
        )


def check_torch_files(folder: str | Path) -> None:
    """Run `check_torch` on everything in a checkpoint that torch, DeepSpeed or the Trainer will load.

    `training_args.bin` is a pickle of all arguments by design. Nothing in hftune, nor the Trainer's resuming, reads it.

    Raises:
        ManifestError: About the first file that is more than numbers.
    """
    # In a fixed order: the message names the same file on every rank.
    for place in sorted(Path(folder).rglob("*")):
        if place.suffix in (".pt", ".pth", ".bin") and place.name != "training_args.bin" and not place.is_dir():
            states = place.name.startswith("rng_state")
            check_torch(place, allow=RANDOM_STATES if states else DEEPSPEED)


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
    parts = [name.rpartition(".") for name in allow if name != "builtins.getattr"]
    # The classes are imported here, by names that hftune lists, never by names from the file.
    known: list[Any] = [getattr(importlib.import_module(home), last) for home, _, last in parts]
    return torch.serialization.safe_globals(
        [*known, (_enum_member, "builtins.getattr")] if "builtins.getattr" in allow else known
    )


def _enum_member(kind: Any, name: Any) -> Any:
    """A member of an enumeration, in place of `getattr`, by which Python 3.11.0 to 3.11.3 pickle one.

    The real `getattr` would lead from a harmless class to anything: https://github.com/python/cpython/pull/26658
    """
    if not (isinstance(kind, type) and issubclass(kind, Enum) and name in kind.__members__):
        raise pickle.UnpicklingError("an attribute that is no member of an enumeration")
    return kind.__members__[name]


def _refuse(file: str | Path, cause: str, why: BaseException | None = None) -> NoReturn:
    raise ManifestError(f"{file}: {cause}", place=str(file), fix=_FIX) from why
