"""What the ranks of the tests do that start their own processes: one function each, run by spawn.py."""

import atexit
import datetime
import faulthandler
import glob
import os
import signal
import sys
import threading
import time

import torch
import torch.distributed as dist

import leafpack

RANK = int(os.environ["RANK"])
SIZE = int(os.environ["WORLD_SIZE"])
LARGE = 200_000  # elements; a small tree has 3


def init(timeout=120):
    torch.set_num_threads(1)
    dist.init_process_group("gloo", timeout=datetime.timedelta(seconds=timeout))


def finish():
    dist.barrier()
    dist.destroy_process_group()


def check_usable(group=None, size=SIZE):
    for numel in (3, 40_000):
        tree = {"x": torch.ones(numel)}
        leafpack.all_reduce(tree, group=group)
        assert tree["x"].unique().tolist() == [size]


def interrupt_after(seconds):
    """Presses Ctrl-C in this process."""
    threading.Timer(seconds, lambda: os.kill(os.getpid(), signal.SIGINT)).start()


# Exits.


def exit_after_last_call(numel):
    init()
    for _ in range(3):
        tree = {"x": torch.ones(int(numel))}
        leafpack.all_reduce(tree)
        assert tree["x"][0].item() == SIZE
    sys.exit(11 + RANK)


def exit_after_all_was_dropped(numel):
    """Nothing is left of a call but the call. It ends while Python is whole: its thread takes Python's lock to free
    the tensors, and is ended, and the process with it, where Python goes down meanwhile."""
    init()
    group = leafpack.Group.around().new_group(range(SIZE))
    check_usable(group)
    if RANK == 0:
        leafpack.all_reduce({"x": torch.ones(int(numel))}, group=group, async_op=True)
        handler = leafpack._groups._shut_down_all
        atexit.unregister(handler)
        atexit.register(_exit_if_a_worker_is_left)  # runs after
        atexit.register(handler)
    else:
        time.sleep(20)  # then the call would fail


def _exit_if_a_worker_is_left():
    for _ in range(30):
        threads = [open(path).read().strip() for path in glob.glob("/proc/self/task/*/comm")]
        if "leafpack-work" not in threads:
            return
        time.sleep(0.1)
    print(threads, flush=True)
    os._exit(9)


def fork_with_work_in_flight(numel):
    """A child cannot finish a call of its parent: its handle says so and ends, and the parent goes on."""
    init()
    check_usable()
    tree = {"x": torch.ones(int(numel))}
    if RANK == 0:
        work = leafpack.all_reduce(tree, async_op=True)
        child = os.fork()
        if child == 0:
            signal.alarm(100)
            for handle in (work, list(work)[-1]):
                assert handle.is_completed()
                try:
                    handle.wait()
                except RuntimeError as error:
                    assert "forked" in str(error), error
                else:
                    raise AssertionError("a child waited for a call of its parent")
            work.cancel()
            del work, handle
            os._exit(5)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 5
        dist.barrier()
        work.wait()
    else:
        dist.barrier()  # so that the call is in flight as long as the child lives
        leafpack.all_reduce(tree)
    assert tree["x"].unique().tolist() == [SIZE]
    check_usable()
    finish()


def exit_with_work_in_flight(numel):
    """All ranks start a call and leave without waiting for it."""
    init()
    check_usable()
    leafpack.all_reduce({"x": torch.ones(int(numel))}, async_op=True)
    sys.exit(11 + RANK)


def exit_with_work_that_never_ends(numel):
    """Rank 0 starts a call that no other rank makes, and leaves."""
    init()
    check_usable()
    if RANK == 0:
        global kept
        kept = leafpack.all_reduce({"x": torch.ones(int(numel))}, async_op=True)
    else:
        time.sleep(1)
    sys.exit(11 + RANK)


def _child(rank, port, numel):
    os.environ["MASTER_PORT"] = str(port)
    dist.init_process_group("gloo", rank=rank, world_size=2)
    tree = {"x": torch.ones(numel)}
    leafpack.all_reduce(tree)
    assert tree["x"][0].item() == 2
    sys.exit(21 + rank)


def children_of_multiprocessing(numel):
    """Children of multiprocessing skip atexit. Run as one rank that starts two."""
    import multiprocessing

    context = multiprocessing.get_context("spawn")
    port = os.environ["MASTER_PORT"]
    children = [context.Process(target=_child, args=(r, port, int(numel))) for r in range(2)]
    for child in children:
        child.start()
    for child in children:
        child.join(120)
    assert [child.exitcode for child in children] == [21, 22]


