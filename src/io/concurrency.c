/* SPDX-License-Identifier: Apache-2.0 */
#include "io/concurrency.h"

/* After so many reads, and so many rounds, it is looked how long one takes alone, by so many,
 * beside at most one another. */
#define READS_BETWEEN_PROBES 2048
#define ROUNDS_BETWEEN_PROBES 64
#define PROBES 6
#define FEW 2
/* What a read took alone is forgotten by such a part for each that took longer: reads are
 * of several sizes, and storage has good and bad moments. */
#define FORGOTTEN 8

void
concurrency_init(struct concurrency *concurrency, unsigned least, unsigned most)
{
    *concurrency = (struct concurrency){
        .limit = least,
        .least = least,
        .most = most > least ? most : least,
        .probing = PROBES,
    };
}

bool
concurrency_allows(struct concurrency *concurrency, unsigned under_way)
{
    if (concurrency->probing > 0 && under_way >= FEW)
        return false;
    if (under_way < concurrency->limit)
        return true;
    concurrency->held = true;
    return false;
}

static void
note_alone(struct concurrency *concurrency, uint64_t duration)
{
    if (concurrency->alone == 0 || duration < concurrency->alone)
        concurrency->alone = duration;
    else
        concurrency->alone += (duration - concurrency->alone) / FORGOTTEN;
}

static void
end_round(struct concurrency *concurrency, unsigned under_way)
{
    uint64_t mean = concurrency->total / concurrency->ended;
    unsigned limit = concurrency->limit;

    /* At twice as long, storage that is at its rate has as many waiting as it serves. */
    if (concurrency->held && mean < concurrency->alone / 2 * 3)
        limit += limit / 2 + 1;
    else if (mean > concurrency->alone * 2)
        limit -= (limit + 3) / 4;
    if (limit < concurrency->least)
        limit = concurrency->least;
    if (limit > concurrency->most)
        limit = concurrency->most;
    if (limit != concurrency->limit)
        concurrency->passed_over = under_way;
    concurrency->limit = limit;
    concurrency->held = false;
    concurrency->ended = 0;
    concurrency->total = 0;
}

void
concurrency_ended(struct concurrency *concurrency, const struct concurrency_read *read,
                  unsigned under_way)
{
    if (read->beside_first < FEW && read->beside_last < FEW)
        note_alone(concurrency, read->duration);
    if (!read->ahead)
        return;
    if (concurrency->probing > 0) {
        concurrency->probing--;
        return;
    }
    if (++concurrency->seen >= READS_BETWEEN_PROBES &&
        concurrency->seen >= ROUNDS_BETWEEN_PROBES * concurrency->limit) {
        concurrency->seen = 0;
        concurrency->probing = under_way + PROBES;
    }
    if (concurrency->passed_over > 0) {
        concurrency->passed_over--;
        return;
    }
    concurrency->total += read->duration;
    if (++concurrency->ended >= concurrency->limit)
        end_round(concurrency, under_way);
}
