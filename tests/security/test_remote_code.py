"""Code that comes with a model runs by --trust_remote_code alone: in no command, by no answer, from no file else."""

from __future__ import annotations

import ast
import builtins
import io
import json
import shutil
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer

from hftune.arguments.asking import AskArguments, ScoreArguments, ServeArguments
from hftune.arguments.entry import parse_arguments
from hftune.arguments.parser import HftuneParser
from hftune.errors import ArgumentError, UserError, raise_together
from hftune.inference.loading import load_talker
from hftune.merging import model_config, peft_model, skeleton, verify
from hftune.merging.inputs import BaseFolder, Inputs
from hftune.merging.plan import Plan
from hftune.models.loading import config as configs
from hftune.models.loading.causal_lm import load_causal_lm
from hftune.models.loading.from_pretrained import from_config, pretrained
from hftune.models.loading.reward_model import load_reward_model
from hftune.models.loading.tokenizer import load_tokenizer
from hftune.preflight.facts import resolve
from hftune.tools.export import serving
from hftune.trainers.distillation.loading import load_teacher
from hftune.trainers.rewards import loading
from tests.spokes import spokes

pytestmark = pytest.mark.long
ROOT = Path(__file__).parents[2]

EVIL = """
import pathlib
pathlib.Path({flag!r}).touch()
from transformers import LlamaConfig, LlamaForCausalLM, LlamaForSequenceClassification, PreTrainedTokenizerFast
class Config(LlamaConfig):
    model_type = "evil"
class Model(LlamaForCausalLM):
    config_class = Config
class Score(LlamaForSequenceClassification):
    config_class = Config
class Tokenizer(PreTrainedTokenizerFast):
    pass
def generate(model, *args, **given):
    return None
"""
CLASSES = {
    "AutoConfig": "evil.Config",
    "AutoModel": "evil.Model",
    "AutoModelForCausalLM": "evil.Model",
    "AutoModelForSequenceClassification": "evil.Score",
    "AutoModelForTokenClassification": "evil.Score",
    "AutoTokenizer": ["evil.Tokenizer", "evil.Tokenizer"],
    "AutoProcessor": "evil.Tokenizer",
    "AutoImageProcessor": "evil.Tokenizer",
}
KINDS: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "an unknown type": ({"model_type": "evil", "auto_map": CLASSES}, {}),
    "a known type": ({"auto_map": CLASSES}, {}),
    "its tokenizer": ({}, {"auto_map": CLASSES, "tokenizer_class": "Tokenizer"}),
    "all": ({"model_type": "evil", "auto_map": CLASSES}, {"auto_map": CLASSES, "tokenizer_class": "Tokenizer"}),
    "out of its folder": ({"auto_map": dict.fromkeys(CLASSES, "../evil/evil.Config")}, {}),
    "of another repository": (
        {"model_type": "evil", "auto_map": dict.fromkeys(CLASSES, "someone/else--evil.Config")},
        {},
    ),
    "beside generating": ({"custom_generate": "evil"}, {}),
}
NEEDS_CODE = {"an unknown type", "all", "of another repository"}
"""Kinds of which nothing can be loaded without."""


