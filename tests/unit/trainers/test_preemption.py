"""A signal is noted, and acted on at the end of a step; a second one is not waited for."""

from __future__ import annotations

import os
import signal
import subprocess
import sys

import pytest
from transformers import TrainerControl, TrainerState, TrainingArguments

from hftune.trainers.preemption import PreemptionCallback

pytestmark = pytest.mark.long


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGUSR1])
def test_a_signal_ends_the_run_after_the_step(number: int, tmp_path) -> None:
    args, state = TrainingArguments(output_dir=str(tmp_path), report_to="none"), TrainerState()
    control, callback, before = TrainerControl(), PreemptionCallback(), signal.getsignal(number)
    callback.on_train_begin(args, state, control)
    callback.on_step_end(args, state, control)
    assert not control.should_save and not control.should_training_stop and not callback.stopped
    os.kill(os.getpid(), number)
    assert not control.should_training_stop, "not in the middle of a step"
    callback.on_step_end(args, state, control)
    assert control.should_save and control.should_training_stop and callback.stopped
    callback.on_train_end(args, state, control)
    assert signal.getsignal(number) is before


def test_a_second_signal_kills() -> None:
    script = (
        "import os, signal, time\n"
        "from hftune.trainers.preemption import PreemptionCallback\n"
        "callback = PreemptionCallback()\n"
        "callback.on_train_begin(None, None, None)\n"
        "os.kill(os.getpid(), signal.SIGTERM)\n"
        "print('still here', flush=True)\n"
        "os.kill(os.getpid(), signal.SIGTERM)\n"
        "time.sleep(60)\n"
    )
    finished = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=60)
    assert finished.returncode == -signal.SIGTERM and "still here" in finished.stdout
