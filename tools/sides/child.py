"""The process of one side: reads commands from one pipe, answers on another, logs to its stderr.

    python -m samebits.tools.sides.child COMMAND_FD REPLY_FD SIDE DEVICE [LIBRARY...]

What SIDE and each LIBRARY ("vllm", "transformers"; others are passed over) need is imported before the first command is
there.

Its environment is set by the session before the interpreter starts, so that libraries see it at import.
"""

from __future__ import annotations

import gc
import os
import sys
import time
import traceback
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from samebits.tools.schema.errors import UserError
from samebits.tools.schema.passes import (
    COMMAND,
    Broken,
    Close,
    Command,
    Done,
    Generate,
    Modules,
    Open,
    Push,
    Readings,
    Refused,
    Score,
    Step,
    Weights,
)

if TYPE_CHECKING:
    from samebits.tools.schema.passes import Reply
    from samebits.tools.sides.protocol import Side


def carry_out(side: Side | None, command: Command) -> tuple[Side | None, Done]:
    """Do one command; returns the side (new after Open) and the reply."""
    from samebits.tools.sides import protocol, rollout_store

    if isinstance(command, Open):
        side = protocol.load(command)
        facts, lines = side.describe()
        return side, Done(facts=facts, lines=tuple(lines))
    assert side is not None, "a command before open"
    if isinstance(command, Generate):
        begun = time.monotonic()
        data = side.generate(command.workload)
        seconds = time.monotonic() - begun
        name = str(side.describe()[0].get("name", ""))
        rollout_store.write(Path(command.folder), data, side=name, origin=command.origin)
        return side, Done(facts={"tokens": int(data.valid_N.sum()), "seconds": seconds})
    if isinstance(command, Score):
        data = rollout_store.read(Path(command.rollout))
        folder = Path(command.folder)
        folder.mkdir(parents=True, exist_ok=True)
        scores = side.score(data, command.how, command.capture, command.edits, folder)
        rollout_store.write_scores(folder, scores)
        return side, Done(facts=scores.facts)
    if isinstance(command, Readings):
        columns = side.readings(rollout_store.read(Path(command.rollout)), command.readings)
        rollout_store.write_columns(Path(command.folder), columns)
        return side, Done()
    if isinstance(command, Weights | Modules):
        folder = Path(command.folder)
        folder.mkdir(parents=True, exist_ok=True)
        view = side.weights() if isinstance(command, Weights) else side.modules()
        (folder / f"{command.command}.json").write_text(view.model_dump_json(), encoding="utf-8")
        return side, Done()
    if isinstance(command, Push):
        lines = side.push(Path(command.weights), command.version, command.repair, reset=command.reset)
        return side, Done(lines=tuple(lines))
    if isinstance(command, Step):
        return side, Done(facts={**side.step(rollout_store.read(Path(command.rollout)), command)})
    raise AssertionError(command)


def warm(words: list[str]) -> None:
    """Import what this side will need. What fails here fails again, and is answered, when the side is opened."""
    gc.disable()  # nothing of what is imported is garbage: looking through it takes a fifth of the time
    with suppress(Exception):
        from samebits.kernels.adapters.setup import cpu_isa

        cpu_isa.apply()
        if "transformers" in words:
            from transformers import AutoModelForCausalLM  # noqa: F401
        if "vllm" in words:
            import vllm.entrypoints.llm  # noqa: F401
        if words[:2] == ["vllm", "cpu"]:
            _warm_cpu_engine()
    gc.freeze()
    gc.enable()


def _warm_cpu_engine() -> None:
    """What the engine loads on its way up, and what its sampler, which it compiles, asks the compiler first."""
    import torch._inductor.compile_fx  # noqa: F401
    import vllm.v1.worker.gpu_worker  # noqa: F401
    from torch._inductor.cpu_vec_isa import pick_vec_isa

    pick_vec_isa()


def answer(side: Side | None, line: str) -> tuple[Side | None, Reply]:
    """Like carry_out, with every exception turned into a reply."""
    try:
        return carry_out(side, COMMAND.validate_json(line))
    except UserError as error:
        return side, Refused(thing=error.thing, reason=error.reason, next_step=error.next_step)
    except Exception as error:  # the parent must hear of it, whatever it is
        traceback.print_exc()
        return side, Broken(message=f"{type(error).__name__}: {error}")


def main() -> None:
    """Serve commands until `close` or the end of the pipe."""
    commands = os.fdopen(int(sys.argv[1]), "r", encoding="utf-8")
    replies = os.fdopen(int(sys.argv[2]), "w", encoding="utf-8", buffering=1)
    side: Side | None = None
    warm(sys.argv[3:])
    for line in commands:
        if isinstance(COMMAND.validate_json(line), Close):
            break
        side, reply = answer(side, line)
        replies.write(reply.model_dump_json() + "\n")
    if side is not None:
        gc.freeze()  # vLLM collects garbage twice on its way down: all of it goes with the process
        side.close()
    # Engines hold threads and atexit handlers that take up to 20 s to wind down; every reply and artifact is out.
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(0)


if __name__ == "__main__":
    main()
