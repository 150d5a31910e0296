"""What a run is, is decided once: the same for rules, loaders and trainers, and nobody changes it."""

from __future__ import annotations

import ast
import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from transformers import LlamaConfig

from hftune import logging
from hftune.arguments.entry import parse_arguments
from hftune.checkpoints.manifest import write_manifest
from hftune.checkpoints.template_arguments import give_recorded
from hftune.errors import UserError
from hftune.models.attention.segments import SEGMENTS
from hftune.preflight import facts as facts_module
from hftune.preflight.check_run import RULES_OF_STAGE, check_run, rules_of
from hftune.preflight.facts import resolve, take_template_arguments
from hftune.template_arguments import arguments_of
from tests.unit.data.helpers import make_tokenizer, template

ROOT = Path(__file__).parents[3]
STAGES = ("pt", "sft", "rm", "dpo", "rl")
QUIET = ("--report_to", "none", "--disable_tqdm", "True", "--use_cpu", "True", "--bf16", "False")
METHODS: tuple[tuple[str, ...], ...] = (
    (),
    ("--use_peft", "--lora_r", "4"),
    ("--qlora", "--deepspeed", "zero2"),
    ("--deepspeed", "zero3", "--activation_checkpointing", "auto"),
    ("--use_liger_kernel", "True", "--liger_kernel_config", '{"swiglu": true}'),
    ("--freeze_parameters_ratio", "0.5", "--hidden_dropout_prob", "0.1"),
    ("--peft_path", "nowhere", "--add_tokens", "<new>"),
    ("--resume_from_checkpoint", "auto", "--activation_checkpointing", "mlp"),
)


def parsed(stage: str, model: Path | str, *flags: str) -> Any:
    given = ["--model_name_or_path", str(model), "--output_dir", "not-there", "--train_file_dir", "."]
    rewards = ["--reward_funcs", "length"] if stage == "rl" else []
    return parse_arguments(stage, [*given, *QUIET, *rewards, *flags])


def state(facts: Any) -> list[str]:
    """What rules look at, as text: arguments, config, and what is trained of the skeleton."""
    bare = facts.skeleton
    trained = [(name, one.shape, one.requires_grad) for name, one in bare.named_parameters()] if bare else []
    return [*(repr(vars(group)) for group in facts.arguments), repr(facts.config), repr(bare), repr(trained)]


@pytest.mark.parametrize("flags", METHODS)
def test_no_rule_changes_anything(tiny_model: Path, flags: tuple[str, ...]) -> None:
    facts = resolve("sft", parsed("sft", tiny_model, *flags))
    before = state(facts)
    for rule in rules_of("sft"):
        list(rule(facts))
        assert state(facts) == before, rule


@pytest.mark.parametrize("stage", STAGES)
def test_what_was_given_stays(tiny_model: Path, tmp_path: Path, stage: str) -> None:
    """Each of these is decided: warm start, the chain of adapters, the tokenizer, Liger, layers, rows."""
    (tmp_path / "adapter_config.json").write_text(json.dumps({"base_model_name_or_path": str(tiny_model)}))
    (tmp_path / "adapter_model.safetensors").write_bytes((2).to_bytes(8, "little") + b"{}")
    write_manifest(tmp_path, {"base": {"name": str(tiny_model), "adapters": ["below"]}})
    flags = ("--warm_start", str(tmp_path), "--use_liger_kernel", "True", "--activation_checkpointing", "auto")
    given = parsed(stage, tiny_model, *flags)
    before = [dict(vars(group)) for group in given]
    facts = resolve(stage, given)
    assert [dict(vars(group)) for group in given] == before
    assert facts.adapter_args.peft_path == f"below,{tmp_path}" and given.adapter.peft_path is None
    assert facts.training_args.liger_kernel_config and not given.training.liger_kernel_config
    if stage in ("sft", "rm", "dpo"):
        assert facts.training_args.padding_free and given.training.padding_free is None


@pytest.mark.parametrize(
    ("stage", "flags", "rows", "attention"),
    [
        ("pt", (), (False, True, False), SEGMENTS),
        ("sft", (), (True, True, False), SEGMENTS),
        ("sft", ("--padding_free", "False"), (False, False, False), None),
        ("sft", ("--attn_implementation", "sdpa"), (False, False, False), "sdpa"),
        ("rm", (), (True, True, False), SEGMENTS),
        ("rm", ("--torch_compile",), (False, False, False), None),
        ("dpo", (), (True, True, True), SEGMENTS),
        ("dpo", ("--shared_prompts", "False"), (True, True, False), SEGMENTS),
        ("rl", (), (None, True, True), SEGMENTS),
        ("rl", ("--shared_prompts", "False"), (None, False, False), None),
    ],
)
def test_rows_and_attention(
    tiny_model: Path, stage: str, flags: tuple[str, ...], rows: tuple[bool | None, bool, bool], attention: str | None
) -> None:
    facts = resolve(stage, parsed(stage, tiny_model, *flags))
    args = facts.training_args
    layout = (getattr(args, "padding_free", None), args.flat_batches, bool(getattr(args, "shared_prompts", False)))
    assert layout == rows and facts.build is not None and facts.build.attention == attention


