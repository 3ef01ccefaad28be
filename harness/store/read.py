"""Reading of stored runs, and of cells: runs that differ in their seed alone."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import numpy as np
import numpy.typing as npt

from harness.base.errors import Damaged, UserError
from harness.base.log import one_line
from harness.base.seeds import SHORT, identity
from harness.store import files, schema
from harness.store.files import Columns, columns_of, read_columns
from harness.store.schema import Status

if TYPE_CHECKING:
    from harness.simulator.timeline import Timeline

Floats = npt.NDArray[np.float64]


def is_run(folder: Path) -> bool:
    """Whether a folder holds a run, finished or not, damaged or whole."""
    return any(files.exists(folder / name) for name in (schema.CONFIG, schema.RUN))


def folder_of_run(folder: Path) -> Path:
    """The folder of a run: the one given, or the only one of a store.

    Raises:
        UserError: it holds none, or several.
    """
    if is_run(folder):
        return folder
    runs = [path for path in files.list_folder(folder) if is_run(path)]
    if len(runs) == 1:
        return runs[0]
    count = f"{len(runs)} runs" if runs else "no run"
    raise UserError(f"{folder}: {count}; allowed: a folder of a store (lagbench runs)")


@dataclass(frozen=True)
class Run:
    """One run of the store; its metrics are read from disk when first asked for.

    Attributes:
        hash: identity of the configuration.
        config: the full configuration.
        status: ``done``, ``diverged``, ``failed`` or ``unfinished``; ``damaged`` when its record
            is not as it was written, or is that of another run.
        summary: name to value; NaN where the value was not finite.
        note: one sentence, often empty.
        dir: the run's folder.
        digests: SHA-256 of every file of results, by name; none of an unfinished run.
    """

    hash: str
    config: dict[str, Any] = field(repr=False)
    status: Status
    summary: dict[str, Any] = field(repr=False)
    note: str
    dir: Path
    digests: dict[str, str] = field(default_factory=dict[str, str], repr=False)

    @cached_property
    def metrics(self) -> Columns:
        """Logged rows as columns ``name``, ``value``, ``fold``, ``time_s``, ``epoch``, and more."""
        if schema.METRICS not in self.digests and not files.exists(self.dir / schema.METRICS):
            return columns_of([])
        return read_columns(self.path(schema.METRICS))

    def curve(self, name: str) -> tuple[Floats, Floats, Floats]:
        """Epoch, value and virtual time (s) of one metric, in the order of logging.

        Args:
            name: a name as logged; or without the model's, or that of development data, of which
                `deployed` is meant: ``"dev_loss"``, ``"loss"``. ``"staleness"`` is that of each
                contribution when it is folded, from the timeline.

        Raises:
            KeyError: nothing was logged under this name; the message lists what was.
        """
        if name == "staleness":
            folded, times_s = self.timeline.folded(), self.timeline.folds.time_s
            share = np.cumsum(folded.steps) / folded.steps.sum()
            ages = (folded.fold - folded.read_version).astype(np.float64)
            return share * float(self.summary.get("epochs", np.nan)), ages, times_s[folded.fold]
        columns = self.metrics
        names = name, self.deployed(name), self.deployed(f"dev_{name}")
        matches = [rows for rows in (columns["name"] == each for each in names) if rows.any()]
        if not matches:
            names = ", ".join(sorted(set(columns["name"].tolist()))) or "nothing"
            further = "staleness; lags and folds: run.timeline"
            raise KeyError(f"run {self.hash[:12]}: no metric {name!r}; it has {names}, {further}")
        rows = matches[0]
        return columns["epoch"][rows], columns["value"][rows], columns["time_s"][rows]

    @cached_property
    def timeline(self) -> Timeline:
        """The run's timeline: ``staleness()``, ``lag_s()``, ``folds.time_s``; see `path`."""
        from harness.simulator.timeline_file import load_timeline  # when needed

        return load_timeline(self.path(schema.TIMELINE))

    def deployed(self, metric: str) -> str:
        """Name of a metric for the model to deploy: the averaged one if the run has it.

        Args:
            metric: name without the model's, e.g. ``"dev_loss"``.
        """
        average = f"{metric}/average"
        return average if average in self.summary else f"{metric}/iterate"

    def path(self, name: str) -> Path:
        """Path of an attached file, once its digest has been checked.

        Raises:
            UserError: the run has no such file, is light, or the file is damaged.
        """
        path = self.dir / name
        if self.without([name]):
            raise UserError(f"run {self.hash[:SHORT]}: light, its {name} is not in {self.dir}")
        if not (files.is_file(path) and (name in self.digests or name in schema.RESERVED)):
            allowed = ", ".join(sorted(self.digests)) or "none, as it is not finished"
            raise UserError(f"run {self.hash[:12]}: no file {name!r}; allowed: {allowed}")
        if name not in self._whole and files.find_damaged(self.dir, self._digest(name)):
            raise Damaged(f"{path}: damaged, not as written; asked for, the run is made again")
        self._whole.add(name)
        return path

    def arrays(self, name: str) -> dict[str, npt.NDArray[Any]]:
        """Arrays of an attached file, by name; see `path`."""
        arrays, _ = files.load_arrays(files.read_bytes(self.path(name)))
        return {key: array.copy() for key, array in arrays.items()}

    @property
    def model(self) -> npt.NDArray[Any]:
        """The final parameters ``[P]``; bfloat16 by its bits, see `harness.replay`."""
        return self.arrays(schema.MODEL)["model"]

    def damaged(self) -> list[str]:
        """Names of a finished run's files that are missing or not as they were written.

        The large files of a light run (`schema.LARGE`) may be missing.
        """
        if self.status in ("unfinished", "damaged"):
            return []
        lost = files.find_damaged(self.dir, self.digests, schema.LARGE)
        readers = {schema.CONFIG: partial(read_config, self.dir), schema.PROVENANCE: self._moment}
        for name, reader in readers.items():
            try:
                reader()
            except Damaged:
                lost.append(name)
        return lost

    def without(self, names: Iterable[str]) -> list[str]:
        """Large files among ``names`` that the run was written with and that are not here."""
        large = schema.LARGE.intersection(names, self.digests)
        return sorted(name for name in large if not files.exists(self.dir / name))

    @cached_property
    def _whole(self) -> set[str]:
        """Names of the files whose digests have been checked."""
        return set()

    def _digest(self, name: str) -> dict[str, str]:
        return {name: self.digests[name]} if name in self.digests else {}

    def ending(self, name: str = "run") -> str:
        """A line about the end of the run: name, hash, status and note.

        Args:
            name: title of the run.
        """
        end = "" if not self.note else f"{' ' if self.note.startswith('in ') else ': '}{self.note}"
        return f"{name} ({self.hash[:SHORT]}) {self.status}{end}"

    def lines(self) -> list[str]:
        """The results as lines: one per value of the summary, the status and the folder."""
        figures = {
            key: f"{value:.6g}" if isinstance(value, float) else value
            for key, value in sorted(self.summary.items())
        }
        facts = {**figures, "status": self.status, "run": self.dir}
        return [f"{key:32} {value}" for key, value in facts.items()]

    @cached_property
    def provenance(self) -> dict[str, Any]:
        """Time, machine and duration of the execution; of an unfinished run its facts at most."""
        return self._moment()

    def _moment(self) -> dict[str, Any]:
        path = self.dir / schema.PROVENANCE
        if not (self.digests or files.exists(path)):
            return {}
        moment = read_record(path)
        if moment.get("hash", self.hash) != self.hash:  # published ones may have none
            raise Damaged(f"{path}: damaged, it is another run's")
        return moment


