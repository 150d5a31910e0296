"""The folders that `hftune init` writes: examples that hftune ships, with paths that hold in a folder of their own."""

from __future__ import annotations

import json
import os
import re
import shlex
from dataclasses import dataclass
from pathlib import Path

from hftune.constants import SHIPPED
from hftune.errors import ArgumentError, raise_together, shown
from hftune.publishing.disk import disk_errors, lexists, write_file, writing_problem
from hftune.secrets import redact
from hftune.tools.init.base_model import HUB_NAME, prepare_base
from hftune.tools.schema.entry import file_name, schema_text
from hftune.visible import say

EXAMPLES = SHIPPED / "examples"
# What the demo's file says of its model and of its processes: variables, for examples/demo.py.
_MODEL = re.compile(r"\$\{env\.\w*MODEL:-[^}]*\}|" + re.escape(HUB_NAME))
_PROCESSES = re.compile(r"\$\{env\.DEMO_PROCESSES:-\d+\}")
_OUTPUT = re.compile(r"\$\{env\.DEMO_OUTPUT:-([^}]*)\}")
_DATA = re.compile(r"(?:\$\{data\}|\bdata)/(\w+)")


@dataclass(frozen=True)
class Kind:
    """A folder to start from.

    Args:
        source: Its YAML file, of those below `examples/`.
        file: The name that it gets.
        command: What starts it.
        says: What it does, for its first line.
        schema: What `hftune schema` calls such a file.
    """

    source: str
    file: str
    command: str
    says: str
    schema: str = "pipeline"


KINDS = {
    "demo": Kind(
        "pipelines/demo.yaml",
        "demo.yaml",
        "hftune pipeline run demo.yaml",
        "PT -> SFT -> RM -> RL, and SFT -> DPO, with LoRA, each adapter merged and verified.",
    ),
    "sft": Kind("sft.yaml", "sft.yaml", "hftune sft --config sft.yaml", "SFT with LoRA on conversations.", "sft"),
    "pipeline": Kind(
        "pipelines/lora.yaml",
        "pipeline.yaml",
        "hftune pipeline run pipeline.yaml",
        "PT -> SFT with LoRA, each adapter merged, and the merge verified, before the next stage.",
    ),
}
_LOOK = """
| you want | command |
|---|---|
| what an argument does, also under other tools' names | `hftune explain NAME` |
| what this machine has, and what is wrong with it | `hftune doctor` |
| what else hftune does | `hftune --help` |
"""

_PIPELINE = """
```bash
hftune pipeline plan {file}      # the commands, what would run and why, memory and time
{command}       # resumes after anything; what is finished is skipped
```

Results are in `outputs/`, a folder a stage; each says in its `hftune.json` what it was made from.
"""

README = {
    "demo": f"""# The demo

All stages on a small real model: it learns a handbook's words (PT), to be an assistant named Fina (SFT), what people
prefer (RM, DPO), and to be rewarded for it (RL). Some minutes on two CPU cores.
{_PIPELINE}
```bash
hftune report outputs/demo            # curves, counts and answers of all stages: report.html
hftune chat outputs/demo/rl-merged    # talk to what it became
```

| file | what |
|---|---|
| `{{file}}` | models, stages and their arguments |
| `base/` | the model that it begins with |
| `data/` | the records of each stage, `*_eval` for evaluation |
| `.hftune/` | what an editor knows of `{{file}}`: names, values, what they mean |
{_LOOK}""",
    "sft": f"""# Fine-tuning on conversations

`{{file}}` holds the arguments; each may also be given on the command line, where it wins.

```bash
hftune preview sft --config {{file}}      # the records as the model reads them, and what is trained
hftune plan sft --config {{file}}         # memory, and the cheapest setting that fits
{{command}}              # Ctrl-C saves a checkpoint; again with --resume_from_checkpoint auto
hftune merge --peft_model_path outputs/sft --output_dir outputs/sft-merged
hftune chat outputs/sft-merged
```

With two GPUs it starts two processes; `--deepspeed zero2` shards the optimizer over them.

Your own data: put files with conversations (JSONL, JSON, CSV, Parquet) into `data/sft`, in place of those that are
there. A record is a line such as this one; the forms of ShareGPT, Alpaca and others are recognised. Of the
records 5 % are held out (`validation_split_percentage`). Rate, schedule and epochs are hftune's for what is trained
(`hftune explain learning_rate`); `max_length` and the batch are yours to fit, which `hftune plan` helps with.

```json
{{{{"messages": [{{{{"role": "user", "content": "Hi!"}}}}, {{{{"role": "assistant", "content": "Hello."}}}}]}}}}
```
{_LOOK}""",
    "pipeline": f"""# Stages from one file

`{{file}}` names the model, the stages and their arguments. Each stage begins with what the one before came to.
{_PIPELINE}
A stage more is a key more below `stages:`, such as `dpo: {{{{train_file_dir: data/preference}}}}`, with files of
pairs in that folder. Your own data goes into `data/`, in place of what is there.
{_LOOK}""",
}


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
    kind = KINDS[name]
    _check_model(model or "")
    base = Path("base") / HUB_NAME.partition("/")[2]
    brought = model is None and name == "demo"
    if model is not None and Path(model).is_dir():
        # The command runs in the new folder.
        model = str(Path(model).resolve())
    contents = files_of(name, str(base) if brought else model or HUB_NAME)
    # Before the model is fetched; what is there is told as one.
    _refuse_existing(folder, contents)
    raise_together(filter(None, [writing_problem(folder, "FOLDER")]))
    if brought:
        say(f"model: {prepare_base(folder / base)}\n  in {folder / base}", flush=True)
    for path, text in contents.items():
        with disk_errors(folder, "FOLDER"):
            write_file(folder / path, text)
    there = f"cd {shlex.quote(str(folder))} && " if folder != Path(".") else ""
    say(f"wrote {len(contents)} files; what they are is in {folder / 'README.md'}. Next:\n  {there}{kind.command}")


