"""`hftune chat`: a conversation in the terminal with one model, or with two alongside; it may be saved as a record."""

from __future__ import annotations

import contextlib
import json
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from hftune import terminal
from hftune.arguments.asking import ChatArguments
from hftune.checkpoints.folder_checks import check_recorded
from hftune.checkpoints.manifest import read_manifest
from hftune.data.files import Row
from hftune.data.messages import Message
from hftune.data.records import to_conversation
from hftune.data.tool_calls import parse_tools
from hftune.errors import ArgumentError, DataError, UserError, did_you_mean, raise_together
from hftune.inference.loading import check_talker, load_talker
from hftune.inference.parsing import CALLS, THOUGHT, Part
from hftune.logging import notice
from hftune.opening.files import read_bytes
from hftune.opening.json_file import LIMIT, parse_json, read_json
from hftune.publishing.disk import disk_errors, lexists, write_file
from hftune.secrets import redacted
from hftune.template_arguments import FIELD
from hftune.tools.chatting.speaker import Speaker, Tools
from hftune.visible import as_json, say

_SAVE = "/save"
HELP = """\
/new            begin another conversation
/system TEXT    begin another one with this system message; without a text: with none
/think          show thoughts as they come, or fold them again; the last one is shown
/tool RESULT    give the result of a call, one after another where there are several
/retry          take the last answer back and have another one
/save FILE      append the conversation to a JSONL file as a record that trains; of two models /save 2 FILE
/quit           end, as the end of the input does (Ctrl-D)
//TEXT          a question that begins with /
Ctrl-C stops an answer; where a question is awaited, it ends the chat."""


def chat(args: ChatArguments, argv: Sequence[str] = ()) -> None:
    """Load the models and talk until the input ends.

    Raises:
        ArgumentError: A wrong argument, a model that cannot be loaded, or, where nobody is at a terminal, a command or
            question that cannot be answered.
        DataError: The file of tools holds none.
    """
    raise_together(check_models(args))
    names = list(args.models or [])
    tools = _tools(args.tools)
    fix = "give a language model; hftune score asks a reward model"
    raise_together(
        problem
        for name in names
        for problem in check_talker(name, "--models", fix, trust_remote_code=args.trust_remote_code)
    )
    raise_together(_check_adapters(args.adapter or []))
    speakers = []
    for name in names:
        talker = load_talker(name, args, adapters=args.adapter or [])
        speakers.append(Speaker(talker, args, system_of(talker.name, args), tools))
    at_terminal = sys.stdin.isatty()
    if at_terminal:
        note("/help tells the commands, Ctrl-D ends")
    Chat(speakers, args, patient=at_terminal).run(lines())


def check_models(args: ChatArguments) -> Iterator[ArgumentError]:
    """Models that are too few or too many."""
    if not args.models:
        yield ArgumentError("no model was named", place="--models", fix="hftune chat outputs/sft-merged")
    elif len(args.models) > 2:
        fix = "hftune ask puts the same questions to any number"
        yield ArgumentError(f"{len(args.models)} models are named, and two talk alongside", place="--models", fix=fix)
    elif args.adapter and len(args.models) == 2:
        fix = "name the adapter's folder as a model: its base is known"
        yield ArgumentError("of two models it is open which one the adapter is for", place="--adapter", fix=fix)


def _check_adapters(folders: list[str]) -> Iterator[UserError]:
    for folder in folders:
        if not (Path(folder) / "adapter_config.json").is_file():
            fix = "name folders of adapters, the one next to the model first"
            yield ArgumentError(f"there is no adapter in {folder}", place="--adapter", fix=fix)
        else:
            yield from check_recorded(folder, "--adapter")


def system_of(name: str, args: ChatArguments) -> str | None:
    """The system message: as given, else as the run gave its prompts that made the model."""
    if args.system_prompt is not None:
        return args.system_prompt or None
    # Of a merged model the run is that of its last adapter.
    made_of = [name, *(str(parent.get("folder")) for parent in (read_manifest(name) or {}).get("parents") or [])]
    runs = [(read_manifest(folder) or {}).get("arguments") or {} for folder in (name, made_of[-1])]
    recorded = next((said for run in runs if isinstance(said := run.get("system_prompt"), str) and said), None)
    if recorded is None:
        return None
    notice(f"{name} was trained with a system message, so it is used here (--system_prompt '' for none)")
    return recorded


def _tools(file: str | None) -> Tools | None:
    """The tools in a file, as chat templates read them."""
    if file is None:
        return None
    written = read_json(file, kind=None, error=ArgumentError, fix="write a list of tools in JSON")
    try:
        found = parse_tools(written)
    except DataError as error:
        raise error.at(file) from error
    if not found:
        raise DataError(f"{file} holds no tools", place="--tools", fix="write a list of tools in JSON, or leave it out")
    return found


