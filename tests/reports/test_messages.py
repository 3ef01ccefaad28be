from harness.judge.results import Exhibit
from reports import figures

ROWS = [
    {"from": 0, "to": 1, "sent_s": 0.0, "arrived_s": 0.25, "part": "half", "adds": True},
    {"from": 1, "to": 0, "sent_s": 0.25, "arrived_s": 0.5, "part": "whole", "adds": False},
]


def exhibit(rows):
    return Exhibit("e", "figure", "t", draw={"as": "messages", "workers": 2, "messages": rows})


def test_messages_are_drawn_between_the_lanes_of_their_workers(tmp_path):
    svg = figures.draw(exhibit(ROWS), tmp_path)["svg"].decode()
    for text in ("worker 1", "worker 2", "half", "whole", "added by its receiver", "(ms)"):
        assert f"<!-- {text}" in svg or text in svg
