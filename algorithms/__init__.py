"""Algorithms, one folder each; loaded by path, never imported from here."""