def lines() -> Iterator[str]:
    """What is typed, line by line; a prompt only where somebody sees it."""
    seen = sys.stdin.isatty() and sys.stdout.isatty()
    if seen:
        with contextlib.suppress(ImportError):  # some builds of Python lack it: then nothing can be edited
            import readline  # noqa: F401  # gives `input` editing and what was typed before
    reconfigure = getattr(sys.stdin, "reconfigure", None)
    if reconfigure is not None:
        reconfigure(errors="replace")
    while True:
        try:
            yield input("> " if seen else "")
        except EOFError:
            if seen:
                say()
            return


class Chat:
    """What the lines say, to one model or two.

    Args:
        patient: Whether what cannot be done is only said, as to somebody at a terminal; else it ends the chat.
    """

    def __init__(self, speakers: list[Speaker], args: ChatArguments, *, patient: bool = True) -> None:
        self.speakers, self.args, self.patient = speakers, args, patient
        self.thoughts, self.thought, self.answers = False, "", 0
        self.commands: dict[str, Callable[[str], object]] = {
            "help": lambda rest: note(HELP),
            "new": lambda rest: self._begin([speaker.system for speaker in self.speakers]),
            "system": lambda rest: self._begin([rest or None] * len(self.speakers)),
            "think": self._think,
            "tool": self._tool,
            "retry": self._retry,
            "save": self._save,
        }

    def run(self, given: Iterator[str]) -> None:
        """Take the lines until they end or one says so.

        Raises:
            UserError: Where nobody is there to be told.
        """
        for line in given:
            try:
                if self._take(line) is False:
                    return
            except UserError as error:
                if not self.patient:
                    raise
                note(f"error: {error.render()}")

    def _take(self, line: str) -> bool:
        """Do what a line says; False ends the chat."""
        if not line.strip():
            return True
        if not line.startswith("/") or line.startswith("//"):
            self._ask({"role": "user", "content": line.removeprefix("/") if line.startswith("//") else line})
            return True
        word, _, rest = line[1:].partition(" ")
        if word in ("quit", "exit"):
            return False
        if word not in self.commands:
            fix = did_you_mean(word, self.commands, written="/{}") or "/help tells the commands"
            raise ArgumentError(f"there is no /{word}", fix=f"{fix}; // begins a question with /")
        self.commands[word](rest.strip())
        return True

    def _ask(self, message: Message) -> None:
        for speaker in self.speakers:
            speaker.messages.append(message)
        self._answer(self.speakers, taken_back=True)

    def _answer(self, speakers: list[Speaker], *, taken_back: bool = False) -> None:
        """Have each of them answer; what one cannot answer is taken back, so that the conversation can continue."""
        problems = []
        for speaker in speakers:
            if len(self.speakers) > 1:
                say(f"--- {self.speakers.index(speaker) + 1}: {speaker.name}")
            view = AnswerView(self._counter(speaker), thoughts=self.thoughts)
            seed = None if self.args.seed is None else self.args.seed + self.answers
            said = None
            try:
                found = speaker.answer(view.show, seed)
            except UserError as error:
                problems.append(error)
            else:
                said = found.message
                view.end(found.cut if said else f"{found.cut or 'ended'}: nothing was answered")
                self.thought = view.thought or self.thought
            if said is None and taken_back:
                del speaker.messages[-1]
            elif said is not None and (calls := speaker.pending()):
                note(f"[/tool RESULT gives the result of {calls[0]['function']['name']}]")
        # The same for both models of a question, so that they draw alike.
        self.answers += 1
        raise_together(problems)

    @staticmethod
    def _counter(speaker: Speaker) -> Callable[[str], int]:
        return lambda text: len(speaker.talker.tokenizer(text, add_special_tokens=False)["input_ids"])

    # --- commands -----------------------------------------------------------------------------------------------------

    def _begin(self, systems: list[str | None]) -> None:
        for speaker, system in zip(self.speakers, systems, strict=True):
            speaker.begin(system)
        note("[another conversation]")

    def _think(self, rest: str) -> None:
        self.thoughts = not self.thoughts
        note(f"[thoughts are {'shown' if self.thoughts else 'folded'}]")
        if self.thoughts and self.thought:
            say(self.thought.strip())

    def _tool(self, rest: str) -> None:
        calling = [(speaker, calls) for speaker in self.speakers if (calls := speaker.pending())]
        if not calling:
            raise ArgumentError("there is no call without a result", fix="ask what the tools are good for")
        for speaker, calls in calling:
            speaker.messages.append(speaker.result_of(calls[0], rest))
        if waiting := [calls[1] for _, calls in calling if len(calls) > 1]:
            note(f"[/tool RESULT gives the result of {waiting[0]['function']['name']}]")
        self._answer([speaker for speaker, calls in calling if len(calls) == 1], taken_back=True)

    def _retry(self, rest: str) -> None:
        if not any([speaker.taken_back() for speaker in self.speakers]):
            raise ArgumentError("there is no answer to take back", fix="ask first; /retry has another answer")
        self._answer(self.speakers)

    def _save(self, rest: str) -> None:
        which, name = "1", rest
        if len(self.speakers) > 1:
            which, _, name = rest.partition(" ")
        if which not in ("1", "2") or not name.strip():
            usage = "/save FILE" if len(self.speakers) == 1 else "/save 1 FILE or /save 2 FILE"
            raise ArgumentError("/save needs a file, and of two models the number of one", fix=usage)
        file = Path(name.strip()).expanduser()
        speaker = self.speakers[int(which) - 1]
        count = append_record(file, self.record(speaker))
        cut = sum(message.get("weight") == 0 for message in speaker.messages)
        note(f"[{file} has {count} record{'s' * (count > 1)}]" + f" [{cut} cut answers are not trained]" * (cut > 0))

    def record(self, speaker: Speaker) -> dict[str, Any]:
        """The conversation as a record of a data set."""
        record: dict[str, Any] = {"messages": speaker.messages}
        arguments = speaker.render.arguments if speaker.render is not None else {}
        return record | ({"tools": speaker.tools} if speaker.tools else {}) | ({FIELD: arguments} if arguments else {})


