"""Turns a request into a running job: plan, secret, store, one node for each host."""

from __future__ import annotations

import contextlib
import dataclasses
import os
import resource
import secrets
import selectors
import socket
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from rabit.errors import InvalidArgument, ResourceExhausted
from rabit.launch.growth import Grows, Growth, NewcomerEvents
from rabit.launch.host_watch import HostWatch
from rabit.launch.hosts import Host
from rabit.launch.job import HostJob, RankJob, working_directory
from rabit.launch.losses import Losses, elastic_losses
from rabit.launch.nodes.local import LocalNode
from rabit.launch.nodes.node import STDERR, STDOUT, Events, Node
from rabit.launch.nodes.sink import Sink
from rabit.launch.nodes.ssh import RemoteNode, SshOptions
from rabit.launch.options.environment import base_environ, portable_environ
from rabit.launch.outcome import Outcome
from rabit.launch.output.output import Output, OutputFiles, Style, wants_colour
from rabit.launch.plan import HostPlan, Plan, RankPlace
from rabit.launch.processors import HostProcessors, bind, thread_count
from rabit.launch.room import Room
from rabit.launch.secret import make_secret
from rabit.launch.store import StorePlace, crowded, serve_store, serve_stores, store_places
from rabit.launch.supervisor import Supervisor, Times
from rabit.launch.torch_environ import master_environ, place_environ
from rabit.rendezvous import addresses
from rabit.rendezvous.interfaces import pick_address
from rabit.rendezvous.placement import host_key
from rabit.version import __version__

__all__ = ["Request", "is_started_here", "launch", "store_host", "store_places_of", "thread_note"]


@dataclass(frozen=True)
class Request:
    """What to start.  tuning and user: variables on top of `environ`, the user's last.

    least: ranks with which the job goes on when others are lost; 0: it may lose none.  grows: how
    it starts processes while it runs; None: it does not.  stores: of an elastic job; with several it goes on
    when this process is lost.
    has_bare_rank_0: what rank 0 writes is the program's whole output, and gets no prefix.
    mpi_arguments: for mpiexec alone, with the launcher mpi.
    """

    plan: Plan
    command: tuple[str, ...]
    environ: Mapping[str, str]
    tuning: Mapping[str, str] = field(default_factory=dict)
    user: Mapping[str, str] = field(default_factory=dict)
    times: Times = field(default_factory=Times)
    ssh: SshOptions = field(default_factory=SshOptions)
    directory: str = field(default_factory=working_directory)
    output_folder: Path | None = None
    has_timestamps: bool = False
    is_collapsed: bool = False
    is_verbose: bool = False
    has_bare_rank_0: bool = False
    least: int = 0
    grows: Grows | None = None
    stores: int = 1
    bind_to: str = "none"
    mpi_arguments: tuple[str, ...] = ()
    secret: bytes | None = field(default=None, repr=False)
    payload: bytes | None = field(default=None, repr=False)


