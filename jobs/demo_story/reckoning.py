"""The final comparison of everything that was sent with everything that arrived."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

from pairbus.cost import forecast
from pairbus.sending.status import PairingStatus

from .consumers import Arrived, Parked
from .goods import AUDIT, DOOMED, RULES, SESSIONS, SHARES, TOPIC, Sent
from .screen import table
from .trade import PARCEL, SHOPS

#: Number of ids to name in an error.
_NAMED = 5
#: The resolution of the broker's times.
_MILLISECOND = timedelta(milliseconds=1)


@dataclass(frozen=True, slots=True)
class Check:
    """A condition that must hold, and its result."""

    what: str
    found: str
    wrong: tuple[str, ...] = ()

    @property
    def ok(self) -> bool:
        return not self.wrong


@dataclass(frozen=True)
class Reckoning:
    """All data at the end of the demo, and the checks on it."""

    book: dict[str, Sent]
    status: PairingStatus
    #: The backlog before the drain, and its dead letters after it.
    parked: list[Parked]
    dead: list[Parked]
    #: Place → messages in the order of arrival.
    arrived: dict[str, list[Arrived]]
    #: The contents of the ledger.
    audit: dict[str, Any]

    @property
    def arrivals(self) -> dict[str, list[Arrived]]:
        """Destination → messages that arrived; for the topic, those of the subscription that matches everything."""
        found: dict[str, list[Arrived]] = {name: [] for name in SHARES}
        for where, messages in self.arrived.items():
            name, _, subscription = where.partition("/")
            if not subscription or subscription == AUDIT:
                found[name.partition(" ")[0]] += messages
        return found

    # --- checks --------------------------------------------------------------------------------------------

    def checks(self) -> list[Check]:
        return [
            self._accepted(),
            self._accounted(),
            self._dead_lettered(),
            self._in_ledger(),
            self._conserved(),
            self._repeated(),
            self._ordered(),
            self._equal(),
            self._filtered(),
            self._not_early(),
        ]

    def _accepted(self) -> Check:
        direct = sum(each.sent for each in self.status.entities.values())
        parked = sum(each.parked for each in self.status.entities.values())
        wrong = [] if direct + parked == len(self.book) else [f"{direct + parked:,} were accepted"]
        return Check("sent = direct + parked", f"{len(self.book):,} = {direct:,} + {parked:,}", tuple(wrong))

    def _accounted(self) -> Check:
        there = {each.message_id for messages in self.arrivals.values() for each in messages}
        dead = {each.message_id for each in self.dead}
        lost = self.book.keys() - there - dead
        strange = there - self.book.keys()
        wrong = [f"lost: {name}" for name in _some(lost)] + [f"never sent: {name}" for name in _some(strange)]
        return Check(
            "each arrived, or is a dead letter", f"{len(self.book) - len(lost):,} of {len(self.book):,}", tuple(wrong)
        )

    def _dead_lettered(self) -> Check:
        wanted = {each.message_id for each in self.parked if each.destination == DOOMED}
        dead = {each.message_id for each in self.dead}
        wrong = [f"not expected: {name}" for name in _some(wanted ^ dead)]
        silent = {each.message_id for each in self.dead if DOOMED not in each.description}
        wrong += [f"does not say why: {name}" for name in _some(silent)]
        return Check(f"dead letters = parked for {DOOMED}", f"{len(dead):,} = {len(wanted):,}", tuple(wrong))

    def _in_ledger(self) -> Check:
        told = {message_id: outcome for message_id, _, outcome in self.audit["rows"]}
        parked = {each.message_id for each in self.parked}
        wrong = [f"only in one of them: {name}" for name in _some(parked ^ told.keys())]
        dead = {name for name, outcome in told.items() if outcome == "dead-lettered"}
        wrong += [f"another end: {name}" for name in _some(dead ^ {each.message_id for each in self.dead})]
        return Check("rows of the ledger = parked", f"{len(told):,} = {len(parked):,}", tuple(wrong))

    def _conserved(self) -> Check:
        wrong = () if self.audit["ok"] else ("verify found problems, see the table above",)
        found = "no sequence number is missing" if self.audit["ok"] else "NOT proven"
        return Check("conservation, by the ledger", found, wrong)

    def _repeated(self) -> Check:
        """Check repeats: only a parcel whose answer was lost at the kill may be in both namespaces."""
        times = Counter(each.message_id for messages in self.arrivals.values() for each in messages)
        times.update(each.message_id for each in self.dead)
        twice = {name for name, count in times.items() if count > 1}
        parked = {each.message_id for each in self.parked}
        wrong = [f"twice, and not for a lost answer: {name}" for name in _some(twice - parked)]
        wrong += [f"more than twice: {name}" for name in _some({n for n, count in times.items() if count > 2})]
        if len(twice) > SHOPS * PARCEL:
            wrong.append("more than was in flight at the kill")
        return Check(
            "twice, by answers lost at the kill",
            f"{len(twice):,} (at most {SHOPS * PARCEL}: one parcel a shop)",
            tuple(wrong),
        )

    def _ordered(self) -> Check:
        """Check the order within each session, separately for direct and for parked messages."""
        parked = {each.message_id for each in self.parked}
        sessions = {where: messages for where, messages in self.arrived.items() if where.startswith(f"{SESSIONS} ")}
        wrong = []
        for where, everything in sessions.items():
            messages = [each for each in everything if each.message_id in self.book]
            last = {each.message_id: place for place, each in enumerate(messages)}
            detour = {place for name, place in last.items() if name in parked}
            direct = [place for place in range(len(messages)) if place not in detour]
            for way, places in (("direct", direct), ("parked", sorted(detour))):
                numbers = [self.book[messages[place].message_id].number for place in places]
                if numbers != sorted(numbers):
                    wrong.append(f"{where}, {way}: {numbers[:20]} …")
        count = sum(map(len, sessions.values()))
        return Check(
            "order within sessions, each way by itself",
            f"{count:,} messages of {len(sessions)} sessions",
            tuple(wrong[:_NAMED]),
        )

    def _equal(self) -> Check:
        everything = [each for messages in self.arrived.values() for each in messages if each.message_id in self.book]
        wrong = [each.message_id for each in everything if each.digest != self.book[each.message_id].digest]
        parked = {each.message_id for each in self.parked}
        detour = sum(each.message_id in parked for each in everything)
        found = f"{len(everything) - len(wrong):,} of {len(everything):,} arrivals, {detour:,} of them by the detour"
        return Check("bytes equal", found, tuple(f"other bytes: {name}" for name in _some(set(wrong))))

    def _filtered(self) -> Check:
        wrong = []
        told = []
        for name in RULES:
            wanted = {each.message_id for each in self.book.values() if name in each.wanted_by}
            got = {each.message_id for each in self.arrived.get(f"{TOPIC}/{name}", [])}
            told.append(f"{name} {len(got):,}")
            wrong += [f"{name}: {one}" for one in _some(wanted ^ got)]
        return Check("subscriptions got what their rules say", ", ".join(told), tuple(wrong))

    def _not_early(self) -> Check:
        count, wrong = 0, []
        for each in (each for messages in self.arrived.values() for each in messages):
            scheduled = self.book[each.message_id].scheduled if each.message_id in self.book else None
            if scheduled is not None:
                count += 1
                if each.enqueued_at < scheduled - _MILLISECOND:
                    wrong.append(f"{each.message_id}: {each.enqueued_at}, not {scheduled}")
        return Check("scheduled ones not before their time", f"{count:,}", tuple(wrong[:_NAMED]))

    # --- tables --------------------------------------------------------------------------------------------

    def tables(self) -> Iterator[str]:
        yield "\nMessages, by destination"
        yield table(
            ("destination", "sent", "direct", "parked", "arrived", "dead letters", "twice", "lost"), self._rows()
        )
        yield "\nDead letters, by reason"
        reasons = Counter((each.reason, each.description) for each in self.dead)
        yield table(("messages", "reason", "description"), [(n, *why) for why, n in reasons.most_common()])
        yield "\nConservation, by the rows of the ledger, for each queue"
        yield "\n".join(f"   {line}" for line in self.audit["verification"].splitlines())
        yield "\nBillable operations"
        yield table(("by", "kind", "operations"), self._operations())

    def _rows(self) -> list[tuple[object, ...]]:
        rows: list[tuple[object, ...]] = []
        arrivals = self.arrivals
        for name in SHARES:
            sent = {each.message_id for each in self.book.values() if each.destination == name}
            there = [each.message_id for each in arrivals[name]]
            dead = [each.message_id for each in self.dead if each.destination == name]
            known = self.status.entities[name]
            lost = len(sent - set(there) - set(dead))
            twice = len(there) + len(dead) - len(set(there) | set(dead))
            rows.append((name, len(sent), known.sent, known.parked, len(there), len(dead), twice, lost))
        columns = list(zip(*rows, strict=True))[1:]
        return [*rows, ("all", *(sum(column) for column in columns))]

    def _operations(self) -> list[tuple[object, ...]]:
        counted = sorted(self.status.operations.items())
        rows: list[tuple[object, ...]] = [("paired senders", kind, count) for kind, count in counted]
        rows.append(("syphon, by its ledger", "receive, send, settle", self.audit["operations"]))
        expected = {line.what: line.operations for line in forecast(messages=len(self.parked)).lines}
        rows += [("forecast of the detour", what, count) for what, count in expected.items() if count]
        return rows


def _some(names: Any) -> list[str]:
    found = sorted(names)
    return found if len(found) <= _NAMED else [*found[:_NAMED], f"… and {len(found) - _NAMED:,} more"]
