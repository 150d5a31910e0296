"""`hftune ask`: the same questions to several models, one after another, for the before and after of `hftune report`.

`answers.json` holds the questions, the answers of each model under the name by which it was asked, and, with a reward
model, the reward of each answer.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from hftune.arguments.asking import AskArguments
from hftune.checkpoints.folder_checks import check_recorded_whole
from hftune.checkpoints.inputs import inputs_of
from hftune.checkpoints.manifest import read_manifest
from hftune.data.counts import Counts, describe_turn_tokens
from hftune.data.formats import describe_unread, take_unread
from hftune.errors import ArgumentError, UserError, raise_together
from hftune.inference.generate import Answerer
from hftune.inference.judging import RewardScorer
from hftune.inference.loading import check_talkers, load_talker
from hftune.inference.questions import Question, asked, question_of, rows_of
from hftune.inference.results import about_result, publish
from hftune.logging import get_logger, notice
from hftune.publishing.folder import published_file
from hftune.publishing.places import FILE, check_place
from hftune.tools.reporting.stages import ANSWERS, ASKED
from hftune.tools.reporting.tables import answer_cards, render_cards, reward_section
from hftune.visible import say, whole

# Of questions that are padded to one length and answered together, with their answers; the KV cache grows with them.
_BATCH_TOKENS = 8192


def ask(args: AskArguments, argv: list[str]) -> dict[str, Any]:
    """Ask every model, score the answers if there is a reward model, print them, and write them into the output folder.

    Args:
        args: What to ask of whom.
        argv: The command line, for the manifest.

    Returns:
        What was written: `questions`, `answers` and `rewards` by model, `max_new_tokens`, `reward_model`.

    Raises:
        ArgumentError: No questions, no models, one that cannot be loaded.
        DataError: A prompt that cannot be read.
    """
    began = time.time()
    raise_together(check_ask(args))
    prompts = list(_prompts(args))
    # Answers are kept by name: a model that is named twice is asked once.
    models = list(dict.fromkeys(args.models or []))
    # One model is in memory at a time, and the reward model comes after all of them.
    said = {name: _answers(name, prompts, args) for name in models}
    found: dict[str, Any] = {"questions": [_shown(prompt) for prompt in prompts], "answers": said}
    found["max_new_tokens"] = args.max_new_tokens
    if args.reward_model_path:
        found["reward_model"] = args.reward_model_path
        found["rewards"] = _rewards(prompts, said, args)
    if args.output_dir:
        _write(Path(args.output_dir), found, args, argv, began)
    rewards = reward_section(found)
    say("\n\n".join([*([rewards.render()] if rewards else []), render_cards(answer_cards(found))]))
    return found


def check_ask(args: AskArguments) -> Iterator[UserError]:
    """Everything that is wrong with the arguments."""
    yield from check_talkers(args.models, "--models", trust_remote_code=args.trust_remote_code)
    yield from check_recorded_whole(args.reward_model_path, "--reward_model_path")
    if not args.questions and not args.question_file:
        yield ArgumentError("there are no questions", place="--questions", fix='--questions "Who are you?"')
    if args.output_dir:
        # Asking again replaces the answers before; asking is cheap, and the questions are in the file.
        folder = Path(args.output_dir)
        read = [path for path in inputs_of(args) if path.is_file()]  # into a model's folder its answers belong
        if _holds_more(folder):
            yield from check_place(folder / ANSWERS, read, kind=FILE, overwrite=True)
        else:
            yield from check_place(folder, read, overwrite=True)


def _holds_more(folder: Path) -> bool:
    """Whether a folder is that of a stage, say, to which the answers are added."""
    if not folder.is_dir() or not any(folder.iterdir()):
        return False
    return (read_manifest(folder) or {}).get("stage") != ASKED


def _prompts(args: AskArguments) -> Iterator[Question]:
    """The questions as conversations that end with a user's turn."""
    for text in args.questions or []:
        # Not Path.is_file, which raises for a question that is too long for a path.
        if os.path.isfile(text):
            yield from _of_file(text, "--questions")
        else:
            yield asked(text, "--questions")
    if args.question_file:
        yield from _of_file(args.question_file, "--question_file")


def _of_file(path: str, flag: str) -> Iterator[Question]:
    """The prompts of a file or folder; each line of a plain text is a question."""
    for row, _ in rows_of(path, flag):
        yield asked(row.value["text"], row.origin) if row.value.keys() == {"text"} else question_of(row)


def _shown(question: Question) -> str:
    """A question as the report shows it: a single one as it is, a conversation with its speakers."""
    turns = question.messages
    return str(turns[0].get("content")) if len(turns) == 1 else question.transcript()


def _answers(name: str, prompts: list[Question], args: AskArguments) -> list[str]:
    """The greedy answers of one model, which is freed afterwards; turn tokens in prompts are counted, or refused."""
    get_logger().info("asking %s", name)
    talker = load_talker(name, args)
    answer = Answerer(talker, args.borders_in_text, _BATCH_TOKENS)
    said = answer(prompts, max_new_tokens=args.max_new_tokens, do_sample=False)
    texts = talker.tokenizer.batch_decode([list(one.ids) for one in said], skip_special_tokens=True)
    counts = Counts(rows=len(prompts))
    counts.note_texts([one.prompt for one in said])
    if counts.bordered:
        notice(describe_turn_tokens(counts, args.borders_in_text))
    for line in describe_unread(take_unread()):
        notice(line)
    return [whole(text).strip() for text in texts]  # at --max_new_tokens an answer ends anywhere


def _rewards(prompts: list[Question], said: dict[str, list[str]], args: AskArguments) -> dict[str, list[float | None]]:
    """The raw reward of each answer, by model; None for an empty one."""
    path = str(args.reward_model_path)
    get_logger().info("scoring the answers with %s", path)
    scorer = RewardScorer(path, args)
    found: dict[str, list[float | None]] = {}
    for name, answers in said.items():
        found[name] = scorer.scores(prompts, [{"role": "assistant", "content": answer} for answer in answers], name)
        if empty := sum(not answer for answer in answers):
            notice(f"{name} has no answer to {empty} of {len(answers)} questions; they have no reward")
    return found


def _write(folder: Path, found: dict[str, Any], args: AskArguments, argv: list[str], began: float) -> None:
    """Write `answers.json`, with a manifest where the folder holds nothing else."""
    text = json.dumps(found, indent=1, ensure_ascii=False) + "\n"
    # A stage's own manifest says how its weights were made; the questions must not replace it.
    if _holds_more(folder):
        with published_file(folder / ANSWERS, flag="--output_dir") as stream:
            stream.write(text)
        return
    about = about_result("ask", args, argv, [*found["answers"], args.reward_model_path], began) | {"stage": ASKED}
    publish(str(folder), {ANSWERS: text.encode("utf-8")}, about, overwrite=True)
