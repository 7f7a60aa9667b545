"""The drivers of engines that start functions: python drivers.py ENGINE CASE FOLDER."""

from __future__ import annotations

import multiprocessing
import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path

from faults.engines.process import SIZE
from faults.engines.rank import train

import rabit


def by_multiprocessing(case: str, folder: str, size: int) -> list[int]:
    with rabit.Meeting(size) as meeting:
        context = multiprocessing.get_context("spawn")
        queue = context.Queue()
        processes = [
            context.Process(target=_put, args=(queue, meeting.as_rank(rank, train), case, folder))
            for rank in range(SIZE)
        ]
        for process in processes:
            process.start()
        for rank, process in enumerate(processes):
            process.join()
            meeting.ended(rank, process.exitcode or 0)
    return [queue.get() for _ in processes]


def _put(
    queue: multiprocessing.Queue[int], call: Callable[[str, str], int], case: str, folder: str
) -> None:
    queue.put(call(case, folder))


def by_submitit(case: str, folder: str, size: int) -> list[int]:
    import submitit

    executor = submitit.LocalExecutor(folder=Path(folder) / "submitit")
    executor.update_parameters(timeout_min=3)
    with rabit.Meeting(size) as meeting:
        jobs = [executor.submit(meeting.as_rank(rank, train), case, folder) for rank in range(SIZE)]
        return [job.result() for job in jobs]


def by_distributed(case: str, folder: str, size: int) -> list[int]:
    import distributed

    with (
        distributed.LocalCluster(
            n_workers=SIZE, threads_per_worker=1, dashboard_address=None
        ) as cluster,
        distributed.Client(cluster) as client,
        rabit.Meeting(size, hosts=["a", "a", "b", "b", "b"][:size], address="127.0.0.1") as meeting,
    ):
        workers = list(client.scheduler_info(n_workers=-1)["workers"])
        futures = [
            client.submit(
                meeting.as_rank(rank, train), case, folder,
                workers=[worker], allow_other_workers=False, pure=False, retries=0,
            )
            for rank, worker in enumerate(workers)
        ]  # fmt: skip
        found: list[int] = client.gather(futures)
        return found


def by_ray(case: str, folder: str, size: int) -> list[int]:
    import ray
    from ray.cluster_utils import Cluster

    os.environ.update(RAY_raylet_start_wait_time_s="200")  # Ray reads the name in small letters
    head = {"num_cpus": SIZE // 2, "include_dashboard": False, "temp_dir": f"{folder}/ray"}
    cluster = Cluster(initialize_head=True, head_node_args=head)
    second = cluster.add_node(num_cpus=SIZE // 2)
    signal.signal(signal.SIGUSR2, lambda *_: cluster.remove_node(second, allow_graceful=False))
    ray.init(address=cluster.address)
    executor = rabit.ray.RayExecutor(num_workers=size)
    paths = {
        "PYTHONPATH": os.environ["PYTHONPATH"],
        "RABIT_STOP_FILE": os.environ["RABIT_STOP_FILE"],
    }
    try:
        executor.start(extra_env_vars=paths, timeout=20 if size > SIZE else 100)
        found: list[int] = executor.run(_as_rank, [case, folder])
        return found
    finally:
        executor.shutdown()
        ray.shutdown()
        cluster.shutdown()


def _as_rank(case: str, folder: str) -> int:
    rabit.init()
    return train(case, folder)


DRIVERS = {
    "multiprocessing": by_multiprocessing,
    "submitit": by_submitit,
    "distributed": by_distributed,
    "ray": by_ray,
}

if __name__ == "__main__":
    engine, case, folder = sys.argv[1:]
    statuses = DRIVERS[engine](case, folder, SIZE + 1 if case == "wrong count" else SIZE)
    sys.exit(max(statuses))
