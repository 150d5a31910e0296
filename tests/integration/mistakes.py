"""Mistakes of newcomers, each with what its message must say and how it is followed. `test_mistakes.py` makes them.

A command is a list of words in which `{name}` stands for a folder or file of `Places`. What a row takes out of the
message (`follow`) is all that changes between the command that is refused and the one that must work.
"""

from __future__ import annotations

import difflib
import json
import re
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path

Words = list[str]
Follow = Callable[[str, Words, Path], Words]
"""The way out as text, the words of the command, and the folder of the case: the words of the next command."""

CHAT = {"messages": [{"role": "user", "content": "What is 2 plus 3?"}, {"role": "assistant", "content": "5"}]}
CALL = {
    "conversations": [
        {"from": "human", "value": "What is 2 plus 3?"},
        {"from": "function_call", "value": '{"name": "add", "arguments": {"a": 2, "b": "3"}}'},
        {"from": "observation", "value": "5"},
        {"from": "gpt", "value": "5"},
    ],
    "tools": '[{"name": "add", "parameters": {"type": "object"}}]',
}


@dataclass(frozen=True)
class Mistake:
    """One row.

    Attributes:
        name: What was done wrong.
        words: The script and its arguments; "run_sft" alone is completed with a model, data and an output folder.
        says: Parts of the message: of cause and place.
        follow: Makes the command that the message proposes.
        files: Files of the case, by name, as texts.
        until: How far it goes: "parse", command line and files of settings; "check", what is looked at before anything
            is loaded; "run", the whole script by fork, which trains a step once it is fixed.
    """

    name: str
    words: str
    says: tuple[str, ...]
    follow: Follow
    files: dict[str, str] | None = None
    until: str = "run"


# --- ways to follow -----------------------------------------------------------------------------------------------


def meant(fix: str, words: Words, case: Path) -> Words:
    """Put what stands behind "did you mean" in the place of the word that is most like it, or of its flag's value."""
    found = re.search(r"did you mean (.+?)\?(?: |$)", fix)
    assert found, fix
    said = found[1].strip('"').split()
    if len(said) == 2:  # a flag with its value
        return with_flag(words, said[0], said[1])
    (like,) = difflib.get_close_matches(said[0], [word for word in words if word != said[0]], 1)
    return [said[0] if word == like else word for word in words]


def added(fix: str, words: Words, case: Path) -> Words:
    """Give the flags that the message writes out first, with their values: up to a comma or a word of the sentence."""
    found = re.search(r"(?i:add|write|give|needs|with|it:) (--.*)", fix)
    assert found, fix
    said: Words = []
    for word in found[1].split():
        if word.startswith("(") or word in ("to", "in", "or", "for"):
            break
        said.append(word.rstrip(";,."))
        if said[-1] != word:
            break
    starts = [place for place, word in enumerate(said) if word.startswith("--")]
    for start, end in zip(starts, [*starts[1:], len(said)], strict=True):
        words = with_flag(words, said[start], *said[start + 1 : end])
    return words


def given(flag: str, value: str, pattern: str) -> Follow:
    """Give a value of one's own where the message asks for one in these words."""

    def follow(fix: str, words: Words, case: Path) -> Words:
        assert re.search(pattern, fix), fix
        return with_flag(words, flag, *value.split())

    return follow


def taken(flag: str, pattern: str, *, without_flag: str = "") -> Follow:
    """Give the value that the message names, in the first group of the pattern."""

    def follow(fix: str, words: Words, case: Path) -> Words:
        found = re.search(pattern, fix)
        assert found, fix
        return with_flag(without(words, without_flag) if without_flag else words, flag, found[1])

    return follow


def edited(pattern: str, change: Callable[[Path, re.Match[str]], None]) -> Follow:
    """Change a file of the case as the message says; the command stays."""

    def follow(fix: str, words: Words, case: Path) -> Words:
        found = re.search(pattern, fix)
        assert found, fix
        change(case, found)
        return words

    return follow


def renamed(fix: str, words: Words, case: Path) -> Words:
    """Give the data file the ending that the message says."""
    found = re.search(r"let its name end in (\.\w+)\.", fix)
    assert found, fix
    (case / "data.jsonl").rename(case / f"data{found[1]}")
    return [word.replace(".jsonl", found[1]) for word in words]


