"""What a client sees, in both eras of the protocol; the worker is the stand-in of tests/server/conftest.py."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import anyio
import pytest
from mcp import Client

from samebits.server.mcp.app import INSTRUCTIONS

pytestmark = [pytest.mark.anyio, pytest.mark.usefixtures("strays")]
TOOLS = {
    "inspect_setup",
    "measure_gap",
    "capture_activations",
    "diff_ops",
    "minimize_repro",
    "build_kernel",
    "propose_change",
    "apply_change",
    "run_regression",
    "wait_job",
    "cancel_job",
}
LIMIT_CHARS = 10_200
"""3,000 tokens at 3.4 characters each, as tokenizers find in JSON."""
WAIT_S = 120.0
eras = pytest.mark.parametrize("era", ["legacy", "auto"])


def nodes(schema: Any) -> list[dict[str, Any]]:
    """Every schema inside a schema."""
    found = []
    if isinstance(schema, dict):
        found.append(schema)
        for key, value in schema.items():
            inner = value.values() if key in ("properties", "$defs") else value if isinstance(value, list) else [value]
            for node in inner:
                found += nodes(node)
    return found


@eras
async def test_the_list_is_short_and_complete(era: str, connected: Any) -> None:
    async with connected(era) as client:
        listed = await client.list_tools()
    text = listed.model_dump_json(by_alias=True, exclude_none=True)
    assert {tool.name for tool in listed.tools} == TOOLS
    assert len(text) < LIMIT_CHARS
    for tool in listed.tools:
        assert tool.title
        assert tool.annotations is not None
        assert tool.annotations.read_only_hint is not None
        assert tool.output_schema is not None
        assert 20 < len(tool.description) < 2048
        assert len(f"mcp__plugin_samebits_samebits__{tool.name}") <= 63
        assert [
            n for n in nodes(tool.input_schema) + nodes(tool.output_schema) if isinstance(n.get("title"), str)
        ] == []
        assert not {"anyOf", "oneOf", "allOf"} & tool.input_schema.keys()
    assert len(INSTRUCTIONS.read_text()) < 2048


async def test_read_only_lists_only_what_starts_nothing(connected: Any) -> None:
    async with connected(read_only=True) as client:
        listed = await client.list_tools()
        assert {tool.name for tool in listed.tools} == {"inspect_setup", "wait_job"}
        assert all(tool.annotations.read_only_hint for tool in listed.tools)
        assert (await client.call_tool("measure_gap", {})).is_error


PLANTED = """#!/bin/sh
touch {ran}
"""


async def test_read_only_runs_no_file_of_the_project(connected: Any, project: Path, tmp_path: Path) -> None:
    """Its interpreter, its python: side, its variables and its modules are all planted; the control is a server that
    may do work, under which the interpreter of the project's file runs."""
    ran = tmp_path / "ran"
    planted = f"open({str(ran)!r}, 'a').close()\n"
    (project / "worker").write_text(PLANTED.format(ran=ran))
    for name in ("planted.py", "sitecustomize.py", "torch.py"):
        (project / name).write_text(planted)
    file = project / "samebits.toml"
    text = file.read_text().replace(
        'model = "model"', f'side = "python:planted:f"\nenv = {{ PYTHONPATH = "{project}" }}'
    )
    file.write_text(text)
    async with connected(read_only=True) as client:
        answer = (await client.call_tool("inspect_setup", {})).structured_content
        while answer["state"] in ("queued", "running"):
            answer = (await client.call_tool("wait_job", {"job": answer["job"]})).structured_content
    assert not ran.exists()
    rows = {row["check"]: row["outcome"] for row in answer["rows"]}
    assert rows["rollout side"] == "not looked at"
    assert answer["verdict"] == "unjudged"
    async with connected() as client:
        await client.call_tool("inspect_setup", {})
    assert ran.exists()


