"""Several turns with tools: a call in an answer is run, its result read, and the answer goes on."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest
import trl
from transformers import AutoConfig, AutoTokenizer

from hftune.arguments.entry import parse_arguments
from hftune.errors import UserError
from hftune.trainers.online.tools import load_tools
from tests.unit.trainers.rl_runs import PROMPTS, logged, make_trainer

HERE = "tests.unit.trainers.online.test_tools"
SMALL = ("--per_device_train_batch_size", "4", "--num_generations", "2", "--max_completion_length", "200")
called: list[tuple[int, int]] = []


def multiply(a: int, b: int) -> int:
    """Multiplies two numbers.

    Args:
        a: The first one.
        b: The second one.
    """
    called.append((a, b))
    return a * b


def undescribed(a, b):
    return a * b


@pytest.fixture(scope="module")
def calling_model(tiny_model: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The tiny model with the chat template of Qwen3, which shows tools."""
    folder = tmp_path_factory.mktemp("calling") / "model"
    shutil.copytree(tiny_model, folder)
    tokenizer: Any = AutoTokenizer.from_pretrained(folder)
    template = Path(trl.__file__).parent / "chat_templates" / "qwen3.jinja"
    tokenizer.chat_template = template.read_text(encoding="utf-8")
    tokenizer.save_pretrained(folder)
    config: Any = AutoConfig.from_pretrained(folder)
    config.max_position_embeddings = 2048  # a prompt with tools is long, a letter a token
    config.save_pretrained(folder)
    return folder


def tools_of(model: Path, *names: str, algorithm: str = "grpo") -> list[Any]:
    argv = ["--model_name_or_path", str(model), "--output_dir", "o", "--rl_algorithm", algorithm]
    argv += ["--tools", *names] if names else []
    return load_tools(parse_arguments("rl", argv)[3], AutoTokenizer.from_pretrained(model))


def test_what_is_loaded(calling_model: Path) -> None:
    assert [tool.__name__ for tool in tools_of(calling_model, f"{HERE}:multiply")] == ["multiply"]
    assert tools_of(calling_model) == [] == tools_of(calling_model, algorithm="ppo")


@pytest.mark.parametrize(
    ("template", "name", "part"),
    [
        (True, f"{HERE}:nobody", "cannot be loaded"),
        (True, "multiply", "names no function"),
        (True, f"{HERE}:undescribed", "nobody can know how to call undescribed"),
        (False, f"{HERE}:multiply", "shows no tools"),
    ],
)
def test_what_cannot_be_called_is_refused(
    tiny_model: Path, calling_model: Path, template: bool, name: str, part: str
) -> None:
    with pytest.raises(UserError, match=part) as error:
        tools_of(calling_model if template else tiny_model, name)
    assert "--tools" in str(error.value)


def test_an_answer_with_a_call_goes_on_with_its_result(calling_model: Path, tmp_path: Path) -> None:
    """The policy's words are scripted: all but the first answer call the tool, then say what it said. All else runs."""
    seen: list[str] = []

    def right(completions: list[Any], **_: Any) -> list[float]:
        seen.extend(completion[-1]["content"] for completion in completions)
        return [float("42" in completion[-1]["content"]) for completion in completions]

    tools = tools_of(calling_model, f"{HERE}:multiply")
    flags = (*SMALL, "--max_steps", "1", "--max_tool_calling_iterations", "2")
    trainer = make_trainer(calling_model, tmp_path, "grpo", right, *flags, tools=tools)
    tokenizer = trainer.processing_class
    call = '<tool_call>\n{"name": "multiply", "arguments": {"a": 6, "b": 7}}\n</tool_call><|im_end|>'
    turns: list[list[str]] = []

    def scripted(prompt_ids: list[list[int]], *_: Any, **__: Any) -> tuple[list[list[int]], None]:
        turns.append(tokenizer.batch_decode(prompt_ids))
        first = len(turns) == 1
        said = ["I do not know.<|im_end|>", *[call] * (len(prompt_ids) - 1)] if first else ["It is 42.<|im_end|>"] * 9
        return [tokenizer(text)["input_ids"] for text in said[: len(prompt_ids)]], None

    trainer._generate_single_turn = scripted
    kept: list[dict[str, Any]] = []
    plain = trainer._generate_and_score_completions
    trainer._generate_and_score_completions = lambda inputs: kept.append(plain(inputs)) or kept[-1]
    called.clear()
    trainer.train()

    assert called == [(6, 7)] * 3
    assert len(turns) == 2 and len(turns[1]) == 3, "who called goes on, who answered does not"
    assert "multiply" in turns[0][0], "the prompt shows the tool"
    assert all("<tool_response>\n42\n</tool_response>" in text for text in turns[1])
    assert seen == ["I do not know.", "It is 42.", "It is 42.", "It is 42."]
    batch = kept[0]
    own, others = (batch["completion_mask"].bool() & (batch["tool_mask"] == sort) for sort in (1, 0))
    assert "tool_response" not in "".join(tokenizer.batch_decode(batch["completion_ids"][own]))
    assert "tool_response" in tokenizer.decode(batch["completion_ids"][1][others[1]]), "read, and not trained on"
    assert not others[0].any()
    assert batch["num_items_in_batch"].item() == own.sum().item()
    assert logged(trainer, "tools/call_frequency") == [0.75]
    assert logged(trainer, "tools/failure_frequency") == [0.0]
    assert logged(trainer, "grad_norm")[0] > 0
    text = (tmp_path / "completions.jsonl").read_text(encoding="utf-8")
    assert '"tool_calls"' in text and '"I do not know."' in text
    assert any(prompt in text for prompt in PROMPTS)
