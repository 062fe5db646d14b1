"""The policy in force: a good file replaces it and says what has changed, a bad one is refused whole with its line."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import pytest
import trio
import trio.testing
from kvcore.drivers.gateway.bodies import Body
from kvcore.drivers.gateway.config import GatewayConfig, HintCaps, HintSettings
from kvcore.drivers.gateway.config_file import InvalidGatewayConfig
from kvcore.drivers.gateway.policy_desk import PolicyDesk, as_text, read_text
from kvcore.drivers.trio import open_scheduler

from kvcore.errors import InvalidPolicy
from kvcore.events import TimerFired
from kvcore.policy_file import load_policy
from kvcore.request import Request, WorkerConfig
from kvcore.scheduler import Scheduler

POLICY = """\
default_policy_family: regular
uncached_isl_buckets: [{min_tokens: 0, bucket: all}]
policy_classes:
  - {name: premium, policy_family: premium, cache_bucket: all, quantum: 512}
  - {name: regular, policy_family: regular, cache_bucket: all, quantum: 128}
"""


def written(folder: Path, text: str | bytes) -> str:
    path = folder / "policy.yaml"
    path.write_bytes(text.encode() if isinstance(text, str) else text)
    return str(path)


def desk(folder: Path, text: str | bytes = POLICY, **fields) -> PolicyDesk:
    return PolicyDesk(GatewayConfig(policy=written(folder, text), **fields))


def classes(found: PolicyDesk) -> list[str]:
    assert found.profile is not None
    return [item.name for item in found.profile.classes]


def test_without_a_file_one_class_takes_every_request():
    found = PolicyDesk(GatewayConfig())
    assert found.profile is None
    assert as_text(found.profile) == ""


def test_the_file_is_in_force_and_is_what_is_shown(tmp_path):
    found = desk(tmp_path)
    assert classes(found) == ["premium", "regular"]
    assert found.config.scheduler_config.profile == found.profile == load_policy(POLICY).root
    assert load_policy(as_text(found.profile)).root == found.profile


def test_what_an_author_may_not_have_meant_is_said(tmp_path):
    """A premium class with the smallest quantum, as `kvcore policy check` warns."""
    assert desk(tmp_path).warnings == ()
    [warning] = desk(tmp_path, POLICY.replace("512", "64")).warnings
    assert "premium" in warning


def test_a_models_profile_is_chosen_by_name(tmp_path):
    text = "models:\n  llama:\n" + "".join([f"    {line}\n" for line in POLICY.splitlines()])
    assert classes(desk(tmp_path, text, model="llama")) == ["premium", "regular"]
    with pytest.raises(InvalidPolicy, match="name one of its models: llama"):
        desk(tmp_path, text)
    with pytest.raises(InvalidPolicy, match="nor one for the model 'other'"):
        desk(tmp_path, text, model="other")


@pytest.mark.parametrize(("text", "place"), [
    (POLICY.replace("quantum: 128", "quantum: 0"), "policy.yaml:5: "),
    (POLICY.replace("quantum: 128", "quantun: 1"), "policy.yaml:5: "),
    (POLICY + "  - {name: premium, quantum: 1}\n", "policy.yaml:6: "),
    (POLICY.replace("quantum: 128", "quantum: 128, admission: {type: no_such}"), "policy.yaml:5: "),
    (b"# fine\n\xff", "policy.yaml:2: "),
    ("a: [", "policy.yaml:1: "),
    ("", "policy.yaml:1: "),
])
def test_a_bad_file_is_refused_with_its_line(tmp_path, text, place):
    with pytest.raises((InvalidPolicy, InvalidGatewayConfig)) as caught:
        desk(tmp_path, text)
    assert place in str(caught.value)


def test_files_that_cannot_be_read_are_named(tmp_path):
    with pytest.raises(InvalidGatewayConfig, match=r"nothing\.yaml: No such file or directory"):
        read_text(str(tmp_path / "nothing.yaml"))
    with pytest.raises(InvalidGatewayConfig, match="Is a directory"):
        read_text(str(tmp_path))
    with pytest.raises(InvalidGatewayConfig, match="larger than"):
        read_text(written(tmp_path, b"#" * ((4 << 20) + 1)))
    with pytest.raises(InvalidGatewayConfig, match="null byte"):
        read_text("a\0b")


def test_caps_of_a_class_that_is_not_there_are_a_mistake(tmp_path):
    """A typo there would leave a class without its caps and without a word (E83)."""
    with pytest.raises(InvalidGatewayConfig, match=r"hints\.classes\.premum: .*did you mean premium\?"):
        desk(tmp_path, hints=HintSettings(classes={"premum": HintCaps()}))
    with pytest.raises(InvalidGatewayConfig, match="known are default"):
        PolicyDesk(GatewayConfig(hints=HintSettings(classes={"xyz": HintCaps()})))


def reloading(folder: Path, *texts: str | bytes, hints: HintSettings | None = None):
    """Reload each text in turn; yields what came of it with the profile that the scheduler has then."""
    found = desk(folder, hints=hints or HintSettings())

    async def story():
        outcomes = []
        async with open_scheduler(found.config.scheduler_config, tap=found.tap) as router:
            for text in texts:
                written(folder, text)
                try:
                    outcome = await found.reload(router)
                except (InvalidPolicy, InvalidGatewayConfig) as error:
                    outcome = str(error)
                outcomes.append((outcome, await router.read(lambda core: core.profile)))
        return outcomes

    return found, trio.run(story)


def test_a_reload_says_what_has_changed(tmp_path):
    found, [(diff, profile)] = reloading(tmp_path, POLICY.replace("quantum: 128", "quantum: 256"))
    assert [line for line in diff if line[0] in "+-" and line[:3] not in ("+++", "---")] == [
        "-  quantum: 128", "+  quantum: 256"]
    assert profile == found.profile
    assert [item.quantum for item in profile.classes] == [512, 256]
    assert found.generation == 1


def test_the_same_policy_changes_nothing_however_it_is_written(tmp_path):
    found, [(diff, profile)] = reloading(tmp_path, "# a comment\n" + POLICY)
    assert diff == []
    assert profile is not None
    assert found.generation == 0


@pytest.mark.parametrize("bad", [
    POLICY.replace("quantum: 128", "quantum: x"), "", b"\xff", POLICY.replace("quantum: 128", "admission: {type: no}"),
    POLICY.replace("premium", "gold"),
])
def test_a_bad_file_leaves_the_old_policy(tmp_path, bad):
    found, [(message, profile), (again, later)] = reloading(
        tmp_path, bad, POLICY.replace("512", "1024"), hints=HintSettings(classes={"premium": HintCaps()}))
    assert isinstance(message, str)
    assert profile == load_policy(POLICY).root
    assert again != []
    assert later == found.profile
    assert found.generation == 1


def test_a_class_index_is_named_under_the_policy_that_it_belongs_to(tmp_path):
    """A request that the new policy lets run, in the step that puts it in force, has a class index of the new one."""
    waits = POLICY.replace("quantum: 128", "quantum: 128, prefill_busy_threshold: 0")
    found = desk(tmp_path, waits)
    written(tmp_path, POLICY.replace("policy_classes:", "policy_classes:\n  - {name: first, quantum: 1}"))
    named: list[tuple[str, str | None]] = []

    async def story():
        config = found.config.scheduler_config
        async with open_scheduler(config, tap=found.tap) as router, trio.open_nursery() as nursery:
            await router.upsert_worker(WorkerConfig(1))

            async def client(name: str) -> None:
                async with router.admit(Request(name, 8)) as lease:
                    named.append((name, found.class_name(lease.class_index)))
                    await trio.sleep(60)

            nursery.start_soon(client, "runs")
            await trio.testing.wait_all_tasks_blocked()
            nursery.start_soon(client, "waits")
            await trio.testing.wait_all_tasks_blocked()
            assert named == [("runs", "regular")]
            await found.reload(router)
            await trio.testing.wait_all_tasks_blocked()
            nursery.cancel_scope.cancel()

    trio.run(story)
    assert named[1] == ("waits", "regular")
    assert [found.class_name(index) for index in range(-1, 4)] == [None, "first", "premium", "regular", None]


def test_hints_are_read_under_the_new_policy(tmp_path):
    caps = HintSettings(priority_max=10.0, classes={"regular": HintCaps(priority_max=1.0)})
    found, _ = reloading(tmp_path, POLICY.replace("premium", "gold"), hints=caps)
    hints = found.hints.read([(b"x-kvcore-policy-class", b"premium"), (b"x-kvcore-priority", b"50")], Body())
    assert (hints.policy_class, hints.priority_jump) == ("premium", 1.0)  # it will be in the default family now


def test_steps_are_passed_on():
    heard = []
    found = PolicyDesk(GatewayConfig())
    found.then = lambda *step: heard.append(step)
    step = [TimerFired(1)], [], object()
    found.tap(*step)
    assert heard == [step]


def test_a_file_that_has_gone_leaves_the_old_policy(tmp_path):
    found = desk(tmp_path)

    async def story():
        async with open_scheduler(found.config.scheduler_config, tap=found.tap) as router:
            (tmp_path / "policy.yaml").unlink()
            with pytest.raises(InvalidGatewayConfig, match="No such file"):
                await found.reload(router)
            return await router.read(Scheduler.digest), await router.read(lambda core: core.profile)

    assert trio.run(story)[1] == found.profile


def test_without_a_file_there_is_nothing_to_read_again():
    found = PolicyDesk(GatewayConfig())

    async def story():
        async with open_scheduler() as router:
            with pytest.raises(InvalidGatewayConfig, match="there is no policy file"):
                await found.reload(router)

    trio.run(story)


def test_reloads_at_the_same_time_come_one_after_the_other(tmp_path):
    found = desk(tmp_path)
    written(tmp_path, POLICY.replace("512", "1024"))

    async def story():
        diffs = []
        config = found.config.scheduler_config
        async with open_scheduler(config, tap=found.tap) as router, trio.open_nursery() as nursery:
            async def reload():
                diffs.append(await found.reload(router))

            for _ in range(3):
                nursery.start_soon(partial(reload))
        return diffs

    assert sorted(map(bool, trio.run(story))) == [False, False, True]
