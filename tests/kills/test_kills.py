"""A small command is disturbed in every way, and ends as one that never was.

Its clock jumps by years, to and fro, all the time.
"""

import sys
from functools import partial
from pathlib import Path
from random import Random

import pytest

from tests.kills.history import disturbed, results
from tests.kills.ways import WAYS
from tests.processes import Started

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="looks into /proc")
STEPS, STEP_S = 24, 0.03
PROGRAM = f"""
import sys, time
from pathlib import Path
import numpy as np
from harness.cli import exit_code, run_process
from harness.experiment import loop as checkpoint
from harness.store import Store

MAY_END = Path(sys.argv[1]) / "may-end"
the_time = time.time
time.time = lambda: the_time() + 1e8 * np.sin(1e3 * time.monotonic())

def train(writer):
    found = checkpoint.load(writer.checkpoint)
    first, total = (found[0]["at"].tolist() if found else (0, 0))
    for step in range(first, {STEPS}):
        end = time.process_time() + {STEP_S}
        while time.process_time() < end or (step == {STEPS - 1} and not MAY_END.exists()):
            pass
        total += step
        checkpoint.save(writer.checkpoint, {{"at": np.array([step + 1, total + FORGETS]) }}, {{}})
    writer.finish(summary={{"total": total}})

def run():
    Store(Path(sys.argv[1]) / "runs").obtain({{"seed": 0}}, train)
    return 0

sys.exit(run_process(lambda: exit_code(run)))
"""


def begun(out, program):
    return Started(["-c", program, out], leads=True)


@pytest.mark.parametrize("forgets", [0, 1])
def test_whatever_disturbs_a_command_its_results_are_those_of_an_undisturbed_one(tmp_path, forgets):
    """One that loses something at each resumption is found out.

    The command waits with its last step until the last disturbance is over: one that ended by
    itself between the decision to disturb it and the signal would look as if it ignored signals.
    """
    program = PROGRAM.replace("FORGETS", f"({forgets} if first else 0)")
    whole, out = tmp_path / "whole", tmp_path / "out"
    for folder in (whole, out):
        folder.mkdir()
    (whole / "may-end").touch()
    assert begun(whole, program).ended().returncode == 0
    again, let_end = partial(begun, out, program), (out / "may-end").touch
    history = disturbed(again, out, STEP_S * 3, len(WAYS), Random(4), WAYS, let_end)
    assert history.wrong == []
    assert sum(history.kills.values()) == len(WAYS)
    assert (results(out) == results(whole)) == (forgets == 0)


def test_results_are_runs_without_what_differs_and_a_report_without_its_moment(tmp_path):
    (folder := tmp_path / "runs" / "a").mkdir(parents=True)
    for name in ("run.json", "provenance.json", ".claim", "timeline.parquet"):
        (folder / name).write_text(name)
    (tmp_path / "results.json").write_text('{"provenance": 1, "claims": []}')
    found = results(tmp_path, frozenset({"timeline.parquet"}))
    assert sorted(Path(name).name for name in found) == ["results.json", "run.json"]
    assert found["results.json"] == '{"claims": []}'
