"""`hftune init`: a folder to start from. Its help page comes at once; its words are checked before anything else."""

from __future__ import annotations

from pathlib import Path

from hftune.errors import ArgumentError, did_you_mean
from hftune.tools.words import taken
from hftune.visible import say

HELP = """Writes a folder to start from: data, a YAML file to edit, and a README that says what to do. Replaces nothing.

hftune init demo [FOLDER]        all stages on a real model of 135M parameters, which is fetched; minutes on a CPU
hftune init sft [FOLDER]         fine-tuning on conversations: one file of arguments
hftune init pipeline [FOLDER]    PT and SFT from one file, to be extended

FOLDER: left out, the working folder.
--model MODEL      the model to begin with, a folder or a name of the Hub; left out: SmolLM2-135M-Instruct"""

KINDS = ("demo", "sft", "pipeline")


def init(argv: list[str]) -> None:
    """Write a folder, or print the help page.

    Raises:
        ArgumentError: No kind that is known, a word too many, or a file that is there already.
    """
    if not argv or {"-h", "--help"} & {*argv}:
        say(HELP)
        return
    words, given = taken("hftune init", argv, values={"--model": "MODEL"})
    kind, *folders = words or [""]
    if kind not in KINDS:
        fix = f"{did_you_mean(kind, KINDS)} one of: {', '.join(KINDS)}".strip()
        raise ArgumentError(f"`hftune init` has no {kind or 'kind'}", fix=fix)
    if len(folders) > 1:
        raise ArgumentError("`hftune init` writes one folder", fix=f"hftune init {kind} {folders[0]}")
    from hftune.tools.init.folder import write_folder

    write_folder(kind, Path(folders[0] if folders else "."), given.get("--model"))
