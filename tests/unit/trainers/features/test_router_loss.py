"""What routers say in passes that are trained on, and what that adds to a loss."""

from __future__ import annotations

from contextlib import nullcontext
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import nn
from transformers import DogeConfig, LlamaConfig, MixtralConfig, MixtralForCausalLM
from transformers.models.mixtral.modeling_mixtral import load_balancing_loss_func

from hftune.errors import ArgumentError
from hftune.losses.routers import z_loss
from hftune.trainers.features import router_loss
from hftune.trainers.features.router_loss import RouterListener, RouterLoss, _Pass, is_mean_over_accumulation
from tests.table.tiny import model_class, tiny_config
from tests.unit.trainers.features import made_up


class Listener:
    """Says the same balance and z loss for every pass."""

    def __init__(self, *, trained: bool = True) -> None:
        self.balance, self.z = (torch.tensor(value, requires_grad=trained) for value in (2.0, 3.0))
        self.routers: list[Any] = []

    def open(self) -> Any:
        return nullcontext(["a pass"])

    def losses(self, passes: list[Any], group: Any) -> tuple[torch.Tensor, torch.Tensor]:
        assert passes == ["a pass"] and group == "the group"
        return self.balance, self.z

    def listen_to_sharded(self, router: Any) -> None:
        self.routers.append(router)


def built(config: Any = None, **args: Any) -> tuple[RouterLoss, Any, Any]:
    """The feature after its trainer was made, with the arguments and the config that the trainer saw."""
    names = {"router_aux_loss_coef": None, "moe_z_loss_coef": 0.0, "recomputation": None}
    given = SimpleNamespace(**(names | {"device": torch.device("cpu")} | args))
    model = SimpleNamespace(config=config or MixtralConfig(router_aux_loss_coef=0.02, output_router_logits=True))
    feature = RouterLoss(model, given)
    logits = getattr(model.config, "output_router_logits", None)
    seen = SimpleNamespace(asked=given.router_aux_loss_coef, logits=logits)
    model.config.router_aux_loss_coef = 0.0  # as TRL does
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(router_loss, "RouterListener", lambda model: Listener())
        feature.on_built(made_up.run(model=model, args=vars(given)))
        given.router_aux_loss_coef = feature._asked
    return feature, seen, SimpleNamespace(args=given, config=model.config)


def run_of(*, training: bool = True, **given: Any) -> Any:
    names = {"model_accepts_loss_kwargs": True, "compute_loss_func": None, "current_gradient_accumulation_steps": 4}
    model = SimpleNamespace(training=training)
    return made_up.run(model=model, sequence_group="the group", **(names | given))


def listening(**coefficients: float) -> RouterLoss:
    feature, _, _ = built(router_aux_loss_coef=0.1, **coefficients)
    feature._listener = Listener()  # type: ignore[assignment]
    return feature


def test_upstream_s_losses_are_off_while_the_trainer_is_made() -> None:
    feature, seen, after = built()
    assert (seen.asked, seen.logits) == (0.0, False)
    assert after.args.router_aux_loss_coef is None and after.config.router_aux_loss_coef == 0.02
    assert feature._balance_by == 0.02, "the model's own coefficient, where none was asked for"
    assert built(router_aux_loss_coef=0.5)[0]._balance_by == 0.5
    dense, seen, _ = built(LlamaConfig())
    assert seen.asked is None and dense._balance_by == 0.0, "a dense model has none, in TRL's eyes as well"
    assert built(LlamaConfig(), router_aux_loss_coef=0.5)[1].asked is None
    assert built(DogeConfig(is_moe=True))[0]._balance_by == 0.0, "its routers score halves of an expert's number"


