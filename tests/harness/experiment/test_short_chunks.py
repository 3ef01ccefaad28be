"""The last chunk of a pass holds what is left, and may be shorter than a trial."""

from dataclasses import replace

from harness.algorithms.schedules import Search
from harness.experiment.run import run as train
from harness.simulator.timeline_file import load_timeline
from harness.store import Store

SEARCH = Search(0.02, least_minibatches=6, clear=0.0)


def searches(run) -> int:
    """How many searches the timeline holds."""
    timeline = load_timeline(run.path("timeline.parquet"))
    return int((timeline.spans.kind == timeline.kinds.index("search")).sum())


def test_a_last_chunk_shorter_than_a_trial_keeps_the_rate_and_costs_no_search(
    configure, corpus, tmp_path
):
    config = configure(schedule=SEARCH, passes=1, chunk=0.24)
    steps = corpus.frames_of("train") // 8
    chunk = round(0.24 * corpus.frames_of("train") / 8)
    assert 0 < steps % chunk < SEARCH.least_minibatches
    whole = replace(config, schedule=replace(SEARCH, whole_trials=True))
    every, all_but_the_last = (train(c, Store(tmp_path)) for c in (config, whole))
    assert searches(every) == steps // chunk + 1
    assert searches(all_but_the_last) == steps // chunk
