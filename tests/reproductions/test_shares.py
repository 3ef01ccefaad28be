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
def test_every_run_is_of_exactly_one_of_about_equal_shares(parts):
    configs = [Config(seed) for seed in range(1000)]
    every = [[is_of((part, parts), config) for config in configs] for part in range(1, parts + 1)]
    assert [sum(shares) for shares in zip(*every, strict=True)] == [1] * 1000
    counts = [sum(share) for share in every]
    assert max(counts) - min(counts) < 100
    assert all(is_of(None, config) for config in configs)
