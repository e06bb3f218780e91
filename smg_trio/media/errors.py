"""What is wrong with media of a request. Each message begins with the part that it is about: `MediaSource.where`."""

from __future__ import annotations

from smg_trio.core.errors import ClientFault, GatewayFault, InvalidRequest, Overloaded


class InvalidMedia(InvalidRequest):
    """What was sent, or where it was to be fetched from, is no image, video or sound that can be read."""

    code = "invalid_media"

    def __init__(self, where: str, problem: str) -> None:
        super().__init__(f"{where}: {problem}", param=where)


class MediaNotAllowed(InvalidMedia):
    """The URL is not one that this gateway fetches from. Never says which address a name has."""

    code = "media_url_not_allowed"


class MediaTooLarge(ClientFault):
    """More bytes than one item, or all media of one request, may have."""

    code = "media_too_large"
    status = 413

    def __init__(self, where: str, problem: str) -> None:
        super().__init__(f"{where}: {problem}", param=where)


class MediaUnavailable(GatewayFault):
    """The server of the URL could not be reached, failed, or broke off."""

    code = "media_fetch_failed"
    status = 502

    def __init__(self, where: str, problem: str) -> None:
        super().__init__(f"{where}: {problem}")
        self.param = where


class MediaTimeout(MediaUnavailable):
    """The server of the URL took too long."""

    code = "media_fetch_timeout"
    status = 504


class MediaMemoryFull(Overloaded):
    """Media of other requests hold all the memory that media may."""

    code = "media_memory_full"
