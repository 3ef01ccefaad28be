"""Lines that say how far a corpus is."""

from data_synth.storage import EVERY_S, progress_counter


def test_a_line_is_said_now_and_then_and_when_all_are_done():
    now, lines = [0.0], []
    tell = progress_counter(lines.append, "digits corpus", 500, "utterances made", lambda: now[0])
    for step in range(1, 6):
        now[0] = step * EVERY_S * 0.4
        tell(100 * step)
    assert lines == [
        "digits corpus: 300 of 500 utterances made",
        "digits corpus: 500 of 500 utterances made",
    ]


def test_work_that_is_done_at_once_is_said_once():
    lines = []
    progress_counter(lines.append, "fsdd", 3, "recordings read", lambda: 0.0)(3)
    assert lines == ["fsdd: 3 of 3 recordings read"]
