"""Strategic merge as the API server does it, for the lists that the bridge touches. Never changes its
arguments.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

Object = dict[str, Any]

MERGE_KEYS: Mapping[str, str] = {"schedulingGates": "name", "conditions": "type"}
PRIMITIVE_SETS = frozenset({"finalizers"})
_DELETE_FROM = "$deleteFromPrimitiveList/"


def strategic_merge(old: Mapping[str, Any], patch: Mapping[str, Any]) -> Object:
    """Null removes a key; lists with a merge key merge by it; other lists are replaced."""
    new: Object = dict(old)
    for key, value in patch.items():
        if key.startswith(_DELETE_FROM):
            _put(
                new, name := key.removeprefix(_DELETE_FROM), [x for x in old.get(name, []) if x not in value]
            )
        elif value is None:
            new.pop(key, None)
        elif isinstance(value, Mapping):
            new[key] = strategic_merge(new.get(key) or {}, value)
        elif isinstance(value, list) and key in MERGE_KEYS:
            _put(new, key, _merge_list(new.get(key) or [], value, MERGE_KEYS[key]))
        elif isinstance(value, list) and key in PRIMITIVE_SETS:
            new[key] = [*new.get(key, []), *(x for x in value if x not in new.get(key, []))]
        else:
            new[key] = value
    return new


def _put(target: Object, key: str, items: list[Any]) -> None:
    if items:
        target[key] = items
    else:
        target.pop(key, None)


def _merge_list(old: list[Object], patch: list[Object], by: str) -> list[Object]:
    changes = {item[by]: item for item in patch}
    merged = []
    for item in old:
        change = changes.pop(item[by], None)
        if change is None:
            merged.append(item)
        elif change.get("$patch") != "delete":
            merged.append(strategic_merge(item, change))
    # New items go first, as the real server puts them.
    fresh = [strategic_merge({}, c) for c in changes.values() if c.get("$patch") != "delete"]
    return fresh + merged
