"""Workers come, are chosen, change and go."""

from __future__ import annotations

import pytest
import trio
from trio.testing import wait_all_tasks_blocked

from smg_trio.core.engines import EngineProtocol
from smg_trio.core.errors import (
    Conflict,
    EngineDead,
    InvalidRequest,
    NoReadyWorker,
    NotFound,
    PixelFormMissing,
    UnsupportedFeature,
)
from smg_trio.core.media import PixelForm
from smg_trio.core.workers import (
    BreakerOverrides,
    HealthOverrides,
    PendingWorker,
    WorkerPatch,
    WorkerSpec,
    WorkerState,
)
from smg_trio.routing.breaker import BreakerLimits, BreakerState
from smg_trio.routing.lifecycle import HealthThresholds
from smg_trio.routing.overload import WorkersOverloaded
from smg_trio.routing.policies import CacheAware, RoundRobin, manual
from smg_trio.routing.rules import RoutingRules
from smg_trio.testing.vision import VisionModel
from tests.routing.harness import answer, fleet

RAW, DONE = PixelForm.UINT8, PixelForm.NORMALISED
QUICK = RoutingRules(breaker=BreakerLimits(failure_threshold=2, success_threshold=1, timeout_s=60, window_s=120))


def taken(bench, **options):
    """The worker a lease is on, closed at once."""
    with bench.lease(**options) as lease:
        return lease.worker.spec.worker_id


# ---- choosing ---------------------------------------------------------------------------------------------


async def test_a_lease_counts_as_load_until_it_is_closed(tmp_path, autojump_clock):
    async with fleet(tmp_path) as bench:
        await bench.ready("a")
        lease = bench.lease()
        assert await answer(lease) == 3
        assert (bench.registry.load("a"), bench.registry.selections("a")) == (1, 1)
        lease.close()
        lease.close()
        assert (bench.registry.load("a"), bench.registry.selections("a")) == (0, 1)


async def test_a_model_without_a_worker_or_without_a_ready_one_is_refused_with_the_reason(tmp_path, autojump_clock):
    async with fleet(tmp_path) as bench:
        with pytest.raises(NoReadyWorker, match=r"none is registered"):
            bench.lease()
        await bench.registry.add(bench.spec("a"))
        with pytest.raises(NoReadyWorker, match=r"No worker for model `m` is ready \(ipc://.*/a: .+\)") as caught:
            bench.lease()
        assert (caught.value.code, caught.value.status) == ("no_available_workers", 503)


async def test_only_ready_workers_are_chosen(tmp_path, autojump_clock):
    async with fleet(tmp_path, policy=RoundRobin()) as bench:
        await bench.registry.add(bench.spec("a"))
        await bench.ready("b")
        assert {taken(bench) for _ in range(4)} == {"b"}
        bench.start_engine("a")
        await bench.registry.get("a").wait_state(WorkerState.READY)
        assert {taken(bench) for _ in range(4)} == {"a", "b"}


async def test_workers_that_failed_a_request_are_avoided_while_there_is_another(tmp_path, autojump_clock):
    async with fleet(tmp_path, policy=RoundRobin()) as bench:
        await bench.ready("a")
        await bench.ready("b")
        assert {taken(bench, avoid={"a"}) for _ in range(4)} == {"b"}
        assert {taken(bench, avoid={"a", "b"}) for _ in range(4)} == {"a", "b"}


async def test_a_routing_key_reaches_the_policy(tmp_path, autojump_clock):
    async with fleet(tmp_path, policy=manual("min_group")) as bench:
        await bench.ready("a")
        await bench.ready("b")
        home = taken(bench, routing_key="k")
        assert {taken(bench, routing_key="k") for _ in range(5)} == {home}
        assert taken(bench, routing_key="other") != home


async def test_what_an_engine_s_cache_held_is_forgotten_with_the_engine(tmp_path, autojump_clock):
    async with fleet(tmp_path, policy=CacheAware()) as bench:
        await bench.ready("a")
        await bench.ready("b")
        prompt = list(range(100))

        def home():
            with bench.registry.lease("m", prompt) as lease:
                return lease.worker.spec.worker_id

        first = home()
        assert {home() for _ in range(3)} == {first}
        bench.kill_engine(first)
        await bench.registry.get(first).wait_state(WorkerState.NOT_READY)
        await wait_all_tasks_blocked()
        bench.start_engine(first)
        await bench.registry.get(first).wait_state(WorkerState.READY)
        # Both are as good now, and turns go on: it would be the same one every time if the tree still knew it.
        assert home() != first


