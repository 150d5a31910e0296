"""Which encoder a run has, and what cannot be done with a teacher of another tokenizer."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from hftune.arguments.model import ModelArguments
from hftune.data.tokenizing.taught_chats import TaughtChatEncoder
from hftune.errors import ArgumentError
from hftune.trainers.distillation.other_tokenizer import taught_encoder
from tests.conftest import tiny_tokenizer
from tests.unit.data.templates.turn_token_families import family_tokenizer

_FLAGS = {"max_length": 32, "train_on_inputs": False, "train_on_last_turn": False, "turn_weights": False}
_FLAGS |= {"borders_in_text": "split", "empty_thoughts": "mask", "rewritten_turns": "split", "packing": False}
_FLAGS |= {"teacher_model_revision": None, "teacher_dtype": "auto", "trust_remote_code": False}
_FLAGS |= {"teacher_load_in_4bit": False, "teacher_load_in_8bit": False}


def _encoder(*teachers: Path, **given: Any) -> Any:
    data = {"streaming": False, "tokenized_dir": None}
    args: Any = SimpleNamespace(
        **_FLAGS | {"teachers": [str(one) for one in teachers], "teacher_server_url": None} | given
    )
    data_args: Any = SimpleNamespace(**{name: given.get(name, value) for name, value in data.items()})
    return taught_encoder(tiny_tokenizer(), ModelArguments(), data_args, args)


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    made = {"same": tiny_tokenizer(), "other": family_tokenizer("mistral", "pieces")}
    found = {name: tmp_path_factory.mktemp(name) for name in (*made, "none")}
    for name, tokenizer in made.items():
        tokenizer.save_pretrained(found[name])
    return found


def test_the_encoder_fits_the_teacher(folders: dict[str, Path]) -> None:
    assert type(_encoder(folders["other"])) is TaughtChatEncoder
    for name in ("same", "none"):
        assert type(_encoder(folders[name], packing=True)) is not TaughtChatEncoder


@pytest.mark.parametrize("given", [{"packing": True}, {"streaming": True}, {"tokenized_dir": "x"}])
def test_what_cannot_be_aligned_is_refused(folders: dict[str, Path], given: dict[str, Any]) -> None:
    with pytest.raises(ArgumentError, match="another tokenizer") as found:
        _encoder(folders["other"], **given)
    assert found.value.place == f"--{next(iter(given))}" and found.value.fix


def test_several_teachers_are_refused(folders: dict[str, Path]) -> None:
    with pytest.raises(ArgumentError, match="another tokenizer") as found:
        _encoder(folders["same"], folders["other"])
    assert found.value.place == "--teacher_model_name_or_path"
