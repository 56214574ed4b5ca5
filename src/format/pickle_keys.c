/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Equal keys in the dictionaries of a pickle. Python keeps one entry for them: the first key with
 * the last value. No writer stores such entries, so pickle_read(), the only caller, refuses them.
 */
#include "format/pickle.h"
#include "format/pickle_machine.h"

#include "base/text.h"

#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

/* ---- strings ---- */

static int
compare_strings(const void *a, const void *b, void *pickle)
{
    const struct pickle *p = pickle;
    const struct pickle_node *x = &p->nodes[*(const uint32_t *)a];
    const struct pickle_node *y = &p->nodes[*(const uint32_t *)b];

    return text_compare(p->text + x->a, x->b, p->text + y->a, y->b);
}

/*
 * Gives equal strings that are keys the same number, in node.c, so that a string that is the key of
 * many entries is compared with others only here. `nodes` has room for all of them.
 */
static void
number_key_strings(struct pickle *p, uint32_t *nodes)
{
    uint32_t count = 0;

    for (uint32_t i = 1; i <= p->entry_count; i++)
        if (pickle_kind_of(p, p->entries[i].key) == PICKLE_STRING &&
            !p->nodes[p->entries[i].key].c) {
            p->nodes[p->entries[i].key].c = 1;
            nodes[count++] = p->entries[i].key;
        }
    if (count)
        qsort_r(nodes, count, sizeof(*nodes), compare_strings, p);
    for (uint32_t i = 1; i < count; i++)
        p->nodes[nodes[i]].c =
            p->nodes[nodes[i - 1]].c + (compare_strings(&nodes[i - 1], &nodes[i], p) != 0);
}

/* ---- dictionaries ---- */

/* A key in a form in which equality is that of Python. */
struct dict_key {
    bool is_string;
    int64_t number; /* of a string: that of number_key_strings() */
};

/* False: the key is neither a string nor a whole number of 64 bits. */
static bool
get_dict_key(const struct pickle *p, pickle_value value, struct dict_key *key)
{
    uint64_t bits;
    double real;

    *key = (struct dict_key){.is_string = false};
    switch (pickle_kind_of(p, value)) {
    case PICKLE_STRING:
        *key = (struct dict_key){true, p->nodes[value].c};
        return true;
    case PICKLE_NUMBER:
        return pickle_get_integer(p, value, &key->number);
    case PICKLE_BOOL:
        key->number = value == PICKLE_VALUE_TRUE;
        return true;
    case PICKLE_FLOAT:
        bits = p->nodes[value].a | (uint64_t)p->nodes[value].b << 32;
        memcpy(&real, &bits, sizeof(real));
        if (!(real >= -9223372036854775808.0 && real < 9223372036854775808.0)) /* int64_t */
            return false;
        key->number = (int64_t)real;
        return (double)key->number == real;
    default:
        return false;
    }
}

static int
compare_dict_keys(const void *a, const void *b, void *pickle)
{
    const struct pickle *p = pickle;
    struct dict_key x, y;

    get_dict_key(p, p->entries[*(const uint32_t *)a].key, &x);
    get_dict_key(p, p->entries[*(const uint32_t *)b].key, &y);
    if (x.is_string != y.is_string)
        return x.is_string ? 1 : -1;
    return (x.number > y.number) - (x.number < y.number);
}

static errint_t
refuse_equal_keys(const struct pickle_machine *m, pickle_value key)
{
    const struct pickle *p = m->pickle;
    char shown[QUOTED_SIZE];

    if (pickle_kind_of(p, key) != PICKLE_STRING)
        return reason_set(m->reason, -EBADMSG, "Pickle",
                          "a dictionary has two numbers as keys that are equal");
    return reason_set(m->reason, -EBADMSG, "Pickle", "a dictionary has the key \"%s\" twice",
                      quoted(shown, p->text + p->nodes[key].a, p->nodes[key].b));
}

/* Whether the value of a key is not known: it may equal any string or number. torch.load() replaces
 * a persistent ID ("module", VALUE, ...) by VALUE. */
static bool
is_unknown_key(enum pickle_kind kind)
{
    return kind == PICKLE_OPAQUE || kind == PICKLE_CALL || kind == PICKLE_GLOBAL ||
           kind == PICKLE_PERSISTENT;
}

/* `entries` has room for all entries of the pickle. */
static errint_t
check_dict_keys(const struct pickle_machine *m, struct pickle_node *dict, uint32_t *entries)
{
    struct pickle *p = m->pickle;
    struct dict_key key;
    uint32_t count = 0;

    for (uint32_t i = dict->a; i; i = p->entries[i].next) {
        if (is_unknown_key(pickle_kind_of(p, p->entries[i].key)))
            dict->flags |= PICKLE_DICT_UNSURE;
        else if (get_dict_key(p, p->entries[i].key, &key))
            entries[count++] = i;
    }
    if (count > 1)
        qsort_r(entries, count, sizeof(*entries), compare_dict_keys, p);
    for (uint32_t i = 1; i < count; i++)
        if (compare_dict_keys(&entries[i - 1], &entries[i], p) == 0)
            return refuse_equal_keys(m, p->entries[entries[i]].key);
    return 0;
}

errint_t
pickle_check_keys(struct pickle_machine *m)
{
    struct pickle *p = m->pickle;
    const size_t bytes = ((size_t)p->entry_count + 1) * sizeof(uint32_t);
    uint32_t *sorted;
    errint_t error = 0;

    if (2 * bytes > m->memory_left) /* qsort_r() takes as much */
        return reason_set(m->reason, -EBADMSG, "PickleMemory",
                          "comparing the keys of its dictionaries takes more memory than the limit "
                          "for a pickle of %zu bytes",
                          m->length);
    sorted = malloc(bytes);
    if (!sorted)
        return reason_no_memory(m->reason);
    number_key_strings(p, sorted);
    for (uint32_t i = 0; !error && i < p->node_count; i++)
        if (p->nodes[i].kind == PICKLE_DICT)
            error = check_dict_keys(m, &p->nodes[i], sorted);
    free(sorted);
    return error;
}
