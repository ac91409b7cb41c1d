"""Objects, versions and history of the in-memory API server: what etcd and the REST strategies do.

Every stored object is a JSON mapping that is never changed in place. A write gives it the next version and
one line of history; a write that changes nothing gives neither. Refusals are `Refused`, carrying a Status.
"""

from __future__ import annotations

import re
import uuid
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

import msgspec

from tests.worlds.kube_merge import Object, strategic_merge

encode = msgspec.json.Encoder().encode
Key = tuple[str, str]  # namespace ("" = cluster scope), name


@dataclass(frozen=True, slots=True)
class Resource:
    """One resource of the API."""

    name: str
    kind: str
    group: str  # with version, as in apiVersion
    namespaced: bool = True

    @property
    def key(self) -> str:
        """Two groups may have resources of one name."""
        known = RESOURCES.get(self.name)
        return self.name if known is not None and known.group == self.group else f"{self.name}.{self.group}"


RESOURCES: Mapping[str, Resource] = {
    r.name: r
    for r in (
        Resource("pods", "Pod", "v1"),
        Resource("nodes", "Node", "v1", namespaced=False),
        Resource("namespaces", "Namespace", "v1", namespaced=False),
        Resource("events", "Event", "v1"),
        Resource("jobs", "Job", "batch/v1"),
        Resource("leases", "Lease", "coordination.k8s.io/v1"),
        Resource("persistentvolumeclaims", "PersistentVolumeClaim", "v1"),
        Resource("persistentvolumes", "PersistentVolume", "v1", namespaced=False),
        Resource("storageclasses", "StorageClass", "storage.k8s.io/v1", namespaced=False),
    )
}
_LABEL = re.compile(r"([A-Za-z0-9][-A-Za-z0-9_./]*)?[A-Za-z0-9]")


class Refused(Exception):
    def __init__(self, code: int, reason: str, message: str, **details: Any) -> None:
        super().__init__(message)
        self.code = code
        self.body = status(code, reason, message, **details)


def status(code: int, reason: str, message: str, **details: Any) -> bytes:
    word = "Success" if code < 400 else "Failure"
    return encode(
        {"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": word, "message": message,
         "reason": reason, "details": details, "code": code}
    )  # fmt: skip


def conflict(resource: str, name: str, message: str) -> Refused:
    text = f'Operation cannot be fulfilled on {resource} "{name}": {message}'
    return Refused(409, "Conflict", text, name=name, kind=resource)


def invalid(resource: str, name: str, field: str, message: str) -> Refused:
    kind = RESOURCES[resource].kind if resource in RESOURCES else resource
    text = f'{kind} "{name}" is invalid: {field}: {message}'
    causes = [{"reason": "FieldValueInvalid", "message": message, "field": field}]
    return Refused(422, "Invalid", text, name=name, kind=resource, causes=causes)


def not_found(resource: str, name: str) -> Refused:
    return Refused(404, "NotFound", f'{resource} "{name}" not found', name=name, kind=resource)


@dataclass(frozen=True, slots=True)
class Record:
    """One change in history."""

    version: int
    resource: str
    type: str
    line: bytes


