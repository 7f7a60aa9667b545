"""rabitrun itself as the launcher: children on this machine, an agent over ssh on every other one."""

from __future__ import annotations

import contextlib
import os
import resource
import selectors
import shlex
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence

from rabit.errors import InvalidArgument, ResourceExhausted
from rabit.launch.growth import Growth, NewcomerEvents
from rabit.launch.host_watch import HostWatch
from rabit.launch.hosts import Host
from rabit.launch.job import Job
from rabit.launch.losses import Losses, elastic_losses
from rabit.launch.meeting import Meeting, meeting_of, store_places_of
from rabit.launch.nodes.node import STDERR, STDOUT, Node
from rabit.launch.nodes.sink import Sink
from rabit.launch.outcome import Outcome
from rabit.launch.output.output import Output, OutputFiles, Style, wants_colour
from rabit.launch.plan import HostPlan
from rabit.launch.processors import HostProcessors, as_list, bind, bind_with_servers, thread_count
from rabit.launch.room import Room
from rabit.launch.roster import Roster
from rabit.launch.secret import make_secret
from rabit.launch.starter import Starter
from rabit.launch.supervisor import Supervisor
from rabit.rendezvous import addresses

__all__ = ["LACKS", "describe", "run"]

LACKS: Mapping[str, str] = {
    "mpi-args": "--mpi-args and --binding-args are for mpiexec, and rabitrun starts the ranks itself. Add "
    "--launcher mpi, or leave them out.",
}


def describe(job: Job) -> str:
    """The plan, one line for each rank; starts nothing and contacts nobody."""
    plan = job.plan
    hosts = "1 host" if len(plan.hosts) == 1 else f"{len(plan.hosts)} hosts"
    ranks = "1 rank" if plan.size == 1 else f"{plan.size} ranks"
    lines = [f"{ranks} on {hosts}, {_thread_note(job)}", *_describe_store(job)]
    lines.append(
        "for torch.distributed: RANK, WORLD_SIZE, LOCAL_RANK, LOCAL_WORLD_SIZE, MASTER_ADDR, "
        "MASTER_PORT"
    )
    shared = {**job.tuning, **job.user}
    if shared:
        lines.append("variables: " + " ".join(f"{k}={shlex.quote(v)}" for k, v in shared.items()))
    for on_host in plan.hosts:
        lines += _describe_host(job, on_host)
    return "\n".join(lines)


def _describe_store(job: Job) -> list[str]:
    try:
        address = job.store_host
    except InvalidArgument as error:
        return [f"this job cannot start: {error}"]
    if not address:
        return []
    if job.elastic is not None and job.elastic.stores > 1:
        hosts = ", ".join(str(place.host) for place in store_places_of(job))
        return [f"stores: on {hosts}, ports chosen by the system; secret: made for the job"]
    return [f"store: {address}, port chosen by the system; secret: made for the job"]


def _describe_host(job: Job, on_host: HostPlan) -> Iterator[str]:
    bound, serving = [""] * len(on_host.places), [""] * len(on_host.servers)
    if job.starts_here(on_host.host):
        yield f"host {on_host.host}, without ssh:"
        if job.bind_to != "none":
            counts = len(on_host.places), len(on_host.servers)
            sets = bind_with_servers(job.bind_to, *counts, HostProcessors.here())
            bound, serving = ([f"on processors {as_list(e)}: " for e in ours] for ours in sets)
    else:
        command = job.ssh.command(on_host.host, job.environ.get("PYTHONPATH", ""))
        yield f"host {on_host.host}, through: {shlex.join(command)}"
    for place, where in zip(on_host.places, bound, strict=True):
        numbers = " ".join(f"{k}={v}" for k, v in place.environ(job.plan.size).items())
        yield f"  {where}{numbers} {shlex.join(job.command)}"
    for server, where in zip(on_host.servers, serving, strict=True):
        yield f"  {where}summation server {server.server}"


def run(job: Job) -> Outcome:
    """Runs the job to its end.  Blocks.  Raises RabitError if it cannot be started at all."""
    _allow_descriptors(job)
    # Made first: a folder that cannot be written must not cost a started job.
    files = OutputFiles(job.output_folder, job.plan) if job.output_folder else None
    with contextlib.ExitStack() as stack:
        selector = stack.enter_context(selectors.DefaultSelector())
        sinks = _sinks(selector)
        output = Output(_style(job), sinks, files)

        def note(text: str) -> None:
            output.end_line()
            sinks[STDERR].write_text(f"rabitrun: {text}\n")

        def say(text: str) -> None:
            if job.is_verbose:
                note(text)

        meeting = stack.enter_context(meeting_of(job, job.secret or make_secret(), say, note))
        roster = Roster(job.plan.host_names, job.plan.size, output.tail)
        losses = stack.enter_context(_losses(job, meeting, roster))
        supervisor = Supervisor(job, roster, output, sinks, selector, say, losses)
        starter = Starter(job, meeting, selector)
        nodes = [starter.node(on_host, supervisor) for on_host in job.plan.hosts]
        if job.grows is not None:
            growth = Growth(
                _room(job), roster, losses, job.plan.size, _newcomers(starter, supervisor), note
            )
            supervisor.crew.growth = growth
            stack.enter_context(_watching(job, growth, note, selector))
        say(_thread_note(job))
        if job.interface_note:
            note(job.interface_note)
        outcome = supervisor.run(nodes)
        if files is not None and files.problem:
            sinks[STDERR].write_text(f"rabitrun: {files.problem}\n")
        if job.payload is None:  # else it is the text of an exception
            sinks[STDERR].write_text(outcome.report)
            if outcome.has_failed:
                sinks[STDERR].write_text("".join(f"  {line}\n" for line in supervisor.window.verdict()))
        if lost := sinks[STDOUT].lost_bytes:
            sinks[STDERR].write_text(f"rabitrun: {lost} bytes of standard output were lost.\n")
        # A reader that pauses, such as less, must not lose the end; a signal still ends this.
        for sink in sinks.values():
            sink.flush(longest_s=3600)
    return outcome


