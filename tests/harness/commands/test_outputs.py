import json
import os
from pathlib import Path

import pytest

from harness.cli import main
from harness.commands.outputs import atomic_output

K20M = "reproductions/clusters/k20m-server.toml"
SMALL = ["simulate", K20M, "--folds", "100", "--workers", "2"]


def refused(capsys, *options: object) -> str:
    code = main([*SMALL, *map(str, options)])
    _, err = capsys.readouterr()
    assert code == 2
    assert err.count("\n") == 1
    return err


def test_json_on_standard_output_is_json_alone(capsys):
    assert main([*SMALL, "--json", "-"]) == 0
    out, err = capsys.readouterr()
    assert json.loads(out)[0]["folds"] == 100
    assert "minibatches" in err


@pytest.mark.parametrize("kind", ["fifo", "device", "link to a device"])
def test_only_regular_files_are_replaced(capsys, tmp_path, kind):
    path = tmp_path / "there"
    if kind == "fifo":
        os.mkfifo(path)
    elif kind == "device":
        path = Path("/dev/null")
    else:
        path.symlink_to("/dev/null")
    assert "not a regular file; allowed" not in refused(capsys, "--folds", "0")
    assert "(not a regular file); allowed: a file, or -" in refused(capsys, "--json", path)
    assert not path.is_file()


def test_a_link_stays_and_its_file_is_replaced(tmp_path):
    target, link = tmp_path / "target", tmp_path / "link"
    target.write_text("old")
    link.symlink_to(target)
    with atomic_output(link, "it") as draft:
        draft.write_text("new")
    assert link.is_symlink()
    assert target.read_text() == "new"
    assert sorted(p.name for p in tmp_path.iterdir()) == ["link", "target"]