def note(text: str) -> None:
    """A line that no model has said: on standard error, so that a pipe gets the answers alone."""
    say(text, file=terminal.err(), flush=True)


class AnswerView:
    """Shows the parts of one answer.

    Args:
        count: Tokens of a text.
        thoughts: Whether thoughts are shown as they come, or folded.
    """

    def __init__(self, count: Callable[[str], int], *, thoughts: bool) -> None:
        self.count, self.thoughts = count, thoughts
        self.thought = self._held = ""
        self._thinking = self._begun = self._inside = False

    def show(self, part: Part) -> None:
        """Show one part."""
        if part.kind == THOUGHT:
            self._think(part.text)
            return
        self._fold()
        if part.kind == CALLS and part.call is not None:
            self._break()
            function = part.call["function"]
            say(f"[call] {function['name']} {as_json(function['arguments'])}", flush=True)
        else:
            self._write(part.text)

    def end(self, cut: str = "") -> None:
        """End the answer's last line, and say why it was cut."""
        self._fold()
        self._write(self._held, last=True)
        self._break()
        if cut:
            note(f"[{cut}]")

    def _think(self, text: str) -> None:
        if self.thoughts:
            if not self._thinking:
                say("[thought]")
                self._begun = False
            self._write(text)
        else:
            terminal.show_progress(f"thinking ({len(self.thought) + len(text)} characters)")
        self._thinking = True
        self.thought += text

    def _fold(self) -> None:
        """End a thought: its line, where it is folded."""
        if not self._thinking:
            return
        terminal.clear_progress()
        self._thinking = False
        self._break()
        tokens = self.count(self.thought)
        size = f"{tokens} token{'s' * (tokens != 1)}"
        say("[end of thought]" if self.thoughts else f"[thought for {size}; /think shows it]", flush=True)
        self._begun = False

    def _write(self, text: str, *, last: bool = False) -> None:
        text, self._held = ("" if last else self._held) + text, ""
        # A carriage return may be half of a line's end.
        if text.endswith("\r") and not last:
            text, self._held = text[:-1], "\r"
        if not self._begun:
            text = text.lstrip("\n")
        if text:
            self._begun = True
            self._inside = not text.endswith("\n")
            say(text, end="", flush=True)

    def _break(self) -> None:
        if self._inside:
            say(flush=True)
        self._inside = False


def append_record(file: Path, record: dict[str, Any]) -> int:
    """Append a conversation to a file of such, or to a new one; returns how many records it has now.

    Raises:
        ArgumentError: The file is no JSONL of conversations, or the disk does not take the record.
        DataError: Nothing in the conversation could be trained.
    """
    to_conversation(Row(record, _SAVE, 1))
    if file.is_symlink() or not file.absolute().parent.is_dir() or (lexists(file) and not file.is_file()):
        raise ArgumentError(f"{file} is no plain file in a folder", place=_SAVE, fix="name another one")
    content = read_bytes(file, limit=LIMIT, error=ArgumentError) if lexists(file) else b""
    count = sum(_is_record(line, f"{file}:{number}") for number, line in enumerate(content.splitlines(), start=1))
    line = (json.dumps(redacted(record), ensure_ascii=False) + "\n").encode("utf-8", "replace")
    with disk_errors(file, _SAVE):
        write_file(file, content + (b"\n" if content and not content.endswith(b"\n") else b"") + line)
    return count + 1


def _is_record(line: bytes, place: str) -> bool:
    """Whether a line is a conversation; False for an empty one.

    Raises:
        ArgumentError: It is something else.
    """
    if not line.strip():
        return False
    try:
        to_conversation(Row(parse_json(line, place, error=DataError), place, 1))
    except DataError as error:
        cause = "this is no JSONL of conversations: nothing was written"
        raise ArgumentError(cause, place=place, fix="choose another name") from error
    return True