class Storage:
    """`now` gives Unix seconds; `changed(resource)` is called after every change."""

    def __init__(self, now: Callable[[], float], changed: Callable[[str], None]) -> None:
        self._now = now
        self._changed = changed
        self.new_uid: Callable[[], str] = lambda: str(uuid.uuid4())
        self.version = 100
        self.compacted = 0
        self.resources: dict[str, Resource] = dict(RESOURCES)
        self.objects: dict[str, dict[Key, Object]] = {name: {} for name in RESOURCES}
        self.history: list[Record] = []
        for namespace in ("default", "kube-system"):
            self.create("namespaces", "", {"metadata": {"name": namespace}})

    # --- reads ------------------------------------------------------------------------------------

    def get(self, resource: str, namespace: str, name: str) -> Object:
        found = self.objects[resource].get((namespace, name))
        if found is None:
            raise not_found(resource, name)
        return found

    def all(self, resource: str, namespace: str = "") -> Iterator[Object]:
        for (ns, _), item in sorted(self.objects[resource].items()):
            if not namespace or ns == namespace:
                yield item

    def since(self, resource: str, version: int) -> Iterator[Record]:
        """Changes after `version`, found from the end: watchers are nearly current."""
        start = len(self.history)
        while start and self.history[start - 1].version > version:
            start -= 1
        return (r for r in self.history[start:] if r.resource == resource)

    def compact(self) -> None:
        """Forget all history: every version so far is too old for a watch."""
        self.compacted = self.version
        self.history.clear()

    def install(self, resource: Resource) -> str:
        """As a CustomResourceDefinition does. Returns the key of its objects."""
        self.resources[resource.key] = resource
        self.objects.setdefault(resource.key, {})
        return resource.key

    def uninstall(self, key: str) -> None:
        """Its objects go with it."""
        for (namespace, name), _ in tuple(self.objects[key].items()):
            self.delete(key, namespace, name, {})
        del self.resources[key]

    # --- writes -----------------------------------------------------------------------------------

    def create(self, resource: str, namespace: str, body: Mapping[str, Any]) -> Object:
        kind = self.resources[resource]
        meta = dict(body.get("metadata") or {})
        name = meta.get("name") or f"{meta.get('generateName', '')}{uuid.uuid4().hex[:5]}"
        if kind.namespaced and ("", namespace) not in self.objects["namespaces"]:
            raise not_found("namespaces", namespace)
        if (namespace, name) in self.objects[resource]:
            raise Refused(
                409, "AlreadyExists", f'{resource} "{name}" already exists', name=name, kind=resource
            )
        meta |= {"name": name, "uid": self.new_uid(), "creationTimestamp": self.stamp()}
        if kind.namespaced:
            meta["namespace"] = namespace
        made: Object = {"kind": kind.kind, "apiVersion": kind.group, **body, "metadata": meta}
        if resource == "pods":
            made = _new_pod(made)
        self._check(resource, made)
        return self._store(resource, (namespace, name), made, "ADDED")

    def replace(self, resource: str, namespace: str, name: str, body: Mapping[str, Any]) -> Object:
        if resource == "leases" and (namespace, name) not in self.objects[resource]:
            return self.create(
                resource, namespace, body
            )  # the real strategy allows it, whatever the version says
        old = self.get(resource, namespace, name)
        version = (body.get("metadata") or {}).get("resourceVersion")
        if not version and resource == "leases":
            raise invalid(resource, name, "metadata.resourceVersion", "must be specified for an update")
        self._precondition(resource, old, body.get("metadata") or {})
        kept = {
            k: old["metadata"][k] for k in ("uid", "creationTimestamp", "namespace") if k in old["metadata"]
        }
        new = {"kind": old["kind"], "apiVersion": old["apiVersion"], **body}
        new["metadata"] = {**body["metadata"], **kept}
        return self._update(resource, (namespace, name), old, new)

    def patch(
        self, resource: str, namespace: str, name: str, patch: Mapping[str, Any], *, subresource: str = ""
    ) -> Object:
        old = self.get(resource, namespace, name)
        meta = patch.get("metadata") or {}
        self._precondition(resource, old, meta)
        new = strategic_merge(old, patch)
        if subresource == "status":
            new = {**old, "metadata": new["metadata"], "status": new.get("status", {})}
        elif resource in ("pods", "nodes"):
            new["status"] = old.get("status", {})
            if resource == "pods":
                _check_pod_update(old, new)
        return self._update(resource, (namespace, name), old, new)

    def delete(self, resource: str, namespace: str, name: str, options: Mapping[str, Any]) -> Object:
        old = self.get(resource, namespace, name)
        wanted = (options.get("preconditions") or {}).get("uid")
        if wanted and wanted != old["metadata"]["uid"]:
            raise conflict(resource, name, f"the UID in the precondition ({wanted}) does not match")
        grace = 0
        already = old["metadata"].get("deletionGracePeriodSeconds")
        if resource == "pods":
            grace = options.get("gracePeriodSeconds", old["spec"].get("terminationGracePeriodSeconds", 30))
            if not old["spec"].get("nodeName") or old["status"].get("phase") in ("Succeeded", "Failed"):
                grace = 0
            if already is not None:
                grace = min(grace, already)
        if resource != "pods" and not old["metadata"].get("finalizers"):
            return self._remove(resource, (namespace, name), old)
        meta = {**old["metadata"], "deletionGracePeriodSeconds": grace}
        if "deletionTimestamp" not in meta or grace != already:
            meta["deletionTimestamp"] = self.stamp(grace)
        # Even a pod that goes at once is first marked, then gone: two changes, as watchers of the real server see.
        marked = self._mark(resource, (namespace, name), old, {**old, "metadata": meta})
        if grace == 0 and not meta.get("finalizers"):
            return self._remove(resource, (namespace, name), marked)
        return marked

    def bind(self, namespace: str, name: str, binding: Mapping[str, Any]) -> None:
        old = self.get("pods", namespace, name)
        meta = binding.get("metadata") or {}
        for field, key in (("UID", "uid"), ("ResourceVersion", "resourceVersion")):
            wanted, found = meta.get(key), old["metadata"][key]
            if wanted and wanted != found:
                raise conflict(
                    "pods", name, f"Precondition failed: {field} in precondition: {wanted}, is {found}"
                )
        if old["metadata"].get("deletionTimestamp"):
            raise conflict("pods/binding", name, f"pod {name} is being deleted, cannot be assigned to a host")
        if there := old["spec"].get("nodeName"):
            raise conflict("pods/binding", name, f'pod {name} is already assigned to node "{there}"')
        if old["spec"].get("schedulingGates"):
            raise conflict("pods/binding", name, f"pod {name} has non-empty .spec.schedulingGates")
        scheduled = {"type": "PodScheduled", "status": "True", "reason": None, "message": None}
        scheduled["lastTransitionTime"] = self.stamp()
        patch = {
            "metadata": {k: meta[k] for k in ("labels", "annotations") if meta.get(k)},
            "spec": {"nodeName": binding["target"]["name"]},
            "status": {"nominatedNodeName": None, "conditions": [scheduled]},
        }
        self._update("pods", (namespace, name), old, strategic_merge(old, patch))

    def stamp(self, ahead: float = 0.0) -> str:
        return datetime.fromtimestamp(int(self._now() + ahead), UTC).strftime("%Y-%m-%dT%H:%M:%SZ")

    # --- pieces -----------------------------------------------------------------------------------

    def _precondition(self, resource: str, old: Object, meta: Mapping[str, Any]) -> None:
        name = old["metadata"]["name"]
        if meta.get("resourceVersion") not in (None, "", old["metadata"]["resourceVersion"]):
            raise conflict(resource, name, "the object has been modified; please apply your changes again")
        if meta.get("uid") not in (None, old["metadata"]["uid"]):
            raise invalid(
                resource, name, "metadata.uid", f'Invalid value: "{meta["uid"]}": field is immutable'
            )

    def _check(self, resource: str, item: Object) -> None:
        name = item["metadata"]["name"]
        for key, value in (item["metadata"].get("labels") or {}).items():
            if not _LABEL.fullmatch(key) or (value and not _LABEL.fullmatch(value)):
                raise invalid(resource, name, "metadata.labels", f'Invalid value: "{key}={value}"')
        if resource == "leases" and (item.get("spec") or {}).get("leaseDurationSeconds", 1) <= 0:
            raise invalid(resource, name, "spec.leaseDurationSeconds", "must be greater than 0")

    def _update(self, resource: str, key: Key, old: Object, new: Object) -> Object:
        meta = {**new["metadata"], "resourceVersion": old["metadata"]["resourceVersion"]}
        new = {**new, "metadata": meta}
        if new == old:
            return old
        self._check(resource, new)
        ended = meta.get("deletionTimestamp") and meta.get("deletionGracePeriodSeconds", 0) == 0
        if ended and not meta.get("finalizers"):
            return self._remove(resource, key, new)
        return self._store(resource, key, new, "MODIFIED")

    def _mark(self, resource: str, key: Key, old: Object, new: Object) -> Object:
        return old if new == old else self._store(resource, key, new, "MODIFIED")

    def _store(self, resource: str, key: Key, item: Object, kind: str) -> Object:
        self.version += 1
        item["metadata"]["resourceVersion"] = str(self.version)
        self.objects[resource][key] = item
        self._record(resource, kind, item)
        return item

    def _remove(self, resource: str, key: Key, old: Object) -> Object:
        self.version += 1
        final = {**old, "metadata": {**old["metadata"], "resourceVersion": str(self.version)}}
        del self.objects[resource][key]
        self._record(resource, "DELETED", final)
        return final

    def _record(self, resource: str, kind: str, item: Object) -> None:
        line = encode({"type": kind, "object": item})
        self.history.append(Record(self.version, resource, kind, line))
        self._changed(resource)


