"""IMPALA: an actor-critic on experience of older policies; see README.md."""
