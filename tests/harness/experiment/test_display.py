"""What a grid says of its progress: what runs, how far it is, and how long it will take."""

import logging

import pytest

from harness.base.log import LOG
from harness.experiment import display, pools
from harness.experiment.contract import Progress
from harness.experiment.display import Display, Tally
from harness.kernels import notice

RUNS = {"a": "first", "b": "second"}


@pytest.fixture
def clock(monkeypatch):
    now = [100.0]
    monkeypatch.setattr(display.time, "monotonic", lambda: now[0])
    return now


def test_the_time_left_is_one_number_by_the_efforts_so_far(clock):
    with Display(RUNS, {"a": 30.0, "b": 10.0}) as shown:
        assert shown.left_s() is None
        clock[0] += 60.0
        shown.hear(Progress("a", 1.0, 2.0))
        assert shown.left_s() == pytest.approx(60.0 * 25 / 15)
        shown.finish("a")
        assert shown.left_s() == pytest.approx(20.0)
        shown.hear(Progress("a", 1.0, 2.0))  # late news of what has finished
        assert shown.left_s() == pytest.approx(20.0)


def test_lines_come_seldom_and_say_what_runs_how_far_it_is_and_in_the_end_how_long_it_was(
    clock, capsys
):
    with Display(RUNS, dict.fromkeys(RUNS, 0.0), already=1) as shown:
        clock[0] += 5.0
        shown.hear(Progress("a", 0.5, 2.0))
        clock[0] += 5.0
        shown.hear(Progress("a", 1.0, 2.0, "error 0.5"))
        shown.hear(Progress("b", 1.0, 2.0))
        shown.hear("kernel")
        clock[0] += 200.0
        shown.hear(Progress("c" * 64, 1.0, 3.0))
        shown.hear(Progress("c" * 64, 3.0, 3.0))
        shown.hear("")
        shown.finish("a")
        shown.finish("b")
    assert capsys.readouterr().err.splitlines() == [
        "[1 of 3 runs finished]",
        "[1 of 3 runs finished, 30 s left] first 1.0/2 passes, error 0.5",
        "[1 of 3 runs finished, 4 min left; compiling, once on this machine: kernel] "
        "first 1.0/2 passes, error 0.5; second 1.0/2 passes; "
        "start of other runs (cccccccccccc) 1.0/3 passes",
        "[3 of 3 runs finished]",
        "2 runs in 4 min, 1 finished before",
    ]


def test_a_terminal_shows_live_lines(monkeypatch, capsys):
    monkeypatch.setattr("sys.stderr.isatty", lambda: True)
    with Display(RUNS, dict.fromkeys(RUNS, 0.0)) as shown:
        shown.hear(Progress("a", 0.5, 2.0))
    assert "first 0.5/2 passes" in capsys.readouterr().err


def test_a_search_says_how_many_trainings_there_can_be_and_how_long_they_mostly_take(clock):
    tally = Tally(8, usual=6, done=2, made=1)
    clock[0] += 10.0
    shown = Display(RUNS, dict.fromkeys(RUNS, 0.0), tally=tally)
    shown.finish("a")
    assert (tally.describe(2), shown.left_s()) == ("training 5 of at most 8", 15.0)


def test_what_a_process_logs_and_compiles_is_told_by_the_one_that_asked(
    monkeypatch, capsys, log_handlers
):
    monkeypatch.setattr(notice, "_told", None)
    monkeypatch.setattr(pools, "_tell", None)
    sent: list[object] = []

    class Connection:
        send = sent.append

    pools._begin_process(Connection)
    LOG.warning("run %s: made again", "abc")
    notice._tell("kernel", None)
    notice._tell("kernel", 1.0)
    LOG.handlers = [*log_handlers]
    assert capsys.readouterr().err == ""
    shown = Display({}, {})
    for news in sent:
        shown.hear(news)
    assert capsys.readouterr().err.splitlines()[0] == "run abc: made again"
    assert sent[1:] == ["kernel", ""]
    LOG.setLevel(logging.ERROR)
    shown.hear(sent[0])
    assert capsys.readouterr().err == ""
