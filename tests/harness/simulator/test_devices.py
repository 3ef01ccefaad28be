import pytest

from harness.base.errors import UserError
from harness.simulator.cluster import Cluster, catalogue, load_cluster

PLAIN = 'name = "n"\nworkers = [{{count = 2, device = "{}"}}]\n'


def written(tmp_path, text: str):
    path = tmp_path / "c.toml"
    path.write_text(text)
    return path


def test_a_device_of_the_catalogue_needs_no_description(tmp_path):
    cluster = load_cluster(written(tmp_path, PLAIN.format("H100")))
    assert cluster.devices == {"H100": catalogue()["H100"]}
    assert Cluster("n", cluster.devices, cluster.workers) == cluster


def test_a_files_own_description_comes_before_the_catalogues(tmp_path):
    own = PLAIN.format("H100") + "[devices.H100]\nachieved_flops_per_s = 1.0\n"
    assert load_cluster(written(tmp_path, own)).devices["H100"].achieved_flops_per_s == 1.0


def test_only_the_devices_that_are_named_are_added(tmp_path):
    two = PLAIN.format("mine") + "[devices.mine]\n"
    assert list(load_cluster(written(tmp_path, two)).devices) == ["mine"]


def test_a_device_that_nobody_knows_is_named_with_the_nearest(tmp_path):
    with pytest.raises(UserError, match=r"workers\[0\].device: unknown 'H10O' \(did you mean 'H10"):
        load_cluster(written(tmp_path, PLAIN.format("H10O")))


@pytest.mark.parametrize("name", catalogue())
def test_every_device_of_the_catalogue_has_sourced_figures_below_its_peak(name):
    device = catalogue()[name]
    assert device.achieved_flops_per_s is not None
    assert device.peak_flops_per_s is not None
    assert 0.1 < device.achieved_flops_per_s / device.peak_flops_per_s < 0.8
    assert device.memory_bytes_per_s is not None
    for figure in ("peak", "memory", "achieved", "half_rate_frames"):
        assert figure in device.source


def test_the_k20ms_rate_at_1024_frames_is_the_published_one():
    """243.3 GFLOP in 0.169 s."""
    assert catalogue()["K20m"].rate_flops_per_s(1024) == pytest.approx(243.3e9 / 0.169, rel=0.001)


def test_half_of_the_rate_is_reached_where_the_catalogue_says():
    for device in catalogue().values():
        half = device.rate_flops_per_s(device.half_rate_frames)
        assert half == pytest.approx(device.achieved_flops_per_s / 2)
