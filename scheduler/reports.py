"""What workers report, written into the state: tokens, progress, ends, free blocks, what their caches hold."""

from __future__ import annotations

from .actions import Release, ReleaseCause, SequenceEnd, TokenBatch, ToWorker
from .dispatch import PLANS_AHEAD, reserve
from .ending import finish, finish_cancelled, stop
from .events import KvChanged, PlanEnded, SequenceReleased, SequenceRests, StepReported
from .lifecycle import RUNNING, State
from .pausing import pause_one, rest
from .pool import Pool
from .sequence import Sequence, SequenceOutcome
from .state import MeshState
from .worker import Worker

# Plans in a row that run no step though there is work, before the stream is started afresh. One or two are usual: they
# were sent before what they were for had ended.
MAX_BARREN_PLANS = 8

# Ids, tokens and ends of one step for each gateway.
Columns = dict[int, tuple[list[int], list[int], list[SequenceEnd]]]


def _reporter(mesh: MeshState, link: int) -> Worker | None:
    """Who reports, if its word still counts: behind a report that breaks the contract, others say nothing reliable."""
    worker = mesh.fleet.workers.get(link)
    return None if worker is None or worker.dropped else worker


def kv_changed(mesh: MeshState, event: KvChanged) -> None:
    """What a worker's prefix cache lost and got."""
    worker = _reporter(mesh, event.link)
    if worker is None:
        return
    if event.reset:
        worker.prefixes.clear()
    worker.prefixes.difference_update(event.removed)
    worker.prefixes.update(event.stored)


def step_reported(mesh: MeshState, event: StepReported, now: float) -> None:
    """Tokens leave at once, one batch per gateway."""
    worker = _reporter(mesh, event.link)
    if worker is None:
        return
    worker.heard_at = now
    if not worker.window.step(event.plan_seq, event.step):
        mesh.drop(worker, f"reported step {event.step} of plan {event.plan_seq}, which is not the next one of its plan")
        return
    worker.steps += 1
    worker.tokens += len(event.token_ids)
    worker.barren_plans = 0
    worker.pace.step_ran()
    worker.ledger.report(event.blocks)
    num_tokens = len(event.token_ids)
    if event.prompt_logprobs:
        _pass_on_prompts(mesh, worker, event)
    chunks = _note_progress(mesh, worker, event, now) if event.prefills else []
    num_tokens += sum(tokens for _, tokens in chunks)
    if event.step_us:
        worker.step_times.observe(num_tokens, worker.context_tokens, event.step_us / 1e6)
    # What each token costs: the step's time belongs to those it was spent on.
    token_us = event.step_us / max(num_tokens, 1)
    for each, tokens in chunks:
        each.gpu_us += tokens * token_us
    # This loop runs for every token of the mesh.
    columns: Columns = {}
    gateway: int | None = None
    column_ids: list[int] = []
    column_tokens: list[int] = []
    sequences, decode, hold = worker.sequences, State.DECODE, worker.ledger.hold
    held, block_size = worker.ledger.held_blocks, worker.ledger.block_size
    pool = mesh.fleet.pool_of(worker)
    charge = pool.waiting.charge_tokens
    orphans: list[int] = []
    for sequence_id, token_id in zip(event.sequence_ids, event.token_ids, strict=True):
        sequence = sequences.get(sequence_id)
        if sequence is None:
            orphans.append(sequence_id)
            continue
        sequence.gpu_us += token_us
        token_ids = sequence.token_ids
        if sequence.state is not decode:
            if not _take_unusual(mesh, worker, sequence, now):
                continue
        elif len(token_ids) > held[sequence_id] * block_size:
            # The new token itself enters the cache in the next step.
            hold(sequence_id, len(token_ids))
            # By the block: by the token it would be the dearest thing here.
            charge(sequence)
        token_ids.append(token_id)
        if sequence.request.gateway != gateway:
            gateway = sequence.request.gateway
            column_ids, column_tokens, _ = columns.setdefault(gateway, ([], [], []))
        column_ids.append(sequence_id)
        column_tokens.append(token_id)
    if orphans:
        # Nobody here knows them, so nobody else will ever end them.
        mesh.log("orphans_found", address=worker.address, sequence_ids=orphans)
        mesh.actions.append(ToWorker(worker.link, Release(tuple(orphans), ReleaseCause.CANCEL)))
    if event.ended:
        _note_ends(mesh, pool, worker, event, columns, now)
    elif worker.window.plans_ahead < PLANS_AHEAD:
        mesh.touch(pool)
    for gateway, (sequence_ids, token_ids, ends) in columns.items():
        logprobs = _logprobs_of(event, sequence_ids)
        mesh.send(gateway, TokenBatch(tuple(sequence_ids), tuple(token_ids), tuple(ends), logprobs))