@pytest.fixture
def flag(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """What evil code leaves; somebody answers `y` to everything."""
    flag = tmp_path / "it ran"
    asked: list[Any] = []
    monkeypatch.setattr(builtins, "input", lambda *text: asked.append(text) or "y")
    monkeypatch.setattr(sys, "stdin", io.StringIO("y\n" * 100))
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    monkeypatch.setattr("transformers.dynamic_module_utils.HF_MODULES_CACHE", str(tmp_path / "modules"))
    yield flag
    assert not flag.exists(), "its code has run"
    assert not asked and sys.stdin.tell() == 0, "somebody was asked"


def hostile(tiny_model: Path, tmp_path: Path, flag: Path, kind: str) -> Path:
    folder = tmp_path / "evil"
    shutil.copytree(tiny_model, folder)
    more, of_tokenizer = KINDS[kind]
    for name, changes in (("config.json", more), ("tokenizer_config.json", of_tokenizer)):
        file = folder / name
        file.write_text(json.dumps(json.loads(file.read_text()) | changes))
    for name in ("processor_config.json", "preprocessor_config.json"):
        (folder / name).write_text(json.dumps({"auto_map": CLASSES, "processor_class": "Tokenizer"}))
    code = EVIL.format(flag=str(flag))
    for name in ("evil.py", "modeling_evil.py", "custom_generate/generate.py", "__init__.py"):
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_text(code)
    return folder


def _arguments(stage: str, folder: Path, *more: str) -> Any:
    given = ["--model_name_or_path", str(folder), "--output_dir", "o", "--use_cpu", "True", *more]
    return parse_arguments(stage, given)


def _stage(stage: str, folder: Path) -> Any:
    model_args, _, adapter_args, training_args = _arguments(stage, folder)
    tokenizer = load_tokenizer(model_args, training_args)
    load = load_reward_model if stage == "rm" else load_causal_lm
    return load(model_args, adapter_args, training_args, tokenizer)


def _teacher(folder: Path) -> Any:
    model_args, _, _, training_args = _arguments(
        "distill", Path("student"), "--teacher_model_name_or_path", str(folder)
    )
    return load_teacher(model_args, training_args)


def _config(folder: Path) -> Any:
    model_args, _, _, training_args = _arguments("sft", folder)
    return configs.model_config(model_args, training_args)


def _planned(folder: Path) -> Any:
    facts = resolve("sft", _arguments("sft", folder))
    raise_together(facts.problems)
    return facts.skeleton


def _drawn(folder: Path) -> Any:
    model_args, _, adapter_args, training_args = _arguments("sft", folder, "--from_config")
    return load_causal_lm(model_args, adapter_args, training_args, load_tokenizer(model_args, training_args))


def _plan(folder: Path) -> Any:
    return Plan(Inputs(BaseFolder(str(folder), folder), config={}, levels=[], tokenizer=folder))


def _asked(folder: Path) -> Any:
    (args,) = HftuneParser([AskArguments]).parse(["--models", str(folder), "--questions", "Why?", "--use_cpu", "True"])
    return load_talker(str(folder), args)


LOADERS: dict[str, Callable[[Path], Any]] = {
    **{
        f"run_{stage}.py": lambda folder, stage=stage: _stage(stage, folder)
        for stage in ("pt", "sft", "rm", "dpo", "rl", "distill")
    },
    "a teacher": _teacher,
    "run_sft.py --from_config": _drawn,
    "its config": _config,
    "hftune plan": _planned,
    "the merge's skeleton": lambda folder: skeleton.build_skeleton(folder, trust_remote_code=False),
    "peft's merge": lambda folder: peft_model.load_base(_plan(folder)),
    "a merge's verification": lambda folder: verify.reload_strictly(folder, trust_remote_code=False),
    "an export's comparison": serving.load,
    "its tokenizer": lambda folder: serving.exported_tokenizer(folder, trust_remote_code=False),
    "a pad token": lambda folder: model_config.pad_token_id(folder, trust_remote_code=False),
    "a reward's head": lambda folder: loading.reward_head(str(folder)),
    "a reward model": lambda folder: loading.load_reward_model(str(folder), torch.float32),
    "hftune ask": _asked,
}


@pytest.mark.parametrize(("loader", "kind"), spokes(LOADERS, KINDS))
def test_no_command_runs_it(loader: str, kind: str, tiny_model: Path, tmp_path: Path, flag: Path) -> None:
    folder = hostile(tiny_model, tmp_path, flag, kind)
    try:
        LOADERS[loader](folder)
    except UserError as problem:
        # A reward model that is none is another message, which comes where nothing of its own was needed.
        if "score head" in problem.cause:
            assert kind not in NEEDS_CODE
            return
        assert kind in (*NEEDS_CODE, "its tokenizer")
        place = f"--teacher_model_name_or_path {folder}" if loader == "a teacher" else "--trust_remote_code"
        assert problem.place == place and str(folder) in problem.cause
        assert "--trust_remote_code True" in str(problem.fix)
    else:
        # A tokenizer lies in its own files: of those kinds, nothing of the config is needed for it.
        assert kind not in NEEDS_CODE or "tokenizer" in loader or loader == "a pad token"


@pytest.mark.parametrize("auto", [AutoConfig, AutoTokenizer, AutoModelForCausalLM])
def test_a_library_that_says_nothing_is_not_asked_either(
    auto: Any, tiny_model: Path, tmp_path: Path, flag: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`from_pretrained` without `trust_remote_code`, as some library may call it. Fails when transformers changes."""
    folder = hostile(tiny_model, tmp_path, flag, "all")
    pretrained(AutoTokenizer, tiny_model, trust_remote_code=False)  # from the first load on
    with pytest.raises(ValueError, match="custom code"):
        auto.from_pretrained(folder)


@pytest.mark.parametrize("given", [None, False, 0, ""])
def test_what_is_not_true_is_false(given: Any, tiny_model: Path, tmp_path: Path, flag: Path) -> None:
    folder = hostile(tiny_model, tmp_path, flag, "an unknown type")
    with pytest.raises(ArgumentError, match="--trust_remote_code True"):
        pretrained(AutoConfig, folder, trust_remote_code=given)


def test_with_the_flag_it_runs(tiny_model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The folders above do hold what would run."""
    flag = tmp_path / "it ran"
    monkeypatch.setattr("transformers.dynamic_module_utils.HF_MODULES_CACHE", str(tmp_path / "modules"))
    monkeypatch.setattr(sys, "path", list(sys.path))
    folder = hostile(tiny_model, tmp_path, flag, "an unknown type")
    config = pretrained(AutoConfig, folder, trust_remote_code=True)
    assert flag.is_file() and config.model_type == "evil"
    flag.unlink()
    with pytest.raises(ArgumentError, match="--trust_remote_code True"):
        from_config(AutoModelForCausalLM, config, trust_remote_code=False)


def test_every_command_that_loads_has_the_flag() -> None:
    for command in (AskArguments, ScoreArguments, ServeArguments):
        (args,) = HftuneParser([command]).parse(["--trust_remote_code", "True"])
        assert args.trust_remote_code is True
        (args,) = HftuneParser([command]).parse([])
        assert args.trust_remote_code is False


# --- everything goes through the one file ---

CODELESS = {"GenerationConfig", "PeftConfig", "PeftModel", "type(model)", "type(bare)"}
"""Classes that run no code of a folder's: of a model that is there already, its code has been asked for before."""


def loads(source: str) -> list[int]:
    """Lines that load without saying whether code may run."""
    found = []
    for node in ast.walk(ast.parse(source)):
        if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Attribute):
            continue
        if node.func.attr not in ("from_pretrained", "from_config") or ast.unparse(node.func.value) in CODELESS:
            continue
        said = {keyword.arg: keyword.value for keyword in node.keywords}.get("trust_remote_code")
        if said is None or (isinstance(said, ast.Constant) and said.value is not False):
            found.append(node.lineno)
    return found


def _sources(*words: str) -> list[Path]:
    """Files with one of these words: of the others nothing has to be parsed."""
    files = [*(ROOT / "hftune").rglob("*.py"), *ROOT.glob("*.py"), *(ROOT / "examples").rglob("*.py")]
    return [file for file in files if any(word in file.read_text() for word in words)]


def test_nothing_is_loaded_another_way() -> None:
    assert not {
        str(file): lines for file in _sources("from_pretrained", "from_config") if (lines := loads(file.read_text()))
    }
    direct = [
        str(file.relative_to(ROOT))
        for file in _sources("from_pretrained", "from_config")
        if file.is_relative_to(ROOT / "hftune")
        for node in ast.walk(ast.parse(file.read_text()))
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute)
        if node.func.attr in ("from_pretrained", "from_config") and ast.unparse(node.func.value) not in CODELESS
    ]
    assert {*direct} == {"hftune/models/loading/from_pretrained.py", "hftune/models/loading/whole.py"}


def test_nobody_reads_an_answer_from_the_standard_input() -> None:
    asking = [
        str(file)
        for file in _sources("input", "readline", "getpass")
        for node in ast.walk(ast.parse(file.read_text()))
        if isinstance(node, ast.Call) and ast.unparse(node.func) in ("input", "sys.stdin.readline", "getpass.getpass")
    ]
    # Whom `hftune chat` talks with: no permission to run code.
    assert asking == [str(ROOT / "hftune" / "tools" / "chatting" / "chat.py")]
