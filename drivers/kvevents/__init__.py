"""KV events of engines, as facts for the core: what is cached where, and how far that is known.

    names = BlockNames(config.block_size)                 # also names the prompts: Request.block_hashes
    async with open_scheduler(config) as router, open_feed(router, names) as feed:
        await router.upsert_worker(WorkerConfig(7))
        feed.add(Source(7, "tcp://10.0.0.7:5557", replay="tcp://10.0.0.7:5558"))   # after the upsert
        feed.add(Source(8, None))                         # publishes nothing: predicted from dispatches
        ...
        hashes = names.of(token_ids, adapter=lora_name, namespace=cache_salt)
        async with router.admit(Request(..., block_hashes=hashes)) as lease:
            feed.dispatched(lease.worker_id, lease.dp_rank, hashes)                # waits for nothing
        ...
        feed.remove(7)                                    # before or after router.remove_worker(7)
        feed.status()                                     # per rank: trust, reason, blocks, counters

`add` replaces the worker's earlier source: call it again after an upsert with a higher incarnation, with that
`incarnation`. A rank that publishes nothing usable has Trust.APPROX: what is `dispatched` there counts as cached for a
while. Where no worker of a fleet publishes, IndexMode.APPROXIMATE does the same inside the core, and no feed is needed;
with a feed, the index mode is EVENTS, and a short predict_ttl_ns (a few seconds) bridges the time from a dispatch to
the engine's own word.

Without trio and zmq: `decoder.decode` (payload -> Batch), `frames` (what is on the wire), `tracker.Tracker` (one rank
of one publisher: order, gaps, replays, restarts, trust), `predicted.Predicted`; all pure. Modules, lowest first:
values, names, frames, sequence, predicted; decoder, mirror; tracker; feed. Needs msgspec, xxhash, and for the feed
trio and pyzmq: extra `gateway`.
"""