# Ctrl-C.


def interrupt(numel, how):
    """Rank 0 is interrupted while it waits for the others, who come later."""
    init()
    check_usable()
    tree = {"x": torch.ones(int(numel))}
    if RANK == 0:
        started = time.monotonic()
        interrupt_after(0.5)
        try:
            if how == "sync":
                leafpack.all_reduce(tree)
            elif how == "async":
                leafpack.all_reduce(tree, async_op=True).wait()
            else:
                list(leafpack.all_reduce(tree, async_op=True))[-1].wait()
        except KeyboardInterrupt:
            pass
        else:
            raise AssertionError("the wait was not interrupted")
        assert time.monotonic() - started < 30
    else:
        time.sleep(3)
        try:
            leafpack.all_reduce(tree)
        except leafpack.DeadlineError as error:
            assert error.ranks == (0,), error.ranks
            print(error)
        else:
            raise AssertionError("the call had been given up")
    assert tree["x"].unique().tolist() == [1]
    check_usable()
    finish()


class Alarm(Exception):
    pass


def handler_that_raises(numel):
    init()
    check_usable()
    tree = {"x": torch.ones(int(numel))}
    if RANK == 0:

        def handler(signum, frame):
            raise Alarm("ringing")

        signal.signal(signal.SIGALRM, handler)
        signal.setitimer(signal.ITIMER_REAL, 0.5)
        try:
            leafpack.all_reduce(tree)
        except Alarm as alarm:
            assert str(alarm) == "ringing"
        else:
            raise AssertionError("the handler's exception was lost")
    else:
        time.sleep(3)
        try:
            leafpack.all_reduce(tree)
        except leafpack.DeadlineError:
            pass
    check_usable()
    finish()


def handler_that_returns():
    """A signal that raises nothing does not disturb a wait."""
    init()
    check_usable()
    rings = []
    if RANK == 0:
        signal.signal(signal.SIGALRM, lambda signum, frame: rings.append(signum))
        signal.setitimer(signal.ITIMER_REAL, 0.2, 0.2)
    else:
        time.sleep(2)
    check_usable()
    signal.setitimer(signal.ITIMER_REAL, 0)
    assert RANK != 0 or rings
    finish()


# Every collective.


def _collective(name, numel, **arguments):
    """One call of a collective on a tree of `numel` ones; returns its result, or its work."""
    tree = {"x": torch.ones(int(numel))}
    other = (RANK + 1) % SIZE
    return {
        "all_reduce": lambda: leafpack.all_reduce(tree, **arguments),
        "reduce": lambda: leafpack.reduce(tree, 0, **arguments),
        "reduce_scatter": lambda: leafpack.reduce_scatter(
            [{"x": torch.ones(int(numel))} for _ in range(SIZE)], **arguments
        ),
        "broadcast": lambda: leafpack.broadcast(tree if RANK == 1 else None, 1, **arguments),
        "all_gather": lambda: leafpack.all_gather(tree, **arguments),
        "gather": lambda: leafpack.gather(tree, **arguments),
        "gather_and_stack": lambda: leafpack.gather_and_stack(tree, **arguments),
        "scatter": lambda: leafpack.scatter(
            None, [tree] * SIZE if RANK == 1 else None, 1, **arguments
        ),
        "all_to_all": lambda: leafpack.all_to_all([tree] * SIZE, **arguments),
        "barrier": lambda: leafpack.barrier(**arguments),
        "all_gather_bytes": lambda: leafpack.all_gather_bytes(b"x" * int(numel), **arguments),
        "send": lambda: leafpack.send(tree, other, **arguments),
        "recv": lambda: leafpack.recv(None, other, **arguments),
        "isend": lambda: leafpack.isend(tree, other, **arguments),
        "irecv": lambda: leafpack.irecv(None, other, **arguments),
    }[name]()


TRANSFERS = ("send", "recv", "isend", "irecv")
NO_HANDLE = ("barrier", "send", "recv")


