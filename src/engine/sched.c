// SPDX-License-Identifier: Apache-2.0
/* sched.c - which sequences run, which rows of them make up the next step, and what is kept of
 * them.
 *
 * Path:     engine_step -> sched_admit -> sched_build -> backend -> sched_submitted, sched_settle.
 * Owns:     nothing of its own.  Thread: engine.
 * Not here: delivery of ids (engine.c), the tree of cached prefixes (prefix.c). */
#include "engine/seq.h"

#include "base/checked.h"
#include "base/clock.h"

#include <string.h>

enum {
    PIECE_STEPS = 4,   // steps beside decodes that rows of prompts are in
    SNAP_EVERY = 2048, // tokens between snapshots inside a long prompt: 61 MB for 40 MB of KV
    PARK_SHARE = 4, // sequences that wait may keep their states in this part of the cache's slots
};

/* ---- admission ---- */

static int32_t seq_blocks_for(int32_t n_tok) { return div_up_i32(n_tok, KV_BLOCK); }

void sched_unpark(Engine *e, Seq *seq) {
    if (seq->park_slot < 0)
        return;
    prefix_give_slot(e->prefix, seq->park_slot);
    seq->park_slot = -1;
    for (int32_t i = 0; i < seq->n_blocks; i++)
        blocks_release(&e->blocks, seq->blocks[i]);
    seq->n_blocks = seq->n_done = 0;
    e->n_parked--;
}

/* Takes from one that waits, but not from `keep`, what it has kept: who came last first. False:
 * nobody has anything. */
static bool sched_unpark_one(Engine *e, const Seq *keep) {
    Seq *last = NULL;
    for (Seq *s = e->n_parked ? e->first_waiting : NULL; s; s = s->next)
        if (s != keep && s->park_slot >= 0 && (!last || s->number > last->number))
            last = s;
    if (last)
        sched_unpark(e, last);
    return last != NULL;
}

/* Takes blocks for positions below n_tok, evicting cached prefixes and what those who wait have
 * kept; false: there would be too few,
 * or fewer than n_spare free ones behind it. */
static bool sched_take_blocks(Engine *e, Seq *seq, int32_t n_tok, int32_t n_spare) {
    int32_t n = seq_blocks_for(n_tok) - seq->n_blocks;
    if (n <= 0)
        return true;
    while (e->blocks.n_free < n + n_spare && !prefix_make_room(e->prefix, n + n_spare))
        if (!sched_unpark_one(e, seq))
            return false;
    CHECK(blocks_take(&e->blocks, seq->blocks + seq->n_blocks, n));
    seq->n_blocks += n;
    return true;
}

static int32_t sched_n_active(const Engine *e, uint64_t client) {
    int32_t n = 0;
    for (int32_t i = 0; i < e->plan.max_seqs; i++)
        n += e->active[i] && e->active[i]->client == client;
    return n;
}

/* An active sequence that is still reading the very same prompt: what it reads will be found. */
static bool sched_is_being_read(const Engine *e, const Seq *seq) {
    if (prefix_figures(e->prefix).n_slots == 0 || seq->n_prompt <= KV_BLOCK)
        return false;
    for (int32_t i = 0; i < e->plan.max_seqs; i++) {
        const Seq *a = e->active[i];
        if (a && !a->is_cancelled && !a->is_paused && a->space == seq->space &&
            a->n_known == a->n_prompt && a->n_prompt == seq->n_prompt &&
            memcmp(a->ids, seq->ids, (size_t)seq->n_prompt * sizeof *seq->ids) == 0)
            return true;
    }
    return false;
}

/* Whom to admit next: of those who wait, the first of the client with the fewest active. */
static Seq *sched_choose(const Engine *e) {
    Seq *best = NULL;
    int32_t fewest = 0;
    for (Seq *s = e->first_waiting; s; s = s->next) {
        int32_t n = sched_n_active(e, s->client);
        if (!s->is_paused && (!best || n < fewest) && !sched_is_being_read(e, s)) {
            best = s;
            fewest = n;
        }
    }
    return best;
}