@pytest.mark.parametrize(("counted", "steps"), [(None, 1), (128, 4)])
def test_what_is_added(counted: int | None, steps: int) -> None:
    """The Trainer divides a mean by the accumulated batches itself, and a sum over counted labels not."""
    feature, run, logs = listening(moe_z_loss_coef=0.01), run_of(), {"loss": 1.0}
    with feature.listening(run):
        pass
    found = feature.added(run, torch.tensor(1.0), counted)
    assert found.item() == pytest.approx(1 + (0.1 * 2 + 0.01 * 3) / steps)
    feature.before_log(run, of_an_evaluation := {"eval_loss": 1.0})
    assert of_an_evaluation == {"eval_loss": 1.0}
    feature.before_log(run, logs)
    assert logs == {"loss": 1.0, "aux_loss": 2.0, "z_loss": 3.0}
    feature.before_log(run, other := {"loss": 1.0})
    assert other == {"loss": 1.0}


def test_an_evaluation_has_the_loss_alone() -> None:
    feature, run, loss = listening(), run_of(training=False), torch.tensor(1.0)
    with feature.listening(run):
        pass
    assert feature.added(run, loss, None) is loss


def test_routers_without_a_gradient_are_refused() -> None:
    feature, run = listening(), run_of()
    feature._listener = Listener(trained=False)  # type: ignore[assignment]
    with feature.listening(run):
        pass
    with pytest.raises(ArgumentError, match="routers have no gradient"):
        feature.added(run, torch.tensor(1.0), None)


def test_routers_of_sharded_experts_are_listened_to_once(monkeypatch: pytest.MonkeyPatch) -> None:
    layers = [("a", SimpleNamespace(router=1)), ("b", SimpleNamespace(router=2))]
    monkeypatch.setattr(router_loss, "expert_layers", lambda model: iter(layers))
    feature, run = listening(), run_of(args={"expert_parallel_size": 2})
    feature.listen_to_sharded(run)
    feature.listen_to_sharded(run)
    assert feature._listener.routers == [1, 2]  # type: ignore[union-attr]


def test_a_config_of_experts_without_a_layer_that_has_any() -> None:
    config = tiny_config("qwen3_moe")
    config.mlp_only_layers = [0, 1]
    model = model_class("qwen3_moe")(config)
    feature, _, _ = built(config, router_aux_loss_coef=0.1)
    feature.on_built(made_up.run(model=model))
    assert feature._listener is None


@pytest.mark.parametrize(
    ("takes", "kwargs", "asked", "coefficient"),
    [
        (True, {"use_reentrant": True}, None, 0.0),
        (True, {"use_reentrant": False}, None, 0.02),
        (True, None, None, 0.02),
        (False, {"use_reentrant": True}, None, 0.02),
        (True, {"use_reentrant": True}, 0.1, 0.1),
    ],
)
def test_reentrant_recomputation_gives_routers_no_gradient(
    takes: bool, kwargs: Any, asked: float | None, coefficient: float
) -> None:
    """The model's own loss is off, in words; one that was asked for is an error later."""
    plan = SimpleNamespace(takes_routers=takes)
    feature, _, _ = built(recomputation=plan, gradient_checkpointing_kwargs=kwargs, router_aux_loss_coef=asked)
    assert feature._balance_by == coefficient


@pytest.mark.parametrize(("balance", "z", "routers", "listens"), [
    (0.1, 0.0, 2, True), (0.0, 0.1, 2, True), (0.0, 0.0, 2, False), (0.1, 0.1, 0, False),
])  # fmt: skip
def test_who_listens(monkeypatch: pytest.MonkeyPatch, balance: float, z: float, routers: int, listens: bool) -> None:
    """Either loss needs a listener, and a model with routers."""
    feature, _, _ = built(router_aux_loss_coef=balance, moe_z_loss_coef=z)
    made = SimpleNamespace(routers=["a router"] * routers)
    monkeypatch.setattr(router_loss, "RouterListener", lambda model: made)
    feature.on_built(made_up.run(model=SimpleNamespace(config=MixtralConfig())))
    assert feature._listener is (made if listens else None)


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
