"""Programs whose ranks are interrupted, late or killed."""

import datetime
import os
import signal
import time

import torch
import torch.distributed as dist

import leafpack
from rank_program import (
    LARGE,
    NO_HANDLE,
    RANK,
    SIZE,
    TRANSFERS,
    check_usable,
    collective,
    finish,
    init,
    interrupt_after,
    leave_together,
)


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
                        collective(name, numel)
                    else:
                        arguments = {} if name in TRANSFERS else {"async_op": True}
                        collective(name, numel, **arguments).result()
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
                        collective(name, numel)
                    except leafpack.DeadlineError as error:
                        assert error.ranks == (0,), (name, how, error.ranks)
                    else:
                        raise AssertionError(f"{name}, {how}: the call had been given up")
            check_usable()
    finish()


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
            collective(name, numel, timeout=60 if how == "killed" or RANK == who else 1)
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
    else:
        leave_together(who)


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
    leave_together(who)
