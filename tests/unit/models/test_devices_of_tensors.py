"""New tensors are made where the given ones are, as a GPU wants it: here the default device is another one.

Tensors on the meta device have no values, so that whatever is made there without being asked for ends in an error.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from transformers.masking_utils import causal_mask_function

from hftune.data.collators import _filled
from hftune.losses.preference import desensitised
from hftune.losses.routers import balance_loss, z_loss
from hftune.models.attention.segments import Segments, segments_attention, segments_mask
from hftune.models.attention.shared_prompts import SharedPrompts
from hftune.models.kernels.divergences import Divergence, Lesson, TeacherStates
from hftune.models.kernels.heads import LogitShape, add_answer_head, shared_rows
from hftune.trainers.ppo.maths import token_rewards
from tests.table.tiny import model_class, tiny_config
from tests.unit.data.test_collators import row as row_of_two
from tests.unit.trainers.features import test_token_loss as answer_loss

CPU = torch.device("cpu")
LENGTHS, IDS = torch.tensor([2, 3]), torch.tensor([[3, 4, 5, 6], [7, 8, 9, 3]])
STATES = torch.randn(2, 4, 6, 8, generator=torch.Generator().manual_seed(0))  # of 4 heads and 6 tokens
RUNS = Segments(torch.tensor([0, 4, 12], dtype=torch.int32), (4, 8), window=2)


def answers() -> Any:
    labels = IDS.masked_fill(torch.tensor([[True, True, False, False]]), -100)
    return lambda: shared_rows(IDS, torch.ones_like(IDS), labels).inputs


def counted() -> Any:
    one, given = answer_loss.feature(), []
    said = {"loss": torch.tensor(5.0), "entropy": torch.ones(3), "is_top1": torch.ones(3).bool()}

    class Model(answer_loss.Model):
        def __call__(self, **inputs: Any) -> Any:
            given.append(inputs["answer_factors"])
            return answer_loss.AnswerOutput(**said)

    model = Model()
    run = answer_loss.run_of(model)
    batch = {name: value for name, value in answer_loss.BATCH.items() if name != "attention_mask"}

    def work() -> Any:
        kept = one.state(run)
        one.make_loss(run, model, batch, None)
        for _ in range(2):  # the second time there is nothing
            one.sums["train"].take(run.accelerator)
        one.load_state(run, kept)
        return given[0], *one.sums["train"]._sums.values()

    return work


def headed(head: str) -> Any:
    model: Any = model_class("llama")(tiny_config("llama"))
    model.lm_head.requires_grad_(head != "frozen")
    if head == "module":
        model.lm_head = type("Head", (torch.nn.Linear,), {})(model.config.hidden_size, model.config.vocab_size)
    add_answer_head(model)
    at, factors = torch.tensor([1, 2]), torch.ones(2)
    return lambda: model(input_ids=IDS, answer_at=at, answer_ids=at, answer_factors=factors).loss


def taught(kind: type[torch.nn.Linear]) -> Any:
    student, teacher, states = kind(8, 16), torch.nn.Linear(8, 16), torch.randn(4, 8)
    lesson = Lesson(TeacherStates(states, teacher, LogitShape()), Divergence(0.5))
    ids, factors = torch.zeros(4, dtype=torch.long), torch.ones(4)
    return lambda: lesson.loss(student, states, ids, LogitShape(), 1, factors)[0]


def sliced() -> Any:
    batch = row_of_two()
    return lambda: _filled(batch, 9)


def routers() -> Any:
    shares, chosen = torch.full((4, 2), 0.5), torch.tensor([[0], [1], [0], [1]])
    return lambda: (balance_loss(shares, chosen), z_loss(shares))


def rewarded() -> Any:
    scores, kl, mask = torch.ones(2), torch.zeros(2, 3), torch.ones(2, 3)
    return lambda: token_rewards(scores, kl, mask, 0.1)


def attention(mask: Any, **more: Any) -> Any:
    module: Any = torch.nn.Identity()
    module.num_key_value_groups = 1
    return lambda: segments_attention(module, STATES, STATES, STATES, mask, **more)[0]


def row_of_pairs() -> Any:
    row = SharedPrompts((2, 1), ((1, 3), (2,)))
    return lambda: (row.borders([3, 5, 3], CPU), row.seen(3, 5, None, CPU))


per_token = torch.arange(5.0)
CASES: dict[str, Callable[[], Any]] = {
    **{f"answer head, {head}": lambda head=head: headed(head) for head in ("trained", "frozen", "module")},  # type: ignore[misc]
    "taught": lambda: taught(torch.nn.Linear),
    "taught, module": lambda: taught(type("Other", (torch.nn.Linear,), {})),
    "tokens are counted": counted,
    "answers in a row": answers,
    "a row filled up": sliced,
    "routers": routers,
    "rewards of tokens": rewarded,
    "answers of a length": lambda: lambda: desensitised(per_token, LENGTHS, LENGTHS - 1, 0.5),
    "a window": lambda: lambda: RUNS.band(4),
    "runs": lambda: lambda: segments_mask(2, 6, 6, mask_function=causal_mask_function, device=CPU).borders,  # type: ignore[union-attr]
    "one more token": lambda: lambda: segments_mask(2, 1, 6, 5, mask_function=causal_mask_function, device=CPU),
    "attention in runs": lambda: attention(RUNS),
    "attention, capped": lambda: attention(RUNS, softcap=0.5),
    "attention, capped, causal": lambda: attention(Segments(RUNS.borders, RUNS.lengths), softcap=0.5),
    "shared prompts": row_of_pairs,
}


@pytest.mark.parametrize("case", CASES)
def test_what_is_made_is_where_the_rest_is(case: str) -> None:
    work = CASES[case]()
    with torch.device("meta"):
        found = work()
    parts = found.values() if isinstance(found, dict) else found if isinstance(found, (tuple, list)) else [found]
    tensors = [part for part in parts if isinstance(part, torch.Tensor)]
    assert {part.device.type for part in tensors} <= {"cpu"} and (tensors or found is None)
