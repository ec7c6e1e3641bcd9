"""Experience: arrays `[T, k, ...]` and the pure functions on them."""
