/* SPDX-License-Identifier: Apache-2.0 */
#include "loads.h"

#include "common/json.h"
#include "common/units.h"
#include "report.h"

#include <string.h>

/* ---- parsing ---- */

/* Reads up to LOAD_SLICES_MOST numbers; returns how many. */
static unsigned
load_numbers(const cJSON *object, const char *name, double numbers[LOAD_SLICES_MOST])
{
    const cJSON *array = cJSON_GetObjectItemCaseSensitive(object, name);
    const cJSON *item = array ? array->child : NULL;
    unsigned count = 0;

    for (; item && count < LOAD_SLICES_MOST; item = item->next)
        numbers[count++] = cJSON_IsNumber(item) && item->valuedouble > 0 ? item->valuedouble : 0;
    return count;
}

/* Parses the line at *at and moves *at to the next one. Returns false if it is invalid. In any case
 * free `*object` with cJSON_Delete() when the load is no longer needed. */
static bool
load_parse_next(const struct buffer *page, size_t *at, struct load *load, cJSON **object)
{
    const char *line = page->data + *at, *end = memchr(line, '\n', page->length - *at);
    size_t length = end ? (size_t)(end - line) : page->length - *at;
    cJSON *json = cJSON_ParseWithLength(line, length);

    *at += length + 1;
    *object = json;
    if (!cJSON_IsObject(json))
        return false;
    *load = (struct load){
        .checkpoint = json_text(json, "checkpoint"),
        .view = json_text(json, "view"),
        .command = json_text(json, "command"),
        .order = json_text(json, "order"),
        .verdict = json_text(json, "verdict"),
        .process_group = json_number(json, "process_group"),
        .seconds = json_number(json, "seconds"),
        .storage = json_number(json, "storage_seconds"),
        .daemon = json_number(json, "daemon_seconds"),
        .reader = json_number(json, "reader_seconds"),
        .bytes = json_number(json, "bytes"),
        .storage_bytes = json_number(json, "storage_bytes"),
        .opens = json_number(json, "opens"),
        .reads = json_number(json, "reads"),
        .stalls = json_number(json, "stalls"),
        .errors = json_number(json, "errors"),
        .prefetch_hits = json_number(json, "prefetch_hit_ratio"),
        .read_ratio = json_number(json, "read_ratio"),
        .start = (time_t)json_number(json, "start"),
        .running = cJSON_IsTrue(cJSON_GetObjectItemCaseSensitive(json, "running")),
        .slice_seconds = json_number(json, "slice_seconds"),
    };
    load->slice_count = load_numbers(json, "slices", load->slices);
    load_numbers(json, "slices_busy", load->busy);
    return true;
}

static errint_t
refuse_page(struct reason *reason)
{
    return reason_set(reason, -EBADMSG, "Loads",
                      ".fstfs/loads is invalid (expected lines of JSON)");
}

/* ---- the table ---- */

static void
add_percent(struct buffer *out, double part, double whole)
{
    buffer_addf(out, "%6.0f%%", whole > 0 ? 100 * part / whole : 0);
}

static void
add_load_row(struct buffer *out, const struct load *load)
{
    char started[16] = "?", order[QUOTED_SIZE], view[QUOTED_SIZE], command[QUOTED_SIZE];
    char bytes[UNITS_SIZE], rate[UNITS_SIZE];
    struct tm local;

    if (localtime_r(&load->start, &local))
        strftime(started, sizeof(started), "%H:%M:%S", &local);
    buffer_addf(out, "%-8s %8.2fs%s %9s %9s/s", started, load->seconds, load->running ? "+" : " ",
                units_bytes(bytes, load->bytes),
                units_bytes(rate, load->seconds > 0 ? load->bytes / load->seconds : 0));
    add_percent(out, load->storage, load->seconds);
    add_percent(out, load->daemon, load->seconds);
    add_percent(out, load->reader, load->seconds);
    buffer_addf(out, "  %-7s %-7s %-16s ", quoted(order, load->order, strlen(load->order)),
                quoted(view, load->view, strlen(load->view)),
                quoted(command, load->command, strlen(load->command)));
    buffer_add_quoted(out, load->checkpoint, strlen(load->checkpoint), strlen(load->checkpoint));
    buffer_add_text(out, "\n         => ");
    buffer_add_quoted(out, load->verdict, strlen(load->verdict), QUOTED_SIZE);
    if (load->read_ratio > 1.05)
        buffer_addf(out, "; %.2f bytes read for each byte requested", load->read_ratio);
    if (load->errors > 0)
        buffer_addf(out, "; %.0f reads failed", load->errors);
    buffer_add_char(out, '\n');
}

errint_t
loads_table(const struct buffer *page, struct buffer *out, struct reason *reason)
{
    struct load load;
    cJSON *object;
    bool is_valid = true;
    size_t at = 0;

    buffer_add_text(out, "STARTED      TIME        READ        RATE  STORAGE FSTFS READER  ORDER   "
                         "VIEW    COMMAND          CHECKPOINT\n");
    while (is_valid && at < page->length) {
        is_valid = load_parse_next(page, &at, &load, &object);
        if (is_valid)
            add_load_row(out, &load);
        cJSON_Delete(object);
    }
    return is_valid ? 0 : refuse_page(reason);
}

errint_t
loads_svg(const struct buffer *page, struct buffer *out, struct reason *reason)
{
    struct load load;
    cJSON *object = NULL;
    bool is_valid = true;
    size_t at = 0;

    if (page->length == 0)
        return reason_set(reason, -ENODATA, "Loads", "there was no load yet");
    while (is_valid && at < page->length) {
        cJSON_Delete(object);
        is_valid = load_parse_next(page, &at, &load, &object);
    }
    if (is_valid)
        timeline_svg(&load, out);
    cJSON_Delete(object);
    return is_valid ? 0 : refuse_page(reason);
}
