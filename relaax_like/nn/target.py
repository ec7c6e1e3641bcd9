"""Target: a slowly updated copy of a module, from which off-policy algorithms bootstrap."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from typing import Any, Generic, TypeVar

from relaax_like.core.manifest import CONSTANT, STATISTIC, TARGET
from relaax_like.nn.lazy_tensorflow import tf
from relaax_like.nn.module import LayerVariable, Module, get_kind, get_name
from relaax_like.nn.normalization import Normalizer

Source = TypeVar("Source", bound=Module)


class Target(Module, Generic[Source]):
    """A copy of a module that is updated after optimizer steps of its source, completely or partly.

        self.online = make_network("q", config.network, shape, actions, seed=seed)
        self.target = Target(self.online, every=500)
        ...
        values = self.model.target.module(batch.next_inputs["observation"])

    | settings | update of the copy |
    |---|---|
    | `every=500` | copied at every 500th step |
    | `tau=0.005` | mixed at every step |
    | `every=2, tau=0.005` | mixed at every 2nd step |

    The copy is made immediately, so make the Target when the source is complete. Its variables are
    named `target/NAME`; they are not trained, and they are part of publications, snapshots and
    resumed runs. Buffers are copied like weights. Normalizers and constants are not copied: both
    use the same ones.

    Mnih et al. 2015 (https://doi.org/10.1038/nature14236) copy, Lillicrap et al. 2016
    (https://arxiv.org/abs/1509.02971) mix: target <- tau source + (1 - tau) target. Fujimoto et al.
    2018 (https://arxiv.org/abs/1802.09477) mix when the actor takes a step.

    Attributes:
      module: the copy, used like the source.
      every: optimizer steps of the source's variable group between two updates; None: 1.
      tau: share of the source in each update; None: 1, the source is copied.
      copies: variables of the copy, except those of normalizers, and constants.

    Args:
      source: the module to copy.
      every: see above; set every, tau, or both.
      tau: see above.
      name: first part of the variables' names; a second target of one source needs another one.

    Raises:
      ValueError: neither `every` nor `tau` is set, or one of them is out of range.
    """

    module: Source

    def __init__(
        self,
        source: Source,
        *,
        every: int | None = None,
        tau: float | None = None,
        name: str = "target",
    ):
        super().__init__()
        if every is None and tau is None:
            raise ValueError(
                "Target: neither every nor tau is set; set every (copy), tau (mix), or both (mix "
                "at every n-th step)"
            )
        if every is not None and every < 1:
            raise ValueError(f"Target: every is {every}, expected 1 or more optimizer steps")
        if tau is not None and not 0 < tau <= 1:
            raise ValueError(f"Target: tau is {tau}, expected more than 0 and at most 1")
        self.every = every
        self.tau = tau
        shared = [m for m in source.submodules if isinstance(m, Normalizer)]
        variables = source.find_variables()
        kept = [v for v in variables if get_kind(v) in (STATISTIC, CONSTANT)]
        self._sources = [v for v in variables if get_kind(v) not in (STATISTIC, CONSTANT)]
        self.copies = [_copy(variable, name) for variable in self._sources]
        memo: dict[int, Any] = {id(one): one for one in (*shared, *kept)}
        memo.update({id(v): c for v, c in zip(self._sources, self.copies, strict=True)})
        self.module = copy.deepcopy(source, memo)

    @property
    def sources(self) -> list[Any]:
        """Variables of the source, in the order of `copies`."""
        return list(self._sources)

    def get_attributes(self) -> Mapping[str, Any]:
        """Returns the attributes to search for variables: the copy, but not its source."""
        return {"module": self.module}


def _copy(variable: Any, prefix: str) -> Any:
    name = f"{prefix}/{get_name(variable)}"
    if isinstance(variable, LayerVariable):
        return LayerVariable(name, variable.numpy(), TARGET)
    copied = tf.Variable(variable.numpy(), trainable=False, name=name)
    copied.kind = TARGET
    return copied
