"""The table of memory and the pictures: what becomes of figures, and that the pages hold what they make."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path
from types import ModuleType
from typing import Any
from xml.etree import ElementTree

import pytest

from tests.documents import ROOT

GIB = 2**30
PAGE = (ROOT / "docs" / "memory.md").read_text(encoding="utf-8")


@pytest.fixture(scope="module")
def table() -> ModuleType:
    sys.path[:0] = [str(ROOT / "benchmarks"), str(ROOT / "docs" / "pictures")]
    return importlib.import_module("memory_table")


@pytest.fixture(scope="module")
def draw(table: ModuleType) -> ModuleType:
    return importlib.import_module("draw")


def figures(gib: float, *, fits: bool, host: float = 0.0) -> dict[str, Any]:
    return {"peak": gib * GIB, "host": host * GIB, "fits": fits, "verdict": "", "weights": 0}


def test_a_row_of_the_table(table: ModuleType) -> None:
    columns = {head: figures(10.4, fits=True, host=2.0) for head in [*table.ONE, *table.EIGHT]}
    columns |= {"8 GPUs": figures(1234.5, fits=False, host=2.0)}
    rows = table.table({"M": {"full": columns}}).splitlines()
    assert rows[0].split(" | ")[2:4] == ["1 GPU", "1 GPU, offload"]
    # 2 GiB a process in the machine's memory: one process, then eight; and nothing is said where nothing is offloaded
    assert rows[2] == "| M | full | **10** | **10** + 2 | 1,234 | **10** | **10** | **10** | **10** + 16 |"


def test_the_bar_is_the_number_of_parameters(table: ModuleType) -> None:
    published = table.MODELS["Qwen2.5-7B"][1]
    rows = [{"full": {"1 GPU": {"weights": 4 * published * share}}} for share in (1.005, 1.02, 0.97)]
    assert [table.bar("Qwen2.5-7B", row)["holds"] for row in rows] == [True, False, False]


def test_shapes_have_the_published_number_of_parameters(table: ModuleType) -> None:
    """By hand: embeddings and head, and of each layer its projections, biases and norms."""
    for name, (config, published) in table.MODELS.items():
        size, layers, inner = (config[key] for key in ("hidden_size", "num_hidden_layers", "intermediate_size"))
        kv = size // config["num_attention_heads"] * config["num_key_value_heads"]
        biases = (size + 2 * kv) * (config["model_type"] == "qwen2")
        layer = 2 * size * size + 2 * size * kv + 3 * size * inner + 2 * size + biases
        vocabulary = config["vocab_size"] * size * (1 if config["tie_word_embeddings"] else 2)
        assert layers * layer + vocabulary + size == pytest.approx(published, rel=table.WITHIN), name


def test_the_page_has_a_row_for_every_model_and_method(table: ModuleType) -> None:
    found = [line.split(" | ")[:2] for line in PAGE.splitlines() if line.startswith("| ") and "GPU" not in line]
    wanted = [[f"| {name}", method] for name in table.MODELS for method in table.METHODS]
    assert [row for row in found if row in wanted] == wanted


def test_the_table_goes_between_its_marks(table: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    page, choosing = tmp_path / "memory.md", tmp_path / "choosing.md"
    page.write_text("before\n<!-- table -->\nold\n<!-- /table -->\nafter\n")
    choosing.write_text("before\n<!-- choices -->\nold\n<!-- /choices -->\nafter\n")
    monkeypatch.setattr(table, "PAGE", page)
    monkeypatch.setattr(table, "CHOOSING", choosing)
    table.write_docs(SMALL)
    assert page.read_text() == f"before\n<!-- table -->\n{SMALL}\n<!-- /table -->\nafter\n"
    assert choosing.read_text() == f"before\n<!-- choices -->\n{table.choices(SMALL)}\n<!-- /choices -->\nafter\n"


SMALL = """| model | method | 1 GPU | 1 GPU, offload | 8 GPUs | ZeRO-1 | ZeRO-2 | ZeRO-3 | ZeRO-3, offload |
|---|---|---:|---:|---:|---:|---:|---:|---:|
| A | full | **29** | **5** + 29 | **35** | **12** | **8** | **6** | **3** + 26 |
| A | LoRA | **22** | **4** + 3 | **5** | **7** | **5** | **3** | **2** + 3 |
| A | QLoRA | **4** | **3** + 0 | **4** | **5** | **3** | **2** | **2** + 1 |
| B | full | 611 | 90 + 610 | 733 | 201 | 146 | 94 | **9** + 1,549 |
| B | LoRA | **66** | **65** + 61 | 82 | 82 | **68** | **14** | **6** + 63 |
| B | QLoRA | **30** | **23** + 2 | **31** | **25** | **23** | **19** | **19** + 20 |"""


def test_what_to_choose_follows_from_the_table(table: ModuleType) -> None:
    """By hand: 22 GiB is within 92 % of 24, 23 is not; what is offloaded counts only in place of less."""
    assert table.choices(SMALL).splitlines()[2:] == [
        "| A | LoRA; all weights, `zero2_offload` (29 GiB) | all weights | all weights |",
        "| B | none | LoRA | LoRA, `zero2`; all weights, `zero3_offload` (1,549 GiB) |",
    ]


def test_the_page_that_helps_to_choose_has_what_follows(table: ModuleType) -> None:
    shown = PAGE.split("<!-- table -->\n")[1].split("\n<!-- /table -->")[0]
    assert f"<!-- choices -->\n{table.choices(shown)}\n<!-- /choices -->" in table.CHOOSING.read_text(encoding="utf-8")


@pytest.mark.parametrize("name", ["choosing", "long_context", "rewritten_turns"])
def test_pictures_of_guides_are_the_ones_drawn(name: str, draw: ModuleType) -> None:
    drawn = importlib.import_module("guides").DRAWN[name]()
    assert drawn + "\n" == (ROOT / "docs" / "pictures" / f"{name}.svg").read_text(encoding="utf-8")


def shapes(picture: str, kind: str) -> list[ElementTree.Element]:
    root = ElementTree.fromstring(picture)
    return [one for one in root.iter("{http://www.w3.org/2000/svg}rect") if one.get("class") == kind]


def words(picture: str) -> list[str]:
    return [one.text or "" for one in ElementTree.fromstring(picture).iter("{http://www.w3.org/2000/svg}text")]


def test_tokens_are_marked_where_they_are_trained(draw: ModuleType) -> None:
    picture = draw.token_picture(["<|im_start|>", "user", "\n", " Hi & <b>", "<|im_end|>"], [False] * 3 + [True] * 2)
    assert len(shapes(picture, "adapter")) == 2 and len(shapes(picture, "box")) == 3
    said = words(picture)
    assert said[:5] == ["<|im_start|>", "user", "⏎", "·Hi·&·<b>", "<|im_end|>"]
    assert said[-1].startswith("5 tokens, of which 2 are trained")
    rows = [float(one.get("y", 0)) for one in [*shapes(picture, "box"), *shapes(picture, "adapter")]]
    assert len(set(rows)) == 2, "a line break begins a row"


def test_long_records_stay_within_the_picture(draw: ModuleType) -> None:
    picture = draw.token_picture(["word"] * 200, [True] * 200)
    assert max(float(one.get("x", 0)) + float(one.get("width", 0)) for one in shapes(picture, "adapter")) <= draw.WIDTH


def test_bars_are_as_long_as_their_parts(draw: ModuleType) -> None:
    parts = {"weights": 40 * GIB, "gradients": 20 * GIB, "activations": 5 * GIB, "loss": 5 * GIB, "context": 10 * GIB}
    rows = {"no ZeRO": {"peak": 80 * GIB, "parts": parts}, "ZeRO-1": {"peak": 20 * GIB, "parts": {"weights": 20 * GIB}}}
    picture = draw.bars(rows, limit=40)
    wide = {
        kind: [float(one.get("width", 0)) for one in shapes(picture, kind)][1:] for kind in ("c0", "c1", "c3", "c4")
    }
    assert wide == {"c0": [280.0, 140.0], "c1": [140.0, 0.0], "c3": [70.0, 0.0], "c4": [70.0, 0.0]}  # 7 pixels a GiB
    assert {"80", "20", "40 GiB: one GPU"} <= set(words(picture))


def test_the_picture_of_stages_is_the_one_drawn(draw: ModuleType) -> None:
    assert draw.stages() + "\n" == (ROOT / "docs" / "pictures" / "stages.svg").read_text(encoding="utf-8")


def test_every_part_of_a_plan_is_in_the_picture(draw: ModuleType) -> None:
    from hftune.tools.planning.plan import PARTS

    assert {key for keys in draw.PARTS.values() for key in keys} == {*PARTS, "context"}


def test_the_demo_is_drawn_from_its_page(draw: ModuleType) -> None:
    assert draw.demo() + "\n" == (ROOT / "docs" / "pictures" / "demo.svg").read_text(encoding="utf-8")


def test_rewards_are_bars_and_long_answers_are_cut(draw: ModuleType) -> None:
    answers = {
        (model, question): "word " * (60 if model == "dpo" else 1)
        for model in ("base", "dpo")
        for question in draw.ASKED
    }
    picture = draw.answers_picture({"base": -4.0, "dpo": -1.0}, answers, "1 minute")
    assert [float(one.get("width", 0)) for kind in ("c0", "c2") for one in shapes(picture, kind)] == [11.0, 110.0]
    said = words(picture)
    assert {"-4.00", "-1.00", "word"} <= set(said) and sum(line.endswith(" …") for line in said) == 2


def test_cells_are_those_of_the_first_table_below_a_heading(draw: ModuleType) -> None:
    page = "# P\n\n| no |\n\n## T\n\nWords.\n\n| a | b |\n| - | - |\n|   | 2 |\n\n| later |\n"
    assert draw.cells(page, "## T") == [["a", "b"], ["", "2"]]
