"""A program that floods one entity until its input ends: `python -m tests.support.flood PORT KEY ENTITY`.

It prints `flooding` when the first messages are acknowledged, and at the end how many it has sent and how many of them
were accepted.
"""

from __future__ import annotations

import select
import sys
from types import SimpleNamespace

from proton import Delivery, Message

from tests.support.raw_client import RawClient

#: Messages on their way at once.
_ON_THEIR_WAY = 500


def main(port: int, key: str, entity: str) -> int:
    """Keep hundreds of messages on their way, as fast as the server accepts them."""
    text = f"Endpoint=sb://127.0.0.1:{port};SharedAccessKeyName=RootManageSharedAccessKey;SharedAccessKey={key};"
    bus = SimpleNamespace(host="127.0.0.1", port=port, connection_string=text)
    payload = Message(body=b"x" * 1000, inferred=True).encode()
    with RawClient(bus) as raw:  # type: ignore[arg-type]
        raw.put_token(entity)
        link = raw.sender(entity)
        sent = accepted = 0
        waiting: list[Delivery] = []
        ending = False
        while not ending or waiting:
            while not ending and link.credit > 0 and len(waiting) < _ON_THEIR_WAY:
                sent += 1
                waiting.append(link.delivery(str(sent)))
                link.stream(payload)
                link.advance()
            raw.pump(0.05)
            raw.check(link)
            for each in waiting:
                if each.remote_state:
                    if not accepted:
                        print("flooding", flush=True)
                    accepted += each.remote_state == Delivery.ACCEPTED
                    each.settle()
            waiting = [each for each in waiting if not each.remote_state]
            ending = ending or bool(select.select([sys.stdin], [], [], 0)[0])
    print(sent, accepted, flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main(int(sys.argv[1]), sys.argv[2], sys.argv[3]))
