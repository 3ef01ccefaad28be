import numpy as np
import pytest

from harness.experiment import loop


def test_a_checkpoint_comes_back_with_its_arrays_and_facts(tmp_path):
    arrays = {"a": np.arange(6.0).reshape(2, 3).T, "scalar": np.array(2.5), "none": np.zeros(0)}
    loop.save(tmp_path / "new", arrays, {"step": 3, "rows": [[1, "x"]]})
    found, facts = loop.load(tmp_path / "new")
    assert facts == {"step": 3, "rows": [[1, "x"]]}
    assert {name: (a.shape, a.tolist()) for name, a in found.items()} == {
        name: (a.shape, a.tolist()) for name, a in arrays.items()
    }
    assert loop.load(tmp_path / "empty") is None


def test_a_death_while_a_checkpoint_is_written_leaves_the_one_before(tmp_path, monkeypatch):
    loop.save(tmp_path, {"a": np.ones(3)}, {"step": 1})

    def dies(path, arrays, metadata):
        path.write_bytes(b"half of it")
        raise KeyboardInterrupt

    monkeypatch.setattr(loop, "save_arrays", dies)
    with pytest.raises(KeyboardInterrupt):
        loop.save(tmp_path, {"a": np.zeros(3)}, {"step": 2})
    arrays, facts = loop.load(tmp_path)
    assert (arrays["a"].tolist(), facts) == ([1.0, 1.0, 1.0], {"step": 1})


def test_a_checkpoint_with_any_byte_changed_is_not_gone_on_from(tmp_path, capsys):
    loop.save(tmp_path, {"a": np.arange(5.0), "b": np.arange(3)}, {"step": 1})
    path = tmp_path / loop.NAME
    whole = path.read_bytes()
    for at in range(len(whole)):
        path.write_bytes(whole[:at] + bytes([whole[at] ^ 1]) + whole[at + 1 :])
        found = loop.load(tmp_path)
        assert found is None or _meaning(found) == _meaning(_of(whole, tmp_path)), at
    assert "damaged" in capsys.readouterr().err


def _of(content, folder):
    (other := folder / "whole").mkdir(exist_ok=True)
    (other / loop.NAME).write_bytes(content)
    return loop.load(other)


def _meaning(found):
    arrays, facts = found
    return {name: (a.dtype, a.tolist()) for name, a in arrays.items()}, facts
