"""What results are held against, in a report's own words: a paper, or predictions.

A reproduction declares it once, by ``held_against`` (see ``reproductions.paper.Paper``), and its
results carry it in their provenance. Those that do not say are held against a paper.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from harness.base.errors import name_error
from harness.judge import Results


@dataclass(frozen=True)
class Words:
    """How a report speaks of what its results are held against.

    Attributes:
        noun: what one claim is held against; also the head of a column.
        whole: what all claims are held against.
        statement: what one claim states.
        title: what stands before the title.
        done: what was done, after the name of the reproduction.
        printed: what the mark of a figure that is not ours is called.
        elsewhere: where conditions differ from ours; also the head of a column.
        scales: what a scale means for the verdicts.
        reads: what a verdict means, where its word alone would mislead.
    """

    noun: str
    whole: str
    statement: str
    title: str
    done: str
    printed: str
    elsewhere: str
    scales: Mapping[str, str]
    reads: str = ""

    @property
    def the(self) -> str:
        """With its article."""
        return f"the {self.noun}"

    def caution(self, scale: str) -> str:
        """What a reader of verdicts at ``scale`` must know; empty where there is nothing."""
        if scale == "smoke":
            return (
                "Smoke scale: tiny networks and minutes of data, to show that everything works. "
                f"The verdicts below are not verdicts on {self.whole}."
            )
        if scale not in self.scales:
            return ""
        return (
            f"{self.scales[scale]}. A verdict below is about {self.statement} at this scale; the "
            "end of this report lists what differs."
        )


PAPER = Words(
    noun="paper",
    whole="the paper",
    statement="the paper's statement",
    title="Reproduction of",
    done="reproduced",
    printed="printed in the paper",
    elsewhere="paper",
    scales={
        "laptop": "Laptop scale: networks and data are far smaller than the paper's",
        "overnight": "Overnight scale: the smallest at which most of the paper's conditions hold",
        "gpu": "GPU scale: networks or data are smaller than the paper's",
    },
)

PREDICTION = Words(
    noun="prediction",
    whole="the predictions",
    statement="the prediction",
    title="",
    done="predictions tested",
    printed="predicted",
    elsewhere="literature",
    scales={"laptop": "Laptop scale: small networks and little data"},
    reads="“Reproduced” means that the prediction came true, “contradicted” that it did not. ",
)

KINDS = {each.noun: each for each in (PAPER, PREDICTION)}
"""By what a reproduction declares."""


def words_of(results: Results) -> Words:
    """The words of these results.

    Raises:
        UserError: they are held against something that has no words here.
    """
    kind = results.provenance.get("reference", {}).get("held_against", PAPER.noun)
    if kind not in KINDS:
        raise name_error("results.json: provenance.reference.held_against", str(kind), KINDS)
    return KINDS[kind]
