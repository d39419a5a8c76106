"""Reads the flight records of several ranks and names the first difference between them.

Uses the standard library alone. docs/flight.md has the format of the files.
"""

from __future__ import annotations

import dataclasses
import json
import pathlib
from collections.abc import Iterable, Sequence

VERSION = 1
_STATES = ("posted", "agreed", "in data", "done", "failed")
_MANY = 8  # findings of one group that are told
_OPTIONAL = {"name": str, "digest": str, "error": str, "peer": int, "tag": int}
_OPTIONAL |= {"leaves": int, "bytes": int}
_OPTIONAL |= {"agreed": (int, float), "in_data": (int, float), "ended": (int, float)}


class BadFile(ValueError):
    """A file that is no flight record; the text names it."""


@dataclasses.dataclass
class Finding:
    """One difference between ranks, or one place where they stand."""

    group: str
    ranks: tuple[int, ...]  # of the job; all members of the group
    number: int  # of the call within the group; 0 for transfers
    what: str  # "mismatch", "behind", "failed", "stuck", "waiting", "missing", "transfer"
    who: tuple[int, ...]  # the ranks that it is about
    text: str
    time: float  # when the first rank came there
    over: bool = False  # the group went on afterwards

    def __str__(self):
        where = f"group '{self.group}' ({name_ranks(self.ranks)})"
        call = f", call {self.number}" if self.number else ""
        return f"{where}{call}: {self.text}" + (" (the group went on)" if self.over else "")


def name_ranks(ranks: Iterable[int]) -> str:
    """ "rank 3", "ranks 1 and 2", "ranks 0 to 3", "ranks 0, 2 and 5"."""
    ranks = sorted(set(ranks))
    if not ranks:
        return "no rank"
    if len(ranks) == 1:
        return f"rank {ranks[0]}"
    if len(ranks) > 2 and ranks[-1] - ranks[0] == len(ranks) - 1:
        return f"ranks {ranks[0]} to {ranks[-1]}"
    return f"ranks {', '.join(map(str, ranks[:-1]))} and {ranks[-1]}"


# Reading.


def _want(thing, key, kind, where):
    value = thing.get(key) if isinstance(thing, dict) else None
    if not isinstance(value, kind) or isinstance(value, bool) and kind is not bool:
        raise BadFile(f"{where}: '{key}' is missing or of the wrong type")
    return value


def check(dump, where: str) -> dict:
    """Returns `dump` if it is a flight record. `where` names it in errors."""
    if not isinstance(dump, dict) or "leafpack_flight" not in dump:
        raise BadFile(f"{where}: not a flight record of leafpack")
    if dump["leafpack_flight"] != VERSION:
        raise BadFile(
            f"{where}: version {dump['leafpack_flight']!r} of the format; this leafpack reads {VERSION}"
        )
    _want(dump, "time", (int, float), where)
    for i, group in enumerate(_want(dump, "groups", list, where)):
        here = f"{where}: group {i}"
        for key in ("group", "session"):
            _want(group, key, str, here)
        rank = _want(group, "rank", int, here)
        ranks = _want(group, "ranks", list, here)
        if not all(type(r) is int for r in ranks) or rank not in ranks:
            raise BadFile(f"{here}: rank {rank} is not among its ranks")
        for call in _want(group, "calls", list, here):
            _want(call, "number", int, here)
            _want(call, "kind", str, here)
            _want(call, "posted", (int, float), here)
            if _want(call, "state", str, here) not in _STATES:
                raise BadFile(f"{here}: no such state: {call['state']!r}")
            for key, kind in _OPTIONAL.items():
                if key in call:
                    _want(call, key, kind, here)
    return dump


def load(path) -> dict:
    """Reads one file. Raises BadFile, which names it."""
    try:
        text = pathlib.Path(path).read_bytes()
    except OSError as error:
        raise BadFile(f"{path}: {error.strerror}") from None
    try:
        dump = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise BadFile(f"{path}: not JSON: {error}") from None
    return check(dump, str(path))


# Comparing.


def _describe(call) -> str:
    name = f" '{call['name']}'" if call.get("name") else ""
    size = ""
    if call.get("digest"):
        size = f" ({call.get('leaves', 0)} leaves, {call.get('bytes', 0)} bytes)"
    return f"{call['kind']}{name}{size}"


def _is_transfer(call) -> bool:
    return "peer" in call or "tag" in call


def _by_value(ranks, value) -> str:
    """Which ranks have which value: "ranks 0 and 1: x; rank 2: y"."""
    sides: dict = {}
    for rank in ranks:
        sides.setdefault(value(rank), []).append(rank)
    return "; ".join(f"{name_ranks(who)}: {text}" for text, who in sides.items())


def _tell_apart(calls):
    """What each rank called, with the digests where nothing else tells the sides apart."""
    texts = {rank: _describe(call) for rank, call in calls.items()}
    if len(set(texts.values())) > 1:
        return texts
    return {rank: f"{text} with digest {calls[rank].get('digest')}" for rank, text in texts.items()}


