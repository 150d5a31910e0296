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
from typing import Any

import xxhash

from hftune.checkpoints import manifest as manifests
from hftune.checkpoints.inputs import record_inputs
from hftune.digests import SEAL, Damaged, read_text, sealed, unsealed
from hftune.distributed import ranks
from hftune.errors import ManifestError
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


class Parts:
    """The parts in a folder; every process has one of these."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def make(self, names: Sequence[str], load: Callable[[], Callable[[str], Iterable[Line]]]) -> None:
        """Have the missing ones of these parts made, each by one process; all processes call it.

        Args:
            load: Gives what makes the lines of a part; it is called, and loads a model, where any is missing.
        """
        # All look before the first one writes, so that all divide the same parts.
        missing = [name for name in names if not self.has(name)]
        ranks.barrier()
        if not missing:
            return
        make = load()
        for name in missing[ranks.rank() :: ranks.world_size()]:
            self.write(name, make(name))
        ranks.barrier()

    def has(self, name: str) -> bool:
        """Whether a part is there, to the byte; it is written whole or not at all, and may have been damaged since."""
        try:
            self._content(name)
        except ManifestError:
            return False
        return True

    def write(self, name: str, lines: Iterable[Line]) -> None:
        """Write a part."""
        content = json_lines(lines)
        write_file(self._file(name), content + json_lines([{SEAL: xxhash.xxh3_128_hexdigest(content)}]))

    def read(self, names: Iterable[str]) -> list[Line]:
        """The lines of parts, one part after the other."""
        found: list[Line] = []
        for name in names:
            lines = self._content(name).splitlines()
            found += [parse_json(line, str(self._file(name))) for line in lines]
        return found

    def _content(self, name: str) -> bytes:
        file = self._file(name)
        content = read_bytes(file, limit=LARGE)
        end = content.rstrip(b"\n").rfind(b"\n") + 1
        if content[end:] != json_lines([{SEAL: xxhash.xxh3_128_hexdigest(content[:end])}]):
            raise ManifestError(f"{file} has other contents than were written", place=str(file), fix="start anew")
        return content[:end]

    def _file(self, name: str) -> Path:
        return self.folder / f"{name}.jsonl"


def json_lines(lines: Iterable[Line]) -> bytes:
    """Objects as JSON, one a line."""
    text = "".join(json.dumps(line, ensure_ascii=False, default=str) + "\n" for line in lines)
    # Models write halves of surrogate pairs, which UTF-8 does not know.
    return text.encode("utf-8", "replace")


@contextmanager
def parts_of(output: str, plan: dict[str, Any], pattern: str = "*.jsonl") -> Iterator[Parts]:
    """The parts of an output folder; removed when the block, which publishes the result, ends without an error.

    Args:
        plan: All that decides what is in the parts; those of another plan are made again.
        pattern: Of the names of parts.
    """
    target = Path(output).resolve()
    aside = target.with_name(f".{target.name}.parts")
    main = ranks.is_main()
    with work_folder_locked(aside, output) if main else nullcontext(), disk_errors(target):
        if main:
            _begin(aside, plan, pattern)
        ranks.barrier()
        yield Parts(aside)
        # The others may still read what the first one has published.
        ranks.barrier()
        if main:
            clear_work(aside)


def _begin(aside: Path, plan: dict[str, Any], pattern: str) -> None:
    """Keep the parts of a process that was killed where they are of the same plan; else begin anew."""
    if (aside / _PLAN).is_file():
        try:
            same = unsealed(read_text(aside / _PLAN)) == unsealed(json.dumps(sealed(plan)))
        except (Damaged, OSError):
            same = False
        if same:
            notice(f"resumed: {len(list(aside.glob(pattern)))} parts are there already")
            return
        notice(f"{aside} holds parts of other models, data or settings: they are made again")
    clear_work(aside)
    make_work(aside)
    write_file(aside / _PLAN, json.dumps(sealed(plan)))


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
        "command": ["hftune", stage, *command_without_secrets(argv)],
        "arguments": without_secrets(vars(args)),
        "versions": versions,
        "parents": [{"folder": name, "fingerprint": fingerprint(name)} for name in parents],
        "inputs": record_inputs(argv),
        "wall_seconds": round(time.time() - began, 2),
        "notices": notices(),
    }
