"""The border between NumPy and TensorFlow.

`algorithm`, `computation_task`, `updates` and `tasks` import TensorFlow. `model`, `actor_critic`
and `acting` do so when they need it: a model of our own layers is built, described and acts
without. `prediction` and `data_processor`, which servers and agents use, never do.
"""
