"""The loss of distillation a chunk at a time: as from full logits, and as TRL's, with every gradient."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from transformers import Gemma2Config, Gemma2ForCausalLM, LlamaConfig, LlamaForCausalLM

from hftune.models.kernels import heads as kernel
from hftune.models.kernels.divergences import Divergence, Lesson, TeacherStates, TopTargets
from hftune.models.kernels.heads import LogitShape, add_answer_head
from tests.table.tiny import model_class, tiny_config
from tests.unit.models.kernels.test_divergences import expected

WORDS, TOKENS = 97, 40
OTHER: Any = type("Other", (torch.nn.Linear,), {})
"""Is called as a module."""


def heads(*, bias: bool = False, kind: type[torch.nn.Linear] = torch.nn.Linear, words: int = WORDS) -> Any:
    """Of a student (32) and a teacher (48), and hidden states of each."""
    torch.manual_seed(0)
    student, teacher = kind(32, WORDS, bias=bias), torch.nn.Linear(48, words, bias=bias)
    for one in (student, teacher):
        torch.nn.init.normal_(one.weight, std=0.4)
    return student, teacher, torch.randn(TOKENS, 32, requires_grad=True), torch.randn(TOKENS, 48)


def taught_loss(*given: Any) -> Any:
    *about, lesson = given
    return lesson.loss(*about)


def gradients(hidden: torch.Tensor, head: torch.nn.Module) -> list[torch.Tensor]:
    """Of the hidden states and of what is trained; they are taken away."""
    leaves = [hidden, *(one for one in head.parameters() if one.requires_grad)]
    found = [one.grad.clone() for one in leaves if one.grad is not None]
    for one in leaves:
        one.grad = None
    assert len(found) == len(leaves)
    return found


def same(found: Any, other: Any) -> None:
    torch.testing.assert_close(found, other, rtol=1e-4, atol=1e-5)


@pytest.fixture(autouse=True)
def several_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Heads that are called as modules compute theirs again."""
    monkeypatch.setitem(kernel.CHUNK_BYTES, "cpu", 4 * WORDS * 7)
    monkeypatch.setattr(kernel, "KEPT_BYTES", 0)


