"""Every paper at every scale: what exhibits and claims need is configured and can be named."""

from importlib import import_module

import pytest

from harness.base.seeds import identity
from reproductions.command import PAPERS
from reproductions.paper import Paper, Subject
from tests.stand_in import load_large, stand_in


@pytest.mark.parametrize("name", PAPERS)
def test_what_is_needed_is_configured_at_every_scale(name):
    paper: Paper = import_module(PAPERS[name]).PAPER
    makers = (*paper.exhibits, *paper.claims)
    assert len({maker.id for maker in makers}) == len(makers)
    assert set(paper.looks) <= set(paper.seeds)
    for scale in paper.seeds:
        subject = Subject(scale, stand_in(paper.corpus), 11, "cpu", load=load_large)
        configs = paper.experiments(subject, 11)
        assert {need for maker in makers for need in maker.needs} <= configs.keys()
        assert all(len(identity(config.to_dict())) == 64 for config in configs.values())
