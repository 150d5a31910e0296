"""Names of other tools: the table `names.csv`, a row a name, and `tools.toml`, which names each tool has.

Columns of names.csv:

| column   | holds                                                                                                  |
| -------- | ------------------------------------------------------------------------------------------------------ |
| name     | as the other tool spells it                                                                            |
| topic    | a key of `TOPICS`                                                                                      |
| verdict  | works (hftune has it, too), alias (another name or other values), no effect, refused                   |
| to       | the counterpart of an alias: a name, or one a stage (`pt=block_size; sft=max_length`)                  |
| does     | what it does in the other tool                                                                         |
| because  | why it has no effect or is refused, or values without a counterpart are; and what to use instead       |
| harmless | values that ask for what happens anyway, with `|` between them; OFF: all of `row.OFF`                  |
| values   | values that become others (`lora=True; full=False`; `on=`, `off=`: of a switch), or other arguments    |
|          | (`flash=--flash_attn True`); nothing behind `=`:                                                       |
|          | it is so anyway. Other values are refused where `because` says why, else they stay as they are         |
| by       | the function in `translators/` that translates values, where that takes code: `models.targets`         |
| example  | a typical value, which the tests try; ` --name value` behind it gives a further argument               |
| expect   | what the example becomes: `lora_r=4`                                                                   |
| stages   | scripts that the example fits; left out: all that train, or those that `to` names                      |
"""

from __future__ import annotations

import functools
import tomllib
from importlib import import_module
from importlib.resources import files

from hftune.arguments.names.row import OFF, WORKS, Request, Row, Translated, Translation, mapped, switched
from hftune.tables import read_table

TOPICS = {
    "tasks": "Runs and stages",
    "models": "Models and tokenizers",
    "moe": "Mixture of experts",
    "data": "Records and mixing",
    # Before batches, which are shared by groups of processes: values are translated in this order.
    "parallel": "Parallelism, sharding and recomputation",
    "lengths": "Lengths, packing, templates and batches",
    "adapters": "Adapters and freezing",
    "optimizers": "Optimizers and schedules",
    "precision": "Precision and quantisation",
    "checkpoints": "Checkpoints",
    "logging": "Logging, evaluation and profiling",
    "preferences": "Preferences and reward models",
    "reinforcement": "Reinforcement learning and distillation",
    "serving": "Serving and generation",
    "multimodal": "Images and video",
    "paddle": "PaddleFormers, beneath ERNIEKit",
    "older": "Removed from transformers 5",
}
"""The column `topic` -> the heading of its section."""


@functools.cache
def table() -> dict[str, Row]:
    """All rows by name, in the order of the topics; read from the file once a process."""
    found = [read_row(cells) for cells in read_table(__package__, "names.csv")]
    order = list(TOPICS)
    rows = {row.name: row for row in sorted(found, key=lambda row: order.index(row.topic))}
    # A second row would silently replace the first, for one name in a thousand.
    assert len(rows) == len(found), "a name stands in the table twice"
    return rows


def topics() -> dict[str, list[Row]]:
    """Heading -> its rows."""
    return {title: [row for row in table().values() if row.topic == topic] for topic, title in TOPICS.items()}


@functools.cache
def tools() -> dict[str, tuple[str, ...]]:
    """Tool -> the names that it has, as its own reference or code lists them."""
    listed = tomllib.loads(files(__package__).joinpath("tools.toml").read_text(encoding="utf-8"))
    return {tool: tuple(names.split()) for tool, names in listed.items()}


def tools_of(name: str) -> list[str]:
    """The tools that have a name."""
    return [tool for tool, names in tools().items() if name in names]


def read_row(cells: dict[str, str]) -> Row:
    """The row of a line, by its columns."""
    to = _pairs(cells["to"]) if "=" in cells["to"] else cells["to"]
    return Row(
        name=cells["name"],
        does=cells["does"],
        verdict=cells["verdict"],
        to=cells["name"] if cells["verdict"] == WORKS else to,
        because=cells["because"],
        harmless=_harmless(cells["harmless"]),
        translation=_translation(cells),
        example=cells["example"],
        expect=tuple(_pairs(cells["expect"]).items()),
        stages=tuple(cells["stages"].split() or ([] if isinstance(to, str) else to)),
        topic=cells["topic"],
    )


def _pairs(text: str) -> dict[str, str]:
    """`a=b; c=d` as {"a": "b", "c": "d"}."""
    cut = (part.partition("=") for part in text.split("; ") if part)
    return {name: value for name, _, value in cut}


def _harmless(text: str) -> tuple[str, ...]:
    parts = text.split("|") if text else []
    return tuple(value for part in parts for value in (OFF if part == "OFF" else (part,)))


def _translation(cells: dict[str, str]) -> Translation | None:
    if cells["values"]:
        return _by_values(cells["to"], cells["values"], cells["because"])
    if cells["by"]:
        return _by_code(cells["by"])
    return None


@functools.cache  # rows that say the same share a function: what is given under several of their names is one answer
def _by_values(to: str, values: str, because: str) -> Translation:
    pairs = _pairs(values)
    # `on=` and `off=` are for switches, whose values have many spellings.
    if {*pairs} <= {"on", "off"}:
        return switched(to, pairs.get("on") or None, pairs.get("off") or None)
    return mapped(to, {value: found or None for value, found in pairs.items()}, because)


@functools.cache
def _by_code(place: str) -> Translation:
    """The function `models.targets` of `translators/`, imported when it is asked: few commands name another tool's."""
    module, _, function = place.partition(".")

    def translate(request: Request) -> Translated:
        found: Translated = getattr(import_module(f"{__package__}.translators.{module}"), function)(request)
        return found

    return translate
