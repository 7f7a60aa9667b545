"""Has MXNet complete every gradient by itself, so that it can travel while the backward pass continues."""

from __future__ import annotations

from rabit_mxnet.library import mxnet_setting, set_mxnet_setting

# MXNet runs up to this many operations of a backward pass as one (its own default is 15), and
# their results are complete together, at the end.
_AT_ONCE = "MXNET_EXEC_BULK_EXEC_MAX_NODE_TRAIN_BWD"
# Whoever has set one of these has chosen.
_CHOICES = (_AT_ONCE, "MXNET_EXEC_BULK_EXEC_MAX_NODE_TRAIN", "MXNET_EXEC_BULK_EXEC_TRAIN")


def _separate_gradients() -> str | None:
    if any(mxnet_setting(each) is not None for each in _CHOICES):
        return None
    set_mxnet_setting(_AT_ONCE, "1")
    return (
        f"{_AT_ONCE} is set to 1, so that gradients travel while the backward pass continues; "
        "set it yourself to have another value"
    )


# When rabit_mxnet is imported: MXNet looks at the setting once, at the first operation on an array.
CHANGED: str | None = _separate_gradients()
