"""What the environment says of a group, and how its processes are started."""

import socket
import subprocess
from importlib.util import find_spec
from multiprocessing.process import BaseProcess
from pathlib import Path

import pytest
import torch

from harness.base import forks
from harness.base.errors import EXIT_BAD_INPUT, EXIT_DONE, UserError
from harness.experiment.run_file import load_folds
from harness.processes import rank_main, transport
from harness.processes.group import SECRET, Group
from harness.processes.rank_main import check
from harness.train import NEEDED, _start, _supervise, main, parser
from tests.processes import start
from tests.run_files import ASYNCHRONOUS, OUTER_LOOP, ROUNDS, written

STARTED = """
cd "$0"
[ "$1" = 0 ] || { echo "$1" >> started; exit 1; }
until [ "$(wc -l < started)" -eq 3 ]; do sleep 0.05; done
sleep 0.5
"""
"""FOLDER RANK: the server ends when another process was started three times."""
GROUP = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "29501", "RANK": "1", "WORLD_SIZE": "2"}


@pytest.fixture
def environment(monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    """That of rank 1 of two."""
    for name in ("TORCHELASTIC_RUN_ID", "TORCHELASTIC_USE_AGENT_STORE", SECRET):
        monkeypatch.delenv(name, raising=False)
    for name, value in GROUP.items():
        monkeypatch.setenv(name, value)
    return monkeypatch


@pytest.mark.parametrize(
    ("name", "value", "allowed"),
    [
        ("MASTER_PORT", "abc", "1 to 65535"),
        ("MASTER_PORT", "99999", "1 to 65535"),
        ("RANK", "x", "0 to 1"),
        ("RANK", "2", "0 to 1"),
        ("RANK", "-1", "0 to 1"),
        ("WORLD_SIZE", "1", "2 to 1001"),
    ],
)
def test_an_environment_that_cannot_be_is_one_line(
    environment: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str],
    tmp_path: Path, name: str, value: str, allowed: str,
) -> None:  # fmt: skip
    environment.setenv(name, value)
    assert main([str(written(tmp_path, ROUNDS))]) == EXIT_BAD_INPUT
    told = capsys.readouterr().err.splitlines()
    assert told == [f"error: environment: {name}={value}: allowed: {allowed}"]


def test_an_address_that_is_none_and_a_variable_that_is_missing_are_one_line(
    environment: pytest.MonkeyPatch,
) -> None:
    environment.setenv("MASTER_ADDR", "no.such.host.invalid")
    with pytest.raises(UserError, match=r"environment: MASTER_ADDR=no\.such\.host\.invalid: "):
        Group.from_environment()
    environment.delenv("RANK")
    with pytest.raises(UserError, match="environment: RANK is missing; start with torchrun"):
        Group.from_environment()


def test_where_no_server_answers_a_worker_ends_in_a_line(
    environment: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as bound:
        environment.setenv("MASTER_PORT", str(port := bound.getsockname()[1]))
    environment.setattr(transport, "CONNECTED_WITHIN_S", 0.2)
    assert main([str(written(tmp_path, ROUNDS))]) == EXIT_BAD_INPUT
    told = capsys.readouterr().err
    where = f"127.0.0.1:{port} within 0.2 s"
    assert told == f"error: environment: RANK=1: no server answers at {where}\n"


def test_who_never_connects_is_named_and_the_others_go_on(
    environment: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    """Rank 1 is another process, and rank 2 never comes."""
    run = written(tmp_path, ASYNCHRONOUS, 0.001)
    words = [str(run), "--out", str(tmp_path / "s")]
    with socket.create_server(("127.0.0.1", 0)) as bound:
        environment.setenv("MASTER_PORT", str(bound.getsockname()[1]))
    environment.setenv("WORLD_SIZE", "3")
    worker = start(["-m", "harness.train", *words])
    environment.setenv("RANK", "0")
    meet = transport.Connections.meet

    def met(hub: transport.Hub) -> set[int]:
        while 0 not in hub.connected():
            meet(hub, 0.1)
        return {1}

    environment.setattr(transport.Connections, "meet", met)
    assert main(words) == EXIT_DONE
    assert "rank 2 (worker 1) has not connected within 60 s" in capsys.readouterr().err
    assert worker.ended().returncode == EXIT_DONE


@pytest.mark.sampled(2)
@pytest.mark.parametrize("rank", ["0", "1"])
def test_what_a_batch_system_says_does_not_disturb_a_group_of_its_own(
    environment: pytest.MonkeyPatch, tmp_path: Path, rank: str
) -> None:
    environment.setenv("RANK", rank)
    words = [str(written(tmp_path, ASYNCHRONOUS, 0.001)), "--out", str(tmp_path / "s")]
    assert start(["-m", "harness.train", *words, "--processes", "3"]).ended().returncode == 0


def test_under_srun_a_worker_takes_the_gpu_of_its_place_on_its_node(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    taken: list[int] = []
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.setattr(torch.cuda, "set_device", taken.append)
    for local, machine in (("1", "0"), ("2", "0"), ("0", "1"), ("1", "1")):
        monkeypatch.setenv("SLURM_LOCALID", local)
        monkeypatch.setenv("SLURM_NODEID", machine)
        rank_main._choose_gpu(5)
    assert taken == [0, 1, 0, 1]


def refuses(run: Path, *options: str) -> str:
    """Why a run is refused."""
    config = load_folds(run)
    with pytest.raises(UserError) as refused:
        check(config, parser().parse_args([str(run), *options]), 3)
    return str(refused.value)


def test_what_real_processes_do_not_have_is_refused(tmp_path: Path) -> None:
    run = written(tmp_path, "shards = 2\n" + ASYNCHRONOUS)
    assert "shards: 2 is simulated only; allowed here: 1" in refuses(run)
    run = written(tmp_path, ROUNDS)
    assert "--restarts 1: workers cannot rejoin rounds" in refuses(run, "--restarts", "1")
    run = written(tmp_path, OUTER_LOOP)
    assert "allowed with DelayedNesterov: 0" in refuses(run, "--restarts", "1")


def test_a_process_that_dies_is_started_again_as_often_as_was_asked(tmp_path: Path) -> None:
    def started(rank: int) -> BaseProcess:
        command = ["sh", "-c", STARTED, str(tmp_path), str(rank)]
        process = forks.context().Process(target=subprocess.check_call, args=(command,))
        process.start()
        return process

    (tmp_path / "started").touch()
    assert _supervise(started(0), [started(1)], started, 2) == 0
    assert (tmp_path / "started").read_text(encoding="utf-8").split() == ["1"] * 3


def test_a_group_is_started_waited_for_and_ends_with_its_servers_exit_code(tmp_path: Path) -> None:
    options = parser().parse_args(["async-averaged", "--processes", "3"])
    options.file = tmp_path / "missing.toml"
    assert _start(options) == EXIT_BAD_INPUT


def test_what_a_group_needs_is_there_to_be_imported_once() -> None:
    assert all(map(find_spec, NEEDED))
