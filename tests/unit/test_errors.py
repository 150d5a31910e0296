"""Messages and exit codes."""

from __future__ import annotations

import subprocess
import sys

import pytest

from hftune.errors import ArgumentError, UserError, raise_together

SCRIPT = "from hftune.errors import *\ndef main():\n    raise {error}\nrun_script(main)\n"


def test_several_problems_are_one_message() -> None:
    raise_together([])
    problems = [ArgumentError("first", place="--a", fix="do a"), ArgumentError("second", place="--b")]
    with pytest.raises(UserError) as caught:
        raise_together(problems)
    assert str(caught.value).splitlines() == [
        "2 problems, nothing was started:",
        "1. first",
        "  where: --a",
        "  to do: do a",
        "2. second",
        "  where: --b",
    ]


@pytest.mark.parametrize("error, code, traceback", [("UserError('no')", 2, False), ("KeyError('bug')", 1, True)])
def test_exit_code_tells_a_user_error_from_a_bug(error: str, code: int, traceback: bool) -> None:
    script = [sys.executable, "-c", SCRIPT.format(error=error)]
    finished = subprocess.run(script, capture_output=True, text=True)
    assert finished.returncode == code
    assert ("Traceback" in finished.stderr) is traceback
    if code == 2:
        assert finished.stderr.strip() == "error: no"
