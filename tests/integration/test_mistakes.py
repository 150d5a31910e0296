"""Common mistakes: each message names place, cause and a way out that works when it is followed.

The rows are in `mistakes.py`. What is found before anything is loaded is looked for in this process; all other rows run
the real script, by fork, and train one step when they were fixed.
"""

from __future__ import annotations

import re
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from hftune.arguments.entry import parse_arguments
from hftune.errors import UserError
from hftune.preflight.check_run import check_run
from hftune.preflight.facts import resolve
from tests.conftest import CHATS, Finished, _write_jsonl, tiny_tokenizer
from tests.integration.mistakes import MISTAKES, Mistake, Words, copy_without

pytestmark = pytest.mark.long

DATA = {"run_pt": "pt", "run_sft": "sft", "run_dpo": "pairs", "run_rm": "pairs", "run_rl": "prompts"}
SHORT = ["--save_strategy", "no", "--per_device_train_batch_size", "4", "--max_steps", "1", "--report_to", "none"]
MESSAGE = re.compile(r"(?P<cause>.*)\n  where: (?P<place>.*)\n  to do: (?P<fix>.*)", re.DOTALL)


@pytest.fixture(scope="module")
def places(
    run: Callable[..., Finished], tiny_model: Path, tiny_data: Path, tmp_path_factory: pytest.TempPathFactory
) -> dict[str, str]:
    """What stands for `{name}` in a row: models, an adapter with a checkpoint, a reward model, data."""
    folder = tmp_path_factory.mktemp("mistakes")
    models = folder / "models"
    copy_without(tiny_model, models / "tiny-llama")
    copy_without(tiny_model, folder / "no_tokenizer", "tokenizer*", "chat_template.jinja")
    copy_without(tiny_model, folder / "bare", "chat_template.jinja")
    copy_without(tiny_model, folder / "other_model", "model.safetensors")
    _write_other_weights(tiny_model, folder / "other_model")
    tokenizer = tiny_tokenizer()
    tokenizer.add_tokens([f"<extra {number}>" for number in range(50)])
    tokenizer.save_pretrained(folder / "other_tokenizer")
    answers = [{"prompt": chat["messages"][0]["content"], "answer": "5"} for chat in CHATS]
    _write_jsonl(folder / "answers" / "data.jsonl", answers)
    found = {
        **{name: str(folder / name) for name in ("no_tokenizer", "bare", "other_model", "other_tokenizer", "answers")},
        **{"model": str(models / "tiny-llama"), "above": str(models), "data": str(tiny_data)},
        **{"adapter": str(folder / "adapter"), "reward": str(folder / "reward")},
        "adapter_copy": str(folder / "adapter_copy"),
    }
    _run(run, complete(["run_sft", "--use_peft", "--save_strategy", "steps"], found, folder / "adapter")).check()
    _run(run, complete(["run_rm"], found, folder / "reward")).check()
    shutil.copytree(folder / "adapter", folder / "adapter_copy")
    return found


def _write_other_weights(source: Path, target: Path) -> None:
    from safetensors.torch import load_file, save_file

    weights = {name: tensor + 0.01 for name, tensor in load_file(source / "model.safetensors").items()}
    save_file(weights, target / "model.safetensors", metadata={"format": "pt"})


def complete(words: Words, places: dict[str, str], out: Path) -> Words:
    """The command with a model, data, an output folder and one step, where it does not say otherwise."""
    defaults = {
        "--model_name_or_path": [places["model"]],
        "--train_file_dir": [f"{places['data']}/{DATA[words[0]]}"],
        "--output_dir": [str(out)],
    } | {flag: [value] for flag, value in zip(SHORT[::2], SHORT[1::2], strict=True)}
    more = [word for flag, values in defaults.items() if flag not in words for word in (flag, *values)]
    return [*words, *more]


def _run(run: Callable[..., Finished], words: Words) -> Finished:
    return run(f"{words[0]}.py", *words[1:], warm=True)


def attempt(run: Callable[..., Finished], mistake: Mistake, words: Words, places: dict[str, str], out: Path) -> str:
    """The message of a command; empty where it works."""
    if mistake.until != "run":
        try:
            stage = words[0].removeprefix("run_")
            arguments = parse_arguments(stage, complete(words, places, out)[1:])
            if mistake.until == "check":
                check_run(resolve(stage, arguments))
        except UserError as error:
            return error.render()
        return ""
    finished = _run(run, complete(words, places, out))
    if finished.code == 0:
        return ""
    assert finished.code == 2, finished.output[-3000:]
    assert "Traceback" not in finished.output
    assert finished.output.count("error:") == 1
    return finished.output.partition("error: ")[2].strip()


@pytest.mark.parametrize("mistake", MISTAKES, ids=lambda mistake: mistake.name)
def test_the_way_out_works(
    mistake: Mistake, run: Callable[..., Finished], places: dict[str, str], tmp_path: Path
) -> None:
    known = places | {"case": str(tmp_path / "case"), "out": str(tmp_path / "out")}
    (tmp_path / "case").mkdir()
    for name, text in (mistake.files or {}).items():
        (tmp_path / "case" / name).write_text(_filled(text, known))
    words = [_filled(word, known) for word in mistake.words.split()]

    said = attempt(run, mistake, words, places, tmp_path / "out")
    parts = MESSAGE.fullmatch(said)
    assert parts, said or "it works"
    for part in mistake.says:
        assert _filled(part, known) in parts["cause"] + parts["place"], said

    followed = mistake.follow(parts["fix"], words, tmp_path / "case")
    words = [_filled(word, known) for word in followed]
    again = attempt(run, mistake, words, places, tmp_path / "out")
    assert again == "", f"{said}\n\nfollowed: {' '.join(words)}\n\n{again}"


def _filled(text: str, places: dict[str, str]) -> str:
    for name, place in places.items():
        text = text.replace(f"{{{name}}}", place)
    return text
