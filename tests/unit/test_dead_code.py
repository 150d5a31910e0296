"""Nothing lies about that no line of hftune and no library asks for; vulture finds what does."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

vulture = pytest.importorskip("vulture", reason="for developers: the extra `dev`")

ROOT = Path(__file__).parents[2]

ASKED_FOR = {
    # by transformers, TRL, DeepSpeed and others: hooks, fields and attributes that they read
    **dict.fromkeys(
        (
            *("on_step_begin", "on_prediction_step", "on_log", "on_save", "should_evaluate", "create_scheduler"),
            *("create_model_card", "logging_nan_inf_filter", "precompute_ref_logps"),
            *("compute_ref_log_probs", "maybe_activation_offload_context"),
            *("id2label", "label2id", "is_quantized", "gate_proj", "padding_idx"),
            *("forward_of_a_tile", "pre_tokenizer", "on_finalized_text"),
        ),
        "by upstream",
    ),
    # by http.server
    **dict.fromkeys(
        ("do_GET", "error_content_type", "error_message_format", "log_message", "version_string"), "by http.server"
    ),
    # by name, as the columns of a batch, the keys of a manifest, or the values of an argument
    **dict.fromkeys(("prompt_mask", "state_values", "split_documents", "untrained_tokens", "sorts"), "as a key"),
    "forget": "by tests, a state to begin with",
}
"""What vulture cannot see a use of, and who asks for it."""


@pytest.fixture(scope="module")
def unused() -> dict[str, str]:
    """Names without a use, with their places; what a string `module:name` or a table names is in use."""
    own = [*(ROOT / "hftune").rglob("*.py"), *ROOT.glob("run_*.py")]
    files = [*own, ROOT / "merge_peft_adapter.py", ROOT / "docs" / "site" / "tables.py"]
    search = vulture.Vulture(ignore_decorators=["@loss", "@reward"])  # which put a function into a table
    search.scavenge(map(str, files))
    written = " ".join(re.findall(r"[\w.]+:\w+", "\n".join(file.read_text() for file in files)))
    tables = " ".join(table.read_text() for table in (ROOT / "hftune").rglob("*.csv"))
    named = {*re.findall(r"\w+", written), *re.findall(r"\w+", tables)}
    found = {one.name: f"{Path(one.filename).relative_to(ROOT)}:{one.first_lineno}" for one in search.get_unused_code()}
    return {name: place for name, place in found.items() if name not in named}


def test_no_code_is_dead(unused: dict[str, str]) -> None:
    assert {name: place for name, place in unused.items() if name not in ASKED_FOR} == {}


def test_what_is_allowed_is_still_there(unused: dict[str, str]) -> None:
    assert {*ASKED_FOR} - {*unused} == set()
