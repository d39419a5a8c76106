"""`leafpack flight` on records that are made up: each kind of difference, and files that are none."""

import copy
import json
from random import Random

import pytest

from leafpack import _cli, _flight


def call(number, state="done", kind="all_reduce", at=None, **more):
    at = 100.0 + number if at is None else at
    result = {"index": number, "number": number, "kind": kind, "leaves": 2, "bytes": 24, "epoch": 0}
    result |= {"digest": "ab" * 16, "state": state, "posted": at}
    if state in ("agreed", "in data", "done"):
        result["agreed"] = at + 0.001
    if state == "in data":
        result["in_data"] = at + 0.002
    if state in ("done", "failed"):
        result["ended"] = at + 0.003
    return result | more


def record(rank, calls, size=3, group="job", session="s", time=200.0):
    entry = {"group": group, "session": session, "rank": rank, "group_rank": rank, "calls": calls}
    entry |= {"ranks": list(range(size)), "backend": "gloo", "recorded": len(calls)}
    return {"leafpack_flight": 1, "reason": "request", "rank": rank, "time": time, "groups": [entry]}


def only(dumps):
    found = _flight.merge([_flight.check(dump, "test") for dump in dumps])
    assert len(found) == 1, [str(f) for f in found]
    return found[0]


def test_equal_records_have_no_difference():
    assert _flight.merge([record(r, [call(1), call(2)]) for r in range(3)]) == []


def test_a_rank_that_is_behind_is_named():
    dumps = [record(r, [call(1), call(2), call(3, "posted", name="grads")]) for r in range(2)]
    dumps.append(record(2, [call(1), call(2)]))
    finding = only(dumps)
    assert (finding.what, finding.who, finding.number) == ("behind", (2,), 3)
    text = str(finding)
    assert "rank 2 behind (rank 2: 2 calls made, the last all_reduce" in text
    assert "ranks 0 and 1 in all_reduce 'grads'" in text and "waits 97.0 s" in text


@pytest.mark.parametrize(
    "other",
    (
        {"kind": "broadcast"},
        {"name": "b"},
        {"digest": "cd" * 16},
    ),
    ids=("kind", "name", "digest"),
)
def test_ranks_that_called_different_things(other):
    dumps = [record(r, [call(1), call(2, "failed", error="differs")]) for r in range(3)]
    dumps[1]["groups"][0]["calls"][1] |= other
    finding = only(dumps)
    assert (finding.what, finding.who, finding.number) == ("mismatch", (1,), 2)
    assert "ranks 0 and 2: " in str(finding) and "rank 1: " in str(finding)
    assert next(iter(other.values())) in str(finding)


def test_a_rank_that_stands_in_the_data():
    dumps = [record(r, [call(1), call(2)]) for r in range(3)]
    dumps[1]["groups"][0]["calls"][1] = call(2, "in data")
    finding = only(dumps)
    assert (finding.what, finding.who) == ("stuck", (1,))
    assert "rank 1 in the data of all_reduce" in str(finding)
    assert "ranks 0 and 2 done with it" in str(finding)


def test_a_rank_without_a_record_is_named():
    dumps = [record(r, [call(1), call(2, "posted")]) for r in (0, 2)]
    finding = only(dumps)
    assert (finding.what, finding.who, finding.number) == ("waiting", (1,), 2)
    assert "no record of rank 1" in str(finding)
    finding = only([record(r, [call(1)]) for r in (0, 2)])
    assert (finding.what, finding.who) == ("missing", (1,))
    assert "no record of rank 1" in str(finding)


def test_a_refusal_names_who_refused_and_why():
    dumps = [record(r, [call(1, "failed", error="rank 1 refused")]) for r in range(3)]
    refusal = call(1, "failed", error="leaf 'w' overlaps itself", leaves=0, bytes=0)
    del refusal["digest"]
    dumps[1]["groups"][0]["calls"][0] = refusal
    finding = only(dumps)
    assert (finding.what, finding.who) == ("failed", (1,))
    assert "rank 1 refused all_reduce (2 leaves, 24 bytes)" in str(finding)
    assert "overlaps itself" in str(finding)


