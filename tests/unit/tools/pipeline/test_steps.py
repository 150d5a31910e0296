"""From a file to commands: what the file leaves out, what it repeats, what it gets wrong, each with its line."""

from __future__ import annotations

from pathlib import Path

import pytest

from hftune.errors import ArgumentError
from hftune.tools.pipeline.checking import missing_files
from hftune.tools.pipeline.command import in_small
from hftune.tools.pipeline.spec import OF_STAGE
from tests.unit.tools.pipeline.files import by_name, steps

ROAD = """
model: base
output_dir: out
values: {data: records, lr: 1e-4}
shared: {use_peft: true, learning_rate: "${lr}"}
stages:
  pt: {train_file_dir: "${data}/pt"}
  sft: {train_file_dir: "${data}/sft", learning_rate: 2e-4}
  rm: {train_file_dir: "${data}/pairs"}
  rl: {train_file_dir: "${data}/prompts", num_generations: 4}
  dpo: {from: sft, train_file_dir: "${data}/pairs"}
"""


def test_the_whole_road(tmp_path: Path) -> None:
    found = by_name(steps(tmp_path, ROAD))
    stages = ("pt", "sft", "rm", "rl", "dpo")
    assert list(found) == [name for stage in stages for name in (stage, f"merge {stage}")]
    models = {stage: found[stage].arguments["model_name_or_path"] for stage in stages}
    merged = {stage: [f"out/{stage}-merged"] for stage in stages}
    assert models == {
        "pt": ["base"],
        "sft": merged["pt"],
        "rm": merged["sft"],
        "rl": merged["sft"],
        "dpo": merged["sft"],
    }
    assert found["rl"].arguments["reward_model_path"] == merged["rm"], "the latest reward model before"
    assert found["merge sft"].argv == ["--peft_model_path", "out/sft", "--output_dir", "out/sft-merged"]
    assert found["pt"].arguments["learning_rate"] == ["1e-4"] and found["sft"].arguments["learning_rate"] == ["2e-4"]
    assert {*found["rl"].needs} == {"rm", "merge rm", "sft", "merge sft"}


def test_a_command_is_what_a_user_would_type(tmp_path: Path) -> None:
    stage = "{packing: true, target_modules: [q_proj, v_proj], seed: null, model_init: {a: 1}}"
    text = f"model: base\noutput_dir: out\nlauncher: {{deepspeed: {{num_gpus: 2}}}}\nstages:\n  sft: {stage}\n"
    (step,) = steps(tmp_path, text)
    command = step.command("--more")
    assert command[:3] == ["deepspeed", "--num_gpus", "2"] and Path(command[3]).name == "run_sft.py"
    assert command[4:] == [
        *("--model_name_or_path", "base", "--packing", "True", "--target_modules", "q_proj", "v_proj"),
        *("--model_init", '{"a": 1}', "--output_dir", "out/sft", "--more"),
    ]


def test_an_adapter_that_is_not_merged_goes_on(tmp_path: Path) -> None:
    text = ROAD.replace("pt: {", "pt: {merge: false, ")
    found = by_name(steps(tmp_path, text))
    assert "merge pt" not in found
    assert found["sft"].arguments["model_name_or_path"] == ["base"] and found["sft"].arguments["peft_path"] == [
        "out/pt"
    ]
    assert found["merge sft"].arguments["peft_model_path"] == ["out/sft"]


def test_full_training_needs_no_merge(tmp_path: Path) -> None:
    found = by_name(steps(tmp_path, ROAD.replace("use_peft: true", "use_peft: false")))
    assert not any(name.startswith("merge") for name in found)
    assert found["sft"].arguments["model_name_or_path"] == ["out/pt"]


def test_a_sweep_runs_what_the_values_touch(tmp_path: Path) -> None:
    text = ROAD.replace("values:", "matrix: {lr: [1e-4, 2e-4], rank: [4, 8]}\nvalues:")
    text = text.replace('shared: {use_peft: true, learning_rate: "${lr}"}', "shared: {use_peft: true}")
    text = text.replace("learning_rate: 2e-4", "learning_rate: '${lr}'").replace(
        "num_generations: 4", "lora_rank: '${rank}'"
    )
    found = by_name(steps(tmp_path, text))
    trained = [name for name in found if "merge" not in name]
    assert trained.count("pt") == 1, "nothing in it depends on the matrix"
    assert [name for name in trained if name.endswith("/sft")] == ["lr=1e-4/sft", "lr=2e-4/sft"]
    assert len([name for name in trained if name.endswith("/rl")]) == 4
    last = found["lr=2e-4,rank=8/rl"]
    assert last.arguments["model_name_or_path"] == ["out/lr=2e-4/sft-merged"]
    assert last.arguments["reward_model_path"] == ["out/lr=2e-4/rm-merged"] and last.arguments["lora_rank"] == ["8"]
    assert len({step.folder for step in found.values()}) == len(found)


