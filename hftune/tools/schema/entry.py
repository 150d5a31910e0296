"""`hftune schema`: prints or writes JSON Schema; what takes seconds is made once and kept."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from hftune import __version__
from hftune.arguments.entry import kept
from hftune.arguments.stage_table import STAGES, stage_of
from hftune.errors import ArgumentError, did_you_mean, raise_together
from hftune.publishing.disk import disk_errors, writing_problem
from hftune.publishing.folder import published_file
from hftune.publishing.places import FILE, check_place
from hftune.tools.words import taken
from hftune.visible import say

HELP = """JSON Schema (draft 2020-12) of the YAML files that hftune reads, for editors, forms and agents.

hftune schema {names}      the file behind --config of a stage, or of a pipeline, on the terminal
hftune schema sft --output .hftune/sft.schema.json      into a file
hftune schema --output .hftune                          all of them into a folder, as NAME.schema.json

The first line of a YAML file says where an editor finds its schema, seen from the file:
# yaml-language-server: $schema=.hftune/sft.schema.json"""

PIPELINE = "pipeline"
NAMES = (*STAGES, "merge", PIPELINE)


def schema(argv: list[str]) -> None:
    """Print a schema, or write one or all of them.

    Raises:
        ArgumentError: No file of this kind, no name and no folder, or a file that hftune did not write.
    """
    if {"-h", "--help"} & {*argv}:
        say(HELP.format(names="|".join(NAMES)))
        return
    name, output = _taken(argv)
    if output is None:
        if not name:
            raise ArgumentError("`hftune schema` needs a name", fix=f"hftune schema sft; one of: {', '.join(NAMES)}")
        say(schema_text(name), end="")
        return
    files = {output: name} if name else {output / file_name(each): each for each in NAMES}
    write_schemas(files)
    say("\n".join(f"{each}: # yaml-language-server: $schema={file}" for file, each in files.items()))


def _taken(argv: list[str]) -> tuple[str, Path | None]:
    words, given = taken("hftune schema", argv, values={"--output": ".hftune/sft.schema.json"})
    if len(words) > 1:
        raise ArgumentError("`hftune schema` takes one name", fix=f"hftune schema {words[0]}")
    name = "".join(stage_of(word) or word for word in words)
    if name and name not in NAMES:
        fix = f"{did_you_mean(name, NAMES)} one of: {', '.join(NAMES)}".strip()
        raise ArgumentError(f"there is no schema of {name}", fix=fix)
    output = Path(given["--output"]) if given else None
    return name, output / file_name(name) if output is not None and name and output.is_dir() else output


def file_name(name: str) -> str:
    """What the file of a schema is called in a folder of all."""
    return f"{name}.schema.json"


def write_schemas(files: dict[Path, str]) -> None:
    """Write schemas, each into its file; only earlier ones of hftune's are replaced.

    Raises:
        ArgumentError: A file is there that hftune did not write.
    """
    folders = {file.parent for file in files}
    raise_together(filter(None, [writing_problem(folder, "--output") for folder in folders]))
    raise_together(
        problem for file in files for problem in check_place(file, kind=FILE, overwrite=True, flag="--output")
    )
    for file, name in files.items():
        with disk_errors(file, "--output"):
            file.parent.mkdir(parents=True, exist_ok=True)
        with published_file(file, flag="--output") as stream:
            stream.write(schema_text(name))


def schema_text(name: str) -> str:
    """The schema of a stage's file, of `merge` or of a pipeline's, as JSON."""
    own = [file.stat().st_mtime_ns for file in sorted(Path(__file__).parent.glob("*.py"))]
    return kept("schema", [name, *map(str, own)], lambda: _as_json(_made(name)))


def _made(name: str) -> dict[str, Any]:
    # They bring the parsers of all stages, which take seconds.
    from hftune.tools.schema.pipelines import pipeline_schema
    from hftune.tools.schema.stages import stage_schema

    title = "A pipeline of hftune's" if name == PIPELINE else f"Arguments of `hftune {name}`"
    return {"title": title, **(pipeline_schema() if name == PIPELINE else stage_schema(name))}


def _as_json(schema: dict[str, Any]) -> str:
    from hftune.tools.schema.stages import DRAFT

    comment = f"Written by `hftune schema`, hftune {__version__}"
    return json.dumps({"$schema": DRAFT, "$comment": comment, **schema}, ensure_ascii=False, indent=1) + "\n"
