"""What the token's user may do in Slurm, and so who numbers our jobs.

In: the setting `jobIds`, the token, slurmctld's configuration. Out: whether jobs are submitted held, and what the token
can't do, in sentences. Measured with Slurm 26.05:

| the token's user                        | SlurmUser, root | AdminLevel=Administrator | anybody else      |
|-----------------------------------------|-----------------|--------------------------|-------------------|
| chooses a job's id                      | yes             | no: 2017                 | no: 2017          |
| writes admin_comment, which is our mark | yes             | yes                      | no: 2002          |
| submits for another user                | yes             | no: 2010                 | no: 2010          |
| ends a job with an exit code            | any             | its own, else 2010       | its own           |
| cancels                                 | any             | any                      | an operator: any  |
"""

from __future__ import annotations

from contextlib import suppress
from typing import Final

from bridge.config import JobIds
from bridge.errors import BridgeError, Denied
from bridge.slurm import wire
from bridge.slurm.auth import TokenFile, subject

FIRST_WITH_SIZES: Final = (26, 5)  # external jobs with components
NO_ACCOUNTING: Final = ("", "accounting_storage/none")


class Rights:
    """`held` is settled by the first `learn`; a token or SlurmUser that changes later changes it, too."""

    def __init__(self, setting: JobIds, token: TokenFile) -> None:
        self.held = setting == "held"  # Slurm numbers our jobs: they are submitted held, then released
        self._setting = setting
        self._token = token
        self._slurm_user = ""  # as slurmctld says; "" = not known (before v0.0.45)
        self._accounting = True

    def learn(self, conf: wire.Conf) -> None:
        self._slurm_user = conf.SlurmUser
        self._accounting = conf.AccountingStorageType not in NO_ACCOUNTING
        if self._setting == "auto":
            with suppress(BridgeError):  # an unreadable token changes nothing
                self.held = self._foreign(self._user())

    def stranger(self) -> str:
        """Why nothing may be written with this token, "" = all is well."""
        try:
            user = self._user()
        except BridgeError as error:
            return str(error)
        if self.held or not self._foreign(user):
            return ""
        return f"the Slurm token is {user}'s; it must be SlurmUser's ({self._slurm_user})"

    def note(self) -> str:
        """What works worse than it could, "" = nothing."""
        if not self.held:
            return ""
        why = "the setting jobIds says so"
        if self._setting == "auto":
            why = f"the token is {self._user_or_nobody()}'s and not SlurmUser's ({self._slurm_user})"
        return f"Slurm numbers our jobs, as {why}: each is submitted held, named on its pod, then released"

    def undivided(self, release: tuple[int, int]) -> str:
        """Why Slurm takes no job of several sizes from us; "" = it does. `release`: Slurm's, (26, 5)."""
        if self.held:
            return "where Slurm numbers the bridge's jobs (jobIds: held) a job has one size"
        if release < FIRST_WITH_SIZES:
            return f"Slurm {release[0]}.{release[1]:02} takes no placeholder of several sizes, 26.05 does"
        return ""

    def refusal(self, said: str) -> str:
        """What Slurm says to a held submit, with the fix."""
        user = self._user_or_nobody()
        return (
            f"Slurm refuses the token of {user}: {said}; it must be SlurmUser's, or {user} must have "
            f"AdminLevel=Administrator in Slurm's accounting; even then {user} submits for nobody else"
        )

    @property
    def asks_for_owner(self) -> bool:
        """A slurmctld 26.05 without accounting hangs for good when others ask it to end a job of SlurmUser's."""
        return not self._accounting and self._foreign(self._user())

    def may_end(self, owner: str) -> None:
        """Raises Denied where asking would hang slurmctld."""
        user = self._user()
        if self.asks_for_owner and owner != user:
            raise Denied(f"the job is {owner}'s, and without accounting {user} can't end it; scancel it")

    def owner(self) -> str:
        """Of our jobs where Slurm numbers them; "" = the token doesn't say."""
        try:
            return self._user()
        except BridgeError:
            return ""

    def _user(self) -> str:
        return subject(self._token.read())

    def _user_or_nobody(self) -> str:
        return self.owner() or "nobody"

    def _foreign(self, user: str) -> bool:
        return bool(self._slurm_user and user) and user not in (self._slurm_user, "root")
