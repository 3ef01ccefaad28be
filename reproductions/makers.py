"""Exhibits and claims declared where their content is computed.

A decorator has what is known before the runs: id, words, and the settings needed. The function
under it yields the content, and becomes one of report and runs that returns the finished exhibit
or claim.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from functools import wraps
from typing import Any

from harness.judge.builders import DidNotEnd, Maker, Runs
from harness.judge.parts import Precondition, Quantity, claim_of
from harness.judge.results import Claim, Exhibit, Row
from reproductions.paper import Subject
from reproductions.run_metrics import hashes

Content = Iterator[Row | str | dict[str, Any]]
"""An exhibit's rows, sentences that go on its note, and options for drawing that need a run."""
Judged = Iterator[Quantity | Precondition | str | dict[str, str]]
"""A claim's quantities, preconditions, sentences for its note, and other words with figures."""
CURVES = {"as": "curves"}


class Exhibits(list[Maker[Subject, Exhibit]]):
    """Makers of exhibits, in the order of their declaration; ``options`` are those of `Maker`."""

    def table(
        self,
        id_: str,
        title: str,
        needs: Sequence[str],
        label: str = "Beyond the paper",
        note: str = "",
        simulated: Sequence[str] = (),
        **options: Any,
    ) -> Callable[..., Callable[[Subject, Runs], Exhibit]]:
        """Decorate the function that yields a table's content; ``simulated`` names columns."""
        columns = tuple(simulated)
        table = Exhibit(id_, "table", title, note=note, paper_label=label, simulated=columns)
        return self._declare(table, needs, options)

    def figure(
        self,
        id_: str,
        title: str,
        needs: Sequence[str],
        axes: Sequence[str],
        label: str = "Beyond the paper",
        note: str = "",
        draw: dict[str, Any] = CURVES,
        **options: Any,
    ) -> Callable[..., Callable[[Subject, Runs], Exhibit]]:
        """Decorate the function that yields a figure's content; ``axes`` are x and y."""
        titles = dict(zip("xy", axes, strict=False))
        figure = Exhibit(id_, "figure", title, note=note, axes=titles, draw=draw, paper_label=label)
        return self._declare(figure, needs, options)

    def _declare(
        self, exhibit: Exhibit, needs: Sequence[str], options: dict[str, Any]
    ) -> Callable[..., Callable[[Subject, Runs], Exhibit]]:
        def declare(content: Callable[..., Content]) -> Callable[[Subject, Runs], Exhibit]:
            @wraps(content)
            def make(subject: Subject, runs: Runs) -> Exhibit:
                rows, note, draw = list[Row](), exhibit.note, exhibit.draw
                try:
                    parts = [*content(subject, runs)]
                except DidNotEnd:  # the note will name the runs
                    parts = []
                for part in parts:
                    if isinstance(part, Row):
                        rows.append(part)
                    elif isinstance(part, str):
                        note = f"{note} {part}".strip()
                    else:
                        draw = draw | part
                return replace(exhibit, rows=tuple(rows), note=note, draw=draw)

            self.append(Maker(exhibit.id, tuple(needs), make, **options))
            return make

        return declare


class Claims(list[Maker[Subject, Claim]]):
    """Makers of claims, in the order of their declaration.

    Args:
        conditions: preconditions of every claim that its runs can tell.
    """

    def __init__(self, conditions: Callable[[Runs], Iterable[Precondition]] | None = None) -> None:
        super().__init__()
        self.conditions = conditions

    def declare(
        self,
        id_: str,
        needs: Sequence[str],
        statement: str,
        where: str,
        statistic: str = "",
        note: str = "",
        *,
        divergence: bool = False,
        **reasons: str,
    ) -> Callable[..., Callable[[Subject, Runs], Claim]]:
        """Decorate the function that yields what is judged; see `claim_of` and `Maker`.

        Args:
            id_: of the claim.
            needs: settings, whose runs are the claim's, in this order.
            statement: of the paper.
            where: section, table or page.
            statistic: description of what is measured.
            note: sentences for the reader.
            divergence: whether diverged runs are judged, too.
            **reasons: ``undetermined`` or ``cannot_fail``.
        """

        def declare(judged: Callable[..., Judged]) -> Callable[[Subject, Runs], Claim]:
            @wraps(judged)
            def make(subject: Subject, runs: Runs) -> Claim:
                conditions = self.conditions(runs) if self.conditions else ()
                runs_judged = hashes(*runs.values())
                try:
                    parts, words = [*judged(subject, runs), *conditions], dict(reasons)
                except DidNotEnd:  # no part is left
                    return Claim(
                        id_, statement, where, statistic, None, None, None, "unclear",
                        "No run that it rests on ended.", runs=runs_judged,
                    )  # fmt: skip
                for part in parts:
                    words |= part if isinstance(part, dict) else {}
                notes = [note, *(part for part in parts if isinstance(part, str))]
                return claim_of(
                    id_,
                    statement,
                    where,
                    words.pop("statistic", statistic),
                    [part for part in parts if isinstance(part, Quantity)],
                    runs_judged,
                    " ".join(filter(None, notes)),
                    presumes=[part for part in parts if isinstance(part, Precondition)],
                    **words,
                )

            self.append(Maker(id_, tuple(needs), make, divergence=divergence))
            return make

        return declare
