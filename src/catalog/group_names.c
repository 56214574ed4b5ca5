/* SPDX-License-Identifier: Apache-2.0 */
#include "catalog/group_names.h"

#include "base/array.h"

#include <stdio.h>
#include <string.h>

static bool
ends_with(const char *text, size_t length, const char *end)
{
    size_t end_length = strlen(end);

    return length >= end_length && memcmp(text + length - end_length, end, end_length) == 0;
}

static struct suffix
suffix_of_name(const char *file, size_t length)
{
    struct suffix suffix = {.text = file + length};

    suffix.container = container_of_name(file, length, &suffix.length);
    suffix.text -= suffix.length;
    return suffix;
}

size_t
group_hidden_stem_length(const struct container *container, const char *stem, size_t length)
{
    size_t end = container->stem ? strlen(container->stem) : 0;

    if (end == 0 || length < end || memcmp(stem, container->stem, end) != 0 ||
        (length > end && stem[end] != '.'))
        return 0;
    return end - strlen(container->shown_stem);
}

/* Sets the stem, as shown, to `a` or, if `b` is not empty, to "a.b". False: it is empty or too
 * long.
 */
static bool
make_stem(char stem[256], const struct container *container, const char *a, size_t a_length,
          const char *b, size_t b_length)
{
    size_t hidden = group_hidden_stem_length(container, a, a_length);

    if (a_length == 0 || a_length + 1 + b_length > 255)
        return false;
    if (!stem)
        return true;
    a += hidden;
    a_length -= hidden;
    memcpy(stem, a, a_length);
    if (b_length) {
        stem[a_length++] = '.';
        memcpy(stem + a_length, b, b_length);
    }
    stem[a_length + b_length] = '\0';
    return true;
}

/* Whether `rest`, the part of a file name after the suffix, is that of an index: .index.json,
 * .index.VARIANT.json or .VARIANT.index.json. The variant of the first form is empty. */
static bool
split_index_rest(const char *rest, const char **variant, size_t *length)
{
    const char *end;

    *variant = rest;
    *length = 0;
    if (strcmp(rest, ".index.json") == 0)
        return true;
    if (!ends_with(rest, strlen(rest), ".json"))
        return false;
    end = rest + strlen(rest) - strlen(".json");
    if (strncmp(rest, ".index.", 7) == 0)
        rest += 7;
    else if (*rest == '.' && ends_with(rest, (size_t)(end - rest), ".index")) {
        rest += 1;
        end -= strlen(".index");
    } else
        return false;
    if (end <= rest || memchr(rest, '.', (size_t)(end - rest)))
        return false;
    *variant = rest;
    *length = (size_t)(end - rest);
    return true;
}

bool
group_split_index_name(const char *file, char stem[256], struct suffix *suffix)
{
    const char *variant;
    size_t length, end;

    /* Search backwards for the suffix: the stem may contain one, too. */
    for (end = strlen(file); end > 0; end--) {
        if (file[end] != '.')
            continue;
        *suffix = suffix_of_name(file, end);
        if (!suffix->container || suffix->container->is_kept ||
            !split_index_rest(file + end, &variant, &length))
            continue;
        return make_stem(stem, suffix->container, file, (size_t)(suffix->text - file), variant,
                         length);
    }
    return false;
}

bool
group_index_name(const char *file, char stem[256])
{
    struct suffix suffix;

    return group_split_index_name(file, stem, &suffix);
}

const struct container *
group_index_container(const char *file)
{
    struct suffix suffix;

    return group_split_index_name(file, NULL, &suffix) ? suffix.container : NULL;
}

void
group_name_index(const char *stem, const char *suffix, char file[300])
{
    static const char *const known[] = {"model.", "diffusion_pytorch_model.", "pytorch_model."};

    for (size_t i = 0; i < COUNT_OF(known); i++) {
        size_t length = strlen(known[i]);

        if (strncmp(stem, known[i], length) == 0 && stem[length] && !strchr(stem + length, '.')) {
            snprintf(file, 300, "%.*s%s.index.%s.json", (int)length - 1, stem, suffix,
                     stem + length);
            return;
        }
    }
    snprintf(file, 300, "%s%s.index.json", stem, suffix);
}