def _pass_on_prompts(mesh: MeshState, worker: Worker, event: StepReported) -> None:
    """Sends what came of prompts, ahead of all that the step ended. It is the request's, whatever becomes of the output
    that it was computed for."""
    found: dict[int, list[tuple[int, bytes]]] = {}
    for item in event.prompt_logprobs:
        sequence = worker.sequences.get(item[0])
        if sequence is not None:
            found.setdefault(sequence.request.gateway, []).append(item)
    for gateway, items in found.items():
        mesh.send(gateway, TokenBatch((), (), (), (), tuple(items)))


def _logprobs_of(event: StepReported, sequence_ids: list[int]) -> tuple[tuple[int, bytes], ...]:
    if not event.logprobs:
        return ()
    sent = set(sequence_ids)
    return tuple(item for item in event.logprobs if item[0] in sent)


def plan_ended(mesh: MeshState, event: PlanEnded, now: float) -> None:
    """The worst case of a plan is over: what it did not use is free again."""
    worker = _reporter(mesh, event.link)
    if worker is None:
        return
    worker.heard_at = now
    plan = worker.window.done(event.plan_seq, event.steps_run)
    if plan is None:
        mesh.drop(worker, f"ended plan {event.plan_seq} after {event.steps_run} steps, which it has not reported")
        return
    worker.ledger.report(event.blocks)
    if plan.steps_run == 0:
        # Its joins may never have been read.
        for sequence in worker.sequences.values():
            if sequence.join_last == event.plan_seq:
                sequence.join_last = 0
        if not event.revoked and worker.running:
            worker.barren_plans += 1
            if worker.barren_plans >= MAX_BARREN_PLANS:
                mesh.drop(worker, f"ran no step in {worker.barren_plans} plans though sequences are there")
                return
    pool = mesh.fleet.pool_of(worker)
    if len(pool.waiting) and worker.free_slots:
        # So that placement sees the credits; without a queue the next plan sets them anyway.
        reserve(worker)
    mesh.touch(pool)


def sequence_released(mesh: MeshState, event: SequenceReleased, now: float) -> None:
    """A sequence that was cancelled or had to give way has left the device, or the host memory where it waited.

    Whether it was found is all one: one that ended between steps is not found before its end is told, and either way
    nothing of it is left.
    """
    worker = _reporter(mesh, event.link)
    if worker is None:
        return
    worker.heard_at = now
    worker.ledger.report(event.blocks)
    sequence = worker.sequences.get(event.sequence_id)
    if sequence is None:
        # Unless its copy in host memory was to go, it had ended by itself before the worker read the release.
        sequence = worker.kept.get(event.sequence_id)
        if sequence is not None and sequence.state is State.CANCELLING:
            del worker.kept[event.sequence_id]
            _log_released(mesh, sequence, event)
            finish_cancelled(mesh, sequence, event.blocks_used, event.blocks_freed, now)
        return
    if sequence.state in RUNNING or sequence.state is State.PAUSED:
        return
    pool = mesh.fleet.pool_of(worker)
    pool.let_go(worker, sequence)
    worker.pace.disturb()
    mesh.touch(pool)
    _log_released(mesh, sequence, event)
    cancelled = sequence.state is State.CANCELLING
    kept = event.swapped and not cancelled and not (worker.draining and pool.can_ever_take(sequence))
    if event.swapped and not kept:
        # The swap had been asked for before it was cancelled, or before it was to begin anew elsewhere.
        sequence.last_link = None
        cause = ReleaseCause.CANCEL if cancelled else ReleaseCause.PREEMPT
        mesh.actions.append(ToWorker(worker.link, Release((event.sequence_id,), cause)))
    if kept or (event.swapped and cancelled):
        sequence.keep(worker.link, event.blocks_used, swapped=True)
        worker.kept[event.sequence_id] = sequence
    if cancelled:
        mesh.foresight(pool).left(sequence)
        sequence.link = None
        if not event.swapped:
            finish_cancelled(mesh, sequence, event.blocks_used, event.blocks_freed, now)
        return
    if not sequence.moving:
        mesh.preemptions += 1
    if kept:
        mesh.swaps += 1
        sequence.swaps += 1
    pool.take_back(sequence, now)


def sequence_rests(mesh: MeshState, event: SequenceRests, now: float) -> None:
    """A sequence that was paused is in no step any more."""
    worker = _reporter(mesh, event.link)
    if worker is None:
        return
    worker.heard_at = now
    worker.ledger.report(event.blocks)
    sequence = worker.sequences.get(event.sequence_id)
    # One that has been told to go since is still there.
    if sequence is not None and sequence.state is State.PAUSED:
        rest(mesh, worker, sequence, found=event.found, now=now)


