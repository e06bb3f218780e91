"""The parts of `chaos.py`: what is asked, how it may end, who breaks what, and what must be left at the end."""