def test_the_config_is_read_once(tiny_model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    read: list[Any] = []
    monkeypatch.setattr(facts_module, "model_config", lambda *args: read.append(args) or original(*args))
    monkeypatch.setattr(facts_module, "skeleton", lambda *args, **more: read.append("model") or made(*args, **more))
    check_run(resolve("sft", parsed("sft", tiny_model, "--use_peft", "--lora_r", "4")))
    assert len(read) == 2 and read[1] == "model"


original, made = facts_module.model_config, facts_module.skeleton


def test_what_cannot_be_decided_is_said_with_all_else(tmp_path: Path) -> None:
    LlamaConfig(num_hidden_layers=1, hidden_size=8, num_attention_heads=2).save_pretrained(tmp_path)
    kernel = ("--attn_implementation", "someone/kernel")
    facts = resolve("sft", parsed("sft", tmp_path, "--padding_free", "True", "--dummy_data", "5", *kernel))
    assert "keep packed documents apart" in str(facts.problems[0]) and facts.config is not None
    with pytest.raises(UserError) as error:
        check_run(facts)
    assert "2 kinds of training data at once" in str(error.value) and "documents apart" in str(error.value)
    (tmp_path / "config.json").write_text("{")
    facts = resolve("sft", parsed("sft", tmp_path))
    assert facts.build is None and facts.skeleton is None and len(facts.problems) == 1


def test_weights_that_cannot_begin_a_run_end_it_at_once(tiny_model: Path) -> None:
    with pytest.raises(UserError, match="there is no folder nowhere"):
        resolve("sft", parsed("sft", tiny_model, "--warm_start", "nowhere"))


def test_layers_are_chosen_before_the_rules(tiny_model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(logging, "_notices", [])
    flags = ("--activation_checkpointing", "auto")
    facts = resolve("sft", parsed("sft", tiny_model, *flags))
    assert not facts.training_args.recomputes_least and not facts.training_args.gradient_checkpointing
    facts = resolve("sft", parsed("sft", "no-such-owner/no-such-model", "--offline", "True", *flags))
    assert facts.training_args.recomputes_least
    assert any("this model is not planned" in said for said in logging.notices())


def imported(module: str, seen: set[str]) -> set[str]:
    """Modules of hftune that one imports at once, however deep."""
    file = ROOT / (module.replace(".", "/") + ".py")
    if module in seen or not file.is_file():
        return seen
    seen.add(module)
    for node in ast.parse(file.read_text()).body:
        if isinstance(node, ast.ImportFrom) and node.module and node.module.startswith("hftune"):
            for name in (node.module, *(f"{node.module}.{alias.name}" for alias in node.names)):
                imported(name, seen)
    return seen


def test_a_stage_does_without_the_rules_of_others() -> None:
    others = {place.partition(":")[0] for place in RULES_OF_STAGE.values()}
    others |= {f"hftune.arguments.{name}" for name in ("rl_algorithms", "preference")}
    needed = imported("hftune.preflight.check_run", set())
    assert "hftune.preflight.facts" in needed and not needed & others
    assert sorted(RULES_OF_STAGE) == ["distill", "dpo", "rl", "rm"]


def folder(path: Path, arguments: Any) -> str:
    path.mkdir()
    (path / "hftune.json").write_text(json.dumps({"tokenizer": {"chat_template_kwargs": arguments}}))
    return str(path)


def taken(base: str, chain: list[str], given: Any = None) -> Any:
    training: Any = SimpleNamespace(chat_template_kwargs=given)
    model: Any = SimpleNamespace(model_name_or_path=base)
    adapter: Any = SimpleNamespace(adapter_chain=chain)
    take_template_arguments(model, adapter, training)
    return training.chat_template_kwargs


def test_arguments_of_the_last_one_trained(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    base, first = folder(tmp_path / "base", {"a": 1}), folder(tmp_path / "first", {"a": 2})
    plain = folder(tmp_path / "plain", {})
    assert taken(base, []) == {"a": 1} and taken(base, [first]) == {"a": 2}
    assert taken(base, [first, plain]) == {"a": 2}
    assert taken(str(tmp_path / "none"), []) is None and taken(plain, []) is None
    capsys.readouterr()
    assert taken(base, [first], {}) == {}  # given, though none
    assert not capsys.readouterr().err


def test_a_tool_takes_them_too(tmp_path: Path) -> None:
    off, other = {"enable_thinking": False}, {"enable_thinking": True}
    trained = folder(tmp_path / "model", {**off, "gone": 1})
    tokenizer = make_tokenizer(template("qwen3"))
    assert arguments_of(give_recorded(tokenizer, trained, None)) == off  # what this template does not read is left out
    assert arguments_of(give_recorded(tokenizer, trained, other)) == other
    assert arguments_of(give_recorded(tokenizer, trained, {})) == {}
    with pytest.raises(UserError):
        give_recorded(tokenizer, folder(tmp_path / "bad", "text"), None)
