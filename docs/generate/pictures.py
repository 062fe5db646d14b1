"""The pictures of the concept pages: python docs/generate/pictures.py writes them into docs/pictures.

What is a matter of numbers is not drawn by hand: it is what a scheduler answers.
"""

from __future__ import annotations

from pathlib import Path

from drawing import Drawing

import kvcore as kv

FOLDER = Path(__file__).resolve().parent.parent / "pictures"


def lanes() -> Drawing:
    """One class: a shared lane, exact lanes, which heads may run."""
    picture = Drawing(
        680, 300, "A policy class with a shared lane and two exact lanes. The head of the lane of worker 8 is blocked; "
        "the other two heads may run.")
    picture.text(20, 22, "class premium", "bold")
    rows = [
        ("shared lane", "any worker", ["r1", "r4", "r5", "r9"], "c", "may run: worker 7 has room"),
        ("exact lane 7", "pinned to worker 7", ["r3", "r6"], "c", "may run"),
        ("exact lane 8", "pinned to worker 8", ["r2", "r7", "r8"], "d", "blocked: worker 8 is busy"),
    ]
    for row, (name, what, ids, kind, verdict) in enumerate(rows):
        y = 50 + 70 * row
        picture.text(20, y + 12, name)
        picture.text(20, y + 30, what, "small soft")
        for place, request in enumerate(ids):
            picture.box(160 + 62 * place, y, 54, 42, request, kind if place == 0 else "plain")
        picture.line((160 + 62 * len(ids), y + 21), (440, y + 21), kind="dashed")
        picture.text(450, y + 21, verdict, "small")
    picture.text(187, 268, "heads", "small soft", "middle")
    picture.text(240, 268, "The class's next request is the best of the heads that may run: r1.", "small")
    return picture


def life() -> Drawing:
    """States of a request and what moves it from one to the next."""
    picture = Drawing(
        680, 380, "States of a request: arrival, waiting, running, ended; deferred, refreshing and evicted beside "
        "them; and Reject.")
    picture.box(20, 60, 90, 44, "arrival")
    picture.box(210, 60, 100, 44, "waiting", "b")
    picture.box(430, 60, 100, 44, "running", "c")
    picture.box(590, 60, 70, 44, "ended")
    picture.arrow((110, 82), (210, 82), words="stored: Park")
    picture.arrow((310, 82), (430, 82), words="Dispatch: booked")
    picture.arrow((530, 82), (590, 82), words="finished")
    picture.arrow((460, 60), (460, 24), (260, 24), (260, 60))
    picture.text(360, 12, "DispatchFailed(retry): back to its place", "small soft", "middle")
    picture.box(210, 190, 100, 44, "deferred", "b")
    picture.arrow((65, 104), (65, 212), (210, 212))
    picture.text(74, 198, "held back by the", "small soft")
    picture.text(74, 226, "admission policy", "small soft")
    picture.arrow((260, 190), (260, 104))
    picture.text(253, 147, "released", "small soft", "end")
    picture.box(345, 190, 110, 44, "refreshing", "b")
    picture.arrow((300, 104), (300, 135), (370, 135), (370, 190))
    picture.text(364, 160, "asked", "small soft", "end")
    picture.arrow((440, 190), (440, 104), words="answered")
    picture.box(540, 190, 90, 44, "evicted", "d")
    picture.arrow((515, 104), (515, 145), (585, 145), (585, 190))
    picture.text(536, 120, "worker gone", "small soft")
    picture.text(536, 135, "or silent", "small soft")
    picture.arrow((630, 212), (648, 212), (648, 104))
    picture.box(210, 300, 245, 44, "Reject, with a reason", "d")
    picture.arrow((40, 104), (40, 322), (210, 322))
    picture.text(49, 308, "at once: no worker,", "small soft")
    picture.text(49, 336, "too large, queue full", "small soft")
    picture.arrow((260, 234), (260, 300), words="deadline")
    picture.arrow((400, 234), (400, 300), words="deadline")
    picture.text(470, 322, "A waiting request is rejected", "small soft")
    picture.text(470, 338, "for its deadline, or a lost fleet.", "small soft")
    return picture


def served() -> list[tuple[str, dict[str, int]]]:
    """What one worker that takes one request at a time is sent: (class, deficits of the classes afterwards)."""
    quanta = {"premium": 400, "regular": 100}
    classes = tuple([
        kv.PolicyClass(name, quantum, policy_family=name, cache_bucket="all", prefill_busy_threshold=0)
        for name, quantum in quanta.items()])
    profile = kv.PolicyProfile(classes, (kv.CacheBucket("all", 0),), "regular")
    core = kv.Scheduler(kv.SchedulerConfig(profile=profile))
    core.step(kv.WorkerUpserted(0, kv.WorkerConfig(1)))
    running = core.step(kv.RequestArrived(0, kv.Request("first", 1)))
    core.step_many([
        kv.RequestArrived(1, kv.Request(f"{name}{number}", 200, policy_class=name))
        for number in range(12) for name in quanta])
    found = []
    for now_ns in range(2, 14):
        dispatch = running[-1]
        running = core.step(kv.RequestFinished(now_ns, dispatch.request_id, dispatch.attempt))
        heads = {entry.class_name: entry.request_id for entry in reversed(core.queue_dump(100))}
        found.append((
            classes[running[-1].class_index].name,
            {name: core.explain(request_id).deficit_tokens or 0 for name, request_id in heads.items()}))
    return found


