"""The parts of `relaax_like.replay`: rows, items, selectors, the table."""
