"""What people are told of a reproduction's runs while they go on."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from harness.judge.makers import Maker
from reproductions import reproduce


def test_a_run_is_called_by_its_own_seed_and_not_by_that_which_asks(monkeypatch, tmp_path):
    called: dict[Any, str] = {}

    def named(configs, name, *_):
        called.update({key: name(key) for key in configs})
        return dict.fromkeys(configs)

    def config(**values):
        return SimpleNamespace(to_dict=lambda: values)

    monkeypatch.setattr(reproduce, "execute_named", named)
    paper: Any = SimpleNamespace(
        experiments=lambda _, seed: {
            "tuned": config(seed=100),
            "one": config(seed=seed),
            "unseeded": config(),
            "unasked": config(),
        }
    )
    subject: Any = SimpleNamespace(replicate=lambda _: None)
    request = reproduce.Request((2001, 2002), (), 1, None, tmp_path)
    maker: Maker[Any, Any] = Maker("x", ("tuned", "one", "unseeded"), lambda *_: None)
    reproduce._executed(paper, subject, request, [maker])
    assert called == {
        (name, seed): f"{name} seed {100 if name == 'tuned' else seed}"
        for seed in (2001, 2002)
        for name in ("tuned", "one", "unseeded")
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
