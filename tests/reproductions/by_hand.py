"""Runs that never trained, with what a test says that they logged and made wrong."""

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from safetensors.numpy import save_file

from harness.store import Run, Store
from harness.store.schema import TEST_ERRORS, Outcome


class RunsByHand:
    """A store of such runs, each of its own configuration.

    Args:
        folder: of the store.
        utterances: number of one-word utterances in each test set.
    """

    def __init__(self, folder: Path, utterances: int) -> None:
        self.folder, self.utterances = folder, utterances
        self.store, self.count = Store(folder / "runs"), 0

    def finish(
        self,
        summary: Mapping[str, Any],
        rows: Iterable[tuple[str, float, float, float]] = (),
        rates: Mapping[str, float] | None = None,
        config: Mapping[str, object] | None = None,
        status: Outcome = "done",
        turns: int = 0,
    ) -> Run:
        """A finished run.

        Args:
            summary: its summary.
            rows: metric, value, epoch and simulated seconds of each reading.
            rates: ``test/candidate/stage`` -> share of the utterances that are wrong. One run's
                errors are shifted against another's, as real ones would be.
            config: further entries of its configuration.
            status: how it ended.
            turns: number of different shifts; 0 for one of each run's own.
        """
        self.count += 1
        with self.store.begin({"number": self.count, **(config or {})}) as writer:
            for name, value, epoch, time_s in rows:
                writer.log(name, value, fold=0, time_s=time_s, epoch=epoch)
            if rates:
                places, shift = np.arange(self.utterances), self.count % (turns or self.count + 1)
                arrays = {
                    key: np.roll(places < rate * self.utterances, shift).astype(np.int64)
                    for key, rate in rates.items()
                }
                tests = {key.partition("/")[0] for key in rates}
                lengths = {f"{test}/lengths": np.ones_like(places) for test in tests}
                save_file(arrays | lengths, path := self.folder / "errors")
                writer.attach(TEST_ERRORS, path)
            writer.finish(status, dict(summary))
        return self.store.load(writer.hash)
