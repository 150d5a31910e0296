"""Whether a merged model says the same as base + adapter: both are loaded, one after another, and asked the same."""

from __future__ import annotations

import gc
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from math import prod
from pathlib import Path
from typing import TYPE_CHECKING, Any

import psutil
import torch

from hftune.constants import AUTO_CLASSES
from hftune.errors import ManifestError
from hftune.logging import get_logger, notice
from hftune.merging.inputs import has_tokenizer
from hftune.merging.plan import Plan
from hftune.models.loading.from_pretrained import pretrained
from hftune.on_demand import on_demand
from hftune.template_arguments import TEMPLATE_FAULTS
from hftune.weight_files import stored_tensors

if TYPE_CHECKING:
    from peft import PeftModel
    from transformers import PreTrainedModel, PreTrainedTokenizerBase

PROMPTS = (
    "Who are you?",
    "The capital of France is",
    "Explain in one sentence why the sky is blue.",
    "What should I check before I merge an adapter?",
)
# Mean difference over the logits' root mean square. Measured over the architectures of the tests, float32 stays below
# 1e-6 and bfloat16 below 2e-2; a transposed, missing or doubled update is above 1e-1.
LIMIT_FLOAT32, LIMIT_HALF = 1e-4, 1e-1
_LOAD = "hftune.merging.peft_model:load_adapted"
"""Imports peft, which takes seconds."""
_PLACES = "hftune.models.loading.stored_weights:without_place"
"""Imports transformers."""
VERIFY_PARAMETERS = 1_000_000_000
"""Above this many, logits are compared on demand only: it takes longer than the merge."""


def verify_merge(plan: Plan, folder: Path, *, verify: str) -> dict[str, Any] | None:
    """Compare with base + adapter where that was asked for, or costs little.

    Args:
        plan: Of the merge.
        folder: The merged model.
        verify: true, false, or auto.

    Returns:
        Largest and mean difference of logits, agreement of greedy answers; None where nothing was compared.

    Raises:
        ManifestError: It does not load strictly, or says something else.
    """
    with_tokenizer = has_tokenizer(folder)
    reason = _too_large(folder) if with_tokenizer else "there is no tokenizer for the prompts"
    if verify == "false" or not with_tokenizer or (verify == "auto" and reason):
        why = reason or "--verify False"
        notice(f"names, shapes and finite values were checked; logits were not compared ({why})")
        return None
    return _compare_with_adapters(plan, folder)


def _too_large(folder: Path) -> str | None:
    parameters = sum(prod(stored.shape) for stored in stored_tensors(folder).values())
    if parameters >= VERIFY_PARAMETERS:
        return f"{parameters / 1e9:.1f} billion parameters; --verify True does it all the same"
    needed = 6 * parameters  # float32, and half as much again for activations and the cache of generation
    if needed > psutil.virtual_memory().available:
        return f"{needed / 1e9:.1f} GB of memory are not there; --verify True tries it all the same"
    return None


def _compare_with_adapters(plan: Plan, folder: Path) -> dict[str, Any]:
    from transformers import AutoTokenizer

    inputs = plan.inputs
    options: dict[str, Any] = {"trust_remote_code": inputs.trust_remote_code}
    tokenizer = pretrained(AutoTokenizer, folder, **options)
    source = pretrained(AutoTokenizer, inputs.tokenizer, **options)
    if tokenizer.chat_template != source.chat_template:
        raise ManifestError("the merged model has another chat template", place="--verify", fix="please report it")
    # One model after the other: both may not fit.
    said = _answers(plan, folder, tokenizer)
    quantised = inputs.quantised is not None
    comparison = compare(answer(on_demand(_LOAD)(plan, quantised=quantised), tokenizer), said)
    get_logger().info("verified%s: %s", " against what training computed" if quantised else "", comparison)
    # A merge into the original weights differs from that by what quantisation cost.
    if not quantised:
        judge(comparison, half=_is_half(plan))
    return comparison.to_dict()