def test_what_the_group_got_over_comes_last():
    dumps = [record(r, [call(1, "failed", error="e"), call(2), call(3, "posted")]) for r in range(3)]
    dumps[2]["groups"][0]["calls"].pop()
    found = _flight.merge(dumps)
    assert [f.what for f in found] == ["behind", "failed"]
    assert not found[0].over and found[1].over
    assert "the group went on" in str(found[1])


def test_the_earliest_of_several_groups_comes_first():
    dumps = []
    for rank in range(3):
        dump = record(rank, [call(1), call(2, "posted", at=150.0)])
        dump["groups"] += record(rank, [call(1, "posted", at=120.0)], group="other")["groups"]
        dumps.append(dump)
    found = _flight.merge(dumps)
    assert [f.group for f in found] == ["other", "job"]


def test_a_record_that_was_made_earlier_is_no_difference():
    """Call 2 was agreed, so rank 2 has issued it; its record is older."""
    dumps = [record(r, [call(1), call(2)]) for r in range(2)] + [record(2, [call(1)], time=101.5)]
    assert _flight.merge(dumps) == []


def test_records_that_no_longer_begin_with_the_first_call():
    dumps = [record(0, [call(n) for n in range(5, 9)] + [call(9, "posted")])]
    dumps += [record(r, [call(n) for n in range(2, 9)]) for r in (1, 2)]
    finding = only(dumps)
    assert (finding.what, finding.who, finding.number) == ("behind", (1, 2), 9)


def test_the_newest_record_of_a_rank_counts():
    dumps = [record(r, [call(1), call(2)]) for r in range(3)]
    dumps.append(record(1, [call(1, "posted")], time=150.0))
    assert _flight.merge(dumps) == []


def test_groups_of_equal_names_and_other_sessions_are_kept_apart():
    dumps = [record(r, [call(1)], session="a") for r in range(3)]
    dumps += [record(r, [call(1, digest="ef" * 16)], session="b") for r in range(3)]
    assert _flight.merge(dumps) == []
    assert len(_flight.groups(dumps)) == 2


def test_a_rank_that_never_connected_belongs_to_the_others():
    dumps = [record(r, [call(1, "posted")]) for r in range(2)]
    dumps.append(record(2, [call(1, "posted", kind="barrier")], session=""))
    finding = only(dumps)
    assert (finding.what, finding.who) == ("mismatch", (2,))


def transfer(state, kind, peer, tag, at=110.0):
    return {"number": 1, "kind": kind, "peer": peer, "tag": tag, "state": state, "posted": at}


def test_a_receive_without_its_send():
    dumps = [record(0, [transfer("done", "send", 1, 5)], size=2)]
    dumps.append(record(1, [transfer("done", "recv", 0, 5), transfer("posted", "recv", 0, 7)], size=2))
    finding = only(dumps)
    assert (finding.what, finding.who) == ("transfer", (1,))
    assert "rank 1 in recv from rank 0 with tag 7 for 90.0 s" in str(finding)
    assert "0 sends and 1 receives" in str(finding)


def _write(folder, dumps):
    paths = []
    for i, dump in enumerate(dumps):
        path = folder / f"flight-rank{i}-{i}.json"
        path.write_text(json.dumps(dump))
        paths.append(str(path))
    return paths


def test_the_command(tmp_path, capsys):
    good = _write(tmp_path, [record(r, [call(1), call(2)]) for r in range(3)])
    assert _cli.main(["flight", *good]) == 0
    assert "no difference" in capsys.readouterr().out
    (tmp_path / "b").mkdir()
    dumps = [record(r, [call(1), call(2, "posted")]) for r in range(3)]
    dumps[1]["groups"][0]["calls"].pop()
    _write(tmp_path / "b", dumps)
    assert _cli.main(["flight", str(tmp_path / "b")]) == 1
    out = capsys.readouterr().out
    assert "3 records of ranks 0 to 2" in out
    assert "first difference: group 'job' (ranks 0 to 2), call 2: rank 1 behind" in out
    assert _cli.main(["flight", "--json", str(tmp_path / "b")]) == 1
    (finding,) = json.loads(capsys.readouterr().out)
    assert finding["what"] == "behind" and finding["who"] == [1]


