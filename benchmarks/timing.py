"""Times of GPU calls: CUDA graphs, inputs rotated so that L2 is cold, median over replays."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence

import torch

L2_BYTES = 160 << 20
"""Rotated inputs together exceed this: well over the 60 MB of L2 of an H200."""


def copies_for(nbytes: int, most: int = 96) -> int:
    """How many copies of an input of `nbytes` make L2 cold."""
    return max(2, min(most, -(-L2_BYTES // max(nbytes, 1))))


def graph_of(calls: Sequence[Callable[[], object]]) -> torch.cuda.CUDAGraph:
    """One graph of all calls, in order, after a warm-up of the first on a side stream."""
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        for call in calls[:2]:
            call()
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for call in calls:
            call()
    return graph


def replay_us(graph: torch.cuda.CUDAGraph, count: int, replays: int) -> list[float]:
    """Microseconds per call of each replay of a graph of `count` calls."""
    events = [(torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)) for _ in range(replays)]
    graph.replay()
    for start, end in events:
        start.record()
        graph.replay()
        end.record()
    torch.cuda.synchronize()
    return [start.elapsed_time(end) * 1000 / count for start, end in events]


def median_us(calls: Sequence[Callable[[], object]], replays: int = 7) -> float:
    """Median microseconds of one call."""
    return statistics.median(replay_us(graph_of(calls), len(calls), replays))


def interleaved_us(
    arms: dict[str, Sequence[Callable[[], object]]], rounds: int = 3, replays: int = 5
) -> dict[str, float]:
    """Median microseconds of one call per arm; the arms take turns, `rounds` times."""
    graphs = {name: graph_of(calls) for name, calls in arms.items()}
    times: dict[str, list[float]] = {name: [] for name in arms}
    for _ in range(rounds):
        for name, graph in graphs.items():
            times[name] += replay_us(graph, len(arms[name]), replays)
    return {name: statistics.median(values) for name, values in times.items()}