# ---- breaker and overload ---------------------------------------------------------------------------------


async def test_a_worker_whose_breaker_is_open_is_left_out_until_it_is_tried(tmp_path, autojump_clock):
    async with fleet(tmp_path, policy=RoundRobin(), rules=QUICK) as bench:
        await bench.ready("a")
        await bench.ready("b")
        for _ in range(2):
            with bench.lease(avoid={"b"}) as lease:
                lease.failed(EngineDead("gone"))
        assert bench.registry.breaker("a").state is BreakerState.OPEN
        assert bench.registry.snapshot("a").reason == "circuit breaker open"
        assert {taken(bench) for _ in range(4)} == {"b"}
        await trio.sleep(61)
        with bench.lease(avoid={"b"}) as lease:
            assert lease.worker.spec.worker_id == "a"
            lease.succeeded()
        assert bench.registry.breaker("a").state is BreakerState.CLOSED


async def test_clients_faults_and_clients_that_leave_do_not_open_a_breaker(tmp_path, autojump_clock):
    async with fleet(tmp_path, rules=QUICK) as bench:
        await bench.ready("a")
        for error in (InvalidRequest("bad"), None):
            for _ in range(5):
                with bench.lease() as lease:
                    if error is not None:
                        lease.failed(error)
        assert bench.registry.breaker("a").state is BreakerState.CLOSED


async def test_requests_of_an_engine_that_end_late_do_not_keep_anybody_from_its_successor(tmp_path, autojump_clock):
    async with fleet(tmp_path, rules=QUICK) as bench:
        await bench.ready("a")
        late = [bench.lease() for _ in range(4)]
        for lease in late[:2]:
            lease.failed(EngineDead("gone"))
            lease.close()
        with pytest.raises(NoReadyWorker):
            bench.lease()
        bench.kill_engine("a")
        await bench.registry.get("a").wait_state(WorkerState.NOT_READY)
        bench.start_engine("a")
        await bench.registry.get("a").wait_state(WorkerState.READY)
        bench.lease().close()
        for lease in late[2:]:
            lease.failed(EngineDead("gone"))
            lease.close()
        bench.lease().close()


async def test_new_engines_start_with_a_closed_breaker(tmp_path, autojump_clock):
    async with fleet(tmp_path, rules=QUICK) as bench:
        await bench.ready("a")
        for _ in range(2):
            with bench.lease() as lease:
                lease.failed(EngineDead("gone"))
        with pytest.raises(NoReadyWorker, match="circuit breaker open"):
            bench.lease()
        bench.kill_engine("a")
        await bench.registry.get("a").wait_state(WorkerState.NOT_READY)
        await wait_all_tasks_blocked()
        bench.start_engine("a")
        await bench.registry.get("a").wait_state(WorkerState.READY)
        assert taken(bench) == "a"


async def test_a_breaker_can_be_a_worker_s_own_or_none(tmp_path, autojump_clock):
    async with fleet(tmp_path, rules=QUICK) as bench:
        await bench.ready("a", breaker=BreakerOverrides(disabled=True))
        assert bench.registry.breaker("a") is None
        await bench.ready("b", breaker=BreakerOverrides(failure_threshold=1))
        with bench.lease(avoid={"a"}) as lease:
            lease.failed(EngineDead("gone"))
        assert bench.registry.breaker("b").state is BreakerState.OPEN


async def overload(bench, name, requests=12):
    """Fill a worker whose engine runs one request at a time; closes the leases when told to."""
    done = trio.Event()

    async def one():
        with bench.registry.lease("m", [1], avoid={"a", "b"} - {name}) as lease, trio.CancelScope() as scope:
            bench.nursery.start_soon(_cancel_when, done, scope)
            await answer(lease, max_tokens=8000)

    for _ in range(requests):
        bench.nursery.start_soon(one)
    await trio.sleep(1)  # some hundred steps of the engine, each with its statistics
    assert bench.registry.overloaded(name)
    return done


async def _cancel_when(done, scope):
    await done.wait()
    scope.cancel()


