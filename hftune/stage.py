"""The bookends that every script shares: `start_run` before anything loads, `finish_run` from training to manifest."""

from __future__ import annotations

import json
import time
from contextlib import nullcontext, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Generic

from transformers import set_seed

from hftune import terminal
from hftune.arguments.defaults.recipe import recipe
from hftune.arguments.entry import RunArguments
from hftune.arguments.training import StageArguments
from hftune.checkpoints import manifest as manifests
from hftune.checkpoints.manifest import HISTORY, same_records, trained_before, with_history
from hftune.checkpoints.model_card import model_card
from hftune.checkpoints.resume import (
    find_checkpoint,
    remove_leftovers,
    rename_earlier_run,
    report_nothing_left,
    restore_checkpoints,
    starts_fresh,
    steps_done,
)
from hftune.constants import LOG_NAME, SAMPLES_NAME
from hftune.data.preview import preview, text_samples
from hftune.data.splits import Splits
from hftune.distributed import phases, ranks, watchdog
from hftune.errors import ArgumentError, Preempted, UserError, shown
from hftune.logging import get_logger, notice, notices
from hftune.on_demand import on_demand
from hftune.preflight.check_run import check_run
from hftune.preflight.facts import Facts, Training, resolve
from hftune.publishing.disk import disk_errors, lexists, write_file
from hftune.publishing.folder import write_page
from hftune.publishing.ownership import is_written
from hftune.trainers.features.answers import COMPLETIONS_NAME
from hftune.trainers.features.run import OnTrainBegin
from hftune.trainers.preemption import EvaluationStopped, PreemptionCallback
from hftune.trainers.progress import NAME as PROGRESS_NAME
from hftune.trainers.progress import ProgressFile, use_progress_line
from hftune.trainers.result import lock_output, remove_new_folder_on_failure, save_result, unlock_output
from hftune.trainers.run_manifest import describe_result, describe_run
from hftune.trainers.stage_trainer import StageTrainer

_TRACKED = "hftune.trainers.trackers:tracked"


@dataclass(frozen=True)
class Run(Generic[Training]):
    """One run of one stage.

    Args:
        facts: What it is; its arguments are as decided, and what is loaded and trained is made of them.
        began: Seconds since the epoch.
    """

    facts: Facts[Training]
    began: float

    @property
    def arguments(self) -> RunArguments[Training]:
        """Model, data, adapter and training, as decided."""
        return self.facts.arguments


def start_run(stage: str, arguments: RunArguments[Training]) -> Run[Training]:
    """Decide what was left open, refuse what cannot work, all problems in one message, and seed everything.

    Nothing is written yet; a checkpoint that a killed run has left under another name gets its own back.

    Args:
        stage: A key of `STAGES`.
        arguments: As parsed. They must outlive the model: transformers has no other hold on the DeepSpeed config.
    """
    # First of all: the watchdog agrees on a word, and machines compare themselves, by collectives.
    arguments.training.join_process_group()
    watchdog.start(arguments.training.hang_timeout)
    # The first process of a machine, before others look: `resolve` begins with a collective.
    if ranks.local_rank() == 0:
        restore_checkpoints(arguments.training)
    facts = resolve(stage, arguments)
    check_run(facts)
    training_args = facts.training_args
    # Only now, for a run that is refused leaves no folder, and does not wait for one that another run holds.
    remove_new_folder_on_failure(Path(str(training_args.output_dir)))
    lock_output(Path(str(training_args.output_dir)), create=False)
    # After the checks, some of which draw numbers; all ranks draw the same adapter and score head.
    set_seed(training_args.seed)
    where = "CPU" if training_args.use_cpu else str(training_args.device)
    get_logger().info(
        "%s: %s process(es) on %s, ZeRO stage %s", stage, ranks.world_size(), where, training_args.zero_stage
    )
    for line in recipe(*facts.arguments):
        get_logger().info(line)
    return Run(facts, time.time())


def finish_run(run: Run, trainer: StageTrainer, data: Splits) -> dict[str, Any]:
    """Train (or resume from a checkpoint), evaluate, save weights and tokenizer, and write the manifest last.

    Returns:
        The manifest as written.

    Raises:
        ArgumentError: The disk does not take what is written.
    """
    stop = PreemptionCallback()
    try:
        with disk_errors(str(run.facts.training_args.output_dir)):
            return _finish_run(run, trainer, data, stop)
    finally:
        stop.end()
        unlock_output()


