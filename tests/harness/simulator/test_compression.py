"""What is sent compressed: fewer bytes, and the time it takes to make them."""

from dataclasses import replace

import pytest

from harness.base.errors import UserError
from harness.simulator.cluster import Compression, Workload
from harness.simulator.network import Level, Network
from harness.simulator.protocols.averaging import Averaging
from harness.simulator.simulation import Simulation

JOB = Workload(minibatch_frames=1, flops_per_frame=1.0, parameter_bytes=8.0)


@pytest.fixture
def folds_s(cluster):
    def run(rules, workers=4, **compression):
        network = Network((Level(1, 2.0, 0.25),))
        built = replace(cluster(workers), network=network, compression=Compression(**compression))
        return Simulation(built, rules, JOB).advance(folds=2).folds.time_s.tolist()

    return run


def test_a_round_encodes_sends_less_and_decodes(folds_s):
    """Eight bytes: 0.5 s to encode, a ring of four for a byte, 0.25 s to decode."""
    coder = {"ratio": 0.125, "encode_bytes_per_s": 16.0, "decode_bytes_per_s": 32.0}
    each_s = 1.0 + 0.5 + 6 * (0.25 + 0.25 / 2.0) + 0.25
    assert folds_s(Averaging(1), **coder) == [each_s, 2 * each_s]
    assert folds_s(Averaging(1), workers=1, **coder) == [1.0, 2.0]


def test_what_cannot_be_added_up_goes_to_everybody(folds_s):
    assert folds_s(Averaging(1, collective="gather"), ratio=0.25)[0] == 1.0 + 3 * (0.25 + 1.0)


def test_buckets_are_encoded_in_turn_and_travel_compressed(folds_s):
    """Gradients and their encoding take 2/3 + 1 s for two buckets; the last is sent after."""
    rules = Averaging(1, buckets=(4.0,))
    found = folds_s(rules, ratio=0.5, encode_bytes_per_s=8.0, decode_bytes_per_s=4.0)
    ring_s = 6 * (0.25 + 0.5 / 2.0)
    assert found[0] == pytest.approx(1 / 3 + (2 / 3 + 1.0) / 2 + 2 * ring_s + 2.0)


def test_a_ratio_of_one_at_no_cost_changes_nothing(folds_s, cluster):
    built = replace(cluster(4), network=Network((Level(1, 2.0, 0.25),)))
    plain = Simulation(built, Averaging(1), JOB).advance(folds=2).folds.time_s.tolist()
    assert folds_s(Averaging(1), ratio=1.0) == plain


def test_a_protocol_that_does_not_compress_says_so(cluster):
    with pytest.raises(UserError, match="compression: not simulated in protocol 'sequence'"):
        Simulation(replace(cluster(2), compression=Compression(0.5)), "sequence", JOB)
