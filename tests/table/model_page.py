"""docs/models.md and the line of shares, from the results of `models.py`."""

from __future__ import annotations

from typing import Any

from tests.conftest import ROOT

PAGE = ROOT / "docs" / "models.md"
SHARES = {"sft_lora": 0.95, "sft_full": 0.95, "dpo": 0.95, "pt": 0.90}


def summary(results: dict[tuple[str, str], Any]) -> str:
    """Shares of the causal LM types that train, with the bars, and the number of tracebacks."""
    from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES as CAUSAL

    parts = []
    for stage, bar in SHARES.items():
        outcomes = [one["outcome"] for (name, of), one in results.items() if of == stage and name in CAUSAL]
        tried = len(outcomes)
        good = sum(outcome == "trains" for outcome in outcomes)
        parts.append(f"{stage} {good}/{tried} = {good / max(tried, 1):.1%} (bar {bar:.0%})")
    crashed = sum(one["outcome"] in ("crashed", "time") for (_, of), one in results.items() if of != "plain")
    return ", ".join(parts) + f"; {crashed} cells ended in a traceback or ran out of time"


def write_page(results: dict[tuple[str, str], Any]) -> None:
    """Write the page."""
    raise NotImplementedError
