import pytest

from harness.judge.results import Exhibit, Row
from reports import figures, style
from reports import figures as architecture

BATCH = Exhibit(
    "e", "figure", "t",
    (*(Row("slot 1", x, None, 4) for x in range(5)), *(Row("slot 1", x, None, 7) for x in (5, 6)),
     *(Row("slot 2", x, None, 2) for x in range(7))),
    axes={"x": "minibatch", "y": "slot"}, draw={"as": "slots"},
)  # fmt: skip
PATHS = Exhibit(
    "e", "figure", "t",
    tuple(Row(path, f"{n} replicas, {unit}", None, value)
          for n in (1, 10) for path in ("outer", "inner", "push")
          for unit, value in (("s", 1.25 * n), ("updates", 3 * n))),
    draw={"as": "architecture", "column": "10 replicas"},
)  # fmt: skip


def test_a_slot_has_one_bar_for_each_utterance_as_long_as_it_lasts():
    with style.canvas() as (_, axes):
        figures.slots(axes, BATCH)
        bars = [(p.get_x(), p.get_width()) for p in axes.patches]
        texts = [t.get_text() for t in axes.texts]
    assert bars == [(0, 5), (5, 2), (0, 7)]
    assert texts == ["4", "7", "2"]


def test_the_architecture_tells_both_ages_of_each_path_for_one_column():
    with style.canvas() as (_, axes):
        architecture.architecture(axes, PATHS)
        texts = [t.get_text() for t in axes.texts]
    for what in ("decoder's fetch", "trainer's fetch", "gradient's push"):
        assert f"{what}\n12.5 s\n30 updates" in texts
    assert {"parameter server", "decoder", "trainer"} <= set(texts)


@pytest.mark.parametrize("exhibit", [BATCH, PATHS], ids=["slots", "architecture"])
def test_drawings_are_the_same_bytes_every_time(exhibit, tmp_path):
    assert figures.draw(exhibit, tmp_path) == figures.draw(exhibit, tmp_path)
