"""The commands of every page have arguments that exist, and its links lead somewhere."""

from __future__ import annotations

import functools
import re
from pathlib import Path
from xml.etree import ElementTree

import pytest

from hftune.arguments.asking import AskArguments
from hftune.arguments.merging import MERGE_ALIASES, MergeArguments
from hftune.arguments.names.row import REFUSED
from hftune.arguments.names.table import table
from hftune.arguments.parser import HftuneParser
from hftune.arguments.stage_table import STAGES
from hftune.arguments.stages import stage_parser
from hftune.cli import COMMANDS
from hftune.tools.chatting.arguments import ChatArguments
from hftune.tools.checking.arguments import DataCheckArguments
from hftune.tools.consolidating.run import ConsolidateArguments
from hftune.tools.export.run import FORMATS
from hftune.tools.pipeline import starting
from hftune.tools.scoring.arguments import ScoreArguments
from hftune.tools.serving.arguments import ServeArguments
from hftune.tools.vocabulary.arguments import VOCAB_ALIASES, VocabArguments
from tests.documents import CHINESE, DOCS, PAGES, ROOT, SHELL, Block, anchors, blocks, chinese_of, commands, links

PICTURES = sorted(file for file in (ROOT / "docs" / "pictures").iterdir() if file.suffix in (".svg", ".png"))


