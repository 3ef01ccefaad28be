from harness.commands.progress import Progress


class Spoken(Progress):
    """Progress by a clock that is set; ``said`` has its lines."""

    def __init__(self):
        self.time_s, self.said = 0.0, []
        super().__init__(lambda: self.time_s, self.said.append)

    def follow(self, watch, steps, times):
        for second, done in times:
            self.time_s = float(second)
            watch(done, steps)
        return self.said


def test_a_long_piece_says_how_far_it_is_and_what_is_left():
    progress = Spoken()
    watch = progress.begin("4 workers", "folds")
    said = progress.follow(watch, 3000, [(second, 100 * second) for second in range(31)])
    assert said[0] == "4 workers: 100 of 3,000 folds, about 29 s left"
    assert said[-1].endswith("about 4 s left")
    assert len(said) == 6


def test_what_is_short_or_done_says_nothing():
    progress = Spoken()
    watch = progress.begin("4 workers", "folds")
    assert not progress.follow(watch, 900, [(second, 100 * second) for second in range(10)])
    assert not progress.follow(watch, 900, [(30, 900)])


def test_where_only_the_most_is_known_no_time_is_said():
    progress = Spoken()
    watch = progress.begin("4 workers", "folds", settled=False)
    said = progress.follow(watch, 10_000, [(second, 100 * second) for second in range(13)])
    assert said == ["4 workers: 1,100 of at most 10,000 folds"]


def test_what_was_compiled_before_the_first_step_is_not_taken_for_the_pace():
    progress = Spoken()
    watch = progress.begin("1 worker", "contributions")
    times = [(20, 40), (21, 100_040), (22, 200_040)]
    said = progress.follow(watch, 1_000_000, times)
    assert said == ["1 worker: 100,040 of 1,000,000 contributions, about 9 s left"]