def _answers(plan: Plan, folder: Path, tokenizer: PreTrainedTokenizerBase) -> Answers:
    # What the base stores for others (a head that predicts further) is no part of the language model there either.
    inputs = plan.inputs
    beside = stored_tensors(inputs.base.folder) if inputs.scores is None else {}
    shapes = {name: tensor.shape for name, tensor in beside.items()}
    model = reload_strictly(folder, head=inputs.head, trust_remote_code=inputs.trust_remote_code, beside=shapes)
    said = answer(model, tokenizer)
    del model
    gc.collect()  # modules refer to one another in circles; the next model needs the memory
    return said


def _is_half(plan: Plan) -> bool:
    if plan.outputs is None:
        return True
    return any(output.dtype in ("BF16", "F16") for output in plan.outputs)


# --- what a model says -----------------------------------------------------------------------------------------------


@dataclass
class Answers:
    """What a model says to `PROMPTS`: logits at every position, and greedy answers of a causal LM."""

    logits: list[torch.Tensor]
    greedy: list[list[int]]


@dataclass
class Comparison:
    """How far two models' answers are apart; reward models choose no tokens and give no greedy answers (None)."""

    largest: float
    mean: float
    same_choice: float | None
    same_greedy: float | None
    relative: float = 0.0
    """The mean difference over the root mean square of the logits."""

    def __str__(self) -> str:
        distance = f"differ by {self.largest:.1e} at most, {self.mean:.1e} on average"
        if self.same_choice is None or self.same_greedy is None:
            return f"scores {distance}"
        return (
            f"logits {distance}; "
            f"same most likely token at {self.same_choice:.1%}; same greedy answers: {self.same_greedy:.0%}"
        )

    def to_dict(self) -> dict[str, float]:
        """Plain values for the manifest."""
        return asdict(self)


def answer(model: PreTrainedModel | PeftModel, tokenizer: PreTrainedTokenizerBase, *, new_tokens: int = 16) -> Answers:
    """Logits of each prompt, float32: (length, vocabulary) of a causal LM, (labels,) of a reward model; and answers.

    Args:
        model: In eval mode; a reward model has no `lm_head` and gives no greedy answers.
        tokenizer: Its tokenizer; the first half of the prompts go through its chat template, where it has one.
        new_tokens: Length of each greedy answer.

    Raises:
        ManifestError: The model cannot be run.
    """
    said = Answers([], [])
    generates = not hasattr(model, "score")
    with torch.no_grad():
        for number, prompt in enumerate(PROMPTS):
            # Every other prompt as chat, and the others plain: a wrong template would hide in either alone.
            text = _in_template(tokenizer, prompt) if tokenizer.chat_template and number % 2 == 0 else prompt
            inputs = tokenizer(text, return_tensors="pt", return_token_type_ids=False)
            with _reporting_faults(model):
                said.logits.append(model(**inputs).logits[0].float())
                if generates:
                    ids = model.generate(
                        **inputs, max_new_tokens=new_tokens, do_sample=False, pad_token_id=tokenizer.pad_token_id
                    )
                    said.greedy.append(ids[0].tolist())
    return said


@contextmanager
def _reporting_faults(model: PreTrainedModel | PeftModel) -> Iterator[None]:
    try:
        yield
    except (RuntimeError, TypeError, ValueError, AttributeError, LookupError) as error:
        # Some models cannot read a plain text, or need a kernel that is not here; that says nothing about the merge.
        raise ManifestError(
            f"{type(model).__name__} fails in transformers when it is asked something: {type(error).__name__}: {error}",
            place="--verify",
            fix="add --verify False: names, shapes and finite values are checked then, and logits are not compared",
        ) from error


