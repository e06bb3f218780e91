"""From a file's bytes to an upright RGB image, in the steps and with the results of vLLM's front end.

vLLM 0.32 (``multimodal/image.py``, ``media/image.py``): the first frame, turned as EXIF says, on white where it has
transparency; colour profiles are ignored, and 16-bit gray is clipped at 255. Only formats that Pillow decodes by itself
are opened: some of its others start programs.
"""

from __future__ import annotations

import io
import warnings
from typing import Final

from PIL import ExifTags, Image, ImageOps, UnidentifiedImageError

FORMATS: Final = ("PNG", "JPEG", "WEBP", "GIF", "BMP", "TIFF")
_TURNED_SIDEWAYS: Final = (5, 6, 7, 8)

# The size is checked here, before anything is decoded; Pillow's own limit would only warn.
Image.MAX_IMAGE_PIXELS = None
warnings.simplefilter("ignore")


class CannotDecode(Exception):
    """The file is none of the formats, broken, or too large; the message says which."""


def open_image(data: bytes | bytearray | memoryview, max_pixels: int) -> Image.Image:
    """Read the header alone.

    Raises:
        CannotDecode: not an image of the accepted formats, or more than `max_pixels`.
    """
    try:
        image = Image.open(io.BytesIO(data), formats=FORMATS)
    except UnidentifiedImageError:
        raise CannotDecode(f"not an image in one of the formats {', '.join(FORMATS)}") from None
    except MemoryError:
        raise
    except Exception:  # noqa: BLE001 - each format's plugin raises errors of its own kinds for a broken header
        raise CannotDecode("the image's header is broken") from None
    if image.width * image.height > max_pixels:
        raise CannotDecode(f"{image.width}x{image.height} exceeds {max_pixels} pixels")
    return image


def upright_size(image: Image.Image) -> tuple[int, int]:
    """Width and height after EXIF's turn; decodes the image only where its format may keep EXIF data behind it.

    Raises:
        CannotDecode: the file is broken.
    """
    if image.format in ("PNG", "TIFF"):
        return upright(image).size
    try:
        orientation = image.getexif().get(ExifTags.Base.Orientation)
    except MemoryError:
        raise
    except Exception:  # noqa: BLE001 - as above
        raise CannotDecode("the image's EXIF data is broken") from None
    width, height = image.size
    return (height, width) if orientation in _TURNED_SIDEWAYS else (width, height)


def upright(image: Image.Image) -> Image.Image:
    """Decode an opened image and turn it; the mode stays.

    Raises:
        CannotDecode: the file is cut off or broken.
    """
    try:
        image.load()
        ImageOps.exif_transpose(image, in_place=True)
    except MemoryError:
        raise
    except Exception as error:  # noqa: BLE001 - as above
        if "truncated" in str(error):
            raise CannotDecode("the file is truncated") from None
        raise CannotDecode("the image is broken") from None
    return image


def to_rgb(image: Image.Image) -> Image.Image:
    """In RGB; what is transparent becomes white.

    Raises:
        CannotDecode: the mode cannot be converted.
    """
    if image.mode == "RGB":
        return image
    try:
        if image.mode not in ("RGBA", "LA", "PA") and "transparency" not in image.info:
            return image.convert("RGB")
        if image.mode != "RGBA":
            image = image.convert("RGBA")
        white = Image.new("RGB", image.size, (255, 255, 255))
        white.paste(image, mask=image.getchannel("A"))
    except MemoryError:
        raise
    except Exception:  # noqa: BLE001 - as above
        raise CannotDecode(f"an image of mode {image.mode} cannot be converted to RGB") from None
    return white
