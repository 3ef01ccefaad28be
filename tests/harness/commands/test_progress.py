from harness.commands.progress import Progress


class Clock:
    def __init__(self):
        self.now_s = 0.0

    def __call__(self):
        return self.now_s


def test_a_long_piece_says_how_far_it_is_and_what_is_left():
    clock, said = Clock(), []
    progress = Progress(2, clock, said.append)
    watch = progress.begin(1, "4 workers", "folds")
    for second in range(31):
        clock.now_s = float(second)
        watch(100 * second, 3000)
    assert said[0] == "4 workers (1 of 2): 100 of 3,000 folds, about 29 s left"
    assert said[-1].endswith("about 4 s left")
    assert len(said) == 6


def test_a_short_command_says_nothing():
    clock, said = Clock(), []
    watch = Progress(1, clock, said.append).begin(1, "4 workers", "folds")
    for second in range(9):
        clock.now_s = float(second)
        watch(100 * second, 900)
    assert said == []


def test_where_only_the_most_is_known_nothing_is_said_before_it_has_taken_long():
    clock, said = Clock(), []
    watch = Progress(1, clock, said.append).begin(1, "4 workers", "folds", settled=False)
    for second in range(13):
        clock.now_s = float(second)
        watch(100 * second, 10_000)
    assert said == ["4 workers: 1,100 of at most 10,000 folds, at most 89 s left"]


def test_work_beside_a_row_counts_as_that_row():
    clock, said = Clock(), []
    progress = Progress(6, clock, said.append)
    for name in ("128 workers", "1 worker"):
        watch = progress.begin(2, name, "folds")
        for second in range(6):
            clock.now_s += 1.0
            watch(10 * second, 3000)
    assert [line.split(":")[0] for line in said] == ["128 workers (2 of 6)", "1 worker (2 of 6)"]


def test_what_is_done_says_nothing_of_what_is_left():
    clock, said = Clock(), []
    watch = Progress(1, clock, said.append).begin(1, "4 workers", "folds")
    clock.now_s = 30.0
    watch(100, 100)
    assert said == []


def test_what_was_compiled_before_the_first_step_is_not_taken_for_the_pace():
    clock, said = Clock(), []
    watch = Progress(1, clock, said.append).begin(1, "1 worker", "contributions", settled=False)
    clock.now_s = 20.0  # compiling
    watch(40, 1_000_000)
    for second in (21.0, 22.0):
        clock.now_s = second
        watch(40 + int(100_000 * (second - 20.0)), 1_000_000)
    assert said == ["1 worker: 100,040 of at most 1,000,000 contributions, at most 9 s left"]
