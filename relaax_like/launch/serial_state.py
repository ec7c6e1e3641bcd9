"""The state that a run in one process saves when it stops, so that it resumes bit-identically.

    RUN/serial.npz

contains, in addition to the newest snapshot, what snapshots do not have: environments, agents,
random generators, waiting experience, and the environment steps in it that are not counted yet; a
run that resumes from it counts them. Arrays are separate entries, everything else is JSON; nothing
is pickled.
"""

import json
import logging
import zlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from relaax_like.client.interactor import EnvironmentSlots, Interactor
from relaax_like.config.models import Experiment
from relaax_like.config.plan import get_plan, name_plan
from relaax_like.launch.local import LocalAgents
from relaax_like.parameter_server.parameter_server import ParameterServer
from relaax_like.wire.array_file import finding_damage, read_arrays, write_arrays
from relaax_like.wire.array_tree import join_tree, split_tree
from relaax_like.wire.errors import DamagedError, InvalidInputError, RelaaxError

logger = logging.getLogger(__name__)

SERIAL_NAME = "serial.npz"
_KIND = "serial state 7"
_EPISODES_RESTART = "episodes restart, so results will differ from an uninterrupted run"


class SerialState:
    """Saves and restores the loop of a run in one process.

        state = SerialState(experiment, server, slots, agents, interactor)
        state.restore()
        interactor.run()
        state.save()

    The file belongs to one state of the parameter server: if the run has continued since, or has
    lost its newest steps, the file is not used and a warning is logged. The same applies if
    environments or sizes have changed.

    Args:
      experiment: defines the folder.
      server: already restored, and not closed yet.
      slots: the environments.
      agents: of the slots.
      interactor: of both.
    """

    def __init__(
        self,
        experiment: Experiment,
        server: ParameterServer,
        slots: EnvironmentSlots,
        agents: LocalAgents,
        interactor: Interactor,
    ):
        self._path = experiment.run_dir / SERIAL_NAME
        self._settings = _describe_settings(experiment)
        self._server = server
        self._slots = slots
        self._agents = agents
        self._interactor = interactor

    def restore(self) -> bool:
        """Restores the loop's saved state; returns False if it starts with new episodes instead.

        Raises:
          InvalidInputError: the saved state does not fit the agents or the interactor; some of them
            can have changed.
          Exception: an error of the environments' `set_state`.
        """
        if not self._path.exists() and not self._server.version:
            return False  # a new run
        try:
            state = self._read()
            self._slots.set_state(state["environments"])  # type: ignore[attr-defined]
        except RelaaxError as error:
            logger.warning(
                "%s: %s; the run continues, but %s", self._path, error, _EPISODES_RESTART
            )
            return False
        try:
            self._agents.set_state(state["agents"])
            self._interactor.set_state(state["interactor"])
        except InvalidInputError as error:
            raise InvalidInputError(
                f"{self._path}: cannot be restored: {error}. Remove the file to continue the run "
                f"without it; {_EPISODES_RESTART}",
                error.field,
            ) from error
        logger.info("continuing in the middle of the episodes of %s", self._path)
        return True

    def save(self) -> bool:
        """Writes the file, after the loop has ended; logs why and returns False if that fails.

        Raises:
          Exception: an error of the environments' `get_state`.
        """
        get_environments = getattr(self._slots, "get_state", None)
        environments = None if get_environments is None else get_environments()
        if environments is None or not self._agents.has_state:
            what = "agents of this kind" if environments is not None else "these environments"
            logger.info("%s cannot be saved: when this run is resumed, %s", what, _EPISODES_RESTART)
            return False
        agents = self._agents.take_state()
        if agents is None:
            logger.info(
                "a rollout was still being learned from: when this run is resumed, %s",
                _EPISODES_RESTART,
            )
            return False
        document: dict[str, Any] = {
            "settings": self._settings,
            "server": _identify(self._server),
            "state": {
                "environments": environments,
                "agents": agents,
                "interactor": self._interactor.get_state(),
            },
        }
        try:
            write_arrays(self._path, split_tree(document), _KIND)
        except OSError as error:
            logger.error(
                "%s could not be written: %s; when this run is resumed, %s",
                self._path,
                error,
                _EPISODES_RESTART,
            )
            self._agents.set_state(agents)  # they report their steps when they are closed
            return False
        return True

    def _read(self) -> dict[str, Any]:
        """Reads the state.

        Raises:
          InvalidInputError: there is no matching state; the message has the reason.
        """
        document = read_document(self._path)
        identity = _identify(self._server)
        if document["server"] != identity:
            there, here = document["server"], identity
            raise InvalidInputError(
                f"belongs to step {there['global_t']:,}, version {there['version']}, checksum of "
                f"the weights {there['crc32']:08x}, but the run is at step {here['global_t']:,}, "
                f"version {here['version']}, checksum {here['crc32']:08x}"
            )
        for key, value in self._settings.items():
            if document["settings"].get(key) != value:
                raise InvalidInputError(
                    f"{key} is {value}, but was {document['settings'].get(key)} when the file was "
                    "written",
                    key,
                )
        if not hasattr(self._slots, "set_state"):
            raise InvalidInputError("these environments cannot restore a state")
        return document["state"]


def read_document(path: Path) -> dict[str, Any]:
    """Reads a complete file: `settings`, `server` and `state`, with its arrays in place.

    Raises:
      InvalidInputError: there is no file, it is damaged, or another version wrote it.
    """
    try:
        with finding_damage():
            document: dict[str, Any] = join_tree(read_arrays(path, _KIND))
    except FileNotFoundError:
        raise InvalidInputError(
            "no such file; the run was killed or had ended, or its state could not be saved (see "
            "its log)"
        ) from None
    except DamagedError as error:
        raise InvalidInputError(f"damaged, unreadable or of another version ({error})") from error
    return document


def _identify(server: ParameterServer) -> dict[str, int]:
    values = server.pull().values
    assert values is not None
    return {
        "version": values.version,
        "global_t": server.global_t,
        "crc32": zlib.crc32(values.flat.data),
    }


def _describe_settings(experiment: Experiment) -> dict[str, Any]:
    """Returns the settings on which the arrays' shapes and the environments depend."""
    algorithm, environment = experiment.algorithm, experiment.environment
    plan = get_plan(algorithm)

    def describe(attribute: str) -> Any:
        """Returns an attribute of the plan; for several plans, name -> attribute."""
        if isinstance(plan, Mapping):
            return {name: getattr(one, attribute, None) for name, one in plan.items()}
        return getattr(plan, attribute, None)

    settings = {
        "learner.placement": experiment.learner.placement,
        "algorithm.observation_history": algorithm.observation_history,
        "algorithm.rollout_steps": getattr(algorithm, "rollout_steps", None),
        "plan": name_plan(plan),
        "rollout_steps of the plan": describe("rollout_steps"),
        "columns of an iteration": describe("columns"),
        "environment": None if environment is None else environment.model_dump(mode="json"),
    }
    # As it is read from the file.
    return json.loads(json.dumps(settings))
