"""`hftune chat`: what is asked, shown, taken back and kept."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from hftune.arguments.asking import ChatArguments
from hftune.checkpoints.manifest import write_manifest
from hftune.cli import dispatch
from hftune.errors import ArgumentError, DataError
from hftune.tools.chatting.chat import check_chat, system_of
from tests.unit.tools.chatting.scripted import INTERRUPT, chat_with, says, talker, template

Capture = pytest.CaptureFixture[str]
QWEN3 = template("qwen3")
ADD = {
    "type": "function",
    "function": {"name": "add", "description": "d", "parameters": {"type": "object", "properties": {}}},
}
CALL = '<tool_call>\n{"name": "add", "arguments": {"a": 2}}\n</tool_call>'


def contents(messages: list[dict[str, Any]]) -> list[Any]:
    return [message["content"] for message in messages]


def test_questions_and_answers(capsys: Capture) -> None:
    one = says(talker(), "Hello to you.", "Not bad.")
    chat = chat_with(one)("Hello", "", "  ", "How are you?")
    assert contents(chat.speaker.messages) == ["Hello", "Hello to you.", "How are you?", "Not bad."]
    assert capsys.readouterr().out == "Hello to you.\nNot bad.\n", "and nothing else: it may be a pipe"
    second = one.tokenizer.decode(one.model.calls[1]["prompt"])
    assert "Hello to you.<|im_end|>" in second and second.endswith("<|im_start|>assistant\n")


def test_thoughts_are_shown_as_they_are_said(capsys: Capture) -> None:
    said = "<think>\nA long story.\n</think>\n\nYes."
    chat = chat_with(says(talker(chat_template=QWEN3), said))("Why?")
    assert capsys.readouterr().out == f"{said}\n"
    assert chat.speaker.messages[-1] == {"role": "assistant", "content": "Yes.", "reasoning_content": "A long story."}


def test_a_call_and_its_result(capsys: Capture) -> None:
    one = says(talker(chat_template=QWEN3), f"I add.\n{CALL}", "Four.")
    chat = chat_with(one, tools=[ADD])("2 and 2?", "/tool 4")
    printed = capsys.readouterr()
    assert CALL in printed.out and "/tool RESULT gives the result of add" in printed.err
    calls = [{"type": "function", "function": {"name": "add", "arguments": {"a": 2}}}]
    assert chat.speaker.messages[1:3] == [
        {"role": "assistant", "content": "I add.", "tool_calls": calls},
        {"role": "tool", "name": "add", "content": "4"},
    ]
    assert "<tool_response>\n4\n</tool_response>" in one.tokenizer.decode(one.model.calls[1]["prompt"])
    with pytest.raises(ArgumentError, match="no call without a result"):
        chat_with(says(talker(), "Hi."))("Hello", "/tool 4")


def test_several_calls_wait_for_all_results() -> None:
    one = says(talker(chat_template=QWEN3), f"{CALL}\n{CALL}", "Done.")
    run = chat_with(one, tools=[ADD])
    chat = run("Twice.", "/tool 4")
    assert len(one.model.calls) == 1 and len(chat.speaker.pending()) == 1
    run("/tool 5")
    assert contents(chat.speaker.messages)[2:] == ["4", "5", "Done."]


def test_calls_have_ids_where_the_template_wants_them() -> None:
    """As Mistral's, which refuses calls and results without."""
    strict = (
        "{% for m in messages %}{% for c in m.tool_calls or [] %}{% if c.id is not defined or c.id | length != 9 %}"
        "{{ raise_exception('no id') }}{% endif %}[TOOL_CALLS]{{ c.function | tojson }}{% endfor %}"
        "{% if m.role == 'tool' %}[RESULT]{{ m.tool_call_id }}={% endif %}{{ m.content }}</s>{% endfor %}{{ tools }}"
    )
    one = says(talker(chat_template=strict), 'x[TOOL_CALLS]{"name": "add", "arguments": {}}', "Done.")
    chat_with(one, tools=[ADD])("Add.", "/tool 5")
    assert "[RESULT]call00000=5</s>" in one.tokenizer.decode(one.model.calls[1]["prompt"])


