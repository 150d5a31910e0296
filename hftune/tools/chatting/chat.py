"""`hftune chat`: a conversation with a model in the terminal; it may be saved as a record."""

from __future__ import annotations

import contextlib
import json
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from hftune import terminal
from hftune.arguments.asking import ChatArguments
from hftune.checkpoints.manifest import read_manifest
from hftune.data.files import Row
from hftune.data.messages import Message
from hftune.data.records import to_conversation
from hftune.data.tool_calls import parse_tools
from hftune.errors import ArgumentError, DataError, UserError, did_you_mean, raise_together
from hftune.inference.loading import check_talkers, load_talker
from hftune.inference.questions import rows_of
from hftune.logging import notice
from hftune.opening.files import read_bytes
from hftune.opening.json_file import LIMIT, read_json
from hftune.publishing.disk import disk_errors, lexists, write_file
from hftune.secrets import redacted
from hftune.template_arguments import FIELD
from hftune.tools.chatting.speaker import Speaker, Tools
from hftune.visible import say

_SAVE = "/save"
HELP = """\
/new            begin another conversation
/system TEXT    begin another one with this system message; without a text: with none
/tool RESULT    give the result of a call, one after another where there are several
/retry          take the last answer back and have another one
/save FILE      append the conversation to a JSONL file as a record that trains
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
    raise_together(check_chat(args))
    (name,) = args.models or []
    tools = _tools(args.tools)
    speaker = Speaker(load_talker(name, args), args, system_of(name, args), tools)
    at_terminal = sys.stdin.isatty()
    if at_terminal:
        note("/help tells the commands, Ctrl-D ends")
    Chat(speaker, args, patient=at_terminal).run(lines())


def check_chat(args: ChatArguments) -> Iterator[UserError]:
    """Everything that is wrong with the model."""
    yield from check_talkers(args.models, "--models", trust_remote_code=args.trust_remote_code)
    if len(args.models or []) > 1:
        fix = "name one; hftune ask puts the same questions to any number"
        yield ArgumentError(f"{len(args.models or [])} models are named, and one talks", place="--models", fix=fix)


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
    """What the lines say, to a model.

    Args:
        patient: Whether what cannot be done is only said, as to somebody at a terminal; else it ends the chat.
    """

    def __init__(self, speaker: Speaker, args: ChatArguments, *, patient: bool = True) -> None:
        self.speaker, self.args, self.patient, self.answers = speaker, args, patient, 0
        self.commands: dict[str, Callable[[str], object]] = {
            "help": lambda rest: note(HELP),
            "new": lambda rest: self._begin(self.speaker.system),
            "system": lambda rest: self._begin(rest or None),
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
        """Have it answered; what cannot be answered is taken back, so that the conversation can continue."""
        self.speaker.messages.append(message)
        said = False
        try:
            said = self._answer()
        finally:
            if not said:
                del self.speaker.messages[-1]

    def _answer(self) -> bool:
        """Show an answer as it is said, thoughts and calls as well; whether there was one."""
        seed = None if self.args.seed is None else self.args.seed + self.answers
        self.answers += 1
        message, cut = self.speaker.answer(lambda text: say(text, end="", flush=True), seed)
        say(flush=True)
        if message is None:
            note(f"[{cut or 'ended'}: nothing was answered]")
            return False
        if cut:
            note(f"[{cut}]")
        self._say_calls(self.speaker.pending())
        return True

    @staticmethod
    def _say_calls(calls: list[dict[str, Any]]) -> None:
        if calls:
            note(f"[/tool RESULT gives the result of {calls[0]['function']['name']}]")

    # --- commands -----------------------------------------------------------------------------------------------------

    def _begin(self, system: str | None) -> None:
        self.speaker.begin(system)
        note("[another conversation]")

    def _tool(self, rest: str) -> None:
        calls = self.speaker.pending()
        if not calls:
            raise ArgumentError("there is no call without a result", fix="ask what the tools are good for")
        result = self.speaker.result_of(calls[0], rest)
        if len(calls) == 1:
            self._ask(result)
        else:
            self.speaker.messages.append(result)
            self._say_calls(calls[1:])

    def _retry(self, rest: str) -> None:
        if not self.speaker.taken_back():
            raise ArgumentError("there is no answer to take back", fix="ask first; /retry has another answer")
        self._answer()

    def _save(self, rest: str) -> None:
        if not rest:
            raise ArgumentError("/save needs a file", fix="/save FILE")
        file, speaker = Path(rest).expanduser(), self.speaker
        arguments = speaker.render.arguments if speaker.render is not None else {}
        record: dict[str, Any] = {"messages": speaker.messages} | ({"tools": speaker.tools} if speaker.tools else {})
        count = append_record(file, record | ({FIELD: arguments} if arguments else {}))
        cut = sum(message.get("weight") == 0 for message in speaker.messages)
        note(f"[{file} has {count} record{'s' * (count > 1)}]" + f" [{cut} cut answers are not trained]" * (cut > 0))


def note(text: str) -> None:
    """A line that no model has said: on standard error, so that a pipe gets the answers alone."""
    say(text, file=terminal.err(), flush=True)


def append_record(file: Path, record: dict[str, Any]) -> int:
    """Append a conversation to a file of such, or to a new one; returns how many records it has now.

    Raises:
        ArgumentError: The file is no JSONL of conversations, or the disk does not take the record.
        DataError: Nothing in the conversation could be trained.
    """
    to_conversation(Row(record, _SAVE, 1))
    there = lexists(file)
    plain = file.suffix == ".jsonl" and not file.is_symlink() and file.absolute().parent.is_dir()
    if not plain or (there and not file.is_file()):
        raise ArgumentError(f"{file} is no plain .jsonl file in a folder", place=_SAVE, fix="name another one")
    content = read_bytes(file, limit=LIMIT, error=ArgumentError) if there else b""
    try:
        count = sum(bool(to_conversation(row)) for row, _ in rows_of(str(file), _SAVE)) if content else 0
    except DataError as error:
        cause = "this is no JSONL of conversations: nothing was written"
        raise ArgumentError(cause, place=error.place or str(file), fix="choose another name") from error
    line = (json.dumps(redacted(record), ensure_ascii=False) + "\n").encode("utf-8", "replace")
    with disk_errors(file, _SAVE):
        write_file(file, content + (b"\n" if content and not content.endswith(b"\n") else b"") + line)
    return count + 1
