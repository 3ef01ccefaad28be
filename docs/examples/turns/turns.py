"""A timing protocol of one's own as a package: one worker at a time trains."""

from dataclasses import dataclass

from lagbench import GatedServer


@dataclass(frozen=True)
class Turns(GatedServer):
    """Workers read in turns; each has the model to itself until its turn is over.

    Attributes:
        turn: contributions of a worker before the next one's turn.
    """

    name = "turns"
    turn: int = 1

    def may_read(self, worker, folded, under_way):
        """Whether it is the worker's turn, and nothing is under way."""
        its = folded.sum() // self.turn % len(folded)
        return worker == its and not under_way.any()