def interrupt_each(*names):
    """Rank 0 is interrupted in each of these calls, in each form, while the others are not there yet."""
    init()
    check_usable()
    for name in names:
        for how in ("sync", "async"):
            if how == "async" and name in NO_HANDLE or how == "sync" and name in ("isend", "irecv"):
                continue
            numel = LARGE if how == "sync" else 3
            dist.barrier()
            if RANK == 0:
                started = time.monotonic()
                interrupt_after(0.2)
                try:
                    if how == "sync":
                        _collective(name, numel)
                    else:
                        arguments = {} if name in TRANSFERS else {"async_op": True}
                        _collective(name, numel, **arguments).result()
                except KeyboardInterrupt:
                    pass
                else:
                    raise AssertionError(f"{name}, {how}: the wait was not interrupted")
                assert time.monotonic() - started < 60, (name, how)
                dist.barrier()
            else:
                dist.barrier()
                if name not in TRANSFERS:
                    try:
                        _collective(name, numel)
                    except leafpack.DeadlineError as error:
                        assert error.ranks == (0,), (name, how, error.ranks)
                    else:
                        raise AssertionError(f"{name}, {how}: the call had been given up")
            check_usable()
    finish()


def exit_with_each_in_flight(*names):
    """Every rank starts each of these calls and leaves without waiting for them."""
    init()
    check_usable()
    kept = []
    for name in names:
        for numel in (3, LARGE):
            arguments = {} if name in TRANSFERS else {"async_op": True}
            kept.append(_collective(name, numel, **arguments))
    if RANK == 0:
        del kept
    sys.exit(11 + RANK)


def exit_alone_with(name, numel):
    """Rank 0 starts a call that no other rank makes, and leaves."""
    init()
    check_usable()
    if RANK == 0:
        global alone
        alone = _collective(name, numel, **({} if name in TRANSFERS else {"async_op": True}))
    else:
        time.sleep(1)
    sys.exit(11 + RANK)


def late_or_killed(how, who, *names):
    """Rank `who` comes late to each call, or dies before the first: the others learn who it was."""
    who = int(who)
    init()
    check_usable()
    dist.barrier()
    if RANK == who and how == "killed":
        time.sleep(1)
        os.kill(os.getpid(), signal.SIGKILL)
    for place, name in enumerate(names):
        numel = LARGE if place % 2 else 3
        started = time.monotonic()
        try:
            if RANK == who:
                time.sleep(4)
            _collective(name, numel, timeout=60 if how == "killed" or RANK == who else 1)
        except leafpack.PeerLostError as error:
            assert how == "killed" and error.ranks == (who,), (name, error)
        except leafpack.DeadlineError as error:
            assert how == "late", (name, error)
            if RANK != who:
                assert who in error.ranks and RANK not in error.ranks, (name, error)
            else:
                assert error.ranks and who not in error.ranks, (name, error)
        else:
            raise AssertionError(f"{name} had no right to succeed")
        assert time.monotonic() - started < 60, name
        if how == "late":
            check_usable()
    if how == "late":
        finish()
    os._exit(0)  # after a death not even a barrier is possible


# Deadlines.


def late(numel, who):
    """Rank `who` comes after the deadline of the others."""
    who = int(who)
    init()
    check_usable()
    tree = {"x": torch.ones(int(numel))}
    dist.barrier()
    if RANK == who:
        time.sleep(8)
    started = time.monotonic()
    try:
        leafpack.all_reduce(tree, timeout=datetime.timedelta(seconds=3) if RANK != who else 60)
    except leafpack.DeadlineError as error:
        assert isinstance(error, TimeoutError)
        assert error.tree_unchanged
        if RANK != who:
            # A busy machine may have held up another rank as well.
            assert who in error.ranks and RANK not in error.ranks, (error.ranks, str(error))
            assert time.monotonic() - started < 30
        else:
            assert error.ranks and who not in error.ranks, error.ranks
            assert "given up" in str(error), error
    else:
        raise AssertionError("the call had no right to succeed")
    assert tree["x"].unique().tolist() == [1]
    check_usable()
    finish()


def late_before_the_first_call():
    """The same when the late rank has never used the group: there is no channel to it yet."""
    init()
    tree = {"x": torch.ones(3)}
    dist.barrier()
    if RANK == SIZE - 1:
        time.sleep(6)
    try:
        leafpack.all_reduce(tree, timeout=2 if RANK != SIZE - 1 else 60)
    except leafpack.DeadlineError as error:
        assert error.ranks, error
        if RANK != SIZE - 1:
            assert SIZE - 1 in error.ranks, error.ranks
    else:
        raise AssertionError("the call had no right to succeed")
    assert tree["x"].tolist() == [1] * 3
    time.sleep(1)
    check_usable()
    finish()