def _finish_run(run: Run, trainer: StageTrainer, data: Splits, stop: PreemptionCallback) -> dict[str, Any]:
    args = run.facts.training_args
    # Known only now: a tokenised folder may hold a held-out split of its own.
    if data.evaluation is None and not args.do_train:
        raise nothing_to_do()
    assert trainer.is_deepspeed_enabled == (args.ds_resolved is not None), "DeepSpeed was asked for and is not at work"
    if run.facts.data_args.preview and ranks.is_main():
        rows = trainer.get_total_train_batch_size(args)
        preview(data, trainer.processing_class, run.facts.data_args.preview, rows_per_step=rows)
    # Before training, which partitions, wraps or folds what is described.
    manifest = describe_run(run.facts, trainer, data)
    for file, folder in trained_before(manifest):
        notice(
            f"{file}, of which records are held out, was trained in {folder}: figures are of what the model has seen"
        )
    use_progress_line(trainer)
    with on_demand(_TRACKED)(trainer, manifest) if args.report_to else nullcontext():
        if args.do_train:
            lock_output(Path(str(args.output_dir)), create=True)
            manifest["metrics"] |= _train(run, trainer, data, manifest, stop)
        if data.evaluation is not None:
            manifest["metrics"] |= _last_evaluation(trainer, manifest)
            _open_log(args)
            trainer.save_state()
    # Of every rank: counting trained tokens is a collective.
    manifest |= describe_result(run.began, trainer, data)
    manifest["status"] = manifests.COMPLETE
    if args.do_train and ranks.is_main():
        _write_card(args, manifest)
    _write(args, manifest)
    ranks.barrier()
    # Past the last collective; an upload may take longer than any step.
    watchdog.stop()
    if args.push_to_hub and args.do_train:
        trainer.push_to_hub(commit_message="Model trained with hftune")
    _say_goodbye(run, manifest)
    return manifest


def _last_evaluation(trainer: StageTrainer, manifest: manifests.Manifest) -> dict[str, float]:
    """What the last weights measure: of the evaluation in training at the last step, where there was one.

    Raises:
        Preempted: A signal asked for an end; training is done.
    """
    known = trainer.current_evaluation
    if trainer.args.do_train and known is not None:
        return known
    try:
        with phases.timed(phases.EVALUATION):
            found: dict[str, float] = trainer.evaluate()
    except EvaluationStopped:
        raise _stopped(trainer, manifest) from None
    return found


def _train(
    run: Run,
    trainer: StageTrainer,
    data: Splits,
    manifest: manifests.Manifest,
    stop: PreemptionCallback,
) -> dict[str, float]:
    """Train from the beginning or from a checkpoint, save the result, and return the metrics.

    Raises:
        Preempted: A signal asked for an end, and a checkpoint is there.
        UserError: No step was trained.
    """
    args = run.facts.training_args
    resume = find_checkpoint(args)
    if resume:
        report_nothing_left(args, resume)
        manifest.update(_resumed(args, manifest, Path(resume)))
    # Each checkpoint carries it, so that whoever takes one up knows what made it.
    trainer.checkpoints.manifest = manifest | {"status": manifests.CHECKPOINT}
    # In this order: signals are noted before the first file is written.
    trainer.add_callback(stop)
    trainer.add_callback(OnTrainBegin(lambda: _begin(args, trainer, data, manifest, anew=resume is None)))
    trainer.add_callback(ProgressFile(lambda: trainer.speed.tokens, lambda: trainer.digests.latest))
    if args.callbacks or args.early_stopping_patience:
        for callback in on_demand("hftune.trainers.callbacks:asked_callbacks")(args):
            trainer.add_callback(callback)
    try:
        result = trainer.train(resume_from_checkpoint=resume)
    except EvaluationStopped:  # one before the first step (--eval_on_start)
        raise _stopped(trainer, manifest) from None
    if stop.stopped:
        raise _stopped(trainer, manifest)
    check_trained(trainer.state.global_step)
    try:
        # What was taken apart for training (experts, fused layers) is put together again.
        trainer.before_saving()
    except EvaluationStopped:  # of a reward model, whose scores are measured here
        raise _stopped(trainer, manifest) from None
    # The Trainer switches the cache off for training; generation from what is saved wants it.
    config = trainer.model.config
    vars(config).pop("use_cache", None)  # of a model of several parts it is the language model's
    config.get_text_config().use_cache = True
    save_result(trainer, manifest, run.facts.model_args)
    # Told while it saved: the result is whole, and the exit code says that the run was asked to end.
    if stop.agreed_signal():
        raise _stopped(trainer, manifest)
    return result.metrics


def _resumed(args: StageArguments, manifest: manifests.Manifest, checkpoint: Path) -> manifests.Manifest:
    """The manifest with the legs before the checkpoint; what is another one now is said.

    Raises:
        ArgumentError: The records are others, and nobody has asked for that.
    """
    then = manifests.read_manifest(checkpoint)
    if then is None:  # of another tool
        return manifest
    found = with_history(manifest, then, steps_done(checkpoint)[0])
    if not same_records(then, manifest):
        files = {
            name: ", ".join(one["data"]["train"]["files"][:3]) for name, one in (("then", then), ("now", manifest))
        }
        cause = f"{checkpoint} was trained on other records than this run has ({files['then']}; now {files['now']})"
        if not args.resume_anyway:
            raise ArgumentError(
                cause,
                place="--resume_from_checkpoint, and what names and shapes the training data",
                fix="resume with the data it was made with; or begin with its weights, in another --output_dir: "
                f"--warm_start {checkpoint}; or add --resume_anyway, which records both",
            )
        notice(f"{cause}, and is resumed all the same")
    changed = found[HISTORY][-1]["changed"]
    if changed:
        notice(f"{checkpoint} was made with other arguments: {shown(', '.join(f'--{one}' for one in changed), 300)}")
    return found


