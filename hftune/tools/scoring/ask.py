"""`hftune ask`: the same questions to several models, one after another, for the before and after of `hftune report`.

`answers.json` holds the questions, the answers of each model under the name by which it was asked, and, with a reward
model, the reward of each answer.
"""

from __future__ import annotations

import gc
import json
import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from hftune.arguments.asking import AskArguments
from hftune.checkpoints import manifest as manifests
from hftune.checkpoints.folder_checks import check_recorded_whole
from hftune.checkpoints.inputs import inputs_of, record_inputs
from hftune.data.counts import Counts, describe_turn_tokens
from hftune.data.formats import describe_unread, take_unread
from hftune.data.messages import Message
from hftune.data.readers.files import chunks, find_files
from hftune.data.records import Prompt, to_prompt
from hftune.digests import record_files
from hftune.errors import ArgumentError, DataError, UserError, raise_together
from hftune.logging import get_logger, notice, notices
from hftune.publishing.disk import disk_errors, write_file
from hftune.publishing.files import published_file
from hftune.publishing.places import FILE, check_place
from hftune.publishing.result_files import begin_result, complete_result, finish_result
from hftune.secrets import command_without_secrets, without_secrets
from hftune.tools.reporting.stages import ANSWERS, ASKED
from hftune.tools.talking.answering import Answerer, Question
from hftune.tools.talking.loading import check_talker, load_talker
from hftune.trainers.result import lock_output, unlock_output
from hftune.trainers.rewards.answer_scorer import AnswerScorer
from hftune.visible import whole
from hftune.weight_files import fingerprint

# Of questions that are padded to one length and answered together, with their answers; the KV cache grows with them.
_BATCH_TOKENS = 8192


def ask(args: AskArguments, argv: list[str]) -> dict[str, Any]:
    """Ask every model, score the answers if there is a reward model, and write `answers.json` into the output folder.

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
    if args.output_dir:
        complete_result(Path(args.output_dir))
    raise_together(check_ask(args))
    prompts = list(_prompts(args))
    # Answers are kept by name: a model that is named twice is asked once.
    models = list(dict.fromkeys(args.models or []))
    # One model is in memory at a time, and the reward model comes after all of them.
    said = {name: _answers(name, prompts, args) for name in models}
    found: dict[str, Any] = {"questions": [_shown(prompt.messages) for prompt in prompts], "answers": said}
    found["max_new_tokens"] = args.max_new_tokens
    if args.reward_model_path:
        found["reward_model"] = args.reward_model_path
        found["rewards"] = _rewards(prompts, said, args)
    if args.output_dir:
        _write(Path(args.output_dir), found, args, argv, began)
    return found


def check_ask(args: AskArguments) -> Iterator[UserError]:
    """Everything that is wrong with the arguments."""
    if not args.models:
        yield ArgumentError("no model was named", place="--models", fix="hftune ask --models BASE outputs/sft-merged")
    for name in args.models or []:
        fix = "give language models; --reward_model_path scores their answers"
        yield from check_talker(name, "--models", fix, trust_remote_code=args.trust_remote_code)
    yield from check_recorded_whole(args.reward_model_path, "--reward_model_path")
    if not args.questions and not args.question_file:
        yield ArgumentError("there are no questions", place="--questions", fix='--questions "Who are you?"')
    if args.output_dir:
        # Asking again replaces the answers before; asking is cheap, and the questions are in the file.
        file = Path(args.output_dir) / ANSWERS
        read = [path for path in inputs_of(args) if path.is_file()]  # into a model's folder its answers belong
        yield from check_place(file, read, kind=FILE, overwrite=True)


def _prompts(args: AskArguments) -> Iterator[Prompt]:
    """The questions as conversations that end with a user's turn."""
    for text in args.questions or []:
        # Not Path.is_file, which raises for a question that is too long for a path.
        if os.path.isfile(text):
            yield from _of_file(text, "--questions")
        else:
            yield Prompt([{"role": "user", "content": text}], origin="--questions")
    if args.question_file:
        yield from _of_file(args.question_file, "--question_file")


def _of_file(path: str, flag: str) -> Iterator[Prompt]:
    """The prompts of a file or folder; each line of a plain text is a question."""
    for chunk in chunks(find_files(path, flag)):
        for row in chunk.rows():
            if isinstance(row, DataError):
                raise row
            if row.value.keys() == {"text"}:
                yield Prompt([{"role": "user", "content": row.value["text"]}], origin=row.origin)
            else:
                yield to_prompt(row)