def other_script(fix: str, words: Words, case: Path) -> Words:
    """Use the script that the message names."""
    found = re.findall(r"run_(\w+)\.py", fix)
    assert found, fix
    return [f"run_{found[-1] if words[0] == 'run_sft' else found[0]}", *words[1:]]


def with_flag(words: Words, flag: str, *values: str) -> Words:
    """The command with a flag, in the place of the same one."""
    return [*without(words, flag), flag, *values]


def without(words: Words, flag: str) -> Words:
    """The command without a flag and its values."""
    if flag not in words:
        return words
    start = words.index(flag)
    end = next((place for place in range(start + 1, len(words)) if words[place].startswith("--")), len(words))
    return [*words[:start], *words[end:]]


# --- what is changed in files -------------------------------------------------------------------------------------


def _replace(name: str, old: str, new: str) -> Callable[[Path, re.Match[str]], None]:
    def change(case: Path, found: re.Match[str]) -> None:
        text = (case / name).read_text()
        assert old in text
        (case / name).write_text(text.replace(old, found.expand(new)))

    return change


def _move(old: str, new: str) -> Callable[[Path, re.Match[str]], None]:
    return lambda case, found: (case / old).rename(case / new)


def _lines(*records: object, times: int = 4) -> str:
    return "".join(json.dumps(record) + "\n" for record in records) * times


def copy_without(source: Path, target: Path, *names: str) -> None:
    """A model folder without some of its files."""
    shutil.copytree(source, target, ignore=shutil.ignore_patterns(*names))


_parsed, _checked = partial(Mistake, until="parse"), partial(Mistake, until="check")

RL = "--reward_funcs format --num_generations 2 --per_device_train_batch_size 2 --max_completion_length 4"
WRONG_KEYS = _lines({"questoin": "What is 2 plus 3?", "anser": "5"})
BROKEN = _lines(CHAT) + '{"messages": [{"role": "user", "content": "a"\n'