@pytest.mark.parametrize("shed", [False, True])
async def test_an_overloaded_worker_is_left_out_while_another_one_is_not(tmp_path, autojump_clock, shed):
    async with fleet(tmp_path, policy=RoundRobin(), rules=RoutingRules(shed_overload=shed)) as bench:
        for name in ("a", "b"):
            worker = await bench.registry.add(bench.spec(name))
            bench.start_engine(name, max_num_seqs=1)
            await worker.wait_state(WorkerState.READY)
        full_a = await overload(bench, "a")
        assert {taken(bench) for _ in range(4)} == {"b"}
        full_b = await overload(bench, "b", requests=20)
        if shed:
            with pytest.raises(WorkersOverloaded) as caught:
                bench.lease()
            assert (caught.value.status, caught.value.code) == (503, "worker_overload_protection_shed")
        else:
            assert {taken(bench) for _ in range(4)} == {"a"}  # the less loaded of the two
        full_a.set()
        full_b.set()
        await wait_all_tasks_blocked()
        assert (bench.registry.load("a"), bench.registry.load("b")) == (0, 0)
        assert {taken(bench) for _ in range(4)} == {"a", "b"}


# ---- coming -----------------------------------------------------------------------------------------------


async def test_the_same_url_and_the_same_handshake_address_are_refused_by_name(tmp_path, autojump_clock):
    async with fleet(tmp_path) as bench:
        await bench.registry.add(bench.spec("a"))
        url = bench.spec("a").url
        text = f"Worker already exists at URL '{url}' with ID a. Use PUT /workers/a to replace or PATCH /workers/a to "
        with pytest.raises(Conflict, match=text):
            await bench.registry.add(bench.spec("x", url=url))
        with pytest.raises(Conflict, match=text):
            bench.registry.apply(PendingWorker(worker_id="x", url=url), trio.sleep_forever)
        address = bench.registry.get("a").addresses.handshake
        with pytest.raises(Conflict, match=f"would bind handshake address {address}, already claimed by worker {url}"):
            await bench.registry.add(bench.spec("y", handshake_address=address))


async def test_an_application_becomes_a_worker(tmp_path, autojump_clock):
    async with fleet(tmp_path) as bench:
        loaded = trio.Event()

        async def make_spec() -> WorkerSpec:
            await loaded.wait()
            return bench.spec("a")

        bench.registry.apply(PendingWorker(worker_id="a", url=bench.spec("a").url), make_spec)
        assert bench.registry.application("a").state is WorkerState.PENDING
        with pytest.raises(Conflict):
            bench.registry.apply(PendingWorker(worker_id="b", url=bench.spec("a").url), make_spec)
        loaded.set()
        await wait_all_tasks_blocked()
        assert bench.registry.application("a") is None
        assert bench.registry.snapshot("a").state is WorkerState.PENDING


async def test_a_refused_application_stays_visible_with_its_reason_until_its_url_is_asked_for_again(
    tmp_path, autojump_clock
):
    async with fleet(tmp_path) as bench:

        async def make_spec() -> WorkerSpec:
            raise InvalidRequest("ZMQ worker x has unsupported runtime sglang")

        for name in ("a", "b"):
            bench.registry.apply(PendingWorker(worker_id=name, url="ipc:///x"), make_spec)
            await wait_all_tasks_blocked()
        (refused,) = bench.registry.applications()
        assert (refused.worker_id, refused.state) == ("b", WorkerState.FAILED)
        assert refused.reason == "ZMQ worker x has unsupported runtime sglang"
        bench.registry.drain("b")
        assert bench.registry.applications() == []


async def test_a_malformed_url_is_a_refusal_too(tmp_path, autojump_clock):
    async with fleet(tmp_path) as bench:

        async def make_spec() -> WorkerSpec:
            return bench.spec("a", handshake_address="127.0.0.1:5")

        bench.registry.apply(PendingWorker(worker_id="a", url=bench.spec("a").url), make_spec)
        await wait_all_tasks_blocked()
        assert "must be a tcp:// address" in bench.registry.application("a").reason


async def test_errors_of_ours_do_not_reach_the_reason(tmp_path, autojump_clock, caplog):
    async with fleet(tmp_path) as bench:

        async def make_spec() -> WorkerSpec:
            raise RuntimeError("secret")

        bench.registry.apply(PendingWorker(worker_id="a", url="ipc:///x"), make_spec)
        await wait_all_tasks_blocked()
        assert bench.registry.application("a").reason == "internal error"


async def test_an_application_that_is_withdrawn_never_becomes_a_worker(tmp_path, autojump_clock):
    async with fleet(tmp_path) as bench:
        cancelled = trio.Event()

        async def make_spec() -> WorkerSpec:
            try:
                await trio.sleep_forever()
            finally:
                cancelled.set()
            raise AssertionError

        bench.registry.apply(PendingWorker(worker_id="a", url="ipc:///x"), make_spec)
        await wait_all_tasks_blocked()
        bench.registry.drain("a")
        await cancelled.wait()
        await wait_all_tasks_blocked()
        assert bench.registry.applications() == []
        with pytest.raises(NotFound, match="Worker a not found"):
            bench.registry.get("a")


