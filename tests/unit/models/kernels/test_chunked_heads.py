"""A head that is called chunk by chunk: as often on every process, where calls gather its weights."""

from __future__ import annotations

import math
import weakref
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from hftune.models.kernels import heads
from hftune.models.kernels.heads import LogitShape, through_module

WORDS, SIZE = 5, 3


def calls_of(
    monkeypatch: pytest.MonkeyPatch, tokens: int, elsewhere: int, partitioned: str | bool, chunk: int = 2 * 4 * WORDS
) -> tuple[Any, ...]:
    """Rows of each call, all columns, and what is added, for chunks of two tokens."""
    monkeypatch.setattr(heads, "CHUNK_BYTES", {"cpu": chunk})
    head, other, rows = torch.nn.Linear(SIZE, WORDS), torch.nn.Linear(1, 1), []
    gathered = {"own": [head], "other": [other], True: [head, other], False: []}[partitioned]
    monkeypatch.setattr(heads.zero, "is_any_partitioned", lambda module: any(module is one for one in gathered))
    monkeypatch.setattr(heads.ranks, "max_over_ranks", lambda count: max(count, elsewhere))
    hidden = torch.randn(tokens, SIZE, generator=torch.Generator().manual_seed(0)).requires_grad_()

    def score(part: torch.Tensor, at: slice) -> tuple[torch.Tensor, ...]:
        rows.append((at.start, at.stop))
        assert part.requires_grad, "ZeRO-3 gives weights away where the gradient of what a module was given is known"
        return (head(part).sum(-1),)

    columns, nothing = through_module(head, hidden, score, other)
    torch.testing.assert_close(torch.cat([column for (column,) in columns]), head(hidden).sum(-1))
    return rows, nothing, head


def test_all_tokens_in_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    rows, nothing, _ = calls_of(monkeypatch, 4, 9, partitioned=False)
    assert rows == [(0, 2), (2, 4)] and nothing == 0.0
    assert calls_of(monkeypatch, 2, 9, partitioned=False, chunk=1)[0] == [(0, 1), (1, 2)], "a token at least"


@pytest.mark.parametrize(("tokens", "elsewhere", "calls"), [(2, 9, 5), (1, 3, 2), (4, 4, 2)])
@pytest.mark.parametrize("partitioned", ["own", "other", True])
def test_as_many_calls_as_the_process_with_most_tokens(
    monkeypatch: pytest.MonkeyPatch, tokens: int, elsewhere: int, calls: int, partitioned: Any
) -> None:
    rows, nothing, head = calls_of(monkeypatch, tokens, elsewhere, partitioned)
    own = min(tokens, calls)
    assert len(rows) == calls and rows[own:] == [(0, 1)] * (calls - own), "the first token once more"
    assert [place for at in rows[:own] for place in range(*at)] == list(range(tokens)), "in order, each once"
    if own < calls:
        assert float(nothing.detach()) == 0.0
        nothing.backward()
        assert head.weight.grad is not None and not head.weight.grad.any()


def test_chunks_by_hand(monkeypatch: pytest.MonkeyPatch) -> None:
    """At most three tokens a chunk of 4-byte logits, and chunks of one length as nearly as may be."""
    monkeypatch.setattr(heads, "CHUNK_BYTES", {"cpu": 3 * 4 * WORDS})
    for tokens, wanted in ((1, [1]), (3, [3]), (4, [2, 2]), (7, [3, 3, 1]), (8, [3, 3, 2])):
        hidden = torch.arange(float(tokens))[:, None]
        parts = [hidden[part] for part in heads.chunk_slices(hidden, WORDS)]
        assert [len(part) for part in parts] == wanted and torch.equal(torch.cat(parts), hidden)
    monkeypatch.undo()
    # 32 MiB of logits on a CPU, 256 MiB elsewhere: here 2^17 words, of 4 bytes each.
    for device, tokens in (("cpu", 64), ("cuda", 512), ("meta", 512)):
        of_device = {"device": torch.device(device), "__len__": lambda self, tokens=tokens: 2 * tokens}
        halves = heads.chunk_slices(type("States", (), of_device)(), 2**17)
        assert halves == [slice(0, tokens), slice(tokens, 2 * tokens)]


