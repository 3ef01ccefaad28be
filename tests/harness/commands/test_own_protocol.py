"""A protocol from outside, under its name wherever one of ours goes by its name."""

import json
import os
import re
import subprocess
import sys
from dataclasses import dataclass, replace
from pathlib import Path

import pytest

from harness.base.errors import UserError
from harness.base.registry import Entry
from harness.base.seeds import identity
from harness.cli import main, parser_of
from harness.experiment.run_file import load_run
from harness.processes.rank_main import check_protocol
from harness.simulator.cluster import Fault
from harness.simulator.protocols.averaging import Averaging
from harness.simulator.protocols.parameter_server import ParameterServer
from harness.simulator.simulation import Simulation, load_protocol
from harness.store import Store
from tests.docs.pages import blocks
from tests.harness.simulator.conftest import UNIT_JOB, make_cluster
from tests.run_files import ASYNCHRONOUS, ROUNDS, written

ROOT = Path(__file__).parents[3]
PAGE = (ROOT / "docs/howto/protocol.md").read_text(encoding="utf-8")
(RELAY,) = (block.text for block in blocks(PAGE) if block.rest == "relay.py")

EVERYWHERE = """
import json, sys
from harness.cli import main

more, run = json.loads(sys.argv[1]), sys.argv[2]
for number, name in enumerate(("relay", "Relay")):
    asked = ["--protocol", name, "--turn", "2", "--workers", "3", "--folds", "60"]
    assert main(["simulate", "k20m-server", *more, *asked, "--json", f"{number}.json"]) == 0
assert main(["predict", run]) == 0
import lagbench
from harness.simulator.simulation import load_protocol
for name in ("relay", load_protocol("Relay")(turn=2)):
    timeline = lagbench.simulate("k20m-server", protocol=name, workers=3, folds=60)
    print("sha256", timeline.sha256())
"""

HURRIED = """
from dataclasses import dataclass
from harness.base.settings import setting
from harness.simulator.protocols.parameter_server import ParameterServer

@dataclass(frozen=True)
class Hurried(ParameterServer):
    '''A server in a hurry.

    Attributes:
        frames: whole ones, 100% of them; no number with a point.
        weights: several numbers.
        seed: has the name of another option.
    '''

    name = "hurried"
    can = frozenset({"network"})
    frames: int = setting(3, at_least=1)
    weights: tuple[int, ...] = setting((1,))
    seed: int = 7
"""


def offer(folder: Path, how: str) -> list[str]:
    """Put ``relay.py`` where one finds it; returns the options that a command needs."""
    (folder / "relay.py").write_text(RELAY, encoding="utf-8")
    if how == "import":
        return ["--import", "relay"]
    info = folder / "mine-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: mine\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text("[lagbench.protocols]\nany = relay:Relay\n")
    return []


@pytest.mark.sampled(2)
@pytest.mark.parametrize("how", ["entry point", "import"])
def test_a_protocol_from_outside_goes_by_its_name_in_every_place(how, tmp_path):
    more = offer(tmp_path, how)
    beside = 'import = ["relay"]\n' if how == "import" else ""
    table = '[protocol]\nis = "relay"\nturn = 2\n'
    path = written(tmp_path, f"{beside}{ASYNCHRONOUS}{table}", launch_s=0.5)
    found = subprocess.run(
        [sys.executable, "-c", EVERYWHERE, json.dumps(more), str(path)], cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": f"{tmp_path}{os.pathsep}{ROOT}"}, capture_output=True,
        text=True, check=False,
    )  # fmt: skip
    assert found.returncode == 0, found.stderr
    hashes = [
        json.loads((tmp_path / f"{number}.json").read_text())[0]["timeline_sha256"]
        for number in (0, 1)
    ]
    plain, turns = re.findall(r"^sha256 (\w+)$", found.stdout, re.MULTILINE)
    assert hashes == [turns, turns]
    assert plain != turns
    # one worker at a time, and half a second a minibatch
    assert re.search(r"^speed-up over one worker +1$", found.stdout, re.MULTILINE), found.stdout
    (told,) = re.findall(r"^first pass +(\d+) folds, (\d+) s$", found.stdout, re.MULTILINE)
    assert int(told[0]) == 2 * int(told[1])


@pytest.fixture
def hurried(tmp_path, monkeypatch):
    """A folder with a module of a protocol whose settings are named like others."""
    monkeypatch.setattr(sys, "path", [*sys.path])
    monkeypatch.chdir(tmp_path)
    Path("hurried_one.py").write_text(HURRIED, encoding="utf-8")
    return ["simulate", "k20m-server", "--import", "hurried_one", "--protocol", "hurried"]


def test_its_settings_are_options_of_their_own_types(hurried, capsys):
    size = ["--workers", "2", "--folds", "20"]
    given = ["--frames", "5", "--weights", "[1, 2]", "--seed", "9", "--depth", "2"]
    asked = parser_of("simulate").parse_args([*hurried, *given])
    assert (asked.frames, asked.weights, asked.seed, asked.depth) == (5, [1, 2], 9, 2)
    assert main([*hurried, *size, *given]) == 0
    capsys.readouterr()
    for wrong, line in [
        (["--frames", "5.5"], "argument --frames: invalid int value: '5.5'"),
        (["--frames", "0"], "--protocol hurried: frames: 0 is not allowed; allowed: a whole"),
        (["--weights", "[1.5]"], "--protocol hurried: weights[0]: 1.5 is not allowed"),
    ]:
        assert main([*hurried, *size, *wrong]) == 2
        assert line in capsys.readouterr().err


