"""A corpus that is kept is the one that was made, or it is made again."""

import pytest

from data_synth.storage import load_or_make, write
from tests.data_synth.small import small_corpus

FILES = ["features.npy", "targets.npy", "utterances.parquet", "corpus.json"]


def make(place):
    write(small_corpus(), place)


@pytest.mark.sampled(5)
@pytest.mark.parametrize("name", FILES)
@pytest.mark.parametrize("share", [0.05, 0.35, 0.65, 0.95])
def test_a_damaged_part_is_noticed_and_the_corpus_made_again(tmp_path, capsys, name, share):
    folder = tmp_path / "corpora" / "tiny"
    known = load_or_make(folder, make).fingerprint
    whole = (folder / name).read_bytes()
    at = int(share * len(whole))
    damaged = whole[:at] + bytes(b ^ 1 for b in whole[at : at + 9]) + whole[at + 9 :]
    (folder / name).write_bytes(damaged)
    again = load_or_make(folder, make)
    assert again.fingerprint == again.computed_fingerprint() == known
    assert (folder / name).read_bytes() == whole
    assert capsys.readouterr().err.count("it is made again\n") == 1
    assert [entry.name for entry in folder.parent.iterdir()] == ["tiny"]
