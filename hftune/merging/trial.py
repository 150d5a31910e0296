"""The merged model and base + adapter, asked the same: loads both, one after another."""

from __future__ import annotations

import gc
import tempfile
from pathlib import Path
from typing import Any

from hftune.distributed.launch import prepare_environment
from hftune.errors import ManifestError
from hftune.logging import get_logger, notice
from hftune.models.loading.from_pretrained import pretrained

prepare_environment()

from transformers import AutoTokenizer  # noqa: E402

from hftune.merging.plan import Plan  # noqa: E402
from hftune.merging.reference import comparable, load_adapted  # noqa: E402
from hftune.merging.verify import Answers, answer, compare, judge, reload_strictly  # noqa: E402


def try_out(plan: Plan, folder: Path, max_shard_size: str | None) -> dict[str, Any] | None:
    """Largest and mean difference of logits, agreement of greedy answers; None where there is nothing to compare with.

    Args:
        plan: Of the merge.
        folder: The merged model.
        max_shard_size: For the other form of a quantised base, which is merged beside it and thrown away.

    Raises:
        ManifestError: It does not load strictly, or says something else.
    """
    tokenizer = pretrained(AutoTokenizer, folder, trust_remote_code=plan.trust_remote_code)
    in_gguf = plan.base.gguf_file and plan.tokenizer == plan.base.folder
    source = pretrained(
        AutoTokenizer,
        plan.tokenizer,
        trust_remote_code=plan.trust_remote_code,
        **({"gguf_file": plan.base.gguf_file} if in_gguf else {}),
    )
    if tokenizer.chat_template != source.chat_template:
        raise ManifestError("the merged model has another chat template", place="--verify", fix="please report it")
    said = _answers(plan, folder, tokenizer)
    if not comparable(plan):
        notice("the merged model loads strictly; peft cannot weigh what these adapters trained in full, so no logits")
        return None
    if plan.quantised is not None:
        return _both_bases(plan, folder.parent, said, tokenizer, max_shard_size)
    comparison = compare(answer(load_adapted(plan), tokenizer), said)
    get_logger().info("verified: %s", comparison)
    judge(comparison, half=_is_half(plan))
    return comparison.to_dict()


def _answers(plan: Plan, folder: Path, tokenizer: Any) -> Answers:
    model = reload_strictly(folder, head=plan.head, trust_remote_code=plan.trust_remote_code)
    said = answer(model, tokenizer)
    del model
    gc.collect()
    return said


def _both_bases(plan: Plan, room: Path, said: Answers, tokenizer: Any, max_shard_size: str | None) -> dict[str, Any]:
    """What training saw beside this merge and the one into the other form of the base; both are said."""
    from hftune.merging.merge import write_model

    trained = answer(load_adapted(plan, quantised=True), tokenizer)
    own = compare(trained, said)
    other_plan = plan.with_base(dequantise=not plan.dequantise)
    with tempfile.TemporaryDirectory(dir=room, prefix="other-") as other:
        write_model(other_plan, Path(other), max_shard_size)
        compared = compare(trained, _answers(other_plan, Path(other), tokenizer))
    names = ("dequantized", "original") if plan.dequantise else ("original", "dequantized")
    for name, found, where in zip(names, (own, compared), ("this merge", "not written"), strict=True):
        get_logger().info("verified against training, --merge_base %s (%s): %s", name, where, found)
    return own.to_dict() | {"merge_base": {names[0]: own.to_dict(), names[1]: compared.to_dict()}}


def _is_half(plan: Plan) -> bool:
    assert plan.outputs is not None or plan.unknown is not None
    if plan.outputs is None:
        return True
    return any(output.dtype in ("BF16", "F16") for output in plan.outputs.tensors)
