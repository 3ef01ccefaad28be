"""Lines for the user: bare on the standard error, unless a program says otherwise."""

from __future__ import annotations

import io
import logging
import pickle
import subprocess
import sys
from typing import Any

import pytest

from harness.base.log import LOG
from harness.grid import grid
from harness.grid.grid import RemainingTime
from harness.store import Store


@pytest.fixture(autouse=True)
def restored(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(LOG, "handlers", [*LOG.handlers])
    monkeypatch.setattr(LOG, "level", LOG.level)


def test_a_line_is_written_as_it_is_to_what_is_the_standard_error_by_then(capsys) -> None:
    LOG.info("50% done")
    LOG.info("compiling ...", extra={"end": " "})
    LOG.warning("1.0 s")
    assert capsys.readouterr().err == "50% done\ncompiling ... 1.0 s\n"


def test_a_program_silences_or_redirects_lines(capsys) -> None:
    there = io.StringIO()
    logger = logging.getLogger("lagbench")
    logger.handlers = [logging.StreamHandler(there)]
    logger.info("on its way")
    logger.setLevel(logging.WARNING)
    logger.info("silenced")
    assert there.getvalue() == "on its way\n"
    assert capsys.readouterr().err == ""


def test_handlers_that_a_program_has_chosen_before_are_kept() -> None:
    code = """
import logging, sys
logging.getLogger("lagbench").addHandler(logging.StreamHandler(sys.stdout))
from harness.base.log import LOG
LOG.info("once")
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert (done.stdout, done.stderr) == ("once\n", "")


def test_a_line_of_a_grids_process_goes_where_the_asking_process_says(
    tmp_path, monkeypatch, capsys
) -> None:
    monkeypatch.setattr("harness.kernels.notice._told", None)
    news: list[Any] = []
    ours = LOG.handlers
    grid._begin(news.append)  # as in a process of a grid
    LOG.warning("run %s: made again", "abc")
    LOG.handlers = ours
    assert capsys.readouterr().err == ""
    left = RemainingTime({}, {}, processes=1)
    board = grid._Board((), set(), Store(tmp_path), left, lambda report: None)
    board.hear(pickle.loads(pickle.dumps(news[0])))
    assert capsys.readouterr().err == "run abc: made again\n"
    LOG.setLevel(logging.ERROR)
    board.hear(news[0])
    assert capsys.readouterr().err == ""
