from pathlib import Path

import pytest

from harness import cli
from harness.base.errors import UserError
from harness.base.registry import cluster_file, find_bundled, run_file
from harness.experiment.run_file import load_run
from harness.simulator.cluster import load_cluster

ROOT = Path(__file__).parents[3]


def test_every_cluster_and_run_of_the_project_comes_along_by_name():
    for kind in ("cluster", "run"):
        files = sorted((ROOT / "reproductions" / f"{kind}s").glob("*.toml"))
        assert dict(find_bundled(kind)) == {path.stem: path for path in files}
        assert files


def test_what_is_no_name_is_a_path_relative_to_its_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("mine").write_text("")
    assert cluster_file("mine") == Path("mine")
    assert cluster_file("missing.toml") == Path("missing.toml")
    assert cluster_file("a/b") == Path("a/b")
    assert cluster_file("c.toml", Path("runs")) == Path("runs/c.toml")
    assert cluster_file("k20m-server", Path("runs")) == find_bundled("cluster")["k20m-server"]
    assert run_file(tmp_path / "mine") == tmp_path / "mine"
    with pytest.raises(UserError, match=r"r\.toml: cannot read the file"):
        run_file(tmp_path / "r.toml")


def test_an_unknown_name_is_answered_with_all_there_are():
    with pytest.raises(UserError, match=r"cluster: unknown 'k20m' \(did you mean 'k20m-server'"):
        cluster_file("k20m")
    with pytest.raises(UserError) as told:
        run_file("nothing-like-it")
    assert all(name in str(told.value) for name in find_bundled("run"))
    with pytest.raises(UserError, match="unknown"):
        cluster_file("x" * 5000)


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["predict", str(find_bundled("cluster")["spot-32"])], "a cluster file and no run file"),
        (["simulate", str(find_bundled("run")["diloco"])], "that it names, 'wide-area-10'"),
    ],
)
def test_a_file_of_the_other_kind_is_said_to_be_one(capsys, words, told):
    assert cli.main(words) == 2
    err = capsys.readouterr().err
    assert told in err
    assert err.count("\n") == 1


def test_a_run_file_may_name_a_cluster_that_comes_along(tmp_path):
    text = find_bundled("run")["async-averaged"].read_text()
    assert 'cluster = "k20m-server"' in text
    path = tmp_path / "r.toml"
    path.write_text(text)
    asked = load_run(path)
    assert asked.cluster == load_cluster("reproductions/clusters/k20m-server.toml")
    path.write_text(text.replace("k20m-server", "k20m-servr"))
    with pytest.raises(UserError, match=r"r\.toml: cluster: unknown 'k20m-servr'"):
        load_run(path)


def test_help_names_what_comes_along(capsys):
    with pytest.raises(SystemExit):
        cli.main(["simulate", "--help"])
    assert "k20m-server" in capsys.readouterr().out
