"""Settings: what runs when."""

from __future__ import annotations

from rabit.config.setting import setting
from rabit.config.settings import Settings

__all__ = ["MethodSettings", "TuningSettings"]


class TuningSettings(Settings, group="tuning"):
    """What runs when."""

    scheduler: str = setting(
        "priority",
        "Order of communication: by priority, or first come first served.",
        kind="choice",
        choices=("priority", "fifo"),
        is_equal=True,
        native="scheduler",
        level="hidden",
    )
    lanes: int = setting(
        0,
        "Worker threads for each backend; each runs one bucket at a time. 0: two, of which one is used where all "
        "ranks share one host with fewer cores, or with fewer than two for each and backend mpi.",
        is_equal=True,
        native="lanes",
        flag="--lanes",
        minimum=0,
        maximum=64,
    )
    partition_bytes: int = setting(
        4 << 20,
        "Larger tensors are cut into parts of this size.",
        kind="bytes",
        is_equal=True,
        native="partition_bytes",
        flag="--partition-bytes",
        minimum=1,
        maximum=1 << 40,
        unit="bytes",
    )
    fusion_bytes: int = setting(
        64 << 20,
        "Small tensors are sent together up to this size; 0: each alone.",
        kind="bytes",
        is_equal=True,
        native="fusion_bytes",
        flag="--fusion-bytes",
        level="basic",
        minimum=0,
        maximum=1 << 40,
        unit="bytes",
    )
    credit_bytes: int = setting(
        0,
        "Bytes issued and not yet finished on all ranks, so that urgent tensors overtake; "
        "0: no limit.",
        kind="bytes",
        is_equal=True,
        native="credit_bytes",
        flag="--credit-bytes",
        minimum=0,
        maximum=1 << 40,
        unit="bytes",
    )
    sizes: str = setting(
        "measured",
        "measured: the sizes of partitions, fusion and credit follow from the measured link, unless "
        "one of them is set; fixed: they stay.",
        kind="choice",
        choices=("measured", "fixed"),
        is_equal=True,
        native="sizes",
        level="hidden",
    )
    overlap: str = setting(
        "backward",
        "What the exchange of gradients overlaps with, in a DistributedOptimizer that is given no overlap: nothing, "
        "the backward pass, the next forward pass as well, or that with gradients in two halves (reduce-scatter); "
        "auto: the fastest, by prediction and a trial. An optimizer that cannot use the chosen mode uses backward.",
        kind="choice",
        choices=("none", "backward", "next-forward", "reduce-scatter", "auto"),
        is_equal=True,
        flag="--overlap",
        level="basic",
    )
    waves: int = setting(
        1,
        "Ranks that share one device and its memory for activations, in turns; 2: one runs forward while "
        "the other runs backward, in scripts that use rabit_torch.Waves.",
        is_equal=True,
        flag="--waves",
        minimum=1,
        maximum=2,
    )
    gradients: str = setting(
        "horovod",
        "Gradients of rabit_torch's allgather, broadcast and reducescatter. horovod: as Horovod "
        "computes them; transpose: those of the sum of the losses of all ranks.",
        kind="choice",
        choices=("horovod", "transpose"),
        is_equal=True,
    )
    allreduce_algorithm: str = setting(
        "",
        "Algorithm of allreduce, such as ring, or rules by size, such as allreduce:64K-inf@ring; "
        "empty: the cheapest for size and ranks.",
        is_equal=True,
        native="allreduce_algorithm",
        flag="--allreduce-algorithm",
    )
    route: str = setting(
        "",
        "Rules of who runs what, the first that fits: kind[.type][:sizes]:backend[/algorithm], such as "
        "alltoall:*:mpi;allreduce:<64K:builtin/gather_all. Sizes are those of one exchange, after "
        "fusion and cutting. Calls that name a backend keep it.",
        is_equal=True,
        native="route",
        flag="--route",
    )
    route_table: str = setting(
        "",
        "Table of rabitrun tune, or a folder of them: the fastest route for each kind and size of "
        "operations of all ranks, where no rule of RABIT_ROUTE fits. Rank 0 reads it for all.",
        is_equal=True,
        flag="--route-table",
    )
    plan: str = setting(
        "off",
        "The trees that collectives follow on a network whose links differ: a file that rabitrun plan wrote; auto: "
        "the ranks probe the network when they start, for some seconds; off: none. See docs/howto/uneven_network.md.",
        is_equal=True,
        flag="--plan",
    )
    link_model: str = setting(
        "measured",
        "measured: the ranks time a few allreduces when they start, for at most about 50 ms, and "
        "choose algorithms by it; fixed: by the figures of an ordinary network. Rank 0's counts.",
        kind="choice",
        choices=("measured", "fixed"),
        native="link_model",
        level="hidden",
    )
    autotune: bool = setting(
        False,
        "Rank 0 tries other sizes while the job trains, and keeps what is faster; see "
        "docs/howto/autotuning.md.",
        is_equal=True,
        flag="--autotune",
        level="basic",
    )
    autotune_knobs: str = setting(
        "partition_bytes,credit_bytes,lanes,overlap,fusion_bytes",
        "What the autotuner may change, with commas, the first four that have a choice; the rest "
        "stays as it is set.",
        is_equal=True,
        flag="--autotune-knobs",
    )
    autotune_log: str = setting(
        "",
        "CSV file to which the autotuner adds every measurement; it begins with what the file "
        "already holds for the same job.",
        flag="--autotune-log",
    )
    autotune_cache: str = setting(
        "",
        "Folder in which the autotuner remembers results; off: none; empty: rabit/autotune in "
        "the user's cache folder.",
        flag="--autotune-cache",
    )
    autotune_warmup_samples: int = setting(
        3,
        "Windows that the autotuner passes over at first.",
        flag="--autotune-warmup-samples",
        minimum=1,
        maximum=10_000,
    )
    autotune_steps_per_sample: int = setting(
        10,
        "Training steps in a window, at least; windows of short steps last 0.2 s.",
        flag="--autotune-steps-per-sample",
        minimum=1,
        maximum=100_000,
    )
    autotune_samples: int = setting(
        20,
        "Combinations that the autotuner measures at most.",
        flag="--autotune-samples",
        minimum=1,
        maximum=200,
    )
    cache_capacity: int = setting(
        65_536,
        "Signatures whose negotiation is remembered, so that repeating costs one bit; 0: none.",
        is_equal=True,
        native="cache_capacity",
        flag="--cache-capacity",
        minimum=0,
        maximum=1 << 24,
    )
    spin_us: int = setting(
        -1,
        "How long a wait polls before it sleeps; -1: chosen from the cores and ranks of the host.",
        native="spin_us",
        level="hidden",
        minimum=-1,
        maximum=1_000_000,
        unit="microseconds",
    )
    pinned_bytes: int = setting(
        1 << 30,
        "Memory of the host that a process may pin for copies of GPU tensors; what finds no room is copied in pieces.",
        kind="bytes",
        native="pinned_bytes",
        flag="--pinned-bytes",
        minimum=1 << 24,
        maximum=1 << 40,
        unit="bytes",
    )
    inline_bytes: int = setting(
        64 << 10,
        "A blocking collective of at most this many bytes (allgather, even alltoall: of all ranks together) may be "
        "negotiated with its data, where the links make that cheaper than an exchange: 1 KiB always, 4 KiB at "
        "most in shared memory. 0: none; nor without builtin, or where rank 0 does not talk to every rank.",
        native="inline_bytes",
        level="hidden",
        minimum=0,
        maximum=64 << 10,
    )
    coordination: str = setting(
        "auto",
        "Which ranks exchange messages to agree on what runs: `star` is rank 0 with every rank, `tree` a tree "
        "in which the ranks of a host gather first and ranks between combine what is said below "
        "them; `auto` is the star up to 64 ranks and the tree above.",
        kind="choice",
        choices=("auto", "star", "tree"),
        is_equal=True,
        native="coordination",
        level="hidden",
    )
    coordination_fan_out: int = setting(
        8,
        "Of the tree: how many ranks of its own host, and how many leaders of other hosts, are "
        "right below a rank.",
        is_equal=True,
        native="coordination_fan_out",
        level="hidden",
        minimum=2,
        maximum=1024,
    )


class MethodSettings(Settings, group="tuning"):
    """What optimizers exchange, and whether its bits repeat."""

    strategy: str = setting(
        "",
        "Gradient method of optimizers that are given none, such as powersgd:rank=2; empty: the mean of "
        "the gradients. `rabitrun --strategy help` lists the methods.",
        is_equal=True,
        flag="--strategy",
        level="basic",
    )
    shard: str = setting(
        "",
        "What DistributedOptimizer of PyTorch and DistributedTrainer of MXNet divide among the ranks: the optimizer's "
        "state, or the gradients as well; empty: nothing.",
        kind="choice",
        is_equal=True,
        flag="--shard",
        choices=("", "optimizer", "gradients"),
        level="basic",
    )
    host_shared: bool = setting(
        False,
        "With shard: the ranks of a host have the parameters once, in memory that they share.",
        is_equal=True,
        flag="--host-shared",
    )
    deterministic: bool = setting(
        False,
        "Results are bitwise equal from run to run and for every fusion and partition size.",
        is_equal=True,
        native="deterministic",
        flag="--deterministic",
        level="basic",
    )