def launch(request: Request) -> Outcome:
    """Runs the job to its end.  Blocks.  Raises RabitError if it cannot be started at all."""
    plan = request.plan
    _allow_descriptors(
        sum(len(each.numbers) for each in plan.hosts if is_started_here(request, each.host))
        + len(plan.hosts)
        + (0 if request.grows is None else 2 * (request.grows.most + request.grows.spares)),
        has_files=request.output_folder is not None,
    )
    # Made first: a folder that cannot be written must not cost a started job.
    files = OutputFiles(request.output_folder, plan) if request.output_folder else None
    with contextlib.ExitStack() as stack:
        selector = stack.enter_context(selectors.DefaultSelector())
        sinks = {
            STDOUT: Sink(_descriptor(sys.stdout, 1), selector),
            STDERR: Sink(_descriptor(sys.stderr, 2), selector),
        }
        output = Output(_style(request), sinks, files)

        def note(text: str) -> None:
            output.end_line()
            sinks[STDERR].write_text(f"rabitrun: {text}\n")

        def tell_loss(reason: str) -> None:
            sinks[STDERR].write_text(
                f"rabitrun: standard output cannot be written: {reason}. The job goes on without what its "
                "ranks print; make room, or send it elsewhere (--output-filename).\n"
            )

        sinks[STDOUT].on_loss = tell_loss

        def say(text: str) -> None:
            if request.is_verbose:
                note(text)

        secret = request.secret or make_secret()
        stores = stack.enter_context(_stores(request, secret, say, note))
        shared = stack.enter_context(_shared_environ(request, stores))
        hosts = [str(each.host) for each in plan.hosts for _ in each.places]
        most = 0 if request.grows is None else _room(request).size
        losses = stack.enter_context(elastic_losses(hosts, request.least, most, stores, secret))
        supervisor = Supervisor(plan, request.times, output, sinks, selector, say, losses)
        nodes = [_node(request, each, shared, secret, supervisor, selector) for each in plan.hosts]
        if request.grows is not None:
            stack.enter_context(_growing(request, shared, secret, supervisor, losses, selector))
        say(thread_note(request))
        if strange := _strange_interfaces(request):
            note(strange)
        outcome = supervisor.run(nodes)
        if files is not None and files.problem:
            sinks[STDERR].write_text(f"rabitrun: {files.problem}\n")
        if request.payload is None:  # else it is the text of an exception
            sinks[STDERR].write_text(outcome.report)
        if lost := sinks[STDOUT].lost_bytes:
            sinks[STDERR].write_text(f"rabitrun: {lost} bytes of standard output were lost.\n")
        # A reader that pauses, such as less, must not lose the end; a signal still ends this.
        for sink in sinks.values():
            sink.flush(longest_s=3600)
    return outcome


def _room(request: Request) -> Room:
    """Where the job has processes when all ranks of the plan have been started."""
    grows = request.grows
    assert grows is not None
    room = Room(grows.hosts, grows.most, grows.spares, grows.cooldown)
    for each in request.plan.hosts:
        for place in each.places:
            room.add(place.rank, str(each.host))
    return room


@contextlib.contextmanager
def _growing(
    request: Request,
    shared: Mapping[str, str],
    secret: bytes,
    supervisor: Supervisor,
    losses: Losses,
    selector: selectors.BaseSelector,
) -> Iterator[None]:
    """Inside of the block the supervisor starts processes where they are wanted."""
    grows = request.grows
    assert grows is not None

    def make_node(number: int, host: Host, slot: int) -> Node:
        is_here, slots = is_started_here(request, host), max(1, host.slots)
        # Programs choose their device by it: a spare beyond the slots shares one.
        local_rank, local_size = slot % slots, min(slots, number + 1)
        plan = HostPlan(host, (RankPlace(number, local_rank, local_size, number, number + 1),))
        job = _host_job(request, plan, shared, secret, is_here)
        job = dataclasses.replace(job, slots=slots, first_slot=slot)
        events = NewcomerEvents(number, supervisor, supervisor.note)
        return _make_node(request, host, job, events, selector)

    growth = Growth(_room(request), losses, request.plan.size, make_node, supervisor.note)
    supervisor.crew.growth = growth
    if grows.look is None:
        yield
        return

    def keep(error: str) -> None:
        supervisor.note(f"the hosts stay as they are: {error}")

    address = store_host(request)
    is_alone = address == addresses.loopback_address()

    def change(hosts: Sequence[Host]) -> None:
        strange = [each for each in hosts if is_alone and not each.is_here]
        if strange:
            supervisor.note(
                f"{', '.join(map(str, strange))}: no process is started there, since the store of this job listens "
                f"on {address}, where other machines do not reach it. List such a host from the "
                "start, or set RABIT_NETWORK_INTERFACES for rabitrun."
            )
        growth.set_hosts([each for each in hosts if each.is_here or not is_alone])

    with HostWatch(grows.look, grows.hosts, grows.interval_s, selector, change, keep):
        yield


def _allow_descriptors(children: int, has_files: bool) -> None:
    """Raises the soft limit of open files, if the pipes to `children` processes exceed it."""
    needed = 64 + children * (7 if has_files else 5)
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == resource.RLIM_INFINITY or needed <= soft:
        return
    if hard != resource.RLIM_INFINITY and needed > hard:
        raise ResourceExhausted(
            f"{children} processes need {needed} open files in the launcher, and the limit of the "
            f"user is {hard}. Raise it ('ulimit -Hn'), or start fewer ranks on one host."
        )
    resource.setrlimit(resource.RLIMIT_NOFILE, (needed, hard))


