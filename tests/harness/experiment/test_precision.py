import pytest

from harness.base.errors import UserError
from harness.experiment.run import run as train
from harness.store import Store


def test_a_run_in_bfloat16_is_another_and_gives_the_same_bytes_again(configure, corpus, tmp_path):
    config = configure(precision="bf16")
    assert config.to_dict()["precision"] == "bf16"
    files = [
        (train(config, Store(tmp_path / name)).dir / "model.safetensors")
        for name in ("once", "again")
    ]
    other = train(configure(), Store(tmp_path / "float32"))
    assert files[0].read_bytes() == files[1].read_bytes()
    assert files[0].read_bytes() != (other.dir / "model.safetensors").read_bytes()


def test_a_run_in_tf32_on_a_processor_is_refused(configure):
    with pytest.raises(UserError, match="precision: tf32"):
        configure(precision="tf32")