def _in_template(tokenizer: PreTrainedTokenizerBase, prompt: str) -> str:
    """The prompt as a question, or plain where the template refuses one."""
    turn = [{"role": "user", "content": prompt}]
    try:
        return str(tokenizer.apply_chat_template(turn, tokenize=False, add_generation_prompt=True))
    except TEMPLATE_FAULTS:
        return prompt


def compare(before: Answers, after: Answers) -> Comparison:
    """Compare position by position, and greedy answers as a whole."""
    pairs = list(zip(before.logits, after.logits, strict=True))
    differences = torch.cat([(a - b).abs().flatten() for a, b in pairs])
    same = torch.cat([(a.argmax(-1) == b.argmax(-1)).flatten() for a, b in pairs])
    greedy = [a == b for a, b in zip(before.greedy, after.greedy, strict=True)]
    # Relative to the logits: their size differs by orders of magnitude between architectures.
    size = torch.cat([a.flatten() for a, _ in pairs]).square().mean().sqrt()
    return Comparison(
        largest=float(differences.max()),
        mean=float(differences.mean()),
        same_choice=float(same.float().mean()) if greedy else None,
        same_greedy=sum(greedy) / len(greedy) if greedy else None,
        relative=float(differences.mean() / size.clamp_min(1e-12)),
    )


def judge(
    comparison: Comparison, *, half: bool, result: str = "the merged model", model: str = "base + adapter"
) -> None:
    """Refuse a result that says something else.

    Args:
        comparison: Of what it was made from with the result.
        half: Whether its weights were rounded to 16 bit.
        result, model: The two, in words.

    Raises:
        ManifestError: The difference is beyond rounding (NaN is, too).
    """
    limit = LIMIT_HALF if half else LIMIT_FLOAT32
    if not comparison.relative <= limit:
        raise ManifestError(
            f"{result} does not say what {model} said: {comparison}",
            place=f"--verify (relative difference {comparison.relative:.1e}, at most {limit:.0e} is rounding)",
            fix="this is a fault of hftune: please report it; --verify False writes the model all the same",
        )


def reload_strictly(
    folder: Path,
    *,
    head: str = "causal_lm",
    trust_remote_code: bool,
    beside: Mapping[str, tuple[int, ...]] | None = None,
) -> Any:
    """The merged model as plain transformers loads it, in float32.

    Args:
        folder: The merged model's.
        head: causal_lm, score or steps.
        trust_remote_code: Run code that comes with it.
        beside: Tensors of the base with their shapes: those without a place there need none here.

    Raises:
        ManifestError: Missing or left-over weights, or ties that are not what the config says.
    """
    import transformers

    auto: Any = getattr(transformers, AUTO_CLASSES[head])
    model, info = pretrained(
        auto, folder, output_loading_info=True, trust_remote_code=trust_remote_code, dtype=torch.float32
    )
    # All kinds of transformers' loading report: missing, unexpected, mismatched keys, and error messages.
    left = on_demand(_PLACES)(model, beside or {})
    info["unexpected_keys"] = {*info["unexpected_keys"]} - {*left, *left.values()}
    wrong = {kind: sorted(map(str, names)) for kind, names in info.items() if names}
    if wrong:
        raise ManifestError(
            f"the merged model does not load strictly: {wrong}",
            place="--verify",
            fix="this is a fault of the merge: please report it; --verify False writes the model all the same",
        )
    _check_ties(model)
    return model.eval()


def _check_ties(model: PreTrainedModel) -> None:
    head = model.get_output_embeddings()
    asked = getattr(model.config.get_text_config(), "tie_word_embeddings", False)
    if head is None or model.get_input_embeddings() is None:
        return
    # By memory, not by config: transformers ties in silence what it takes for tied.
    tied = head.weight.data_ptr() == model.get_input_embeddings().weight.data_ptr()
    if tied != bool(asked):
        raise ManifestError(
            f"the merged config says tie_word_embeddings: {asked}, and the loaded model has them "
            + ("tied" if tied else "apart"),
            place="--verify",
            fix="this is a fault of the merge: please report it",
        )
