import pytest

from harness.simulator.cluster import load_cluster
from reproductions.paper2_ng_averaging.claims import BAND
from reproductions.paper2_ng_averaging.prediction import (
    CLUSTER,
    FITTED_UP_TO,
    REPORTED,
    averaging,
    cluster,
    load_fit,
    predict_naively,
    workload,
)
from tests.reproductions.epochs import simulate_epoch


def speedup(workers, every, reading="minibatch"):
    machine = cluster(load_fit(reading).free)
    one = simulate_epoch(machine, averaging(), workload(), 1).total_s
    return one / simulate_epoch(machine, averaging(every), workload(), workers).total_s


@pytest.mark.parametrize(
    ("workers", "every", "figure"),
    [(16, 10, "speedup_16"), (32, 10, "speedup_32"), (16, 20, "speedup_16_every_20")],
)
def test_what_was_not_fitted_is_predicted_within_the_band(workers, every, figure):
    paper = REPORTED["claims"][figure]
    assert speedup(workers, every) == pytest.approx(paper, rel=BAND)


@pytest.mark.parametrize("reading", ["minibatch", "average"])
def test_the_fitted_figures_give_the_timings_that_they_were_fitted_to(reading):
    columns = (REPORTED["timings"][name] for name in ("gpus", "total_min", "mpi_min"))
    fitted, machine = load_fit(reading), cluster(load_fit(reading).free)
    errors = []
    for n, total_min, messages_min in zip(*columns, strict=True):
        if n <= FITTED_UP_TO:
            epoch = simulate_epoch(machine, averaging(), workload(), n)
            errors.append(epoch.total_s / (60.0 * total_min) - 1.0)
            if n > 1:
                errors.append(epoch.messages_s / (60.0 * messages_min) - 1.0)
    assert (len(fitted.free), len(errors)) == (4, 5)
    assert fitted.largest_error < 0.005
    assert max(map(abs, errors)) == pytest.approx(fitted.largest_error, rel=1e-3)


def test_the_cluster_file_holds_what_was_fitted():
    machines = load_cluster(CLUSTER), cluster(load_fit().free)
    file, fresh = (
        (m.parallel.slowdown, m.parallel.epoch_s, m.devices["K20"].achieved_flops_per_s,
         m.network.levels[0].bandwidth_bytes_per_s)
        for m in machines
    )  # fmt: skip
    assert file == pytest.approx(fresh, rel=0.01)
    assert machines[0].workload == workload()


def test_the_other_reading_of_the_excess_fits_as_well_and_predicts_another_figure():
    """Which is why it is reported beside the judged one."""
    assert speedup(16, 10, "average") == pytest.approx(speedup(16, 10), rel=0.01)
    assert speedup(16, 20, "average") > 1.05 * speedup(16, 20)


def test_rules_that_know_the_same_timings_predict_other_speed_ups():
    known = dict(zip((1, 2, 4), REPORTED["timings"]["total_min"][:3], strict=True))
    rules = {n: [*predict_naively(known, n).values()] for n in (4, 16, 32)}
    assert rules[4] == pytest.approx([254.5 / 96.0] * 3)
    assert rules[16] == pytest.approx([8.36, 10.6, 9.68], abs=0.01)
    assert rules[32] == pytest.approx([13.0, 21.2, 18.5], abs=0.05)
