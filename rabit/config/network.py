"""Settings: how bytes move."""

from __future__ import annotations

from rabit.config.setting import setting
from rabit.config.settings import Settings

__all__ = ["NetworkSettings"]


class NetworkSettings(Settings, group="network"):
    """How bytes move."""

    bind_address: str = setting(
        "",
        "Address on which this rank listens; empty: loopback for a job on one host, else the "
        "address of the route to the store.",
        native="bind_address",
        flag="--bind-address",
    )
    network_interfaces: str = setting(
        "",
        "Comma-separated interfaces that may carry traffic; empty: any.",
        flag="--network-interfaces",
        level="basic",
    )
    interfaces: str = setting(
        "",
        "Comma-separated interfaces, as many on every host: each carries its part of a message of 64 KiB or more at "
        "the same time. The ranks meet over the first one. Empty: one interface.",
        flag="--interfaces",
    )
    backend: str = setting(
        "builtin",
        "The component that executes collectives: builtin, mpi, nccl (tensors on GPUs), ps (summation servers), or "
        "several with commas; operations that name none use the first. auto: nccl where every rank "
        "has it, and builtin.",
        is_equal=True,
        native="backend",
        flag="--backend",
        level="basic",
    )
    servers: int = setting(
        0,
        "Summation servers in addition to the ranks; rabitrun starts them, and the backend ps becomes available.",
        is_equal=True,
        native="servers",
        flag="--servers",
        level="basic",
        short_flag="-s",
        minimum=0,
        maximum=4096,
    )
    server_replicas: int = setting(
        1,
        "Summation servers that have each sum, and each parameter with RABIT_PS_ASYNC: with 2 the job "
        "continues when a server is lost.",
        is_equal=True,
        native="server_replicas",
        flag="--server-replicas",
        minimum=1,
        maximum=2,
    )
    ps_async: bool = setting(
        False,
        "Summation servers also keep parameters, to which each rank adds its steps without waiting for "
        "others; DistributedOptimizer works so then.",
        is_equal=True,
        native="ps_async",
        flag="--ps-async",
    )
    ps_staleness: int = setting(
        -1,
        "With RABIT_PS_ASYNC, how many steps a rank may be ahead of the slowest one, for which it waits "
        "then; -1: any number.",
        is_equal=True,
        flag="--ps-staleness",
        minimum=-1,
        maximum=1 << 30,
    )
    measure_links: bool = setting(
        False,
        "Ranks and servers measure what their links carry when they meet, one host after the other for "
        "some 0.2 s, and backend ps divides the sums by that instead of RABIT_LINK_BANDWIDTH.",
        is_equal=True,
        native="measure_links",
        flag="--measure-links",
    )
    link_bandwidth: int = setting(
        0,
        "Bytes per second that the link of this host carries each way, which says how much of the sums "
        "of backend ps is formed there; 0: what the system says of the interface. Where one host's is "
        "not known, all count alike.",
        kind="bytes",
        native="link_bandwidth",
        flag="--link-bandwidth",
        minimum=0,
        maximum=1 << 50,
        unit="bytes per second",
    )
    nccl_library: str = setting(
        "",
        "The file of NCCL (libnccl.so.2); empty: the one that the process has loaded, that of the "
        "package nvidia-nccl, or that of the system.",
        native="nccl_library",
        level="hidden",
    )
    mpi_collectives: str = setting(
        "auto",
        "Backend mpi: the MPI library's collectives, rabit's algorithms over its messages, or "
        "whichever is faster.",
        kind="choice",
        choices=("auto", "library", "messages"),
        is_equal=True,
        native="mpi_collectives",
        flag="--mpi-collectives",
    )
    mpi_shm: bool = setting(
        True,
        "Backend mpi with RABIT_MPI_COLLECTIVES=auto: ranks of one host use rabit's shared memory, "
        "where it works; 0: everything goes through MPI. Ranks that differ: as 0.",
        native="mpi_shm",
        level="hidden",
    )
    mpi_message_bytes: int = setting(
        1 << 30,
        "Backend mpi: longer messages are cut into pieces of this size.",
        kind="bytes",
        is_equal=True,
        level="hidden",
        minimum=64,
        maximum=(1 << 31) - 1,
        unit="bytes",
    )
    transport: str = setting(
        "auto",
        "Transport between ranks; auto: shared memory inside a host, TCP between hosts.",
        kind="choice",
        choices=("auto", "tcp", "shm"),
        is_equal=True,
        native="transport",
        flag="--transport",
        level="basic",
    )
    tcp_checksum: str = setting(
        "auto",
        "Whether the data that this rank sends over TCP carries checksums; auto: where it leaves "
        "the host. Frame headers always carry one.",
        kind="choice",
        choices=("auto", "on", "off"),
        native="tcp_checksum",
        flag="--tcp-checksum",
    )
    shm_single_copy: bool = setting(
        True,
        "Large shared-memory messages are copied once, from process to process, where the "
        "kernel allows it.",
        native="shm_single_copy",
        level="hidden",
    )
    shm_checksum: bool = setting(
        False,
        "Whether the data that ranks of one host pass through shared memory carries checksums; "
        "large messages are then not copied once. What has changed ends the job by an error.",
        is_equal=True,
        native="shm_checksum",
        flag="--shm-checksum",
    )
    shm_ring_bytes: int = setting(
        1 << 20,
        "Shared-memory ring for each pair of ranks, lane and direction.",
        kind="bytes",
        is_equal=True,
        native="shm_ring_bytes",
        level="hidden",
        minimum=4096,
        maximum=1 << 30,
        unit="bytes",
    )
    connect_timeout: float = setting(
        60.0,
        "How long ranks wait for one another to start and connect.",
        kind="duration",
        native="connect_timeout_ms",
        flag="--connect-timeout",
        level="basic",
        minimum=0.1,
        maximum=86400,
        unit="seconds",
    )