/* Reads at least five digits that end at `end`. Returns their start; NULL: there are fewer. */
static const char *
digits_before(const char *start, const char *end, uint32_t *value)
{
    const char *at = end;
    uint64_t sum = 0, unit = 1;

    while (at > start && at[-1] >= '0' && at[-1] <= '9' && end - at < 9) {
        sum += (uint64_t)(*--at - '0') * unit;
        unit *= 10;
    }
    *value = (uint32_t)sum;
    return end - at >= 5 ? at : NULL;
}

/* Parses STEM-NNNNN-of-MMMMM, which ends at `end`. Returns the end of the stem, or NULL. */
static const char *
numbered_stem_end(const char *file, const char *end, uint32_t *number, uint32_t *of)
{
    const char *at = digits_before(file, end, of);

    if (!at || at - file < 4 || memcmp(at - 4, "-of-", 4) != 0)
        return NULL;
    at = digits_before(file, at - 4, number);
    if (!at || at - file < 2 || at[-1] != '-')
        return NULL;
    return at - 1;
}

struct suffix
group_file_suffix(const char *file)
{
    return suffix_of_name(file, strlen(file));
}

const struct container *
group_file_container(const char *file)
{
    struct suffix suffix = group_file_suffix(file);

    return suffix.container ? suffix.container : &container_safetensors;
}

/* As group_numbered_name(), but the numbers may be out of range. */
static bool
split_numbered_name(const char *file, char stem[256], uint32_t *number, uint32_t *of)
{
    struct suffix suffix = group_file_suffix(file);
    const char *end = suffix.text, *stem_end, *dot;

    if (!suffix.container)
        return false;
    stem_end = numbered_stem_end(file, end, number, of);
    if (stem_end)
        return make_stem(stem, suffix.container, file, (size_t)(stem_end - file), NULL, 0);
    dot = memrchr(file, '.', (size_t)(end - file));
    if (!dot || dot + 1 == end)
        return false;
    stem_end = numbered_stem_end(file, dot, number, of);
    return stem_end && make_stem(stem, suffix.container, file, (size_t)(stem_end - file), dot + 1,
                                 (size_t)(end - dot - 1));
}

bool
group_numbered_name(const char *file, char stem[256], uint32_t *number, uint32_t *of)
{
    return split_numbered_name(file, stem, number, of) && *number >= 1 && *number <= *of;
}

bool
group_misnumbered_name(const char *file, uint32_t *number, uint32_t *of)
{
    return split_numbered_name(file, NULL, number, of) && (*number < 1 || *number > *of);
}

bool
group_single_name(const char *file, char stem[256])
{
    struct suffix suffix = group_file_suffix(file);

    return suffix.container &&
           make_stem(stem, suffix.container, file, (size_t)(suffix.text - file), NULL, 0);
}

bool
group_split_file_name(const char *file, char stem[256], struct suffix *suffix)
{
    uint32_t number, of;

    *suffix = group_file_suffix(file);
    return group_numbered_name(file, stem, &number, &of) || group_single_name(file, stem);
}

/* Whether the name begins with one of the stems, followed by one of the characters `after`. */
static bool
begins_with_stem(const char *file, const char *const *stems, size_t count, const char *after)
{
    for (size_t i = 0; i < count; i++) {
        size_t length = strlen(stems[i]);

        if (strncmp(file, stems[i], length) == 0 && file[length] && strchr(after, file[length]))
            return true;
    }
    return false;
}

bool
group_is_name_of_weights(const char *file)
{
    static const char *const stems[] = {"pytorch_model",           "diffusion_pytorch_model",
                                        "open_clip_pytorch_model", "pytorch_lora_weights",
                                        "adapter_model",           "consolidated"};

    return begins_with_stem(file, stems, COUNT_OF(stems), ".-");
}

bool
group_is_name_of_other_format(const char *file)
{
    static const char *const stems[] = {"optimizer",     "scheduler",    "scaler",
                                        "sampler",       "rng_state",    "random_states",
                                        "dl_state_dict", "training_args"};

    return strncmp(file, "consolidated", strlen("consolidated")) == 0 ||
           begins_with_stem(file, stems, COUNT_OF(stems), "._-");
}
