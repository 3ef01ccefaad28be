import ctypes
import signal
import subprocess
import sys
import textwrap
import time
from pathlib import Path

import numba
import numpy as np
import pytest

from harness.cli import exit_code
from harness.experiment.run import keep_faults, run
from harness.store import Store
from tests.processes import PATIENCE_S, hear_signals

COMMAND = textwrap.dedent(
    """
    import sys, time
    from harness.cli import exit_code, run_process

    def run():
        try:
            print("ready", flush=True)
            time.sleep(600)
        finally:
            print("mending", flush=True)
            sys.stdin.readline()  # until the test has said all it has to say
            print("mended", flush=True)

    sys.exit(run_process(lambda: exit_code(run)))
    """
)

PARENT = textwrap.dedent(
    """
    import os, sys, time
    from harness.base import forks as forked

    def work(told):
        forked.die_with_parent()
        told.put(os.getpid())
        time.sleep(600)

    if __name__ == "__main__":
        context = forked.context()
        told = context.Queue()
        context.Process(target=work, args=(told,)).start()
        print(told.get(), flush=True)
        time.sleep(600)
    """
)


def begun(program, preexec_fn=hear_signals):
    return subprocess.Popen(
        [sys.executable, "-c", program], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
        stderr=subprocess.PIPE, text=True, preexec_fn=preexec_fn,
    )  # fmt: skip


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_command_that_is_told_to_end_mends_and_says_one_line(number):
    with begun(COMMAND) as process:
        assert process.stdout.readline() == "ready\n"
        process.send_signal(number)
        out, err = process.communicate()
    assert (process.returncode, out, err) == (130, "mending\nmended\n", "interrupted\n")


def test_a_command_that_is_told_twice_ends_as_one_that_is_told_once():
    with begun(COMMAND) as process:
        assert process.stdout.readline() == "ready\n"
        process.send_signal(signal.SIGINT)
        assert process.stdout.readline() == "mending\n"
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGINT):
            process.send_signal(number)
        out, err = process.communicate()
    assert (process.returncode, out, err) == (130, "mended\n", "interrupted\n")


def test_ctrl_c_amid_compiled_code_ends_a_command_and_fails_no_run(capsys, tmp_path, request):
    former = signal.signal(signal.SIGINT, signal.default_int_handler)
    request.addfinalizer(lambda: signal.signal(signal.SIGINT, former))
    send = getattr(ctypes.CDLL(None), "raise")
    send.argtypes, send.restype = [ctypes.c_int], ctypes.c_int

    @numba.njit
    def compute(number):
        if number:
            send(number)
        return np.zeros(3), np.zeros(3)

    class Config:
        execute = staticmethod(lambda store, watch: compute(int(signal.SIGINT)))
        to_dict = staticmethod(lambda: {"kind": "test"})

    store = Store(tmp_path)
    compute(0)
    with pytest.raises(SystemError):  # so numba hides it
        run(Config(), store)
    assert exit_code(lambda: run(Config(), store)) == 130
    assert capsys.readouterr().err == "interrupted\n"
    with pytest.raises(KeyboardInterrupt), keep_faults(Config(), store, keeps_faults=True):
        run(Config(), store)
    assert not [*store.runs()]


def test_a_signal_that_is_ignored_from_outside_stays_so():
    def without_hangups():
        hear_signals()
        signal.signal(signal.SIGHUP, signal.SIG_IGN)

    with begun(COMMAND, preexec_fn=without_hangups) as process:
        assert process.stdout.readline() == "ready\n"
        process.send_signal(signal.SIGHUP)
        time.sleep(0.2)
        assert process.poll() is None
        process.terminate()
        process.communicate()
    assert process.returncode == 130


@pytest.mark.skipif(sys.platform != "linux", reason="looks into /proc")
def test_no_process_outlives_a_killed_parent(tmp_path):
    (tmp_path / "parent.py").write_text(PARENT)
    command = [sys.executable, str(tmp_path / "parent.py")]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        worker = int(process.stdout.readline())
        process.kill()
    end = time.monotonic() + PATIENCE_S
    while _lives(worker):
        assert time.monotonic() < end, "the worker lives on"
        time.sleep(0.01)


def _lives(process):
    """Whether it runs: one that has ended may wait for somebody to ask how."""
    try:
        status = Path(f"/proc/{process}/stat").read_text()
    except FileNotFoundError:
        return False
    return status.rpartition(")")[2].split()[0] != "Z"