def _descriptor(stream: object, default: int) -> int:
    """The descriptor behind sys.stdout, which a notebook or a test may have replaced."""
    if stream in (sys.__stdout__, sys.__stderr__) and stream is not None:
        with contextlib.suppress(AttributeError, OSError, ValueError):
            stream.flush()
            return int(stream.fileno())
    return default


def is_started_here(request: Request, host: Host) -> bool:
    """True if the ranks of `host` are children of the launcher, without ssh."""
    return not request.ssh.is_always and host.is_here


def store_host(request: Request) -> str:
    """The address on which the store listens; "" for a job of one rank, which needs none."""
    if request.plan.size == 1 and request.grows is None:
        return ""
    hosts = [each.host for each in request.plan.hosts] if request.grows is None else request.grows.hosts
    # With ssh or without, this machine reaches its loopback.
    away = [each for each in hosts if not each.is_here]
    if not away:
        return addresses.loopback_address()
    interfaces = [each.strip() for each in _interfaces(request).split(",") if each.strip()]
    if interfaces:
        return pick_address(interfaces)
    known = [each.address for each in away if each.address]
    if not known:
        raise InvalidArgument(
            f"the host {away[0].name.rpartition('@')[2]!r} does not resolve: {away[0].problem}. Use a name that every "
            "host knows, or an address."
        )
    return addresses.route_address(known[0])


def _strange_interfaces(request: Request) -> str:
    """Of a job on this host alone, which uses none: the interfaces that are named for it and not there; "": none."""
    names = [name.strip() for name in _interfaces(request).split(",") if name.strip()]
    known = sorted(name for _, name in socket.if_nameindex())
    if not names or store_host(request) != addresses.loopback_address() or set(names) & set(known):
        return ""
    return (
        f"the network interface {', '.join(names)} (--network-interfaces or RABIT_NETWORK_INTERFACES) does not exist "
        f"here: known are {', '.join(known)}. This job uses the loopback; on several hosts it would not start."
    )


def _interfaces(request: Request) -> str:
    name = "RABIT_NETWORK_INTERFACES"
    return request.tuning.get(name) or request.environ.get(name, "")


@contextlib.contextmanager
def _stores(
    request: Request, secret: bytes, say: Callable[[str], None], note: Callable[[str], None]
) -> Iterator[list[str]]:
    """The addresses of the stores; none for a job of one rank that stays alone."""
    host = store_host(request)
    if not host:
        yield []
        return
    if request.stores == 1:
        with serve_store(host, secret) as address:
            say(f"the store listens on {address}")
            yield [address]
        return
    places = store_places_of(request)
    if risk := crowded(places):
        note(risk)
    with serve_stores(places, host, _interfaces(request), secret, request.times.start_s) as found:
        for place, address in zip(places, found, strict=True):
            say(f"a store of {len(found)} listens on {place.host}, {address}")
        yield found


def store_places_of(request: Request) -> list[StorePlace]:
    """Where the stores run that are to outlive this process."""
    hosts = [each.host for each in request.plan.hosts]
    if request.grows is not None:
        hosts = list(dict.fromkeys([*hosts, *request.grows.hosts]))
    ways = [(each, is_started_here(request, each)) for each in hosts]
    return store_places(request.stores, ways, request.ssh, base_environ(request.environ))


@contextlib.contextmanager
def _shared_environ(request: Request, stores: Sequence[str]) -> Iterator[dict[str, str]]:
    """The variables that tell every rank where the ranks meet, ours and torch.distributed."""
    first = request.plan.hosts[0].host
    is_here = first.is_here
    name = "" if is_here else first.name.rpartition("@")[2]
    with master_environ(name, store_host(request) if is_here else "") as found:
        elastic = {"RABIT_MIN_NP": str(request.least)} if request.least else {}
        if request.grows is not None:
            elastic["RABIT_MAX_NP"] = str(request.grows.most)
        if stores:
            elastic["RABIT_STORE_ADDRESS"] = stores[0]
        if len(stores) > 1:
            elastic["RABIT_STORE_ADDRESSES"] = ",".join(stores)
        yield {**found, **elastic}