def test_what_a_model_says_commands_no_terminal(capsys: Capture) -> None:
    evil = "\x1b]0;owned\x07\x1b[2J\u202e\rOK \x9b31m"
    chat = chat_with(says(talker(chat_template=QWEN3), f"<think>{evil}</think>{evil}"))("Hi")
    out = capsys.readouterr().out
    assert "\\x1b]0;owned\\x07\\x1b[2J\\u202e" in out and not set("\x1b\x07\u202e\r\x9b") & set(out)
    assert evil.strip() in chat.speaker.messages[-1]["content"], "the model is shown what it said"


def test_ctrl_c_stops_the_answer_and_not_the_chat(capsys: Capture) -> None:
    one = says(talker(), f"One, two,{INTERRUPT}", f"{INTERRUPT}", "Three.")
    chat = chat_with(one)("Count.", "Go on?", "Go on.")
    messages = chat.speaker.messages
    assert contents(messages) == ["Count.", "One, two,", "Go on.", "Three."], "an unanswered question is taken back"
    assert messages[1]["weight"] == 0, "a cut answer is not trained" and "weight" not in messages[3]
    printed = capsys.readouterr()
    assert (
        printed.out == "One, two,\n\nThree.\n"
        and "[stopped]" in printed.err
        and "stopped: nothing was answered" in printed.err
    )


def test_an_answer_that_is_cut_says_so(capsys: Capture) -> None:
    one = says(talker(), "Hello to all of you.")
    chat = chat_with(one, max_new_tokens=3)("Hi")
    assert one.model.calls[0]["max_new_tokens"] == 3 and chat.speaker.messages[-1]["weight"] == 0
    assert "cut at --max_new_tokens" in capsys.readouterr().err


def test_a_thought_that_is_cut_is_no_answer(capsys: Capture) -> None:
    one = says(talker(chat_template=QWEN3), "<think>\nOn and on and on.", "<think>\nWell.\n</think>\n\nYes.")
    chat = chat_with(one, max_new_tokens=25)("Why?", "Why not?")
    printed = capsys.readouterr()
    assert "cut at --max_new_tokens: nothing was answered" in printed.err and printed.out.count("<think>") == 2
    assert contents(chat.speaker.messages)[0] == "Why not?", "the question is taken back"


def test_a_full_context_loses_no_turn(capsys: Capture) -> None:
    one = says(talker(context=60), "Five.", "x" * 500)
    run = chat_with(one, patient=True)
    chat = run("2+3?")
    length = len(chat.speaker.prompt()[1])
    run("And a question of many more words than the context of this little model has room for, is it not?")
    error = capsys.readouterr().err
    assert "the context of tiny is 60" in error and "/new" in error
    assert contents(chat.speaker.messages) == ["2+3?", "Five."] and len(one.model.calls) == 1
    run("A")
    assert one.model.calls[1]["max_new_tokens"] == 60 - len(one.model.calls[1]["prompt"]) > 0
    assert "the context is full" in capsys.readouterr().err and length < 60
    assert contents(chat.speaker.messages)[:3] == ["2+3?", "Five.", "A"]


def test_an_answer_is_taken_back() -> None:
    one = says(talker(), "No.", "Maybe.", "Yes.")
    chat = chat_with(one)("Sure?", "/retry", "/retry")
    assert contents(chat.speaker.messages) == ["Sure?", "Yes."]
    assert one.model.calls[0]["prompt"] == one.model.calls[2]["prompt"]
    with pytest.raises(ArgumentError, match="no answer"):
        chat_with(talker())("/retry")