# ---- changing ---------------------------------------------------------------------------------------------


async def test_a_patch_keeps_the_connection_and_merges_labels(tmp_path, autojump_clock):
    async with fleet(tmp_path) as bench:
        await bench.ready("a", labels={"x": "1", "y": "2"})
        worker = bench.registry.get("a")
        patch = WorkerPatch(priority=7, labels={"y": "3"}, health=HealthOverrides(drain_settle_secs=1))
        bench.registry.update("a", patch)
        assert bench.registry.get("a") is worker
        spec = bench.registry.snapshot("a").spec
        assert (spec.priority, spec.cost, dict(spec.labels)) == (7, 1.0, {"x": "1", "y": "3"})
        with bench.lease() as lease:
            assert await answer(lease) == 3


async def test_a_replacement_with_the_same_engines_keeps_the_connection(tmp_path, autojump_clock):
    async with fleet(tmp_path) as bench:
        await bench.ready("a", labels={"x": "1"})
        worker = bench.registry.get("a")
        await bench.registry.replace(bench.spec("a", priority=3))
        assert bench.registry.get("a") is worker
        assert (worker.spec.priority, worker.state) == (3, WorkerState.READY)
        assert dict(worker.spec.labels) == {}


async def test_a_replacement_with_other_engines_starts_anew_under_the_same_id(tmp_path, autojump_clock):
    async with fleet(tmp_path) as bench:
        await bench.ready("a")
        await bench.registry.replace(bench.spec("a", model_id="other"))
        await wait_all_tasks_blocked()
        worker = bench.registry.get("a")
        assert worker.spec.model_id == "other"
        assert bench.network.is_bound(worker.addresses.input)


async def test_an_engine_that_starts_right_after_a_replacement_is_heard(tmp_path, autojump_clock):
    async with fleet(tmp_path) as bench:
        await bench.ready("a")
        bench.kill_engine("a")
        await bench.registry.replace(bench.spec("a", model_id="other"))
        bench.start_engine("a")
        await wait_all_tasks_blocked()
        with trio.fail_after(5):
            await bench.registry.get("a").wait_state(WorkerState.READY)


async def test_so_is_one_that_starts_once_a_removed_worker_has_closed_its_sockets(tmp_path, autojump_clock):
    async with fleet(tmp_path) as bench:
        await bench.ready("a")
        bench.kill_engine("a")
        bench.registry.remove("a")
        await bench.registry.wait_closed(bench.spec("a").url)
        bench.start_engine("a")
        await wait_all_tasks_blocked()
        with trio.fail_after(5):
            worker = await bench.registry.add(bench.spec("a"))
            await worker.wait_state(WorkerState.READY)


# ---- going ------------------------------------------------------------------------------------------------


async def test_an_idle_worker_is_removed_at_once_and_its_sockets_are_free_again(tmp_path, autojump_clock):
    async with fleet(tmp_path) as bench:
        await bench.ready("a")
        address = bench.registry.get("a").addresses.input
        bench.registry.drain("a")
        with pytest.raises(NotFound):
            bench.registry.get("a")
        await bench.registry.add(bench.spec("b", url=bench.spec("a").url))
        assert bench.network.is_bound(address)
        assert bench.registry.get("b").state is WorkerState.PENDING


async def test_a_busy_worker_finishes_its_answers_before_it_goes(tmp_path, autojump_clock):
    async with fleet(tmp_path) as bench:
        await bench.ready("a")
        lease = bench.lease()

        async def finish():
            with lease:
                assert await answer(lease, max_tokens=500) == 500

        bench.nursery.start_soon(finish)
        await trio.sleep(0.5)
        bench.registry.drain("a")
        bench.registry.drain("a")
        assert bench.registry.snapshot("a").state is WorkerState.DRAINING
        with pytest.raises(NoReadyWorker, match="draining"):
            bench.lease()
        await trio.sleep(10)
        assert bench.registry.workers() == []


async def test_answers_that_outlive_the_drain_limit_end_with_an_error_another_worker_can_mend(tmp_path, autojump_clock):
    async with fleet(tmp_path) as bench:
        await bench.ready("a", health=HealthOverrides(drain_settle_secs=2))
        lease = bench.lease()
        start = trio.current_time()
        ended = []

        async def finish():
            with lease:
                with pytest.raises(EngineDead, match="the worker has been removed") as caught:
                    await answer(lease, max_tokens=8000)
                ended.append((caught.value.retryable, trio.current_time() - start))

        bench.nursery.start_soon(finish)
        await trio.sleep(0.5)
        bench.registry.drain("a")
        await trio.sleep(5)
        assert ended == [(True, pytest.approx(2.5, abs=0.2))]


