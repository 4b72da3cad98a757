"""The process that holds a candidate's code: `python -m samebits.tools.gate.candidate.inside.server JOB`.

It lives in the sandbox and does what the judge asks over the socket it inherits: load, call, differentiate, compile,
capture, time. Whatever it answers is the candidate's word: the judge draws the inputs, computes what is due, and
compares.
"""

from __future__ import annotations

import json
import os
import socket
import sys
from pathlib import Path
from typing import Any

import torch

from samebits.kernels import candidate as candidates
from samebits.kernels.registry import operator
from samebits.tools.gate.candidate.compare import outputs_of
from samebits.tools.gate.candidate.guard import Guard, GuardedAllocations
from samebits.tools.gate.candidate.inside.compiled import Compiled, Graph, Timed, as_library_operator
from samebits.tools.gate.candidate.through import through
from samebits.tools.gate.candidate.wire import Memory, WireError, placed, put_outputs, receive, send

Args = dict[str, Any]
MOST_TEXT = 1500


class Server:
    """One candidate, loaded once."""

    def __init__(self, job: dict[str, Any]) -> None:
        self.job = job
        self.operator = operator(job["operator"])
        self.device = torch.device(job["device"])
        self.run: Any = None
        self.backward: Any = None
        self.own: Any = None
        self.slots: dict[str, Memory] = {}
        self.copies: dict[str, torch.Tensor] = {}
        self.outputs = Memory(job["outputs"])
        self.compiled_form: Compiled | None = None
        self.graph: Graph | None = None
        self.timed: Timed | None = None

    def take(self, forms: dict[str, Any]) -> Args:
        """The arguments of a call: tensors at the place in memory where the last ones of that name stood."""
        return {name: self.tensor(name, form) if isinstance(form, dict) else form for name, form in forms.items()}

    def tensor(self, name: str, form: dict[str, Any]) -> torch.Tensor:
        """One argument. On CUDA it is copied to memory of the device that is kept for its name."""
        slot = self.slots[name]
        if form["size"] > slot.size:
            slot.see(form["size"])
            self.copies.pop(name, None)
        if self.device.type == "cpu":
            return placed(slot.bytes, form)
        if name not in self.copies:
            self.copies[name] = torch.empty(slot.size, dtype=torch.uint8, device=self.device)
            form["fresh"] = True
        part = slice(form["offset"], form["offset"] + form["bytes"])
        if form["fresh"]:
            self.copies[name][part].copy_(slot.bytes[part])
        return placed(self.copies[name], form)

    def load(self, request: dict[str, Any]) -> dict[str, Any]:
        """Import or build the source; without one, the library's operator."""
        if not self.job["folder"]:
            plain = self.device.type == "cuda" or not self.job["interpreted"]
            self.own = self.operator.op
            self.run = self.own if plain else self.operator.module("triton").run
            return {}
        try:
            candidate = candidates.describe(Path(self.job["folder"]))
            loaded = candidates.load(candidate, Path(self.job["build_folder"]))
        except SystemExit as error:
            raise RuntimeError(f"ends the process on import: {error}") from error
        self.run, self.backward = loaded.run, loaded.backward
        return {}

    def call(self, request: dict[str, Any]) -> dict[str, Any]:
        """One call."""
        return self.answer(outputs_of(self.run(**self.take(request["args"]))))

    def guarded(self, request: dict[str, Any]) -> dict[str, Any]:
        """One call between guard bands; behind the outputs stand the tensors that went in, as they are now."""
        guard = Guard()
        taken = self.take(request["args"])
        args = {k: guard.copy(v, f"input {k}") if isinstance(v, torch.Tensor) else v for k, v in taken.items()}
        with GuardedAllocations(guard):
            got = outputs_of(self.run(**args))
        inputs = {key: value for key, value in args.items() if isinstance(value, torch.Tensor)}
        shared = [
            key
            for key, value in inputs.items()
            if any(o.numel() and o.untyped_storage().data_ptr() == value.untyped_storage().data_ptr() for o in got)
        ]
        found = {"count": len(got), "inputs": list(inputs), "shared": shared, "broken": guard.broken()}
        return self.answer((*got, *inputs.values())) | found

    def gradient(self, request: dict[str, Any]) -> dict[str, Any]:
        """The candidate's own backward, or autograd through the library's operator."""
        args = self.take(request["args"])
        grads = tuple(self.take(request["grads"]).values())
        with torch.enable_grad():
            if self.backward is not None:
                return self.answer(outputs_of(self.backward(list(grads), **args)))
            return self.answer(through(self.own, args, request["names"], grads))

    def compiled(self, request: dict[str, Any]) -> dict[str, Any]:
        """A call under torch.compile; `new`: with a graph of its own from here on."""
        args = self.take(request["args"])
        if request["new"] or self.compiled_form is None:
            inner = self.own if self.own is self.run else as_library_operator(self.operator, self.run, args)
            self.compiled_form = Compiled(inner, request["backend"])
        return self.answer(self.compiled_form(args))

    def captured(self, request: dict[str, Any]) -> dict[str, Any]:
        """A replay of a CUDA graph on these inputs; `new`: captured first."""
        args = self.take(request["args"])
        if request["new"] or self.graph is None:
            self.graph = Graph(self.run, args)
        return self.answer(self.graph.replay(args))

    def prepare(self, request: dict[str, Any]) -> dict[str, Any]:
        """Make ready to be timed on these inputs; tells the calls in one run."""
        self.timed = Timed(self.run, self.take(request["args"]), self.device)
        return {"calls": self.timed.calls}

    def timed_run(self, request: dict[str, Any]) -> dict[str, Any]:
        """So many runs, answered when all are done: the judge holds the watch."""
        assert self.timed is not None
        self.timed(int(request["count"]))
        return {}

    def timed_outputs(self, request: dict[str, Any]) -> dict[str, Any]:
        """What the last timed call gave."""
        assert self.timed is not None
        return self.answer(outputs_of(self.timed.last))

    def answer(self, outputs: tuple[torch.Tensor, ...]) -> dict[str, Any]:
        """Outputs into shared memory."""
        if self.device.type == "cuda":
            torch.cuda.synchronize()
        return {"outputs": put_outputs(self.outputs, outputs)}

    def do(self, request: dict[str, Any]) -> dict[str, Any]:
        """One request; what it raises is its answer."""
        actions = {
            "load": self.load,
            "call": self.call,
            "guarded": self.guarded,
            "gradient": self.gradient,
            "compiled": self.compiled,
            "captured": self.captured,
            "prepare": self.prepare,
            "timed_run": self.timed_run,
            "timed_outputs": self.timed_outputs,
        }
        try:
            with torch.no_grad():
                return actions[request["do"]](request)
        except Exception as error:
            return {"red": f"{type(error).__name__}: {str(error)[:MOST_TEXT]}"}


def main() -> None:
    """Entry point: says hello once torch and the device are there, then serves until the judge is gone."""
    job = json.loads(sys.argv[1])
    end = socket.socket(fileno=job["socket"])
    server = Server(job)
    torch.zeros(1, device=server.device)
    send(end, {"id": 0})
    while True:
        try:
            request, descriptors = receive(end)
        except WireError:
            os._exit(0)
        for name, descriptor in zip(request["slots"], descriptors, strict=True):
            server.slots[name] = Memory(descriptor)
        send(end, server.do(request) | {"id": request["id"]})


if __name__ == "__main__":
    main()