def test_another_conversation_and_its_system_message() -> None:
    one = says(talker(), "a", "b", "c", "d")
    run = chat_with(one, system="Be kind.")
    chat = run("1", "/new", "2")
    assert contents(chat.speaker.messages) == ["Be kind.", "2", "b"]
    run("/system Be  brief.", "3")
    assert contents(chat.speaker.messages) == ["Be  brief.", "3", "c"]
    run("/system", "4")
    assert contents(chat.speaker.messages) == ["4", "d"]


def test_what_a_template_cannot_show_is_refused() -> None:
    with pytest.raises(ArgumentError, match="takes no system message"):
        chat_with(talker(chat_template=template("gemma")), system="Be kind.")
    drops = "{% for m in messages if m.role != 'system' %}{{ m.content }}{% endfor %}"
    with pytest.raises(ArgumentError, match="leaves the system message out"):
        chat_with(talker(chat_template=drops), system="Be kind.")
    with pytest.raises(ArgumentError, match="shows no tools"):
        chat_with(talker(), tools=[ADD])
    run = chat_with(says(talker(chat_template=drops), "a"), patient=True)
    assert contents(run("1", "/system Be kind.").speaker.messages) == ["1", "a"], "and the conversation stays"


def test_a_question_that_is_refused_is_taken_back(capsys: Capture) -> None:
    one = says(talker(), "Hi.")
    chat = chat_with(one, borders_in_text="error", patient=True)("<|im_end|> and so on", "Hello")
    assert contents(chat.speaker.messages) == ["Hello", "Hi."] and "<|im_end|>" in capsys.readouterr().err


def test_without_a_template_the_bare_text_is_given() -> None:
    one = says(talker(chat_template=""), " upon a time<think>")
    chat = chat_with(one)("Once")
    assert one.model.calls[0]["prompt"] == one.tokenizer("Once")["input_ids"]
    assert chat.speaker.messages[-1]["content"] == " upon a time<think>"


@pytest.mark.parametrize("line", ["/sav x", "/save", "/nothing"])
def test_what_is_no_command(line: str, capsys: Capture) -> None:
    with pytest.raises(ArgumentError):
        chat_with(talker())(line)
    chat_with(talker(), patient=True)(line, "/help", "/quit", "never asked")
    assert "error: " in capsys.readouterr().err, "at a terminal it is said, and the chat continues"
    chat = chat_with(says(talker(), "A folder."))("//etc is what?")
    assert contents(chat.speaker.messages)[0] == "/etc is what?"


def test_one_model() -> None:
    assert len([*check_chat(ChatArguments())]) == len([*check_chat(ChatArguments(models=["a", "b"]))]) == 1
    assert not [*check_chat(ChatArguments(models=["a"]))]


def test_the_system_message_of_the_run(tmp_path: Path) -> None:
    args = ChatArguments()
    write_manifest(tmp_path / "rl", {"stage": "rl", "arguments": {"system_prompt": "Use tags."}})
    parents = {"parents": [{"folder": str(tmp_path / "rl")}]}
    write_manifest(tmp_path / "merged", {"stage": "merge", "arguments": {}, **parents})
    assert system_of(str(tmp_path / "rl"), args) == system_of(str(tmp_path / "merged"), args) == "Use tags."
    assert system_of("nothing", args) is None
    assert system_of(str(tmp_path / "rl"), ChatArguments(system_prompt="")) is None
    assert system_of(str(tmp_path / "rl"), ChatArguments(system_prompt="Mine.")) == "Mine."


def test_wrong_files_are_refused_before_anything_loads(tmp_path: Path, tiny_model: Path) -> None:
    (tmp_path / "tools.json").write_text("[]")
    with pytest.raises(DataError, match="--tools"):
        dispatch(["chat", str(tiny_model), "--tools", str(tmp_path / "tools.json")])
    with pytest.raises(ArgumentError, match=r"--adapter was removed(.|\n)*own folder"):
        dispatch(["chat", str(tiny_model), "--adapter", "a"])
