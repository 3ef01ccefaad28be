"""Every method of paper 1 gets the same search on development data."""

from types import SimpleNamespace
from typing import Any

import pytest

from harness.store import Run, Store
from reproductions.paper1_async_asgd.experiments import (
    AS_PRINTED,
    METHODS,
    PRESETS,
    RATE,
    MethodSettings,
)
from reproductions.paper1_async_asgd.tuning import OTHERS, RATES, Trial, trials, tuning


def test_all_methods_try_the_same_rates_and_as_many_other_settings():
    tried = trials(AS_PRINTED).values()
    rates = {m: [t.given.rate for t in tried if t.method == m][: len(RATES)] for m in METHODS}
    assert rates == {method: list(RATES) for method in METHODS}
    assert {len(others) for _, others in OTHERS.values()} == {4}
    assert [rate / RATE for rate in RATES] == [0.25 * 2**k for k in range(len(RATES))]


@pytest.mark.parametrize("scale", PRESETS)
def test_what_a_scale_uses_is_among_what_was_tried_whose_names_no_scale_changes(scale):
    chosen = PRESETS[scale].chosen
    tried = trials(chosen)
    assert tried.keys() == trials(AS_PRINTED).keys()
    assert {(method, given) for method, given in chosen.items()} <= set(tried.values())


def test_the_exhibit_has_every_trial_and_names_the_lowest(tmp_path, monkeypatch):
    store, chosen = (
        Store(tmp_path),
        {**AS_PRINTED, "hand": MethodSettings(2 * RATE, 0.003), "adapt": MethodSettings(RATE, 8.0)},
    )
    monkeypatch.setitem(PRESETS, "laptop", SimpleNamespace(chosen=chosen))

    def run(name: str, error: float) -> Run:
        with store.begin({"name": name}) as writer:
            for model in ("average", "iterate"):
                writer.log(f"dev_frame_error/{model}", error, fold=0, time_s=0.0, epoch=2.0)
            writer.finish("done", {})
        return store.load(writer.hash)

    best = (
        Trial("hand", MethodSettings(0.016, 0.003)),
        Trial("adapt", MethodSettings(0.008, 1 / 64)),
    )
    tried = trials(chosen).items()
    runs = {name: [run(name, 0.4 if trial in best else 0.5)] for name, trial in tried}
    subject: Any = SimpleNamespace(scale="laptop")
    made = tuning(subject, runs)
    assert len(made.rows) == len(trials(chosen))
    assert {row.measured for row in made.rows} == {40.0, 50.0}
    assert "ASGD-hand begins at 0.016, gain that keeps the rate 0.003 (the lowest)." in made.note
    adapt = "ASGD-adapt begins at 0.008, K 8 (lowest: 0.008 with 0.0156; K at an end of what was"
    assert adapt in made.note