@eras
async def test_a_call_gives_the_flat_answer_and_artifacts_as_ids(era: str, connected: Any, doing: Any) -> None:
    async with connected(era) as client:
        result = await client.call_tool("measure_gap", doing("artifact", 5))
        answer = result.structured_content
        assert (answer["state"], answer["verdict"]) == ("succeeded", "equal")
        assert answer["ids"] == {"gap": f"{answer['job']}/gap"}
        assert json.loads(result.content[0].text) == answer, "what reads only text must see the same"


@eras
async def test_long_work_becomes_a_job_that_wait_job_answers_for(
    era: str, connected: Any, doing: Any, project: Path
) -> None:
    async with connected(era, patience_s=0.3) as client:
        begun = (await client.call_tool("measure_gap", doing("until"))).structured_content
        assert begun["state"] in ("queued", "running")
        assert begun["verdict"] == ""
        assert begun["next"] == f"wait_job(job={begun['job']!r})"
        assert re.fullmatch(r"(stand-in: working, \d+ s ago)?", begun["progress"])
        (project / ".samebits" / "jobs" / begun["job"] / "go").touch()
        while (answer := (await client.call_tool("wait_job", {"job": begun["job"]})).structured_content)["state"] in (
            "queued",
            "running",
        ):
            pass
        assert answer["verdict"] == "equal"
        listing = (await client.call_tool("wait_job", {})).structured_content
        assert [(row["job"], row["state"]) for row in listing["rows"]] == [(begun["job"], "succeeded")]


@eras
async def test_progress_reaches_a_client_that_asks(era: str, connected: Any, doing: Any) -> None:
    heard = []

    async def hear(progress: float, total: float | None, message: str | None) -> None:
        heard.append(message)

    async with connected(era) as client:
        await client.call_tool("measure_gap", doing("sleep", 0.2), progress_callback=hear)
        with anyio.fail_after(WAIT_S):
            while not heard:
                await anyio.sleep(0.01)
    assert heard == ["stand-in: working"]


@eras
async def test_a_cancelled_call_cancels_its_job(era: str, connected: Any, doing: Any, project: Path) -> None:
    async with connected(era) as client:
        with anyio.move_on_after(WAIT_S) as scope:
            async with anyio.create_task_group() as group:

                async def call() -> None:
                    await client.call_tool("measure_gap", doing("sleep", 600))

                group.start_soon(call)
                while not list((project / ".samebits" / "jobs").glob("*/events.jsonl")):
                    await anyio.sleep(0.05)
                group.cancel_scope.cancel()
        assert not scope.cancelled_caught
        with anyio.fail_after(WAIT_S):
            while True:
                rows = (await client.call_tool("wait_job", {})).structured_content["rows"]
                if rows[0]["state"] == "cancelled":
                    break
                await anyio.sleep(0.05)


async def test_cancel_job_ends_it_once(connected: Any, doing: Any, error_of: Any) -> None:
    async with connected(patience_s=0.5) as client:
        job = (await client.call_tool("measure_gap", doing("daemon"))).structured_content["job"]
        with anyio.fail_after(WAIT_S):
            while True:
                answer = await client.call_tool("cancel_job", {"job": job})
                if answer.is_error or answer.structured_content["state"] == "cancelled":
                    break
        again = error_of(await client.call_tool("cancel_job", {"job": job}))
        assert "has ended already (cancelled). Next: wait_job" in again
        assert "was cancelled" in error_of(await client.call_tool("wait_job", {"job": job}))


