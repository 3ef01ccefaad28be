from __future__ import annotations

from harness.commands.progress import Progress


class Clock:
    def __init__(self):
        self.now_s = 0.0

    def __call__(self):
        return self.now_s


def test_a_long_piece_says_how_far_it_is_and_what_is_left():
    clock, said = Clock(), []
    progress = Progress(2, clock, said.append)
    watch = progress.next("4 workers", "folds")
    for second in range(31):
        clock.now_s = float(second)
        watch(100 * second, 3000)
    assert said[0] == "4 workers (1 of 2): 100 of 3,000 folds, about 29 s left"
    assert said[-1].endswith("about 4 s left")
    assert len(said) == 6


def test_a_short_command_says_nothing():
    clock, said = Clock(), []
    watch = Progress(1, clock, said.append).next("4 workers", "folds")
    for second in range(9):
        clock.now_s = float(second)
        watch(100 * second, 900)
    assert said == []


def test_where_only_the_most_is_known_nothing_is_said_before_it_has_taken_long():
    clock, said = Clock(), []
    watch = Progress(1, clock, said.append).next("4 workers", "folds", settled=False)
    for second in range(13):
        clock.now_s = float(second)
        watch(100 * second, 10_000)
    assert said == ["4 workers: 1,100 of at most 10,000 folds, at most 89 s left"]
