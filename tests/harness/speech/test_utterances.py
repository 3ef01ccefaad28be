"""Which replica decodes which utterances, pass by pass."""

import pytest

from harness.base.seeds import stream
from harness.speech.decoding import orders, parts


@pytest.mark.parametrize(("utterances", "replicas"), [(7, 1), (7, 2), (8, 4), (10, 3)])
def test_utterances_are_drawn_and_dealt_out_in_turn(utterances, replicas):
    drawn = stream(4, "sequence parts").permutation(utterances).tolist()
    expected = [[] for _ in range(replicas)]
    for place, utterance in enumerate(drawn):
        expected[place % replicas].append(utterance)
    assert [part.tolist() for part in parts(4, utterances, replicas)] == expected


def test_each_replica_goes_over_its_part_in_a_new_order_every_pass_and_shorter_rows_end_early():
    found = orders(4, 7, 2, 3)
    assert found.shape == (2, 3 * 4)
    for replica, part in enumerate(parts(4, 7, 2)):
        passes = [
            stream(4, "sequence order", k, replica).permutation(part).tolist() for k in range(3)
        ]
        said = [utterance for each in passes for utterance in each]
        assert found[replica].tolist() == said + [-1] * (12 - len(said))
        assert all(sorted(each) == sorted(part.tolist()) for each in passes)
    assert found[0, :4].tolist() != found[0, 4:8].tolist()
    assert orders(5, 7, 2, 3).tolist() != found.tolist()