async def test_a_worker_that_is_being_bound_can_be_removed(tmp_path, autojump_clock):
    async with fleet(tmp_path) as bench:
        bench.nursery.start_soon(bench.registry.add, bench.spec("a"))
        while not bench.registry.workers():
            await trio.lowlevel.checkpoint()
        bench.registry.remove("a")
        await wait_all_tasks_blocked()
        assert bench.registry.workers() == []
        await bench.registry.add(bench.spec("a"))


# ---- health -----------------------------------------------------------------------------------------------


async def test_a_worker_whose_engine_never_comes_is_called_failed_and_still_served_when_it_does(
    tmp_path, autojump_clock
):
    async with fleet(tmp_path) as bench:
        await bench.registry.add(bench.spec("a"))
        await trio.sleep(29.5 * 60)
        assert bench.registry.snapshot("a").state is WorkerState.PENDING
        await trio.sleep(61)
        assert bench.registry.snapshot("a").state is WorkerState.FAILED
        bench.start_engine("a")
        await bench.registry.get("a").wait_state(WorkerState.READY)
        assert bench.registry.snapshot("a").state is WorkerState.READY
        assert taken(bench) == "a"


async def test_failed_workers_are_removed_if_the_operator_wants_it(tmp_path, autojump_clock):
    rules = RoutingRules(health=HealthThresholds(failure_threshold=1, interval_s=10), remove_failed=True)
    async with fleet(tmp_path, rules=rules) as bench:
        await bench.ready("a")
        await bench.ready("b")
        bench.kill_engine("a")
        await bench.registry.get("a").wait_state(WorkerState.NOT_READY)
        await trio.sleep(25)
        assert bench.registry.snapshot("a").state is WorkerState.NOT_READY
        await trio.sleep(10)
        assert [worker.spec.worker_id for worker in bench.registry.workers()] == ["b"]


# ---- media ------------------------------------------------------------------------------------------------


async def vision(bench, name, **options):
    """A worker whose engine takes pictures."""
    worker = await bench.registry.add(bench.spec(name))
    bench.start_engine(name, vision=VisionModel(), **options)
    await worker.wait_state(WorkerState.READY)


async def test_media_go_to_workers_that_take_them_as_they_were_prepared(tmp_path, autojump_clock):
    async with fleet(tmp_path, policy=RoundRobin()) as bench:
        await vision(bench, "old", version="0.27.1")
        await vision(bench, "new", version="0.32.0")
        # Nothing is known yet: the worker itself says so.
        assert {taken(bench, forms=frozenset({RAW})) for _ in range(2)} == {"old", "new"}
        assert await bench.registry.pixel_forms("m", "qwen2_vl") == {RAW, DONE}
        for forms, names in (
            ({RAW}, {"new"}),
            ({DONE}, {"old"}),
            ({RAW, DONE}, {"old", "new"}),
            (None, {"old", "new"}),
        ):
            given = None if forms is None else frozenset(forms)
            assert {taken(bench, forms=given) for _ in range(4)} == names


async def test_media_that_nobody_takes_are_to_be_prepared_anew(tmp_path, autojump_clock):
    async with fleet(tmp_path) as bench:
        await vision(bench, "old", version="0.27.1")
        assert await bench.registry.pixel_forms("m") == {DONE}
        with pytest.raises(PixelFormMissing) as caught:
            bench.lease(forms=frozenset({RAW}))
        assert caught.value.forms == {DONE}
        assert caught.value.status == 503
        assert bench.registry.load("old") == 0


async def test_without_an_engine_that_takes_media_there_is_no_form(tmp_path, autojump_clock):
    async with fleet(tmp_path) as bench:
        with pytest.raises(NoReadyWorker):
            await bench.registry.pixel_forms("m")
        spec = bench.spec("ts", protocol=EngineProtocol.TOKENSPEED)
        worker = await bench.registry.add(spec)
        with pytest.raises(NoReadyWorker):
            await bench.registry.pixel_forms("m")
        bench.start_engine("ts", protocol=EngineProtocol.TOKENSPEED)
        await worker.wait_state(WorkerState.READY)
        with pytest.raises(UnsupportedFeature, match="TokenSpeed"):
            await bench.registry.pixel_forms("m")
        await vision(bench, "vllm")
        assert await bench.registry.pixel_forms("m") == {RAW}
        assert {taken(bench, forms=frozenset({RAW})) for _ in range(4)} == {"vllm"}