def a_wait_that_times_out():
    """The timeout of a wait ends the wait, not the call."""
    init()
    check_usable()
    tree = {"x": torch.ones(LARGE)}
    if RANK != 0:
        time.sleep(3)
    work = leafpack.all_reduce(tree, async_op=True)
    if RANK == 0:
        try:
            work.wait(timeout=0.3)
        except leafpack.DeadlineError:
            assert not work.is_completed()
        else:
            raise AssertionError("the other ranks had not even begun")
    work.wait()
    assert tree["x"].unique().tolist() == [SIZE]
    finish()


# Death.


def killed(numel, who):
    who = int(who)
    init()
    check_usable()
    if RANK == who:
        time.sleep(1)
        os.kill(os.getpid(), signal.SIGKILL)
    tree = {"x": torch.ones(int(numel))}
    for attempt in range(2):
        started = time.monotonic()
        try:
            leafpack.all_reduce(tree)
        except leafpack.PeerLostError as error:
            assert isinstance(error, ConnectionError)
            assert error.ranks == (who,), error.ranks
        else:
            raise AssertionError("a rank is dead")
        assert time.monotonic() - started < 30
    assert tree["x"].unique().tolist() == [1]
    os._exit(0)  # not even a barrier is possible any more


# Groups.


def rank_outside():
    init()
    inner = dist.new_group([0])
    if RANK == 0:
        check_usable(inner, 1)
    else:
        try:
            leafpack.all_reduce({"x": torch.ones(1)}, group=inner)
        except ValueError as error:
            assert f"rank {RANK}" in str(error) and "not a member" in str(error)
        else:
            raise AssertionError("this rank is no member")
    check_usable()
    finish()


def no_group():
    try:
        leafpack.all_reduce({"x": torch.ones(1)})
    except ValueError as error:
        assert "init_process_group" in str(error)
    else:
        raise AssertionError("there is no group")
    for group in ("gloo", 3, object()):
        try:
            leafpack.all_reduce({"x": torch.ones(1)}, group=group)
        except TypeError as error:
            assert "group" in str(error)
        else:
            raise AssertionError("that is no group")


def a_second_life():
    """torch.distributed is shut down and set up again, with another store."""
    for _ in range(2):
        init()
        check_usable()
        finish()
        os.environ["MASTER_PORT"] = str(int(os.environ["MASTER_PORT"]) + 1)


def own_group(kind, *arguments):
    if kind == "environment":
        group = leafpack.Group.from_environment(timeout=120)
    else:
        group = leafpack.Group.from_file(arguments[0], RANK, SIZE, timeout=120)
    assert (group.rank, group.size, group.global_rank) == (RANK, SIZE, RANK)
    assert group.backend == "gloo" and group.timeout == 120
    check_usable(group)
    group.shutdown(timeout=10)
    try:
        leafpack.all_reduce({"x": torch.ones(1)}, group=group)
    except RuntimeError:
        pass
    else:
        raise AssertionError("the group was shut down")


def sub_groups():
    """Sub-groups by list and by colour, of an own group and of torch's."""
    init()
    store = dist.distributed_c10d._get_default_store()
    own = leafpack.Group.from_store(store, RANK, SIZE, prefix="own", timeout=120)
    for parent in (own, leafpack.Group.around()):
        members = list(range(0, SIZE, 2))
        group = parent.new_group(members, timeout=60)
        if RANK in members:
            assert (group.rank, group.size, group.timeout) == (members.index(RANK), len(members), 60)
            assert group.global_ranks == members and group
            check_usable(group, len(members))
        else:
            assert not group and group.ranks == tuple(members)
            for use in (lambda: check_usable(group), lambda: group.rank, lambda: group.shutdown()):
                try:
                    use()
                except ValueError as error:
                    assert f"rank {RANK} is not a member" in str(error), error
                else:
                    raise AssertionError("this rank is no member")
        # By its members alone, with other groups in between.
        if RANK > 0:
            last = parent.new_group(range(SIZE - 1, 0, -1), name="without rank 0")
            if RANK == 1:
                check_usable(parent.new_group([1]), 1)
            check_usable(last, SIZE - 1)
        halves = parent.split(RANK % 2, key=-RANK)
        ranks = [r for r in range(SIZE) if r % 2 == RANK % 2]
        assert halves.global_ranks == ranks[::-1] and halves.timeout == parent.timeout
        check_usable(halves, len(ranks))
        alone = parent.split(None if RANK == 0 else 1)
        assert bool(alone) == (RANK != 0)
        if alone:
            check_usable(alone, SIZE - 1)
        for ranks, text in (([0, 0], "stands twice"), ([0, SIZE], f"rank {SIZE}"), ([], "no ranks")):
            try:
                parent.new_group(ranks)
            except ValueError as error:
                assert text in str(error) or RANK != 0, error
            else:
                assert RANK != 0 and ranks == [0, 0]
        check_usable(parent)
    finish()