def _new_pod(made: Object) -> Object:
    spec = {"schedulerName": "default-scheduler", "terminationGracePeriodSeconds": 30, **made["spec"]}
    pod_status: Object = {"phase": "Pending", **(made.get("status") or {})}
    if spec.get("schedulingGates"):
        gated = {"type": "PodScheduled", "status": "False", "reason": "SchedulingGated"}
        pod_status.setdefault("conditions", [gated])
    return {**made, "spec": spec, "status": pod_status}


_MAY_CHANGE = frozenset(
    {"schedulingGates", "activeDeadlineSeconds", "tolerations", "nodeSelector", "affinity"}
)


def _check_pod_update(old: Object, new: Object) -> None:
    name = old["metadata"]["name"]
    before = [gate["name"] for gate in old["spec"].get("schedulingGates", [])]
    added = [g["name"] for g in new["spec"].get("schedulingGates", []) if g["name"] not in before]
    if added:
        message = f"only deletion is allowed, but found new scheduling gate '{added[0]}'"
        raise invalid("pods", name, "spec.schedulingGates[0].name", message)
    for key in old["spec"].keys() | new["spec"].keys():
        if key not in _MAY_CHANGE and old["spec"].get(key) != new["spec"].get(key):
            raise invalid("pods", name, "spec", f"Forbidden: pod updates may not change {key}")
