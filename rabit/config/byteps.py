"""BytePS's names for settings of rabit: the variables of its processes and of the launcher of DMLC."""

from __future__ import annotations

from rabit.config.horovod import Twin

__all__ = ["TWINS", "VARIABLES_WITHOUT_EFFECT"]

TWINS = (
    Twin("servers", "DMLC_NUM_SERVER"),
    Twin("network_interfaces", "DMLC_INTERFACE"),
    Twin("partition_bytes", "BYTEPS_PARTITION_BYTES"),
    Twin("log_level", "BYTEPS_LOG_LEVEL"),
    Twin("ps_async", "BYTEPS_ENABLE_ASYNC"),
)

# Variable -> why it changes nothing.
VARIABLES_WITHOUT_EFFECT: dict[str, str] = {
    "DMLC_PS_ROOT_URI": "rabitrun opens the place where all processes meet",
    "DMLC_PS_ROOT_PORT": "rabitrun opens the place where all processes meet",
    "DMLC_NODE_HOST": "addresses are found by the route to that place; see RABIT_BIND_ADDRESS",
    "DMLC_ENABLE_RDMA": "servers use TCP",
    "BYTEPS_SCHEDULING_CREDIT": "the credit follows the links",
    "BYTEPS_FORCE_DISTRIBUTED": "servers are used wherever there are some",
    "BYTEPS_KEY_HASH_FN": "tensors are placed by bytes",
    "BYTEPS_SERVER_ENGINE_THREAD": "a server has a thread for each lane",
    "BYTEPS_SERVER_ENABLE_SCHEDULE": "partitions arrive in the order of priorities",
    "BYTEPS_THREADPOOL_SIZE": "RABIT_LANES says how many operations run at once",
    "BYTEPS_MIN_COMPRESS_BYTES": "a strategy says it: 'topk:small=65536'",
    "BYTEPS_TRACE_ON": "RABIT_TIMELINE names a file for the timeline",
    "BYTEPS_TRACE_DIR": "RABIT_TIMELINE names a file for the timeline",
    "BYTEPS_TELEMETRY_ON": "statistics() always counts",
}
