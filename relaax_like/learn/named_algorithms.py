"""Several Algorithms of one run: the names of their variables, and which of them they share.

An Algorithm's variables are `ALGORITHM/NAME`, in the variable group `ALGORITHM/GROUP`. A variable
that several use because they share a Model or a layer is named after the first of them, and its
group after all of them: `goal+control/default`. So none ever uses only some variables of a group,
and the gradient of one Algorithm only changes its own variables.
"""

import re
import threading
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from relaax_like.algorithm.algorithm import Algorithm
from relaax_like.algorithm.model import (
    find_sharing,
    get_normalizers,
    get_variables,
    order_variables,
    validate_model,
)
from relaax_like.bridge.client_view import ClientView
from relaax_like.core.manifest import Variable
from relaax_like.core.roles import ParameterServerClient
from relaax_like.nn.module import get_name
from relaax_like.wire.errors import ConfigError, InvalidInputError

_NAME = re.compile(r"[A-Za-z][A-Za-z0-9_\-]{0,59}")


class NamedAlgorithms:
    """The Algorithms of one algorithm folder, by name.

        algorithms = {"goal": Reinforce(goal_model), "control": Reinforce(control_model)}
        named = NamedAlgorithms(algorithms)
        variables = named.get_variables()  # the initial values of a run
        client = named.make_client("goal", parameter_server)

    Models that share variables have one lock, so that no prediction sees a partly updated set of
    values. A gradient that is computed while another's values arrive mixes two versions, as in any
    asynchronous learner.

    Attributes:
      algorithms: name -> its Algorithm; the argument.
      sharing: name -> all Algorithms with its Model, in order; see `find_sharing`.

    Raises:
      ConfigError: `algorithms` is not a mapping, or is empty; or a name cannot be part of
        variables' names, or belongs to something other than an Algorithm; or see `validate_model`.
    """

    def __init__(self, algorithms: Mapping[str, Algorithm]):
        if not isinstance(algorithms, Mapping):
            raise ConfigError(
                f"make_algorithms: returned {algorithms!r:.200}, expected a dict with one "
                "or several Algorithms, by name"
            )
        self.algorithms = dict(algorithms)
        _validate(self.algorithms)
        users: dict[Any, list[str]] = {}  # variable -> names
        for name, algorithm in self.algorithms.items():
            validate_model(algorithm.model)
            for variable in order_variables(algorithm.model):
                users.setdefault(variable.ref(), []).append(name)
        self._users = users
        self.sharing = find_sharing({name: one.model for name, one in self.algorithms.items()})
        if any(len(names) > 1 for names in users.values()):
            lock = threading.Lock()
            for algorithm in self.algorithms.values():
                algorithm.model.lock = lock

    def get_variables(self) -> list[Variable]:
        """Returns all variables with their current values and names; shared ones once."""
        variables = []
        for first, algorithm in self.algorithms.items():
            own = order_variables(algorithm.model)
            sources = {get_name(variable): self._get_name(variable) for variable in own}
            for variable, described in zip(own, get_variables(algorithm.model), strict=True):
                users = self._users[variable.ref()]
                if users[0] == first:
                    group = f"{'+'.join(users)}/{described.group}"
                    name = f"{first}/{described.name}"
                    follow = described.follow
                    if follow is not None:
                        follow = replace(follow, source=sources[follow.source])
                    variables.append(Variable(name, described.value, group, described.kind, follow))
        return variables

    def find_groups_of_others(self, name: str) -> set[str]:
        """Returns the variable groups of an Algorithm's Model that other Algorithms train."""
        others = [other for other in self.sharing[name] if other != name]
        return {group for other in others for group in self.algorithms[other].trained_groups}

    def validate_sharing(self, place: str) -> None:
        """Checks that Algorithms that share a variable share their Model.

        Args:
          place: `FILE:LINE` of the code that makes the Algorithms.

        Raises:
          ConfigError: two Models share a variable; the error names the first one.
        """
        for variable, names in self._users.items():
            if len({id(self.algorithms[name].model) for name in names}) > 1:
                raise ConfigError(
                    f"{place}: the Algorithms {', '.join(names)} share the variable "
                    f"{get_name(variable.deref())}, but not their Model, so learners that publish "
                    "would have two states of its optimizer; give all of them the same Model, or "
                    "each its own layer, or set learner.placement: agent"
                )

    def make_client(self, name: str, client: ParameterServerClient) -> ClientView:
        """Returns the Algorithm's view of the parameter server.

        Raises:
          ConfigError: the run's variables are not those of the Algorithms.
        """
        model = self.algorithms[name].model
        statistics = {
            normalizer.statistic: self._get_name(normalizer.count).removesuffix(".count")
            for normalizer in get_normalizers(model)
        }
        names = [self._get_name(variable) for variable in order_variables(model)]
        try:
            return ClientView(client, names, statistics)
        except InvalidInputError as error:
            raise ConfigError(str(error)) from error

    def _get_name(self, variable: Any) -> str:
        return f"{self._users[variable.ref()][0]}/{get_name(variable)}"


def _validate(algorithms: Mapping[str, Any]) -> None:
    if not algorithms:
        raise ConfigError(
            "make_algorithms: returned no Algorithms; return a dict with one or several, by name"
        )
    for name, algorithm in algorithms.items():
        if not isinstance(name, str) or not _NAME.fullmatch(name):
            raise ConfigError(
                f"make_algorithms: name {name!r:.100}, expected 1 to 60 characters of A-Z a-z 0-9 "
                "_ -, beginning with a letter"
            )
        if not isinstance(algorithm, Algorithm):
            raise ConfigError(
                f"make_algorithms: {name!r} is {algorithm!r:.200}, expected an Algorithm"
            )
