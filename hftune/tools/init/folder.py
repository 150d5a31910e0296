"""`hftune init`, and the folders that it writes: examples of hftune with paths that hold in a folder of their own."""

from __future__ import annotations

import json
import os
import re
import shlex
from pathlib import Path

from jinja2 import Template

from hftune.constants import SHIPPED
from hftune.errors import ArgumentError, raise_together
from hftune.publishing.disk import disk_errors, lexists, write_file, writing_problem
from hftune.tools.init.base_model import HUB_NAME, prepare_base
from hftune.tools.schema.entry import schema_text
from hftune.tools.words import Words
from hftune.visible import say

HELP = """Writes a folder to start from: data, a YAML file to edit, and a README that says what to do. Replaces nothing.

hftune init demo [FOLDER]        all stages on a real model of 135M parameters, which is fetched; minutes on a CPU
hftune init sft [FOLDER]         fine-tuning on conversations: one file of arguments
hftune init pipeline [FOLDER]    PT and SFT from one file, to be extended

FOLDER: left out, the working folder.
--model MODEL      the model to begin with, a folder or a name of the Hub; left out: SmolLM2-135M-Instruct"""

EXAMPLES = SHIPPED / "examples"
# What the demo's file says of its model and of its processes: variables, for examples/demo.py.
_MODEL = re.compile(r"\$\{env\.\w*MODEL:-[^}]*\}|" + re.escape(HUB_NAME))
_PROCESSES = re.compile(r"\$\{env\.DEMO_PROCESSES:-\d+\}")
_OUTPUT = re.compile(r"\$\{env\.DEMO_OUTPUT:-([^}]*)\}")
_DATA = re.compile(r"(?:\$\{data\}|\bdata)/(\w+)")


KINDS = {"demo": "pipelines/demo.yaml", "sft": "sft.yaml", "pipeline": "pipelines/lora.yaml"}
"""A folder to start from -> its YAML file, of those below `examples/`; there it is called as the kind is."""


def command_of(name: str) -> str:
    """What starts a folder of a kind."""
    return "hftune sft --config sft.yaml" if name == "sft" else f"hftune pipeline run {name}.yaml"


def init(argv: list[str]) -> None:
    """Write a folder, or print the help page.

    Raises:
        ArgumentError: No kind that is known, a word too many, or a file that is there already.
    """
    if not argv or {"-h", "--help"} & {*argv}:
        say(HELP)
        return
    words = Words("hftune init")
    words.add_argument("kind", choices=KINDS)
    words.add_argument("folder", nargs="?", type=Path, default=".")
    words.add_argument("--model")
    given = words.parse_args(argv)
    write_folder(given.kind, given.folder, given.model)


def write_folder(name: str, folder: Path, model: str | None = None) -> None:
    """Write a folder to start from, and say what to do there.

    Args:
        name: A key of `KINDS`.
        folder: Where; it may hold other things.
        model: What to begin with; left out: SmolLM2-135M-Instruct, which the demo brings along.

    Raises:
        ArgumentError: A file is there already, or the disk does not take it.
        DataError: The demo's model cannot be had.
    """
    base = Path("base") / HUB_NAME.partition("/")[2]
    brought = model is None and name == "demo"
    if model is not None and Path(model).is_dir():
        # The command runs in the new folder.
        model = str(Path(model).resolve())
    contents = files_of(name, str(base) if brought else model or HUB_NAME)
    # Before the model is fetched; what is there is told as one.
    raise_together(filter(None, [writing_problem(folder, "FOLDER")]))
    _refuse_existing(folder, contents)
    if brought:
        say(f"model: {prepare_base(folder / base)}\n  in {folder / base}", flush=True)
    for path, text in contents.items():
        with disk_errors(folder, "FOLDER"):
            write_file(folder / path, text)
    there = f"cd {shlex.quote(str(folder))} && " if folder != Path(".") else ""
    say(f"wrote {len(contents)} files; what they are is in {folder / 'README.md'}. Next:\n  {there}{command_of(name)}")


def files_of(name: str, model: str) -> dict[str, str]:
    """The files of a folder by their paths in it; the one that a command needs comes last."""
    # Alongside the YAML file, so that an editor finds it without a network, wherever the folder is.
    kind = "sft" if name == "sft" else "pipeline"
    schema = f".hftune/{kind}.schema.json"
    head = f"# yaml-language-server: $schema={schema}\n# {command_of(name)}\n"
    text = _here((EXAMPLES / KINDS[name]).read_text(encoding="utf-8"), head, model)
    data = [file for part in sorted({*_DATA.findall(text)}) for file in sorted((EXAMPLES / "data" / part).iterdir())]
    readme = Path(__file__).with_name("readme.md.jinja").read_text(encoding="utf-8")
    said = {"kind": name, "file": f"{name}.yaml", "command": command_of(name)}
    return {
        **{str(file.relative_to(EXAMPLES)): file.read_text(encoding="utf-8") for file in data if file.is_file()},
        "README.md": Template(readme, keep_trailing_newline=True).render(said),
        schema: schema_text(kind),
        f"{name}.yaml": text,
    }


def _here(text: str, head: str, model: str) -> str:
    """An example's YAML with paths and values for a folder of its own."""
    # Comments at its start tell of the place where it came from.
    lines = text.splitlines(keepends=True)
    body = "".join(lines[next(number for number, line in enumerate(lines) if not line.startswith("#")) :])
    body = _MODEL.sub(lambda found: json.dumps(model, ensure_ascii=False), body)
    body = _OUTPUT.sub(r"\1", body).replace("examples/data", "data")
    if _PROCESSES.search(body):
        body = _PROCESSES.sub(str(_processes()), body)
    return head + body


def _processes() -> int:
    """One a GPU; on a CPU two, as a small picture of a cluster, or one where there is a single core."""
    import torch

    return torch.cuda.device_count() or min(2, os.cpu_count() or 1)


def _refuse_existing(folder: Path, contents: dict[str, str]) -> None:
    there = [path for path in contents if lexists(folder / path)]
    # Nothing is written through a link either: what it leads to is somebody's.
    above = sorted({folder / up for path in contents for up in Path(path).parents if up.name})
    there += [place.name for place in above if place.is_symlink() or (lexists(place) and not place.is_dir())]
    if there:
        more = f" and {len(there) - 3} more" if len(there) > 3 else ""
        raise ArgumentError(
            f"{', '.join(there[:3])}{more} of {folder} would be replaced: nothing was written",
            place="FOLDER",
            fix="name a new folder: hftune init KIND FOLDER",
        )