/* Figures of a sequence's first admission; what is read again later is no news to its client. */
static void sched_note_hit(Engine *e, Seq *seq, const PrefixHit *hit) {
    if (seq->figures.n_preempted)
        return;
    bool is_decode_made = hit->slot >= 0 && hit->is_decode_made;
    seq->figures.n_cached = hit->n_tok;
    seq->figures.miss = hit->miss;
    seq->figures.n_shared = hit->n_shared;
    seq->figures.is_decode_made = is_decode_made;
    e->figures.n_prompt_tok += (uint64_t)seq->n_prompt;
    e->figures.n_cached_tok += (uint64_t)hit->n_tok;
    e->figures.n_decode_made_hits += is_decode_made;
    e->figures.n_miss[hit->miss]++;
}

/* Copies the longest cached beginning into the sequence's slot and takes blocks for all that it has
 * so far, if the others may still grow by a block each; false (nothing taken) when there are too
 * few blocks. */
static bool sched_place(Engine *e, Seq *seq, int32_t slot) {
    PrefixHit hit = {.slot = -1, .miss = PREFIX_OFF};
    // An answer that has begun goes on from the very numbers that it began with.
    bool is_exact =
        e->options.is_cache_exact || (seq->n_known > seq->n_prompt && !seq->figures.is_decode_made);
    int32_t n_others = 0;
    for (int32_t i = 0; i < e->plan.max_seqs; i++)
        n_others += e->active[i] != NULL;
    if (seq->park_slot >= 0) { // it goes on where it was
        if (!sched_take_blocks(e, seq, seq->n_known, n_others))
            return false;
        backend_slot_copy(e->backend, slot, seq->park_slot);
        prefix_give_slot(e->prefix, seq->park_slot);
        seq->park_slot = -1;
        e->n_parked--;
        return true;
    }
    CHECK(seq->n_blocks == 0);
    if (e->options.cache_slots)
        prefix_find(e->prefix, seq->space, seq->ids, seq->n_prompt, is_exact, seq->blocks, &hit);
    seq->n_blocks = hit.n_tok / KV_BLOCK;
    // The copy comes first: making room may evict the very snapshot.
    if (hit.slot >= 0)
        backend_slot_copy(e->backend, slot, hit.slot);
    if (!sched_take_blocks(e, seq, seq->n_known, n_others)) {
        for (int32_t i = 0; i < seq->n_blocks; i++)
            blocks_release(&e->blocks, seq->blocks[i]);
        seq->n_blocks = 0;
        return false;
    }
    seq->n_done = seq->n_hit = hit.n_tok;
    sched_note_hit(e, seq, &hit);
    return true;
}

/* Copies the state of an active sequence that no step holds away from its place, which it leaves
 * with its blocks. False: it cannot be kept. */
static bool sched_park(Engine *e, Seq *seq) {
    if (seq->n_done == 0 || e->n_parked >= e->options.cache_slots / PARK_SHARE)
        return false;
    int32_t slot = seq->tail_slot; // what stands there is behind its state
    if (slot < 0)
        slot = prefix_take_slot(e->prefix, seq->n_done);
    if (slot < 0)
        return false;
    backend_slot_copy(e->backend, slot, seq->slot);
    seq->tail_slot = -1;
    seq->park_slot = slot;
    e->n_parked++;
    e->active[seq->slot] = NULL;
    seq->slot = -1;
    return true;
}

/* Takes an active sequence that no step holds back to the head of the queue. */
static void sched_send_back(Engine *e, Seq *seq, bool is_kept) {
    if (!is_kept || !sched_park(e, seq)) {
        engine_vacate(e, seq);
        seq->n_done = 0;
    }
    seq->state = STATE_WAITING;
    seq->is_leaving = false;
    seq->figures.n_preempted++;
    seq->next = e->first_waiting;
    e->first_waiting = seq;
    if (!e->last_waiting)
        e->last_waiting = seq;
    e->n_waiting++;
    e->figures.n_preempted++;
}