ASKED = ROAD + "answers: {questions: ['Who are you?', Why], question_file: '${data}/asked', max_new_tokens: 9}\n"


def test_all_language_models_are_asked_at_the_end(tmp_path: Path) -> None:
    found = steps(tmp_path, ASKED)
    last = found[-1]
    assert last.name == last.stage == "answers" and str(last.folder) == "out/answers"
    models = ["base", *(f"out/{stage}-merged" for stage in ("pt", "sft", "rl", "dpo"))]
    assert last.command() == [
        *("hftune", "ask", "--models", *models, "--questions", "Who are you?", "Why"),
        *("--question_file", "records/asked", "--max_new_tokens", "9"),
        *("--reward_model_path", "out/rm-merged", "--output_dir", "out/answers"),
    ]
    assert {*last.needs} == {step.name for step in found[:-1]}
    without = steps(
        tmp_path, ASKED.replace("  rm: {", "  dpo2: {script: dpo, ").replace("  rl: {", "  rl: {reward_funcs: length, ")
    )
    assert "reward_model_path" not in without[-1].arguments
    assert steps(tmp_path, ROAD) == [step for step in found if step.name != "answers"]


def test_rewards_of_several_reward_models_do_not_compare(tmp_path: Path) -> None:
    sweep = ASKED.replace("values:", "matrix: {rank: [4, 8]}\nvalues:")
    one = steps(tmp_path, sweep.replace("num_generations: 4", "lora_rank: '${rank}'"))[-1]
    assert one.arguments["reward_model_path"] == ["out/rm-merged"]
    assert [name for name in one.arguments["models"] if "/rl-" in name] == [f"out/rank={n}/rl-merged" for n in (4, 8)]
    two = steps(tmp_path, sweep.replace("rm: {", "rm: {lora_rank: '${rank}', "))[-1]
    assert "reward_model_path" not in two.arguments and len(two.arguments["models"]) == 6


