"""Programs for a person at a terminal that talk to a running gateway through its API alone."""