/* Sends one paused sequence back to the queue, so that another gets its place; false: none is
 * there. */
static bool sched_yield_paused(Engine *e) {
    for (int32_t i = 0; i < e->plan.max_seqs; i++) {
        Seq *s = e->active[i];
        if (s && s->is_paused && s->n_flight == 0 && !s->is_half) {
            sched_send_back(e, s, true);
            return true;
        }
    }
    return false;
}

static int32_t sched_free_slot(const Engine *e) {
    for (int32_t slot = 0; slot < e->plan.max_seqs; slot++)
        if (!e->active[slot])
            return slot;
    return -1;
}

void sched_admit(Engine *e) {
    for (Seq *seq = sched_choose(e); seq; seq = sched_choose(e)) {
        int32_t slot = sched_free_slot(e);
        if (slot < 0 || !sched_place(e, seq, slot)) {
            if (sched_yield_paused(e))
                continue;
            return;
        }
        engine_unlink(e, seq);
        seq->slot = slot;
        seq->state = STATE_ACTIVE;
        e->active[slot] = seq;
        seq->is_sampler_stale = false;
        if (seq->figures.admitted_ns == 0)
            seq->figures.admitted_ns = clock_now_ns();
        Err err = {0};
        if (backend_sampler_set(e->backend, slot, &seq->sample, seq->ids, seq->n_prompt,
                                seq->n_known - seq->n_prompt, &err) != STATUS_OK)
            engine_end(e, seq, SEQ_FAILED, &err);
    }
}

/* ---- a step ---- */

/* Asks for a snapshot of seq at pos; -1: none wanted, or no slot. */
static int32_t sched_snap_slot(Engine *e, const Seq *seq, int32_t pos) {
    if (!e->options.cache_slots ||
        prefix_has(e->prefix, seq->space, seq->ids, pos, !seq->figures.is_decode_made))
        return -1;
    return prefix_take_slot(e->prefix, pos - seq->n_hit);
}

/* Whether a snapshot of this prompt is wanted behind position pos - 1. */
static bool sched_wants_snap(const Seq *seq, int32_t pos) {
    int32_t last = (seq->n_prompt - 1) / KV_BLOCK * KV_BLOCK;
    int32_t stable = seq->n_stable / KV_BLOCK * KV_BLOCK;
    return pos == last || pos == stable || pos % SNAP_EVERY == 0;
}

/* Snapshots inside rows [n_done, n_done + n_rows) of a prompt; returns their number. */
static int32_t sched_snaps(Engine *e, const Seq *seq, int32_t n_rows, BatchSnap *snaps) {
    int32_t n = 0, end = seq->n_done + n_rows;
    for (int32_t pos = seq->n_done + KV_BLOCK; pos < end && n < SNAPS_A_PART; pos += KV_BLOCK) {
        int32_t slot = sched_wants_snap(seq, pos) ? sched_snap_slot(e, seq, pos) : -1;
        if (slot >= 0)
            snaps[n++] = (BatchSnap){pos, slot};
    }
    return n;
}

/* Adds n rows of a sequence to the step being built. */
static void sched_add_part(Engine *e, Flight *f, Seq *seq, int32_t n_rows) {
    Batch *b = &f->batch;
    bool is_decode = seq->n_done >= seq->n_prompt;
    int32_t carry = -1;
    if (is_decode && seq->n_done >= seq->n_known) { // its id is still on the device
        CHECK(seq->last_step == e->step - 1);
        carry = seq->last_index;
    } else {
        memcpy(f->ids + b->n_rows, seq->ids + seq->n_done, (size_t)n_rows * sizeof *f->ids);
    }
    BatchSeq *part = &f->parts[b->n_seqs];
    *part = (BatchSeq){
        .phase = is_decode ? PHASE_DECODE : PHASE_PREFILL,
        .row0 = b->n_rows,
        .n_rows = n_rows,
        .pos0 = seq->n_done,
        .slot = seq->slot,
        .blocks = seq->blocks,
        .want = WANT_NOTHING,
        .sampler = -1,
        .carry = carry,
        .snaps = f->snaps + (size_t)b->n_seqs * SNAPS_A_PART,
    };
    f->seqs[b->n_seqs] = seq;
    seq->last_step = e->step;
    seq->last_index = b->n_seqs++;
    seq->n_flight++;
    b->n_rows += n_rows;
}