@pytest.mark.parametrize(("beta", "temperature", "share"), [(0.0, 1.0, 0.0), (0.1, 2.0, 0.3), (1.0, 1.0, 0.3)])
@pytest.mark.parametrize("head", ["trained", "frozen", "module", "bias"])
@pytest.mark.parametrize("rows", [7, 64])
def test_equals_full_logits(
    beta: float, temperature: float, share: float, head: str, rows: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(kernel.CHUNK_BYTES, "cpu", 4 * WORDS * rows)
    monkeypatch.setattr(kernel, "KEPT_BYTES", 0 if rows == 7 else 2**28)
    student, teacher, hidden, states = heads(
        bias=head != "trained", kind=OTHER if head == "module" else torch.nn.Linear
    )
    student.requires_grad_(head != "frozen")
    forms = LogitShape(1.5, 4.0), LogitShape(0.7, 3.0)
    ids, factors = torch.randint(0, WORDS, (TOKENS,)), torch.rand(TOKENS) / 1000
    how = Divergence(beta, temperature, share)
    losses = expected(forms[0](student(hidden)), ids, forms[1](teacher(states)).detach(), how)
    wanted = (losses * factors).sum()
    wanted.backward()
    of_full = gradients(hidden, student)
    lesson = Lesson(TeacherStates(states, teacher, forms[1]), how)
    for detail in (0, 1):
        loss, columns = taught_loss(student, hidden, ids, forms[0], detail, factors, lesson)
        (1000 * loss).backward()
        same(1000 * loss, 1000 * wanted)
        same(gradients(hidden, student), [1000 * one for one in of_full])
        assert len(columns["divergence"]) == TOKENS and ("entropy" in columns) == bool(detail)
    assert all(one.grad is None for one in teacher.parameters())
    own = forms[0](student(hidden)).log_softmax(-1).detach()
    same(columns["log_probs"], own.gather(1, ids[:, None])[:, 0])
    same(columns["entropy"], -(own.exp() * own).sum(-1))
    assert torch.equal(columns["is_top1"], own.argmax(-1) == ids)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_16_bits_sum_in_32(dtype: torch.dtype, beta: float = 0.5) -> None:
    """Also with factors so small that float16 has no number for them."""
    student, teacher, hidden, states = heads(bias=True)
    for one in (student, teacher):
        one.to(dtype)
    low = hidden.detach().to(dtype).requires_grad_()
    exact = torch.nn.Linear(32, WORDS).double()
    exact.load_state_dict({name: value.double() for name, value in student.state_dict().items()})
    of_teacher = torch.nn.functional.linear(states.to(dtype), teacher.weight, teacher.bias).double().detach()
    wide = low.detach().double().requires_grad_()
    ids = torch.randint(0, WORDS, (TOKENS,))
    (expected(exact(wide), ids, of_teacher, Divergence(beta, 1.0, 0.2)).sum() * 1e-7).backward()
    lesson = Lesson(TeacherStates(states, teacher, LogitShape()), Divergence(beta, 1.0, 0.2))
    factors = torch.full((TOKENS,), 1e-7)
    loss, columns = taught_loss(student, low, ids, LogitShape(), 1, factors, lesson)
    assert {one.dtype for name, one in columns.items() if name != "is_top1"} == {torch.float32}
    (loss * 1e7).backward()  # as a gradient scaler does
    for one, other in zip(gradients(low, student), gradients(wide, exact), strict=True):
        assert one.dtype == dtype
        assert (one.double() - 1e7 * other).norm() < 0.02 * (1e7 * other).norm()


@pytest.mark.parametrize("trained", [True, False])
@pytest.mark.parametrize("kind", ["plain", "module"])
def test_under_autocast_sums_are_of_32_bits(trained: bool, kind: str) -> None:
    student, teacher, hidden, states = heads(kind=OTHER if kind == "module" else torch.nn.Linear)
    student.requires_grad_(trained)
    if kind == "module":
        teacher = torch.nn.Sequential(teacher)
    lesson = Lesson(TeacherStates(states.bfloat16(), teacher, LogitShape()), Divergence(0.5))
    ids = torch.randint(0, WORDS, (TOKENS,))
    with torch.autocast("cpu", torch.bfloat16):
        logits, given = student(hidden).float(), teacher(states).float()
        loss, columns = taught_loss(student, hidden, ids, LogitShape(), 1, torch.ones(TOKENS), lesson)
    loss.backward()
    assert gradients(hidden, student)[0].dtype == torch.float32
    losses = expected(logits, ids, given, lesson.divergence)
    torch.testing.assert_close(columns["divergence"], losses, rtol=1e-3, atol=1e-4)
    torch.testing.assert_close(loss, losses.sum(), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("kind", [torch.nn.Linear, OTHER])
def test_an_evaluation_computes_no_slopes(kind: Any) -> None:
    class Shape(LogitShape):
        def __call__(self, raw: torch.Tensor) -> torch.Tensor:
            assert not raw.requires_grad, "nobody asked"
            return super().__call__(raw)

    student, teacher, hidden, states = heads(kind=kind)
    lesson = Lesson(TeacherStates(states, teacher, LogitShape()), Divergence(0.5))
    with torch.no_grad():
        loss, _ = taught_loss(student, hidden, torch.zeros(TOKENS).long(), Shape(2.0), 0, torch.ones(TOKENS), lesson)
    assert loss.item() > 0


@pytest.mark.parametrize("kind", [torch.nn.Linear, OTHER])
def test_a_head_that_is_trained_alone(kind: Any) -> None:
    student, teacher, hidden, states = heads(kind=kind)
    lesson = Lesson(TeacherStates(states, teacher, LogitShape()), Divergence(0.5))
    ids, factors = torch.zeros(TOKENS).long(), torch.ones(TOKENS)
    found = []
    for read in (hidden, hidden.detach()):
        taught_loss(student, read, ids, LogitShape(), 0, factors, lesson)[0].backward()
        found.append(student.weight.grad.clone())
        student.weight.grad = None
    same(found[1], found[0])


SIZES: dict[str, Any] = {"intermediate_size": 64, "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 8}


def tiny(kind: str, size: int = 32, *, tied: bool = False) -> Any:
    sizes = SIZES | {"vocab_size": WORDS, "hidden_size": size, "num_hidden_layers": 2, "tie_word_embeddings": tied}
    if kind == "gemma2":
        return Gemma2ForCausalLM(Gemma2Config(**sizes, final_logit_softcapping=3.0))
    return LlamaForCausalLM(LlamaConfig(**sizes))


@pytest.mark.parametrize(("kind", "tied"), [("llama", True), ("gemma2", False), ("electra", True)])
def test_whole_models(kind: str, tied: bool) -> None:
    torch.manual_seed(0)
    student, teacher = tiny("gemma2", tied=tied), tiny(kind, 48) if kind != "electra" else None
    if teacher is None:  # its head is not all that comes after its body
        teacher = model_class("electra")(tiny_config("electra"))
    teacher.eval()
    ids, at = torch.randint(5, WORDS, (2, 20)), torch.arange(1, 39)
    targets, factors = torch.randint(0, WORDS, (38,)), torch.rand(38)
    how = Divergence(0.5, 1.0, 0.3)
    given = teacher(input_ids=ids).logits.flatten(0, 1)[at].detach().float()
    wanted = (expected(student(input_ids=ids).logits.flatten(0, 1)[at], targets, given, how) * factors).sum()
    wanted.backward()
    of_full = {name: one.grad.clone() for name, one in student.named_parameters()}
    student.zero_grad()
    for one in (student, teacher):
        add_answer_head(one)
    states = teacher(input_ids=ids, answer_at=at, answer_states=True)
    assert not states.hidden.requires_grad
    same(states.logits(slice(3, 9)), given[3:9])
    found = student(
        input_ids=ids, answer_at=at, answer_ids=targets, answer_factors=factors, answer_teacher=Lesson(states, how)
    )
    found.loss.backward()
    same(found.loss, wanted)
    assert len(found.divergence) == len(found.entropy) == 38
    for name, one in student.named_parameters():
        torch.testing.assert_close(one.grad, of_full[name], rtol=1e-4, atol=1e-5, msg=name)


@pytest.mark.parametrize("targets", ["states", "top"])
@pytest.mark.parametrize("trained", [True, False])
def test_no_label_is_a_loss_of_zero_with_a_gradient_of_zero(targets: str, trained: bool) -> None:
    student, teacher = tiny("llama"), tiny("gemma2", 48)
    student.lm_head.requires_grad_(trained)
    for one in (student, teacher):
        add_answer_head(one)
    ids, none = torch.zeros(1, 4).long(), torch.zeros(0, dtype=torch.long)
    given = teacher(input_ids=ids, answer_at=none, answer_states=True)
    if targets == "top":
        given = TopTargets(torch.zeros(0, 3).long(), torch.zeros(0, 3))
    found = student(
        input_ids=ids, answer_at=none, answer_ids=none, answer_factors=none.float(), answer_detail=1,
        answer_teacher=Lesson(given, Divergence(0.5, 2.0, 0.5)),
    )  # fmt: skip
    found.loss.backward()
    assert found.loss == 0 and len(found.divergence) == len(found.entropy) == len(found.log_probs) == 0
    assert all(one.grad is None or not one.grad.any() for one in student.parameters())
    assert student.model.layers[0].mlp.up_proj.weight.grad is not None, "other processes wait for it"


@pytest.mark.parametrize("taught", [True, False])
def test_a_chunk_that_only_another_process_has(taught: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Under ZeRO-3 this one projects a token that is made up, whose loss and gradient are 0."""
    student, teacher, hidden, states = heads(kind=OTHER)
    lesson = Lesson(TeacherStates(states, teacher, LogitShape()), Divergence(0.5))
    ids, factors = torch.randint(0, WORDS, (TOKENS,)), torch.rand(TOKENS)
    found: list[list[torch.Tensor]] = []
    for most in (1, 50):
        monkeypatch.setattr(kernel.zero, "is_any_partitioned", lambda module, most=most: most > 1)
        monkeypatch.setattr(kernel.ranks, "max_over_ranks", lambda count, most=most: most * count)
        if taught:
            loss, named = taught_loss(student, hidden, ids, LogitShape(), 1, factors, lesson)
        else:
            loss, named = kernel.answers(student, hidden, ids, LogitShape(), 2, factors)
        assert loss is not None
        loss.backward()
        assert all(len(column) == TOKENS for column in named.values())
        found.append([loss, *named.values(), *gradients(hidden, student)])
    for one, other in zip(*found, strict=True):
        same(one, other)