class _Group:
    """The records of one group, by rank of the job."""

    def __init__(self, key):
        self.name, self.ranks, self.session = key
        self.dumps: dict[int, tuple[dict, dict]] = {}

    def add(self, dump, group):
        known = self.dumps.get(group["rank"])
        if known is None or known[0]["time"] <= dump["time"]:
            self.dumps[group["rank"]] = (dump, group)

    def finding(self, number, what, who, text, time, over=False):
        return Finding(self.name, self.ranks, number, what, tuple(sorted(who)), text, time, over)

    def findings(self) -> list[Finding]:
        found = self._collectives() + self._transfers()
        return found[:_MANY]

    def _collectives(self):
        calls = {}  # rank -> number -> call
        for rank, (_, group) in self.dumps.items():
            calls[rank] = {c["number"]: c for c in group["calls"] if not _is_transfer(c)}
        absent = set(self.ranks) - set(self.dumps)
        last = {rank: max(of, default=0) for rank, of in calls.items()}
        top = max(last.values(), default=0)
        if absent:
            reached = name_ranks(self.dumps)
            yield_missing = self.finding(
                0,
                "missing",
                absent,
                f"no record of {name_ranks(absent)}; {reached} reached call {top}",
                max((d["time"] for d, _ in self.dumps.values()), default=0.0),
            )
        # Where a rank's record begins: what lies before was overwritten.
        begin = max(
            (min(of) for rank, of in calls.items() if of and min(of) > 1),
            default=1,
        )
        found = []
        for number in sorted({number for of in calls.values() for number in of if number >= begin}):
            here = {rank: of[number] for rank, of in calls.items() if number in of}
            finding = self._at(number, here, calls, last, absent, number < top)
            if finding is not None:
                found.append(finding)
        if absent and not any(f.what in ("behind", "waiting") and not f.over for f in found):
            found.append(yield_missing)
        return found

    def _at(self, number, here, calls, last, absent, more):
        first = min(call["posted"] for call in here.values())
        latest = max(dump["time"] for dump, _ in self.dumps.values())
        kinds = {(call["kind"], call.get("name", "")) for call in here.values()}
        digests = {call["digest"] for call in here.values() if call.get("digest")}
        refused = {rank for rank, c in here.items() if c["state"] == "failed" and "digest" not in c}
        agreed = {rank for rank, c in here.items() if "agreed" in c}
        behind = {rank for rank, number_of in last.items() if number_of < number}
        # All ranks are in a call that was agreed: who does not show it was recorded earlier.
        if agreed:
            behind = set()
        whole = {rank: call for rank, call in here.items() if rank not in refused}
        # A call that was refused tells its kind, not its name.
        if len({kind for kind, _ in kinds}) > 1 or (
            len({(c["kind"], c.get("name", "")) for c in whole.values()}) > 1 or len(digests) > 1
        ):
            texts = _tell_apart(here)
            sides = _by_value(sorted(here), texts.__getitem__)
            fewest = min(
                set(texts.values()),
                key=lambda text: (sum(t == text for t in texts.values()), 0 in _who(texts, text)),
            )
            return self.finding(
                number,
                "mismatch",
                _who(texts, fewest),
                f"the ranks called different things: {sides}",
                first,
                more,
            )
        one = next(iter(whole.values()), next(iter(here.values())))
        failed = {rank for rank, call in here.items() if call["state"] == "failed"}
        if refused:
            reasons = _by_value(sorted(refused), lambda rank: here[rank].get("error", "no reason"))
            text = f"{name_ranks(refused)} refused {_describe(one)}: {reasons}"
            return self.finding(number, "failed", refused, text, first, more)
        if behind:
            waiting = {rank for rank, call in here.items() if call["state"] == "posted"}
            theirs = _by_value(
                sorted(behind), lambda r: f"{last[r]} calls made, {_last_of(calls[r], last[r])}"
            )
            state = f"waits {latest - first:.1f} s" if waiting else "failed"
            text = (
                f"{name_ranks(behind)} behind ({theirs}); {name_ranks(here)} in {_describe(one)}, "
                f"which {state}"
            )
            if failed:
                text += f": {here[min(failed)].get('error', 'no reason')}"
            return self.finding(number, "behind", behind, text, first, more)
        if failed:
            reasons = _by_value(sorted(failed), lambda rank: here[rank].get("error", "no reason"))
            text = f"{_describe(one)} failed: {reasons}"
            return self.finding(number, "failed", failed, text, first, more)
        in_data = {rank for rank, call in here.items() if call["state"] == "in data"}
        if in_data:
            done = {rank for rank, call in here.items() if call["state"] == "done"}
            since = latest - min(here[rank].get("in_data", first) for rank in in_data)
            text = f"{name_ranks(in_data)} in the data of {_describe(one)} for {since:.1f} s"
            if done:
                text += f", {name_ranks(done)} done with it"
            return self.finding(number, "stuck", in_data, text, first, more)
        open_ = {rank for rank, call in here.items() if call["state"] in ("posted", "agreed")}
        if not open_:
            return None
        text = f"{name_ranks(open_)} in {_describe(one)} for {latest - first:.1f} s"
        if absent and not agreed:
            text += f"; no record of {name_ranks(absent)}"
            return self.finding(number, "waiting", absent, text, first, more)
        text += ", all ranks agreed" if agreed else ", not agreed"
        return self.finding(number, "waiting", open_, text, first, more)

    def _transfers(self):
        found = []
        counts: dict = {}  # (from, to, tag) -> [sends, receives]
        for rank, (dump, group) in sorted(self.dumps.items()):
            for call in group["calls"]:
                if not _is_transfer(call):
                    continue
                peer = call.get("peer", -1)
                other = self.ranks[peer] if 0 <= peer < len(self.ranks) else None
                sends = "send" in call["kind"]
                tag = call.get("tag", 0)
                if other is not None:
                    way = (rank, other, tag) if sends else (other, rank, tag)
                    counts.setdefault(way, [0, 0])[0 if sends else 1] += 1
                if call["state"] in ("done", "failed"):
                    continue
                whom = f"{'to' if sends else 'from'} " + (
                    f"rank {other}" if other is not None else "any rank"
                )
                found.append(
                    (
                        call["posted"],
                        rank,
                        other,
                        tag,
                        sends,
                        f"rank {rank} in {_describe(call)} {whom} with tag {tag} "
                        f"for {dump['time'] - call['posted']:.1f} s, {call['state']}",
                    )
                )
        findings = []
        for time, rank, other, tag, sends, text in sorted(found, key=lambda f: f[0]):
            if other in self.dumps and other is not None:
                way = (rank, other, tag) if sends else (other, rank, tag)
                sent, received = counts[way]
                text += f" ({sent} sends and {received} receives of this kind are recorded)"
            elif other is not None:
                text += f" (no record of rank {other})"
            findings.append(self.finding(0, "transfer", (rank,), text, time))
        return findings