def _begin(
    args: StageArguments, trainer: StageTrainer, data: Splits, manifest: manifests.Manifest, *, anew: bool
) -> None:
    """The first that a run writes into its output folder."""
    _open_log(args)
    if ranks.is_main():
        # Writing a checkpoint does so, too; but a run that resumes from its last step writes none. A folder of somebody
        # else's with that name is in the way of a checkpoint alone.
        with suppress(ArgumentError):
            remove_leftovers(Path(str(args.output_dir)))
    if anew and ranks.is_main():
        rename_earlier_run(Path(str(args.output_dir)), (PROGRESS_NAME, COMPLETIONS_NAME))
    if not manifests.is_complete(args.output_dir):
        # A finished result keeps its manifest until the new one replaces it (`save_result`).
        _write(args, manifest)
    _write_samples(args, trainer, data)


def _open_log(args: StageArguments) -> None:
    """Where the words of libraries go from now on, those of before included; each process has its file."""
    name = LOG_NAME if ranks.is_main() else LOG_NAME.replace(".", f"-rank{ranks.rank()}.")
    terminal.open_log(Path(str(args.output_dir)) / name)


def _stopped(trainer: StageTrainer, manifest: manifests.Manifest) -> Preempted:
    """What ends a run that was told to stop, once a checkpoint of its last step is there and the manifest says so."""
    args, step = trainer.args, trainer.state.global_step
    name = f"checkpoint-{step}"
    # All ranks go the same way from here: saving is a collective.
    there = ranks.all_agree((Path(str(args.output_dir)) / name).is_dir())
    # Where the best weights were loaded they are not those of the last step any more.
    if not there and not args.load_best_model_at_end and step:
        trainer.save_checkpoint()
        there = True
    trainer.checkpoints.wait_together()
    if not manifests.is_complete(args.output_dir):
        _write(args, manifest | {"status": manifests.INTERRUPTED, "steps": step, "notices": notices()})
    ranks.barrier()
    saved = f"{name} is saved" if there else "checkpoints are kept" if step else "there is nothing to save"
    # Without it the same command would begin anew.
    how = "the same command" + (" with --resume_from_checkpoint auto" if starts_fresh(args) else "")
    return Preempted(f"stopped at step {step}, {saved}: {how} resumes")


def nothing_to_do() -> UserError:
    """The error for a run that neither trains nor evaluates."""
    return ArgumentError(
        "there is nothing to evaluate, and nothing is trained",
        place="--do_eval",
        fix="give held-out records: --validation_file_dir, or --validation_split_percentage; or train: --do_train True",
    )


def check_trained(steps: int) -> None:
    """Let no run end as complete that has no step behind it; one that is resumed at its end has.

    Raises:
        UserError: It has none.
    """
    if steps == 0:
        raise UserError(
            "no step was trained: the data ended before the first one",
            place="training data",
            fix="give more records, smaller batches or fewer --gradient_accumulation_steps; nothing was saved",
        )


def _write(args: StageArguments, manifest: manifests.Manifest) -> None:
    if ranks.is_main():
        assert args.output_dir is not None
        # What lies there of a result before stays recorded as hftune's until a new one takes its place.
        known = (manifests.read_manifest(args.output_dir) or {}).get("files")
        manifests.write_manifest(args.output_dir, ({"files": known} if known else {}) | manifest)


def _write_samples(args: StageArguments, trainer: StageTrainer, data: Splits) -> None:
    """What is trained, as text, for `hftune report`."""
    if ranks.is_main():
        found = text_samples(data, trainer.processing_class, 2)
        text = json.dumps(found, ensure_ascii=False, indent=1)
        write_file(Path(str(args.output_dir)) / SAMPLES_NAME, text + "\n")


def _write_card(args: StageArguments, manifest: manifests.Manifest) -> None:
    """A short README.md; one that somebody else has written there stays."""
    file = Path(str(args.output_dir)) / "README.md"
    if lexists(file) and not is_written(file):
        notice(f"{file} is left as it is: hftune did not write it, or it was edited since")
    else:
        write_page(file, model_card(manifest, file.resolve().parent.name))


def _say_goodbye(run: Run, manifest: manifests.Manifest) -> None:
    metrics = manifest["metrics"]
    shown = {name: metrics[name] for name in sorted(metrics) if name.startswith(("eval_", "train_loss"))}
    figures = ", ".join(f"{name} {value:.4g}" for name, value in shown.items() if isinstance(value, float))
    get_logger().info(
        "%s done in %.0f s: %s", run.facts.stage, manifest["wall_seconds"], run.facts.training_args.output_dir
    )
    if figures:
        get_logger().info("  %s", figures)
