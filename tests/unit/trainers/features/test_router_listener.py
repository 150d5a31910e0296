"""What routers say in passes that are trained on, of a tiny mixture, beside what transformers hands out itself."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import nn
from transformers import MixtralConfig, MixtralForCausalLM
from transformers.models.mixtral.modeling_mixtral import load_balancing_loss_func

from hftune.losses.routers import z_loss
from hftune.trainers.features.router_loss import RouterListener, _Pass, is_mean_over_accumulation

IDS = torch.tensor([[3, 4, 5, 6], [7, 8, 9, 0]])
MASK = torch.tensor([[1, 1, 1, 1], [1, 1, 1, 0]])


@pytest.fixture(scope="module")
def model() -> Any:
    torch.manual_seed(0)
    config = MixtralConfig(
        vocab_size=32, hidden_size=8, intermediate_size=8, num_hidden_layers=2, num_attention_heads=2,
        num_key_value_heads=2, num_local_experts=4, num_experts_per_tok=2,
    )  # fmt: skip
    return MixtralForCausalLM(config)


@pytest.fixture(scope="module")
def listener(model: Any) -> RouterListener:
    return RouterListener(model)


def test_each_layer_of_each_pass_with_a_gradient(model: Any, listener: RouterListener) -> None:
    with listener.open() as passes:
        said = model(input_ids=IDS, attention_mask=MASK, output_router_logits=True).router_logits
        with torch.no_grad():
            model(input_ids=IDS)  # a reference's
        model(input_ids=IDS)
    model(input_ids=IDS)
    assert listener.passes is None and len(passes) == 2
    first, second = passes
    assert torch.equal(first.mask, MASK) and second.mask is None
    assert len(first.logits) == len(first.chosen) == len(second.logits) == 2
    for mine, theirs, chosen in zip(first.logits, said, first.chosen, strict=True):
        torch.testing.assert_close(mine, theirs.reshape(-1, 4))
        assert torch.equal(chosen.sort().values, theirs.reshape(-1, 4).topk(2).indices.sort().values)
    balance, z = listener.losses([first])
    torch.testing.assert_close(balance, load_balancing_loss_func(tuple(said), 4, 2, MASK))
    torch.testing.assert_close(z, z_loss(torch.cat(first.logits), MASK.reshape(-1).repeat(2)))
    # Of two passes, the mean; without a mask all count.
    both, alone = listener.losses(passes), listener.losses([second])
    torch.testing.assert_close(both[0], (balance + alone[0]) / 2)
    torch.testing.assert_close(both[1], (z + alone[1]) / 2)
    torch.testing.assert_close(alone[1], z_loss(torch.cat(second.logits)))
    assert balance.requires_grad and z.requires_grad


def test_of_a_group_of_processes_whole_rows_count(listener: RouterListener) -> None:
    """Each of two has the same slice: sums are twice as large, and the loss is that of one."""
    one = _Pass(MASK[:1], [torch.randn(4, 4), torch.randn(4, 4)], [torch.zeros(4, 2, dtype=torch.long)] * 2)
    group: Any = SimpleNamespace(size=2, sum=lambda value: 2 * value)
    for mine, whole in zip(listener.losses([one], group), listener.losses([one]), strict=True):
        torch.testing.assert_close(mine, whole)


def test_masks_of_rows(model: Any, listener: RouterListener) -> None:
    shared = SimpleNamespace(counts=torch.tensor([2, 2, 1]))
    with listener.open() as passes:
        listener._begin(model, (), {"input_ids": IDS, "shared_prompts": shared, "attention_mask": MASK})
        listener._begin(model, (), {"input_ids": IDS, "attention_mask": torch.ones(2, 1, 4, 4)})
        listener._begin(model, (), {"input_ids": IDS, "attention_mask": {"full": MASK}})
    assert passes[0].mask.tolist() == [[2, 2, 1]], "a prompt counts for each of its answers"
    assert passes[1].mask is None and passes[2].mask is None


def test_scores_without_a_choice_are_chosen_from(listener: RouterListener) -> None:
    logits = torch.tensor([[[0.1, 0.4, 0.3, 0.2], [4.0, 1.0, 2.0, 3.0]]])
    floating = torch.zeros(2, 2)
    for output in (logits, (logits, floating), (logits, floating, floating)):
        with listener.open() as passes:
            passes.append(_Pass(None))
            listener._keep_scores(None, (), output)
        assert passes[0].chosen[0].tolist() == [[1, 2], [0, 3]] and passes[0].logits[0].shape == (2, 4)
    with listener.open() as passes:
        passes.append(_Pass(None))
        listener._keep_scores(None, (), (logits, floating, torch.tensor([[[3, 2], [1, 0]]])))
    assert passes[0].chosen[0].tolist() == [[3, 2], [1, 0]], "what it chose may be biased"


def test_a_sharded_router_is_heard_by_its_gate(listener: RouterListener) -> None:
    class Sharded(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.gate = nn.Linear(2, 4, bias=False)

        def forward(self, x: torch.Tensor) -> Any:
            self.gate(x)
            return torch.zeros(3, 2), torch.tensor([[0, 1]] * 3), torch.zeros(1)

    router, x = Sharded(), torch.randn(3, 2)
    listener.listen_to_sharded(router)
    with listener.open() as passes:
        passes.append(_Pass(None))
        router(x)
    torch.testing.assert_close(passes[0].logits[0], router.gate(x))
    assert passes[0].chosen[0].tolist() == [[0, 1]] * 3


@pytest.mark.parametrize(
    ("run", "counted", "is_mean"),
    [
        ({"loss_is_scaled_for_ga": True}, None, True),
        ({"loss_is_scaled_for_ga": False, "model_accepts_loss_kwargs": True}, 4, False),
        ({"model_accepts_loss_kwargs": True, "compute_loss_func": None}, 4, True),
        ({"model_accepts_loss_kwargs": True, "compute_loss_func": None}, None, False),
        ({"model_accepts_loss_kwargs": False, "compute_loss_func": None}, 4, False),
        ({"model_accepts_loss_kwargs": False, "compute_loss_func": print}, None, True),
    ],
)
def test_who_divides_by_accumulated_batches(run: dict[str, Any], counted: int | None, is_mean: bool) -> None:
    assert is_mean_over_accumulation(SimpleNamespace(**run), counted) is is_mean  # type: ignore[arg-type]


def test_slices_of_rows_add_up_to_the_rows(model: Any, listener: RouterListener) -> None:
    """Two processes with halves of the same rows: the mean of their losses is that of the whole rows."""
    halves = [_Pass(None), _Pass(None)]
    logits = torch.randn(8, 4, generator=torch.Generator().manual_seed(0))
    whole = _Pass(None)
    for one, part in zip([whole, *halves], (logits, logits[:4], logits[4:]), strict=True):
        one.logits.append(part)
        one.chosen.append(part.topk(2, dim=-1).indices)
    exact = listener.losses([whole])
    sums: list[list[torch.Tensor]] = [[], []]
    for number, half in enumerate(halves):  # what each would send
        group: Any = SimpleNamespace(size=2, sum=lambda value, number=number: sums[number].append(value) or value)
        listener.losses([half], group)
    found = []
    for half in halves:
        totals = iter([first + second for first, second in zip(*sums, strict=True)])
        found.append(listener.losses([half], SimpleNamespace(size=2, sum=lambda value, t=totals: next(t))))  # type: ignore[arg-type]
    for kind in (0, 1):
        torch.testing.assert_close((found[0][kind] + found[1][kind]) / 2, exact[kind])
