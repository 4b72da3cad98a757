"""The answer of `samebits rl --corrections`."""

from __future__ import annotations

import json
import time
from typing import TYPE_CHECKING

from samebits.tools.report import rl as pages
from samebits.tools.rl.child import SIDES
from samebits.tools.schema.artifacts.rl import Compared, RlReport
from samebits.tools.schema.results import Result
from samebits.tools.store import artifact
from samebits.tools.store.fingerprint import environment

if TYPE_CHECKING:
    from pathlib import Path

    from samebits.tools.rl.verb import Work


def corrections_answer(work: Work, start: Path, begun: float) -> Result:
    """Measure in one child process, write the report."""
    from samebits.tools.rl.compare import COMPARED, left_out_in_words
    from samebits.tools.rl.verb import model_in_words

    folder = work.child("corrections", "corrections", model=str(start))
    text = (folder / COMPARED).read_text(encoding="utf-8")
    found = Compared.model_validate_json(text)
    experiment, rl = work.experiment, work.experiment.rl
    report = RlReport(
        what="corrections",
        model=model_in_words(experiment),
        setting=f"{experiment.rl.batches} batches of {rl.prompts} prompts x {rl.group} answers (sort {rl.digits[0]} to "
        f"{rl.digits[1]} digits) after {rl.warmup_steps} supervised updates, {experiment.rollout.dtype}",
        compared=found,
        sides={"exact": tuple(json.loads((folder / SIDES).read_text(encoding="utf-8")))},
        seconds=time.monotonic() - begun,
        environment=environment(),
    )
    texts = {"report.html": pages.page(report), "corrections.json": text, **pages.plots(report)}
    artifact.write(work.job.folder / "rl", report, texts=texts)
    left = f"; {left_out_in_words(found.left_out, rl.batches)}" if found.left_out else ""
    rows = tuple(row.model_dump(exclude={"note"}) for row in found.rows)
    return Result(
        verdict="done",
        summary=f"report: {work.job.folder / 'rl' / 'report.html'}",
        closing=f"verdict: truth exact on {found.truth.tokens} tokens; stock differs at {found.mismatch.nonzero}{left}",
        ids={"rl": "rl"},
        rows=rows,
        total=len(rows),
    )
