"""Pixels: decoded, resized, normalised and cut, with numpy and Pillow. Loaded only in the helper process."""
