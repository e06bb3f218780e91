"""``smg-trio doctor``: whether this host is ready for a launch, and what to do where it is not.

`host` and the reading functions beside the checks look at the system; what is concluded from that is pure. Nothing is
changed: no directory is made, no lock is taken, no engine is spoken to.
"""
