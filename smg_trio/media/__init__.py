"""Images and videos of requests: read, decoded, resized, and put into the prompt.

A part of a request becomes a `core.media.MediaSource` in `api`. `reader` makes bytes of it (`sources`: data URLs and
base64; `fetch`: URLs, with `addresses` that it may connect to), within `budget`. `families` says what a model's engine
expects, `processor` prepares it, `expansion` puts it into the prompt. Decoding and resizing run in a process of their
own (`helper`), which alone loads numpy and Pillow.
"""
