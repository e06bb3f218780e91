"""Tests of the TokenSpeed protocol."""
