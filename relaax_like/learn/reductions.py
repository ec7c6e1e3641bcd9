"""Reductions: sums over the rows of several learners, for compiled functions of one of them."""

from collections.abc import Iterable, Sequence

from relaax_like.nn.runtime import tf
from relaax_like.wire.errors import ConfigError

# The known sums are an input of a fixed length.
MAX_SUMS = 64


class Reductions:
    """The sums that a method of an algorithm makes over rows, while it is traced.

    A sum over the rows of all learners is the sum of the learners' own sums. In a compiled function
    it is an element of its input `known`; the learner's own sum is a result. A sum that depends on
    elements of `known` is correct only if these are. So the function is called once for each level
    of sums, each time with more known sums, before its other results are correct.

    The value of a total is the known one. Its gradient is `learners` times the gradient of the own
    sum, so that the mean of all learners' gradients is the gradient of the joint cost, including
    parts that do not depend on rows, such as a weight decay.

    Attributes:
      levels: of each sum, how many rounds of other sums it depends on.
      sums: this learner's sums, `[] float64` each, in the order in which they were made.

    Args:
      known: `[MAX_SUMS] float64`.
      learners: `[] float32`, number of learners that have rows.
      valid: `Batch.valid`, whose sum over all learners is already known; None: it is not known.
      count: sum of `valid` over all learners, `[] float32`.
      place: `FILE:LINE` of the algorithm's code, for errors.
    """

    def __init__(
        self,
        known: tf.Tensor,
        learners: tf.Tensor,
        valid: tf.Tensor | None,
        count: tf.Tensor,
        place: str,
    ):
        self.levels: list[int] = []
        self.sums: list[tf.Tensor] = []
        self._known = known
        self._learners = learners
        self._counts = [] if valid is None else [(valid, count)]
        self._place = place
        self._levels: dict[str, int] = {}  # name of an element of `known` -> its level
        self._elements: list[str] = []  # those of `sums`
        self._seen: dict[str, int] = {}  # name of a tensor -> highest level that it depends on
        self._graph = known.graph

    def note_count(self, valid: tf.Tensor, count: tf.Tensor) -> None:
        """Notes the number of rows of all learners for which `valid`, `[...]`, is 1."""
        self._counts.append((valid, count))

    @tf.autograph.experimental.do_not_convert
    def count(self, valid: tf.Tensor) -> tf.Tensor:
        """Returns sum(valid) over all learners.

        Raises:
          ConfigError: see `total`.
        """
        for known, count in self._counts:
            if known is valid:
                return count
        self._counts.append((valid, self.total(tf.reduce_sum(valid))))
        return self._counts[-1][1]

    @tf.autograph.experimental.do_not_convert
    def total(self, local: tf.Tensor) -> tf.Tensor:
        """Returns the sum of a number, `[]`, over all learners.

        Raises:
          ConfigError: it is called inside of a loop, a condition or another tf.function, or more
            than MAX_SUMS times.
        """
        if getattr(local, "graph", None) is not self._graph:
            raise ConfigError(
                f"{self._place}: batch.sum, batch.mean or batch.normalize is called inside of a "
                "loop, a condition or a tf.function, which relaax-parameter-server.combine.method: "
                "sync does not support; call it outside"
            )
        index = len(self.sums)
        if index == MAX_SUMS:
            raise ConfigError(
                f"{self._place}: more than {MAX_SUMS} sums over the batch, which "
                "relaax-parameter-server.combine.method: sync does not support; combine some of "
                "them"
            )
        self.sums.append(tf.cast(local, tf.float64))
        element = self._known[index]
        level = self.find_level([local])
        self.levels.append(level)
        self._levels[element.name] = 1 + level
        self._elements.append(element.name)
        value, scale = tf.cast(element, local.dtype), tf.cast(self._learners, local.dtype)

        @tf.custom_gradient
        def joint(own: tf.Tensor) -> tuple[tf.Tensor, object]:
            return tf.identity(value), lambda upstream: upstream * scale

        return joint(local)

    @tf.autograph.experimental.do_not_convert
    def get_round(self, number: int, results: Sequence[tf.Tensor]) -> list[tf.Tensor]:
        """Returns the sums of one round: those that depend on `number` earlier rounds of sums.

        Args:
          number: 0 for the first round.
          results: for which sums must be known.

        Returns:
          One element per sum, `[] float64`; 0 for sums of other rounds, and for sums that neither
          the results nor other sums depend on.
        """
        zero = tf.zeros([], tf.float64)
        needed = self._find_reached([*results, *self.sums])
        elements = zip(self.sums, self.levels, self._elements, strict=True)
        return [
            own if level == number and name in needed else zero for own, level, name in elements
        ]

    @tf.autograph.experimental.do_not_convert
    def depends(self, results: Iterable[tf.Tensor], inputs: Iterable[tf.Tensor]) -> bool:
        """Returns whether results are computed from any of the inputs."""
        return not self._find_reached(results).isdisjoint(tensor.name for tensor in inputs)

    @tf.autograph.experimental.do_not_convert
    def reads_variables(self, results: Iterable[tf.Tensor]) -> bool:
        """Returns whether results are computed from variables of the model."""
        reached = self._find_reached(results)
        return any(one.name in reached for one in self._graph.inputs if one.dtype == tf.resource)

    def _find_reached(self, results: Iterable[tf.Tensor]) -> set[str]:
        """Returns the names of the tensors from which results are computed."""
        reached: set[str] = set()
        pending = list(results)
        while pending:
            one = pending.pop()
            if one.name not in reached:
                reached.add(one.name)
                pending += _get_inputs(one)
        return reached

    @tf.autograph.experimental.do_not_convert
    def find_level(self, tensors: Iterable[tf.Tensor]) -> int:
        """Returns how many rounds of sums must be known before tensors are correct."""
        return max((self._find_level(tensor) for tensor in tensors), default=0)

    def _find_level(self, tensor: tf.Tensor) -> int:
        # Depth-first without recursion: graphs are deep.
        pending = [tensor]
        while pending:
            one = pending[-1]
            if one.name in self._seen:
                pending.pop()
                continue
            if one.name in self._levels:
                self._seen[one.name] = self._levels[one.name]
                pending.pop()
                continue
            inputs = _get_inputs(one)
            waiting = [x for x in inputs if x.name not in self._seen]
            if waiting:
                pending += waiting
                continue
            self._seen[one.name] = max((self._seen[x.name] for x in inputs), default=0)
            pending.pop()
        return self._seen[tensor.name]


def _get_inputs(tensor: tf.Tensor) -> list[tf.Tensor]:
    """Returns what a tensor is computed from."""
    operation = tensor.op
    if operation.type == "IdentityN":  # as tf.custom_gradient makes them
        return [operation.inputs[tensor.value_index]]
    return list(operation.inputs)
