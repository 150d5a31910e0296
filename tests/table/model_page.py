"""docs/models.md and the line of shares, from the results of `models.py`."""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping
from typing import Any

from tests.conftest import ROOT

PAGE = ROOT / "docs" / "models.md"
SHARES = {"sft_lora": 0.95, "sft_full": 0.95, "dpo": 0.95, "pt": 0.90}
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
Results = Mapping[tuple[str, str], Mapping[str, Any]]

HEAD = """# Which models train

Every type of model that transformers {version} knows as a causal language model, or as one that answers in text, and
what hftune does with it: a tiny random model of the type goes through the real scripts on a CPU. Encoders, decoders of
encoder-decoders and some models before 2023 (BERT, BART, Reformer, XLNet, ...) are refused and stand nowhere below.

```bash
python -m tests.table.models --work FOLDER --write-docs     # runs what has no result yet, and writes this page
```

For a new version of transformers the command is run again: the models are made from its default configs
(`tests/table/tiny.py`). What the columns mean:

- **PT, packed**: `run_pt.py` with its defaults, documents side by side in rows. *padded*: this is refused, and it
  trains with `--packing False`
- **SFT**, **RM**, **DPO**: two steps of the scripts; RM and DPO with LoRA. **GRPO**: one step with LoRA
- **merge**: `merge_peft_adapter.py`, which verifies what it wrote. **resume**: from a checkpoint of the full SFT.
  **reload**: plain transformers loads the results under their own class, no tensor missing or left over. **kept**: the
  results of SFT and merge store all tensors of the base in its names, shapes and dtypes, and no part that reads no text
  has changed
- **ZeRO-3**: SFT with LoRA, two processes

What the cells mean: ✓ trains; *refused*: one message with the cause, listed under "Refused"; *upstream*: a step of
plain transformers fails too, listed under "Faults of transformers"; ✗: a fault of hftune, listed under "Faults of
hftune"; -: a stage that it builds on has no result; blank: not tried.

<!-- results -->

{shares}
{states} Without `--stale` the present state is run and shown alone.
"""


def summary(results: Results) -> str:
    """Shares of the causal LM types that train, with the bars, and the number of tracebacks."""
    parts = []
    for stage, bar in SHARES.items():
        outcomes = Counter(sign(results, name, stage) for name, of in results if of == stage and name in causal())
        del outcomes["upstream"], outcomes["unbuilt"]
        tried = sum(outcomes.values())
        parts.append(f"{COLUMNS[stage]} {outcomes['✓']} of {tried} = {outcomes['✓'] / max(tried, 1):.1%} ({bar:.0%})")
    wrong = sum(sign(results, *cell) == "✗" for cell in results if cell[1] != "plain")
    upstream = {name for name, of in results if sign(results, name, of) in ("upstream", "unbuilt")}
    return (
        f"Of the causal LM types that plain transformers trains (in brackets: the bar): {', '.join(parts)}. "
        f"{wrong} cells end in a traceback of hftune's; {len(upstream)} types fail or cannot be made without hftune."
    )


def causal() -> Mapping[str, str]:
    """transformers' table of causal LMs."""
    from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES

    return dict(MODEL_FOR_CAUSAL_LM_MAPPING_NAMES)


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
    """Write the page."""
    import transformers

    names = sorted({name for name, _ in results})
    one = [name for name in names if name in causal()]
    other = [name for name in names if name not in causal()]
    parts = [
        HEAD.format(version=transformers.__version__, shares=summary(results), states=states_of(results)),
        "## Causal language models\n\n" + table(results, one),
        "## Models of several parts that answer in text\n\n" + table(results, other),
        "## Refused\n\n" + listed(results, names, ("refused", "padded")),
        "## Faults of transformers\n\n" + listed(results, names, ("upstream", "unbuilt")),
        "## Faults of hftune\n\n" + listed(results, names, ("✗",)),
    ]
    PAGE.write_text("\n".join(parts).rstrip() + "\n\n<!-- end of results -->\n", encoding="utf-8")


def states_of(results: Results) -> str:
    """Which cells were run at one state of hftune's code, that of most of them, and at how many others the rest."""
    tried = {cell: one["made_by"] for cell, one in results.items() if cell[1] in COLUMNS}
    common = Counter(tried.values()).most_common(1)[0][0]
    all_of = Counter(stage for _, stage in tried)
    alike = Counter(stage for (_, stage), state in tried.items() if state == common)
    if alike == all_of:
        return "All cells were run at one state of hftune's code."
    shares = ", ".join(f"{COLUMNS[stage]} {alike[stage]} of {all_of[stage]}" for stage in COLUMNS if alike[stage])
    others = len(set(tried.values())) - 1
    return f"Cells that were run at one state of hftune's code: {shares}; the others at {others} earlier or later ones."


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
