/* SPDX-License-Identifier: Apache-2.0 */
#include "glob.h"

#include <errno.h>
#include <fnmatch.h>
#include <stdlib.h>
#include <string.h>

/* Replaces NUL, at which fnmatch(3) would end the name. This byte is never part of UTF-8, so no
 * pattern in UTF-8 matches it literally. */
#define NUL_REPLACEMENT '\xff'

errint_t
glob_match(const char *glob, const char *name, size_t length, bool *matches)
{
    char *text = malloc(length + 1);

    if (!text)
        return -ENOMEM;
    for (size_t i = 0; i < length; i++)
        text[i] = (char)(name[i] ? name[i] : NUL_REPLACEMENT);
    text[length] = '\0';
    *matches = fnmatch(glob, text, 0) == 0;
    free(text);
    return 0;
}
