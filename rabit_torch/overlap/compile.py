"""compile: torch.compile in parts, so that gradients leave while the backward pass still runs."""

from __future__ import annotations

import contextlib
import sys
import warnings
import weakref
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Literal

import torch

import rabit
from rabit import InvalidArgument, Unsupported
from rabit_torch.overlap import deferred
from rabit_torch.overlap.watched import make_ready

__all__ = ["LateGradients", "compile", "watch_compilations"]

_LATE_WARNING = (
    "torch.compile has made {share:.0%} of the gradients ({late} of {total} parameters) the work of "
    "one backward graph, which hands all of them out at its end: almost nothing of their exchange "
    "overlaps with the backward pass. Results are not affected. Remedies: "
    "model = rabit_torch.compile(model), which compiles block by block; or "
    'torch.compile(block) for every block yourself, or rabit_torch.compile(model, buckets="split"). '
    "This is said once."
)
# From this share of the gradient bytes on, one graph is worth a warning.
_LATE_SHARE = 0.5
_has_warned = False
_depth = 0  # > 0 while a block of `compile` runs: its parameters are up to date


# --- detection ------------------------------------------------------------------------------------


class LateGradients:
    """Looks once, in the first backward pass, whether one compiled graph makes most gradients."""

    def __init__(self, parameters: Sequence[torch.Tensor]) -> None:
        self._bytes = {id(p): p.numel() * p.element_size() for p in parameters}
        self._is_done = False

    def look(self) -> None:
        """Called by the first gradient of a backward pass, in the thread that runs it."""
        if self._is_done:
            return
        self._is_done = True
        dynamo = sys.modules.get("torch._dynamo")
        if dynamo is None or getattr(dynamo.compiled_autograd, "compiled_autograd_enabled", False):
            return  # Compiled autograd takes the graphs apart and runs hooks in order.
        late = max(_made_by_graphs(_roots(), self._bytes), key=self._size, default=frozenset())
        total = sum(self._bytes.values())
        share = self._size(late) / total if total else 0.0
        if share > _LATE_SHARE and len(late) > 1:
            _warn_once(_LATE_WARNING.format(share=share, late=len(late), total=len(self._bytes)))

    def _size(self, parameters: frozenset[int]) -> int:
        return sum(self._bytes[parameter] for parameter in parameters)


def _warn_once(text: str) -> None:
    global _has_warned
    if rabit.rank() == 0 and not _has_warned:
        _has_warned = True
        warnings.warn(text, stacklevel=2)


def _roots() -> list[Any]:
    """The graph nodes that the running backward pass began with; none if they cannot be seen.

    Autograd does not name them; they are arguments of its innermost entry, which lies on the stack of
    this thread wherever the gradients are computed by the CPU.
    """
    frame: Any = sys._getframe()
    while frame is not None and frame.f_code.co_name != "_engine_run_backward":
        frame = frame.f_back
    outputs = frame.f_locals.get("t_outputs", ()) if frame is not None else ()
    nodes = [getattr(output, "grad_fn", None) or getattr(output, "node", None) for output in outputs]
    return [node for node in nodes if node is not None]


def _made_by_graphs(roots: list[Any], known: dict[int, int]) -> list[frozenset[int]]:
    """For every compiled backward graph: the known parameters whose gradients it makes."""
    found = []
    seen: set[Any] = set(roots)
    waiting = list(roots)
    while waiting:
        node = waiting.pop()
        followers = [each for each, _ in node.next_functions if each is not None]
        if "CompiledFunction" in node.name():
            made = (id(getattr(follower, "variable", None)) for follower in followers)
            found.append(frozenset(each for each in made if each in known))
        for each in followers:
            if each not in seen:
                seen.add(each)
                waiting.append(each)
    return found


def watch_compilations() -> None:
    """Makes parameters that compiled code reads count as unseen, so that step() updates them.

    Code that Dynamo has compiled reads parameters without telling.  The blocks of `compile` tell.
    """
    from torch._dynamo.callback import callback_handler

    if _compilation_starts not in callback_handler.start_callbacks:
        callback_handler.register_start_callback(_compilation_starts)


def _compilation_starts(*_: Any) -> None:
    if _depth == 0:
        for crossing in list(deferred._live):
            crossing.stop_watching()


# --- compilation in parts -------------------------------------------------------------------------


