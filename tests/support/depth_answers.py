"""A depth query that answers as a test says, for a secondary that does not exist."""

from __future__ import annotations

from collections.abc import Mapping

from azure.core.credentials import AzureNamedKeyCredential

from pairbus import Namespace
from pairbus.syphon.depths import DepthQuery, Depths


class DepthAnswers(DepthQuery):
    """Gives one answer after the other, the last one again and again; an exception is raised."""

    def __init__(self, *answers: Mapping[int, int | None] | Exception, operations: int = 1) -> None:
        super().__init__("contoso", [])
        self.answers = list(answers)
        self.operations = operations
        #: The hosts of the secondaries that were queried.
        self.hosts: list[str] = []

    def run(self, secondary: Namespace, timeout: float = 10.0) -> Depths:
        self.hosts.append(secondary.host)
        answer = self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]
        if isinstance(answer, Exception):
            raise answer
        return Depths(answer, self.operations)


def unreachable(host: str = "backup.example") -> Namespace:
    """A secondary that exists nowhere."""
    return Namespace(host, credential=AzureNamedKeyCredential("key", "c2VjcmV0"), name="backup")
