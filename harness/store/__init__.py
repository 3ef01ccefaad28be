"""Append-only results, addressed by configuration hash.

One folder per run, named by the hash of its full configuration::

    config.json      the configuration; written when the run begins
    run.json         status, summary, note, digests; written last: its presence means finished
    metrics.parquet  every logged row, in the order of logging
    provenance.json  time, machine, duration, what the run was begun under: no result
    checkpoint/      state of the trainer; removed when the run is finished

``run.json`` and ``metrics.parquet`` hold results only, so equal results are
equal bytes wherever they were computed. Every file of results is compared with its digest when
it is read; a run with a changed file is ``damaged``, and executed again when it is requested.
A run without its model or timeline is *light*, and still finished; a caller that needs these files
gets it executed again.

Example:
    >>> def train(writer):
    ...     for fold in (1, 2):
    ...         writer.log("loss", 1 / fold, fold=fold, time_s=0.1 * fold, epoch=0.0)
    ...     writer.finish(summary={"loss": 0.5})
    >>> store = Store("runs")
    >>> run = store.obtain({"seed": 0}, train)  # trains the first time, loads afterwards
    >>> run.status, run.summary, run.metrics["value"].tolist()
    ('done', {'loss': 0.5}, [1.0, 0.5])
"""

from harness.store.read import Cell, Run, folder_of_run, is_run, verify_run
from harness.store.store import DEFAULT_STORE, AlreadyFinished, RunWriter, Store

__all__ = [
    "DEFAULT_STORE",
    "AlreadyFinished",
    "Cell",
    "Run",
    "RunWriter",
    "Store",
    "folder_of_run",
    "is_run",
    "verify_run",
]
