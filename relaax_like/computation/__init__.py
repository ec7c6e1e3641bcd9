"""The border between NumPy and TensorFlow.

`model`, `algorithm`, `computation_task` and `acting` import TensorFlow; `prediction` and
`data_processor`, which servers and agents use, do not.
"""