@pytest.mark.parametrize(
    ("tool", "arguments", "words"),
    [
        ("measure_gap", {"config": "nowhere"}, "no experiment file here. Next: run `samebits init`"),
        ("measure_gap", {"config": "../project"}, "outside the allowed folders. Next: name a path below"),
        ("measure_gap", {"config": "/etc"}, "outside the allowed folders"),
        ("measure_gap", {"config": "link"}, "outside the allowed folders"),
        ("measure_gap", {"overrides": ["rollout.model=/etc"]}, "rollout.model '/etc': outside the allowed folders"),
        ("measure_gap", {"overrides": ["rollout.model=leaky"]}, "link 'weights' leads outside the allowed folders"),
        ("measure_gap", {"overrides": ["trainer.kernels=['/etc']"]}, "trainer.kernels[0] '/etc': outside"),
        ("measure_gap", {"overrides": ["rollout.side=file:/etc/passwd"]}, "rollout.side '/etc/passwd': outside"),
        ("measure_gap", {"overrides": ["pool.worker_python=/bin/sh"]}, "have the person who runs the server give"),
        ("measure_gap", {"overrides": ["rollout.dtipe=x"]}, "unknown key. Next:"),
        ("measure_gap", {"rollout": "no-such-job/rollout"}, "no such artifact. Next: give an id"),
        ("measure_gap", {"rollout": "\x00"}, "NUL character. Next:"),
        ("capture_activations", {"side": "neither"}, "side"),
        ("minimize_repro", {"divergence": "gone/divergence"}, "no such artifact. Next: give an id"),
        ("build_kernel", {"candidate": "../x"}, "outside the allowed folders"),
        ("wait_job", {"job": "gone"}, "no job 'gone'. Next: wait_job() lists"),
        ("wait_job", {"job": "../jobs"}, "no job '../jobs'. Next:"),
        ("cancel_job", {"job": "gone"}, "no job 'gone'. Next:"),
        ("no_such_tool", {}, "no_such_tool"),
        ("build_kernel", {"candidate": "silu_mull"}, "neither a candidate folder nor a library operator"),
    ],
)
async def test_a_mistake_is_said_with_what_to_do_next(
    tool: str, arguments: dict[str, Any], words: str, connected: Any, project: Path, error_of: Any
) -> None:
    (project / "link").symlink_to("/etc")
    (project / "leaky").mkdir()
    (project / "leaky" / "weights").symlink_to("/etc/passwd")
    async with connected() as client:
        assert words in error_of(await client.call_tool(tool, arguments))
    assert list((project / ".samebits" / "jobs").glob("*/request.json")) == [], "a refused call makes no job"


async def test_a_link_that_leaves_the_roots_is_found_wherever_below_a_folder_it_is(
    connected: Any, project: Path, error_of: Any
) -> None:
    deep = project / "model" / "sub" / "sub"
    deep.mkdir(parents=True)
    (project / "shared").mkdir()
    (deep / "w").symlink_to("../../../shared")
    (deep / "again").symlink_to("../..")
    async with connected() as client:
        assert not (await client.call_tool("measure_gap", {})).is_error, (
            "the control: links inside the roots, a loop too"
        )
        (project / "shared" / "x").symlink_to("/etc/passwd")
        told = error_of(await client.call_tool("measure_gap", {}))
        assert "its link 'sub/sub/w/x' leads outside the allowed folders. Next:" in told
        (project / "shared" / "x").unlink()
        (deep / "out").symlink_to("/etc")
        assert "its link 'sub/sub/out' leads outside" in error_of(await client.call_tool("measure_gap", {}))


async def test_a_job_that_links_out_of_the_roots_is_not_read(
    connected: Any, project: Path, tmp_path: Path, error_of: Any
) -> None:
    outside = tmp_path / "outside" / "mine"
    outside.mkdir(parents=True)
    (outside / "request.json").write_text('{"kind": "measure"}')
    (outside / "log.txt").write_text("secret")
    (project / ".samebits" / "jobs").mkdir(parents=True)
    (project / ".samebits" / "jobs" / "mine").symlink_to(outside)
    async with connected() as client:
        assert "outside the roots" in error_of(await client.call_tool("wait_job", {"job": "mine", "log_lines": 5}))


