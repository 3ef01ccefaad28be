import numpy as np
import pytest

from harness.acoustics import mmi
from harness.acoustics.decoder import Beam, lattice
from harness.acoustics.mmi import Criterion
from harness.experiment.run import run
from harness.store import Store
from reproductions.paper3_async_mmi.line_scan import POINTS, LineConfig, scan_line


@pytest.fixture
def told():
    return []


@pytest.fixture
def line(sequence, corpus, tmp_path, told):
    config = LineConfig(sequence(passes=1), utterances=8)
    return scan_line(config, corpus, Store(tmp_path), told.append)


def test_the_auxiliary_function_touches_the_criterion_in_value_and_slope(line):
    assert line.status == "done"
    assert line.summary["auxiliary_at_0"] == line.summary["criterion_at_0"]
    slope = line.summary["criterion_slope"]
    assert slope != 0
    assert line.summary["auxiliary_slope"] == pytest.approx(slope, rel=1e-5)


def test_over_a_narrow_lattice_the_slope_is_of_what_the_lattice_sums(
    sequence, corpus, tmp_path, monkeypatch
):
    narrow = Criterion("mmi", 0.5, "lattice", Beam(12.0, 40, 8.0), "sum", 0.0, 0.0)
    config = LineConfig(sequence(passes=1, criterion=narrow), utterances=8, points=())
    store, searched = Store(tmp_path), []
    run(config.training, store)

    def counted(*arguments):
        searched.append(1)
        return lattice(*arguments)

    monkeypatch.setattr(mmi, "lattice", counted)
    done = scan_line(config, corpus, store, lambda progress: None)
    assert done.summary["auxiliary_at_0"] == done.summary["criterion_at_0"]
    slope = done.summary["criterion_slope"]
    assert slope != 0
    assert done.summary["auxiliary_slope"] == pytest.approx(slope, rel=1e-6)
    # For the tangents and for what is held: on neither side of 0 is anything searched for.
    assert len(searched) == 2 * config.utterances


def test_away_from_where_they_touch_they_part(line):
    points, criterion, _ = line.curve("criterion")
    _, auxiliary, _ = line.curve("auxiliary")
    assert points.tolist() == list(POINTS)
    apart = np.abs(criterion - auxiliary)
    assert apart[0] > apart[len(points) // 3]
    assert apart[-1] > 1e-6


def test_how_far_it_has_come_is_told_at_every_point(line, told):
    shares = [progress.done for progress in told if progress.run == line.hash]
    assert shares == [i / len(POINTS) for i in range(len(POINTS))]


def test_a_training_that_diverged_has_no_line(sequence, corpus, tmp_path):
    config = LineConfig(sequence(rate=1e6), utterances=2)
    done = scan_line(config, corpus, Store(tmp_path), lambda progress: None)
    assert done.status == "diverged"
    assert done.note.startswith("its training (")