def _sinks(selector: selectors.BaseSelector) -> dict[int, Sink]:
    sinks = {
        STDOUT: Sink(_descriptor(sys.stdout, 1), selector),
        STDERR: Sink(_descriptor(sys.stderr, 2), selector),
    }

    def report_loss(reason: str) -> None:
        sinks[STDERR].write_text(
            f"rabitrun: standard output cannot be written: {reason}. The job continues without what its "
            "ranks print; make room, or send it elsewhere (--output-filename).\n"
        )

    sinks[STDOUT].on_loss = report_loss
    return sinks


def _losses(
    job: Job, meeting: Meeting, roster: Roster
) -> contextlib.AbstractContextManager[Losses]:
    hosts = [str(on_host.host) for on_host in job.plan.hosts for _ in on_host.places]
    most = 0 if job.grows is None else _room(job).size
    least = 0 if job.elastic is None else job.elastic.least
    return elastic_losses(hosts, least, most, meeting.stores, meeting.secret, roster)


def _room(job: Job) -> Room:
    """Where the job has processes when all ranks of the plan have been started."""
    assert job.grows is not None
    room = Room(job.grows.hosts, job.grows.most, job.grows.spares, job.grows.cooldown)
    for on_host in job.plan.hosts:
        for place in on_host.places:
            room.add(place.rank, str(on_host.host))
    return room


def _newcomers(starter: Starter, supervisor: Supervisor) -> Callable[[int, Host, int], Node]:
    """Makes the node of a newcomer."""

    def make_node(number: int, host: Host, slot: int) -> Node:
        events = NewcomerEvents(number, supervisor, supervisor.note)
        return starter.newcomer(number, host, slot, events)

    return make_node


@contextlib.contextmanager
def _watching(
    job: Job, growth: Growth, note: Callable[[str], None], selector: selectors.BaseSelector
) -> Iterator[None]:
    """Inside of the block hosts that come and go are looked for, if the job is to follow them."""
    grows = job.grows
    assert grows is not None
    if grows.look is None:
        yield
        return

    def keep(error: str) -> None:
        note(f"the hosts stay as they are: {error}")

    is_alone = job.store_host == addresses.loopback_address()

    def change(hosts: Sequence[Host]) -> None:
        strange = [host for host in hosts if is_alone and not host.is_here]
        if strange:
            note(
                f"{', '.join(map(str, strange))}: no process is started there, since the store of this job listens "
                f"on {job.store_host}, where other machines do not reach it. List such a host from the "
                "start, or set RABIT_NETWORK_INTERFACES for rabitrun."
            )
        growth.set_hosts([host for host in hosts if host.is_here or not is_alone])

    with HostWatch(grows.look, grows.hosts, grows.interval_s, selector, change, keep):
        yield


def _allow_descriptors(job: Job) -> None:
    """Raises the soft limit of open files, if the pipes to children and agents exceed it."""
    plan, grows = job.plan, job.grows
    children = sum(len(host.numbers) for host in plan.hosts if job.starts_here(host.host))
    children += len(plan.hosts) + (0 if grows is None else 2 * (grows.most + grows.spares))
    needed = 64 + children * (7 if job.output_folder is not None else 5)
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


def _style(job: Job) -> Style:
    return Style(
        labels={
            number: _label(job, on_host.host, number)
            for on_host in job.plan.hosts
            for number in on_host.numbers
        },
        has_timestamps=job.has_timestamps,
        is_collapsed=job.is_collapsed,
        has_colour=wants_colour(1, job.environ),
        is_terminal=os.isatty(1),
        draws_bars=os.isatty(1) and os.isatty(2) and job.environ.get("TERM") != "dumb",
    )


def _label(job: Job, host: Host, number: int) -> str:
    if job.has_bare_rank_0 and number == 0:
        return ""
    name = str(number) if number < job.plan.size else job.plan.name_of(number)
    return name if len(job.plan.hosts) == 1 else f"{host}:{name}"


def _thread_note(job: Job) -> str:
    """What becomes of OMP_NUM_THREADS, for --verbose and --dry-run.

    Raises InvalidArgument if this machine cannot bind its ranks as asked.
    """
    given = job.user.get("OMP_NUM_THREADS") or job.environ.get("OMP_NUM_THREADS")
    if given:
        return f"OMP_NUM_THREADS is {given}, as set by you"
    here = HostProcessors.here()
    counts = {
        str(host.host): thread_count(0, bind(job.bind_to, len(host.places), here), here.quota)
        for host in job.plan.hosts
        if host.places and job.starts_here(host.host)
    }
    if not counts:
        return "OMP_NUM_THREADS is unset: each host sets its cores divided by its ranks"
    shown = ", ".join(f"{count} on {host}" for host, count in counts.items())
    return f"OMP_NUM_THREADS is unset: ranks get cores divided by ranks of the host ({shown})"
