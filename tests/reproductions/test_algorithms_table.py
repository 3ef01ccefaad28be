"""The comparison of algorithms: what is compared, how rates are found, what the page says."""

from __future__ import annotations

from pathlib import Path

import pytest

from harness.algorithms.catalogue import Algorithm
from harness.base.settings import dataclasses_below
from reproductions.algorithms.experiments import CLUSTERS, METHODS, SEEDS, workers_of
from reproductions.algorithms.table import markdown
from reproductions.paper import DEVELOPMENT

ROOT = Path(__file__).parents[2]
ELSEWHERE = {"AveragedSgd", "Compressed", "ServerDescent"}
"""Compared in paper 1, about bytes, and compared in the staleness reproduction."""


def test_every_algorithm_is_compared():
    own = (kind for kind in dataclasses_below(Algorithm) if kind.__module__.startswith("harness."))
    compared = {type(method.algorithm(4)).__name__ for method in METHODS.values()}
    assert compared | ELSEWHERE == {kind.__name__ for kind in own}


@pytest.mark.parametrize("cluster", CLUSTERS)
def test_the_page_has_the_table_that_was_measured(cluster):
    measured = ROOT / "reports" / "published" / "algorithms" / "table.csv"
    assert markdown(measured, cluster) in (ROOT / "docs" / "algorithms.md").read_text("utf-8")


def test_rates_are_found_on_other_data_than_is_reported():
    assert min(SEEDS) >= 1000 > DEVELOPMENT


@pytest.mark.parametrize("cluster", CLUSTERS)
def test_quorums_buffers_and_backups_are_of_the_clusters_size(cluster):
    workers = workers_of(cluster)
    assert 1 <= METHODS["elastic DiLoCo, AdamW"].algorithm(workers).quorum < workers
    assert METHODS["backup workers"].protocol(workers).backups >= 1