def test_references(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HFTUNE_TEST", "here")
    text = """
model: base
output_dir: out
values: {a: "${b}/x", b: "${env.HFTUNE_TEST}", n: 3}
stages:
  pt: {train_file_dir: "${a}", seed: "${n}", run_name: "$${a} ${env.HFTUNE_ABSENT:-none}"}
  sft: {from: model, tokenizer_name_or_path: "${stages.pt.model}"}
"""
    found = by_name(steps(tmp_path, text))
    assert found["pt"].arguments["train_file_dir"] == ["here/x"] and found["pt"].arguments["seed"] == ["3"]
    assert found["pt"].arguments["run_name"] == ["${a} none"]
    assert found["sft"].arguments["model_name_or_path"] == ["base"]
    assert found["sft"].arguments["tokenizer_name_or_path"] == ["out/pt"] and found["sft"].needs == ("pt",)


TOP = "model: m\noutput_dir: o\n"


@pytest.mark.parametrize(
    ("text", "line", "words"),
    [
        (TOP + "stages:\n  sft: {seed: '${sed}'}\n", 4, "there is no ${sed}"),
        (TOP + "values: {a: '${b}', b: '${a}'}\nstages: {sft: {seed: '${a}'}}\n", 3, "made from itself"),
        (TOP + "stages:\n  sft: {}\n  sft: {}\n", 5, "twice, first in line 4"),
        (TOP + "stages:\n  sfft: {}\n", 4, "did you mean sft?"),
        (TOP + "stage:\n  sft: {}\n", 3, "did you mean stages?"),
        (TOP + "stages:\n  sft:\n    launcher: mpi\n", 5, "there is no launcher mpi"),
        (TOP + "stages:\n  sft: {}\n  dpo:\n    from: rm\n", 6, "cannot build on rm"),
        (TOP + "stages:\n  sft:\n    output_dir: x\n", 5, "cannot set output_dir"),
        ("output_dir: o\nstages:\n  sft: {}\n", 3, "no model to begin with"),
        ("model: ~\noutput_dir: o\nstages:\n  sft: {}\n", 4, "no model to begin with"),
        (TOP + "matrix: {lr: 1}\nstages: {sft: {}}\n", 3, "lr of matrix is no list"),
        (TOP + "stages:\n  sft: {}\n  dpo: {seed: '${stages.rl.model}'}\n", 5, "no stage before"),
        (TOP + "stages:\n  sft: {}\nanswers:\n  models: [a]\n", 6, "answers cannot set models"),
        (TOP + "stages:\n  answers: {script: sft}\nanswers: {questions: [a]}\n", 4, "cannot be called"),
    ],
)
def test_what_is_wrong_has_a_line(tmp_path: Path, text: str, line: int, words: str) -> None:
    with pytest.raises(ArgumentError) as caught:
        steps(tmp_path, text)
    assert words in str(caught.value) and f"pipeline.yaml:{line}\n" in f"{caught.value}\n"


def test_keys_of_a_stage_are_no_arguments() -> None:
    from hftune.arguments.names.table import table
    from hftune.arguments.stage_table import STAGES
    from hftune.arguments.stages import stage_parser

    names = {name for stage in STAGES for name in stage_parser(stage).known} | {*table()}
    assert not {*OF_STAGE} & names


SAMPLED = """
model: base
output_dir: out
shared: {use_peft: true}
stages:
  sft: {train_file_dir: data, merge: false}
  rm: {from: sft, train_file_dir: pairs}
  sample: {from: sft, train_file_dir: prompts, keep: pairs, num_generations: 8}
  dpo: {from: sft, train_file_dir: "${stages.sample.data}"}
"""


def test_what_a_stage_samples_trains_the_next(tmp_path: Path) -> None:
    named = by_name(steps(tmp_path, SAMPLED))
    assert named["sample"].command() == [
        *("hftune", "sample", "--reward_model_path", "out/rm-merged", "--model_name_or_path", "out/sft"),
        *("--train_file_dir", "prompts", "--keep", "pairs", "--num_generations", "8", "--output_dir", "out/sample"),
    ]
    launched = SAMPLED.replace("keep: pairs", "launcher: {torchrun: {nproc_per_node: 2}}, reward_funcs: accuracy")
    sample = by_name(steps(tmp_path, launched))["sample"]
    assert sample.command()[:5] == ["torchrun", "--nproc_per_node", "2", "--module", "hftune.cli"]
    assert sample.command()[5] == "sample" and "reward_model_path" not in sample.arguments, "a function is a reward"
    assert {*named["sample"].needs} == {"sft", "rm", "merge rm"} and not named["sample"].trains
    assert named["dpo"].arguments["train_file_dir"] == ["out/sample/data"] and "sample" in named["dpo"].needs
    assert named["dpo"].arguments["peft_path"] == ["out/sft"], "not what the sampling made"
    assert in_small(named["sample"]).arguments["max_train_samples"] == ["8"]
    assert not any("sample" in str(problem) for problem in missing_files(named["dpo"], {"out/sample"}))
    assert any("out/sample/data" in str(problem) for problem in missing_files(named["dpo"]))


def test_what_was_sampled_is_no_model(tmp_path: Path) -> None:
    with pytest.raises(ArgumentError, match="stage sample has no model"):
        steps(tmp_path, SAMPLED.replace("stages.sample.data", "stages.sample.model"))
    served = SAMPLED.replace("keep: pairs", "server_url: 'http://a:1', reward_funcs: length")
    given = by_name(steps(tmp_path, served))["sample"].arguments
    assert "model_name_or_path" not in given and "reward_model_path" not in given


@pytest.mark.parametrize("form", ["'${{{0}}}${{{0}}}'", "['${{{0}}}', '${{{0}}}']"])
def test_values_that_double_thirty_times_are_refused(tmp_path: Path, form: str) -> None:
    values = "".join(f"  v{n + 1}: {form.format(f'v{n}')}\n" for n in range(30))
    text = f"output_dir: out\nvalues:\n  v0: ''\n{values}stages:\n  sft: {{train_file_dir: '${{v30}}'}}\n"
    with pytest.raises(ArgumentError, match="references lead to more than 100,000 others"):
        steps(tmp_path, text)


def test_a_matrix_of_millions_is_refused(tmp_path: Path) -> None:
    lists = "".join(f"  v{n}: [1, 2, 3, 4, 5, 6, 7, 8, 9]\n" for n in range(9))
    with pytest.raises(ArgumentError, match="make 387,420,489 combinations"):
        steps(tmp_path, f"output_dir: out\nmatrix:\n{lists}stages:\n  sft: {{train_file_dir: d, seed: '${{v1}}'}}\n")