def _without(dump, *keys):
    dump = copy.deepcopy(dump)
    inner = dump
    for key in keys[:-1]:
        inner = inner[key]
    del inner[keys[-1]]
    return json.dumps(dump)


GOOD = record(0, [call(1)], size=1)
BAD = {
    "empty": "",
    "cut": json.dumps(GOOD)[:-20],
    "no_json": "\x00\x01\x02",
    "a_list": "[1, 2]",
    "other_json": '{"a": 1}',
    "version": json.dumps(GOOD | {"leafpack_flight": 99}),
    "no_time": _without(GOOD, "time"),
    "groups": json.dumps(GOOD | {"groups": 3}),
    "a_group": json.dumps(GOOD | {"groups": [3]}),
    "no_calls": _without(GOOD, "groups", 0, "calls"),
    "no_state": _without(GOOD, "groups", 0, "calls", 0, "state"),
    "odd_state": json.dumps(GOOD).replace('"done"', '"flying"'),
    "foreign_rank": json.dumps(GOOD).replace('"ranks": [0]', '"ranks": [7]'),
    "deep": "[" * 100_000,
}


@pytest.mark.parametrize("text", BAD.values(), ids=BAD)
def test_a_bad_file_is_named_and_the_others_are_read(tmp_path, capsys, text):
    (good,) = _write(tmp_path, [GOOD])
    bad = tmp_path / "bad.json"
    bad.write_text(text)
    assert _cli.main(["flight", str(bad), good]) == 2
    captured = capsys.readouterr()
    assert str(bad) in captured.err and "1 record of rank 0" in captured.out
    assert _cli.main(["flight", str(bad)]) == 2
    assert capsys.readouterr().out == ""


def _mutated(thing, random):
    """`thing` with one value somewhere in it replaced, or one entry gone."""
    if isinstance(thing, (dict, list)) and thing and random.random() < 0.9:
        thing = copy.copy(thing)
        key = random.choice(list(thing) if isinstance(thing, dict) else range(len(thing)))
        if random.random() < 0.2:
            del thing[key]
        else:
            thing[key] = _mutated(thing[key], random)
        return thing
    return random.choice([None, True, -1, 10**30, 0.5, float("nan"), "", "done", [], {}, [[]], {"a": 1}])


def test_odd_records_are_refused_or_read():
    """Whatever stands in a record: it is refused by name, or merged, and nothing else."""
    base = [record(r, [call(1), call(2, "in data"), transfer("posted", "recv", 0, 7)]) for r in range(3)]
    refused = read = 0
    for seed in range(4000):
        random = Random(seed)
        dumps = list(base)
        dumps[1] = _mutated(base[1], random)
        try:
            _flight.check(dumps[1], "here")
        except _flight.BadFile as error:
            assert str(error).startswith("here"), (seed, error)
            refused += 1
        else:
            assert all(str(finding) for finding in _flight.merge(dumps)), seed
            read += 1
    assert refused > 100 and read > 100


def test_files_that_are_not_there(tmp_path, capsys):
    assert _cli.main(["flight", str(tmp_path / "none.json")]) == 2
    assert "none.json" in capsys.readouterr().err
    assert _cli.main(["flight", str(tmp_path)]) == 2
    assert "no flight-*.json" in capsys.readouterr().err


@pytest.mark.parametrize("arguments", ([], ["flight"], ["nonsense"]))
def test_wrong_usage(arguments, capsys):
    with pytest.raises(SystemExit) as end:
        _cli.main(arguments)
    assert end.value.code == 2
    assert "usage: leafpack" in capsys.readouterr().err


def test_ranks_read_well():
    assert _flight.name_ranks([3]) == "rank 3"
    assert _flight.name_ranks([2, 1]) == "ranks 1 and 2"
    assert _flight.name_ranks([0, 1, 2, 3]) == "ranks 0 to 3"
    assert _flight.name_ranks([0, 2, 5]) == "ranks 0, 2 and 5"
