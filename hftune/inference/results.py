"""Results that are made in parts, by several processes, and resumed after a kill; and what their manifests say.

Parts are files of JSON lines. They lie in `.NAME.parts` next to the output folder, which stays where a process is
killed; what is there whole is not made again.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any, TypeVar

from hftune.checkpoints import manifest as manifests
from hftune.checkpoints.inputs import record_inputs
from hftune.distributed import ranks
from hftune.logging import notice, notices
from hftune.opening.files import read_bytes
from hftune.opening.json_file import LARGE, parse_json
from hftune.publishing.disk import disk_errors, write_file
from hftune.publishing.folder import clear_work, make_work, published_folder, work_folder_locked
from hftune.secrets import command_without_secrets, without_secrets
from hftune.weight_files import fingerprint

_PLAN = "plan.json"
# Arguments that decide nothing of what is in the parts.
_ABOUT_THE_OUTPUT = {"output_dir", "overwrite_output_dir", "use_cpu"}
Line = dict[str, Any]
T = TypeVar("T")


class Parts:
    """The parts in a folder; every process has one of these."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def made(
        self, kind: str, items: Sequence[T], size: int, load: Callable[[], Callable[[Sequence[T]], Iterable[Line]]]
    ) -> list[Line]:
        """The lines of all items, in their order; each missing part is made by one process, and all processes call it.

        Args:
            kind: What the parts are called.
            size: Items of a part.
            load: Gives what makes the lines of some items; it is called, and loads a model, where any part is missing.
        """
        starts = range(0, len(items), size)
        # All look before the first one writes, so that all divide the same parts.
        missing = [start for start in starts if not self.has(f"{kind}-{start}")]
        ranks.barrier()
        if missing:
            make = load()
            for start in missing[ranks.rank() :: ranks.world_size()]:
                self.write(f"{kind}-{start}", make(items[start : start + size]))
            ranks.barrier()
        return [line for start in starts for line in self.read(f"{kind}-{start}")]

    def has(self, name: str) -> bool:
        """Whether a part is there; it is written whole or not at all."""
        return self._file(name).is_file()

    def write(self, name: str, lines: Iterable[Line]) -> None:
        """Write a part."""
        write_file(self._file(name), json_lines(lines))

    def read(self, name: str) -> list[Line]:
        """The lines of a part."""
        file = self._file(name)
        return [parse_json(line, str(file)) for line in read_bytes(file, limit=LARGE).splitlines()]

    def _file(self, name: str) -> Path:
        return self.folder / f"{name}.jsonl"


def json_lines(lines: Iterable[Line]) -> bytes:
    """Objects as JSON, one a line."""
    text = "".join(json.dumps(line, ensure_ascii=False, default=str) + "\n" for line in lines)
    # Models write halves of surrogate pairs, which UTF-8 does not know.
    return text.encode("utf-8", "replace")


@contextmanager
def parts_of(output: str, plan: dict[str, Any]) -> Iterator[Parts]:
    """The parts of an output folder; removed when the block, which publishes the result, ends without an error.

    Args:
        plan: All that decides what is in the parts; those of another plan are made again.
    """
    target = Path(output).resolve()
    aside = target.with_name(f".{target.name}.parts")
    main = ranks.is_main()
    with work_folder_locked(aside, output) if main else nullcontext(), disk_errors(target):
        if main:
            _begin(aside, json.dumps(plan, default=str))
        ranks.barrier()
        yield Parts(aside)
        # The others may still read what the first one has published.
        ranks.barrier()
        if main:
            clear_work(aside)


def _begin(aside: Path, plan: str) -> None:
    """Keep the parts of a process that was killed where they are of the same plan; else begin anew."""
    file = aside / _PLAN
    if file.is_file():
        if read_bytes(file, limit=LARGE) == plan.encode():
            notice(f"resumed: {len(list(aside.glob('*-*')))} parts are there already")
            return
        notice(f"{aside} holds parts of other models, data or settings: they are made again")
    clear_work(aside)
    make_work(aside)
    write_file(file, plan)


def plan_of(args: Any, models: Iterable[str | None], data: Any, without: Iterable[str]) -> dict[str, Any]:
    """All that decides what is in the parts of a command.

    Args:
        models: Folders and Hub names.
        data: The records, as values whose `repr` tells them apart.
        without: Arguments that decide nothing.
    """
    settings = {name: value for name, value in vars(args).items() if name not in {*without, *_ABOUT_THE_OUTPUT}}
    return {
        "settings": without_secrets(settings),
        "models": [(name, fingerprint(name)) for name in models if name],
        "data": manifests.text_fingerprint(repr(data)),
        "versions": manifests.library_versions(),
    }


def publish(output: str, files: Mapping[str, bytes], about: manifests.Manifest, *, overwrite: bool) -> None:
    """Put the files of a result, by their names, and its manifest into a folder, all or nothing."""
    with published_folder(output, overwrite=overwrite) as result:
        for name, content in files.items():
            write_file(result / name, content)
        manifests.finish_manifest(result, about, files)


def about_result(
    stage: str, args: Any, argv: list[str], models: Iterable[str | None], began: float
) -> manifests.Manifest:
    """What the manifest of a result says.

    Args:
        stage: The command, and what manifests call its results.
        args: Its arguments; None: they are not told.
        argv: The words behind the command.
        models: What the result was made with; those with a manifest are its parents.
        began: When, by `time.time()`.
    """
    versions = manifests.library_versions()
    parents = [name for name in dict.fromkeys(models) if name and manifests.read_manifest(name)]
    return {
        "hftune": versions.get("hftune"),
        "stage": stage,
        "status": manifests.COMPLETE,
        "command": ["hftune", *stage.split(), *command_without_secrets(argv)],
        "arguments": without_secrets(vars(args)) if args else {},
        "versions": versions,
        "parents": [{"folder": name, "fingerprint": fingerprint(name)} for name in parents],
        "inputs": record_inputs(argv),
        "wall_seconds": round(time.time() - began, 2),
        "notices": notices(),
    }