def compile(
    model: torch.nn.Module,
    buckets: Literal["auto", "blocks", "split"] | int = "auto",
    **options: Any,
) -> torch.nn.Module:
    """Compiles `model` in place in parts, one backward graph each; returns `model`.

    torch.compile(model) makes one backward graph, whose gradients all come at its end.  Parts give
    their gradients one after another, so that these travel during the rest of the backward pass.

    buckets: "blocks": every block by itself.  Blocks are the repeated children (layers of one class),
        or children of at least the size of a partition.  "split": the whole graph is cut where the
        parameters since the last cut reach the size of a partition (RABIT_PARTITION_BYTES); a number:
        the same with that many bytes.  "auto": "blocks" if the model has at least two, else "split".
    options: of torch.compile (backend, mode, dynamic, fullgraph, …); with "split" no mode.

    Names of parameters and the state_dict do not change.  Equal to the model in eager mode up to the
    rounding of the backend.  Raises InvalidArgument for another `buckets`.
    """
    if isinstance(buckets, bool) or not (
        isinstance(buckets, int) or buckets in ("auto", "blocks", "split")
    ):
        raise InvalidArgument(
            f"buckets is {buckets!r}; use 'auto', 'blocks', 'split', or a number of bytes"
        )
    if isinstance(buckets, int) and buckets < 1:
        raise InvalidArgument(f"buckets is {buckets}; a number of bytes must be at least 1")
    size = buckets if isinstance(buckets, int) else _partition_bytes()
    if not isinstance(buckets, int) and buckets != "split":
        blocks = find_blocks(model, size)
        if len(blocks) > 1 or buckets == "blocks":
            for block in blocks or [model]:
                _compile_block(block, options)
            return model
    _compile_block(model, {**options, "backend": _splitting(size, options)})
    return model


def _partition_bytes() -> int:
    """The size of a partition in this job, or by default before init()."""
    if rabit.is_initialized():
        return int(rabit.default_engine().config.partition_bytes)
    return 4 << 20


def _parameter_bytes(module: torch.nn.Module) -> int:
    return sum(p.numel() * p.element_size() for p in module.parameters())


def find_blocks(model: torch.nn.Module, size: int) -> list[torch.nn.Module]:
    """The parts of `model` to compile: repeated layers, and other modules that have parameters.

    size: bytes; children at least so large are blocks although they are not repeated.
    """
    children = [child for child in model.children() if _parameter_bytes(child)]
    kinds = [type(child) for child in children]
    is_repeated = [
        kinds.count(kind) > 1 and any(True for _ in child.children())
        for kind, child in zip(kinds, children, strict=True)
    ]
    blocks: list[torch.nn.Module] = []
    for child, repeated in zip(children, is_repeated, strict=True):
        is_callable = not isinstance(child, torch.nn.ModuleList | torch.nn.ModuleDict)
        inner = [] if repeated and is_callable else find_blocks(child, size)
        if len(inner) > 1:
            blocks += inner
        elif is_callable and (repeated or _parameter_bytes(child) >= size):
            blocks.append(child)
        elif inner:
            blocks += inner
    return blocks


def _compile_block(block: torch.nn.Module, options: dict[str, Any]) -> None:
    """Compiles `block` in place; its entry brings its parameters up to date."""
    block.compile(**options)
    compiled: Callable[..., Any] = block._compiled_call_impl  # type: ignore[assignment]
    reference = weakref.ref(block)

    def call(*args: Any, **kwargs: Any) -> Any:
        found = reference()
        if found is not None:
            make_ready(found.parameters())
        with _inside():
            return compiled(*args, **kwargs)

    call._torchdynamo_disable = True  # type: ignore[attr-defined]
    block._compiled_call_impl = call


@contextlib.contextmanager
def _inside() -> Iterator[None]:
    global _depth
    _depth += 1
    try:
        yield
    finally:
        _depth -= 1


def _splitting(size: int, options: dict[str, Any]) -> Callable[..., Any]:
    """A backend that cuts a graph into parts with `size` bytes of parameters each."""
    if "mode" in options or "options" in options:
        raise InvalidArgument(
            "buckets='split' compiles with a backend of its own, which takes no mode and no options; "
            "use buckets='blocks' with them, or leave them out"
        )
    try:
        from torch._dynamo.backends.distributed import DDPOptimizer
        from torch._dynamo.backends.registry import lookup_backend
    except ImportError as error:
        raise Unsupported(
            f"this torch ({torch.__version__}) cannot split a graph ({error}); use buckets='blocks'"
        ) from error
    named = options.get("backend", "inductor")
    backend: Any = lookup_backend(named) if isinstance(named, str) else named
    split: Callable[..., Any] = DDPOptimizer(size, backend, first_bucket_cap=size).compile_fn
    return split
