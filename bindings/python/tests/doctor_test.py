"""`leafpack doctor`: real ranks on this host, and what it says when they cannot start."""

import json

import pytest
import torch

from leafpack import _cli, _doctor


def test_it_measures_and_tells_versions(capsys):
    code = _cli.main(["doctor", "--json", "--timeout", "240"])
    report = json.loads(capsys.readouterr().out)
    assert code == 0, report
    assert report["versions"]["torch"] == torch.__version__
    for backend in ("shm", "socket", "gloo"):
        times = report["backends"][backend]["us"]
        assert sorted(map(int, times)) == list(_doctor._BYTES)
        assert all(micros > 0 for micros in times.values())
    text = _doctor._text(report)
    for line in ("shm: the ranks share memory", "socket: over Unix sockets", "gloo: over TCP"):
        assert line in text


def test_a_backend_that_does_not_work_is_told(monkeypatch, capsys):
    monkeypatch.setattr(_doctor, "_BACKENDS", ("nonesuch",))
    assert _cli.main(["doctor", "--timeout", "240"]) == 1
    out = capsys.readouterr().out
    assert "nonesuch: does not work: rank 0 ended with 1: " in out and "nonesuch" in out


def test_a_fallback_is_no_success():
    found = {"us": {"4": 2.0}, "fell_back": "not all ranks share memory (why)"}
    report = {"versions": {}, "cores": 2, "ranks": 2, "backends": {"shm": found}}
    assert "shm: not all ranks share memory (why); all_reduce" in _doctor._text(report)


def test_one_rank_is_no_run(capsys):
    with pytest.raises(SystemExit):
        _cli.main(["doctor", "--ranks", "1"])
    assert "at least 2" in capsys.readouterr().err
