import numpy as np

from harness.simulator.cluster import Jitter
from harness.simulator.simulation import Simulation
from harness.speech.lags import push_lag


def test_the_push_lag_is_what_comes_between_the_end_of_computing_and_the_fold(
    cluster, unit_job
) -> None:
    jittery = cluster(workers=3, copy_s=0.1, fold_s=0.3, jitter=Jitter("lognormal", 0.3))
    timeline = Simulation(jittery, "parameter_server", unit_job, 3, 1).advance(folds=200)
    ends: dict[int, list[float]] = {}
    spans = timeline.spans
    for worker, kind, end in zip(spans.worker, spans.kind, spans.end_s, strict=True):
        if timeline.kinds[kind] == "compute":
            ends.setdefault(int(worker), []).append(float(end))
    rows, times = timeline.folded(), timeline.folds.time_s
    folds, seconds = push_lag(timeline)
    for row, (worker, fold) in enumerate(zip(rows.worker, rows.fold, strict=True)):
        computed = ends[int(worker)].pop(0)
        assert seconds[row] == times[fold] - computed
        assert folds[row] == np.sum((times > computed) & (times < times[fold]))
    assert folds.max() >= 1