@pytest.mark.parametrize(("kept", "again"), [(4 * 4 * WORDS, False), (4 * 4 * WORDS - 1, True)])
def test_logits_are_computed_again_where_they_are_many(kept: int, again: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(heads, "KEPT_BYTES", kept)
    used: list[Any] = []
    monkeypatch.setattr(
        heads, "checkpoint", lambda score, *given, use_reentrant: used.append(use_reentrant) or score(*given)
    )
    rows, _, _ = calls_of(monkeypatch, 4, 0, partitioned=False)
    assert used == ([False] * len(rows) if again else [])
    with torch.no_grad():
        used.clear()
        calls_of(monkeypatch, 4, 0, partitioned=False)
        assert used == []


@pytest.mark.parametrize(("tokens", "again"), [(1024, False), (1025, True)])
def test_heads_of_which_nothing_is_known_are_thought_to_have_65536_words(
    tokens: int, again: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Their logits are kept up to 256 MiB, and come in chunks of 256 MiB where no other size is known."""
    used: list[bool] = []
    monkeypatch.setattr(heads, "checkpoint", lambda score, *given, **_: used.append(True) or score(*given))
    sizes = []
    hidden = torch.empty(tokens, SIZE, device="meta")
    through_module(torch.nn.Identity(), hidden, lambda part, rows: sizes.append(len(part)) or (part.sum(1),))
    assert used == [True, True] * again and sizes == ([513, 512] if again else [1024])


def test_a_head_is_taught_once() -> None:
    """Else each step would put another function around it."""
    head = torch.nn.Linear(SIZE, WORDS)
    heads._teach_head(head)
    taught = vars(head)["forward"]
    heads._teach_head(head)
    assert vars(head)["forward"] is taught


@pytest.mark.parametrize(
    ("fields", "scale", "softcap"),
    [
        ({}, 1.0, None),
        ({"final_logit_softcapping": 30.0}, 1.0, 30.0),
        ({"logits_scaling": 8.0}, 1 / 8, None),
        ({"logits_scaling": 8.0, "model_type": "hyperclovax"}, 8.0, None),
        ({"logits_scaling": None, "dim_model_base": 16, "hidden_size": 64}, 0.25, None),
        ({"dim_model_base": None, "logits_mup_width_multiplier": 4.0}, 0.25, None),
        ({"logit_scale": 3.0, "logits_scaling": 8.0, "dim_model_base": 16, "hidden_size": 64}, 3.0, None),
        ({"logit_scale": None, "output_multiplier": 0.25, "logits_mup_width_multiplier": 8.0}, 0.25, None),
        ({"lm_head_multiplier": 0.75}, 0.75, None),
        ({"dim_model_base": 16, "hidden_size": 64, "logits_mup_width_multiplier": 8.0}, 0.25, None),
        (
            {"logits_scaling": 2.0, "dim_model_base": 16, "hidden_size": 64, "logits_mup_width_multiplier": 4.0},
            0.5,
            None,
        ),
    ],
)
def test_by_the_config(fields: dict[str, Any], scale: float, softcap: float | None) -> None:
    text = SimpleNamespace(**{"model_type": "made_up", **fields})
    config: Any = SimpleNamespace(get_text_config=lambda: text)
    found = LogitShape.of(config)
    assert (found.scale, found.softcap) == (scale, softcap)


@pytest.mark.parametrize(
    ("scale", "softcap", "logit", "slope"),
    [
        (1.0, None, 2.0, 1.0),
        (0.25, None, 0.5, 0.25),
        (2.0, None, 4.0, 2.0),
        (1.0, 4.0, 4 * math.tanh(0.5), 1 - math.tanh(0.5) ** 2),
        (3.0, 4.0, 4 * math.tanh(1.5), 3 * (1 - math.tanh(1.5) ** 2)),
    ],
)
def test_a_logit_by_hand(scale: float, softcap: float | None, logit: float, slope: float) -> None:
    """Of 2: scaled, then capped; its slope is that of both."""
    shape = LogitShape(scale, softcap)
    raw = torch.tensor([2.0], dtype=torch.float64, requires_grad=True)
    found = shape(raw)
    assert found.dtype == torch.float32 and found.item() == pytest.approx(logit)
    found.sum().backward()
    assert raw.grad is not None and raw.grad.item() == pytest.approx(slope)
    # Capped before it is divided.
    assert LogitShape(scale, softcap, 2.0)(raw).item() == pytest.approx(logit / 2)


def test_the_logits_of_a_chunk_are_gone_when_their_gradient_is_computed() -> None:
    """They are as large as a chunk may be, and a softmax is all that the gradient needs."""
    gone: list[bool] = []

    def score(raw: torch.Tensor, rows: slice) -> tuple[torch.Tensor, ...]:
        logits, every = weakref.ref(raw), raw.log_softmax(dim=1)
        every.register_hook(lambda gradient: gone.append(logits() is None))
        return (every[:, 0],)

    hidden = torch.randn(4, SIZE).requires_grad_()
    heads.through_head(torch.nn.Linear(SIZE, WORDS), hidden, score, torch.ones(4))[0].backward()
    assert gone == [True] and hidden.grad is not None and bool(hidden.grad.any())