/* Part i of the step goes through the last layer: its rows are read then. */
static void sched_count_part(Engine *e, Flight *f, int32_t i) {
    BatchSeq *part = &f->parts[i];
    Seq *seq = f->seqs[i];
    seq->n_done += part->n_rows;
    seq->figures.n_read = min_i32(seq->n_done, seq->n_prompt);
    // Behind a preemption the answer's ids are read again without being chosen again.
    if (seq->n_done >= seq->n_known)
        part->sampler = seq->slot;
    if (part->phase == PHASE_DECODE)
        return;
    for (int32_t j = 0; j < part->n_snaps; j++)
        f->pending[f->n_pending++] = (PendingSnap){seq, part->snaps[j].pos, part->snaps[j].slot};
    int32_t slot = seq->n_done % KV_BLOCK == 0 && sched_wants_snap(seq, seq->n_done)
                       ? sched_snap_slot(e, seq, seq->n_done)
                       : -1;
    if (slot >= 0)
        f->pending[f->n_pending++] = (PendingSnap){seq, seq->n_done, slot};
}

/* Whether a decoding sequence may take part in the next step: its next id is known or comes from
 * the step just submitted, and the answer may still grow. */
static bool seq_can_decode(const Seq *seq) {
    return seq->n_done >= seq->n_prompt && seq->n_done < seq->n_prompt + seq->max_new - 1 &&
           !seq->is_cancelled && !seq->is_paused && !seq->is_leaving && seq->n_done <= seq->n_known;
}

/* Rows of seq's prompt for a step that has room for `left`. */
static int32_t seq_prefill_rows(const Seq *seq, int32_t left) {
    if (seq->is_cancelled || seq->is_paused || seq->is_leaving || seq->n_done >= seq->n_prompt)
        return 0;
    int32_t rows = seq->n_prompt - seq->n_done;
    return rows <= left ? rows : left / RECUR_CHUNK * RECUR_CHUNK; // cut at absolute multiples only
}

/* ---- blocks for decodes ---- */

/* Whether a gives way before b: who was cancelled (its blocks are free soon anyway) or is paused,
 * then of the client with more active sequences, then who came later. The first that came never
 * does, but for a pause, so that all come to an end. */
static bool sched_gives_way(const Engine *e, const Seq *a, const Seq *b) {
    if (a->is_cancelled != b->is_cancelled)
        return a->is_cancelled;
    if (a->is_paused != b->is_paused)
        return a->is_paused;
    int32_t n_a = sched_n_active(e, a->client), n_b = sched_n_active(e, b->client);
    return n_a != n_b ? n_a > n_b : a->number > b->number;
}

/* Takes the next block of a decoding sequence, sending others back to the queue for it, or it
 * itself. False: not now; those that a step in flight still holds leave behind it. */
static bool sched_extend(Engine *e, Seq *seq) {
    while (!sched_take_blocks(e, seq, seq->n_done + 1, 0)) {
        Seq *victim = seq;
        for (int32_t i = 0; i < e->plan.max_seqs; i++) {
            Seq *s = e->active[i];
            if (s && sched_gives_way(e, s, victim))
                victim = s;
        }
        victim->is_leaving = true;
        if (victim->n_flight)
            return false;
        sched_send_back(e, victim, false); // its blocks are what is wanted
        if (victim == seq)
            return false;
    }
    return true;
}

/* The decoding sequence that came first of those from `number` on that lack a block for their next
 * row. */
