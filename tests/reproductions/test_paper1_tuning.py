"""Every method of paper 1 gets the same search on development data."""

from types import SimpleNamespace

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
    assert {len(others) for _, others in OTHERS.values()} == {3}
    assert [rate / RATE for rate in RATES] == [0.5 * 2**k for k in range(len(RATES))]


@pytest.mark.parametrize("scale", PRESETS)
def test_what_a_scale_uses_is_among_what_was_tried_whose_names_no_scale_changes(scale):
    chosen = PRESETS[scale].chosen
    tried = trials(chosen)
    assert tried.keys() == trials(AS_PRINTED).keys()
    assert {(method, given) for method, given in chosen.items()} <= set(tried.values())


def test_the_exhibit_has_every_trial_and_names_the_lowest_whose_rate_falls(tmp_path, monkeypatch):
    store, hand = Store(tmp_path), MethodSettings(0.016, 0.01)
    chosen = {**AS_PRINTED, "hand": hand, "adapt": MethodSettings(RATE, 8.0)}
    monkeypatch.setitem(PRESETS, "laptop", SimpleNamespace(chosen=chosen))
    best = (Trial("hand", hand), Trial("adapt", MethodSettings(0.008, 1 / 8)))

    def run(name: str, trial: Trial) -> Run:
        # One trial of hand has the lowest error, and a rate that hardly falls.
        stays = trial == Trial("hand", MethodSettings(0.032, 0.003))
        error = 0.3 if stays else 0.4 if trial in best else 0.5
        with store.begin({"name": name}) as writer:
            logged = [(f"dev_frame_error/{m}", error, 1.0) for m in ("average", "iterate")]
            rates = [("rate", 0.008, 0.5), ("rate", 0.004 if stays else 0.002, 1.0)]
            for metric, value, epoch in logged + rates:
                writer.log(metric, value, fold=0, time_s=0.0, epoch=epoch)
            writer.finish("done", {})
        return store.load(writer.hash)

    runs = {name: [run(name, trial)] for name, trial in trials(chosen).items()}
    made = tuning(SimpleNamespace(scale="laptop"), runs)
    assert len(made.rows) == len(trials(chosen))
    assert {row.measured for row in made.rows} == {30.0, 40.0, 50.0}
    assert made.note.endswith("Those that do not: tuning hand, rate 0.032.")
