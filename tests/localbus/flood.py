"""A program that floods one entity `python -m tests.localbus.flood PORT KEY ENTITY SECONDS`."""

from __future__ import annotations

import sys
import time
from types import SimpleNamespace

from proton import Message

from tests.localbus.raw_client import RawClient


def main(port: int, key: str, entity: str, seconds: float) -> int:
    """Keep hundreds of messages on their way, as fast as the server takes them."""
    text = f"Endpoint=sb://127.0.0.1:{port};SharedAccessKeyName=RootManageSharedAccessKey;SharedAccessKey={key};"
    bus = SimpleNamespace(host="127.0.0.1", port=port, connection_string=text)
    payload = Message(body=b"x" * 1000, inferred=True).encode()
    with RawClient(bus) as raw:  # type: ignore[arg-type]
        raw.put_token(entity)
        link = raw.sender(entity)
        print("flooding", flush=True)
        sent, waiting = 0, []
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline:
            while link.credit > 0 and len(waiting) < 500:
                sent += 1
                waiting.append(link.delivery(str(sent)))
                link.stream(payload)
                link.advance()
            raw._pump(0.05)
            for each in waiting:
                if each.remote_state:
                    each.settle()
            waiting = [each for each in waiting if not each.remote_state]
    print(sent, flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main(int(sys.argv[1]), sys.argv[2], sys.argv[3], float(sys.argv[4])))
