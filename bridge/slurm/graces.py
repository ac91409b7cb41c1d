"""How long preemption leaves to its victims, so that their pods can be told in time.

In: partitions and, where preemption goes by QOS, the QOS of Slurm's accounting. Out: seconds for each job, and why they
may be wrong. What must stay true: where both may count, the shorter one does.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Awaitable, Callable
from typing import Final

from bridge.config import SlurmSettings
from bridge.core.checkup import BY_QOS
from bridge.core.model import JobRecord, Partition
from bridge.errors import BridgeError
from bridge.slurm.client import SlurmClient

INTERVAL: Final = 5.0  # seconds between looks at the partitions
QOS_INTERVAL: Final = 300.0  # seconds between looks at the QOS: slurmdbd has its own work
TIMEOUT: Final = 5.0  # seconds
BY_PARTITION: Final = "preempt/partition_prio"

log = logging.getLogger("bridge.slurm")


class Graces:
    """`run()` is one task; everything else is synchronous and belongs to the same event loop."""

    def __init__(
        self,
        client: SlurmClient,
        settings: SlurmSettings,
        monotonic: Callable[[], float],
        sleep: Callable[[float], Awaitable[None]],
    ) -> None:
        self.partitions: dict[str, Partition] = {}  # as far as they have been read
        self._client, self._given = client, settings.preemptionGrace
        self._now, self._sleep = monotonic, sleep
        self._qos: dict[str, float] | None = None  # None: never read
        self._asked = -math.inf

    def of(self, record: JobRecord) -> float:
        """Seconds that a preempted job has left; 0.0 = none."""
        if self._given is not None:
            return self._given
        found = self.partitions.get(record.partition)
        by_partition = found.grace if found is not None else 0.0
        by_qos = (self._qos or {}).get(record.qos, 0.0)
        if self._client.preempts == BY_QOS and self._qos is not None:
            return by_qos
        if self._client.preempts == BY_PARTITION:
            return by_partition
        return min(filter(None, (by_partition, by_qos)), default=0.0)

    def given(self) -> bool:
        """Some job may have some time left."""
        known = (*(p.grace for p in self.partitions.values()), *(self._qos or {}).values())
        return bool(self._given) or (self._given is None and any(known))

    def unknown(self) -> str:
        """Why what it says of QOS is nothing, "" = it knows."""
        if self._client.preempts != BY_QOS or self._given is not None or self._qos is not None:
            return ""
        return (
            "PreemptType=preempt/qos, and the GraceTime of QOS can't be read (slurmrestd needs openapi/slurmdbd):"
            " set preemptionGrace to the shortest"
        )

    async def run(self) -> None:
        """For ever."""
        while True:
            try:
                self.partitions = await self._client.partitions()
            except BridgeError as error:
                log.debug("the partitions can't be read: %s", error)
            await self._look_at_qos()
            await self._sleep(INTERVAL)

    async def _look_at_qos(self) -> None:
        needed = self._given is None and self._client.preempts in ("", BY_QOS)
        if not needed or not self._client.accounting or self._now() - self._asked < QOS_INTERVAL:
            return
        self._asked = self._now()
        try:
            self._qos = await self._client.graces_of_qos(TIMEOUT)
        except BridgeError as error:
            log.debug("the QOS can't be read: %s", error)