def _who(texts, text):
    return {rank for rank, of in texts.items() if of == text}


def _last_of(calls, number):
    if not number:
        return "none recorded"
    return f"the last {_describe(calls[number])}, {calls[number]['state']}"


def groups(dumps: Sequence[dict]) -> list[_Group]:
    """Sorts what the dumps say by group."""
    found: dict = {}
    unconnected = []
    for dump in dumps:
        for group in dump["groups"]:
            key = (group["group"], tuple(group["ranks"]), group["session"])
            if group["session"]:
                found.setdefault(key, _Group(key)).add(dump, group)
            else:
                unconnected.append((key, dump, group))
    # A rank that never got through to the others does not know the session.
    for key, dump, group in unconnected:
        fits = [k for k in found if k[:2] == key[:2] and group["rank"] not in found[k].dumps]
        # Only where it belongs for certain.
        where = fits[0] if len(fits) == 1 else key
        found.setdefault(where, _Group(where)).add(dump, group)
    return list(found.values())


def merge(dumps: Sequence[dict]) -> list[Finding]:
    """What the ranks differ in, the first difference first.

    What the group did not get over comes before what it did.
    """
    found = [finding for group in groups(dumps) for finding in group.findings()]
    return sorted(found, key=lambda f: (f.over, f.time, f.number))


# The command.


def add_parser(commands) -> None:
    """Adds `leafpack flight` to the commands of an argument parser."""
    parser = commands.add_parser(
        "flight",
        help="merge the flight records of several ranks and name the first difference",
        description="Merges flight records (flight-rank*.json) of the ranks of a job and names the "
        "first difference: a rank that is behind, ranks that called different things, a rank that "
        "stands in the data of a call. Exit code 0: none; 1: a difference; 2: a file that cannot "
        "be used.",
    )
    parser.add_argument("files", nargs="+", metavar="FILE", help="a record, or a folder of records")
    parser.add_argument("--json", action="store_true", help="print the findings as JSON")
    parser.set_defaults(run=run)


def _files(arguments, fail):
    for argument in arguments:
        path = pathlib.Path(argument)
        if not path.is_dir():
            yield path
            continue
        inside = sorted(path.glob("flight-*.json"))
        if not inside:
            fail(f"{path}: no flight-*.json in this folder")
        yield from inside


def run(arguments, out=print, fail=None) -> int:
    """Runs the command; returns its exit code."""
    import sys

    bad = []

    def complain(text):
        bad.append(text)
        (fail or (lambda t: print(f"leafpack flight: {t}", file=sys.stderr)))(text)

    dumps = []
    for path in _files(arguments.files, complain):
        try:
            dumps.append(load(path))
        except BadFile as error:
            complain(str(error))
    if not dumps:
        return 2
    found = merge(dumps)
    if arguments.json:
        out(json.dumps([dataclasses.asdict(finding) for finding in found], indent=2))
    else:
        ranks = {group["rank"] for dump in dumps for group in dump["groups"]}
        out(
            f"{len(dumps)} record{'s' * (len(dumps) != 1)} of {name_ranks(ranks)}, "
            f"{len(groups(dumps))} groups"
        )
        if found:
            out(f"first difference: {found[0]}")
            for finding in found[1:]:
                out(f"also: {finding}")
        else:
            out("no difference: every recorded call ended well on every rank that has it")
    return 2 if bad else 1 if found else 0