def test_help_says_what_its_class_says_where_it_is_named(hurried, capsys):
    for words, there in [(hurried, True), (hurried[:2], False)]:
        with pytest.raises(SystemExit):
            main([*words, "--help"])
        shown = " ".join(capsys.readouterr().out.split())
        assert ("hurried: whole ones, 100% of them (default: 3) --" in shown) == there
        assert ("--weights VALUE hurried: several numbers" in shown) == there
        assert ("--frames X sequence: mean length of an utterance" in shown) != there
        assert "--every N averaging: minibatches between two averages (default: 10)" in shown
        assert (
            "rule of the buffer (admission|discard|backpressure|window|one-step; default" in shown
        )


@pytest.mark.parametrize("name", ["averaging", "Averaging"])
def test_one_of_ours_goes_by_both_names_and_no_other_is_imported_for_it(name, monkeypatch):
    loaded, load = [], Entry.load
    monkeypatch.setattr(Entry, "load", lambda entry: loaded.append(entry.name) or load(entry))
    assert load_protocol(name) is Averaging
    assert loaded == ["averaging"]


def test_what_is_not_declared_is_refused_with_the_ability_and_those_that_declare_it():
    class Bold(ParameterServer):
        name = "bold"
        can = ParameterServer.can - {"faults"}

    faulty = make_cluster(faults=(Fault("preemption", mean_s=100.0, down_s=1.0),))
    Simulation(faulty, ParameterServer(), UNIT_JOB)
    told = r"faults: .* protocol 'bold', which does not declare 'faults'; .* averaging or backup_w"
    with pytest.raises(UserError, match=told):
        Simulation(faulty, Bold(), UNIT_JOB)


def test_an_ability_that_does_not_exist_is_refused_where_it_is_declared():
    with pytest.raises(UserError, match=r"Typo\.can: unknown 'fault' \(did you mean 'faults'\?\)"):

        class Typo(ParameterServer):
            can = frozenset({"fault"})


@dataclass(frozen=True)
class Patient(ParameterServer):
    """A parameter server that two workers are too few for."""

    name = "patient"

    def start(self, cluster, workers):
        if workers != 2:
            return super().start(cluster, workers)
        raise UserError("workers: too few")


@dataclass(frozen=True)
class Imagined(Patient):
    """The same, which no real workers do."""

    name = "imagined"
    can = Patient.can - {"processes"}


def test_counts_that_are_too_few_for_it_are_no_default(capsys):
    asked = ["wide-area-10", "--protocol", "patient", "--network", "10-10", "--folds", "9"]
    assert main(["simulate", *asked, "--json", "-"]) == 0
    assert [row["workers"] for row in json.loads(capsys.readouterr().out)] == [1, 4, 8, 10]


def test_real_processes_have_what_it_declares_and_a_refusal_names_those_that_can(tmp_path):
    path = written(tmp_path, ASYNCHRONOUS)
    config = load_run(path)
    check_protocol(replace(config, protocol=Patient(push_every=2)), path)
    for protocol, told in [
        (Patient(depth=2), r"protocol\.depth: 2 is simulated only; allowed here: 1"),
        (Imagined(), "protocol: Imagined: simulated only; allowed here: averaging or .*patient"),
    ]:
        with pytest.raises(UserError, match=told):
            check_protocol(replace(config, protocol=protocol), path)
    rounds = load_run(written(tmp_path, ROUNDS))
    check_protocol(rounds, path)
    with pytest.raises(UserError, match=r"protocol\.overlap: true is simulated only; .*: false"):
        check_protocol(replace(rounds, protocol=replace(rounds.protocol, overlap=True)), path)
    with pytest.raises(UserError, match=r"another kind .*: parameter_server or .*imagined"):
        replace(config, protocol=Averaging())


def test_algorithms_by_name_train_in_the_protocol_of_the_file_or_are_said_not_to(
    tmp_path, monkeypatch, capsys
):
    offer(tmp_path, "import")
    for block in blocks((ROOT / "docs/howto/module.md").read_text(encoding="utf-8")):
        if block.rest:
            (tmp_path / block.rest).write_text(block.text, encoding="utf-8")
    path = tmp_path / "run.toml"
    own = '[protocol]\nis = "relay"\nturn = 10\n'
    path.write_text(f'import = ["relay"]\n{path.read_text()}{own}', encoding="utf-8")
    monkeypatch.setattr(sys, "path", [*sys.path])
    expected = load_run(path)  # of the algorithm that is named "async"
    for words, runs, lines in [
        ("compare-algorithms --algorithms sync", 1, ["no effect: protocol ("]),
        ("compare-algorithms --algorithms async,sync", 2, ["no effect on sync: protocol ("]),
        ("tolerate --to 2 --halvings 0 --algorithm async", 2, []),
    ]:
        command, *more = words.split()
        out = tmp_path / words.replace(" ", "")
        asked = [command, str(path), *more, "--seeds", "1", "--rates", "file", "--out", str(out)]
        assert main(asked) == 0
        told = [line for line in capsys.readouterr().err.splitlines() if "protocol (" in line]
        assert [line.partition("(")[0] + "(" for line in told] == lines
        hashes = [run.hash for run in Store(out / "runs").runs()]
        assert len(hashes) == runs
        assert (identity(expected.to_dict()) in hashes) == ("async" in words)
    for name in ("relay", "digits"):
        del sys.modules[name]
