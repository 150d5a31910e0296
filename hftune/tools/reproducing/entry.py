"""`hftune reproduce FOLDER`: the environment is prepared by the run that it starts."""

from __future__ import annotations

from pathlib import Path

from hftune.errors import ArgumentError
from hftune.path_hints import path_hint
from hftune.visible import say

HELP = """Runs what the manifest of a folder says once more, and compares data order, loss and gradients step by step.

hftune reproduce FOLDER                     all steps, into FOLDER-again
hftune reproduce FOLDER --steps 20          the first steps alone; the schedule stays that of the whole run
--output_dir DIR                            where the new run goes
--tolerance X                               relative; left out: 0, every bit

Other arguments go to the stage's script and replace those of the manifest: what has moved, secrets, which a manifest
does not hold (--hub_token), --overwrite_output_dir. Exit code 0: the same; 1: the first step that differs is named,
with what is different now: versions, machine, processes, arguments, data."""
OWN = ("steps", "output_dir", "tolerance")


def reproduce(argv: list[str]) -> None:
    """Run it again and compare.

    Raises:
        ArgumentError: No folder of a run, or something that the run needs is not there.
        SystemExit: With 1 where something differs.
    """
    if not argv or {"-h", "--help"} & {*argv}:
        say(HELP)
        return
    folder, own, rest = taken(argv)
    if not Path(folder).is_dir():
        fix = path_hint(folder, "the output folder of a stage")
        raise ArgumentError(f"there is no folder {folder}", place="hftune reproduce", fix=fix)
    from hftune.tools.reproducing.run import reproduced

    steps = int(_number("steps", own["steps"])) if "steps" in own else None
    tolerance = _number("tolerance", own.get("tolerance", "0"))
    output = own.get("output_dir") or f"{folder.rstrip('/')}-again"
    if not reproduced(Path(folder), Path(output), steps, tolerance, rest):
        raise SystemExit(1)


def taken(argv: list[str]) -> tuple[str, dict[str, str], list[str]]:
    """The folder, hftune's own options, and what goes to the script.

    Raises:
        ArgumentError: No folder comes first, or an option has no value.
    """
    if argv[0].startswith("-"):
        raise ArgumentError("`hftune reproduce` begins with a folder", fix="hftune reproduce outputs/sft --steps 20")
    own: dict[str, str] = {}
    rest: list[str] = []
    left = iter(argv[1:])
    for word in left:
        name, equals, value = word.partition("=")
        if not name.startswith("--") or name[2:].replace("-", "_") not in OWN:
            rest.append(word)
            continue
        value = value if equals else next(left, "")
        if not value or value.startswith("--"):
            raise ArgumentError(f"{name} needs a value", place=name, fix="hftune reproduce --help")
        own[name[2:].replace("-", "_")] = value
    return argv[0], own, rest


def _number(name: str, text: str) -> float:
    whole = name == "steps"
    if not text.replace("." if not whole else "", "", 1).replace("e-", "", 1).isdecimal() or (whole and not int(text)):
        wanted = "a whole number above 0" if whole else "a number, such as 1e-3"
        raise ArgumentError(f"--{name} takes {wanted}, not {text!r}", place=f"--{name}", fix="hftune reproduce --help")
    return float(text)
