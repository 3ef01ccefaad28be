"""What people are told of a reproduction's runs while they go on."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from harness.judge.makers import Maker
from reproductions import reproduce


@pytest.mark.parametrize(
    ("seeds", "tuned"), [((2001, 2002), "tuned"), ((2001,), "tuned seed 2001")]
)
def test_a_run_that_all_seeds_share_is_called_by_its_setting_alone(
    seeds, tuned, monkeypatch, tmp_path
):
    called: dict[Any, str] = {}

    def named(configs, name, *_):
        called.update({key: name(key) for key in configs})
        return dict.fromkeys(configs)

    monkeypatch.setattr(reproduce, "execute_named", named)
    paper: Any = SimpleNamespace(
        experiments=lambda _, seed: {"tuned": "seed 100", "one": f"seed {seed}", "unasked": ""}
    )
    subject: Any = SimpleNamespace(replicate=lambda _: None)
    request = reproduce.Request(seeds, (), 1, None, tmp_path)
    maker: Maker[Any, Any] = Maker("x", ("tuned", "one"), lambda *_: None)
    reproduce._executed(paper, subject, request, [maker])
    assert called == {
        name: text
        for seed in seeds
        for name, text in ((("tuned", seed), tuned), (("one", seed), f"one seed {seed}"))
    }


@pytest.mark.parametrize(
    ("words", "program"),
    [
        (["lagbench", "reproduce", "paper1"], "lagbench"),
        (["__main__.py", "paper1"], "python -m reproductions"),
    ],
)
def test_the_command_that_is_recorded_is_the_one_to_call_again(words, program, monkeypatch):
    monkeypatch.setattr(reproduce.sys, "argv", words)
    assert reproduce._program() == program
