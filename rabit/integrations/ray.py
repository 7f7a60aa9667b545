"""Ranks in the actors of Ray: RayExecutor with Horovod's methods, and RabitConfig for Ray Train."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from rabit.config.config import adopt_environment
from rabit.errors import InvalidArgument
from rabit.integrations.needed import needed
from rabit.launch.run import RunFailed
from rabit.meeting import Meeting, as_one_rank

__all__ = ["RabitConfig", "RayExecutor"]  # noqa: F822  RabitConfig is made at its first use

_REPORTS_COME_S = 10.0  # Ranks notice within a second or two; those that compute for longer are not waited for.


class _Worker:
    """What an actor runs.  One call at a time."""

    def __init__(self) -> None:
        self.instance: Any = None

    def place(self) -> str:
        """The node of this actor."""
        return str(needed("ray", "rabit.ray", "ray").get_runtime_context().get_node_id())

    def make(self, kind: Any, arguments: Sequence[Any], keywords: Mapping[str, Any]) -> None:
        """Makes the object on which `execute` works."""
        self.instance = kind(*arguments, **keywords)

    def adopt(self, environ: Mapping[str, str]) -> None:
        """This process has these variables."""
        adopt_environment(environ)

    def call(self, function: Callable[..., Any], arguments: Sequence[Any], keywords: Mapping[str, Any]) -> Any:
        """Calls `function` as the rank of this actor."""
        with as_one_rank():
            return function(*arguments, **keywords)

    def execute(self, function: Callable[[Any], Any]) -> Any:
        """Calls `function` with the object of this actor, as its rank."""
        with as_one_rank():
            return function(self.instance)


class RayExecutor:
    """Ranks in actors of Ray, in one placement group.  Its methods are those of Horovod's class of this name.

    num_workers: ranks.  num_hosts, num_workers_per_host: instead of it, the same number of ranks on each of several
    nodes.  cpus_per_worker, gpus_per_worker: what Ray sets aside for each.  settings: accepted for Horovod's programs,
    and not used.

        executor = rabit.ray.RayExecutor(num_workers=2)
        executor.start()
        results = executor.run(train, args=[0.1])    # train calls rabit.init()
        executor.shutdown()

    A rank that fails ends the call with RunFailed, which names the first cause.
    """

    def __init__(
        self,
        settings: Any = None,
        num_workers: int | None = None,
        num_hosts: int | None = None,
        num_workers_per_host: int = 1,
        cpus_per_worker: float = 1,
        use_gpu: bool = False,
        gpus_per_worker: float | None = None,
    ) -> None:
        if (num_workers is None) == (num_hosts is None):
            raise InvalidArgument(
                f"RayExecutor: num_workers is {num_workers} and num_hosts {num_hosts}: give one of them."
            )
        self._size = num_workers if num_workers is not None else (num_hosts or 0) * num_workers_per_host
        if self._size < 1:
            raise InvalidArgument(f"RayExecutor: there would be {self._size} ranks. Give 1 or more.")
        gpus = (gpus_per_worker or 1) if use_gpu else 0
        each = {"CPU": cpus_per_worker, **({"GPU": gpus} if gpus else {})}
        self._bundles, self._strategy, self._share = [dict(each)] * self._size, "PACK", each
        if num_hosts is not None:
            whole = {name: count * num_workers_per_host for name, count in each.items()}
            self._bundles, self._strategy = [whole] * num_hosts, "STRICT_SPREAD"
        self._workers: list[Any] = []
        self._meeting: Meeting | None = None
        self._stack = contextlib.ExitStack()

    def start(
        self,
        executable_cls: type | None = None,
        executable_args: Sequence[Any] | None = None,
        executable_kwargs: Mapping[str, Any] | None = None,
        extra_env_vars: Mapping[str, str] | None = None,
        timeout: float = 100.0,
    ) -> None:
        """Starts the actors.  Blocks until Ray has the resources, at most `timeout` seconds.

        executable_cls: a class of which each actor makes an object, for `execute`.  extra_env_vars: for all ranks.
        Raises InvalidArgument if they run, ray.exceptions.GetTimeoutError if Ray has not the resources in time.
        """
        if self._workers:
            raise InvalidArgument("RayExecutor.start: the ranks run already. Call shutdown() before another start().")
        ray = needed("ray", "rabit.ray.RayExecutor", "ray")
        group = ray.util.placement_group(self._bundles, strategy=self._strategy)
        self._stack.callback(ray.util.remove_placement_group, group)
        try:
            ray.get(group.ready(), timeout=timeout)
            self._workers = self._actors(ray, group)
            # Ranks of a node follow each other.
            nodes = ray.get([worker.place.remote() for worker in self._workers], timeout=timeout)
            order = sorted(range(self._size), key=lambda index: (nodes.index(nodes[index]), index))
            self._workers = [self._workers[index] for index in order]
            hosts = [nodes[index] for index in order]
            meeting = Meeting(self._size, hosts=hosts, address=ray.util.get_node_ip_address())
            self._meeting = self._stack.enter_context(meeting)
            environs = [{**(extra_env_vars or {}), **meeting.environment(rank)} for rank in range(self._size)]
            ray.get([w.adopt.remote(e) for w, e in zip(self._workers, environs, strict=True)])
            if executable_cls is not None:
                made = executable_cls, executable_args or (), executable_kwargs or {}
                ray.get([worker.make.remote(*made) for worker in self._workers])
        except BaseException:
            self.shutdown()
            raise

    def _actors(self, ray: Any, group: Any) -> list[Any]:
        from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

        options = {"num_cpus": self._share["CPU"], "num_gpus": self._share.get("GPU", 0)}
        actor = ray.remote(_Worker)
        per_bundle = self._size // len(self._bundles)
        return [
            actor.options(
                **options,
                scheduling_strategy=PlacementGroupSchedulingStrategy(
                    placement_group=group, placement_group_bundle_index=index // per_bundle
                ),
            ).remote()
            for index in range(self._size)
        ]

    def run(
        self, fn: Callable[..., Any], args: Sequence[Any] | None = None, kwargs: Mapping[str, Any] | None = None
    ) -> list[Any]:
        """Calls `fn(*args, **kwargs)` on every rank; returns the results by rank.  Blocks.  Raises RunFailed."""
        return self._results(self.run_remote(fn, args, kwargs))

    def run_remote(
        self, fn: Callable[..., Any], args: Sequence[Any] | None = None, kwargs: Mapping[str, Any] | None = None
    ) -> list[Any]:
        """As `run`, and returns Ray's references at once."""
        return [worker.call.remote(fn, args or (), kwargs or {}) for worker in self._running()]

    def execute(self, fn: Callable[[Any], Any]) -> list[Any]:
        """Calls `fn` with the object of each actor; returns the results by rank.  Blocks.  Raises RunFailed."""
        return self._results([worker.execute.remote(fn) for worker in self._running()])

    def execute_single(self, fn: Callable[[Any], Any]) -> Any:
        """As `execute`, on rank 0 alone, which must not wait for the others."""
        return self._results([self._running()[0].execute.remote(fn)])[0]

    def shutdown(self) -> None:
        """Ends the actors and gives their resources back.  Idempotent."""
        workers, self._workers, self._meeting = self._workers, [], None
        for worker in workers:
            needed("ray", "rabit.ray.RayExecutor", "ray").kill(worker)
        # What the meeting knows of failures has been raised by the call that had them.
        with contextlib.suppress(RunFailed):
            self._stack.close()

    def _running(self) -> list[Any]:
        if not self._workers:
            raise InvalidArgument("RayExecutor: it has not been started. Call start() first.")
        return self._workers

    def _results(self, references: list[Any]) -> list[Any]:
        ray = needed("ray", "rabit.ray.RayExecutor", "ray")
        try:
            found: list[Any] = ray.get(references)
            return found
        except ray.exceptions.RayError as error:
            if cause := self._first_cause(ray, references):
                raise RunFailed(cause) from error
            raise

    def _first_cause(self, ray: Any, references: list[Any]) -> str:
        """Ray reports an actor that died before the ranks that miss it have reported which rank it was."""
        if self._meeting is None:
            return ""
        if not (cause := self._meeting.first_cause()):
            ray.wait(references, num_returns=len(references), timeout=_REPORTS_COME_S)
            cause = self._meeting.first_cause()
        return cause


