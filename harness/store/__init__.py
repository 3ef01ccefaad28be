"""Append-only results, addressed by configuration hash.

One folder per run, named by the hash of its full configuration::

    config.json      what was asked for; written when the run begins
    run.json         status, summary, note, digests; written last: its presence means finished
    metrics.parquet  every logged row, in the order of logging
    provenance.json  when, where and for how long: the only machine-dependent file
    checkpoint/      the trainer's own; gone once the run is finished

``run.json`` and ``metrics.parquet`` hold results only, so equal results are
equal bytes wherever they were computed. Every file of results is compared with its digest when
it is read; a run that is not as it was written is ``damaged``, and made again when asked for.
Without its model or its timeline it is *light*, and whole; who needs them has it made again.

Example:
    >>> def train(writer):
    ...     for fold in (1, 2):
    ...         writer.log("loss", 1 / fold, fold=fold, time_s=0.1 * fold, epoch=0.0)
    ...     writer.finish(summary={"loss": 0.5})
    >>> store = Store("runs")
    >>> run = store.obtain({"seed": 0}, train)  # trains now, and never again
    >>> run.status, run.summary, run.metrics["value"].tolist()
    ('done', {'loss': 0.5}, [1.0, 0.5])
"""

from harness.store.gathered import Bucket, BucketStore
from harness.store.read import Cell, Run, folder_of_run, is_run, verify_run
from harness.store.store import AlreadyFinished, Store
from harness.store.write import RunWriter

__all__ = [
    "AlreadyFinished",
    "Bucket",
    "BucketStore",
    "Cell",
    "Run",
    "RunWriter",
    "Store",
    "folder_of_run",
    "is_run",
    "verify_run",
]
