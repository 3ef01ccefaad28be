"""The runner ends, whatever becomes of those who try."""

from __future__ import annotations

import os
import signal
import time

import pytest

from tests.mutations import __main__ as runner
from tests.mutations.declared import declared
from tests.mutations.trial import Outcome

ONE = declared()[0]


@pytest.fixture(autouse=True)
def bare(monkeypatch):
    """Nothing imported for trials, and this process keeps its handlers of signals."""
    monkeypatch.setattr(runner, "preload", lambda: None)
    monkeypatch.setattr(signal, "signal", lambda *_: None)
    monkeypatch.setattr(runner, "LOOKS_EVERY_S", 0.05)


def test_a_killed_worker_is_an_error_of_one_line_while_its_trial_goes_on(
    monkeypatch, tmp_path, capsys
):
    def killed(*_):
        trial = os.fork()
        if trial == 0:
            time.sleep(60.0)
            os._exit(0)
        (tmp_path / "trial").write_text(str(trial))
        os.kill(os.getpid(), signal.SIGKILL)

    monkeypatch.setattr(runner, "_work", killed)
    try:
        assert runner.main(["--only", ONE.name]) == 2
    finally:
        os.kill(int((tmp_path / "trial").read_text()), signal.SIGKILL)
    said = capsys.readouterr().err.splitlines()
    assert said == ["a process that tried mutations ended with -9: no result"]


@pytest.mark.parametrize(("verdict", "code"), [("caught", 0), ("survived", 1), ("timed out", 0)])
def test_all_that_is_told_is_counted_before_the_end(verdict, code, monkeypatch, capsys):
    def works(folder, share, limit_s, tells):
        tells.send((None, Outcome("survived", 0.0, "")))
        for mutation in share:
            tells.send((mutation, Outcome(verdict, 0.1, "")))

    monkeypatch.setattr(runner, "_work", works)
    assert runner.main(["--only", "simulator/", "--jobs", "2"]) == code
    tried = [each for each in declared() if "simulator/" in each.name]
    assert f"of {len(tried)}," in capsys.readouterr().out


def test_what_a_worker_cannot_do_is_raised(monkeypatch):
    def fails(folder, share, limit_s, tells):
        tells.send(OSError("no space"))

    monkeypatch.setattr(runner, "_work", fails)
    with pytest.raises(OSError, match="no space"):
        runner.main(["--only", ONE.name])
