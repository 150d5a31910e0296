"""`hftune chat`: what is asked, shown, taken back and kept."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from hftune.arguments.asking import ChatArguments
from hftune.checkpoints.manifest import write_manifest
from hftune.cli import dispatch
from hftune.errors import ArgumentError, DataError, UserError
from hftune.inference.parsing import Part
from hftune.tools.chatting.chat import AnswerView, check_models, system_of
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
    assert contents(chat.speakers[0].messages) == ["Hello", "Hello to you.", "How are you?", "Not bad."]
    assert capsys.readouterr().out == "Hello to you.\nNot bad.\n", "and nothing else: it may be a pipe"
    second = one.tokenizer.decode(one.model.calls[1]["prompt"])
    assert "Hello to you.<|im_end|>" in second and second.endswith("<|im_start|>assistant\n")


def test_thoughts_are_folded_until_they_are_asked_for(capsys: Capture) -> None:
    said = "<think>\nA long story.\n</think>\n\nYes."
    chat = chat_with(says(talker(chat_template=QWEN3), said, said))("Why?", "/think", "Why?")
    first, shown, second = capsys.readouterr().out.partition("A long story.\n")
    tokens = len(chat.speakers[0].talker.tokenizer("\nA long story.\n")["input_ids"])
    assert first == f"[thought for {tokens} tokens; /think shows it]\nYes.\n" and shown
    assert second == "[thought]\nA long story.\n[end of thought]\nYes.\n"
    assert chat.speakers[0].messages[-1]["reasoning_content"] == "A long story."


def test_a_call_and_its_result(capsys: Capture) -> None:
    one = says(talker(chat_template=QWEN3), f"I add.\n{CALL}", "Four.")
    chat = chat_with(one, tools=[ADD])("2 and 2?", "/tool 4")
    printed = capsys.readouterr()
    assert '[call] add {"a": 2}\n' in printed.out and "/tool RESULT gives the result of add" in printed.err
    calls = [{"type": "function", "function": {"name": "add", "arguments": {"a": 2}}}]
    assert chat.speakers[0].messages[1:3] == [
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
    assert len(one.model.calls) == 1 and len(chat.speakers[0].pending()) == 1
    run("/tool 5")
    assert contents(chat.speakers[0].messages)[2:] == ["4", "5", "Done."]


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


def test_two_models_have_a_conversation_each(capsys: Capture) -> None:
    left, right = says(talker("base"), "A.", "C."), says(talker("sft"), "B.", "D.")
    chat = chat_with(left, right, seed=3)("Who?", "And?")
    assert capsys.readouterr().out == "--- 1: base\nA.\n--- 2: sft\nB.\n--- 1: base\nC.\n--- 2: sft\nD.\n"
    assert [contents(speaker.messages) for speaker in chat.speakers] == [
        ["Who?", "A.", "And?", "C."],
        ["Who?", "B.", "And?", "D."],
    ]


def test_what_a_model_says_commands_no_terminal(capsys: Capture) -> None:
    evil = "\x1b]0;owned\x07\x1b[2J\u202e\rOK \x9b31m"
    chat = chat_with(says(talker(chat_template=QWEN3), f"<think>{evil}</think>{evil}"))("/think", "Hi")
    out = capsys.readouterr().out
    assert "\\x1b]0;owned\\x07\\x1b[2J\\u202e" in out and not set("\x1b\x07\u202e\r\x9b") & set(out)
    assert evil.strip() in chat.speakers[0].messages[-1]["content"], "the model is shown what it said"


def test_a_line_end_in_two_pieces_is_one(capsys: Capture) -> None:
    view = AnswerView(len, thoughts=False)
    for text in ("\n\na\r", "\nb\r", "c"):
        view.show(Part("content", text))
    view.end()
    assert capsys.readouterr().out == "a\nb\\x0dc\n", "a lone one would write over the line"


def test_ctrl_c_stops_the_answer_and_not_the_chat(capsys: Capture) -> None:
    one = says(talker(), f"One, two,{INTERRUPT}", f"{INTERRUPT}", "Three.")
    chat = chat_with(one)("Count.", "Go on?", "Go on.")
    messages = chat.speakers[0].messages
    assert contents(messages) == ["Count.", "One, two,", "Go on.", "Three."], "an unanswered question is taken back"
    assert messages[1]["weight"] == 0, "a cut answer is not trained" and "weight" not in messages[3]
    printed = capsys.readouterr()
    assert (
        printed.out == "One, two,\nThree.\n"
        and "[stopped]" in printed.err
        and "stopped: nothing was answered" in printed.err
    )


def test_an_answer_that_is_cut_says_so(capsys: Capture) -> None:
    one = says(talker(), "Hello to all of you.")
    chat = chat_with(one, max_new_tokens=3)("Hi")
    assert one.model.calls[0]["max_new_tokens"] == 3 and chat.speakers[0].messages[-1]["weight"] == 0
    assert "cut at --max_new_tokens" in capsys.readouterr().err


def test_a_thought_that_is_cut_is_no_answer(capsys: Capture) -> None:
    one = says(talker(chat_template=QWEN3), "<think>\nOn and on and on.", "<think>\nWell.\n</think>\n\nYes.")
    chat = chat_with(one, max_new_tokens=25)("Why?", "Why not?")
    printed = capsys.readouterr()
    assert "cut at --max_new_tokens: nothing was answered" in printed.err and printed.out.count("[thought for") == 2
    assert contents(chat.speakers[0].messages)[0] == "Why not?", "the question is taken back"


def test_a_full_context_loses_no_turn(capsys: Capture) -> None:
    one = says(talker(context=60), "Five.", "x" * 500)
    run = chat_with(one, patient=True)
    chat = run("2+3?")
    length = len(chat.speakers[0].prompt()[1])
    run("And a question of many more words than the context of this little model has room for, is it not?")
    error = capsys.readouterr().err
    assert "the context of tiny is 60" in error and "/new" in error
    assert contents(chat.speakers[0].messages) == ["2+3?", "Five."] and len(one.model.calls) == 1
    run("A")
    assert one.model.calls[1]["max_new_tokens"] == 60 - len(one.model.calls[1]["prompt"]) > 0
    assert "the context is full" in capsys.readouterr().err and length < 60
    assert contents(chat.speakers[0].messages)[:3] == ["2+3?", "Five.", "A"]


def test_an_answer_is_taken_back() -> None:
    one = says(talker(), "No.", "Maybe.", "Yes.")
    chat = chat_with(one)("Sure?", "/retry", "/retry")
    assert contents(chat.speakers[0].messages) == ["Sure?", "Yes."]
    assert one.model.calls[0]["prompt"] == one.model.calls[2]["prompt"]
    with pytest.raises(ArgumentError, match="no answer"):
        chat_with(talker())("/retry")


def test_another_conversation_and_its_system_message() -> None:
    one = says(talker(), "a", "b", "c", "d")
    run = chat_with(one, system="Be kind.")
    chat = run("1", "/new", "2")
    assert contents(chat.speakers[0].messages) == ["Be kind.", "2", "b"]
    run("/system Be  brief.", "3")
    assert contents(chat.speakers[0].messages) == ["Be  brief.", "3", "c"]
    run("/system", "4")
    assert contents(chat.speakers[0].messages) == ["4", "d"]


def test_what_a_template_cannot_show_is_refused() -> None:
    with pytest.raises(ArgumentError, match="takes no system message"):
        chat_with(talker(chat_template=template("gemma")), system="Be kind.")
    drops = "{% for m in messages if m.role != 'system' %}{{ m.content }}{% endfor %}"
    with pytest.raises(ArgumentError, match="leaves the system message out"):
        chat_with(talker(chat_template=drops), system="Be kind.")
    with pytest.raises(ArgumentError, match="shows no tools"):
        chat_with(talker(), tools=[ADD])
    run = chat_with(says(talker(chat_template=drops), "a"), patient=True)
    assert contents(run("1", "/system Be kind.").speakers[0].messages) == ["1", "a"], "and the conversation stays"


def test_a_question_that_is_refused_is_taken_back(capsys: Capture) -> None:
    one = says(talker(), "Hi.")
    chat = chat_with(one, borders_in_text="error", patient=True)("<|im_end|> and so on", "Hello")
    assert contents(chat.speakers[0].messages) == ["Hello", "Hi."] and "<|im_end|>" in capsys.readouterr().err


def test_without_a_template_the_bare_text_is_given() -> None:
    one = says(talker(chat_template=""), " upon a time<think>")
    chat = chat_with(one)("Once")
    assert one.model.calls[0]["prompt"] == one.tokenizer("Once")["input_ids"]
    assert chat.speakers[0].messages[-1]["content"] == " upon a time<think>"


@pytest.mark.parametrize("line", ["/sav x", "/save", "/nothing"])
def test_what_is_no_command(line: str, capsys: Capture) -> None:
    with pytest.raises(ArgumentError):
        chat_with(talker())(line)
    chat_with(talker(), patient=True)(line, "/help", "/quit", "never asked")
    assert "error: " in capsys.readouterr().err, "at a terminal it is said, and the chat continues"
    chat = chat_with(says(talker(), "A folder."))("//etc is what?")
    assert contents(chat.speakers[0].messages)[0] == "/etc is what?"


def test_of_two_models_one_is_saved(tmp_path: Path) -> None:
    run = chat_with(says(talker("base"), "A."), says(talker("sft"), "B."))
    with pytest.raises(ArgumentError, match="/save 1 FILE or /save 2 FILE"):
        run("Who?", f"/save {tmp_path}/x.jsonl")
    run(f"/save 2 {tmp_path}/x y.jsonl")
    (line,) = (tmp_path / "x y.jsonl").read_text().splitlines()
    assert contents(json.loads(line)["messages"]) == ["Who?", "B."]


@pytest.mark.parametrize("wrong", [[], ["a", "b", "c"]])
def test_one_model_or_two(wrong: list[str]) -> None:
    assert len([*check_models(ChatArguments(models=wrong))]) == 1
    assert len([*check_models(ChatArguments(models=["a", "b"], adapter=["c"]))]) == 1
    assert not [*check_models(ChatArguments(models=["a"], adapter=["c"]))]


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
    for flags in (["--tools", tmp_path / "tools.json"], ["--adapter", tmp_path]):
        with pytest.raises(UserError) as raised:
            dispatch(["chat", str(tiny_model), *map(str, flags)])
        assert isinstance(raised.value, (ArgumentError, DataError)) and flags[0] in str(raised.value)