def name_of(page: Path) -> str:
    return str(page.relative_to(ROOT))


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_links_lead_somewhere(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    lost = []
    for link in links(text):
        target, _, anchor = link.partition("#")
        file = (page.parent / target).resolve() if target else page
        if not file.exists() or (anchor and anchor not in anchors(file.read_text(encoding="utf-8"))):
            lost.append(link)
    assert not lost


def test_every_page_is_reached_from_the_readme_or_the_first_page() -> None:
    seen, todo = set(), [ROOT / "README.md", ROOT / "docs" / "index.md"]
    while todo:
        page = todo.pop()
        if page in seen or page.suffix != ".md" or not page.is_file():
            continue
        seen.add(page)
        targets = (link.partition("#")[0] for link in links(page.read_text(encoding="utf-8")))
        todo += [(page.parent / target).resolve() for target in targets if target]
        # The site leads from each page to its translation.
        if not page.is_relative_to(CHINESE) and not page.stem.endswith("_zh"):
            todo += [translation for translation in [chinese_of(page)] if translation.is_file()]
    assert [name_of(page) for page in DOCS if page not in seen] == []


@functools.cache
def known(stage: str, algorithm: str | None) -> set[str]:
    parser = stage_parser(stage, algorithm)
    others = (row.name for row in table().values() if row.verdict != REFUSED and (not row.to or row.target(stage)))
    return {*parser.known, "config", *others, *(row.name for row in table().values() if row.translation)}


def stage_of(words: list[str]) -> str | None:
    """The stage whose arguments follow in a command; None for one of another kind."""
    if words[0] == "hftune" and words[1:2] and words[1] in STAGES:
        return words[1]
    joined = " ".join(words[:6])
    match = re.search(rf"\brun_({'|'.join(STAGES)})(?:\.py)?\b", joined)
    return match[1] if match else None


@functools.cache
def known_of(cls: type) -> set[str]:
    """The arguments of a command of one class."""
    aliases = {MergeArguments: MERGE_ALIASES, VocabArguments: VOCAB_ALIASES}.get(cls, {})
    return {*HftuneParser([cls]).known, *aliases, "config", "help"}


def class_of(words: list[str]) -> type | None:
    """The arguments of a command that belongs to no stage; None for one that takes none of this kind."""
    if words[:2] in (["python", "merge_peft_adapter.py"], ["hftune", "merge"]):
        return MergeArguments
    if words[:2] == ["hftune", "export"]:
        return FORMATS[words[2]]
    others = {
        "ask": AskArguments,
        "chat": ChatArguments,
        "score": ScoreArguments,
        "serve": ServeArguments,
        "consolidate": ConsolidateArguments,
        "data": DataCheckArguments,
        "vocab": VocabArguments,
    }
    return others.get(words[1]) if words[0] == "hftune" else None


def unknown_flags(words: list[str]) -> list[str]:
    """Flags of a command that its script or subcommand does not have."""
    stage = stage_of(words)
    if stage is None or words[0] not in ("hftune", "python", "deepspeed", "torchrun", "srun"):
        cls = class_of(words) if len(words) > 1 else None
        given = [word.lstrip("-").split("=")[0] for word in words if re.match(r"--\w", word)]
        return [name for name in given if cls and name.replace("-", "_") not in known_of(cls)]
    named = words[0] == "hftune" and words[1] == stage
    start = 2 if named else next(number for number, word in enumerate(words) if f"run_{stage}" in word) + 1
    given = [word.lstrip("-").split("=")[0] for word in words[start:] if re.match(r"--\w", word)]
    algorithm = words[words.index("--rl_algorithm") + 1] if "--rl_algorithm" in words else None
    algorithm = algorithm or ("rloo" if "sft_model_path" in given else None)
    own = {"plan": {"gpus", "nodes", "json"}, "preview": {"as_served"}, "tokenize": {"shard", "join"}}
    more = own.get(words[1], set()) if words[0] == "hftune" else set()
    more |= {*starting.OWN} if named else set()
    return [name for name in given if name.replace("-", "_") not in known(stage, algorithm) | more | {"help"}]


def shell_blocks(page: Path) -> list[Block]:
    found = [block for block in blocks(page.read_text(encoding="utf-8")) if block.language in (*SHELL[:2], "diff")]
    return [block for block in found if not block.text.startswith("diff --git ")]  # of programs, not of commands


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_commands_have_arguments_that_exist(page: Path) -> None:
    faults = []
    for block in shell_blocks(page):
        for words in commands(block):
            faults += [f"line {block.line}: --{flag}" for flag in unknown_flags(words)]
            if words[0] == "hftune" and words[1] not in {**COMMANDS, **STAGES}:
                faults.append(f"line {block.line}: hftune {words[1]}")
    assert not faults


@pytest.mark.parametrize(
    ("command", "unknown"),
    [
        ("deepspeed run_sft.py --learning_rat 1 --lora_rank 8 --tool_format default", ["learning_rat"]),
        ("hftune plan run_sft --gpus 8xH200 --packin", ["packin"]),
        ("hftune sft --nproc 2 --nods 2 --max_steps 1", ["nods"]),
        ("hftune merge --lora_model A --nproc 2", ["nproc"]),
        ("hftune preview run_sft --gpus 8xH200", ["gpus"]),
        ("torchrun run_rl.py --rl_algorithm ppo --vf_coef 1 --num_generationz 4", ["num_generationz"]),
        ("python merge_peft_adapter.py --lora_model A --output_dir B --outptu C", ["outptu"]),
        ("hftune export gguf --outtype q8_0 --bits 4", ["bits"]),
        ("hftune ask --models A --question B", ["question"]),
        ("hftune doctor --quick", []),
    ],
)
def test_flags_that_nobody_has_are_found(command: str, unknown: list[str]) -> None:
    assert unknown_flags(command.split()) == unknown


@pytest.mark.parametrize("picture", PICTURES, ids=name_of)
def test_pictures_are_small_shown_and_load_nothing(picture: Path) -> None:
    assert picture.stat().st_size < 200_000
    shown = [page for page in PAGES if f"pictures/{picture.name}" in page.read_text(encoding="utf-8")]
    assert shown, "on no page"
    if picture.suffix == ".svg":
        text = picture.read_text(encoding="utf-8")
        root = ElementTree.fromstring(text)
        assert root.get("viewBox") and root.findtext("{http://www.w3.org/2000/svg}title")
        assert "prefers-color-scheme" in text and "<script" not in text and "href" not in text