def shares() -> Drawing:
    """Twelve dispatches of two classes with quanta 400 and 100, and what each class could pay after every one."""
    history = served()
    picture = Drawing(
        680, 290, "Twelve dispatches: " + ", ".join([name for name, _ in history]) + ". Bars show the deficits of both "
        "classes after each.")
    left, step = 150, 43
    picture.text(20, 40, "dispatched")
    for place, (name, _) in enumerate(history):
        picture.box(left + step * place, 24, step - 6, 32, name[0].upper(), "a" if name == "premium" else "b")
    for row, (name, quantum, kind) in enumerate([("premium", 400, "a"), ("regular", 100, "b")]):
        base = 160 + 90 * row
        picture.text(20, base - 40, name)
        picture.text(20, base - 22, f"deficit; quantum {quantum}", "small soft")
        picture.line((left, base), (left + step * len(history), base))
        for place, (_, deficits) in enumerate(history):
            tokens = deficits.get(name, 0)
            x = left + step * place
            if tokens:
                picture.box(x, base - tokens / 5, step - 6, tokens / 5, kind=kind)
            picture.text(x + (step - 6) / 2, base - tokens / 5 - 9, str(tokens), "small soft", "middle")
    picture.text(
        20, 276, "A request costs 200 tokens: premium can pay two per visit, regular one every other round.", "small")
    return picture


def costs() -> list[tuple[str, kv.Score]]:
    """The candidates of a decision of a real scheduler: three workers, unequal load and caches."""
    core = kv.Scheduler(kv.SchedulerConfig(block_size=16, decisions_kept=1))
    core.step_many([kv.WorkerUpserted(0, kv.WorkerConfig(worker_id)) for worker_id in (1, 2, 3)])
    for worker_id, blocks in [(1, 40), (3, 20)]:
        hashes = tuple(range(1000 * worker_id, 1000 * worker_id + blocks))
        core.step(kv.RequestArrived(1, kv.Request(
            f"load{worker_id}", 16 * blocks, pinned=kv.Rank(worker_id), sequence_hashes=hashes)))
    core.step(kv.PrefillCompleted(2, "load1", 1))
    overlap = kv.Overlap(device=((kv.Rank(3), 48),))
    core.step(kv.RequestArrived(3, kv.Request("r", 1024, overlap=overlap, sequence_hashes=tuple(range(64)))))
    (decision,) = core.decisions()
    return [(f"worker {score.rank.worker_id}", score) for score in
            sorted(decision.candidates, key=lambda score: score.rank.worker_id)]


def capacity() -> Drawing:
    """Three workers as a decision sees them: prefill after what is cached, decode blocks, the sum."""
    scores = costs()
    picture = Drawing(
        680, 280, "Cost of three workers for a prompt of 64 blocks: " +
        ", ".join([f"{name} {score.cost:g} blocks" for name, score in scores]) + ". The cheapest is chosen.")
    picture.text(20, 24, "a prompt of 1,024 tokens, blocks of 16: what would it cost where?")
    best = min(score.cost for _, score in scores)
    scale = 400 / max(score.cost for _, score in scores)
    for row, (name, score) in enumerate(scores):
        y = 52 + 62 * row
        prefill = score.cost - score.decode_blocks
        picture.text(20, y + 12, name, "bold" if score.cost == best else "")
        picture.text(20, y + 30, f"{score.overlap_blocks} blocks cached", "small soft")
        picture.box(140, y, prefill * scale, 40, f"{prefill:g}", "a")
        picture.box(140 + prefill * scale, y, score.decode_blocks * scale, 40, f"{score.decode_blocks}", "c")
        words = f"{score.cost:g}, the cheapest" if score.cost == best else f"{score.cost:g}"
        picture.text(150 + score.cost * scale, y + 20, words, "small bold" if score.cost == best else "small")
    picture.box(140, 246, 16, 16, kind="a")
    picture.text(162, 254, "blocks to compute, less what is cached", "small")
    picture.box(420, 246, 16, 16, kind="c")
    picture.text(442, 254, "blocks of all that would run", "small")
    return picture


PICTURES = {"lanes": lanes, "life": life, "shares": shares, "capacity": capacity}

if __name__ == "__main__":
    FOLDER.mkdir(exist_ok=True)
    for name, draw in PICTURES.items():
        (FOLDER / f"{name}.svg").write_text(draw().svg(), encoding="utf-8")