def from_url(url):
    """Two groups at one URL, used in the other order."""
    groups = [leafpack.Group.from_url(url, RANK, SIZE, timeout=120) for _ in range(2)]
    for group in groups[::-1]:
        assert (group.rank, group.size) == (RANK, SIZE)
        check_usable(group)
    if url == "env://":
        check_usable(leafpack.Group.from_url(timeout=120))


def interrupted_meeting(url):
    """Nobody answers at `url`: Ctrl-C ends the wait, and so does its deadline."""
    interrupt_after(0.2)
    started = time.monotonic()
    try:
        leafpack.Group.from_url(url, 1, 2)
    except KeyboardInterrupt:
        pass
    else:
        raise AssertionError("not interrupted")
    try:
        leafpack.Group.from_url(url, 1, 2, timeout=0.5)
    except leafpack.DeadlineError as error:
        assert url in str(error), error
    else:
        raise AssertionError("nobody was there")
    assert time.monotonic() - started < 60


def refused_split():
    """A colour or key that is no number is told to all, and the next split works."""
    init()
    parent = leafpack.Group.around()
    for bad in (
        {"color": "x"},
        {"color": 2**40},
        {"color": 1.5},
        {"color": 0, "key": "y"},
        {"color": 0, "timeout": -1},
    ):
        odd = RANK == 1
        try:
            parent.split(**(bad if odd else {"color": 0}))
        except leafpack.PeerRefusedError as error:
            assert not odd and "rank 1" in str(error), error
        except (TypeError, ValueError) as error:
            assert odd and next(reversed(bad)) in str(error), error
        else:
            raise AssertionError("split")
        check_usable(parent.split(0))


def killed_at(url):
    """Meets the others and dies, so that nothing is cleaned up."""
    group = leafpack.Group.from_url(url, RANK, SIZE, timeout=120)
    check_usable(group)
    os.kill(os.getpid(), signal.SIGKILL)


def shutdown_with_work(numel, size_of_wait):
    """A group is shut down, or dropped, while a call is in flight that no other rank makes."""
    init()
    parent = leafpack.Group.around()
    groups = [parent.new_group(range(SIZE)) for _ in range(2)]
    for group in groups:
        check_usable(group)
    if RANK == 0:
        trees = [{"x": torch.ones(int(numel))} for _ in groups]
        works = [
            leafpack.all_reduce(t, group=g, async_op=True) for t, g in zip(trees, groups)
        ]
        started = time.monotonic()
        groups[0].shutdown(timeout=float(size_of_wait))
        assert time.monotonic() - started < 60
        for work in works[:1]:
            try:
                work.wait(timeout=60)
            except (leafpack.Error, RuntimeError) as error:
                print(error)
            else:
                raise AssertionError("no other rank made this call")
        del group, groups, works  # the second group goes with its last handle
    else:
        time.sleep(2)
    dist.barrier()
    check_usable(parent)
    finish()


def shutdown_drains(numel):
    """What is in flight on all ranks ends well when the groups are shut down."""
    init()
    group = leafpack.Group.around().new_group(range(SIZE))
    trees = [{"x": torch.ones(int(numel))} for _ in range(20)]
    works = [leafpack.all_reduce(tree, group=group, async_op=True) for tree in trees]
    group.shutdown(timeout=100)
    for work, tree in zip(works, trees):
        work.wait()
        assert tree["x"].unique().tolist() == [SIZE]
    finish()


# The flight recorder.


