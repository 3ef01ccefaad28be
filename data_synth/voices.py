"""espeak-ng speaking sentences, with the time of every phone; the same bytes in any order.

espeak-ng keeps hidden state from one sentence to the next. So this file is also a small
program that initialises it once and speaks every sentence in a forked copy of that first
state; ``Speaker`` runs the program and sends it requests.
"""

from __future__ import annotations

import ctypes
import json
import os
import subprocess
import sys
from dataclasses import dataclass
from typing import Any

import numpy as np

WORD, PHONE = 1, 7  # espeakEVENT_WORD, espeakEVENT_PHONEME
SYNCHRONOUS, PHONE_EVENTS, UTF8 = 2, 1, 1
SPEED, PITCH = 1, 3  # espeakRATE, espeakPITCH
HEADER_BYTES = 12


@dataclass(frozen=True)
class Synthesis:
    """A synthesised sentence.

    Attributes:
        samples: int16 [samples].
        rate_hz: samples a second.
        events: (first sample, name) in order: the name of a phone, or "" where a word begins.
    """

    samples: np.ndarray
    rate_hz: int
    events: tuple[tuple[int, str], ...]


class _Name(ctypes.Union):
    _fields_ = (("number", ctypes.c_int), ("name", ctypes.c_char_p), ("string", ctypes.c_char * 8))


class _Event(ctypes.Structure):
    _fields_ = (
        ("type", ctypes.c_int),
        ("unique", ctypes.c_uint),
        ("text_position", ctypes.c_int),
        ("length", ctypes.c_int),
        ("audio_position", ctypes.c_int),
        ("sample", ctypes.c_int),
        ("user_data", ctypes.c_void_p),
        ("id", _Name),
    )


class _Engine:
    """espeak-ng as a library in this process."""

    def __init__(self) -> None:
        import espeakng_loader  # pyright: ignore[reportMissingImports, reportMissingTypeStubs]

        self.library = ctypes.CDLL(espeakng_loader.get_library_path())
        data = espeakng_loader.get_data_path().encode()
        self.rate_hz = self.library.espeak_Initialize(SYNCHRONOUS, 0, data, PHONE_EVENTS)
        self.pieces: list[np.ndarray] = []
        self.events: list[tuple[int, str]] = []
        kind = ctypes.CFUNCTYPE(
            ctypes.c_int, ctypes.POINTER(ctypes.c_short), ctypes.c_int, ctypes.POINTER(_Event)
        )
        self.heard = kind(self._hear)
        self.library.espeak_SetSynthCallback(self.heard)

    def _hear(self, samples: Any, count: int, events: Any) -> int:
        if count > 0:
            self.pieces.append(np.ctypeslib.as_array(samples, (count,)).copy())
        i = 0
        while events[i].type:
            if events[i].type in (WORD, PHONE):
                named = events[i].id.string.decode() if events[i].type == PHONE else ""
                self.events.append((events[i].sample, named))
            i += 1
        return 0

    def say(self, voice: str, text: str, pitch: int, speed: int) -> None:
        raw = text.encode()
        if self.library.espeak_SetVoiceByName(voice.encode()):
            raise ValueError(f"no voice {voice}")
        self.library.espeak_SetParameter(PITCH, pitch, 0)
        self.library.espeak_SetParameter(SPEED, speed, 0)
        self.library.espeak_ng_SetRandSeed(ctypes.c_long(1))
        self.library.espeak_Synth(raw, len(raw) + 1, 0, 1, 0, UTF8, None, None)
        self.library.espeak_Synchronize()


def _serve() -> None:
    """Answers one JSON request a line with a header's length, a JSON header, and samples."""
    engine, out = _Engine(), sys.stdout.buffer
    for line in sys.stdin:
        child = os.fork()
        if child == 0:
            engine.say(**json.loads(line))
            samples = np.concatenate([np.zeros(0, np.int16), *engine.pieces])
            head = json.dumps([engine.rate_hz, len(samples), engine.events]).encode()
            out.write(str(len(head)).encode().ljust(HEADER_BYTES) + head + samples.tobytes())
            out.flush()
            os._exit(0)
        if os.waitpid(child, 0)[1]:
            sys.exit(1)


class Speaker:
    """A running espeak-ng; use it in a ``with`` block."""

    def __init__(self) -> None:
        self.process = subprocess.Popen(
            [sys.executable, __file__], stdin=subprocess.PIPE, stdout=subprocess.PIPE
        )

    def __enter__(self) -> Speaker:
        return self

    def __exit__(self, *error: object) -> None:
        for pipe in (self.process.stdin, self.process.stdout):
            if pipe is not None:
                pipe.close()
        self.process.wait()

    def say(self, voice: str, text: str, pitch: int = 50, speed: int = 170) -> Synthesis:
        """Speaks a sentence.

        Args:
            voice: of espeak-ng, e.g. ``"en-us+f2"``.
            text: of the sentence.
            pitch: 0 to 99.
            speed: words a minute.

        Raises:
            RuntimeError: espeak-ng failed.
        """
        source, sink = self.process.stdout, self.process.stdin
        assert source is not None
        assert sink is not None
        wish = {"voice": voice, "text": text, "pitch": pitch, "speed": speed}
        sink.write(json.dumps(wish).encode() + b"\n")
        sink.flush()
        size = source.read(HEADER_BYTES)
        if not size:
            raise RuntimeError(f"espeak-ng could not say {wish}")
        rate_hz, count, events = json.loads(source.read(int(size)))
        samples = np.frombuffer(source.read(2 * count), np.int16)
        return Synthesis(samples, rate_hz, tuple((int(at), name) for at, name in events))


if __name__ == "__main__":
    _serve()