def read_run(folder: Path) -> Run:
    """Read the run in ``folder``; its status is ``damaged`` if its record is invalid.

    A record is valid if it matches its digest, and its configuration's hash is the folder's name:
    a folder that was renamed or copied is not the run that its name says.

    Raises:
        UserError: the machine refuses to read it.
    """
    try:
        if not files.exists(folder / schema.RUN):
            return Run(folder.name, read_config(folder), "unfinished", {}, "", folder)
        return _run_from_record(folder, read_record(folder / schema.RUN))
    except Damaged as error:
        return Run(folder.name, {}, "damaged", {}, str(error), folder)


def verify_run(run: Run) -> Run:
    """Check all files of a run; returns it, as ``damaged`` if one is not as it was written."""
    lost = run.damaged()
    note = f"damaged, not as written: {', '.join(lost)}"
    return replace(run, status="damaged", note=note) if lost else run


def _run_from_record(folder: Path, record: Mapping[str, Any]) -> Run:
    hash_ = record.get("hash")
    if hash_ != folder.name:
        mistake = f"of another run, {str(hash_)[:SHORT]}; the folder's name is not its hash"
        raise Damaged(f"{folder / schema.RUN}: {mistake}")
    return Run(
        hash=folder.name,
        config=record["config"],
        status=record["status"],
        summary=schema.nan_for_none(record["summary"]),
        note=one_line(record["note"]),
        dir=folder,
        digests=record["files"],
    )


def read_config(folder: Path) -> dict[str, Any]:
    """Read the configuration of the run in ``folder``.

    Raises:
        Damaged: its hash is not the folder's name.
    """
    config = read_json(folder / schema.CONFIG)
    with suppress(ValueError, RecursionError):  # of what no configuration holds, such as NaN
        if identity(config) == folder.name:
            return config
    raise Damaged(f"{folder / schema.CONFIG}: damaged, the folder's name is not its hash")


def read_record(path: Path) -> dict[str, Any]:
    """Read a JSON object and check its digest.

    Raises:
        Damaged: the file is missing, or is not as it was written.
        UserError: the machine refuses to read it.
    """
    try:
        return files.check_digest(read_json(path))
    except ValueError as error:
        raise Damaged(f"{path}: damaged, {error}") from None


def read_json(path: Path) -> dict[str, Any]:
    """Read one JSON object.

    Raises:
        Damaged: the file is missing, or does not hold an object.
        UserError: the machine refuses to read it.
    """
    content = files.read_bytes(path)
    try:
        value = json.loads(content)
    except (ValueError, RecursionError) as error:
        raise Damaged(f"{path}: cannot be read as JSON ({error})") from None
    if not isinstance(value, dict):
        raise Damaged(f"{path}: holds no JSON object")
    return cast(dict[str, Any], value)


@dataclass(frozen=True)
class Cell:
    """The runs of one method with one number of workers.

    Attributes:
        method: label of the method.
        workers: number of workers.
        rate: learning rate of all runs.
        runs: one run per seed.
        judged: metric for comparisons, e.g. ``"dev_error"``.
        edge: whether ``rate`` is the best of a sweep and at its edge.
        example_weight: change of ``judged`` by one development example; 0 if there is no fixed one.
        is_share: whether ``judged`` is a share, from 0 to 1.
        tried: final errors of the search by rate, one per development seed, infinite if it
            diverged; empty if the rate was given.
    """

    method: str
    workers: int
    rate: float
    runs: Sequence[Run]
    judged: str
    edge: bool = False
    example_weight: float = 0.0
    is_share: bool = False
    tried: Mapping[float, Sequence[float]] = field(default_factory=dict[float, Sequence[float]])

    @property
    def name(self) -> str:
        """Method and number of workers in words; of one worker the number alone."""
        if self.workers == 1:
            return "1 worker"
        return f"{self.method} with {self.workers} workers"
