"""ClientView: the parameter server as one of several Algorithms sees it, or one that only plays."""

from collections.abc import Mapping, Sequence
from types import MappingProxyType

import numpy as np

from relaax_like.core.manifest import PUSHED, Manifest
from relaax_like.core.metrics import Metrics, NullMetrics
from relaax_like.core.moments import Moments
from relaax_like.core.records import EpisodeReport
from relaax_like.core.roles import ParameterServerClient
from relaax_like.wire.errors import InvalidInputError


class ClientView(ParameterServerClient):
    """Wraps a client: values and gradients are those of one Algorithm, in its own order.

    A push names the Algorithm's variable groups, so that it changes neither the variables of other
    Algorithms nor their optimizers' state. A pull transfers the complete vector.

        client = ClientView(stub, ["goal/W", "goal/b"])
        w, b = client.push_pull([gradient_of_w, gradient_of_b])

    Args:
      client: client of the run; used only by this Algorithm, and closed by `close`.
      names: names of the Algorithm's variables in the run's manifest, in the Algorithm's order:
        trainable variables and buffers, then all others. None: all variables, in the manifest's
        order.
      statistics: the Algorithm's name of a running statistic -> its name in the run.
      is_read_only: pulls are passed on; pushes, counts and points of curves are dropped. Playing
        continues after the training has ended, so `finished` is "", and no budget is ever used up.

    Raises:
      InvalidInputError: the run has no such variable, or a variable group of the Algorithm also
        contains other variables.
    """

    def __init__(
        self,
        client: ParameterServerClient,
        names: Sequence[str] | None = None,
        statistics: Mapping[str, str] = MappingProxyType({}),
        is_read_only: bool = False,
    ):
        self._client = client
        self._statistics = statistics
        self._is_read_only = is_read_only
        self._metrics = NullMetrics() if is_read_only else client.metrics()
        segments = client.manifest.segments
        places = {segment.name: index for index, segment in enumerate(segments)}
        names = list(places) if names is None else names
        for name in names:
            if name not in places:
                raise InvalidInputError(
                    f"{name}: the run has no such variable; its first variables are "
                    f"{', '.join(list(places)[:8])}; start the run from the initial values of the "
                    "same algorithm folder"
                )
        self._places = [places[name] for name in names]
        self._own = own = [segments[p] for p in self._places if segments[p].kind in PUSHED]
        groups = tuple(dict.fromkeys(segment.group for segment in own))
        own_names = {segment.name for segment in own}
        for segment in client.manifest.select_groups(groups).pushed if own else ():
            if segment.name not in own_names:
                raise InvalidInputError(
                    f"{segment.name}: in the same variable group as the Algorithm's {own[0].name}, "
                    "but not a variable of the Algorithm, so that a gradient would change it; "
                    "start the run from initial values that give each Algorithm its own groups"
                )
        # Groups of a push -> their names in the run, and the source of each of its arrays.
        self._layouts: dict[tuple[str, ...], tuple[tuple[str, ...], list[int]]] = {}

    @property
    def manifest(self) -> Manifest:
        """The layout of the complete run, including other Algorithms."""
        return self._client.manifest

    @property
    def version(self) -> int:
        """Version of the values that this client holds."""
        return self._client.version

    @property
    def global_t(self) -> int:
        """Newest known environment steps of all clients, including this client's unsent steps."""
        return self._client.global_t

    @property
    def finished(self) -> str:
        """What ended the training, or "" while it continues."""
        return "" if self._is_read_only else self._client.finished

    def increment_global_t(self, n: int = 1) -> int:
        """Counts steps; see `ParameterServerClient`."""
        return 0 if self._is_read_only else self._client.increment_global_t(n)

    def add_episodes(self, reports: Sequence[EpisodeReport]) -> None:
        """Adds what is sent with the next push; see `ParameterServerClient`."""
        if not self._is_read_only:
            self._client.add_episodes(reports)

    def add_statistics(self, name: str, moments: Moments) -> None:
        """Adds rows to a running statistic of the Algorithm; see `ParameterServerClient`."""
        if not self._is_read_only:
            self._client.add_statistics(self._statistics.get(name, name), moments)

    def apply_gradients(self, gradients: Sequence[np.ndarray], groups: Sequence[str] = ()) -> None:
        """Pushes one gradient of the Algorithm's variables, or of its variable groups `groups`."""
        if not self._is_read_only:
            self._client.apply_gradients(*self._arrange(gradients, groups))

    def get_values(self) -> list[np.ndarray]:
        """Pulls the newest values of the Algorithm's variables."""
        return self._select(self._client.get_values())

    def push_pull(
        self, gradients: Sequence[np.ndarray] | None = None, groups: Sequence[str] = ()
    ) -> list[np.ndarray]:
        """Pushes like `apply_gradients` (or no gradient), and pulls like `get_values`."""
        if self._is_read_only:
            return self.get_values()
        if gradients is None:
            return self._select(self._client.push_pull())
        return self._select(self._client.push_pull(*self._arrange(gradients, groups)))

    def metrics(self) -> Metrics:
        """Returns the recorder."""
        return self._metrics

    def close(self) -> None:
        """Closes the wrapped client."""
        self._client.close()

    def _arrange(
        self, gradients: Sequence[np.ndarray], groups: Sequence[str]
    ) -> tuple[list[np.ndarray], tuple[str, ...]]:
        """Returns the arrays in the order of a push, and the names of the groups in the run."""
        chosen = tuple(groups)
        if chosen not in self._layouts:
            self._layouts[chosen] = self._find_layout(chosen)
        run_groups, order = self._layouts[chosen]
        if len(gradients) != len(order):
            where = f" in groups {', '.join(chosen)}" if chosen else ""
            raise InvalidInputError(
                f"gradients: received {len(gradients)}, expected {len(order)}: one for each "
                f"trainable variable or buffer of the Algorithm{where}"
            )
        return [gradients[index] for index in order], run_groups

    def _find_layout(self, groups: tuple[str, ...]) -> tuple[tuple[str, ...], list[int]]:
        """Returns the groups' names in the run, and the source of each array of a push.

        In the run, a group's name is prefixed with the names of the Algorithms that have it.

        Raises:
          InvalidInputError: the Algorithm has no such group.
        """
        known = dict.fromkeys(segment.group.partition("/")[2] for segment in self._own)
        for name in groups:
            if name not in known:
                cure = "name one of them, or leave" if known else "leave"
                raise InvalidInputError(
                    f"groups: unknown variable group {name[:60]!r}; this Algorithm has "
                    f"{', '.join(known) or 'no groups'}; {cure} groups empty for all"
                )
        own = [
            segment
            for segment in self._own
            if not groups or segment.group.partition("/")[2] in groups
        ]
        run_groups = tuple(dict.fromkeys(segment.group for segment in own))
        layout = self._client.manifest.select_groups(run_groups).pushed if own else ()
        places = {segment.name: index for index, segment in enumerate(own)}
        return run_groups, [places[segment.name] for segment in layout]

    def _select(self, values: Sequence[np.ndarray]) -> list[np.ndarray]:
        return [values[place] for place in self._places]