def __getattr__(name: str) -> Any:
    """RabitConfig derives from a class of Ray's, which loads with the first use."""
    if name != "RabitConfig":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    globals()[name] = _make_config()
    return globals()[name]


def _make_config() -> Any:
    backend = needed("ray.train.backend", "rabit.ray.RabitConfig", "ray")
    ray = needed("ray", "rabit.ray.RabitConfig", "ray")

    class RabitBackend(backend.Backend):  # type: ignore[misc,name-defined]
        """Serves a meeting in Ray Train's controller, from the start of the workers to their end."""

        meeting: Meeting | None = None

        def on_start(self, worker_group: Any, backend_config: Any) -> None:
            size = len(worker_group)
            hosts = worker_group.execute(_node)
            self.close()
            meeting = Meeting(size, hosts=hosts, address=ray.util.get_node_ip_address())
            self.meeting = meeting.__enter__()
            ray.get(
                [
                    worker_group.execute_single_async(rank, adopt_environment, meeting.environment(rank))
                    for rank in range(size)
                ]
            )

        def on_shutdown(self, worker_group: Any, backend_config: Any) -> None:
            self.close()

        def close(self) -> None:
            meeting, self.meeting = self.meeting, None
            if meeting is None:
                return
            try:
                meeting.__exit__(None, None, None)
            except RunFailed as error:  # Ray Train raises the error of a worker itself.
                print(error, flush=True)

    class RabitConfig(backend.BackendConfig):  # type: ignore[misc,name-defined]
        """For `DataParallelTrainer(backend_config=rabit.ray.RabitConfig())`: the workers are ranks.

        The training function calls `rabit.init()`.
        """

        @property
        def backend_cls(self) -> Any:
            return RabitBackend

        @property
        def train_func_context(self) -> Any:
            return as_one_rank

    return RabitConfig


def _node() -> str:
    return str(needed("ray", "rabit.ray", "ray").get_runtime_context().get_node_id())
