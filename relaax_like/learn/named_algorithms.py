"""Several tasks of one run: the names of their variables, and which of them they share.

A task's variables are `TASK/NAME`, in the variable group `TASK/GROUP`. A variable that several
tasks use because they share a Model or a layer is named after the first of them, and its group
after all of them: `goal+control/default`. So a task never uses only some variables of a group, and
the gradient of one task only changes its own variables.
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
    """The Algorithms of one algorithm folder, by the name of their task.

        tasks = NamedAlgorithms({"goal": Reinforce(goal_model), "control": Reinforce(control_model)})
        variables = tasks.get_variables()  # the initial values of a run
        client = tasks.make_client("goal", parameter_server)

    Models that share variables have one lock, so that no prediction sees a partly updated set of
    values. A gradient that is computed while the other task's values arrive mixes two versions, as
    in any asynchronous learner.

    Attributes:
      algorithms: task -> its Algorithm; the argument.
      sharing: task -> all tasks with its Model, in order; see `find_sharing`.

    Raises:
      ConfigError: `algorithms` is not a mapping, or is empty; or a task has a name that cannot be
        part of variables' names, or something other than an Algorithm; or see `validate_model`.
    """

    def __init__(self, algorithms: Mapping[str, Algorithm]):
        if not isinstance(algorithms, Mapping):
            raise ConfigError(
                f"make_algorithms: returned {algorithms!r:.200}, expected a dict with one "
                "Algorithm per task"
            )
        self.algorithms = dict(algorithms)
        _validate(self.algorithms)
        users: dict[Any, list[str]] = {}  # variable -> tasks
        for task, algorithm in self.algorithms.items():
            validate_model(algorithm.model)
            for variable in order_variables(algorithm.model):
                users.setdefault(variable.ref(), []).append(task)
        self._users = users
        self.sharing = find_sharing({task: one.model for task, one in self.algorithms.items()})
        if any(len(tasks) > 1 for tasks in users.values()):
            lock = threading.Lock()
            for algorithm in self.algorithms.values():
                algorithm.model.lock = lock

    def get_variables(self) -> list[Variable]:
        """Returns all variables with their current values and names; shared ones once."""
        variables = []
        for task, algorithm in self.algorithms.items():
            own = order_variables(algorithm.model)
            sources = {get_name(variable): self._get_name(variable) for variable in own}
            for variable, described in zip(own, get_variables(algorithm.model), strict=True):
                tasks = self._users[variable.ref()]
                if tasks[0] == task:
                    group = f"{'+'.join(tasks)}/{described.group}"
                    name = f"{task}/{described.name}"
                    follow = described.follow
                    if follow is not None:
                        follow = replace(follow, source=sources[follow.source])
                    variables.append(Variable(name, described.value, group, described.kind, follow))
        return variables

    def find_groups_of_others(self, task: str) -> set[str]:
        """Returns the variable groups of a task's Model that other tasks train."""
        others = [name for name in self.sharing[task] if name != task]
        return {group for name in others for group in self.algorithms[name].trained_groups}

    def validate_sharing(self, place: str) -> None:
        """Checks that tasks that share a variable share their Model.

        Args:
          place: `FILE:LINE` of the code that makes the tasks.

        Raises:
          ConfigError: two Models share a variable; the error names the first one.
        """
        for variable, tasks in self._users.items():
            if len({id(self.algorithms[task].model) for task in tasks}) > 1:
                raise ConfigError(
                    f"{place}: the tasks {', '.join(tasks)} share the variable "
                    f"{get_name(variable.deref())}, but not their Model, so learners that publish "
                    "would have two states of its optimizer; give all of them the same Model, or "
                    "each its own layer, or set learner.placement: agent"
                )

    def make_client(self, task: str, client: ParameterServerClient) -> ClientView:
        """Returns the task's view of the parameter server.

        Raises:
          ConfigError: the run's variables are not those of the tasks.
        """
        model = self.algorithms[task].model
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
            "make_algorithms: returned no tasks; return a dict with one Algorithm per task"
        )
    for task, algorithm in algorithms.items():
        if not isinstance(task, str) or not _NAME.fullmatch(task):
            raise ConfigError(
                f"make_algorithms: task {task!r:.100}, expected 1 to 60 characters of A-Z a-z 0-9 "
                "_ -, beginning with a letter"
            )
        if not isinstance(algorithm, Algorithm):
            raise ConfigError(
                f"make_algorithms: task {task!r} is {algorithm!r:.200}, expected an Algorithm"
            )
