import wave

import numpy as np
import pytest
from scipy.io import wavfile

from data_synth.recorded import babble, read_wav, with_noise
from harness.base.errors import UserError
from harness.base.seeds import stream


def write(path, rate=8000, channels=1, width=2, samples=400):
    with wave.open(str(path), "wb") as file:
        file.setnchannels(channels)
        file.setsampwidth(width)
        file.setframerate(rate)
        file.writeframes(stream(0, "wave").bytes(samples * channels * width))
    return path


def test_samples_agree_with_another_reader(tmp_path):
    path = write(tmp_path / "a.wav")
    assert (read_wav(path, 8000) == wavfile.read(path)[1]).all()


@pytest.mark.parametrize(
    ("kind", "message"),
    [
        ({"rate": 16000}, "16-bit, channels: 1, 16000 Hz"),
        ({"channels": 2}, "16-bit, channels: 2, 8000 Hz"),
        ({"width": 1}, "8-bit, channels: 1, 8000 Hz"),
        ({"samples": 0}, "truncated: its header says 0 samples"),
    ],
)
def test_another_kind_of_wav_is_refused_with_what_it_is(tmp_path, kind, message):
    path = write(tmp_path / "a.wav", **kind)
    with pytest.raises(UserError, match=message) as error:
        read_wav(path, 8000)
    assert str(path) in str(error.value)
    assert "one channel, 8000 Hz, is expected" in str(error.value)


@pytest.mark.parametrize("keep", [0, 3, 10, 30, 44, 45, 300, 843])
def test_a_wav_cut_anywhere_is_refused_in_one_line(tmp_path, keep):
    path = write(tmp_path / "a.wav")
    path.write_bytes(path.read_bytes()[:keep])
    with pytest.raises(UserError, match=r"not a whole wav file|truncated") as error:
        read_wav(path, 8000)
    assert "\n" not in str(error.value)


def test_a_missing_file_is_named(tmp_path):
    with pytest.raises(UserError, match=r"gone\.wav: cannot be read \(No such file"):
        read_wav(tmp_path / "gone.wav", 8000)


@pytest.mark.parametrize("snr_db", [-5.0, 0.0, 10.0])
def test_noise_is_added_at_the_stated_level(snr_db):
    rng = stream(0, "snr")
    signal, noise = 500 * rng.normal(size=3000), 3 * rng.normal(size=3000)
    added = with_noise(signal, noise, snr_db) - signal
    assert 10 * np.log10(np.mean(signal**2) / np.mean(added**2)) == pytest.approx(snr_db)
    assert np.corrcoef(added, noise)[0, 1] == pytest.approx(1.0)


def test_babble_is_a_sum_of_looped_recordings_equally_loud():
    voices = [1000.0 * np.array([1.0, -1.0, 1.0, -1.0]), 10.0 * np.array([2.0, -2.0])]
    heard = babble(voices, 7, 3, stream(0, "babble"))
    # Every voice here alternates; looped and scaled to its own deviation it is ±1.
    assert set(np.abs(heard)) <= {1.0, 3.0}
    assert (heard[1:] == -heard[:-1]).all()


def test_babble_of_silence_is_silence():
    assert (babble([np.zeros(5)], 4, 2, stream(0, "babble")) == 0).all()
