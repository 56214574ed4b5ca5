/* SPDX-License-Identifier: Apache-2.0 */
#include "client/gpu/fallback.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/sysmacros.h>

static const char *const names[GPU_BACKENDS] = {"unified", "cufile", "ring", "pageable"};

void
fallback_init(struct fallback_chain *chain)
{
    memset(chain, 0, sizeof(*chain));
    pthread_mutex_init(&chain->lock, NULL);
}

void
fallback_free(struct fallback_chain *chain)
{
    struct fallback_storage *next;

    for (struct fallback_storage *storage = chain->storages; storage; storage = next) {
        next = storage->next;
        free(storage);
    }
    pthread_mutex_destroy(&chain->lock);
}

/* With the lock held. */
static struct fallback_storage *
fallback_find(const struct fallback_chain *chain, uint64_t number)
{
    struct fallback_storage *storage = chain->storages;

    while (storage && storage->number != number)
        storage = storage->next;
    return storage;
}

bool
fallback_add_storage(struct fallback_chain *chain, uint64_t number, const char *path)
{
    struct fallback_storage *storage;

    pthread_mutex_lock(&chain->lock);
    storage = fallback_find(chain, number);
    if (!storage && (storage = calloc(1, sizeof(*storage)))) {
        storage->number = number;
        snprintf(storage->path, sizeof(storage->path), "%s", path);
        storage->used = GPU_BACKENDS;
        storage->next = chain->storages;
        chain->storages = storage;
    }
    pthread_mutex_unlock(&chain->lock);
    return storage != NULL;
}

bool
fallback_is_enabled(struct fallback_chain *chain, uint64_t number, enum gpu_backend backend)
{
    const struct fallback_storage *storage;
    bool is_enabled;

    pthread_mutex_lock(&chain->lock);
    storage = fallback_find(chain, number);
    is_enabled = !*chain->why_not[backend].text && !(storage && *storage->why_not[backend].text);
    pthread_mutex_unlock(&chain->lock);
    return is_enabled;
}

void
fallback_disable(struct fallback_chain *chain, uint64_t number, enum gpu_backend backend,
                 const char *why)
{
    struct fallback_storage *storage;
    struct reason *kept;

    pthread_mutex_lock(&chain->lock);
    storage = fallback_find(chain, number);
    kept = storage ? &storage->why_not[backend] : &chain->why_not[backend];
    if (!*kept->text)
        reason_fill(kept, "Device", "%s", why);
    pthread_mutex_unlock(&chain->lock);
}

void
fallback_used(struct fallback_chain *chain, uint64_t number, enum gpu_backend backend)
{
    struct fallback_storage *storage;

    pthread_mutex_lock(&chain->lock);
    storage = fallback_find(chain, number);
    if (storage)
        storage->used = backend;
    pthread_mutex_unlock(&chain->lock);
}

static void
fallback_add_member(struct buffer *out, const char *name, const char *text)
{
    buffer_addf(out, "\"%s\":", name);
    buffer_add_json_string(out, text, strlen(text));
}

static void
fallback_storage_status(const struct fallback_chain *chain, const struct fallback_storage *storage,
                        struct buffer *out)
{
    buffer_addf(out, "{\"number\":\"%u:%u\",", major(storage->number), minor(storage->number));
    fallback_add_member(out, "path", storage->path);
    buffer_addf(out, ",\"backend\":\"%s\"", names[storage->used]);
    for (enum gpu_backend backend = 0; backend < storage->used; backend++) {
        const char *why = storage->why_not[backend].text;

        if (!*why)
            why = chain->why_not[backend].text;
        if (!*why)
            why = "enabled, but not used for the last read"; /* cuFile: a strided slice */
        buffer_add_char(out, ',');
        fallback_add_member(out, names[backend], why);
    }
    buffer_add_char(out, '}');
}

void
fallback_status(struct fallback_chain *chain, struct buffer *out)
{
    const char *separator = "";

    pthread_mutex_lock(&chain->lock);
    buffer_add_char(out, '[');
    for (const struct fallback_storage *storage = chain->storages; storage;
         storage = storage->next) {
        if (storage->used == GPU_BACKENDS)
            continue;
        buffer_add_text(out, separator);
        fallback_storage_status(chain, storage, out);
        separator = ",";
    }
    buffer_add_char(out, ']');
    pthread_mutex_unlock(&chain->lock);
}