async def test_an_id_of_another_kind_or_of_a_damaged_artifact_is_refused(
    connected: Any, doing: Any, error_of: Any, project: Path
) -> None:
    async with connected() as client:
        job = (await client.call_tool("measure_gap", doing("artifact", 5))).structured_content["job"]
        manifest = project / ".samebits" / "jobs" / job / "gap" / "manifest.json"
        for content, words in (('{"kind": "gap"}', "is a gap"), ("torn {", "is no artifact")):
            manifest.write_text(content)
            told = error_of(await client.call_tool("minimize_repro", {"divergence": f"{job}/gap"}))
            assert words in told
            assert "Next: give the id of a divergence" in told
        manifest.write_text('{"kind": "rollout"}')
        taken = await client.call_tool("measure_gap", doing("elsewhere") | {"rollout": f"{job}/gap"})
        assert taken.structured_content["ids"] == {"rollout": f"{job}/gap"}, "an id again, though it is another job's"
        assert taken.structured_content["next"] == f"diff_ops rollout={job}/gap max_operators=4"
        assert taken.structured_content["rows"] == [{"b": 0}]


async def test_an_id_that_leaves_its_job_is_refused(connected: Any, doing: Any, error_of: Any) -> None:
    async with connected() as client:
        job = (await client.call_tool("measure_gap", doing("artifact", 5))).structured_content["job"]
        for text in (f"{job}/../../../samebits.toml", f"{job}/outside/passwd"):
            told = error_of(await client.call_tool("minimize_repro", {"divergence": text}))
            assert "leaves its job's folder. Next:" in told


@pytest.mark.parametrize(
    ("do", "words"),
    [
        ("segfault", ["killed by signal 11", "log_lines=60", "untrusted"]),
        ("torn", ["result.json is damaged"]),
    ],
)
async def test_a_failed_job_is_an_error_that_says_what_to_call(
    do: str, words: list[str], connected: Any, doing: Any, error_of: Any
) -> None:
    async with connected() as client:
        told = error_of(await client.call_tool("measure_gap", doing(do)))
    for word in [*words, "Next:"]:
        assert word in told


@eras
async def test_a_failed_job_is_resumed_by_its_id_where_an_experiment_is_named(
    era: str, connected: Any, doing: Any, error_of: Any, project: Path
) -> None:
    async with connected(era) as client:
        told = error_of(await client.call_tool("measure_gap", doing("segfault")))
        (job,) = (path.parent.name for path in project.glob(".samebits/jobs/*/request.json"))
        assert told.endswith(f"; measure_gap(config={job!r}) resumes it as it was asked.")
        again = error_of(await client.call_tool("measure_gap", {"config": job}))
        assert "killed by signal 11" in again
        rows = (await client.call_tool("wait_job", {})).structured_content["rows"]
        assert [row.get("resumes") for row in rows] == [job, None]
        before, after = (project / ".samebits" / "jobs" / row["job"] / "request.json" for row in reversed(rows))
        assert after.read_bytes() == before.read_bytes()
        for arguments, words in (
            ({"config": job, "rollout": "x"}, "is resumed as it was asked. Next: leave the other arguments out"),
            ({"config": job, "axes": []}, "is resumed as it was asked"),
        ):
            assert words in error_of(await client.call_tool("measure_gap", arguments))
        told = error_of(await client.call_tool("diff_ops", {"config": job}))
        assert f"job {job!r}: is one of measure_gap. Next: give its id to that tool" in told


async def test_a_capture_is_resumed_for_its_own_side_alone(
    connected: Any, doing: Any, error_of: Any, project: Path
) -> None:
    async with connected() as client:
        told = error_of(await client.call_tool("capture_activations", doing("segfault") | {"side": "trainer"}))
        (job,) = (path.parent.name for path in project.glob(".samebits/jobs/*/request.json"))
        assert f"capture_activations(config={job!r}, side=as before) resumes it" in told
        told = error_of(await client.call_tool("capture_activations", {"config": job, "side": "rollout"}))
        assert "is a capture of the trainer side. Next: say side='trainer'" in told
        again = error_of(await client.call_tool("capture_activations", {"config": job, "side": "trainer"}))
        assert "killed by signal 11" in again