def flight(folder, what):
    """The ranks differ as `what` says; each leaves a record in `folder`."""
    leafpack.flight_on_error(folder)
    init()
    for numel in (3, LARGE):
        leafpack.all_reduce({"x": torch.ones(numel)}, name="first")
    last = RANK == SIZE - 1
    try:
        if what == "missing":  # the last rank does not come, and lives
            if last:
                leafpack.flight_dump(folder)
                time.sleep(3)
            else:
                leafpack.all_reduce({"x": torch.ones(3)}, name="second", timeout=1)
        elif what == "mismatch":
            leafpack.all_reduce({"x": torch.ones(3 + last)}, name="second")
        elif what == "killed":
            if last:
                os.kill(os.getpid(), signal.SIGKILL)
            leafpack.all_reduce({"x": torch.ones(3)}, name="second")
        elif what == "refused":
            leafpack.all_reduce({"x": torch.ones(3), "y": None if last else torch.ones(1)})
        else:
            leafpack.flight_dump(folder)
    except (leafpack.Error, ValueError, TypeError) as error:
        print(error)
    os._exit(0)


def flight_signal(folder):
    """Rank 0 is stuck in a call; a signal makes it tell where."""
    init()
    check_usable()
    leafpack.flight_on_signal(signal.SIGUSR1, folder)
    pids = [torch.zeros(1, dtype=torch.int64) for _ in range(SIZE)]
    dist.all_gather(pids, torch.tensor([os.getpid()]))
    if RANK == 0:
        tree = {"x": torch.ones(3)}
        leafpack.all_reduce(tree, name="stuck", timeout=100)
        assert tree["x"].tolist() == [SIZE] * 3
    else:
        path = f"{folder}/flight-rank0-{pids[0].item()}.json"
        deadline = time.monotonic() + 60
        while RANK == 1:
            os.kill(pids[0].item(), signal.SIGUSR1)
            time.sleep(0.2)
            text = open(path).read() if os.path.exists(path) else ""
            if '"stuck"' in text:
                print(text)
                break
            assert time.monotonic() < deadline, "no record"
        leafpack.all_reduce({"x": torch.ones(3)}, name="stuck", timeout=100)
    record = leafpack.flight_record()
    (group,) = record["groups"]
    assert group["rank"] == RANK and group["ranks"] == list(range(SIZE))
    assert [call["state"] for call in group["calls"]] == ["done"] * 3, group["calls"]
    assert group["calls"][-1]["name"] == "stuck" and group["calls"][0]["kind"] == "all_reduce"
    finish()


# torch.distributed over its backend shm.


def torch_shm_killed(kind, who):
    who = int(who)
    torch.set_num_threads(1)
    dist.init_process_group("shm", timeout=datetime.timedelta(seconds=120))
    tensor = torch.ones(600_001)
    dist.all_reduce(tensor)
    if RANK == who:
        time.sleep(0.5)
        os.kill(os.getpid(), signal.SIGKILL)
    started = time.monotonic()
    for attempt in range(2):
        try:
            if kind == "all_reduce":
                dist.all_reduce(tensor)
            elif kind == "flying":
                dist.all_reduce(tensor, async_op=True).get_future().wait()
            else:
                dist.recv(tensor, who)
        except RuntimeError as error:
            assert f"group rank {who} is gone" in str(error), error
            assert f"group rank {RANK} of {SIZE}" in str(error), error
        else:
            raise AssertionError("a rank is dead")
    assert time.monotonic() - started < 30
    os._exit(0)


def torch_shm_missing():
    """The last rank makes no call."""
    torch.set_num_threads(1)
    dist.init_process_group("shm", timeout=datetime.timedelta(seconds=120))
    dist.barrier()
    short = dist.new_group(backend="shm", timeout=datetime.timedelta(seconds=2))
    if RANK < SIZE - 1:
        for call, text in [
            (lambda: dist.recv(torch.ones(1), SIZE - 1, group=short, tag=4),
             f"no message with tag 4 from group rank {SIZE - 1}"),
            (lambda: dist.barrier(group=short), f"group rank {SIZE - 1} did not call it in time"),
            (lambda: dist.barrier(group=short), "barrier number 1 failed before"),
        ]:
            try:
                call()
            except dist.DistBackendError as error:
                assert text in str(error), error
            else:
                raise AssertionError(text)
    finish()


if __name__ == "__main__":
    faulthandler.enable()
    globals()[sys.argv[1]](*sys.argv[2:])
