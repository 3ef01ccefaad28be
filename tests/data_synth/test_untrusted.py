"""Archives and tables from elsewhere: nothing is executed, unpickled or written elsewhere."""

import io
import pickle
import struct
import tarfile
from pathlib import Path

import kaldiio
import numpy as np
import pytest

from data_synth.public.fetching import Source, unpack
from data_synth.public.kaldi_files import NotNumbers, matrix
from harness.base.errors import UserError

SOURCE = Source("c", "https://example.org/c.tar.gz", "inside", "0" * 64, ".wav")
SAMPLES = np.arange(12, dtype=np.float32).reshape(4, 3)


class Runs:
    """Unpickled, it writes a file."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[object, ...]:
        return Path.touch, (self.path,)


@pytest.mark.parametrize("command", ["touch {} |", "| touch {}", "x; touch {} |"])
def test_a_command_in_a_table_is_not_run(tmp_path: Path, command: str) -> None:
    with pytest.raises(NotNumbers, match="a command, and commands are not run"):
        matrix(command.format(tmp_path / "ran"), tmp_path)
    assert not (tmp_path / "ran").exists()


def test_a_pickle_in_an_archive_is_not_opened(tmp_path: Path) -> None:
    content = b"u1 PKL" + pickle.dumps(Runs(tmp_path / "ran"))
    (tmp_path / "a.ark").write_bytes(content)
    with pytest.raises(NotNumbers):
        matrix("a.ark:3", tmp_path)
    assert not (tmp_path / "ran").exists()


def test_a_matrix_is_the_one_that_kaldiio_reads(tmp_path: Path) -> None:
    kaldiio.save_ark(str(tmp_path / "a.ark"), {"u1": SAMPLES})
    assert matrix("a.ark:3", tmp_path).tolist() == SAMPLES.tolist()
    assert kaldiio.load_mat(f"{tmp_path}/a.ark:3").tolist() == SAMPLES.tolist()


def packed(*members: tuple[tarfile.TarInfo, bytes]) -> io.BytesIO:
    file = io.BytesIO()
    with tarfile.open(fileobj=file, mode="w:gz", format=tarfile.PAX_FORMAT) as tar:
        for member, content in members:
            member.size = len(content)
            tar.addfile(member, io.BytesIO(content))
    return file


def member(name: str, kind: bytes = tarfile.REGTYPE, leads: str = "") -> tarfile.TarInfo:
    made = tarfile.TarInfo(name)
    made.type, made.linkname = kind, leads
    return made


def test_nothing_but_regular_files_below_the_folder_is_unpacked(tmp_path: Path) -> None:
    place = tmp_path / "place"
    place.mkdir()
    whole = packed(
        (member("top/inside/good.wav"), b"good"),
        (member("top/inside/../../../up.wav"), b"up"),
        (member("/inside/rooted.wav"), b"below all the same"),
        (member("inside/inside/../x.wav"), b"up"),
        (member("top/inside/link.wav", tarfile.SYMTYPE, "/etc/passwd"), b""),
        (member("top/inside/self.wav", tarfile.SYMTYPE, "self.wav"), b""),
        (member("top/inside/hard.wav", tarfile.LNKTYPE, "../../../etc/passwd"), b""),
        (member("top/inside/device.wav", tarfile.CHRTYPE), b""),
        (member("top/inside/pipe.wav", tarfile.FIFOTYPE), b""),
    )
    unpack(whole, SOURCE, place)
    assert {path.name for path in place.rglob("*")} == {"good.wav", "rooted.wav"}
    assert [path.name for path in tmp_path.iterdir()] == ["place"]


def test_what_is_cut_short_or_damaged_within_is_said_so(tmp_path: Path) -> None:
    whole = packed((member("top/inside/a.wav"), bytes(range(256)) * 50)).getvalue()
    changed = whole[:40] + b"\xff\xff\xff" + whole[43:]
    for broken in (whole[:-20], changed, b"", struct.pack("q", 7)):
        with pytest.raises(UserError, match="not a whole archive"):
            unpack(io.BytesIO(broken), SOURCE, tmp_path)