async def test_a_job_is_not_resumed_out_of_the_roots(connected: Any, doing: Any, error_of: Any, project: Path) -> None:
    async with connected() as client:
        error_of(await client.call_tool("measure_gap", doing("segfault")))
        (request,) = project.glob(".samebits/jobs/*/request.json")
        asked = json.loads(request.read_text())
        asked["experiment"]["rollout"]["model"] = "/etc"
        request.write_text(json.dumps(asked))
        told = error_of(await client.call_tool("measure_gap", {"config": request.parent.name}))
        assert "rollout.model '/etc': outside the allowed folders" in told
        asked["experiment"]["rollout"]["model"] = ""
        request.write_text(json.dumps(asked | {"rollout": "/etc/passwd"}))
        told = error_of(await client.call_tool("measure_gap", {"config": request.parent.name}))
        assert "rollout '/etc/passwd': outside the allowed folders" in told


async def test_a_time_limit_is_an_error_that_names_the_key(connected: Any, doing: Any, error_of: Any) -> None:
    async with connected() as client:
        told = error_of(await client.call_tool("measure_gap", doing("hang", time_limit_s=1)))
    assert "time limit of 1 s. Next: raise pool.time_limit_s" in told


async def test_untrusted_text_is_cleaned_and_a_long_answer_is_cut_with_a_pointer(connected: Any, doing: Any) -> None:
    async with connected() as client:
        result = await client.call_tool("measure_gap", doing("rows", 2000))
        answer, text = result.structured_content, json.dumps(result.structured_content, ensure_ascii=False)
        assert len(text) <= 20_000
        assert not re.search("[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]", text)
        assert answer["rows"][0]["site"] == "layers.0"
        assert answer["summary"] == "ab"
        assert (answer["truncated"], answer["total"]) == (True, 2000)
        assert answer["next"].endswith(f"All rows: resource job://{answer['job']}/file/result.json")
        page = await client.read_resource(f"job://{answer['job']}/page/2/result.json")
        assert page.contents[0].text.startswith("[untrusted file content, page 2 of ")


async def test_logs_are_read_by_lines_and_match(connected: Any, doing: Any) -> None:
    async with connected() as client:
        job = (await client.call_tool("measure_gap", doing("print"))).structured_content["job"]
        both = (await client.call_tool("wait_job", {"job": job, "log_lines": 9})).structured_content
        assert both["untrusted_log"] == '[log.txt]\n{"jsonrpc": "2.0", "id": 1, "result": {}}\nnative write'
        one = (await client.call_tool("wait_job", {"job": job, "log_lines": 9, "log_match": "nat"})).structured_content
        assert one["untrusted_log"] == "[log.txt]\nnative write"
        resource = await client.read_resource(f"job://{job}/log")
        assert "\x1b" not in resource.contents[0].text
        assert "native write" in resource.contents[0].text


@eras
async def test_files_of_a_job_are_resources_with_pages(era: str, connected: Any, doing: Any) -> None:
    async with connected(era) as client:
        templates = (await client.list_resource_templates()).resource_templates
        assert len(templates) == 6
        job = (await client.call_tool("measure_gap", doing("artifact", 45_000))).structured_content["job"]
        files = (await client.read_resource(f"job://{job}/files")).contents[0].text
        assert "45000\tgap/manifest.json" in files
        pages = [
            (await client.read_resource(f"job://{job}/page/{number}/gap/manifest.json")).contents[0].text
            for number in (1, 2, 3)
        ]
        assert "".join(page.partition("\n")[2] for page in pages) == "m" * 45_000
        for bad in ("page/4/gap/manifest.json", "file/gap/gap.safetensors", "file/outside/passwd", "file/gone"):
            assert "Next:" in await refusal(client, f"job://{job}/{bad}")
        assert await refusal(client, f"job://{job}/file/../../../samebits.toml")
        assert await refusal(client, "job://gone/log")


