"""Command lines and YAML files to dataclasses: names of other tools, and what is wrong said well."""

from __future__ import annotations

import functools
from pathlib import Path

import pytest

from hftune.arguments.data import DataArguments
from hftune.arguments.entry import parse_arguments
from hftune.arguments.parser import HftuneParser
from hftune.arguments.ranges import done_by_hftune
from hftune.arguments.stages import stage_parser
from hftune.data.columns import parse_columns
from hftune.errors import ArgumentError, UserError

OUT = ["--output_dir", "out"]


def test_the_algorithm_chooses_the_config(tmp_path: Path) -> None:
    (tmp_path / "rl.yaml").write_text("rl_algorithm: rloo\noutput_dir: out\n")
    assert type(parse_arguments("rl", [*OUT])[-1]).__name__ == "GRPOArguments"
    assert type(parse_arguments("rl", [*OUT, "--rl_algorithm", "rloo"])[-1]).__name__ == "RLOOArguments"
    assert type(parse_arguments("rl", ["--config", str(tmp_path / "rl.yaml")])[-1]).__name__ == "RLOOArguments"
    # MedicalGPT's script named PPO trains with RLOO.
    assert type(parse_arguments("rl", [*OUT, "--sft_model_path", "q"])[-1]).__name__ == "RLOOArguments"


def test_the_command_line_wins_over_yaml(tmp_path: Path) -> None:
    (tmp_path / "sft.yaml").write_text("output_dir: out\nlora_rank: 4\nlearning_rate: 1.0e-4\nbf16: false\n")
    *_, adapter, training = parse_arguments("sft", ["--config", str(tmp_path / "sft.yaml"), "--learning_rate", "2e-5"])
    assert (adapter.lora_r, training.learning_rate, training.bf16) == (4, 2e-5, False)


@pytest.mark.parametrize(
    "argv, parts",
    [
        (["--lerning_rate", "1"], ["unknown argument --lerning_rate", "did you mean --learning_rate?"]),
        (["--lora_rnk", "1"], ["did you mean --lora_rank?"]),
        (["--learning_rate", "fast"], ["learning_rate", "fast"]),
        (["--context_parallel_size", "2"], ["cannot be used", "use --sequence_parallel_size"]),
        (["--split_token_weight", "1"], ["--split_token_weight was removed", "trl.experimental.gold"]),
        (["--one", "1", "--two", "2"], ["2 problems", "--one", "--two"]),
        (["stray"], ["cannot place 'stray'"]),
        (["--max_length", "8", "\u2014learning_rate"], ["no hyphen", "with two hyphens: --learning_rate"]),
        (["--max_length", "8", "\u2013-lora_r=4"], ["'\u2013-lora_r' begins", "with two hyphens: --lora_r"]),
        (["--config", "no.yaml"], ["there is no file no.yaml"]),
        (["--deepspeed", "no.json"], ["there is no DeepSpeed config no.json", "zero2_offload"]),
        (["--deepspeed", '{"zero_optimization": {"stage": 7}}'], ["zero_optimization.stage"]),
    ],
)
def test_what_is_wrong_is_said(argv: list[str], parts: list[str]) -> None:
    with pytest.raises(UserError) as caught:
        parse_arguments("sft", [*argv, *OUT] if argv != ["stray"] else argv)
    for part in parts:
        assert part in str(caught.value)


@pytest.mark.parametrize("stage", ["sft", "distill", "rm", "dpo"])
def test_what_hftune_does_itself_is_refused_not_dropped(stage: str) -> None:
    """And is still a field of TRL's: a refusal of one that a new TRL no longer has is out of date."""
    parser, done = parser_of(stage), done_by_hftune(stage)
    own = done.keys() - done_by_hftune("").keys()
    assert own and own <= parser.known.keys()
    for name, reason in done.items():
        with pytest.raises(ArgumentError) as caught:
            parser.translate([f"--{name}", "1", *OUT])
        assert reason in str(caught.value)
    assert parser.translate(["--dataset_kwargs", "no", "--ddp_static_graph", "False"])[-1].values == ["False"]


def data_of(*argv: str) -> DataArguments:
    """The data arguments of a command."""
    return parse_arguments("sft", [*argv, *OUT])[1]


@pytest.mark.parametrize(
    "argv",
    [
        ["--train_dataset_path", "a.jsonl,b.jsonl", "--train_dataset_prob", "0.8,0.2"],
        ["--train_file_dir", "a.jsonl", "b.jsonl", "--train_dataset_prob", "0.8", "0.2"],
        ["--train_dataset_path=a.jsonl,b.jsonl", "--train_dataset_prob=0.8,0.2", "--train_dataset_type", "x,y"],
    ],
)
def test_several_sources_in_the_words_of_other_tools(argv: list[str]) -> None:
    data = data_of(*argv)
    assert (data.train_file_dir, data.train_dataset_prob) == ("a.jsonl,b.jsonl", "0.8,0.2")
    assert data.mix_strategy == "over"