def files_of(name: str, model: str) -> dict[str, str]:
    """The files of a folder by their paths in it; the one that a command needs comes last."""
    kind = KINDS[name]
    text = _here((EXAMPLES / kind.source).read_text(encoding="utf-8"), kind, model)
    data = [file for part in sorted({*_DATA.findall(text)}) for file in sorted((EXAMPLES / "data" / part).iterdir())]
    return {
        **{str(file.relative_to(EXAMPLES)): file.read_text(encoding="utf-8") for file in data if file.is_file()},
        "README.md": README[name].format(command=kind.command, file=kind.file),
        _schema_file(kind): schema_text(kind.schema),
        kind.file: text,
    }


def _schema_file(kind: Kind) -> str:
    """Alongside the YAML file, so that an editor finds it without a network, wherever the folder is."""
    return f".hftune/{file_name(kind.schema)}"


def _here(text: str, kind: Kind, model: str) -> str:
    """An example's YAML with paths and values for a folder of its own."""
    # Comments at its start tell of the place where it came from.
    lines = text.splitlines(keepends=True)
    body = "".join(lines[next(number for number, line in enumerate(lines) if not line.startswith("#")) :])
    body = _MODEL.sub(lambda found: json.dumps(model, ensure_ascii=False), body)
    body = _OUTPUT.sub(r"\1", body).replace("examples/data", "data")
    if _PROCESSES.search(body):
        body = _PROCESSES.sub(str(_processes()), body)
    modeline = f"# yaml-language-server: $schema={_schema_file(kind)}"
    return f"{modeline}\n# {kind.says}\n#\n# {kind.command}\n{body}"


def _processes() -> int:
    """One a GPU; on a CPU two, as a small picture of a cluster, or one where there is a single core."""
    import torch

    return torch.cuda.device_count() or min(2, os.cpu_count() or 1)


def _check_model(model: str) -> None:
    if redact(model) != model:
        raise ArgumentError("this is a secret, which would stand in a file", place="--model", fix="name a model")
    if not model.isprintable():
        cause = f"{shown(ascii(model))} has characters that no name of a model has"
        raise ArgumentError(cause, place="--model", fix="a folder, or a name of the Hub")


def _refuse_existing(folder: Path, contents: dict[str, str]) -> None:
    for place in (folder, *folder.parents):
        if lexists(place) and not place.is_dir():
            raise ArgumentError(f"{place} is no folder", place="FOLDER", fix="choose another name")
    there = [path for path in contents if lexists(folder / path) or any(map(_is_no_folder, _above(folder, path)))]
    if there:
        more = f" and {len(there) - 3} more" if len(there) > 3 else ""
        raise ArgumentError(
            f"{', '.join(there[:3])}{more} of {folder} would be replaced: nothing was written",
            place="FOLDER",
            fix="name a new folder: hftune init KIND FOLDER",
        )


def _above(folder: Path, path: str) -> list[Path]:
    """The folders between a new folder and one of its files."""
    return [folder / above for above in Path(path).parents if above.name]


def _is_no_folder(place: Path) -> bool:
    """Whether something else is there, or a link, through which nothing is written."""
    return os.path.islink(place) or (lexists(place) and not os.path.isdir(place))
