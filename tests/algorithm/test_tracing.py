"""Tests of how functions are traced."""

import contextlib
import threading

import tensorflow as tf

from relaax_like.algorithm.tracing import make_concrete


def test_one_thread_traces_at_a_time():
    """Python's parser, with which AutoGraph reads code, fails if threads use it at once."""
    both = threading.Barrier(2)
    met = []

    def wait_for_the_other(x):
        with contextlib.suppress(threading.BrokenBarrierError):
            both.wait(0.3)
            met.append(x.name)
        return x

    def trace():
        signature = [tf.TensorSpec([], tf.float32)]
        made.append(make_concrete(tf.function(wait_for_the_other, signature, autograph=False)))

    made = []
    threads = [threading.Thread(target=trace) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert not met
    assert [float(concrete(2.0)) for concrete in made] == [2.0, 2.0]
