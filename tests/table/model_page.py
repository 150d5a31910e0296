"""docs/models.md and the line of shares, from the results of `models.py`."""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping
from typing import Any

from tests.conftest import ROOT

PAGE = ROOT / "docs" / "models.md"
COLUMNS = {
    "pt": "PT, packed",
    "sft_lora": "SFT, LoRA",
    "sft_full": "SFT, full",
    "rm": "RM",
    "dpo": "DPO",
    "grpo": "GRPO",
    "merge": "merge",
    "resume": "resume",
    "reload": "reload",
    "kept": "kept",
    "zero3": "ZeRO-3",
}
SIGNS = {"trains": "✓", "padded": "padded", "refused": "refused", "crashed": "✗", "time": "✗", "needs": "-"}
RESULTS = "<!-- results -->"
Results = Mapping[tuple[str, str], Mapping[str, Any]]


def summary(results: Results) -> str:
    """Shares of the types that train, of those that plain transformers trains, and the number of tracebacks."""
    parts = []
    for stage in ("sft_lora", "sft_full", "dpo", "pt"):
        signs = Counter(sign(results, name, of) for name, of in results if of == stage)
        tried = sum(count for one, count in signs.items() if one not in ("upstream", "unbuilt"))
        parts.append(f"{COLUMNS[stage]} {signs['✓']} of {tried}")
    wrong = sum(sign(results, *cell) == "✗" for cell in results if cell[1] != "plain")
    return f"Types that train: {', '.join(parts)}. {wrong} cells end in a traceback of hftune's."


def sign(results: Results, name: str, stage: str) -> str:
    """What stands in a cell of the table."""
    one = results.get((name, stage))
    if one is None:
        return ""
    if one["outcome"] in ("crashed", "time"):
        plain = results.get((name, "plain"), {}).get("outcome")
        # What a result keeps is hftune's affair, whatever transformers makes of the model.
        return "upstream" if plain == "crashed" and stage not in ("plain", "kept") else "✗"
    return SIGNS.get(one["outcome"], one["outcome"])


def write_page(results: Results) -> None:
    """Write the page's results below its introduction."""
    head = PAGE.read_text(encoding="utf-8").partition(RESULTS)[0]
    names = sorted({name for name, _ in results})
    lists = {"Refused": ("refused", "padded"), "Faults of transformers": ("upstream", "unbuilt")}
    parts = [f"{head}{RESULTS}\n\n{summary(results)}\n", "## Types of models\n\n" + table(results, names)]
    parts += [f"## {title}\n\n" + listed(results, names, signs) for title, signs in lists.items()]
    parts += ["## Faults of hftune\n\n" + listed(results, names, ("✗",))]
    PAGE.write_text("\n".join(parts).rstrip() + "\n\n<!-- end of results -->\n", encoding="utf-8")


def table(results: Results, names: Iterable[str]) -> str:
    """A row a type."""
    lines = ["| type | " + " | ".join(COLUMNS.values()) + " |", "| --- |" + " :-: |" * len(COLUMNS)]
    for name in names:
        signs = [sign(results, name, stage) for stage in COLUMNS]
        lines.append(f"| {name} | " + " | ".join(signs) + " |")
    return "\n".join([*lines, ""])


def listed(results: Results, names: Iterable[str], signs: tuple[str, ...]) -> str:
    """Each message once, with the types and stages that it is of."""
    found: dict[str, dict[str, list[str]]] = defaultdict(lambda: defaultdict(list))
    for name in names:
        for stage in COLUMNS:
            if sign(results, name, stage) in signs:
                found[_general(str(results[name, stage]["why"]), name)][name].append(COLUMNS[stage].replace(",", ""))
    lines = [
        f"- {message}: " + "; ".join(f"{name} ({', '.join(stages)})" for name, stages in types.items())
        for message, types in sorted(found.items(), key=lambda item: -len(item[1]))
    ]
    return "\n".join([*(lines or ["None."]), ""])


def _general(message: str, name: str) -> str:
    """A message without what is of one type alone, so that types share it."""
    text = re.sub(r"/\S*/", "", message.removeprefix("error: ")).replace(name, "TYPE")
    return text.split(" where: ")[0].replace("|", "/").replace("<", "&lt;")
