"""Several commands that fill one store: each run is of exactly one."""

from dataclasses import dataclass

import pytest

from reproductions.reproduce import is_of


@dataclass(frozen=True)
class Config:
    seed: int

    def to_dict(self):
        return {"seed": self.seed}


@pytest.mark.parametrize("parts", [1, 2, 3, 8])
def test_every_run_is_of_exactly_one_share(parts):
    for seed in range(200):
        config = Config(seed)
        assert sum(is_of((part, parts), config) for part in range(1, parts + 1)) == 1
        assert is_of(None, config)


def test_shares_are_about_equal():
    counts = [sum(is_of((part, 4), Config(seed)) for seed in range(1000)) for part in range(1, 5)]
    assert max(counts) - min(counts) < 100
