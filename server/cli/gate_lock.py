"""samebits.lock beside samebits.toml: replaced, unless it proves what this gate left out."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pydantic import ValidationError

from samebits.server.cli import whole
from samebits.tools.schema.artifacts.regression import Lock

if TYPE_CHECKING:
    from pathlib import Path


def put(made: Path, target: Path) -> str:
    """Copy the lock of a green gate to its place; "" when there is nothing to say about the one that lay there.

    Args:
        made: samebits.lock in the job's folder.
        target: where it goes. What is there stays when it proves an axis or a side that the new one lacks, about the
            same set-up.
    """
    if not target.is_file():
        whole.write(target, made.read_text(encoding="utf-8"))
        return ""
    new = Lock.model_validate_json(made.read_bytes())
    try:
        old = Lock.model_validate_json(target.read_bytes())
    except ValidationError:
        whole.write(target, made.read_text(encoding="utf-8"))
        return f"{target.name} replaced: what was there is no lock of this version."
    changed = _changed(old, new)
    axes = [name for name in old.axes if name not in new.axes]
    lost = [*axes, *(f"the {role} side" for role in old.proved if role not in new.proved)]
    if lost and not changed:
        more = f"samebits gate --axes {','.join(axes)} --resume {made.parent}"
        return (
            f"{target.name} left as it is: it also proves {', '.join(lost)}, which this gate does not. Both in one: "
            f"{more if axes else 'the gate without --rollout'}; this one alone: remove the file first."
        )
    whole.write(target, made.read_text(encoding="utf-8"))
    if not changed:
        return ""
    gone = f"; no longer in it: {', '.join(lost)}" if lost else ""
    return f"{target.name} replaced: the old one was proved for something else ({', '.join(changed)}){gone}."


def _changed(old: Lock, new: Lock) -> list[str]:
    """What both say of a side and say differently, as `role: name`; of a side the new one lacks, its settings."""
    found = []
    if old.contract_version != new.contract_version or old.schema_version != new.schema_version:
        found.append("contract or schema version")
    for role in old.proved:
        pairs = [(old.settings.get(role, {}), new.settings.get(role, {}))]
        if role in new.proved:
            pairs.append((old.proved[role], new.proved[role]))
        for then, now in pairs:
            found += [f"{role}: {name}" for name in sorted({*then, *now}) if then.get(name) != now.get(name)]
    return found