def _note_ends(mesh: MeshState, pool: Pool, worker: Worker, event: StepReported, columns: Columns, now: float) -> None:
    told = {ended.sequence_id for ended in event.ended}
    for ended in event.ended:
        sequence = worker.sequences.get(ended.sequence_id)
        if sequence is None:
            continue
        pool.let_go(worker, sequence)
        mesh.foresight(pool).left(sequence)
        if sequence.forks and not {each.sequence_id for each in sequence.forks} <= told:
            mesh.drop(worker, f"ended sequence {ended.sequence_id} without its forks")
        sequence.leave()
        if sequence.state is State.CANCELLING:
            finish_cancelled(mesh, sequence, ended.blocks_used, ended.blocks_freed, now)
            continue
        outcome = SequenceOutcome(
            ended.reason, ended.stop_token_id, ended.failure, ended.blocks_used, ended.blocks_freed
        )
        end = finish(mesh, sequence, outcome, now)
        columns.setdefault(sequence.request.gateway, ([], [], []))[2].append(end)
    worker.pace.disturb()
    mesh.touch(pool)


def _take_unusual(mesh: MeshState, worker: Worker, sequence: Sequence, now: float) -> bool:
    """Notes a token of a sequence that is not simply decoding; whether somebody wants the token."""
    if sequence.leader is not None or sequence.forks:
        mesh.drop(worker, f"gave sequence {sequence.sequence_id} a token before the prefill of its group was complete")
        return False
    num_computed = len(sequence.token_ids) + sequence.wasted
    if sequence.computed:
        worker.ledger.hold(sequence.sequence_id, num_computed)
    # Otherwise this step forked it: see CreditLedger.open_fork.
    sequence.computed = num_computed
    if sequence.state is State.CANCELLING:
        sequence.wasted += 1
        return False
    if sequence.state is State.PREFILL:
        sequence.become(State.DECODE)
        if sequence.request.paused:
            pause_one(mesh, sequence)
    request = sequence.request
    if request.first_token_at is None:
        request.first_token_at = now
        mesh.traffic.first_token(request, now)
        mesh.foresight(mesh.fleet.pool_of(worker)).first_token(request, now)
    return True


def _note_progress(mesh: MeshState, worker: Worker, event: StepReported, now: float) -> list[tuple[Sequence, int]]:
    """How far prefills came. Returns how many more tokens the step computed of each sequence than it gave: the first
    token of each of a group is computed with the prompt of the first."""
    chunks: list[tuple[Sequence, int]] = []
    for progress in event.prefills:
        sequence = worker.sequences.get(progress.sequence_id)
        if sequence is None:
            continue
        chunks.append((sequence, progress.num_computed - max(sequence.computed, progress.num_cached)))
        sequence.computed = max(sequence.computed, min(progress.num_computed, sequence.prefill_length))
        worker.ledger.hold(sequence.sequence_id, sequence.computed)
        if sequence.placements == 1:
            # What a later run finds is its own work of before, not a saving.
            sequence.cached_tokens = min(progress.num_cached, sequence.prompt_length)
            waiting = mesh.fleet.pool_of(worker).waiting
            waiting.note_prefill(sequence, sequence.cached_tokens, progress.num_computed)
        if progress.num_computed >= sequence.prefill_length:
            # It and its forks get tokens that were computed as one.
            chunks += [(each, -1) for each in sequence.group]
            if sequence.forks:
                _part(mesh, worker, sequence, event, now)
    return chunks


def _part(mesh: MeshState, worker: Worker, leader: Sequence, event: StepReported, now: float) -> None:
    """This step forks the group."""
    group = leader.group
    leader.part()
    served = {*event.sequence_ids, *(ended.sequence_id for ended in event.ended)}
    if not all(sequence.sequence_id in served for sequence in group):
        mesh.drop(
            worker, f"completed the prefill of sequence {leader.sequence_id} without a token for each of its forks"
        )
    for sequence in group:
        if sequence.cancel_reason is not None:
            stop(mesh, sequence, sequence.cancel_reason, now)


def _log_released(mesh: MeshState, sequence: Sequence, event: SequenceReleased) -> None:
    mesh.log(
        "released",
        request_id=sequence.request.submission.request_id,
        sequence_id=event.sequence_id,
        blocks_used=event.blocks_used,
        blocks_freed=event.blocks_freed,
        swapped=event.swapped,
    )