def _shown(prompt: list[Message]) -> str:
    """A prompt as the report shows it: a single question as it is, a conversation with its speakers."""
    if len(prompt) == 1:
        return str(prompt[0].get("content"))
    return "\n".join(f"{turn['role']}: {turn.get('content')}" for turn in prompt)


def _answers(name: str, prompts: list[Prompt], args: AskArguments) -> list[str]:
    """The greedy answers of one model, which is freed afterwards; turn tokens in prompts are counted, or refused."""
    get_logger().info("asking %s", name)
    talker = load_talker(name, args)
    answer = Answerer(talker, args.borders_in_text, _BATCH_TOKENS)
    questions = [Question(one.messages, arguments=one.template_arguments, origin=one.origin) for one in prompts]
    said = answer.said(questions, max_new_tokens=args.max_new_tokens, do_sample=False)
    texts = talker.tokenizer.batch_decode([ids for _, ids in said], skip_special_tokens=True)
    counts = Counts(rows=len(prompts))
    counts.note_texts([prompt for prompt, _ in said])
    if counts.bordered:
        notice(describe_turn_tokens(counts, args.borders_in_text))
    for line in describe_unread(take_unread()):
        notice(line)
    # Models have reference cycles: only a collection frees the memory before the next one is loaded.
    del talker, answer
    gc.collect()
    return [whole(text).strip() for text in texts]  # at --max_new_tokens an answer ends anywhere


def _rewards(prompts: list[Prompt], said: dict[str, list[str]], args: AskArguments) -> dict[str, list[float | None]]:
    """The raw reward of each answer, by model; None for an empty one."""
    path = str(args.reward_model_path)
    get_logger().info("scoring the answers with %s", path)
    scorer = AnswerScorer(
        path,
        use_cpu=args.use_cpu,
        trust_remote_code=args.trust_remote_code,
        borders_in_text=args.borders_in_text,
    )
    found: dict[str, list[float | None]] = {}
    for name, answers in said.items():
        pairs = zip(prompts, answers, strict=True)
        conversations = [[*prompt.messages, {"role": "assistant", "content": answer}] for prompt, answer in pairs]
        found[name] = scorer(conversations, name)
        if empty := sum(not answer for answer in answers):
            notice(f"{name} has no answer to {empty} of {len(answers)} questions; they have no reward")
    return found


def _write(folder: Path, found: dict[str, Any], args: AskArguments, argv: list[str], began: float) -> None:
    """Write `answers.json` and the manifest together; the folder of a stage keeps its own manifest."""
    text = json.dumps(found, indent=1, ensure_ascii=False) + "\n"
    # A stage's own manifest says how its weights were made; the questions must not replace it.
    if (manifests.read_manifest(folder) or {}).get("stage", ASKED) != ASKED:
        with published_file(folder / ANSWERS, flag="--output_dir") as stream:
            stream.write(text)
        return
    manifest = _manifest(found, args, argv, began)
    # Two commands into one folder would leave answers of one with the manifest of the other.
    lock_output(folder, create=True)
    try:
        with disk_errors(folder):
            aside = begin_result(folder)
            write_file(aside / ANSWERS, text)
            manifest["files"] = record_files({ANSWERS: aside / ANSWERS})
            # RUNNING until all files have their places: a kill in between is seen.
            manifests.write_manifest(aside, manifest | {"status": manifests.RUNNING})
            finish_result(folder)
            manifests.write_manifest(folder, manifest)
    finally:
        unlock_output()


def _manifest(found: dict[str, Any], args: AskArguments, argv: list[str], began: float) -> manifests.Manifest:
    """The manifest of the answers, without the record of the file, which is not written yet."""
    asked = [name for name in [*found["answers"], args.reward_model_path] if name and manifests.read_manifest(name)]
    return {
        "hftune": manifests.library_versions().get("hftune"),
        "stage": ASKED,
        "status": manifests.COMPLETE,
        "command": ["hftune", "ask", *command_without_secrets(argv)],
        "arguments": without_secrets(vars(args)),
        "versions": manifests.library_versions(),
        "parents": [{"folder": name, "fingerprint": fingerprint(name)} for name in asked],
        "inputs": record_inputs(argv),
        "wall_seconds": round(time.time() - began, 2),
        "notices": notices(),
    }
