from pathlib import Path

import pytest

CLUSTER = """
name = "two"
[[workers]]
count = 2
device = "card"
[devices.card]
launch_s = 0.01
"""


@pytest.fixture
def cluster(tmp_path: Path) -> Path:
    path = tmp_path / "two.toml"
    path.write_text(CLUSTER, encoding="utf-8")
    return path