static Seq *sched_next_short(const Engine *e, uint64_t number) {
    Seq *first = NULL;
    for (int32_t i = 0; i < e->plan.max_seqs; i++) {
        Seq *s = e->active[i];
        if (s && s->number >= number && seq_can_decode(s) &&
            seq_blocks_for(s->n_done + 1) > s->n_blocks && (!first || s->number < first->number))
            first = s;
    }
    return first;
}

/* Before the first choice behind forced ids: they count for penalties, and what a step in flight
 * has chosen in their place does not. False: it failed, and the sequence has ended. */
static bool sched_refresh_sampler(Engine *e, Seq *seq) {
    Err err = {0};
    if (!seq->is_sampler_stale || seq->n_done + 1 < seq->n_known)
        return true;
    seq->is_sampler_stale = false;
    if (backend_sampler_set(e->backend, seq->slot, &seq->sample, seq->ids, seq->n_prompt,
                            seq->n_known - seq->n_prompt, &err) == STATUS_OK)
        return true;
    engine_end_soon(e, seq, SEQ_FAILED, &err);
    return false;
}

/* ---- prompts ---- */

/* How long rows of prompts may make decodes wait in one step, in times of the decodes themselves:
 * so much that a prompt beside many answers is read nearly as soon as if it went first, and more
 * where as many prompts as answers are under way, which then wait for those in their turn. A gap
 * between two ids is two and a half to three times the usual one then; the aim is below four. */
static double sched_mixed_share(const Engine *e, const Flight *f) {
    int32_t n = 0;
    for (int32_t i = 0; i < e->plan.max_seqs; i++)
        n += e->active[i] && e->active[i]->n_done < e->active[i]->n_prompt;
    double share = 1 + (double)n / f->n_decode;
    return share < 1.5 ? 1.5 : share > 2 ? 2 : share;
}

/* The same in rows times layers (in rows where the device runs all layers at once); < 0: as long as
 * they need. */
static double sched_mixed_work(const Engine *e, const Flight *f) {
    bool is_split = backend_splits_layers(e->backend);
    const Pace *p = &e->pace;
    if (e->plan.mixed_ms == 0 && !is_split)
        return -1;
    double seconds =
        e->plan.mixed_ms ? e->plan.mixed_ms * 1e-3 : sched_mixed_share(e, f) * p->decode_s;
    double row_s = is_split ? p->row_s / engine_config(e)->n_layers : p->row_s;
    return row_s > 0 ? seconds / row_s : -1;
}

/* Rows of prompts beside decodes: where layers are split, what PIECE_STEPS steps take. More would
 * be read a little faster, but a prompt that comes meanwhile waits for all of them. */
static int32_t sched_mixed_rows(const Engine *e, const Flight *f) {
    const EnginePlan *p = &e->plan;
    int32_t n_layers = engine_config(e)->n_layers;
    double rows = sched_mixed_work(e, f);
    if (backend_splits_layers(e->backend) && n_layers > PIECE_STEPS)
        rows *= (double)PIECE_STEPS / n_layers;
    int32_t most = p->mixed_ms && rows >= 0 ? p->chunk_tok : p->mixed_tok;
    if (rows < 0 || rows >= most)
        return most;
    return max_i32((int32_t)rows / RECUR_CHUNK, 1) * RECUR_CHUNK;
}

/* Layers for the rows of prompts of a step, of n_left; to the nearest, for few are coarse. */
static int32_t sched_mixed_layers(const Engine *e, const Flight *f, int32_t n_left) {
    double layers = sched_mixed_work(e, f) / f->n_prefill;
    if (!backend_splits_layers(e->backend) || layers < 0 || layers >= n_left)
        return n_left;
    return max_i32((int32_t)(layers + 0.5), 1);
}

