"""Whatever the environment holds, a command answers, or says in one line what it cannot."""

import io
import os
import resource
import subprocess
import sys
from importlib import import_module

import pytest

from harness.base.errors import UserError
from harness.cli import exit_code, main
from harness.processes.group import FILES, FILES_A_PROCESS, allow_files
from harness.train import main as train


def test_a_command_in_a_folder_that_was_deleted_says_so(tmp_path, monkeypatch, capsys):
    (gone := tmp_path / "gone").mkdir()
    monkeypatch.chdir(gone)
    gone.rmdir()
    for command in (lambda: main(["runs"]), lambda: train(["run.toml"])):
        assert command() == 2
        told = "error: working folder: cannot be found (No such file or directory); allowed: a"
        assert capsys.readouterr().err.startswith(told)


def test_numba_that_compiles_nothing_is_refused(monkeypatch):
    monkeypatch.setenv("NUMBA_DISABLE_JIT", "1")
    answer = subprocess.getstatusoutput(f"{sys.executable} -m harness simulate k20m-server")
    assert answer == (2, "error: environment: NUMBA_DISABLE_JIT=1: allowed: 0, or without it")


def test_a_locale_without_a_letter_shows_its_number(monkeypatch):
    monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(io.BytesIO(), "ascii"))
    assert exit_code(lambda: print("0.5 \xb1 0.1") or 0) == 0
    sys.stdout.flush()
    assert sys.stdout.buffer.getvalue() == b"0.5 \\xb1 0.1\n"


BROKEN = {
    "ValueError: no": "raise ValueError('no')",
    "OSError: [Errno 24] Too many open files": "import os\nraise OSError(24, os.strerror(24))",
    "ImportError: libx.so: no segment": "raise ImportError('libx.so: no segment')",
}


@pytest.mark.parametrize("told", BROKEN)
def test_a_library_that_cannot_be_imported_is_one_line(tmp_path, monkeypatch, capsys, told):
    name = f"broken_{len(told)}"
    (tmp_path / f"{name}.py").write_text(BROKEN[told])
    monkeypatch.syspath_prepend(tmp_path)
    assert exit_code(lambda: import_module(name)) == 2
    assert capsys.readouterr().err == f"error: {name} cannot be imported here: {told}\n"


def test_our_own_faults_keep_their_traceback():
    def fault():
        raise ValueError("ours")

    with pytest.raises(ValueError, match="ours"):
        exit_code(fault)


def test_a_setting_that_numba_does_not_bear_is_one_line():
    environment = {**os.environ, "NUMBA_NUM_THREADS": "0"}
    command = [sys.executable, "-m", "lagbench", "simulate", "k20m-server"]
    ended = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert (ended.returncode, ended.stdout) == (2, "")
    assert ended.stderr.startswith("error: numba cannot be imported here: ValueError: Number of t")


def test_threads_that_cannot_be_started_are_one_line(capsys):
    def start():
        raise RuntimeError("can't start new thread")

    assert exit_code(start) == 2
    told = "error: this machine starts no further thread; allowed: a higher ulimit -u\n"
    assert capsys.readouterr().err == told


@pytest.mark.parametrize(
    ("soft", "hard", "ends"), [(20, 20, None), (20, 4096, 76), (1024, 1024, 1024), (20, -1, 76)]
)
def test_a_group_may_open_the_files_that_it_needs_or_is_refused(monkeypatch, soft, hard, ends):
    limits = [(soft, hard)]
    monkeypatch.setattr(resource, "getrlimit", lambda kind: limits[-1])
    monkeypatch.setattr(resource, "setrlimit", lambda kind, pair: limits.append(pair))
    assert FILES + 3 * FILES_A_PROCESS == 76
    if ends is None:
        told = "environment: ulimit -n 20: allowed with 3 processes: at least 76 open files"
        with pytest.raises(UserError, match=told):
            allow_files(3)
    else:
        allow_files(3)
        assert limits[-1] == (ends, hard)


def test_a_run_file_without_stages_is_refused(tmp_path, capsys):
    (path := tmp_path / "run.toml").write_text(
        'cluster = "k20m-server"\nworkers = 2\nstages = []\n'
        '[task]\nis = "frames"\ncorpus = "parametric"\nhidden = [8]\n'
        '[algorithm]\nis = "AsyncSgd"\n[schedule]\nis = "Constant"\nrate = 0.1\n'
    )
    assert main(["train", str(path), "--out", str(tmp_path / "s")]) == 2
    assert "run.toml: stages: 0; allowed: at least one" in capsys.readouterr().err