def _node(
    request: Request,
    each: HostPlan,
    shared: Mapping[str, str],
    secret: bytes,
    supervisor: Supervisor,
    selector: selectors.BaseSelector,
) -> Node:
    is_here = is_started_here(request, each.host)
    job = _host_job(request, each, shared, secret, is_here)
    return _make_node(request, each.host, job, supervisor, selector)


def _make_node(
    request: Request, host: Host, job: HostJob, events: Events, selector: selectors.BaseSelector
) -> Node:
    """Children of this process end with it; what an agent runs can go on."""
    is_here = is_started_here(request, host)
    if is_here and not job.stores:
        return LocalNode(job, events, selector)
    return RemoteNode(host, job, request.ssh, events, selector, is_here)


def _host_job(
    request: Request,
    each: HostPlan,
    meeting: Mapping[str, str],
    secret: bytes,
    is_here: bool,
) -> HostJob:
    plan = request.plan
    inherited = base_environ(request.environ) if is_here else portable_environ(request.environ)
    shared: dict[str, str] = {"PYTHONUNBUFFERED": "1", **inherited, **request.tuning, **meeting}
    grows = request.grows
    is_one = len(plan.hosts) == 1 and grows is None
    if is_one and "RABIT_BIND_ADDRESS" not in shared:
        shared["RABIT_BIND_ADDRESS"] = addresses.loopback_address()
    if is_here and not is_one:
        # Several names of one machine stand for several hosts, as when a layout is tried out.
        shared["RABIT_HOST_KEY"] = f"{host_key({})}/{each.host.name}"
    shared.update(request.user)
    return HostJob(
        job=secrets.token_hex(8),
        version=__version__,
        host=str(each.host),
        command=request.command,
        directory=request.directory,
        environ=shared,
        ranks=(
            *(
                RankJob(place.rank, _place_environ(place, plan.size)) for place in each.places
            ),
            *(
                RankJob(place.number, place.environ(plan.size), is_server=True)
                for place in each.servers
            ),
        ),
        grace_s=request.times.grace_s,
        secret=secret if plan.size > 1 or grows is not None else None,
        payload=request.payload,
        bind_to=request.bind_to,
        stores=tuple(meeting.get("RABIT_STORE_ADDRESSES", "").split(",")) if request.stores > 1 else (),
    )


def _place_environ(place: RankPlace, size: int) -> dict[str, str]:
    """How one rank knows its place; one beyond `size` comes to a job that runs."""
    joins = {"RABIT_JOINS": "1"} if place.rank >= size else {}
    size = max(size, place.rank + 1)
    return {**place.environ(size), **place_environ(place, size), **joins}


def _style(request: Request) -> Style:
    is_one_host = len(request.plan.hosts) == 1
    return Style(
        labels={
            number: _label(request, each.host, number, is_one_host)
            for each in request.plan.hosts
            for number in each.numbers
        },
        has_timestamps=request.has_timestamps,
        is_collapsed=request.is_collapsed,
        has_colour=wants_colour(1, request.environ),
        is_terminal=os.isatty(1),
        draws_bars=os.isatty(1) and os.isatty(2) and request.environ.get("TERM") != "dumb",
    )


def _label(request: Request, host: Host, number: int, is_one_host: bool) -> str:
    if request.has_bare_rank_0 and number == 0:
        return ""
    is_rank = number < request.plan.size
    name = str(number) if is_rank else request.plan.name_of(number)
    return name if is_one_host else f"{host}:{name}"


def thread_note(request: Request) -> str:
    """What becomes of OMP_NUM_THREADS, for --verbose and --dry-run.

    Raises InvalidArgument if this machine cannot bind its ranks as asked.
    """
    given = request.user.get("OMP_NUM_THREADS") or request.environ.get("OMP_NUM_THREADS")
    if given:
        return f"OMP_NUM_THREADS is {given}, as set by you"
    here = HostProcessors.here()
    counts = {
        str(each.host): thread_count(0, bind(request.bind_to, len(each.places), here), here.quota)
        for each in request.plan.hosts
        if each.places and is_started_here(request, each.host)
    }
    if not counts:
        return "OMP_NUM_THREADS is unset: each host sets its cores divided by its ranks"
    shown = ", ".join(f"{count} on {host}" for host, count in counts.items())
    return f"OMP_NUM_THREADS is unset: ranks get cores divided by ranks of the host ({shown})"