void sched_leave_piece(Engine *e, Seq *seq) {
    Piece *p = &e->piece;
    if (!seq->is_half)
        return;
    seq->is_half = false;
    int32_t at = 0;
    while (p->parts[at].seq != seq)
        at++;
    for (int32_t j = 0; j < p->parts[at].n_snaps; j++)
        prefix_give_slot(e->prefix, p->parts[at].snaps[j].slot);
    if (--p->n == 0)
        p->layer = 0;
    memmove(p->parts + at, p->parts + at + 1, sizeof *p->parts * (size_t)(p->n - at));
}

/* Adds the piece to the step, unless one of its sequences is about to leave it: whoever is left
 * out of a step is forgotten by the device. */
static void sched_add_piece(Engine *e, Flight *f) {
    const Piece *p = &e->piece;
    for (int32_t i = 0; i < p->n; i++)
        if (p->parts[i].seq->is_cancelled || p->parts[i].seq->is_leaving)
            return;
    for (int32_t i = 0; i < p->n; i++) {
        BatchSeq *part = &f->parts[f->batch.n_seqs];
        sched_add_part(e, f, p->parts[i].seq, p->parts[i].n_rows);
        part->n_snaps = p->parts[i].n_snaps;
        memcpy(f->snaps + (part - f->parts) * SNAPS_A_PART, p->parts[i].snaps,
               sizeof p->parts[i].snaps);
    }
}

/* Adds what comes next of the prompts to the step. */
static void sched_add_prompts(Engine *e, Flight *f) {
    int32_t left = f->n_decode ? sched_mixed_rows(e, f) : e->plan.chunk_tok;
    int32_t n = e->plan.max_seqs, first = e->turn;
    for (int32_t i = 0; i < n && left > 0; i++) {
        int32_t slot = (first + i) % n;
        Seq *seq = e->active[slot];
        int32_t rows = seq ? seq_prefill_rows(seq, left) : 0;
        if (rows == 0)
            continue;
        BatchSeq *part = &f->parts[f->batch.n_seqs];
        sched_add_part(e, f, seq, rows);
        part->n_snaps = sched_snaps(e, seq, rows, f->snaps + (part - f->parts) * SNAPS_A_PART);
        left -= rows;
        e->turn = slot; // whoever is in the middle of its prompt goes first
    }
}

/* Says which layers the prompts of the step go through, and what is left of the piece then. */
static void sched_cut_layers(Engine *e, Flight *f) {
    Piece *p = &e->piece;
    Batch *b = &f->batch;
    int32_t all = engine_config(e)->n_layers, n_left = all - p->layer;
    b->layer0 = p->layer;
    b->layer_end = p->layer + (f->n_decode ? sched_mixed_layers(e, f, n_left) : n_left);
    bool is_half = b->layer_end < all;
    p->layer = is_half ? b->layer_end : 0;
    p->n = 0;
    for (int32_t i = f->n_decode; i < b->n_seqs; i++) {
        f->seqs[i]->is_half = is_half;
        if (!is_half) {
            sched_count_part(e, f, i);
            continue;
        }
        PiecePart *part = &p->parts[p->n++];
        *part = (PiecePart){f->seqs[i], f->parts[i].n_rows, f->parts[i].n_snaps, {{0}}};
        memcpy(part->snaps, f->parts[i].snaps, sizeof part->snaps);
    }
}

bool sched_build(Engine *e, Flight *f) {
    f->batch = (Batch){.seqs = f->parts, .ids = f->ids};
    f->n_pending = 0;
    int32_t n = e->plan.max_seqs;
    for (int32_t i = 0; i < n; i++)
        if (e->active[i])
            e->active[i]->is_leaving = false;
    // Before anybody is in the step: whoever came first finds all others as victims.
    uint64_t number = 0;
    for (Seq *seq; (seq = sched_next_short(e, number)) != NULL;) {
        number = seq->number + 1;
        (void)sched_extend(e, seq);
    }
    for (int32_t i = 0; i < n; i++) {
        Seq *seq = e->active[i];
        if (seq && seq_can_decode(seq) && seq_blocks_for(seq->n_done + 1) <= seq->n_blocks &&
            sched_refresh_sampler(e, seq)) {
            sched_add_part(e, f, seq, 1);
            sched_count_part(e, f, f->batch.n_seqs - 1);
        }
    }
    f->n_decode = f->batch.n_seqs;
    if (e->piece.n)
        sched_add_piece(e, f);
    else
        sched_add_prompts(e, f);
    f->n_prefill = f->batch.n_rows - f->n_decode;
    if (f->n_prefill)
        sched_cut_layers(e, f);
    return f->batch.n_seqs > 0;
}

