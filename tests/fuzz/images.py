"""Broken images of many kinds: cut, with flipped bits, with lying headers, put together of two, or of other types."""

from __future__ import annotations

import io
import struct
import zlib
from collections.abc import Callable
from functools import lru_cache
from pathlib import Path
from random import Random
from typing import Any

from PIL import Image

IMAGES = Path(__file__).parents[1] / "golden" / "media" / "images"
_OTHERS = (
    b"%PDF-1.7\n%\xe2\xe3\xcf\xd3\n1 0 obj<</Type/Catalog>>endobj",
    b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 10000 10000\n(x) run\nshowpage\n",
    b"<svg xmlns='http://www.w3.org/2000/svg' width='9999' height='9999'/>",
    b"\x00\x00\x00\x18ftypmp42\x00\x00\x00\x00mp42isom",
    b"PK\x03\x04\x14\x00\x00\x00\x08\x00",
    b"\xd7\xcd\xc6\x9a\x00\x00\x00\x00\x00\x00\xff\x7f\xff\x7f",
    b"\x00\x00\x01\x00\x01\x00\x00\x00\x00\x00\x01\x00\x20\x00",
    b"P6 100000 100000 255\n",
    b"8BPS\x00\x01\x00\x00\x00\x00\x00\x00\x00\x03\x00\x00\xff\xff\x00\x00\xff\xff\x00\x08\x00\x03",
    b"\x1a\x45\xdf\xa3",
)


@lru_cache
def seeds() -> tuple[bytes, ...]:
    """Whole images of every format that is decoded, in many of its kinds."""
    whole = [path.read_bytes() for path in sorted(IMAGES.iterdir())]
    image = Image.effect_noise((61, 47), 60).convert("RGB")
    exif = Image.Exif()
    exif[0x0112], exif[0x010E] = 6, "x" * 200
    kinds: list[tuple[str, str, dict[str, Any]]] = [
        ("RGB", "JPEG", {"progressive": True, "exif": exif}),
        ("L", "JPEG", {"quality": 30}),
        ("RGB", "JPEG", {"icc_profile": b"\x00" * 700, "subsampling": 0}),
        ("P", "PNG", {"bits": 4}),
        ("RGB", "PNG", {"exif": exif, "compress_level": 0}),
        ("I;16", "PNG", {}),
        ("RGBA", "WEBP", {"lossless": False, "exif": exif}),
        ("1", "BMP", {}),
        ("RGB", "BMP", {}),
        ("P", "GIF", {"interlace": 1}),
        ("RGB", "TIFF", {}),
    ]
    kinds += [(mode, "TIFF", {"compression": name}) for mode, name in (("RGB", "jpeg"), ("RGBA", "tiff_lzw"))]
    kinds += [(mode, "TIFF", {"compression": name}) for mode, name in (("1", "group4"), ("L", "packbits"))]
    kinds += [("CMYK", "TIFF", {"compression": "tiff_adobe_deflate"}), ("F", "TIFF", {})]
    for mode, format, options in kinds:
        converted = image.convert("L").convert(mode) if mode in ("1", "P", "I;16", "F") else image.convert(mode)
        whole.append(_saved(converted, format, **options))
    frames = [image.rotate(angle) for angle in (30, 60)]
    whole += [
        _saved(image, format, save_all=True, append_images=frames) for format in ("PNG", "WEBP", "GIF", "TIFF", "MPO")
    ]
    return tuple(whole)


def _saved(image: Image.Image, format: str, **options: Any) -> bytes:
    saved = io.BytesIO()
    image.save(saved, format, **options)
    return saved.getvalue()


def broken_image(random: Random) -> bytes:
    """One file; a few are whole after all."""
    file = bytearray(random.choice(seeds()))
    for _ in range(random.choice((1, 1, 1, 2, 3))):
        file = random.choice(_WAYS)(file, random)
    return bytes(file)


def _cut(file: bytearray, random: Random) -> bytearray:
    return file[: random.randrange(len(file) + 1)]


def _flip(file: bytearray, random: Random) -> bytearray:
    for _ in range(random.choice((1, 3, 30))):
        if file:
            # The header is where lies cost most.
            end = random.choice((len(file), min(len(file), 100)))
            file[random.randrange(end)] ^= 1 << random.randrange(8)
    return file


def _number(file: bytearray, random: Random) -> bytearray:
    """An extreme number somewhere, in either byte order."""
    value = random.choice((0, 1, 0x7FFF, 0xFFFF, 0x7FFFFFFF, 0xFFFFFFFF, 0x10000))
    packed = struct.pack(random.choice(("<", ">")) + ("I" if value > 0xFFFF else random.choice("HI")), value)
    start = random.randrange(random.choice((len(file) + 1, min(len(file) + 1, 100))))
    file[start : start + len(packed)] = packed
    return file


def _spliced(file: bytearray, random: Random) -> bytearray:
    other = random.choice(seeds())
    return file[: random.randrange(len(file) + 1)] + other[random.randrange(len(other)) :]


def _doubled(file: bytearray, random: Random) -> bytearray:
    start = random.randrange(len(file) + 1)
    end = min(start + random.randrange(1, 400), len(file))
    return file[:end] + file[start:end] * random.randrange(1, 50) + file[end:]


def _random_tail(file: bytearray, random: Random) -> bytearray:
    return file[: random.randrange(len(file) + 1)] + random.randbytes(random.randrange(600))


def _other(file: bytearray, random: Random) -> bytearray:
    return bytearray(random.choice(_OTHERS) + random.randbytes(random.randrange(50)))


def _bomb(file: bytearray, random: Random) -> bytearray:
    """A right PNG that is small as a file and large as an image, or whose data is more than its size."""
    width, height = (random.choice((1, 300, 5_000, 13_300, 70_000, 2**31 - 1)) for _ in range(2))
    head = struct.pack(">IIBBBBB", width, height, random.choice((1, 8, 16)), random.choice((0, 2, 3, 6)), 0, 0, 0)
    data = zlib.compress(bytes(random.choice((10, 100_000, 3_000_000))), 9)
    text = zlib.compress(b"a" * random.choice((10, 4_000_000)), 9)
    chunks = [(b"IHDR", head), (b"zTXt", b"k\x00\x00" + text), (b"IDAT", data), (b"IEND", b"")]
    made = bytearray(b"\x89PNG\r\n\x1a\n")
    for kind, body in chunks:
        made += struct.pack(">I", len(body)) + kind + body + struct.pack(">I", zlib.crc32(kind + body))
    return made


def _gif_of_empty_frames(file: bytearray, random: Random) -> bytearray:
    side = random.choice((1, 500, 65_535))
    frame = b"\x2c" + struct.pack("<HHHHB", 0, 0, side, side, 0) + b"\x02\x02\x44\x01\x00"
    return bytearray(b"GIF89a" + struct.pack("<HHBBB", side, side, 0, 0, 0) + frame * random.randrange(1, 300) + b";")


_WAYS: tuple[Callable[[bytearray, Random], bytearray], ...] = (
    _cut,
    _flip,
    _flip,
    _flip,
    _number,
    _number,
    _spliced,
    _doubled,
    _random_tail,
    _other,
    _bomb,
    _gif_of_empty_frames,
)
