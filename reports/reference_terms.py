"""Terms of a report for the reference of its results: a paper, or predictions.

A reproduction declares its reference by ``held_against`` (see ``reproductions.paper.Paper``), and
its results carry it in their provenance. The default is a paper.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from harness.base.errors import name_error
from harness.judge.results import Results


@dataclass(frozen=True)
class Words:
    """Terms of a report for the reference of its results.

    Attributes:
        noun: the reference of one claim; also the head of a column.
        whole: the reference of all claims.
        statement: name of the content of one claim.
        title: text before the title.
        by: text before the authors of the reference.
        done: name of the activity, after the name of the reproduction.
        printed: label of the mark of the reference's own figures.
        elsewhere: name of the setting that differs from ours; also the head of a column.
        scales: meaning of each scale for the verdicts.
        reads: meaning of a verdict, where its word alone would mislead.
    """

    noun: str
    whole: str
    statement: str
    title: str
    by: str
    done: str
    printed: str
    elsewhere: str
    scales: Mapping[str, str]
    reads: str = ""

    @property
    def the(self) -> str:
        """The noun with its article."""
        return f"the {self.noun}"

    def caution(self, scale: str) -> str:
        """Caution for readers of verdicts at ``scale``; empty where none is needed."""
        if scale == "smoke":
            return (
                "Smoke scale: tiny networks and minutes of data, to show that everything works. "
                "Nothing is judged on them."
            )
        if scale not in self.scales:
            return ""
        return (
            f"{self.scales[scale]}. A verdict is about {self.statement} at this scale; the end "
            "lists what differs."
        )


PAPER = Words(
    noun="paper",
    whole="the paper",
    statement="the paper's statement",
    title="Reproduction of",
    by="a paper by ",
    done="reproduced",
    printed="printed in the paper",
    elsewhere="paper",
    scales={
        "laptop": "Laptop scale: networks and data are far smaller than the paper's",
        "overnight": "Overnight scale: networks and data are smaller than the paper's",
        "gpu": "GPU scale: networks or data are smaller than the paper's",
    },
)

PREDICTION = Words(
    noun="prediction",
    whole="the predictions",
    statement="the prediction",
    title="",
    by="",
    done="predictions tested",
    printed="predicted",
    elsewhere="literature",
    scales={"laptop": "Laptop scale: small networks and little data"},
    reads="“Reproduced” means that the prediction came true, “contradicted” that it did not. ",
)

KINDS = {each.noun: each for each in (PAPER, PREDICTION)}
"""Terms by the value of ``held_against``."""


def words_of(results: Results) -> Words:
    """The terms of these results.

    Raises:
        UserError: their ``held_against`` is not in ``KINDS``.
    """
    kind = results.provenance.get("reference", {}).get("held_against", PAPER.noun)
    if kind not in KINDS:
        raise name_error("results.json: provenance.reference.held_against", str(kind), KINDS)
    return KINDS[kind]
