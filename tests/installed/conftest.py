from __future__ import annotations

from pathlib import Path
from zipfile import ZipFile

import pytest
from hatchling.builders.wheel import WheelBuilder

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="session")
def wheel(tmp_path_factory) -> Path:
    """The wheel of the project as it is."""
    folder = tmp_path_factory.mktemp("wheel")
    (built,) = WheelBuilder(str(ROOT)).build(directory=str(folder), versions=["standard"])
    return Path(built)


@pytest.fixture
def site(wheel, tmp_path) -> Path:
    """A folder that holds what installing the wheel puts there."""
    folder = tmp_path / "site"
    with ZipFile(wheel) as archive:
        archive.extractall(folder)
    return folder
