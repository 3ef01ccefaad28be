import pytest

from harness.base.errors import UserError
from harness.simulator.cluster import Jitter, load_cluster

HEAD = 'name = "n"\nworkers = [{count = 1, device = "K20"}]\n'
EMPIRICAL = HEAD + '[jitter]\nlaw = "empirical"\nfile = "steps.txt"\n'


@pytest.fixture
def cluster_file(tmp_path):
    def write(durations: str | bytes | None, text: str = EMPIRICAL):
        (tmp_path / "c.toml").write_text(text)
        if durations is not None:
            content = durations.encode() if isinstance(durations, str) else durations
            (tmp_path / "steps.txt").write_bytes(content)
        return tmp_path / "c.toml"

    return write


def test_durations_are_read_from_beside_the_cluster_file(cluster_file, tmp_path, monkeypatch):
    monkeypatch.chdir("/")
    path = cluster_file("# measured\n0.25\n\n 0.5  # slow\n1e-3\n")
    assert load_cluster(path).jitter == Jitter("empirical", values=(0.25, 0.5, 0.001))


def test_a_cluster_is_the_same_whether_its_durations_stand_in_it_or_beside_it(cluster_file):
    beside = load_cluster(cluster_file("1\n2\n"))
    inside = load_cluster(
        cluster_file(None, EMPIRICAL.replace('file = "steps.txt"', "values=[1,2]"))
    )
    assert beside.to_dict() == inside.to_dict()


def test_the_durations_of_folds_may_be_in_a_file_too(cluster_file):
    text = HEAD + '[server.jitter]\nlaw = "empirical"\nfile = "steps.txt"\n'
    assert load_cluster(cluster_file("3\n", text)).server.jitter.values == (3.0,)


@pytest.mark.parametrize(
    ("durations", "message"),
    [
        (None, "cannot read"),
        (b"\xff\xfe\x00", "not a text file"),
        ("1\nfast\n", "steps.txt line 2: 'fast' is not allowed; allowed: 0 to 1e+09"),
        ("-1\n", "steps.txt line 1: '-1' is not allowed"),
        ("nan\n", "steps.txt line 1: 'nan' is not allowed"),
        ("1\ninf\n", "steps.txt line 2: 'inf' is not allowed"),
        ("1 2\n", "steps.txt line 1: '1 2' is not allowed"),
        ("# nothing\n", "jitter.values: an empirical law needs durations"),
        ("0\n0\n", "jitter.values: an empirical law needs durations"),
    ],
)
def test_a_file_of_durations_with_a_mistake_is_refused_in_one_line(
    cluster_file, durations, message
):
    path = cluster_file(durations)
    with pytest.raises(UserError) as caught:
        load_cluster(path)
    assert str(caught.value).startswith(f"{path}: jitter.")
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_file_besides_values_or_outside_a_cluster_file_is_refused(cluster_file):
    with pytest.raises(UserError, match=r"jitter\.file: only a cluster file may name one"):
        load_cluster(cluster_file("1\n", EMPIRICAL + "values = [1.0]\n"))
    with pytest.raises(UserError, match=r"Jitter\.file"):
        Jitter("empirical", file="steps.txt")
