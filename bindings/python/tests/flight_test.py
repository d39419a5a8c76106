"""Flight records of real ranks, and what `leafpack flight` says of them."""

import json
import os
import signal
import subprocess
import sys

import pytest

import spawn
from leafpack import _flight

ranks = pytest.mark.parametrize("size", (2, 3, 4))


def _findings(folder):
    return _flight.merge([_flight.load(folder / name) for name in sorted(os.listdir(folder))])


@ranks
def test_equal_ranks(tmp_path, size):
    spawn.succeed("flight", size=size, arguments=[tmp_path, "nothing"])
    assert len(os.listdir(tmp_path)) == size
    assert _findings(tmp_path) == []
    record = _flight.load(tmp_path / os.listdir(tmp_path)[0])
    (group,) = record["groups"]
    small, large = group["calls"]
    assert (small["name"], small["bytes"], small["leaves"], small["frame"]) == ("first", 12, 1, True)
    assert large["bytes"] == 800_000 and "frame" not in large
    assert large["posted"] <= large["agreed"] <= large["in_data"] <= large["ended"]


@ranks
def test_a_rank_that_does_not_come(tmp_path, size):
    spawn.succeed("flight", size=size, arguments=[tmp_path, "missing"])
    finding = _findings(tmp_path)[0]
    assert (finding.what, finding.who, finding.number) == ("behind", (size - 1,), 3)
    assert "all_reduce 'second'" in str(finding) and f"rank {size - 1} behind" in str(finding)


@ranks
def test_a_rank_that_calls_something_else(tmp_path, size):
    spawn.succeed("flight", size=size, arguments=[tmp_path, "mismatch"])
    finding = _findings(tmp_path)[0]
    assert (finding.what, finding.number) == ("mismatch", 3)
    assert "12 bytes" in str(finding) and "16 bytes" in str(finding)
    if size > 2:
        assert finding.who == (size - 1,)


@ranks
def test_a_rank_that_was_killed(tmp_path, size):
    ended = spawn.run("flight", size=size, arguments=[tmp_path, "killed"])
    assert [end.code for end in ended] == [0] * (size - 1) + [-signal.SIGKILL], ended
    found = _findings(tmp_path)
    assert any(f"no record of rank {size - 1}" in str(f) for f in found), [str(f) for f in found]
    assert found[0].number == 3 or found[0].what == "missing"


@ranks
def test_a_rank_that_refused(tmp_path, size):
    spawn.succeed("flight", size=size, arguments=[tmp_path, "refused"])
    finding = _findings(tmp_path)[0]
    assert (finding.what, finding.who, finding.number) == ("failed", (size - 1,), 3)
    assert f"rank {size - 1} refused all_reduce" in str(finding)


def test_a_signal_to_a_rank_that_is_stuck(tmp_path):
    out = spawn.succeed("flight_signal", size=3, arguments=[tmp_path])[1]
    record = _flight.check(json.loads(out), "rank 1 saw")
    assert record["reason"] == f"signal {int(signal.SIGUSR1)}"
    call = record["groups"][0]["calls"][-1]
    assert (call["name"], call["state"]) == ("stuck", "posted")
    (finding,) = _flight.merge([record])
    assert (finding.what, finding.who) == ("waiting", (1, 2)) and "'stuck'" in str(finding)


def test_the_program(tmp_path):
    """`python -m leafpack`, as a user types it."""
    spawn.succeed("flight", size=2, arguments=[tmp_path, "mismatch"])
    result = subprocess.run(
        [sys.executable, "-m", "leafpack", "flight", str(tmp_path)], capture_output=True, text=True
    )
    assert result.returncode == 1, result.stderr
    assert "call 3: the ranks called different things" in result.stdout
