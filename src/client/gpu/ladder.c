/* SPDX-License-Identifier: Apache-2.0 */
#include "client/gpu/ladder.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/sysmacros.h>

static const char *const names[RUNGS] = {"unified", "cufile", "ring", "pageable"};

void
ladder_init(struct ladder *ladder)
{
    memset(ladder, 0, sizeof(*ladder));
    pthread_mutex_init(&ladder->lock, NULL);
}

void
ladder_free(struct ladder *ladder)
{
    struct ladder_storage *next;

    for (struct ladder_storage *storage = ladder->storages; storage; storage = next) {
        next = storage->next;
        free(storage);
    }
    pthread_mutex_destroy(&ladder->lock);
}

/* With the lock held. */
static struct ladder_storage *
find(const struct ladder *ladder, uint64_t number)
{
    struct ladder_storage *storage = ladder->storages;

    while (storage && storage->number != number)
        storage = storage->next;
    return storage;
}

bool
ladder_add(struct ladder *ladder, uint64_t number, const char *path)
{
    struct ladder_storage *storage;

    pthread_mutex_lock(&ladder->lock);
    storage = find(ladder, number);
    if (!storage && (storage = calloc(1, sizeof(*storage)))) {
        storage->number = number;
        snprintf(storage->path, sizeof(storage->path), "%s", path);
        storage->used = RUNGS;
        storage->next = ladder->storages;
        ladder->storages = storage;
    }
    pthread_mutex_unlock(&ladder->lock);
    return storage != NULL;
}

bool
ladder_may(struct ladder *ladder, uint64_t number, enum rung rung)
{
    const struct ladder_storage *storage;
    bool may;

    pthread_mutex_lock(&ladder->lock);
    storage = find(ladder, number);
    may = !*ladder->why_not[rung].text && !(storage && *storage->why_not[rung].text);
    pthread_mutex_unlock(&ladder->lock);
    return may;
}

void
ladder_give_up(struct ladder *ladder, uint64_t number, enum rung rung, const char *why)
{
    struct ladder_storage *storage;
    struct reason *kept;

    pthread_mutex_lock(&ladder->lock);
    storage = find(ladder, number);
    kept = storage ? &storage->why_not[rung] : &ladder->why_not[rung];
    if (!*kept->text)
        reason_fill(kept, "Device", "%s", why);
    pthread_mutex_unlock(&ladder->lock);
}

void
ladder_used(struct ladder *ladder, uint64_t number, enum rung rung)
{
    struct ladder_storage *storage;

    pthread_mutex_lock(&ladder->lock);
    storage = find(ladder, number);
    if (storage)
        storage->used = rung;
    pthread_mutex_unlock(&ladder->lock);
}

static void
add_text_member(struct buffer *out, const char *name, const char *text)
{
    buffer_addf(out, "\"%s\":", name);
    buffer_add_json_string(out, text, strlen(text));
}

static void
storage_status(const struct ladder *ladder, const struct ladder_storage *storage,
               struct buffer *out)
{
    buffer_addf(out, "{\"number\":\"%u:%u\",", major(storage->number), minor(storage->number));
    add_text_member(out, "path", storage->path);
    buffer_addf(out, ",\"rung\":\"%s\"", names[storage->used]);
    for (enum rung rung = 0; rung < storage->used; rung++) {
        const char *why = storage->why_not[rung].text;

        if (!*why)
            why = ladder->why_not[rung].text;
        if (!*why)
            why = "open, but not for what was read last"; /* boxes, by cuFile */
        buffer_add_char(out, ',');
        add_text_member(out, names[rung], why);
    }
    buffer_add_char(out, '}');
}

void
ladder_status(struct ladder *ladder, struct buffer *out)
{
    const char *separator = "";

    pthread_mutex_lock(&ladder->lock);
    buffer_add_char(out, '[');
    for (const struct ladder_storage *storage = ladder->storages; storage;
         storage = storage->next) {
        if (storage->used == RUNGS)
            continue;
        buffer_add_text(out, separator);
        storage_status(ladder, storage, out);
        separator = ",";
    }
    buffer_add_char(out, ']');
    pthread_mutex_unlock(&ladder->lock);
}
