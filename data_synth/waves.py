"""Reading recordings, and mixing them with noise at a stated level."""

from __future__ import annotations

import wave
from pathlib import Path

import numpy as np

from harness.base.errors import UserError

LONGEST_S = 6 * 3600
"""A recording lasts no longer."""


def read_wav(path: Path, rate_hz: int) -> np.ndarray:
    """The samples of a one-channel 16-bit wav file.

    Returns:
        float64 [samples], −32768..32767.

    Raises:
        UserError: the file is missing, not a wav, of another kind, or shorter than it says.
    """
    wanted = f"a wav file, 16-bit, one channel, {rate_hz} Hz, is expected"
    try:
        with wave.open(str(path)) as file:
            said = file.getparams()
            raw = file.readframes(said.nframes)
    except (wave.Error, EOFError, RuntimeError) as error:  # the last: a chunk that ends early
        reason = str(error) or "it ends early"
        raise UserError(f"{path}: not a whole wav file ({reason}); {wanted}") from None
    except OSError as error:
        raise UserError(f"{path}: cannot be read ({error.strerror}); {wanted}") from None
    found = (said.sampwidth, said.nchannels, said.framerate)
    if found != (2, 1, rate_hz):
        kind = f"{8 * found[0]}-bit, channels: {found[1]}, {found[2]} Hz"
        raise UserError(f"{path}: {kind}; {wanted}")
    if len(raw) != 2 * said.nframes or not raw:
        raise UserError(
            f"{path}: truncated: its header says {said.nframes} samples, "
            f"the file has {len(raw) // 2}; {wanted}"
        )
    return np.frombuffer(raw, "<i2").astype(np.float64)


def read_flac(path: Path, rate_hz: int) -> np.ndarray:
    """The samples of a one-channel 16-bit flac file.

    Returns:
        float64 [samples], −32768..32767.

    Raises:
        UserError: the file is missing, not a flac, of another kind, or shorter than it says.
    """
    import soundfile  # pyright: ignore[reportMissingTypeStubs]

    wanted = f"a flac file, one channel, {rate_hz} Hz, is expected"
    try:
        with soundfile.SoundFile(str(path)) as file:
            said, found = file.frames, (file.channels, file.samplerate)
            if said > LONGEST_S * rate_hz:  # so much is asked for before a sample is read
                raise UserError(f"{path}: {said} samples; allowed: at most {LONGEST_S // 3600} h")
            samples = file.read(dtype="int16")
    except (soundfile.LibsndfileError, OSError) as error:
        reason = str(error).rpartition(": ")[2]
        raise UserError(f"{path}: not a whole flac file ({reason}); {wanted}") from None
    if found != (1, rate_hz):
        raise UserError(f"{path}: channels: {found[0]}, {found[1]} Hz; {wanted}")
    if len(samples) != said or not said:
        raise UserError(
            f"{path}: truncated: its header says {said} samples, "
            f"the file has {len(samples)}; {wanted}"
        )
    return samples.astype(np.float64)


def babble(
    voices: list[np.ndarray], samples: int, talkers: int, rng: np.random.Generator
) -> np.ndarray:
    """Several people at once: recordings drawn at random, looped, equally loud, summed.

    Args:
        voices: recordings to draw from.
        samples: length of the result.
        talkers: recordings to sum.
        rng: decides which recordings and where each starts.

    Returns:
        float64 [samples], variance about ``talkers``.
    """
    total = np.zeros(samples)
    for voice in rng.integers(len(voices), size=talkers):
        own = voices[int(voice)]
        start = int(rng.integers(len(own)))
        looped = np.resize(np.roll(own, -start), samples)
        total += looped / max(float(own.std()), 1.0)
    return total


def with_noise(signal: np.ndarray, noise: np.ndarray, snr_db: float) -> np.ndarray:
    """Signal plus noise, scaled so that their mean powers differ by ``snr_db``.

    Returns:
        float64 [samples], 16-bit units, neither rounded nor clipped.
    """
    ratio = np.mean(signal**2) / max(float(np.mean(noise**2)), 1e-12)
    return signal + noise * np.sqrt(ratio) * 10 ** (-snr_db / 20)