/* One step that something else held up counts as twice as long at most. */
static double pace_mean(double before, double now) {
    return before > 0 ? 0.75 * before + 0.25 * (now < 2 * before ? now : 2 * before) : now;
}

void sched_note_pace(Engine *e, const Flight *f) {
    Pace *p = &e->pace;
    int64_t now_ns = clock_now_ns();
    // A step that was submitted behind another one began with that one's end.
    int64_t begun_ns = f->begun_ns > p->ended_ns ? f->begun_ns : p->ended_ns;
    double seconds = (double)(now_ns - begun_ns) * 1e-9;
    p->ended_ns = now_ns;
    if (backend_splits_layers(e->backend)) {
        double prompt_s = (double)f->prompt_ns * 1e-9;
        double work = (double)f->n_prefill * (f->batch.layer_end - f->batch.layer0) /
                      engine_config(e)->n_layers;
        if (f->n_decode && seconds > prompt_s)
            p->decode_s = pace_mean(p->decode_s, seconds - prompt_s);
        if (f->n_prefill)
            p->row_s = pace_mean(p->row_s, prompt_s / work);
    } else if (f->n_prefill == 0) {
        p->decode_s = pace_mean(p->decode_s, seconds);
    } else if (f->n_decode == 0 || seconds > p->decode_s) {
        p->row_s = pace_mean(p->row_s, (seconds - (f->n_decode ? p->decode_s : 0)) / f->n_prefill);
    }
}

/* Keeps the state that decode leaves at a multiple of 64, one a sequence, for the turn's end. */
static void sched_tail(Engine *e, Seq *seq) {
    if (!e->options.cache_slots || e->options.is_cache_exact || seq->n_done % KV_BLOCK)
        return;
    if (seq->tail_slot < 0)
        seq->tail_slot = prefix_take_slot(e->prefix, KV_BLOCK);
    if (seq->tail_slot < 0)
        return;
    backend_slot_copy(e->backend, seq->tail_slot, seq->slot);
    seq->tail_pos = seq->n_done;
}

void sched_submitted(Engine *e, Flight *f) {
    for (int32_t i = 0; i < f->n_pending; i++) {
        const PendingSnap *p = &f->pending[i];
        if (p->pos == p->seq->n_done) // at the end of the piece: the slot itself holds it
            backend_slot_copy(e->backend, p->slot, p->seq->slot);
    }
    for (int32_t i = 0; i < f->batch.n_seqs; i++)
        if (f->parts[i].phase == PHASE_DECODE)
            sched_tail(e, f->seqs[i]);
}

/* Whether the part of this sequence in the step came out finite. */
static bool flight_is_finite(const Engine *e, const Flight *f, const Seq *seq) {
    for (int32_t i = 0; i < f->batch.n_seqs; i++)
        if (f->seqs[i] == seq)
            return e->results[i].bad_layer < 0;
    return false;
}

void sched_settle(Engine *e, Flight *f, bool is_good) {
    for (int32_t i = 0; i < f->n_pending; i++) {
        const PendingSnap *p = &f->pending[i];
        if (is_good && !p->seq->is_cancelled && flight_is_finite(e, f, p->seq))
            prefix_add(e->prefix, p->seq->space, p->seq->ids, p->pos, p->seq->blocks, p->slot,
                       p->seq->figures.is_decode_made);
        else
            prefix_give_slot(e->prefix, p->slot);
    }
    f->n_pending = 0;
}
