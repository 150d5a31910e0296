"""Files that torch.load would run: each makes a flag file where it is unpickled as a program."""

from __future__ import annotations

import io
import pickle
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch


class Runs:
    """Unpickled, it makes a file."""

    def __init__(self, flag: Path) -> None:
        self.flag = flag

    def __reduce__(self) -> tuple[Any, ...]:
        return open, (str(self.flag), "w")


class Evaluates(Runs):
    """The same in words, by a function that has nothing to do with files."""

    def __reduce__(self) -> tuple[Any, ...]:
        return eval, (f"open({str(self.flag)!r}, 'w')",)


class Imports(Runs):
    """By a method of something that is imported."""

    def __reduce__(self) -> tuple[Any, ...]:
        return Path.touch, (self.flag,)


class Smuggles(Runs):
    """Through a function of torch's own that loads a pickle."""

    def __reduce__(self) -> tuple[Any, ...]:
        inner = io.BytesIO()
        torch.save(Runs(self.flag), inner, _use_new_zipfile_serialization=False)
        return torch.storage._load_from_bytes, (inner.getvalue(),)


class InAState(Runs):
    """Inside the state of a class of DeepSpeed's that is allowed."""

    def __reduce__(self) -> tuple[Any, ...]:
        from deepspeed.runtime.fp16.loss_scaler import LossScaler

        return LossScaler, (1.0,), {"scale": Runs(self.flag)}


def _archive(make: type[Runs], **how: Any) -> Callable[[Path, Path], None]:
    return lambda file, flag: torch.save({"a": torch.zeros(2), "b": [make(flag)]}, file, **how)


def _bare(file: Path, flag: Path) -> None:
    """A pickle where torch.save would put its archive. torch.load asks for a number first, and runs what it gets."""
    file.write_bytes(pickle.dumps(Runs(flag), protocol=2))


def _foreign(file: Path, flag: Path) -> None:
    """An archive that was not made by torch, the pickle of which came later than its own name."""
    torch.save({"a": 1}, file)
    with zipfile.ZipFile(file) as archive:
        parts = {name: archive.read(name) for name in archive.namelist()}
    with zipfile.ZipFile(file, "w") as archive:
        for name, content in parts.items():
            archive.writestr(name, pickle.dumps(Runs(flag), protocol=2) if name.endswith("data.pkl") else content)


FORMS: dict[str, Callable[[Path, Path], None]] = {
    "function": _archive(Runs),
    "eval": _archive(Evaluates),
    "method": _archive(Imports),
    "torch's own": _archive(Smuggles),
    "state": _archive(InAState),
    "protocol 4": _archive(Runs, pickle_protocol=4),
    "legacy": _archive(Runs, _use_new_zipfile_serialization=False),
    "bare": _bare,
    "foreign": _foreign,
}
"""Name to a function that writes such a file: `FORMS[name](file, flag)`."""
