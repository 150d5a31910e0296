"""Names and values that several rooms share."""

from __future__ import annotations

IGNORE_INDEX = -100
"""Label of a token that is not trained; the value torch's cross entropy ignores by default."""

MANIFEST_NAME = "hftune.json"
"""The file that says where an output folder came from."""

USER_ERROR_EXIT_CODE = 2
"""What every script exits with after a `UserError`."""

PREEMPTED_EXIT_CODE = 75
"""What every script exits with that was told to stop (SIGTERM, SIGUSR1) and saved a checkpoint: EX_TEMPFAIL of
sysexits.h. Start it again with `--resume_from_checkpoint auto`."""
