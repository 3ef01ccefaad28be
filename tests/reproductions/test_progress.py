"""What people are told of a reproduction's runs while they go on."""

import math
from types import SimpleNamespace
from typing import Any

from harness.judge.builders import Maker
from harness.store.schema import TIMELINE
from reproductions import reproduce


def test_a_run_is_called_by_its_own_seed_and_not_by_that_which_asks(monkeypatch, tmp_path):
    called: dict[Any, str] = {}

    def execute(self, configs, name, *_):
        called.update({key: name(key) for key in configs})
        return dict.fromkeys(configs)

    def config(**values):
        return SimpleNamespace(to_dict=lambda: values)

    monkeypatch.setattr(reproduce.Runner, "run", execute)
    paper: Any = SimpleNamespace(
        experiments=lambda _, seed: {
            "tuned": config(seed=100),
            "one": config(seed=seed),
            "unseeded": config(),
            "unasked": config(),
        },
        registration=None,
    )
    subject: Any = SimpleNamespace(scale="smoke", replicate=lambda _: None)
    request = reproduce.Request((2001, 2002), (), 1, None, tmp_path)
    maker: Maker[Any, Any] = Maker("x", ("tuned", "one", "unseeded"), lambda *_: None)
    reproduce._execute_runs(paper, subject, request, [maker])
    assert called == {
        (name, seed): f"{name} seed {100 if name == 'tuned' else seed}"
        for seed in (2001, 2002)
        for name in ("tuned", "one", "unseeded")
    }


def test_a_run_whose_timeline_is_drawn_and_absent_is_made_again(monkeypatch, tmp_path):
    asked: list[tuple[list[Any], frozenset[str], float]] = []
    light = {("first", 1), ("first", 2), ("every", 2), ("none", 1)}

    def execute(self, configs, _, budget_s):
        asked.append((list(configs), self.store._needed, budget_s))
        return {key: SimpleNamespace(without=lambda _, key=key: key in light) for key in configs}

    monkeypatch.setattr(reproduce.Runner, "run", execute)
    config: Any = SimpleNamespace(to_dict=lambda: {})
    paper: Any = SimpleNamespace(
        experiments=lambda *_: dict.fromkeys(("first", "every", "none"), config), registration=None
    )
    subject: Any = SimpleNamespace(scale="smoke", replicate=lambda _: None)
    makers: list[Maker[Any, Any]] = [
        Maker("x", ("first",), lambda *_: None, timelines=1),
        Maker("y", ("every",), lambda *_: None, timelines=math.inf),
        Maker("z", ("first", "every", "none"), lambda *_: None),
    ]
    reproduce._execute_runs(
        paper, subject, reproduce.Request((1, 2), (), 1, 60.0, tmp_path), makers
    )
    assert asked[1][0] == [("first", 1), ("every", 2)]
    assert [needed for _, needed, _ in asked] == [frozenset(), {TIMELINE}]
    assert 60.0 >= asked[0][2] > asked[1][2]  # one budget for both