@eras
async def test_the_newest_jobs_are_listed_as_resources_that_can_be_read(
    era: str, connected: Any, doing: Any, project: Path
) -> None:
    async with connected(era) as client:
        assert (await client.list_resources()).resources == []
        jobs = [(await client.call_tool("measure_gap", doing("print"))).structured_content["job"] for _ in range(2)]
        listed = {str(resource.uri): resource.title for resource in (await client.list_resources()).resources}
        assert list(listed) == [f"job://{job}/{name}" for job in reversed(jobs) for name in ("log", "files")]
        assert set(listed.values()) == {"End of the log of measure, succeeded", "Files of measure, succeeded"}
        for uri in listed:
            assert (await client.read_resource(uri)).contents[0].text


async def test_the_list_of_a_jobs_files_goes_on_from_page_to_page(connected: Any, doing: Any, project: Path) -> None:
    async with connected() as client:
        job = (await client.call_tool("measure_gap", doing("sleep"))).structured_content["job"]
        for number in range(1200):
            (project / ".samebits" / "jobs" / job / f"many-{number:04d}").touch()
        pages = [
            (await client.read_resource(f"job://{job}/{name}")).contents[0].text.split("\n")
            for name in ("files", "files/2", "files/3")
        ]
        assert [page[-1].partition(":")[2] for page in pages[:2]] == [f" job://{job}/files/{n}]" for n in (2, 3)]
        names = [line.partition("\t")[2] for page in pages for line in page if "\t" in line]
        assert len(names) == len(set(names)) > 1200
        assert {f"many-{number:04d}" for number in range(1200)} < set(names)
        assert "Next:" in await refusal(client, f"job://{job}/files/4")


@pytest.mark.parametrize("character", ["\u00e9", "\u20ac", "\U0001f600"])
async def test_no_character_is_cut_in_two_by_a_page(character: str, connected: Any, doing: Any, project: Path) -> None:
    """Of two, three and four bytes, at every place of the boundary."""
    async with connected() as client:
        job = (await client.call_tool("measure_gap", doing("sleep"))).structured_content["job"]
        for before in range(4):
            text = "a" * before + character * 25_000
            (project / ".samebits" / "jobs" / job / "words.txt").write_text(text, encoding="utf-8")
            count = -(-len(text.encode()) // 20_000)
            pages = [
                (await client.read_resource(f"job://{job}/page/{number}/words.txt")).contents[0].text
                for number in range(1, count + 1)
            ]
            assert "".join(page.partition("\n")[2] for page in pages) == text


async def refusal(client: Client, uri: str) -> str:
    with pytest.raises(Exception, match=r".") as caught:
        await client.read_resource(uri)
    return str(caught.value)


@eras
async def test_the_prompts_name_the_experiment_and_only_tools_that_exist(era: str, connected: Any) -> None:
    async with connected(era) as client:
        prompts = (await client.list_prompts()).prompts
        assert {prompt.name for prompt in prompts} == {"align-model", "explain-gap"}
        for prompt in prompts:
            got = await client.get_prompt(prompt.name, {"config": "some/samebits.toml"})
            text = got.messages[0].content.text
            assert "some/samebits.toml" in text
            named = set(re.findall(r"\b[a-z]+_[a-z]+\b", text)) - {"untrusted_log"}
            assert named <= TOOLS
            assert {"measure_gap", "diff_ops"} <= named


@pytest.mark.parametrize("setting", ["auto", "required"])
async def test_the_projects_file_and_no_argument_says_whether_candidates_need_a_sandbox(
    setting: str, connected: Any, project: Path
) -> None:
    file = project / "samebits.toml"
    file.write_text(file.read_text() + f'[gate]\nsandbox = "{setting}"\n')
    async with connected() as client:
        schema = {tool.name: tool.input_schema for tool in (await client.list_tools()).tools}["build_kernel"]
        assert "sandbox" not in schema["properties"]
        await client.call_tool("build_kernel", {"candidate": "rms_norm"})
    (request,) = (json.loads(path.read_text()) for path in project.glob(".samebits/jobs/*/request.json"))
    assert (request["kind"], request["sandbox"]) == ("build", setting)
