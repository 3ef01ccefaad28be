"""A corpus's fingerprint is part of the identity of every run on it: equal on every machine."""

import pytest

from data_synth import load_corpus

FINGERPRINTS = {
    "parametric": "672575f5cfcd846943e4b9d4f0630d8cb099ffb998a76f33d99038726549e713",
    "mandarin-like": "0dffa7733713bbb0fe32d6bcdd975d66c5325e33a49ee99c4d6d4487d673b4fc",
    "conversational": "be892e9d0492c82044a9f260c8b53c5e59b543499752f13bbde2e7f49415f192",
    "voice-search-small": "52888ea010f7231d4834912e84db5449cbb7b3f3f88605dd621427e7fc2c2bfa",
}


@pytest.mark.parametrize("name", FINGERPRINTS)
def test_a_corpus_has_the_content_it_has_everywhere(name, tmp_path):
    corpus = load_corpus(name, scale="smoke", cache=tmp_path, seed=0)
    assert corpus.fingerprint == FINGERPRINTS[name]
