"""One fault at a time, what is at the target afterwards, and the same command once more, unharmed."""

from __future__ import annotations

import json
import re
import shutil
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

from hftune.checkpoints.integrity import checkpoint_fault
from hftune.digests import changed_files, digest
from hftune.publishing.ownership import WRITTEN_NAME, foreign_files
from tests.faults.injection.server import KILL, Injector

VICTIM, WORDS = "thesis.tex", "years of work"
FREE, OLD = "free", "old"


@dataclass
class Command:
    """What is run, and what it makes.

    Attributes:
        argv: With `{out}` for the target, and `{room}` for the folder that it is in.
        earlier: Words behind it that make another result: the one that is there already.
        overwrite: What is added where a result stands at the target.
        changing: Files of the result that differ from run to run: times, random names.
        sampled: Whether faults are tried at one call of each kind (`one_of_each`), of a run that takes seconds.
        kind: What holds after a fault.
    """

    argv: list[str]
    earlier: list[str] = field(default_factory=list)
    overwrite: list[str] = field(default_factory=lambda: ["--overwrite_output_dir"])
    changing: tuple[str, ...] = ("hftune.json",)
    sampled: bool = False
    kind: type[Bench] | None = None

    def at(self, out: Path, *more: str) -> list[str]:
        """The command line for a target."""
        return [word.replace("{out}", str(out)).replace("{room}", str(out.parent)) for word in (*self.argv, *more)]


def contents(place: Path) -> dict[str, str]:
    """Digests of all files of a folder, hidden ones too, or of a file; empty for nothing.

    But the record of what hftune wrote, which grows with each attempt.
    """
    if place.is_file():
        return {"": digest(place)}
    files = (file for file in sorted(place.rglob("*")) if file.is_file() and file.name != WRITTEN_NAME)
    return {str(file.relative_to(place)): digest(file) for file in files}


def names(room: Path) -> list[str]:
    """What a folder holds beside the record of what hftune wrote there."""
    return sorted(entry.name for entry in room.iterdir() if entry.name != WRITTEN_NAME)


def manifest_of(out: Path) -> dict[str, Any]:
    file = out / "hftune.json"
    return json.loads(file.read_text()) if file.is_file() else {}


def is_complete(out: Path) -> bool:
    """Whether the manifest at a target says that it is a finished result."""
    return manifest_of(out).get("status") == "complete"


class Bench:
    """A folder, or a file, that is published as a whole."""

    def __init__(self, injector: Injector, command: Command, folder: Path) -> None:
        self.injector, self.command, self.folder = injector, command, folder
        self.counted: dict[tuple[int, str], list[tuple[str, str]]] = {}
        self.reference = self.kept(self.made("reference"))
        assert self.reference

    def made(self, name: str, *more: str) -> Path:
        """The result of an unharmed run with further words."""
        out = self.arranged(name, FREE)
        code, _ = self.injector.run(self.command.at(out, *more), out.parent)
        assert code == 0, self.injector.said
        return out

    @cached_property
    def older(self) -> Path:
        """A finished result with other contents."""
        out = self.made("older", *self.command.earlier)
        assert self.kept(out) != self.reference
        return out

    def arranged(self, name: str, start: str) -> Path:
        """A new folder with somebody's file in it, and what is at the target before; returns the target."""
        room = self.folder / name
        room.mkdir()
        (room / VICTIM).write_text(WORDS)
        out = room / "out"
        if start == OLD:
            place = shutil.copytree if self.older.is_dir() else shutil.copy2
            place(self.older, out)  # times differ, digests do not
            if self.older.is_file():
                shutil.copy2(self.older.with_name(WRITTEN_NAME), room)
        return out

    def kept(self, out: Path) -> dict[str, str]:
        """What of a result is the same in every run."""
        return {name: file for name, file in contents(out).items() if Path(name).name not in self.command.changing}

    def words(self, start: str) -> list[str]:
        """What is added to the command line."""
        return self.command.overwrite if start == OLD else []

    def calls(self, how: int, start: str) -> list[tuple[str, str]]:
        """The calls that can fail that way: removals are places to be killed at, and nothing else."""
        key = (min(how, 0), start)
        if key not in self.counted:
            out = self.arranged(f"counted-{start}-{how}", start)
            code, calls = self.injector.run(self.command.at(out, *self.words(start)), out.parent, 0, min(how, 0))
            assert code == 0, self.injector.said
            self.counted[key] = self.injector.seen
            assert len(self.counted[key]) == calls > 3
            shutil.rmtree(out.parent)
        return self.counted[key]

    def points(self, calls: list[tuple[str, str]]) -> list[int]:
        """At which calls a fault is tried."""
        return one_of_each(calls) if self.command.sampled else [*range(1, len(calls) + 1)]

    def attempt(self, number: int, how: int, lasting: bool, start: str) -> str:
        """One fault at the N-th call; a word for what is at the target afterwards."""
        out = self.arranged(f"{start}{number}-{how}-{lasting:d}", start)
        before = contents(out)
        code, _ = self.injector.run(self.command.at(out, *self.words(start)), out.parent, number, how, lasting)
        self.check_words(code, how, number)
        state = self.judge(out, before, start)
        assert code or state == "new", f"call {number}: nothing was said\n{self.injector.said[-2000:]}"
        self.again(out, start, state, number)
        shutil.rmtree(out.parent)
        return state

    def check_words(self, code: int, how: int, number: int) -> None:
        """What was said is one message, if the process could speak."""
        said = self.injector.said
        if how == KILL and code < 0:
            return
        assert "Traceback" not in said and code in (0, 2), f"call {number}: {code}\n{said[-3000:]}"
        if code == 2:
            assert said.count("\nerror: ") == 1 and "to do:" in said, f"call {number}:\n{said[-2000:]}"

    def others_untouched(self, room: Path) -> None:
        """Somebody's file is as it was, and nothing was added that has no place in the documentation."""
        assert (room / VICTIM).read_text() == WORDS
        found = {*names(room)} - {VICTIM, "out", ".out.partial"}
        assert not found, found

    def judge(self, out: Path, before: dict[str, str], start: str) -> str:
        """What is at the target: the old result or the new one, to the byte."""
        self.others_untouched(out.parent)
        if (now := contents(out)) == before:
            return "old" if before else "none"
        if not now:
            assert (out.parent / ".out.partial" / "replaced").is_dir(), "the old result is gone"
            return "none"
        assert self.kept(out) == self.reference, "half a result"
        assert out.is_file() or (is_complete(out) and foreign_files(out) == [])
        return "new"

    def again(self, out: Path, start: str, state: str, number: int) -> None:
        """The same command, unharmed, ends with the whole result and nothing else."""
        more = self.command.overwrite if out.exists() or start == OLD else []
        code, _ = self.injector.run(self.command.at(out, *more), out.parent)
        assert code == 0, f"after call {number}:\n{self.injector.said[-3000:]}"
        assert self.judge(out, {}, start) == "new", f"after call {number}"
        assert names(out.parent) == ["out", VICTIM]