MISTAKES = [
    # --- paths and names
    _checked("a model folder is misspelt", "run_sft --model_name_or_path {model}x", ("no folder {model}x",), meant),
    _checked(
        "a name that is neither a folder nor in the cache",
        "run_sft --model_name_or_path outputs/sft",
        ("there is no folder outputs/sft here", "the Hub is not asked"),
        given("--model_name_or_path", "{model}", "give the path of a folder"),
    ),
    _checked(
        "a file is given where a model folder is meant",
        "run_sft --model_name_or_path {model}/model.safetensors",
        ("is a file, where a folder is read",),
        taken("--model_name_or_path", r"its folder: (\S+)"),
    ),
    _checked(
        "a folder above the model is given",
        "run_sft --model_name_or_path {above}",
        ("{above} has no config.json",),
        taken("--model_name_or_path", r"give (\S+)"),
    ),
    Mistake(
        "a model without a tokenizer",
        "run_sft --model_name_or_path {no_tokenizer}",
        ("holds no tokenizer",),
        given("--tokenizer_name_or_path", "{model}", "add --tokenizer_name_or_path with the folder"),
    ),
    Mistake(
        "the tokenizer of another model",
        "run_sft --tokenizer_name_or_path {other_tokenizer}",
        ("281 embeddings", "--tokenizer_name_or_path"),
        given("--tokenizer_name_or_path", "{model}", "use the tokenizer that belongs to the model"),
    ),
    # --- which model is which
    _checked(
        "an adapter is given as a model",
        "run_sft --model_name_or_path {adapter}",
        ("{adapter} holds a LoRA adapter, not a model",),
        lambda fix, words, case: added(fix[fix.index("continue it") :], words, case),
    ),
    _checked(
        "an adapter on another base",
        "run_sft --model_name_or_path {other_model} --peft_path {adapter}",
        ("was trained on other weights",),
        taken("--model_name_or_path", r"use the base it was trained on: (\S+)"),
    ),
    _checked(
        "a reward model is fine-tuned", "run_sft --model_name_or_path {reward}", ("{reward} is a reward model",), added
    ),
    Mistake(
        "a language model as a reward model",
        f"run_rl {RL} --reward_model_path {{model}}",
        ("{model} has no score head", "--reward_model_path"),
        given("--reward_model_path", "{reward}", "give the output folder of run_rm.py"),
    ),
    # --- data
    Mistake(
        "other keys",
        "run_sft --train_file_dir {case}/data.jsonl",
        ("anser, questoin", "data.jsonl:1"),
        given("--columns", "question=questoin answer=anser", "--columns OURS=YOURS renames a column"),
        {"data.jsonl": WRONG_KEYS},
    ),
    Mistake(
        "an array in a file of lines",
        "run_sft --train_file_dir {case}/data.jsonl",
        ("data.jsonl:1",),
        renamed,
        {"data.jsonl": json.dumps([CHAT] * 4, indent=1)},
    ),
    Mistake(
        "a line that was cut",
        "run_sft --train_file_dir {case}/data.jsonl",
        ("data.jsonl:5",),
        added,
        {"data.jsonl": BROKEN},
    ),
    _checked(
        "nothing that is read",
        "run_sft --train_file_dir {case}",
        ("found data.dat",),
        edited(r"\.jsonl", _move("data.dat", "data.jsonl")),
        {"data.dat": _lines(CHAT)},
    ),
    Mistake("pairs are given to SFT", "run_sft --train_file_dir {data}/pairs", ("chosen", "jsonl:1"), other_script),
    Mistake("conversations are given to DPO", "run_dpo --train_file_dir {data}/sft", ("messages",), other_script),
    # --- templates
    Mistake(
        "the name of a template is misspelt",
        "run_sft --chat_template chatlm",
        ("there is no file and no chat template 'chatlm'", "--chat_template"),
        taken("--chat_template", r"did you mean (\S+)\?"),
    ),
    Mistake(
        "a template without tools",
        "run_sft --train_file_dir {case}/data.jsonl",
        ("drops the function call of turn 2", "data.jsonl:1"),
        given("--chat_template", "qwen3", "give a template that writes them"),
        {"data.jsonl": _lines(CALL)},
    ),
    Mistake("a base model without a template", "run_sft --model_name_or_path {bare}", ("no chat template",), added),
    # --- RL
    _checked(
        "RL without a reward",
        "run_rl --train_file_dir {answers} --num_generations 2 --per_device_train_batch_size 2 "
        "--max_completion_length 4",
        ("RL needs a reward", "--reward_funcs"),
        added,
    ),
    Mistake(
        "accuracy without right answers",
        f"run_rl {RL} --reward_funcs accuracy --train_file_dir {{case}}/data.jsonl",
        ("no record has a right answer",),
        edited(r'"answer"', _replace("data.jsonl", "?", '?", "answer": "5')),
        {"data.jsonl": _lines({"prompt": "What is 2 plus 3?"})},
    ),
    _checked(
        "groups that do not fit into a batch",
        "run_rl --reward_funcs format --max_completion_length 4 --num_generations 4 --per_device_train_batch_size 3",
        ("generation_batch_size (3)", "--num_generations"),
        given("--per_device_train_batch_size", "4", "be a multiple of --num_generations"),
    ),
    Mistake(
        "more answers a step than prompts",
        f"run_rl {RL} --per_device_train_batch_size 64",
        ("20 prompts, and a batch of answers is drawn for 32",),
        given("--per_device_train_batch_size", "2", "lower one of them"),
    ),
    # --- methods and machines
    _checked(
        "a quantised model in full", "run_sft --load_in_4bit", ("a quantised model cannot be trained in full",), added
    ),
    _checked(
        "LoRA on modules of another family",
        "run_sft --use_peft --lora_target_modules c_attn",
        ("the model has no module c_attn", "--lora_target_modules"),
        taken("--lora_target_modules", r"use (all)"),
    ),
    # --- output and resuming
    _checked(
        "a finished run is in the output folder",
        "run_sft --output_dir {adapter_copy}",
        ("{adapter_copy} already holds a finished run", "--output_dir"),
        added,
    ),
    _checked(
        "an output folder is resumed from",
        "run_sft --use_peft --max_steps 2 --resume_from_checkpoint {adapter}",
        ("{adapter} is an output folder, not a checkpoint", "--resume_from_checkpoint"),
        taken("--resume_from_checkpoint", r"--resume_from_checkpoint (\S+);"),
    ),
    # --- the command line
    _parsed("a flag is misspelt", "run_sft --learning_rat 1e-4", ("--learning_rat", "command line"), meant),
    Mistake(
        "checkpoints between evaluations",
        "run_sft --load_best_model_at_end --save_strategy steps --eval_strategy steps --eval_steps 3 --save_steps 4",
        ("found 4, which is not a round multiple of 3", "--load_best_model_at_end"),
        given("--save_steps", "6", "be a multiple of --eval_steps"),
        until="parse",
    ),
]