@pytest.mark.parametrize(
    ("asked", "weights", "expected"),
    [
        (None, None, "concat"),
        (None, "1,1", "over"),
        ("concat", "1,1", "concat"),
        ("under", "1,1", "under"),
    ],
)
def test_how_sources_are_mixed(asked: str | None, weights: str | None, expected: str) -> None:
    assert DataArguments(mix_strategy=asked, train_dataset_prob=weights).mix_strategy == expected
    assert data_of("--mix_strategy", "interleave_over", "--train_dataset_prob", "1,1").mix_strategy == "over"
    with pytest.raises(ArgumentError, match="cannot be 'shuffled'"):
        data_of("--mix_strategy", "shuffled")
    with pytest.raises(ArgumentError, match="--dummy_data 10000"):
        data_of("--use_dummy_dataset", "True")


def test_columns_on_the_command_line_and_in_a_file(tmp_path: Path) -> None:
    assert data_of("--columns", "prompt=question", "response=answer").columns == "prompt=question response=answer"
    config = tmp_path / "config.yaml"
    config.write_text("columns: {prompt: question}\ntrain_file_dir: [a, b]\non_bad_record: drop\n")
    data = data_of("--config", str(config))
    assert parse_columns(data.columns) == {"prompt": "question"}
    assert (data.train_file_dir, data.on_bad_record) == ("a,b", "drop")


@pytest.mark.parametrize(
    "flags, trains, evaluates",
    [
        ([], True, False),
        (["--eval_strategy", "steps", "--eval_steps", "5"], True, True),
        (["--do_eval"], False, True),
        (["--do_train", "--do_eval"], True, True),
    ],
)
def test_evaluation_alone_must_be_asked_for(flags: list[str], trains: bool, evaluates: bool) -> None:
    *_, training_args = stage_parser("sft").parse(["--output_dir", "o", *flags])
    assert (training_args.do_train, training_args.do_eval) == (trains, evaluates)


def of_file(tmp_path: Path, stage: str, text: str):
    """What a YAML file makes of the arguments that every stage has."""
    (tmp_path / "file.yaml").write_text("model_name_or_path: m\noutput_dir: o\nuse_cpu: true\n" + text)
    return parse_arguments(stage, ["--config", str(tmp_path / "file.yaml")])


@pytest.mark.parametrize(
    ("stage", "text", "name", "value"),
    [
        ("rl", "reward_funcs: length", "reward_funcs", ["length"]),
        ("dpo", "loss_type: [sigmoid, sft]\nloss_weights: [1e0, 5e-1]", "loss_weights", [1.0, 0.5]),
        ("sft", "run_name: 2024", "run_name", "2024"),
        ("sft", "run_name: -x y", "run_name", "-x y"),
        ("sft", "packing: 'yes'", "packing", True),
        ("sft", "report_to: [tensorboard, none]", "report_to", ["tensorboard", "none"]),
        ("sft", "lr_scheduler_kwargs: {a: 1}", "lr_scheduler_kwargs", {"a": 1}),
        ("sft", "chat_template_kwargs: {a: true}", "template_arguments", {"a": True}),
        ("sft", "callbacks: []", "callbacks", []),
        ("sft", "eval_steps: ", "eval_steps", None),
    ],
)
def test_a_value_of_a_file_is_that_of_a_command_line(
    stage: str, text: str, name: str, value: object, tmp_path: Path
) -> None:
    found = getattr(of_file(tmp_path, stage, text)[-1], name)
    assert found == value and type(found) is type(value)


@pytest.mark.parametrize(
    ("text", "parts"),
    [
        ("packing_strategy: bdf", ["--packing_strategy cannot be 'bdf'", "file.yaml", "did you mean"]),
        ("packing: 3", ["--packing cannot be '3'", "file.yaml"]),
        ("run_name: {a: 1}", ["--run_name takes no names and values"]),
        ("run_name: [a, b]", ["--run_name takes one value, not 2"]),
        ("no_average_tokens_across_devices: true", ["is for command lines", "average_tokens_across_devices: false"]),
        ("packing: 3\npacking_strategy: bdf", ["cannot be '3'", "cannot be 'bdf'"]),
    ],
)
def test_a_file_is_refused_as_a_command_line(text: str, parts: list[str], tmp_path: Path) -> None:
    with pytest.raises(UserError) as refused:
        of_file(tmp_path, "sft", text)
    assert [part for part in parts if part not in str(refused.value)] == []


def test_several_trackers() -> None:
    argv = ["--model_name_or_path", "m", "--output_dir", "o", "--use_cpu", "True", "--report_to"]
    assert parse_arguments("sft", [*argv, "tensorboard", "wandb"])[-1].report_to == ["tensorboard", "wandb"]
    assert parse_arguments("sft", [*argv, "none"])[-1].report_to == []


@functools.cache
def parser_of(stage: str) -> HftuneParser:
    """One parser a stage; translating leaves no trace in it."""
    return stage_parser(stage)


@pytest.mark.parametrize("stage", ["sft", "rl"])
def test_help_shows_all_arguments_ours_first(stage: str) -> None:
    text = stage_parser(stage).format_help()
    shown = {word.strip(",-") for word in text.split()}
    assert not {name for name in parser_of(stage).known if "_" in name} - shown
    titles = [line for line in text.splitlines() if line.endswith(":") and not line.startswith((" ", "Names"))]
    assert titles.index("model and tokenizer:") < titles.index("training:") < len(titles) - 1
    assert "transformers" in titles[-1]
