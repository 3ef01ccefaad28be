"""Append-only results, addressed by configuration hash.

One folder per run, named by the hash of its full configuration::

    config.json      what was asked for; written when the run begins
    run.json         status, summary, note; written last: its presence means finished
    metrics.parquet  every logged row, in the order of logging
    provenance.json  when, where and for how long: the only machine-dependent file
    checkpoint/      the trainer's own; gone once the run is finished

``run.json`` and ``metrics.parquet`` hold results only, so equal results are
equal bytes wherever they were computed.

Example:
    >>> store = Store("out/runs")                                     # doctest: +SKIP
    >>> run = store.obtain({"seed": 0}, lambda writer: train(writer))  # doctest: +SKIP
"""

from harness.store.read import Run
from harness.store.store import AlreadyFinished, Store
from harness.store.write import RunWriter

__all__ = ["AlreadyFinished", "Run", "RunWriter", "Store"]