class Stage(Bench):
    """A run: the old result, the new one, or checkpoints and files from which the same command comes to the new one."""

    RESUME = ("--resume_from_checkpoint", "auto")

    def kept(self, out: Path) -> dict[str, str]:
        """Checkpoints are looked at by themselves; in hidden folders is what is not published yet, and a fresh start
        renames logs."""
        found = super().kept(out).items()
        return {
            name: file for name, file in found if not name.startswith((".", "checkpoint-")) and ".replaced" not in name
        }

    def judge(self, out: Path, before: dict[str, str], start: str) -> str:
        self.others_untouched(out.parent)
        for checkpoint in out.glob("checkpoint-*"):
            assert checkpoint_fault(checkpoint) is None, f"{checkpoint.name}: {checkpoint_fault(checkpoint)}"
        if not is_complete(out):
            assert start != OLD or self.is_whole(out), "the old result is gone before the new one is whole"
            return "none" if not contents(out) else "interrupted"
        assert not [*changed_files(out, manifest_of(out)["files"], whole=True)], "the manifest says something else"
        found = self.kept(out)
        if start == OLD and {name: found.get(name) for name in self.kept(self.older)} == self.kept(self.older):
            return "old"
        assert found == self.reference, f"half a result: {differing(found, self.reference)}"
        return "new"

    def is_whole(self, out: Path) -> bool:
        """Whether all that is missing of the new result is in the work folder, ready to be moved."""
        result = out / ".result.partial"
        ready = (result / "hftune.work").is_file() and (result / "hftune.work").read_text() == "ready\n"
        waiting = contents(result / "result") if ready else {}
        return all((waiting | self.kept(out)).get(name) for name in self.reference) or self.kept(out) == self.reference

    def again(self, out: Path, start: str, state: str, number: int) -> None:
        """Going on, or beginning anew: both come to the same."""
        finished = state in ("old", "new")
        # After every other fault the very same command runs once more; then a refusal names the way on.
        more = self.command.overwrite if finished or start == OLD else self.RESUME if number % 2 else self.words(start)
        code, _ = self.injector.run(self.command.at(out, *more), out.parent)
        if code == 2 and not more and "holds a run that reached" in self.injector.said:
            code, _ = self.injector.run(self.command.at(out, *self.RESUME), out.parent)
        assert code == 0, f"after call {number}:\n{self.injector.said[-3000:]}"
        assert self.judge(out, {}, FREE) == "new", f"after call {number}"
        hidden = [str(path.relative_to(out)) for path in out.rglob(".*") if path.name != WRITTEN_NAME]
        assert not hidden, f"after call {number}: {hidden}"
        assert names(out.parent) == ["out", VICTIM]


def differing(one: dict[str, str], other: dict[str, str]) -> list[str]:
    """Names of files that are not the same in both."""
    return sorted(name for name in {*one, *other} if one.get(name) != other.get(name))


def one_of_each(calls: list[tuple[str, str]]) -> list[int]:
    """The first call, from 1, of each kind (write, rename, ...) on each kind of file, of kinds and names."""
    first: dict[tuple[str, str], int] = {}
    for number, (kind, name) in enumerate(calls, start=1):
        plain = re.sub(r"[0-9a-f]{8,}|tmp\w+|#\d+|\d+", "*", name)
        first.setdefault((kind, re.sub(r"[^/]+(\.\w+)$", r"*\1", plain)), number)
    return sorted(first.values())
