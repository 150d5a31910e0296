"""A signal is noted, and acted on at the end of a step, of a save, or in an evaluation."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest
from transformers import TrainerControl, TrainerState, TrainingArguments

from hftune import interrupts
from hftune.trainers.preemption import EvaluationStopped, PreemptionCallback

pytestmark = pytest.mark.long

Begun = tuple[PreemptionCallback, TrainingArguments, TrainerState, TrainerControl]


@pytest.fixture
def begun(tmp_path: Path) -> Iterator[Begun]:
    """A callback whose training has begun, in a process that hears no signals of its own."""
    args, state = TrainingArguments(output_dir=str(tmp_path), report_to="none"), TrainerState()
    control, callback = TrainerControl(), PreemptionCallback()
    callback.on_train_begin(args, state, control)
    yield callback, args, state, control
    callback.end()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGUSR1, signal.SIGINT, signal.SIGHUP])
def test_a_signal_ends_the_run_after_the_step(number: int, tmp_path: Path) -> None:
    args, state = TrainingArguments(output_dir=str(tmp_path), report_to="none"), TrainerState()
    control, callback, before = TrainerControl(), PreemptionCallback(), signal.getsignal(number)
    callback.on_train_begin(args, state, control)
    callback.on_step_end(args, state, control)
    assert not control.should_save and not control.should_training_stop and not callback.stopped
    control.should_evaluate = True
    os.kill(os.getpid(), number)
    assert not control.should_training_stop, "not in the middle of a step"
    callback.on_step_end(args, state, control)
    assert control.should_save and control.should_training_stop and callback.stopped
    assert not control.should_evaluate, "an evaluation may take hours"
    callback.end()
    assert signal.getsignal(number) is before


def test_a_checkpoint_that_is_being_written_is_the_last(begun: Begun) -> None:
    callback, args, state, control = begun
    os.kill(os.getpid(), signal.SIGTERM)
    callback.on_save(args, state, control)
    assert control.should_training_stop and callback.stopped and not control.should_save


def test_an_evaluation_is_left(begun: Begun) -> None:
    callback, args, state, control = begun
    callback.on_prediction_step(args, state, control)
    os.kill(os.getpid(), signal.SIGTERM)
    with pytest.raises(EvaluationStopped):
        callback.on_prediction_step(args, state, control)
    assert callback.stopped


def test_a_script_s_own_listener_stays(begun: Begun) -> None:
    """What a script has begun to hear before training it hears afterwards."""
    _, args, state, control = begun
    outer = interrupts.listener()
    inner = PreemptionCallback()
    inner.on_train_begin(args, state, control)
    inner.end()
    assert interrupts.listener() is outer is not None and interrupts.deferring()
